"""A skipped step is as if it were not there, for every rule and kind of array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from helpers import CUSTOM, KINDS, assert_close, rows, trajectories
from offtrace.returns import by_definition
from returns.test_weights import LIMITS

SOME = [
    ot.NonMarkovRetrace(lam=0.7),
    ot.Retrace(lam=0.9, horizon=3),
    ot.TruncatedIS(bound=(0.5, 2.0), lam=0.8),
    CUSTOM[-1],
]
"""One for each way in which a rule goes by lags, and one of the whole history: taking steps out asks no rule what it is."""
PADDED = ("reward", "q", "next_value", "log_pi", "log_mu", "gamma")


def with_holes(given: dict[str, Any], seed: int) -> dict[str, Any]:
    """The trajectories with NaN at skipped steps, and an end at some of them."""
    rng = np.random.default_rng(seed)
    given = {n: np.atleast_2d(a).copy() if isinstance(a, np.ndarray) else a for n, a in given.items()}
    skip = rng.random(given["reward"].shape) < 0.4
    for name in PADDED:
        if isinstance(given[name], np.ndarray):
            given[name][skip] = np.nan
    for name in ("terminated", "truncated"):
        given[name] = np.where(skip, rng.random(skip.shape) < 0.3, given[name])
    return given | {"skip": skip, "time_major": False}


def closed_up(row: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """A row without its skipped steps, whose ends are those of the decisions before, and where the others stood."""
    row = dict(row)
    skip = row.pop("skip") & row.get("valid", np.ones(len(row["reward"]), bool))
    kept = np.flatnonzero(~skip)
    made = {n: a[kept] if isinstance(a, np.ndarray) else a for n, a in row.items() if n != "time_major"}
    for name in ("terminated", "truncated"):
        made[name] = made[name].copy()
        for t in np.flatnonzero(skip & row[name]):
            if (kept < t).any():
                made[name][np.flatnonzero(kept < t)[-1]] = True
    return made, kept


@settings(max_examples=60, deadline=None, suppress_health_check=LIMITS)
@given(given=trajectories(max_steps=8), trace=st.sampled_from(SOME), seed=st.integers(0, 99))
def test_a_skipped_step_is_not_there(given: dict[str, Any], trace: ot.Trace, seed: int) -> None:
    given = with_holes(given, seed)
    found = ot.corrections(trace, **given)
    for b, row in enumerate(rows(given)):
        made, kept = closed_up(row)
        assert not np.delete(found[b], kept).any()
        if len(kept):
            wanted, scale = by_definition.corrections(trace, **made)
            assert_close(found[b][kept], wanted, scale, np.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array(kind: str) -> None:
    trace = SOME[0]
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {n: rng.normal(size=(3, 6)) for n in ("reward", "q", "next_value")}
    given |= {n: -rng.random((3, 6)) for n in ("log_pi", "log_mu")}
    given |= {n: np.zeros((3, 6), bool) for n in ("terminated", "truncated")}
    given["truncated"][1, 2] = given["terminated"][2, 4] = True
    skip = np.array([[0, 1, 0, 0, 1, 1], [1, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0]])
    for n in ("reward", "q", "next_value", "log_pi", "log_mu"):
        given[n] = np.where(skip, np.nan, given[n]).astype(np.float32 if kind == "jax" else np.float64)
    taken = {n: KINDS[kind](a) for n, a in given.items()}
    wanted = np.zeros((3, 6))
    for b, row in enumerate(rows(given | {"skip": skip != 0, "gamma": 0.9})):
        made, kept = closed_up(row)
        wanted[b, kept] = by_definition.corrections(trace, **made)[0] + made["q"]
    for check in (None, False):
        found = ot.targets(trace, **taken, gamma=0.9, skip=KINDS[kind](skip), check=check)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        turned = {n: a.swapaxes(0, 1) for n, a in (taken | {"skip": KINDS[kind](skip)}).items()}
        np.testing.assert_allclose(
            ot.targets(trace, **turned, gamma=0.9, time_major=True).swapaxes(0, 1), wanted, rtol=1e-5, atol=1e-6
        )
    states = {"value" if n == "q" else n: a for n, a in given.items()}
    of_kind = {n: KINDS[kind](a) for n, a in (states | {"skip": skip}).items()}
    result = ot.state_targets(**of_kind, gamma=0.9)
    for b, row in enumerate(rows(states | {"skip": skip != 0, "gamma": 0.9})):
        made, kept = closed_up(row)
        for i, name in enumerate(("target", "advantage")):
            np.testing.assert_allclose(
                np.asarray(getattr(result, name))[b][kept],
                by_definition.state_targets(ot.VTrace(), **made)[i],
                rtol=1e-5,
                atol=1e-6,
            )


def test_gradients_and_numbers_for_each_step() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    q = torch.from_numpy(rng.normal(size=5)).requires_grad_()
    some = {n: torch.from_numpy(rng.normal(size=5)) for n in ("reward", "next_value")}
    logs = {n: torch.from_numpy(-rng.random(5)) for n in ("log_pi", "log_mu")}
    no, skip = torch.zeros(5, dtype=torch.bool), torch.tensor([0, 1, 0, 1, 0])
    lam = rng.random(5)
    flags = {"terminated": no, "truncated": no}
    found = ot.corrections(
        ot.VariableLambda(lam), q=q, **some, **logs, **flags, gamma=0.9, skip=skip, differentiable=True
    )
    kept = torch.tensor([0, 2, 4])
    short = {n: a[kept] for n, a in (some | logs | flags).items()}
    alone = ot.corrections(ot.VariableLambda(lam[kept.numpy()]), q=q[kept], **short, gamma=0.9, differentiable=True)
    torch.testing.assert_close(found[kept], alone)
    for made in (found, alone):
        made.sum().backward(retain_graph=True)
    assert q.grad is not None
    assert (q.grad[[1, 3]] == 0).all()
    assert (q.grad[kept] != 0).all()
    returns = ot.targets(ot.NStep(2), **some, **flags, gamma=0.9, skip=skip)[kept]
    torch.testing.assert_close(returns, ot.targets(ot.NStep(2), **{n: short[n] for n in (*some, *flags)}, gamma=0.9))


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        (np.zeros(3), r"skip must be boolean or 0/1 integers, got float64.*skip > 0\.5"),
        (np.zeros(2, bool), r"skip has shape \(2,\) but reward has shape \(3,\)"),
        (np.array([0, 2, 0]), r"skip must hold 0 or 1, got 2 at index \[1\]"),
    ],
)
def test_bad_input(skip: np.ndarray, message: str) -> None:
    given: dict[str, Any] = {n: np.zeros(3) for n in ("reward", "q", "next_value")} | {"gamma": 0.9}
    given |= {n: np.zeros(3, bool) for n in ("terminated", "truncated")}
    with pytest.raises((ValueError, TypeError), match=message):
        ot.targets(ot.QLambda(), **given, skip=skip)
