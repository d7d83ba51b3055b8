"""PyTorch: the same numbers as the definition, in every dtype and layout; gradients; torch.compile and vmap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offtrace as ot
from helpers import CUSTOM, TRACES, assert_close, correct_by_definition, name_of, rows, trajectories, whole
from offtrace.returns import by_definition

quick = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
SOME = [
    ot.Retrace(lam=0.9), ot.QSigma(sigma=0.3, lam=0.9), ot.ABQ(zeta=0.3, psi0=0.9, psi_max=3.0), ot.NonMarkovRetrace(lam=0.9),
    ot.RBIS(lam=0.9), ot.HistoryBounded(bound=3.0), ot.TruncatedIS(bound=2.5, lam=0.9), ot.TruncatedIS(bound=(0.5, 2.0)),
    ot.Retrace(lam=0.9, horizon=3), ot.PengQ(lam=0.7), ot.NStep(n=3),
]  # fmt: skip
FEW = [*SOME, *CUSTOM]
LAYOUTS = ["plain", "time_major", "trailing", "both"]


def tensors(arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: torch.from_numpy(np.array(a)) if isinstance(a, np.ndarray) else a for n, a in arrays.items()}


def laid_out(arrays: dict[str, Any], layout: str) -> dict[str, Any]:
    found = {}
    for name, a in arrays.items():
        if np.ndim(a):
            a = a.swapaxes(0, 1) if layout in ("time_major", "both") else a
            a = a[..., None] if layout in ("trailing", "both") else a
        found[name] = a
    return found | ({"time_major": True} if layout in ("time_major", "both") else {})


def back(out: Any, layout: str) -> Any:
    out = out[..., 0] if layout in ("trailing", "both") else out
    return out.swapaxes(0, 1) if layout in ("time_major", "both") else out


@pytest.mark.parametrize(
    "trace",
    [
        *(t for t in FEW if not t.uncorrected),
        *(pytest.param(t, marks=pytest.mark.whole) for t in TRACES if t not in FEW),
    ],
    ids=name_of,
)
@quick
@given(data=st.data())
def test_corrections_are_the_definition(trace: Any, data: Any) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    arrays = data.draw(trajectories(dtype))
    layout = data.draw(st.sampled_from(LAYOUTS)) if arrays["reward"].ndim == 2 else "plain"
    wanted, scale = correct_by_definition(trace, arrays)
    for way in ("plain", "differentiable"):
        found = ot.corrections(trace, **laid_out(tensors(arrays), layout), differentiable=way == "differentiable")
        assert_close(back(found, layout).numpy(), wanted, scale, dtype, way)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_numpy_arrays(layout: str) -> None:
    arrays, lam = example(4, 7), np.random.default_rng(0).random((4, 7))
    rule = ot.VariableLambda(lam=lam, horizon=3)
    moved = laid_out({"lam": lam}, layout)["lam"]
    for trace, turned in (
        (ot.RBIS(lam=0.9), ot.RBIS(lam=0.9)),
        (rule, replace(rule, lam=moved)),
        (rule, replace(rule, lam=moved.reshape(moved.shape[:2]))),
    ):
        wanted = ot.targets(trace, **arrays)
        np.testing.assert_array_equal(back(ot.targets(turned, **laid_out(arrays, layout)), layout), wanted)
        for differentiable in (False, True):
            found = ot.targets(turned, **laid_out(tensors(arrays), layout), differentiable=differentiable)
            np.testing.assert_allclose(back(found, layout), wanted, rtol=1e-14)
    c = ot.targets_from_c(moved, **laid_out({n: arrays[n] for n in arrays if "log" not in n}, layout))
    np.testing.assert_allclose(
        back(c, layout), ot.targets(ot.ImportanceSampling(), **(arrays | {"log_pi": np.log(lam), "log_mu": 0 * lam}))
    )


@pytest.mark.parametrize("way", ["plain", "differentiable"])
@quick
@given(data=st.data())
def test_peng_and_n_step(way: str, data: Any) -> None:
    arrays = data.draw(trajectories(np.float64))
    arrays = {name: arrays[name] for name in arrays if name not in ("q", "log_pi", "log_mu", "pair", "greedy")}
    cases: list[Any] = [(ot.PengQ(0.6), by_definition.peng, 0.6), (ot.NStep(3), by_definition.n_step, 3)]
    for rule, oracle, parameter in cases:
        found = ot.targets(rule, **tensors(arrays), differentiable=way == "differentiable")
        wanted = np.array([oracle(parameter, **row) for row in rows(arrays)]).reshape(found.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def state_values() -> dict[str, Any]:
    arrays = tensors(example())
    return {"value" if name == "q" else name: arrays[name] for name in arrays}


def test_v_trace_under_vmap_and_compile_and_in_bfloat16() -> None:
    arrays = state_values()
    names, values = zip(*((n, a) for n, a in arrays.items() if n != "gamma"), strict=True)

    def f(*values: Any) -> Any:
        return tuple(ot.state_targets(**dict(zip(names, values, strict=True)), gamma=0.9, lam=0.8))

    for mapped in (torch.func.vmap(f), torch.compile(f, fullgraph=True, backend="aot_eager")):
        torch.testing.assert_close(mapped(*values), f(*values))
    half = [a.bfloat16() if a.is_floating_point() else a for a in values]
    wanted = f(*(a.float() if a.is_floating_point() else a for a in half))
    torch.testing.assert_close(f(*half), tuple(a.bfloat16() for a in wanted), rtol=0, atol=0)


def test_v_trace_has_gradients_where_asked() -> None:
    arrays = state_values()
    names = ("reward", "value", "next_value", "log_pi", "log_mu")
    given = tuple(arrays[name].requires_grad_() for name in names)

    def f(*given: Any, **options: Any) -> Any:
        return tuple(ot.state_targets(**(arrays | dict(zip(names, given, strict=True))), lam=0.8, **options))

    constant, found = f(*given), f(*given, differentiable=True)
    torch.testing.assert_close(found, constant)
    assert not any(a.requires_grad for a in constant)
    assert torch.autograd.gradcheck(lambda *given: f(*given, differentiable=True), given)
    with torch.no_grad():
        arrays["reward"][1, 4] = torch.nan
    with pytest.raises(ValueError, match=r"reward must be finite.*\[1, 4\]"):
        f(*given, differentiable=True)
    on_numpy: Any = {"value" if name == "q" else name: a for name, a in example().items()}
    with pytest.raises(TypeError, match="NumPy has no gradients"):
        ot.state_targets(**on_numpy, differentiable=True)


@pytest.mark.parametrize("trace", FEW, ids=name_of)
def test_without_a_check_nothing_is_raised_and_the_rest_is_right(trace: Any) -> None:
    pair = {"pair": torch.zeros(3, 9, dtype=torch.long)}
    arrays = tensors(example()) | pair
    arrays["reward"][1, 4] = torch.nan
    with pytest.raises(ValueError, match=r"reward must be finite.*\[1, 4\]"):
        ot.targets(trace, **arrays)
    found = ot.targets(trace, **arrays, check=False)
    assert found[1, 4].isnan()
    whole = ot.targets(trace, **tensors(example()), **pair, check=False)
    torch.testing.assert_close(found[[0, 2]], whole[[0, 2]])
    torch.testing.assert_close(found[1, 5:], whole[1, 5:])


def test_v_trace_without_a_check() -> None:
    arrays = state_values()
    wanted = ot.state_targets(**arrays)
    arrays["log_mu"][0, 8] = -torch.inf
    with pytest.raises(ValueError, match=r"log_mu is -inf.*\[0, 8\]"):
        ot.state_targets(**arrays)
    found = ot.state_targets(**arrays, check=False)
    torch.testing.assert_close(found.target[1:], wanted.target[1:])


def example(B: int = 3, T: int = 9, dtype: Any = np.float64, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    reward, q, value = rng.normal(size=(3, B, T)).astype(dtype)
    log_pi, log_mu = np.log(rng.uniform(0.1, 1.0, (2, B, T))).astype(dtype)
    terminated, truncated = rng.random((2, B, T)) < 0.1
    return {
        "reward": reward, "q": q, "next_value": value, "terminated": terminated, "truncated": truncated,
        "log_pi": log_pi, "log_mu": log_mu, "gamma": 0.95,
    }  # fmt: skip


@pytest.mark.parametrize("trace", SOME, ids=name_of)
def test_bfloat16_is_summed_in_float32(trace: Any) -> None:
    arrays = tensors(example(dtype=np.float32))
    rounded: dict[str, Any] = {
        n: a.bfloat16() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for n, a in arrays.items()
    }
    floats: dict[str, Any] = {
        n: a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for n, a in rounded.items()
    }
    found = ot.targets(trace, **rounded)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, ot.targets(trace, **floats).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("trace", FEW, ids=name_of)
def test_gradients(trace: Any) -> None:
    arrays = tensors(example(2, 7)) | {"pair": torch.tensor([[0, 1, 2, 1, 0, 0, 2]] * 2)}
    names = ["reward", "q", "next_value"]
    if isinstance(trace, ot.Trace) and trace.per_decision and trace.horizon is None:
        names += ["log_pi"] + (["log_mu"] if trace.needs_mu else [])

    def f(*values: Any) -> Any:
        return ot.targets(trace, **(arrays | dict(zip(names, values, strict=True))), differentiable=True)

    assert torch.autograd.gradcheck(f, tuple(arrays[n].requires_grad_() for n in names))
    assert not ot.targets(trace, **arrays).requires_grad


def test_second_derivatives() -> None:
    arrays = tensors(example(1, 5))

    def f(q: Any, log_pi: Any) -> Any:
        return ot.targets(ot.ImportanceSampling(lam=0.9), **(arrays | {"q": q, "log_pi": log_pi}), differentiable=True)

    assert torch.autograd.gradgradcheck(f, (arrays["q"].requires_grad_(), arrays["log_pi"].requires_grad_()))


@pytest.mark.parametrize("trace", SOME, ids=name_of)
def test_vmap_is_a_loop(trace: Any) -> None:
    arrays = tensors({n: a for n, a in example(4, 6).items() if np.ndim(a)})
    names = list(arrays)

    def f(*values: Any) -> Any:
        return ot.targets(trace, gamma=0.9, **dict(zip(names, values, strict=True)))

    torch.testing.assert_close(torch.func.vmap(f)(*arrays.values()), f(*arrays.values()))
    dims = tuple(None if n == "terminated" else 0 for n in names)
    shared = arrays | {"terminated": arrays["terminated"][0]}
    wanted = f(*(arrays | {"terminated": shared["terminated"].expand(4, 6).clone()}).values())
    torch.testing.assert_close(torch.func.vmap(f, in_dims=dims)(*shared.values()), wanted)


KERNELS = [ot.Retrace(lam=0.9), ot.RBIS(lam=0.9), ot.TruncatedIS(bound=2.5, lam=0.9)]


@pytest.mark.parametrize("rules", [KERNELS, *whole([[SOME[2], *SOME[7:]]])], ids=["each kernel", "other rules"])
@pytest.mark.parametrize("differentiable", [False, True])
def test_compile_without_a_break(differentiable: bool, rules: list[Any]) -> None:
    arrays = tensors(example())
    arrays["q"].requires_grad_(differentiable)

    def f(traces: Any) -> Any:
        return [2.0 * ot.targets(trace, **arrays, differentiable=differentiable) for trace in traces]

    others = [replace(rule, lam=0.5) for rule in KERNELS[:2]]  # one for each operator that is registered
    third = [replace(KERNELS[0], lam=0.3)]  # from the third one on PyTorch may no longer take a number for a constant
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for traces in (rules, others, third):
        torch.testing.assert_close(compiled(traces), f(traces))  # another λ must not meet the code of the first


def test_operators_are_registered_properly() -> None:
    from offtrace.returns.torch.operators import capped, linear

    a = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    c = torch.rand(2, 5, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(linear, (a, c))
    fixed = c.detach()
    torch.library.opcheck(capped, (a, fixed, fixed, fixed, torch.empty(0, dtype=torch.float64), True, False))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_operators_are_mapped_over_any_dimension(dim: int) -> None:
    from offtrace.returns.torch.operators import capped, linear

    a, c, ratio = torch.rand(3, 4, 2, 5, dtype=torch.float64)[:3]
    cap, lags = torch.ones(2, 5, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
    moved = [x.movedim(0, dim) for x in (a, c, ratio)]
    found = torch.func.vmap(linear, in_dims=dim)(*moved[:2])
    torch.testing.assert_close(found, torch.stack([linear(*each) for each in zip(a, c, strict=True)]))
    found = torch.func.vmap(lambda *x: capped(*x, cap, lags, True, False), in_dims=dim)(*moved)
    wanted = [capped(*each, cap, lags, True, False) for each in zip(a, c, ratio, strict=True)]
    torch.testing.assert_close(found, torch.stack(wanted))


def test_what_is_wrong_is_said() -> None:
    arrays = tensors(example())
    retrace = ot.Retrace(lam=0.9)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"q": arrays["q"][:, 1:]}, ValueError, "q has shape"),
        ({"q": arrays["q"].float()}, TypeError, "one dtype"),
        ({"q": arrays["q"].numpy()}, TypeError, "q is a ndarray"),
        ({"q": arrays["q"].to("meta")}, ValueError, "q is on meta"),
        ({"log_mu": None}, TypeError, "log_mu is missing"),
        ({"terminated": arrays["q"]}, TypeError, "terminated must be boolean"),
        ({"q": arrays["q"] * torch.nan}, ValueError, "q must be finite"),
        ({"time_major": True, "reward": arrays["reward"][0]}, ValueError, "time_major"),
        ({"reward": arrays["reward"][..., None]}, ValueError, "but reward has shape"),
        ({"reward": arrays["reward"][..., None].expand(3, 9, 2)}, ValueError, "last dimension of 1"),
    ]
    for change, error, words in wrong:
        for differentiable in (False, True):
            with pytest.raises(error, match=words):
                ot.targets(retrace, **(arrays | change), differentiable=differentiable)
    with pytest.raises(TypeError, match="custom trace"):
        torch.func.vmap(lambda q: ot.targets(CUSTOM[2], **(arrays | {"q": q})))(arrays["q"][None])
    with pytest.raises(TypeError, match="gradients"):
        ot.targets(retrace, **example(), differentiable=True)


def test_memory_is_shared_and_strides_are_taken() -> None:
    arrays = tensors(example(4, 8))
    wide: dict[str, Any] = {
        n: a.repeat_interleave(2, 1)[:, ::2] if isinstance(a, torch.Tensor) else a for n, a in arrays.items()
    }
    torch.testing.assert_close(ot.targets(ot.RBIS(), **wide), ot.targets(ot.RBIS(), **arrays), rtol=0, atol=0)
    found = ot.coefficients(ot.RBIS(), **{n: arrays[n][0] for n in ("terminated", "truncated", "log_pi", "log_mu")})
    assert isinstance(found, torch.Tensor)
    assert found.shape == (8, 8)


def test_given_coefficients_are_constants() -> None:
    arrays = {n: a for n, a in tensors(example()).items() if "log" not in n}
    c = torch.rand(3, 9, dtype=torch.float64, requires_grad=True)
    found = ot.targets_from_c(c, **arrays)
    torch.testing.assert_close(found, ot.targets_from_c(c.detach(), **arrays))
    assert not found.requires_grad
    with pytest.raises(TypeError, match=r"pass c\.detach\(\)"):
        ot.targets_from_c(c, **arrays, differentiable=True)
