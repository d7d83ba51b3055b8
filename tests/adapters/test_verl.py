"""verl's function against weights, masks and figures of independent code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import offtrace as ot  # noqa: E402
from offtrace.adapters.verl import compute_rollout_correction_and_rejection_mask as correct  # noqa: E402

STORED = np.load(Path(__file__).parents[1] / "reference" / "rollout_weights.npz")
METRICS: dict[str, dict[str, float]] = json.loads(str(STORED["metrics_json"]))
TAKEN = torch.from_numpy(STORED["log_pi"]), torch.from_numpy(STORED["log_mu"]), torch.from_numpy(STORED["valid"])
PLAIN = {"rollout_is_std", "rollout_is_eff_sample_size"}
"""Theirs are of clipped weights, ours of the weights themselves."""
EPSILON = 1e-8
"""They divide by n + ε for a mean over n, which is 3 or more here."""
N = STORED["valid"].sum(axis=1)


def agree(found: dict[str, float], wanted: dict[str, float]) -> None:
    for name, value in wanted.items():
        if name in PLAIN:
            continue
        share = "fraction" in name  # which they hold in float32
        mine = found[f"rollout_corr/{name}"]
        assert mine == pytest.approx(value, rel=1e-7 if share else EPSILON / N.min(), abs=2 * EPSILON / N.min()), name


@pytest.mark.parametrize("name", [name for name in METRICS if name.startswith("weight:")])
def test_weights_and_their_figures(name: str) -> None:
    _, level, threshold = name.split(":")
    found, mask, metrics = correct(*TAKEN, level, float(threshold))
    made = found.batch["rollout_is_weights"]
    np.testing.assert_allclose(made.numpy(), STORED[name], rtol=1e-12, atol=0)
    assert torch.equal(mask, TAKEN[2])
    agree(metrics, METRICS[name])
    raw = ot.weights(ot.ImportanceSampling(), log_pi=TAKEN[0], log_mu=TAKEN[1], mask=TAKEN[2], level=level)[TAKEN[2]]
    assert metrics["rollout_corr/rollout_is_std"] == pytest.approx(float(raw.std(correction=0)), rel=1e-12)
    share = float(raw.mean() ** 2 / (raw**2).mean())
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(share, rel=1e-12)
    normalised, _, metrics = correct(*TAKEN, level, float(threshold), rollout_is_batch_normalize=True)
    wanted = STORED[name.replace("weight", "weight_normalised")]
    np.testing.assert_allclose(normalised.batch["rollout_is_weights"].numpy(), wanted, rtol=EPSILON / N.min())
    factor = metrics["rollout_corr/rollout_is_batch_norm_factor"]
    np.testing.assert_allclose(normalised.batch["rollout_is_weights"] * factor, made, rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in METRICS if name.startswith("keep:")])
def test_rejections_and_their_figures(name: str) -> None:
    _, by, threshold = name.split(":")
    for of in (torch.bool, torch.int64, torch.float32):
        found, mask, metrics = correct(*TAKEN[:2], TAKEN[2].to(of), rollout_rs=by, rollout_rs_threshold=threshold)
        assert found is None
        assert mask.dtype == of
        np.testing.assert_array_equal(mask.numpy(), STORED[name])
    agree(metrics, METRICS[name])


def test_figures_of_the_policies() -> None:
    agree(correct(*TAKEN)[2], METRICS["offpolicy"])


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
