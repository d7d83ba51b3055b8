"""Calls on the GPU that are recorded and repeated, run by Triton's interpreter on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import name_of
from offtrace.returns.backend import UsualCall

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton_interpreter  # noqa: E402, F401

repeated_calls = pytest.importorskip("offtrace.returns.torch.repeated_calls")
from offtrace.returns.torch import recorded_launches, triton_launch  # noqa: E402
from offtrace.returns.triton import plans  # noqa: E402


def call(
    trace: Any, shape: tuple[int, int], seed: int, gamma: float, *, padded: bool = False, add_q: bool = True
) -> Any:
    rng = np.random.default_rng(seed)
    real = [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for _ in range(3)]
    logs = [torch.from_numpy(np.log(rng.uniform(0.1, 1.0, shape)).astype(np.float32)) for _ in range(2)]
    flags = [torch.from_numpy(rng.random(shape) < 0.1) for _ in range(2)]
    valid = torch.from_numpy(rng.random(shape) < 0.9) if padded else None
    (reward, q, next_value), (log_pi, log_mu), (terminated, truncated) = real, logs, flags
    return UsualCall(trace, add_q, None, reward, q, next_value, terminated, truncated, gamma, log_pi, log_mu, valid)


def on_numpy(given: Any) -> np.ndarray:
    trace, add_q, _, *arrays = given
    names = ("reward", "q", "next_value", "terminated", "truncated", "gamma", "log_pi", "log_mu", "valid")
    rows = {n: a.numpy() if isinstance(a, torch.Tensor) else a for n, a in zip(names, arrays, strict=True)}
    return (ot.targets if add_q else ot.corrections)(trace, **rows)


@pytest.mark.parametrize(
    ("trace", "shape"), [(ot.Retrace, (3, 9)), (ot.RBIS, (2, 20)), (ot.TruncatedIS, (2, 20))], ids=str
)
def test_a_repeated_call_is_the_call(trace: Any, shape: tuple[int, int]) -> None:
    """Other data, another γ and another λ are no other recording; padding and Δ alone are."""
    repeated_calls._calls.clear()
    for padded, add_q in ((False, True), (True, False)):
        for seed, (lam, gamma) in enumerate(((0.9, 0.95), (0.5, 0.99))):
            given = call(trace(lam=lam), shape, seed, gamma, padded=padded, add_q=add_q)
            found = repeated_calls.usual(given)
            np.testing.assert_allclose(found, on_numpy(given), rtol=1e-5, atol=1e-5)
    assert [type(kept) for kept in repeated_calls._calls.values()] == [recorded_launches.Repeated] * 2


def test_memory_in_between_is_handed_out_anew(monkeypatch: Any) -> None:
    """A row that is done in parts has maps between its launches."""
    monkeypatch.setattr(triton_launch, "CHUNK", 8)
    monkeypatch.setattr(triton_launch, "PART_CHUNKS", 2)
    repeated_calls._calls.clear()
    for seed in range(2):
        given = call(ot.Retrace(0.9), (1, 40), seed, 0.9)
        np.testing.assert_allclose(repeated_calls.usual(given), on_numpy(given), rtol=1e-5, atol=1e-5)
    (kept,) = repeated_calls._calls.values()
    assert len(kept.launches) == 4
    assert kept.space > 0
    repeated_calls._calls.clear()


@pytest.mark.parametrize("trace", [ot.RBIS(0.9), ot.TruncatedIS(0.9)], ids=name_of)
def test_parts_of_a_batch_use_the_same_memory(trace: Any, monkeypatch: Any) -> None:
    """Two rows, two rows and one row take what two rows take alone."""
    repeated_calls._calls.clear()
    for rows, at_once in ((2, 1 << 22), (5, 40)):
        monkeypatch.setattr(triton_launch, "AT_ONCE", at_once)
        for seed in range(2):
            given = call(trace, (rows, 20), seed, 0.9)
            np.testing.assert_allclose(repeated_calls.usual(given), on_numpy(given), rtol=1e-5, atol=1e-5)
    alone, in_parts = repeated_calls._calls.values()
    assert len(in_parts.launches) == 3 * len(alone.launches)
    assert in_parts.space == alone.space > 0
    repeated_calls._calls.clear()


class Allocating(triton_launch.Tensors):
    """Allocates memory for kernels, and launches none."""

    def launch(self, kernel: Any, programs: int, read: Any, numbers: Any, written: Any, **constants: Any) -> list[Any]:
        return [w if isinstance(w, torch.Tensor) else self._empty(w[0], triton_launch.DTYPES[w[1]]) for w in written]


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("shape", [(4096, 256), (4096, 1024), (1024, 4096), (256, 16384), (60, 70000)])
def test_memory_beside_a_large_batch_is_three_arrays(shape: tuple[int, int], recursive: bool) -> None:
    library, reward = Allocating(torch.device("cpu")), torch.empty(shape)
    rows = triton_launch._rows_at_once(*shape, recursive)
    flags: dict[str, Any] = {"GIVEN": False, "GAMMAS": False, "VALID": False}
    call = plans.Given(library, plans.KERNELS, [reward[:rows]] * 9, [0.0] * 15, flags, "float32", True)
    plans.with_cap(call, recursive, torch.empty_like(reward[:rows]))
    assert 0 < sum(memory.nbytes for memory in library.all) <= 3.05 * reward.nbytes


@pytest.mark.parametrize(
    "trace", [ot.Retrace(0.9, horizon=3), ot.replacing(), ot.PengQ(0.9), ot.WatkinsQ(0.9), "retrace"], ids=name_of
)
def test_what_is_not_usual_is_left_to_others(trace: Any) -> None:
    assert repeated_calls.usual(call(trace, (2, 5), 0, 0.9)) is None


def test_tensors_that_are_not_alike_are_left_to_others() -> None:
    given = call(ot.Retrace(0.9), (2, 8), 0, 0.9)
    odd: list[dict[str, Any]] = [
        {"q": given.q.double()},
        {"q": given.q.t().contiguous().t()},
        {"q": given.q[:, :5]},
        {"log_pi": torch.zeros(17)[1:].view(2, 8)},  # not aligned
        {"terminated": given.terminated.int()},
        {"log_mu": None},
    ]
    for change in odd:
        assert repeated_calls.usual(given._replace(**change)) is None, change


@triton.jit
def twice(out, x, n):
    for i in range(n):
        triton.language.store(out + i, 2.0 * triton.language.load(x + i))


def test_what_cannot_be_repeated_is_not() -> None:
    """Another operation of PyTorch's, and memory that nobody knows."""
    x, elsewhere, noted = torch.ones(3), torch.ones(3), recorded_launches.recorded(twice)

    def run(kernel: Any, read: Any, *, copied: bool = False) -> Any:
        out = torch.empty_like(x)
        kernel[(1,)](out, read.clone() if copied else read, 3)
        return out

    for kernel, read, copied, repeatable in (
        (noted, x, False, True),
        (noted, elsewhere, False, False),
        (noted, x, True, False),
    ):
        out, repeated = recorded_launches.record(lambda numbers: run(kernel, read, copied=copied), [x], [])  # noqa: B023
        assert out.tolist() == [2.0] * 3
        assert (repeated is not None) == repeatable
        if repeated is not None:
            assert repeated([torch.full((3,), 5.0)], []).tolist() == [10.0] * 3
