"""The Triton kernels, run by Triton's interpreter on the CPU, against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offtrace as ot
import triton_interpreter  # noqa: F401
from helpers import BUILT_IN, CUSTOM, assert_close, correct_by_definition, name_of, trajectories
from triton_oracle import coefficients, corrections

cuda = pytest.importorskip("offtrace.returns.torch.cuda")
plans = pytest.importorskip("offtrace.returns.triton.plans")

quick = settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
STEPS = [t for t in CUSTOM if isinstance(t, ot.StepTrace)]
TWO_OF_EACH = [
    ot.Retrace(0.9), ot.QSigma(sigma=0.3, lam=0.9), ot.NonMarkovRetrace(0.9), ot.RBIS(0.9), ot.TruncatedIS(1.5, 0.9),
    ot.TruncatedIS(0.5), ot.Retrace(0.9, horizon=3), ot.TruncatedIS((0.5, 2.0)), ot.replacing(0.9), STEPS[-1],
]  # fmt: skip
"""Two rules for each kind of kernel. `traces/test_symbols` tries what all rules are made of."""
OTHERS = [t for t in (*BUILT_IN, *STEPS) if t not in TWO_OF_EACH]


class Poisoned:
    """torch, but fresh memory is full of NaN, or of −1: an element that no kernel writes, or that is read before, shows."""

    def __init__(self) -> None:
        self.last: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _fill(self, fresh: torch.Tensor) -> torch.Tensor:
        self.last.append(fresh)
        return fresh.fill_(torch.nan if fresh.is_floating_point() else 255)

    def empty(self, *arguments: Any, **named: Any) -> torch.Tensor:
        return self._fill(torch.empty(*arguments, **named))

    def empty_like(self, *arguments: Any, **named: Any) -> torch.Tensor:
        return self._fill(torch.empty_like(*arguments, **named))


poisoned = Poisoned()


@pytest.fixture(autouse=True, scope="module")
def poison() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "torch", poisoned)
        yield


def run(trace: Any, arrays: dict[str, Any]) -> np.ndarray:
    x = {n: torch.from_numpy(np.atleast_2d(a)) if np.ndim(a) else a for n, a in arrays.items() if n != "time_major"}
    if trace.needs_greedy:
        x["log_pi"] = torch.where(x["greedy"], 0.0, -torch.inf).to(x["reward"].dtype)
    lags = None if isinstance(trace, ot.StepTrace) else trace.bounds_by_lag(x["reward"].shape[1])
    poisoned.last.clear()
    with np.errstate(all="ignore"):  # what leaves the range is thrown away, and walked
        found = cuda.correct(trace, {"valid": None, **x}, lags, add_q=False)[0]
    assert any(found is fresh for fresh in poisoned.last)
    return found.numpy().reshape(arrays["reward"].shape)


@pytest.mark.parametrize(
    "trace", [*TWO_OF_EACH, *(pytest.param(t, marks=pytest.mark.whole) for t in OTHERS)], ids=name_of
)
@quick
@given(data=st.data())
def test_kernels_are_the_definition(trace: Any, data: Any) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    arrays = data.draw(trajectories(dtype))
    wanted, scale = correct_by_definition(trace, arrays)
    assert_close(run(trace, arrays), wanted, scale, dtype)


def given_factors(*arrays: Any, recursive: bool, lags: Any = None) -> np.ndarray:
    with np.errstate(all="ignore"):
        return cuda.given(*map(torch.as_tensor, arrays), lags, per_decision=False, recursive=recursive).numpy()


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("case", ["plain", "cut", "out of range", "small weights"])
def test_many_rows_and_programs(recursive: bool, case: str) -> None:
    """More rows than a program has, more starts, and products that no block holds."""
    rng = np.random.default_rng(0)
    delta, g, ratio, cap = rng.uniform(0.2, 1.5, (4, 34, 45))
    g, delta = np.minimum(g, 1.0), delta - 0.8
    if case == "cut":
        g[:, ::9] = ratio[1::2, 5::20] = cap[:, 7::13] = 0.0
    elif case == "out of range":
        ratio[1, 3::9] *= 1e-25
        ratio[1, 5::9] *= 1e25
        ratio[33, ::2], ratio[33, 1::2] = 1e-13, 1e13
    elif case == "small weights":
        g *= 1e-4
        delta[:, ::3] = 0.0
    for dtype, bound in ((np.float64, 1e-12), (np.float32, 2e-6)):
        made = [x.astype(dtype) for x in (delta, g, ratio, cap)]
        wanted, scale = corrections(*made, recursive)
        assert (np.abs(given_factors(*made, recursive=recursive) - wanted) <= bound * scale + 1e-300).all()


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("ratios", [(0.01, 100.0), (100.0, 0.01)])
def test_traces_that_come_back(recursive: bool, ratios: tuple[float, float]) -> None:
    """From 10⁻⁶⁰, and from 10⁶⁰, which float32 does not hold."""
    g, ratio, cap = (np.full((2, 100), x, np.float32) for x in (1.0, 1.0, 1.5))
    ratio[:, 20:50], ratio[:, 50:80] = ratios
    assert error_in_float32(g, ratio, cap, recursive) <= 1e-6


@pytest.mark.parametrize("cut", [20, 35])
def test_what_follows_a_cut_is_not_read(cut: int) -> None:
    """One row ends, and then, or in the same eight steps, leaves the range; the other goes on."""
    g, ratio, cap = (np.full((2, 64), x, np.float32) for x in (0.95, 1.0, 1.5))
    g[0, cut], ratio[0, 30:34], ratio[0, 40:44] = 0.0, 1e30, 1e-30
    for recursive in (True, False):
        assert error_in_float32(g, ratio, cap, recursive) <= 1e-6


def test_the_sum_of_a_long_row_keeps_its_digits() -> None:
    """One number after the other, it would be off by 4.7e-7."""
    g, ratio, cap = (np.full((1, 384), x, np.float32) for x in (1.0, 1.0, 1.5))
    assert error_in_float32(g, ratio, cap, recursive=True) <= 3.5e-7


def error_in_float32(g: np.ndarray, ratio: np.ndarray, cap: np.ndarray, recursive: bool) -> float:
    """Of what is wanted, where all δ are positive."""
    delta = np.random.default_rng(0).exponential(size=g.shape).astype(np.float32)
    wanted, _ = corrections(delta, g, ratio, cap, recursive)
    return (np.abs(given_factors(delta, g, ratio, cap, recursive=recursive) - wanted) / wanted).max()


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("lags", [[], [2.0, 0.7, 0.3]])
def test_the_transpose(recursive: bool, lags: list[float]) -> None:
    gradient, *factors = np.random.default_rng(0).uniform(0.2, 1.5, (4, 2, 21))
    bounds = torch.tensor(lags, dtype=torch.float64)
    g, ratio, cap = map(torch.from_numpy, factors)
    how: dict[str, Any] = {"per_decision": False, "recursive": recursive, "transposed": True}
    found = cuda.given(torch.from_numpy(gradient), g, ratio, cap, bounds, **how)
    wanted = gradient[:, None] @ coefficients(g, ratio, cap, recursive, lags)
    np.testing.assert_allclose(found, wanted[:, 0].astype(float), rtol=1e-13)
    there = given_factors(gradient, *factors, recursive=recursive, lags=bounds)
    np.testing.assert_allclose(there, corrections(gradient, *factors, recursive, lags)[0], rtol=1e-12)


def test_chunks_of_a_long_scan(monkeypatch: Any) -> None:
    monkeypatch.setattr(plans, "CHUNKS", (8,))
    monkeypatch.setattr(cuda, "_plans", {})
    delta, c = np.random.default_rng(0).uniform(0.2, 1.5, (2, 3, 21))
    one = torch.ones(3, 21, dtype=torch.float64)
    found = cuda.given(torch.from_numpy(delta), torch.from_numpy(c), one, one, None, per_decision=True, recursive=False)
    np.testing.assert_allclose(found, corrections(delta, c, one, np.inf * one, False)[0], rtol=1e-13)


@pytest.mark.parametrize("shape", [(1, 1 << 20), (1, 1 << 24), (70_000, 64), (1 << 20, 1)])
@pytest.mark.parametrize(
    "trace", [ot.Retrace(), ot.RBIS(0.9), ot.TruncatedIS(), ot.RBIS(0.9, horizon=9), ot.replacing()], ids=name_of
)
def test_no_shape_is_too_long_for_a_grid(shape: tuple[int, int], trace: Any, monkeypatch: Any) -> None:
    """CUDA takes 2³¹ − 1 programs in the first dimension of a grid, and 65535 in the others. Nothing is launched here."""
    seen: list[int] = []
    monkeypatch.setattr(cuda, "_plans", {})
    monkeypatch.setattr(cuda.Plan, "first", lambda plan, *_: seen.extend(n for _, n, _, _ in plan.launches))
    monkeypatch.setattr(cuda, "torch", torch)
    nothing = torch.empty(shape, device="meta")
    x = dict.fromkeys(("reward", "q", "next_value", "terminated", "truncated", "log_pi", "log_mu", "pair"), nothing)
    lags = None if isinstance(trace, ot.StepTrace) else trace.bounds_by_lag(shape[1])
    cuda.correct(trace, {**x, "gamma": 0.99, "valid": None}, lags, add_q=False)
    how: dict[str, Any] = {"per_decision": False, "recursive": True, "transposed": True}
    cuda.given(nothing, nothing, nothing, nothing, torch.empty(0), **how)
    assert len(seen) >= 2
    assert all(1 <= programs <= 2**31 - 1 for programs in seen)


def test_a_batch_beyond_all_grids_is_refused() -> None:
    with pytest.raises(ValueError, match="split it"):
        plans.count(1 << 20, 1 << 12)
