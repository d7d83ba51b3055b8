"""What arrays may come in: a shape that can be read in two ways is refused, and so is a mixture of kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import KINDS

N = 6


def steps(*names: str) -> dict[str, Any]:
    """N steps [N]; the rewards lie at the end, so that steps and rows give other numbers."""
    rng = np.random.default_rng(0)
    made = {name: rng.normal(size=N).astype(np.float32) for name in ("reward", "q", "next_value")}
    made |= {name: -rng.random(N).astype(np.float32) for name in ("log_pi", "log_mu")}
    made["value"] = made["q"]
    made |= {name: np.zeros(N, bool) for name in ("terminated", "truncated")}
    return {name: made[name] for name in names}


ENDS = ("terminated", "truncated")
VALUES = ("reward", "next_value", *ENDS)


def from_c(**given: Any) -> Any:
    return ot.targets_from_c(given.pop("c"), **given)


def with_c() -> dict[str, Any]:
    return steps(*VALUES, "q") | {"c": np.exp(steps("log_pi")["log_pi"])}


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "targets": (lambda **x: ot.targets(ot.Retrace(0.9), **x), steps(*VALUES, "q", "log_pi", "log_mu")),
    "corrections": (lambda **x: ot.corrections(ot.RBIS(0.9), **x), steps(*VALUES, "q", "log_pi", "log_mu")),
    "Peng": (lambda **x: ot.targets(ot.PengQ(0.9), **x), steps(*VALUES)),
    "targets_from_c": (from_c, with_c()),
    "state_targets": (lambda **x: ot.state_targets(**x).target, steps(*VALUES, "value", "log_pi", "log_mu")),
    "advantages": (lambda **x: ot.state_targets(**x).advantage, steps(*VALUES, "value", "log_pi", "log_mu")),
}
MEASURES: dict[str, Callable[..., Any]] = {
    "diagnose": lambda **x: ot.diagnose(ot.Retrace(0.9), **x).pooled,
    "adapt": lambda **x: ot.adapt(ot.CTrace(rate=0.5, mix=0.5, step_size=0.1), **x),
}


def laid_out(arrays: dict[str, Any], kind: str, *more: int) -> dict[str, Any]:
    """The arrays with dimensions of 1 after the last, in the kind that is asked for."""
    return {name: KINDS[kind](array.reshape(N, *more)) for name, array in arrays.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_a_column_is_refused_until_it_is_said_what_it_is(name: str, kind: str) -> None:
    """[N, 1] is the rollout of one environment, with time first, or N rows of one step, as a replay buffer gives them."""
    call, arrays = CALLS[name]
    whole = np.asarray(call(**laid_out(arrays, kind), gamma=0.9))
    alone = [call(**{n: KINDS[kind](a[i : i + 1]) for n, a in arrays.items()}, gamma=0.9) for i in range(N)]
    apart = np.asarray([np.asarray(a)[0] for a in alone])
    assert not np.allclose(whole, apart)
    for more in ((1,), (1, 1)):
        column = laid_out(arrays, kind, *more) | {"gamma": 0.9}
        with pytest.raises(ValueError, match=rf"\({N}, 1.*time_major=True.*time_major=False.*\[T\]"):
            call(**column)
        for time_major, wanted in ((True, whole), (False, apart)):
            found = call(**column, time_major=time_major)
            assert tuple(found.shape) == (N, *more)
            np.testing.assert_allclose(np.asarray(found).reshape(N), wanted, rtol=1e-6, err_msg=str(time_major))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MEASURES)
def test_measures_refuse_it_too(name: str, kind: str) -> None:
    arrays, call = steps(*ENDS, "log_pi", "log_mu"), MEASURES[name]
    column = laid_out(arrays, kind, 1) | {"gamma": 0.9}
    with pytest.raises(ValueError, match=rf"terminated has shape \({N}, 1\).*time_major=True.*time_major=False"):
        call(**column)
    whole, apart = (call(**column, time_major=time_major) for time_major in (True, False))
    assert whole == call(**laid_out(arrays, kind), gamma=0.9) != apart


def test_a_list_is_looked_at_as_well() -> None:
    call, arrays = CALLS["targets"]
    arrays = arrays | {name: array.astype(float) for name, array in arrays.items() if array.dtype == np.float32}
    with pytest.raises(ValueError, match="time_major=True"):
        call(**{name: array[:, None].tolist() for name, array in arrays.items()}, gamma=0.9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (1, N)])
def test_one_row_needs_no_word(shape: tuple[int, int], kind: str) -> None:
    call, arrays = CALLS["targets"]
    cut = {name: array[: shape[1]] for name, array in arrays.items()}
    row = {name: KINDS[kind](array.reshape(shape)) for name, array in cut.items()}
    np.testing.assert_allclose(np.asarray(call(**row, gamma=0.9))[0], call(**cut, gamma=0.9), rtol=1e-6)


def test_inside_jit_and_compile_too() -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    call, arrays = CALLS["targets"]
    with pytest.raises(ValueError, match="time_major=True"):
        jax.jit(lambda x: call(**x, gamma=0.9))(laid_out(arrays, "jax", 1))
    found = jax.jit(lambda x: call(**x, gamma=0.9, time_major=True))(laid_out(arrays, "jax", 1))
    np.testing.assert_allclose(np.asarray(found)[:, 0], call(**arrays, gamma=0.9), rtol=1e-5)
    compiled = torch.compile(lambda x: call(**x, gamma=0.9, time_major=True), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(laid_out(arrays, "torch", 1))[:, 0], torch.from_numpy(call(**arrays, gamma=0.9))
    )


TYPES = {"numpy": "numpy", "torch": "torch", "jax": "jaxlib"}
ROW: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "coefficients": (lambda **x: ot.coefficients(ot.Retrace(0.9), **x), steps(*ENDS, "log_pi", "log_mu")),
}
EVERY = CALLS | {name: (call, steps(*ENDS, "log_pi", "log_mu")) for name, call in MEASURES.items()} | ROW


def gamma_of(name: str) -> dict[str, Any]:
    return {} if name in ROW else {"gamma": 0.9}


@pytest.mark.parametrize("most", ["torch", "jax"])
@pytest.mark.parametrize("name", EVERY)
def test_one_of_another_kind_is_refused_whichever_it_is(name: str, most: str) -> None:
    call, arrays = EVERY[name]
    rest = {n: KINDS[most](a) for n, a in arrays.items()}
    for odd, array in arrays.items():
        others: dict[str, Any] = {kind: make(array) for kind, make in KINDS.items() if kind != most}
        for other in (*others.values(), array.tolist()):
            words = rf"\b{odd} is a {type(other).__name__}|but {odd} is"
            with pytest.raises(TypeError, match=words) as caught:
                call(**{**rest, odd: other}, **gamma_of(name))
            assert "pass " in str(caught.value)


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_discounts_by_step_and_the_optional_arrays_decide_as_well(kind: str) -> None:
    call, arrays = CALLS["targets"]
    for name, array in {"gamma": np.full(6, 0.9, np.float32), "valid": np.ones(6, bool), "pair": np.arange(6)}.items():
        given = {n: KINDS[kind](a) for n, a in arrays.items()} | {"gamma": 0.9}
        with pytest.raises(TypeError, match=f"{name} is a ndarray but"):
            call(**(given | {name: array}))
        with pytest.raises(TypeError, match=f"but {name} is a"):
            call(**(arrays | {"gamma": 0.9, name: KINDS[kind](array)}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_is_of_no_kind(kind: str) -> None:
    call, arrays = CALLS["targets"]
    given = {n: KINDS[kind](a) for n, a in arrays.items()}
    wanted = np.asarray(call(**arrays, gamma=0.5))
    for gamma in (0.5, np.float32(0.5), np.float64(0.5), np.array(0.5)):
        found = call(**given, gamma=gamma)
        assert type(found).__module__.startswith(TYPES[kind])
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)


def test_a_subclass_of_a_tensor_is_a_tensor() -> None:
    torch = pytest.importorskip("torch")

    class Marked(torch.Tensor):
        pass

    call, arrays = CALLS["targets"]
    given = {n: KINDS["torch"](a).as_subclass(Marked) for n, a in arrays.items()}
    assert isinstance(call(**given, gamma=0.9), torch.Tensor)


@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_of_any_kind(name: str) -> None:
    """Plain numbers come back, so tensors on any device, in any dtype and with a gradient are as good as NumPy arrays."""
    torch = pytest.importorskip("torch")
    arrays = steps(*ENDS, "log_pi", "log_mu")
    for kind, make in KINDS.items():
        assert MEASURES[name](**{n: make(a) for n, a in arrays.items()}, gamma=0.9) == MEASURES[name](
            **arrays, gamma=0.9
        ), kind
    log_pi = torch.from_numpy(arrays["log_pi"]).requires_grad_()
    given = {n: KINDS["torch"](a) for n, a in arrays.items()} | {"log_pi": log_pi}
    assert MEASURES[name](**given, gamma=0.9) == MEASURES[name](**arrays, gamma=0.9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_is_drawn_of_any_kind(kind: str) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    given = {n: KINDS[kind](a) for n, a in steps(*ENDS, "log_pi", "log_mu").items()}
    assert ot.credit_figure([ot.Retrace(0.9)], **given).axes


def test_given_c_may_be_in_half_precision_and_have_a_gradient() -> None:
    torch = pytest.importorskip("torch")
    call, arrays = CALLS["targets_from_c"]
    given = {n: KINDS["torch"](a) for n, a in arrays.items()}
    wanted = call(**given, gamma=0.9)
    torch.testing.assert_close(call(**(given | {"c": given["c"].requires_grad_()}), gamma=0.9), wanted)
    with pytest.raises(TypeError, match=r"c requires a gradient.*c\.detach\(\)"):
        call(**given, gamma=0.9, differentiable=True)
    half = {n: a.detach().bfloat16() if a.is_floating_point() else a for n, a in given.items()}
    torch.testing.assert_close(call(**half, gamma=0.9).float(), wanted, rtol=0.05, atol=0.05)
