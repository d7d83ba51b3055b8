"""Which decisions are kept, and what a diagnosis of weights finds, both against plain sums."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import offtrace as ot
from helpers import KINDS
from offtrace.returns.weights.api import KNOWN
from returns.test_weights import LIMITS, REFERENCE, arrays, batches, by_tensors

ESTIMATES: dict[str, Any] = {
    "k1": lambda x, _: -x, "k2": lambda x, _: x * x / 2, "k3": lambda x, _: np.exp(x) - 1 - x,
    "ratio": lambda x, _: np.exp(x), "difference": lambda x, log_mu: np.exp(log_mu + x) - np.exp(log_mu),
}  # fmt: skip
JOINED: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max}


def statistic(name: str, log_ratio: np.ndarray, log_mu: np.ndarray) -> float:
    """What a criterion looks at, of the decisions that it takes together."""
    over, k = name.rsplit(" ", 1)
    with np.errstate(over="ignore"):
        values = ESTIMATES[k](log_ratio, log_mu)
        if k == "ratio" and over.endswith("mean"):
            return float(np.exp(np.mean(log_ratio)))
        if k == "ratio" and over in ("prefix", "sequence"):
            return float(np.exp(np.sum(log_ratio)))
        return float(values[-1] if over == "token" else JOINED[over.split()[1]](values))


def by_loops(batch: dict[str, Any], by: list[str], lower: list[Any], upper: list[Any]) -> np.ndarray:
    """The definition, decision by decision."""
    B, T = batch["log_pi"].shape
    out = np.zeros((B, T), bool)
    for b in range(B):
        mask = np.ones(T) if "mask" not in batch else batch["mask"][b]
        segment = np.zeros(T) if "segment" not in batch else batch["segment"][b]
        for t in np.flatnonzero(mask):
            row = np.flatnonzero((mask != 0) & (segment == segment[t]))
            kept = True
            for name, low, high in zip(by, lower, upper, strict=True):
                at = np.array([t]) if name.startswith("token") else row[row <= t] if name.startswith("prefix") else row
                value = statistic(name, batch["log_pi"][b, at] - batch["log_mu"][b, at], batch["log_mu"][b, at])
                if "advantage" in batch and name.endswith(("ratio", "difference")):
                    A = batch["advantage"][b] if batch["advantage"].ndim == 1 else batch["advantage"][b, t]
                    low, high = low if A < 0 else None, high if A > 0 else None
                kept &= (low is None or value >= low) and (high is None or value <= high)
            out[b, t] = kept
    return out


BOUNDS: dict[str, Any] = {
    "k1": (-0.3, 0.6), "k2": (None, 0.6), "k3": (None, 0.6), "ratio": (0.61, 1.63), "difference": (-0.17, 0.13),
}  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=LIMITS)
@given(batch=batches())
def test_every_criterion_is_its_definition(batch: dict[str, Any]) -> None:
    batch.pop("greedy")
    for name in KNOWN:
        low, high = BOUNDS[name.rsplit(" ", 1)[1]]
        wanted = by_loops(batch, [name], [low], [high])
        np.testing.assert_array_equal(ot.reject(**batch, by=name, lower=low, upper=high), wanted, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_several_at_once_on_every_kind_of_array(kind: str) -> None:
    rng = np.random.default_rng(0)
    shape = 4, 6
    batch: dict[str, Any] = {"log_pi": -rng.random(shape) * 2, "log_mu": -rng.random(shape) * 2}
    batch |= {"mask": rng.random(shape) < 0.8, "segment": np.cumsum(rng.random(shape) < 0.3, axis=1)}
    batch["log_pi"][0, 0] = -np.inf
    by = ["token k1", "sequence mean k3", "sequence max k2", "sequence sum k1"]
    bounds: dict[str, Any] = {"lower": [-1.0, None, None, -2.0], "upper": [1.5, 0.9, 1.5, None]}
    wanted = by_loops(batch, by, bounds["lower"], bounds["upper"])
    assert 0 < wanted.sum() < batch["mask"].sum()
    for check in (None, False):
        with by_tensors() if check is False else nullcontext():
            found = ot.reject(**arrays(kind, batch), by=by, **bounds, check=check)
        assert "bool" in str(found.dtype)
        np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of_rows", [False, True])
def test_bounds_act_by_the_sign_of_the_advantage(kind: str, of_rows: bool) -> None:
    """DPPO's mask and OPSM's, and what is unsigned is not touched by the advantage."""
    rng = np.random.default_rng(1)
    shape = 6, 7
    batch: dict[str, Any] = {"log_pi": -rng.random(shape) * 2, "log_mu": -rng.random(shape) * 2}
    batch |= {"mask": rng.random(shape) < 0.8, "advantage": rng.integers(-1, 2, shape[:1] if of_rows else shape) * 1.0}
    for segment in ({}, {"segment": np.cumsum(rng.random(shape) < 0.3, axis=1)}):
        for by in ("token ratio", "token difference", "sequence mean ratio", "prefix mean ratio", "sequence max ratio"):
            low, high = (-0.2, 0.1) if "difference" in by else (0.8, 1.2)
            names, limits = [by, "token k1"], {"lower": [low, None], "upper": [high, 1.5]}
            wanted = by_loops(batch | segment, names, limits["lower"], limits["upper"])
            assert 0 < wanted.sum() < batch["mask"].sum()
            for check in (None, False):
                with by_tensors() if check is False else nullcontext():
                    result = ot.reject(**arrays(kind, batch | segment), by=names, **limits, check=check)
                np.testing.assert_array_equal(np.asarray(result), wanted, err_msg=by)


@pytest.mark.parametrize("kind", KINDS)
def test_what_mu_never_draws_is_rejected_and_said(kind: str) -> None:
    """By every criterion, also where only one side has a bound; and a sequence with such a decision where it is judged whole."""
    log = np.full((3, 3), -1.0)
    log_mu = log.copy()
    log_mu[0, 1] = log_mu[1, 2] = -np.inf
    log_pi = np.where(log_mu[:, ::-1] == -np.inf, -np.inf, log)  # at [0, 1] both are −∞
    taken: dict[str, Any] = {"log_pi": log_pi, "log_mu": log_mu, "mask": np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]])}
    for name in KNOWN:
        wanted = taken["mask"] != 0
        wanted[0, 1 if name.startswith("token") else slice(1 if name.startswith("prefix") else 0, None)] = False
        if not name.endswith(("ratio", "difference")):  # those of an action that π never takes are small
            wanted[1, 0 if name.startswith("token") else slice(None)] = False
        with pytest.warns(UserWarning, match=r"log_mu is −inf at 1 decision\(s\), first at index \[0, 1\]"):
            found = ot.reject(**arrays(kind, taken), by=name, upper=5.0)
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        with by_tensors():
            found = (
                np.asarray(ot.reject(**arrays(kind, taken), by=name, upper=5.0, check=False))
                if kind != "numpy"
                else found
            )
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_without_a_decision_nothing_is_kept() -> None:
    zero = np.zeros((2, 3))
    for kind in KINDS:
        found = ot.reject(**arrays(kind, {"log_pi": zero, "log_mu": zero, "mask": zero}), by="token k3", upper=1.0)
        np.testing.assert_array_equal(found, False)


def test_reference() -> None:
    """Eleven masks of independent code, whose bounds of k1 are ratios."""
    stored = np.load(REFERENCE)
    taken: dict[str, Any] = {"log_pi": stored["log_pi"], "log_mu": stored["log_mu"], "mask": stored["valid"]}
    names = [name for name in stored.files if name.startswith("keep:")]
    assert len(names) == 11
    for name in names:
        _, by, bounds = name.split(":")
        numbers = [np.log(float(x)) if by.endswith("k1") else float(x) for x in bounds.split("_")]
        found = ot.reject(**taken, by=by.replace("seq", "sequence").replace("_", " "), **limits(numbers))
        np.testing.assert_array_equal(found, stored[name], err_msg=name)


def limits(numbers: list[Any]) -> dict[str, Any]:
    return {"upper": numbers[0]} if len(numbers) == 1 else {"lower": numbers[0], "upper": numbers[1]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"by": "sequence median k3"}, r"by = 'sequence median k3' is not known; did you mean 'sequence mean k3'"),
    ({"by": []}, r"by is empty"),
    ({"by": "token k3", "lower": 0.1}, r"token k3 is never negative and has no lower bound"),
    ({"by": "token k1", "upper": None}, r"token k1 has no bound"),
    ({"by": "token k1", "lower": 2.0}, r"lower = 2 is above upper = 1"),
    ({"by": ["token k1", "token k2"]}, r"upper is one number for 2 criteria"),
    ({"by": ["token k1", "token k2"], "upper": [1.0]}, r"upper has 1 numbers for 2 criteria"),
    ({"log_mu": None}, r"log_mu is missing"),
    ({"by": "token ratio", "lower": -0.2}, r"token ratio has a bound below 0, and ratios are not negative"),
    ({"by": "prefix ratio", "lower": 1.2}, r"lower = 1.2 is above upper = 1"),
    ({"advantage": np.zeros(2)}, r"advantage has no part here"),
    (
        {"by": "token ratio", "advantage": np.array([1.0, np.nan])},
        r"advantage is NaN at a decision, in row 1 at step 0",
    ),
    ({"by": "token ratio", "advantage": np.zeros(3)}, r"advantage has shape \(3,\)"),
    ({"log_mu": np.full((2, 3), np.inf)}, r"log_mu must be finite"),
    ({"segment": np.array([[1, 0, 0], [0, 0, 0]])}, r"segment falls along a row"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[m[:30] for _, m in BAD])
def test_bad_input(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"by": "token k1", "upper": 1.0, "log_pi": np.zeros((2, 3)), "log_mu": np.zeros((2, 3))}
    with pytest.raises((ValueError, TypeError), match=message):
        ot.reject(**(given | change))


def share(w: np.ndarray) -> float:
    return w.sum() ** 2 / (len(w) * (w**2).sum())


def test_a_diagnosis_is_of_plain_sums() -> None:
    rng = np.random.default_rng(0)
    shape = 5, 7
    taken: dict[str, Any] = {
        "log_pi": -rng.random(shape),
        "log_mu": -rng.random(shape),
        "mask": rng.random(shape) < 0.7,
    }
    ratio = np.exp(taken["log_pi"] - taken["log_mu"])
    tokens, rows = ratio[taken["mask"]], [ratio[b][taken["mask"][b]] for b in range(5)]
    whole = np.array([np.prod(row) for row in rows])
    for kind, level in product(KINDS, ("token", "prefix", "suffix", "sequence", "geometric")):
        given = taken if kind != "jax" else {n: a.astype(np.float32) if n != "mask" else a for n, a in taken.items()}
        found = ot.diagnose_weights(ot.TruncatedIS(bound=1.2), **arrays(kind, given), level=level)
        plain = ot.weights(ot.ImportanceSampling(), **taken, level=level)[taken["mask"]]
        used = ot.weights(ot.TruncatedIS(bound=1.2), **taken, level=level)
        wanted = {
            "decisions": len(tokens), "sequences": 5, "mean_ratio": tokens.mean(), "kl_k1": -np.log(tokens).mean(),
            "kl_k3": (tokens - 1 - np.log(tokens)).mean(),
            "chi2_token": (tokens**2).mean() - 1, "chi2_sequence": (whole**2).mean() - 1,
            "ess_token": share(tokens), "ess_sequence": share(whole), "ess_weight": share(used[taken["mask"]]),
            "largest_weight": used.max(), "truncated": (np.abs(plain - used[taken["mask"]]) > 1e-7).mean(),
        }  # fmt: skip
        assert found == found | {n: pytest.approx(v, rel=1e-5 if kind == "jax" else 1e-10) for n, v in wanted.items()}
        assert used[int(found["largest_row"]), int(found["largest_step"])] == used.max()
    for i in range(7):
        some = np.array([np.prod(row[: i + 1]) for row in rows if len(row) > i])
        if len(some) > 1:
            assert ot.diagnose_weights(ot.Retrace(), **taken).ess_by_position[i] == pytest.approx(share(some))


@pytest.mark.parametrize("packed", [False, True])
def test_a_diagnosis_by_tensors_is_that_on_the_host(packed: bool) -> None:
    """As on a GPU, where nothing is copied but the numbers."""
    rng = np.random.default_rng(0)
    shape = 6, 9
    taken: dict[str, Any] = {"log_pi": -rng.random(shape) * 2, "log_mu": -rng.random(shape) * 2}
    taken["mask"] = rng.random(shape) < 0.8
    taken["log_pi"][0, 0] = -np.inf
    if packed:
        taken["segment"] = np.cumsum(rng.random(shape) < 0.3, axis=1)
    trace = ot.NonMarkovRetrace(lam=0.9)
    wanted = ot.diagnose_weights(trace, **taken)
    with by_tensors():
        found = ot.diagnose_weights(trace, **arrays("torch", taken), check=False)
    assert found == pytest.approx(dict(wanted), rel=1e-12)
    np.testing.assert_allclose(found.ess_by_position, wanted.ess_by_position, rtol=1e-12)


@pytest.mark.parametrize("level", ["token", "prefix", "suffix", "sequence", "geometric"])
def test_a_ratio_of_0_is_not_truncated(level: str) -> None:
    log_pi = np.log([[0.2, 0.5, 0.3], [0.5, 0.4, 0.6]])
    log_pi[0, 1] = log_pi[1, 2] = -np.inf
    taken: dict[str, Any] = {"log_pi": log_pi, "log_mu": np.log(np.full((2, 3), 0.5))}
    assert ot.diagnose_weights(ot.ImportanceSampling(), **taken, level=level)["truncated"] == 0.0
    capped = ot.TruncatedIS(bound=0.5)
    changed = ot.weights(capped, **taken, level=level) != ot.weights(ot.ImportanceSampling(), **taken, level=level)
    assert ot.diagnose_weights(capped, **taken, level=level)["truncated"] == changed.mean()


def sampled(top_p: float = 1.0, temperature: float = 1.0, other: float = 0.3) -> dict[str, Any]:
    """Tokens drawn from μ, cut by top-p and renormalised, at a temperature that log_pi does not have."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(64, 32, 20)) * 2
    scaled = logits / temperature + other * rng.normal(size=logits.shape) * (other > 0)
    mu = np.exp(scaled) / np.exp(scaled).sum(-1, keepdims=True)
    order = np.sort(mu, axis=-1)[..., ::-1]
    smallest = np.take_along_axis(order, (order.cumsum(-1) < top_p).sum(-1, keepdims=True).clip(max=19), -1)
    mu = np.where(mu >= smallest, mu, 0.0)
    mu /= mu.sum(-1, keepdims=True)
    action = (mu.cumsum(-1) < rng.random((64, 32, 1))).sum(-1, keepdims=True).clip(max=19)
    log_pi = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return {
        "log_pi": np.take_along_axis(log_pi, action, -1)[..., 0],
        "log_mu": np.log(np.take_along_axis(mu, action, -1))[..., 0],
    }


def test_what_a_wrong_mu_is_told_by() -> None:
    trace = ot.ImportanceSampling()
    assert ot.diagnose_weights(trace, **sampled()).findings == ()
    cut = sampled(top_p=0.8, other=0.0)
    found = ot.diagnose_weights(trace, **cut)
    assert "renormalised after top-p" in found.findings[0]
    assert found["mean_ratio"] == pytest.approx(np.exp(cut["log_pi"] - cut["log_mu"]).mean())
    assert 0.8 < found["mean_ratio"] < 0.95  # the probability that was kept
    drawn = sampled(temperature=2.0, other=0.0)
    wrong = drawn | {"log_mu": drawn["log_pi"], "log_pi": drawn["log_mu"] - 0.3}
    assert "Another temperature" in ot.diagnose_weights(trace, **wrong).findings[0]
    for step, where in ((1, "earlier"), (-1, "later")):
        right = sampled(other=0.05)
        shifted = right | {"log_mu": np.roll(right["log_mu"], -step, axis=1)}
        shifted["mask"] = np.ones((64, 32), bool)
        shifted["mask"][:, [0, -1]] = False
        assert f"one {where} in the row" in ot.diagnose_weights(trace, **shifted).findings[0]


def test_it_prints_and_is_a_dict() -> None:
    found = ot.diagnose_weights(ot.Retrace(), **sampled(top_p=0.8, other=0.0))
    assert isinstance(found, dict)
    assert all(isinstance(value, float) for value in found.values())
    lines = str(found).splitlines()
    assert lines[0] == "2048 decisions in 64 sequences"
    assert lines[1].split() == ["mean", "ratio", f"{found['mean_ratio']:.4g}"]
    assert lines[-1] == found.findings[0]
