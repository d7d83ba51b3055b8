"""What changes from one call to the next counts in the next: arguments, layouts, memory orders, dtypes, rules."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import KINDS, name_of

B, T = 5, 7
SOME = [
    ot.Retrace(0.9),
    ot.QLambda(0.9),
    ot.TreeBackup(0.8),
    ot.ImportanceSampling(0.9),
    ot.RBIS(0.9),
    ot.TruncatedIS(),
]


def batch(seed: int = 0, rows: int = B, steps: int = T, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    real = {n: rng.normal(size=(rows, steps)).astype(dtype) for n in ("reward", "q", "next_value")}
    logs = {n: np.log(rng.uniform(0.1, 1.0, (rows, steps))).astype(dtype) for n in ("log_pi", "log_mu")}
    return {**real, **logs, **{n: rng.random((rows, steps)) < 0.1 for n in ("terminated", "truncated")}}


def in_kind(arrays: dict[str, Any], kind: str) -> dict[str, Any]:
    return {n: KINDS[kind](a) if isinstance(a, np.ndarray) else a for n, a in arrays.items()}


def by_rows(trace: Any, arrays: dict[str, Any], **more: Any) -> np.ndarray:
    """Row by row, as [T]."""
    one = [{n: a[b] if isinstance(a, np.ndarray) else a for n, a in arrays.items()} for b in range(B)]
    return np.stack([ot.targets(trace, **row, **more) for row in one])


def as_numpy(array: Any) -> np.ndarray:
    return np.asarray(array.double() if hasattr(array, "double") else array).astype(np.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trace", SOME, ids=name_of)
def test_whatever_changes_from_call_to_call_counts(trace: Any, kind: str) -> None:
    arrays = batch(dtype=np.float32)
    ot.targets(trace, **in_kind(arrays, kind), gamma=0.9)
    other = batch(1, dtype=np.float32)
    changes: list[dict[str, Any]] = [
        {},
        {"gamma": 0.5},
        {"gamma": 1},
        {"gamma": np.random.default_rng(2).random((B, T)).astype(np.float32)},
        {"valid": np.arange(T) < np.arange(3, 3 + B)[:, None]},
        {"terminated": other["terminated"].astype(int)},
        {"q": np.asfortranarray(other["q"])},
        {"reward": other["reward"][:, ::-1]},
        {"q": other["q"].astype(np.float16)},
    ]
    for change in changes:
        now = {**arrays, "gamma": 0.9, **change}
        found = as_numpy(ot.targets(trace, **in_kind(now, kind)))
        np.testing.assert_allclose(found, by_rows(trace, now), rtol=3e-6, atol=3e-6, err_msg=str(list(change)))
    alike = type(trace)(lam=0.3)
    found = as_numpy(ot.targets(alike, **in_kind(arrays, kind), gamma=0.9))
    np.testing.assert_allclose(found, by_rows(alike, arrays, gamma=0.9), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_still_said(kind: str) -> None:
    arrays = in_kind(batch(dtype=np.float32), kind)
    ot.targets(ot.Retrace(0.9), **arrays, gamma=0.9)
    bad = batch(dtype=np.float32)
    bad["q"][2, 3] = np.nan
    with pytest.raises(ValueError, match=r"q must be finite.*\[2, 3\]"):
        ot.targets(ot.Retrace(0.9), **in_kind(bad, kind), gamma=0.9)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"gamma": 1.5}, ValueError, "gamma must lie"),
        ({"next_value": None}, TypeError, "next_value is missing"),
        ({"log_mu": None}, TypeError, "log_mu is missing"),
        ({"truncated": None}, TypeError, "truncated is missing"),
        ({"q": arrays["q"][:, :3]}, ValueError, "nothing is broadcast"),
        ({"terminated": arrays["reward"]}, TypeError, "boolean"),
    ]
    for change, error, message in wrong:
        with pytest.raises(error, match=message):
            ot.targets(ot.Retrace(0.9), **{**arrays, "gamma": 0.9, **change})
    with pytest.raises(TypeError, match="must be an offtrace trace"):
        ot.targets("retrace", **arrays, gamma=0.9)  # pyright: ignore[reportArgumentType]


def test_a_tensor_with_a_gradient_is_read_as_a_constant() -> None:
    arrays = in_kind(batch(dtype=np.float32), "torch")
    wanted = ot.targets(ot.RBIS(0.9), **arrays, gamma=0.9)
    found = ot.targets(ot.RBIS(0.9), **{**arrays, "q": arrays["q"].requires_grad_()}, gamma=0.9)
    assert not found.requires_grad
    assert found.equal(wanted)
    with_gradient = ot.targets(ot.RBIS(0.9), **arrays, gamma=0.9, differentiable=True)
    assert with_gradient.requires_grad


def test_a_result_of_jax_is_where_the_arrays_were_put() -> None:
    jax = pytest.importorskip("jax")
    device = jax.local_devices(backend="cpu")[0]
    arrays = {n: jax.device_put(a, device) for n, a in batch(dtype=np.float32).items()}
    found, free = None, None
    for _ in range(40):  # as one that comes often, too
        found = ot.targets(ot.Retrace(0.9), **arrays, gamma=0.9)
        free = ot.targets(ot.Retrace(0.9), **in_kind(batch(dtype=np.float32), "jax"), gamma=0.9)
    assert found is not None
    assert free is not None
    assert found.committed
    assert found.device == device
    assert not free.committed
    np.testing.assert_array_equal(found, free)


@pytest.mark.parametrize("shape", [(9, 1030), (1, 4096), (2, 4097), (1, 20_000)])
def test_long_rows_are_done_in_parts(shape: tuple[int, int]) -> None:
    """The recursions, step by step, on rows that are longer than what is done at a time."""
    x = batch(3, *shape)
    valid = np.random.default_rng(4).random(shape) < 0.97
    gamma = np.random.default_rng(5).uniform(0.9, 1.0, shape)
    rho = np.exp(x["log_pi"] - x["log_mu"])
    delta = x["reward"] + gamma * ~x["terminated"] * x["next_value"] - x["q"]
    on = ~(x["terminated"] | x["truncated"]) & valid & np.pad(valid[:, 1:], ((0, 0), (0, 1)))
    states = {n: a for n, a in x.items() if n != "q"} | {"value": x["q"]}
    for trace, c in ((ot.Retrace(0.9), 0.9 * np.minimum(1, rho)), (ot.ImportanceSampling(0.9), 0.9 * rho)):
        wanted, v, later, excess = np.zeros(shape), np.zeros(shape), np.zeros(shape[0]), np.zeros(shape[0])
        for k in reversed(range(shape[1])):
            passed = on[:, k] * gamma[:, k]
            later = delta[:, k] + passed * (c[:, k + 1] * later if k + 1 < shape[1] else 0.0)
            excess = np.minimum(1, rho[:, k]) * (delta[:, k] + passed * excess)
            wanted[:, k], v[:, k] = later, excess
        found = ot.corrections(trace, **x, gamma=gamma, valid=valid)
        np.testing.assert_allclose(found, np.where(valid, wanted, 0.0), rtol=1e-12, atol=1e-12)
        made = ot.state_targets(**states, gamma=gamma, valid=valid).target
        np.testing.assert_allclose(made, np.where(valid, x["q"] + v, 0.0), rtol=1e-12, atol=1e-12)


HALVES = [("float16", "float16", "float16"), ("float16", "float32", "float32"), ("float32", "float16", "float32")]
WITH_BFLOAT16 = [
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "float32", "float32"),
    ("bfloat16", "float16", "float32"),
]
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21}


def in_dtype(array: Any, dtype: str) -> Any:
    if hasattr(array, "double"):
        return array.to(getattr(pytest.importorskip("torch"), dtype))
    return array.astype(dtype)


@pytest.mark.parametrize(
    ("kind", "values", "logs", "result"),
    [(kind, *dtypes) for kind in KINDS for dtypes in (*HALVES, *(WITH_BFLOAT16 if kind != "numpy" else ()))],
)
def test_half_precision_beside_float32(kind: str, values: str, logs: str, result: str) -> None:
    """Each array is read as it is, and the result has the dtype to which all are promoted, by every way of computing."""
    x = in_kind(batch(dtype=np.float32), kind)
    ends = {n: x.pop(n) for n in ("terminated", "truncated")}
    x = {n: in_dtype(a, logs if n.startswith("log") else values) for n, a in x.items()}
    exact = {n: as_numpy(a) for n, a in x.items()} | {n: np.asarray(a) for n, a in ends.items()}
    for trace in (ot.Retrace(0.9), ot.RBIS(0.9)):
        wanted = ot.targets(trace, **exact, gamma=0.9)
        options: tuple[dict[str, Any], ...] = ({}, {"check": False}, {"differentiable": True})
        for how in options[:2] if kind == "numpy" else options:
            found = ot.targets(trace, **x, **ends, gamma=0.9, **how)
            assert str(found.dtype).removeprefix("torch.") == result
            np.testing.assert_allclose(as_numpy(found), wanted, rtol=EPS[result], atol=EPS[result])
    q = x.pop("q")
    both = ot.state_targets(value=q, **x, **ends, gamma=0.9)
    assert {str(a.dtype).removeprefix("torch.") for a in both} == {result}


@pytest.mark.parametrize("kind", KINDS)
def test_float64_beside_another_is_refused(kind: str) -> None:
    arrays = in_kind(batch(dtype=np.float32), kind)
    if kind == "jax" and not pytest.importorskip("jax").config.jax_enable_x64:
        pytest.skip("JAX has no float64 here")
    with pytest.raises(TypeError, match="give all in one dtype"):
        ot.targets(ot.Retrace(), **{**arrays, "log_mu": in_dtype(arrays["log_mu"], "float64")}, gamma=0.9)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_an_error_names_the_index_that_the_user_knows(kind: str) -> None:
    """Time first, with a last dimension of 1, and where steps before it are skipped."""
    module = pytest.importorskip(kind if kind != "jax" else "jax.numpy")
    zero, no = np.zeros((4, 3)), np.zeros((4, 3), bool)
    reward, skip = zero.copy(), no.copy()
    reward[2, 1], skip[:2, 1] = np.nan, True
    x = {"reward": reward, "q": zero, "next_value": zero, "terminated": no, "truncated": no}
    for shown, options in (
        ("[2, 1]", {"time_major": True}),
        ("[2, 1]", {"time_major": True, "skip": skip}),
        ("[2, 1]", {"skip": np.arange(12).reshape(4, 3) % 3 == 0}),
        ("[2, 1, 0]", {"time_major": True, "last": True}),
    ):
        last = options.pop("last", False)
        given = {n: a[..., None] if last else a for n, a in x.items()} | options
        arrays: dict[str, Any] = {n: module.asarray(a) if isinstance(a, np.ndarray) else a for n, a in given.items()}
        with pytest.raises(ValueError, match=re.escape(f"reward must be finite: got nan at index {shown};")):
            ot.targets(ot.QLambda(0.9), **arrays, gamma=0.9)


def test_c_of_a_start_is_not_read() -> None:
    end = np.array([False, True, False, False])
    x = {"reward": np.ones(4), "q": np.zeros(4), "next_value": np.zeros(4), "terminated": end, "truncated": ~end & end}
    c = np.array([np.nan, 0.5, np.nan, 2.0])
    np.testing.assert_array_equal(ot.targets_from_c(c, **x, gamma=1.0), [1.5, 1.0, 3.0, 1.0])
    with pytest.raises(ValueError, match=r"holds NaN for step \[1\]"):
        ot.targets_from_c(np.where(np.arange(4) == 1, np.nan, c), **x, gamma=1.0)


def test_an_error_of_a_ratio_and_an_error_together_names_the_step() -> None:
    zero, no = np.zeros(3), np.zeros(3, bool)
    x = {"reward": np.array([0.0, 1e300, 0.0]), "value": zero, "next_value": zero, "terminated": no, "truncated": no}
    with pytest.raises(ValueError, match=r"the TD error at index \[1\] times its ratio is too large"):
        ot.state_targets(ot.ImportanceSampling(), **x, log_pi=zero, log_mu=np.array([0.0, -99.0, 0.0]), gamma=1.0)
