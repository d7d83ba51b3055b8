"""The Triton kernels, run by Triton's interpreter on the CPU, against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offtrace as ot
from helpers import BUILT_IN, CUSTOM, assert_close, correct_by_definition, name_of, rows, trajectories
from offtrace.returns import by_definition
from offtrace.returns import given as by_numba
from offtrace.returns.linear import solve

triton_calls = pytest.importorskip("offtrace.returns.triton_calls")
on_torch = pytest.importorskip("offtrace.returns.on_torch")

quick = settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
STEPS = [t for t in CUSTOM if isinstance(t, ot.StepTrace)]


class Poisoned:
    """torch, but fresh memory is full of NaN, or of −77: an element that no kernel writes, or that is read before, shows."""

    def __init__(self) -> None:
        self.last: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _fill(self, fresh: torch.Tensor) -> torch.Tensor:
        self.last.append(fresh)
        return fresh.fill_(torch.nan if fresh.is_floating_point() else -77)

    def empty(self, *arguments: Any, **named: Any) -> torch.Tensor:
        return self._fill(torch.empty(*arguments, **named))

    def empty_like(self, *arguments: Any, **named: Any) -> torch.Tensor:
        return self._fill(torch.empty_like(*arguments, **named))


poisoned = Poisoned()


@pytest.fixture(autouse=True, scope="module")
def poison() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_calls, "torch", poisoned)
        yield


def prepared(arrays: dict[str, Any]) -> dict[str, Any]:
    made = {n: torch.from_numpy(np.atleast_2d(a)) if np.ndim(a) else a for n, a in arrays.items()}
    return {"valid": None, **made}


def run(trace: Any, arrays: dict[str, Any], **options: Any) -> np.ndarray:
    x = prepared(arrays)
    lags = (
        None
        if isinstance(trace, ot.StepTrace)
        else on_torch._bounds(trace.horizon, trace.lag_bound, x["reward"].shape[1])
    )
    poisoned.last.clear()
    found = triton_calls.correct(trace, x, lags, add_q=False, **options)
    assert any(found is fresh for fresh in poisoned.last)
    return found.numpy().reshape(arrays["reward"].shape)


@pytest.mark.parametrize("trace", [*BUILT_IN, *STEPS], ids=name_of)
@quick
@given(data=st.data())
def test_kernels_are_the_definition(trace: Any, data: Any) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    arrays = data.draw(trajectories(dtype))
    wanted, scale = correct_by_definition(trace, arrays)
    assert_close(run(trace, arrays), wanted, scale, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@quick
@given(data=st.data())
def test_v_trace_is_the_definition(dtype: Any, data: Any) -> None:
    """Its recursion is the linear kernel with given δ and g."""
    from offtrace.returns.torch_operators import _linear_on_cuda

    arrays = data.draw(trajectories(dtype))
    arrays = {"value" if name == "q" else name: arrays[name] for name in arrays if name != "pair"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_torch, "linear", _linear_on_cuda)
        found = on_torch.v_trace(0.9, 1.0, 2.0, **prepared(arrays))
    wanted = np.array([by_definition.state_targets(**row, lam=0.9, rho_bar=1.0, c_bar=2.0) for row in rows(arrays)])
    size = 1 + np.abs(np.nan_to_num(arrays["value"])).max() + np.abs(wanted).max()
    error = np.abs(np.stack([a.numpy() for a in found]) - wanted.swapaxes(0, 1)).max()
    assert error <= (1e-12 if dtype == np.float64 else 1e-6) * size


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("zeros", [True, False])
def test_blocks_of_steps(recursive: bool, zeros: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(triton_calls, "BLOCK", 8)
    rng = np.random.default_rng(0)
    delta, g, ratio, cap = (torch.from_numpy(a) for a in rng.uniform(0.2, 1.5, (4, 2, 61)))
    if zeros:
        g[:, ::9] = ratio[:, 5::20] = cap[:, 7::13] = 0.0
    no_lags = torch.empty(0, dtype=torch.float64)
    arrays = [x.numpy() for x in (delta, g, ratio, cap, no_lags)]
    found = triton_calls.given(delta, g, ratio, cap, no_lags, per_decision=False, recursive=recursive)
    np.testing.assert_allclose(found, by_numba.correct(*arrays, recursive), rtol=1e-12)  # pyright: ignore
    single = [x.float() for x in (delta, g, ratio, cap)]
    found = triton_calls.given(*single, no_lags, per_decision=False, recursive=recursive)
    np.testing.assert_allclose(found, by_numba.correct(*arrays, recursive), rtol=3e-6)  # pyright: ignore


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("lags", [[], [2.0, 0.7, 0.3]])
def test_the_transpose(recursive: bool, lags: list[float]) -> None:
    rng = np.random.default_rng(0)
    arrays = [*rng.uniform(0.2, 1.5, (4, 2, 21)), np.array(lags)]
    tensors = [torch.from_numpy(a) for a in arrays]
    found = triton_calls.transpose(*tensors, recursive)
    np.testing.assert_allclose(found, by_numba.transpose(*arrays, recursive), rtol=1e-13)  # pyright: ignore
    # ⟨G, M δ⟩ = ⟨Mᵀ G, δ⟩
    delta = rng.normal(size=(2, 21))
    forward = triton_calls.given(
        torch.from_numpy(delta), *tensors[1:4], tensors[4], per_decision=False, recursive=recursive
    )
    np.testing.assert_allclose((forward.numpy() * arrays[0]).sum(), (found.numpy() * delta).sum(), rtol=1e-12)


def test_chunks_of_a_long_scan(monkeypatch: Any) -> None:
    monkeypatch.setattr(triton_calls, "CHUNK", 8)
    rng = np.random.default_rng(0)
    delta, c = (torch.from_numpy(a) for a in rng.uniform(0.2, 1.5, (2, 3, 21)))
    one = torch.ones_like(c)
    found = triton_calls.given(delta, c, one, one, None, per_decision=True, recursive=False)
    np.testing.assert_allclose(found, solve(delta.numpy(), c.numpy()), rtol=1e-13)


def test_a_number_keeps_its_bits() -> None:
    for value in (0.1, 0.99, 1 / 3, 1e-7, 0.0, float("inf")):
        assert sum(reversed(triton_calls._split(value))) == value


def test_a_rule_may_not_branch() -> None:
    from offtrace.returns import triton_rules

    with pytest.raises(TypeError, match=r"use xp\.where"):
        triton_rules.factors(lambda xp, pi, mu, rho: (1.0, 1.0 if rho > 1 else 2.0, 1.0), 0)
