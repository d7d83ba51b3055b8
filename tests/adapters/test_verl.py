"""verl's function against weights, masks and figures of independent code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import offtrace as ot  # noqa: E402
from offtrace.adapters.verl import compute_is_metrics, compute_offpolicy_metrics  # noqa: E402
from offtrace.adapters.verl import compute_rollout_correction_and_rejection_mask as correct  # noqa: E402

REFERENCE = Path(__file__).parents[1] / "reference"
STORED = np.load(REFERENCE / "rollout_weights.npz")
METRICS: dict[str, Any] = json.loads((REFERENCE / "verl_metrics.json").read_text())
"""What verl 0.9.1 computes of the same batch; `benchmarks/verl_metrics.py --write` wrote it."""
TAKEN = torch.from_numpy(STORED["log_pi"]), torch.from_numpy(STORED["log_mu"]), torch.from_numpy(STORED["valid"])
EPSILON = 1e-8
"""They divide by n + ε for a mean over n, which is 3 or more here."""
N = STORED["valid"].sum(axis=1)


def agree(found: dict[str, float], wanted: dict[str, float]) -> None:
    for name, value in wanted.items():
        in_float32 = "fraction" in name or "ratio" in name or "std" in name or "eff" in name
        rel = 1e-6 if in_float32 else 2 * EPSILON / N.min()
        assert found[name] == pytest.approx(value, rel=rel, abs=2 * EPSILON / N.min()), name


def bound(text: str) -> float | str:
    return text if "_" in text else float(text)


@pytest.mark.parametrize("name", [name for name in METRICS if name.startswith("weight:")])
def test_figures_of_weights(name: str) -> None:
    """Under verl's names and with verl's meanings: of the weights as they are applied, and shares of those before."""
    _, level, threshold = name.split(":")
    found, _, metrics = correct(*TAKEN, level, bound(threshold))
    agree(metrics, METRICS[name])
    used = found.batch["rollout_is_weights"][TAKEN[2]]
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(float(used.mean()), rel=1e-12)
    raw = ot.weights(ot.ImportanceSampling(), log_pi=TAKEN[0], log_mu=TAKEN[1], mask=TAKEN[2], level=level)
    lower, upper = map(float, threshold.split("_")) if "_" in threshold else (None, float(threshold))
    logs = raw.max(1, keepdim=True).values.log() if level == "sequence" else torch.full_like(raw, torch.nan)
    own = compute_is_metrics(found.batch["rollout_is_weights"], raw, logs, TAKEN[2], level, upper, lower)
    assert {f"rollout_corr/{n}": pytest.approx(v, rel=1e-12) for n, v in own.items()} == {
        n: v for n, v in metrics.items() if "rollout_is" in n and "oob" not in n
    }


@pytest.mark.parametrize("name", [name for name in STORED.files if name.startswith("weight:")])
def test_weights(name: str) -> None:
    _, level, threshold = name.split(":")
    found, mask, metrics = correct(*TAKEN, level, float(threshold))
    made = found.batch["rollout_is_weights"]
    np.testing.assert_allclose(made.numpy(), STORED[name], rtol=1e-12, atol=0)
    assert torch.equal(mask, TAKEN[2])
    normalised, _, metrics = correct(*TAKEN, level, float(threshold), rollout_is_batch_normalize=True)
    wanted = STORED[name.replace("weight", "weight_normalised")]
    np.testing.assert_allclose(normalised.batch["rollout_is_weights"].numpy(), wanted, rtol=EPSILON / N.min())
    factor = metrics["rollout_corr/rollout_is_batch_norm_factor"]
    np.testing.assert_allclose(normalised.batch["rollout_is_weights"] * factor, made, rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in METRICS if name.startswith("keep:")])
def test_figures_of_rejections(name: str) -> None:
    _, by, threshold = name.split(":")
    agree(correct(*TAKEN, rollout_rs=by, rollout_rs_threshold=bound(threshold))[2], METRICS[name])


@pytest.mark.parametrize("name", [name for name in STORED.files if name.startswith("keep:")])
def test_rejections(name: str) -> None:
    _, by, threshold = name.split(":")
    for of in (torch.bool, torch.int64, torch.float32):
        found, mask, _ = correct(*TAKEN[:2], TAKEN[2].to(of), rollout_rs=by, rollout_rs_threshold=threshold)
        assert found is None
        assert mask.dtype == of
        np.testing.assert_array_equal(mask.numpy(), STORED[name])


def test_figures_of_the_policies() -> None:
    agree(correct(*TAKEN)[2], METRICS["policies"])
    own = {f"rollout_corr/{name}": value for name, value in compute_offpolicy_metrics(*TAKEN).items()}
    assert own == correct(*TAKEN)[2]
    alone = compute_offpolicy_metrics(TAKEN[0], None, TAKEN[2])
    assert alone == {name: own[f"rollout_corr/{name}"] for name in ("training_ppl", "training_log_ppl")}


@pytest.mark.parametrize("by", ["token_k1", "seq_mean_k3", "token_k2,seq_max_k3"])
def test_a_token_that_mu_never_draws_is_rejected_counted_and_said(by: str) -> None:
    log_mu = TAKEN[1].clone()
    row, step = (int(i) for i in TAKEN[2].nonzero()[4])
    log_mu[row, step] = -torch.inf
    given = TAKEN[0], log_mu, TAKEN[2]
    with pytest.raises(ValueError, match="log_mu is -inf"):
        correct(*given, "token")
    with pytest.warns(UserWarning, match=rf"log_mu is −inf at 1 decision\(s\), first at index \[{row}, {step}\]"):
        found, mask, metrics = correct(*given, "sequence", 2.0, rollout_rs=by, rollout_rs_threshold=100.0)
    lost = TAKEN[2] & ~mask
    judged_whole = "seq" in by
    wanted = torch.zeros_like(lost)
    wanted[row] = TAKEN[2][row] & (judged_whole | (torch.arange(lost.shape[1]) == step))
    assert torch.equal(lost, wanted)
    assert metrics["rollout_corr/rollout_rs_never_drawn"] == 1.0
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(float(lost.sum() / TAKEN[2].sum()))
    assert all(np.isfinite(value) for value in metrics.values())
    hole = TAKEN[2].clone()
    hole[row, step] = False
    assert torch.equal(
        found.batch["rollout_is_weights"], correct(*given[:2], hole, "sequence", 2.0)[0].batch["rollout_is_weights"]
    )
    one = slice(row, row + 1)  # a batch of this row alone has figures too
    with pytest.warns(UserWarning, match="log_mu is −inf"):
        metrics = correct(*(a[one] for a in given), rollout_rs=by, rollout_rs_threshold=100.0)[2]
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 1.0


def test_several_criteria_and_icepop() -> None:
    _, one, _ = correct(*TAKEN, rollout_rs="token_k3", rollout_rs_threshold=0.02)
    _, two, _ = correct(*TAKEN, rollout_rs="seq_sum_k1", rollout_rs_threshold="0.5_2.0")
    _, both, metrics = correct(*TAKEN, rollout_rs="token_k3, seq_sum_k1", rollout_rs_threshold="0.02,0.5_2.0")
    assert torch.equal(both, one & two)
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - float(both.sum() / TAKEN[2].sum()))
    found, _, metrics = correct(*TAKEN, "token", "0.9_1.1")
    w = found.batch["rollout_is_weights"]
    assert set(torch.unique((w == 0) | ((w >= 0.9) & (w <= 1.1))).tolist()) == {True}
    assert metrics["rollout_corr/rollout_is_oob_ratio"] == pytest.approx(float((w[TAKEN[2]] == 0).double().mean()))


def test_our_own_levels_and_traces() -> None:
    taken: dict[str, Any] = {"log_pi": TAKEN[0], "log_mu": TAKEN[1], "mask": TAKEN[2]}
    for level in ("prefix", "suffix", "geometric"):
        found, _, _ = correct(*TAKEN, level, 2.0, trace=ot.NonMarkovRetrace(lam=1.0))
        assert torch.equal(found.batch["rollout_is_weights"], ot.weights(ot.NonMarkovRetrace(), **taken, level=level))
    segment = (torch.arange(24) >= 12).long().expand(12, 24)
    found, _, _ = correct(*TAKEN, "sequence", 5.0, segment=segment)
    wanted = ot.weights(ot.ImportanceSampling(), **taken, level="sequence", upper=5.0, segment=segment)
    assert torch.equal(found.batch["rollout_is_weights"], wanted)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rollout_is": "tokens"}, r"rollout_is = 'tokens' is not known; did you mean 'token'"),
    ({"rollout_is": "token", "rollout_is_threshold": "2_1"}, r"the lower bound is above the upper one"),
    ({"rollout_is": "token", "rollout_is_threshold": -1.0}, r"rollout_is_threshold = -1.0 is not a number above 0"),
    ({"rollout_rs": "seq_mean_k4", "rollout_rs_threshold": 1.0}, r"not known; did you mean 'seq_mean_k"),
    ({"rollout_rs": "token_k1"}, r"rollout_rs_threshold is missing"),
    ({"rollout_rs": "token_k1,token_k2", "rollout_rs_threshold": "1,2,3"}, r"3 bounds for 2 criteria"),
    ({"rollout_rs": "token_k3", "rollout_rs_threshold": "0.1_0.2"}, r"one bound only"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[m[:30] for _, m in BAD])
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        correct(*TAKEN, **options)
    with pytest.raises(ValueError, match="mask has no decision"):
        correct(TAKEN[0], TAKEN[1], TAKEN[2] & False)
    for name in ("rollout_is_threshold", "rollout_rs_threshold"):
        with pytest.raises(
            TypeError, match=f"{name} must be a number, or two as in '0.5_2.0', not a boolean: got True"
        ):
            correct(
                *TAKEN, **{"rollout_is": "token", "rollout_rs": "token_k3", "rollout_rs_threshold": 1.0, name: True}
            )
    with (
        pytest.raises(ValueError, match="rollout_log_prob is −inf at every decision"),
        pytest.warns(UserWarning, match="−inf"),
    ):
        correct(TAKEN[0], TAKEN[1] - torch.inf, TAKEN[2], rollout_rs="token_k3", rollout_rs_threshold=1.0)
