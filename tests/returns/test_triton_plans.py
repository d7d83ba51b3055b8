"""Calls on the GPU, each planned once for its shape; run by Triton's interpreter on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import offtrace as ot
import triton_interpreter  # noqa: F401
from helpers import name_of

cuda = pytest.importorskip("offtrace.returns.torch.cuda")
plans = pytest.importorskip("offtrace.returns.triton.plans")


@pytest.fixture(autouse=True)
def planned(monkeypatch: Any) -> dict[Any, Any]:
    """No plan of before, and what is planned from now on."""
    found: dict[Any, Any] = {}
    monkeypatch.setattr(cuda, "_plans", found)
    return found


def batch(shape: tuple[int, int], seed: int, *, padded: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    real = {name: rng.normal(size=shape) for name in ("reward", "q", "next_value")}
    logs = {name: np.log(rng.uniform(0.1, 1.0, shape)) for name in ("log_pi", "log_mu")}
    flags = {name: rng.random(shape) < 0.1 for name in ("terminated", "truncated")}
    flags |= {"valid": rng.random(shape) < 0.9} if padded else {}
    made = {name: torch.from_numpy(a.astype(np.float32)) for name, a in (real | logs).items()}
    return made | {name: torch.from_numpy(a) for name, a in flags.items()}


def check(trace: Any, x: dict[str, Any], gamma: float, *, add_q: bool = True) -> None:
    with np.errstate(all="ignore"):
        lags = trace.bounds_by_lag(x["reward"].shape[-1])
        (found,) = cuda.correct(trace, {"valid": None, **x, "gamma": gamma}, lags, add_q=add_q)
    wanted = (ot.targets if add_q else ot.corrections)(trace, **x, gamma=gamma)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trace", [ot.Retrace, ot.RBIS, ot.TruncatedIS], ids=lambda t: t.__name__)
def test_a_plan_is_for_a_shape(trace: Any, planned: Any) -> None:
    """Other data, another γ and another λ are no other plan; padding and Δ alone are."""
    for padded, add_q in ((False, True), (True, False)):
        for seed, (lam, gamma) in enumerate(((0.9, 0.95), (0.5, 0.99))):
            check(trace(lam=lam), batch((2, 20), seed, padded=padded), gamma, add_q=add_q)
    assert len(planned) == 2


def test_tensors_as_they_come() -> None:
    """With strides, in memory that is not aligned, of one dimension; in half precision, summed in float32."""
    x, rule = batch((3, 17), 0), ot.RBIS(0.9)
    ways: list[dict[str, Any]] = [
        {n: a.t().contiguous().t() for n, a in x.items()},
        {n: torch.cat([a.flatten()[:1], a.flatten()])[1:].view(3, 17) for n, a in x.items()},
        {n: a[0] for n, a in x.items()},
    ]
    for way in ways:
        check(rule, way, 0.9)
    half = {n: a.bfloat16() if a.is_floating_point() else a for n, a in x.items()}
    with np.errstate(all="ignore"):
        found = cuda.correct(rule, {"valid": None, **half, "gamma": 0.9}, None, add_q=True)[0]
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, ot.targets(rule, **half, gamma=0.9), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("trace", [ot.RBIS(0.9), ot.TruncatedIS(0.9)], ids=name_of)
def test_parts_of_a_batch_use_the_same_memory(trace: Any, monkeypatch: Any, planned: Any) -> None:
    """Two rows, two rows and one row take what two rows take alone."""
    monkeypatch.setattr(cuda, "AT_ONCE", 40)
    check(trace, batch((5, 20), 0), 0.9)
    assert {key[1] for key in planned} == {2, 1}
    alone = planned_for(trace, (2, 20))
    assert max(plan.space for plan in planned.values()) == alone.space > 0


def planned_for(trace: Any, shape: tuple[int, int]) -> Any:
    planner = cuda.Planner()
    call = plans.Given(planner, [planner.slot(shape) for _ in cuda.NAMES], "float32")
    plans.with_cap(call, trace.recursive, planner.slot(shape))
    return planner


@pytest.mark.parametrize("trace", [ot.RBIS(), ot.TruncatedIS()], ids=name_of)
@pytest.mark.parametrize("shape", [(4096, 256), (4096, 1024), (1024, 4096), (256, 16384), (60, 70000)])
def test_memory_beside_a_large_batch_is_three_arrays(shape: tuple[int, int], trace: Any) -> None:
    B, T = shape
    planner = planned_for(trace, (cuda.rows_at_once(B, T, trace.recursive), T))
    assert 0 < planner.space <= 3.05 * B * T * 4


def test_no_two_arrays_that_are_needed_share_memory() -> None:
    """A piece is handed out again only when it was released, and once."""
    planner = cuda.Planner()
    a, b = planner.empty((100,), "float64"), planner.empty((3,), "int32")
    planner.release(a)
    c, d = planner.empty((10,), "float32"), planner.empty((10,), "float32")
    begins = [planner.offsets[slot.place] for slot in (a, b, c, d)]
    assert begins == [0, 1024, 0, 512]
    assert planner.space == 1536
