"""What a rule may do to its arguments: all of it, on every backend; and what it may not, refused when it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest

import offtrace as ot
from helpers import BUILT_IN, name_of
from offtrace.traces import StepTrace, symbols


def _helper(xp: Any, x: Any) -> Any:
    return xp.minimum(x, 1.0)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": lambda xp, pi, mu, rho, c: 0.1 + pi + c,
    "-": lambda xp, pi, mu, rho, c: 2.0 - pi - 0.1 * c,
    "*": lambda xp, pi, mu, rho, c: 0.5 * rho * c,
    "/": lambda xp, pi, mu, rho, c: 0.3 / (rho + 0.5) + rho / c + pi / (1.0 + mu),
    "** 0.5": lambda xp, pi, mu, rho, c: xp.minimum(rho, 1.0) ** 0.5,
    "** -0.5": lambda xp, pi, mu, rho, c: (1.0 + rho) ** -0.5,
    "** 2": lambda xp, pi, mu, rho, c: pi**2 + pi**3,
    "** c": lambda xp, pi, mu, rho, c: rho**c,
    "** pi": lambda xp, pi, mu, rho, c: 0.7**pi * c ** (pi - 0.5),
    "** of 0 and below": lambda xp, pi, mu, rho, c: (pi - pi) ** 2.5 + (-pi) ** 4.0 - (-pi) ** 5.0 + (pi - pi) ** 0.0,
    "abs": lambda xp, pi, mu, rho, c: abs(pi - mu) + xp.abs(mu - 0.5),
    "negative": lambda xp, pi, mu, rho, c: 1.5 + -pi,
    "sqrt": lambda xp, pi, mu, rho, c: xp.sqrt(pi) + xp.sqrt(2.0),
    "exp": lambda xp, pi, mu, rho, c: xp.exp(-rho) + xp.exp(-1.0),
    "log": lambda xp, pi, mu, rho, c: xp.log(1.0 + rho) * xp.log(2.0),
    "minimum": lambda xp, pi, mu, rho, c: xp.minimum(rho, mu + 0.5),
    "maximum": lambda xp, pi, mu, rho, c: xp.maximum(0.2, xp.maximum(rho, c)),
    "where": lambda xp, pi, mu, rho, c: xp.where(rho > 1.0, 0.1, 0.9),
    "comparisons": lambda xp, pi, mu, rho, c: (
        0.3 * (rho < 1.0)
        + 0.1 * (rho <= 1.0)
        + (pi >= mu) * 0.2
        + xp.where(pi == mu, 0.3, 0.1)
        + xp.where(pi != mu, 0.3, 0.1)
    ),
    "and, or, not": lambda xp, pi, mu, rho, c: xp.where(((rho > 0.5) & (pi < 0.7)) | ~(mu > 0.5), 0.3, c),
    "NumPy's numbers": lambda xp, pi, mu, rho, c: np.float64(0.5) * rho + np.float32(0.25),
    "a helper function": lambda xp, pi, mu, rho, c: _helper(xp, rho),
    "a constant": lambda xp, pi, mu, rho, c: 0.3,
}
C = 0.8


def one_of(xp: Any, pi: Any, mu: Any, rho: Any, c: Any) -> Any:
    """The operation whose number c tells, in 32nds: what is compiled once serves for all, and each is seen alone."""
    found = 0.0
    for i, formula in enumerate(OPERATIONS.values()):
        found = found + xp.where(c == i / 32, formula(xp, pi, mu, rho, C + (c - i / 32)), 0.0)
    return found


def rule_of(formula: Callable[..., Any]) -> ot.Trace:
    """β_t = ∏ 0.9 · formula."""

    @dataclasses.dataclass(frozen=True)
    class Formula(ot.Trace):
        c: float = C
        reads: ClassVar = ("pi", "mu", "rho")

        @staticmethod
        def factors(xp, pi, mu, rho, c):
            return 0.9, formula(xp, pi, mu, rho, c), ot.INFINITY

    return Formula()


def step_of(formula: Callable[..., Any]) -> StepTrace:
    """The same, written as a step."""

    def step(xp, carry, now):
        carry = carry * 0.9 * formula(xp, now.pi, now.mu, now.rho, now.lam)
        return carry, carry

    return StepTrace(step, lam=C, reads=("pi", "mu", "rho"))


T = 9
RNG = np.random.default_rng(0)
GIVEN: dict[str, Any] = {
    "reward": RNG.normal(size=(2, T)), "q": np.zeros((2, T)), "next_value": np.zeros((2, T)),
    "log_pi": np.log(RNG.uniform(0.1, 1, (2, T))), "log_mu": np.log(RNG.uniform(0.1, 1, (2, T))),
    "terminated": np.zeros((2, T), bool), "truncated": np.zeros((2, T), bool),
}  # fmt: skip
GIVEN["log_pi"][:, 3] = GIVEN["log_mu"][:, 3]


def by_hand(formula: Callable[..., Any]) -> np.ndarray:
    pi, mu = np.exp(GIVEN["log_pi"]), np.exp(GIVEN["log_mu"])
    ratio = 0.9 * np.broadcast_to(formula(np, pi, mu, np.exp(GIVEN["log_pi"] - GIVEN["log_mu"]), C), pi.shape)
    found = GIVEN["reward"].copy()
    for k in reversed(range(T - 1)):
        found[:, k] += 0.95 * ratio[:, k + 1] * found[:, k + 1]
    return found


def on_numpy(trace: Any) -> Any:
    return ot.targets(trace, **GIVEN, gamma=0.95)


def _tensors() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return {n: torch.from_numpy(a) for n, a in GIVEN.items()}


def on_torch(trace: Any) -> Any:
    return ot.targets(trace, **_tensors(), gamma=0.95)


def on_torch_with_gradient(trace: Any) -> Any:
    given = _tensors()
    given["reward"].requires_grad_()
    found = ot.targets(trace, **given, gamma=0.95, differentiable=True)
    found.sum().backward()
    assert given["reward"].grad is not None
    return found.detach()


def on_jax(trace: Any) -> Any:
    jax = pytest.importorskip("jax")
    import offtrace.returns.jax.backend  # noqa: F401 (traces are pytrees from here on)

    with jax.enable_x64(True):
        return np.asarray(_program()(trace, {n: jax.numpy.asarray(a) for n, a in GIVEN.items()}))


@cache
def _program() -> Any:
    """Of rules that differ by numbers only, JAX makes one program."""
    import jax

    return jax.jit(lambda trace, given: ot.targets(trace, **given, gamma=0.95))


def on_triton(trace: Any) -> Any:
    import torch

    cuda = pytest.importorskip("offtrace.returns.torch.cuda")
    import triton_interpreter  # noqa: F401

    x = {**_tensors(), "gamma": 0.95, "valid": None}
    x = {n: a.view(torch.uint8) if n in ("terminated", "truncated") else a for n, a in x.items()}
    return cuda.correct(trace, x, None, add_q=False)[0]


def each(backend: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """What a backend makes of every operation, a rule for each."""
    return lambda make: [backend(make(formula)) for formula in OPERATIONS.values()]


def by_number(backend: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """The same where a rule costs a compilation. A ratio that is no array, as the last one of all, is a rule by itself too."""

    def call(make: Any) -> list[Any]:
        rule, parameter = make(one_of), "lam" if make is step_of else "c"
        found = [backend(dataclasses.replace(rule, **{parameter: i / 32})) for i in range(len(OPERATIONS))]
        return found if make is step_of else [*found[:-1], backend(make(OPERATIONS["a constant"]))]

    return call


@pytest.mark.parametrize(
    "backend",
    [by_number(on_numpy), by_number(on_torch), by_number(on_torch_with_gradient), each(on_triton), by_number(on_jax)],
    ids=["numpy", "torch", "torch with gradient", "triton", "jax"],
)
@pytest.mark.parametrize("make", [rule_of, step_of], ids=["factors", "step"])
def test_every_operation_on_every_backend(make: Any, backend: Any) -> None:
    for (name, formula), made in zip(OPERATIONS.items(), backend(make), strict=True):
        np.testing.assert_allclose(made, by_hand(formula), rtol=1e-13, err_msg=name)


def test_rules_of_the_same_lines_are_one() -> None:
    for make in (rule_of, step_of):
        for c in (0.1, 0.3, 0.7):
            formula: Any = lambda xp, pi, mu, rho, _, c=c: xp.minimum(c, rho) * c  # noqa: E731
            assert make(formula).traced is make(formula).traced
            np.testing.assert_allclose(on_numpy(make(formula)), by_hand(formula), rtol=1e-13)


def test_only_so_many_rules_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "KEPT", 5)
    monkeypatch.setattr(symbols, "_traced", {})
    monkeypatch.setattr(symbols, "_printed", {})
    for i in range(20):
        _ = rule_of(lambda xp, pi, mu, rho, c, i=i: 0.01 * i * rho).traced
    assert len(symbols._traced) == len(symbols._printed) == 5


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "if": (lambda xp, pi, mu, rho, c: 1.0 if rho > 1.0 else 0.5, r"branches.*xp\.where"),
    "min": (lambda xp, pi, mu, rho, c: min(rho, 1.0), r"branches.*xp\.minimum"),
    "a chain": (lambda xp, pi, mu, rho, c: xp.where(0.0 < rho < 1.0, 0.1, 0.2), r"branches.*xp\.where"),
    "math.sqrt": (lambda xp, pi, mu, rho, c: math.sqrt(rho), r"functions of math.*xp\.sqrt"),
    "np.sqrt": (lambda xp, pi, mu, rho, c: np.sqrt(rho), r"np\.sqrt.*xp\.sqrt"),
    "np.where": (lambda xp, pi, mu, rho, c: np.where(rho > 1.0, 0.1, 0.2), r"np\.where.*xp\.where"),
    "xp.clip": (lambda xp, pi, mu, rho, c: xp.clip(rho, 0.0, 1.0), r"xp\.clip.*xp\.minimum"),
    "a method": (lambda xp, pi, mu, rho, c: rho.sum(), r"\.sum of an argument"),
    "%": (lambda xp, pi, mu, rho, c: rho % 2.0, "uses % on an argument"),
    "& of numbers": (lambda xp, pi, mu, rho, c: xp.where(rho & 1, 0.1, 0.2), "want a comparison"),
    "a text": (lambda xp, pi, mu, rho, c: "0.5", "neither a number nor"),
    "an index": (lambda xp, pi, mu, rho, c: rho[0], "takes an argument apart"),
}


@pytest.mark.parametrize(("formula", "message"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("make", [rule_of, step_of], ids=["factors", "step"])
def test_what_some_backend_has_not_is_refused_when_the_rule_is_made(make: Any, formula: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        make(formula)
    assert "HistoryTrace" in str(caught.value)
    assert ("Formula.factors" if make is rule_of else "the step of 'custom'") in str(caught.value)


@pytest.mark.parametrize("trace", BUILT_IN, ids=name_of)
def test_the_printed_lines_are_the_rule(trace: ot.Trace) -> None:
    rng = np.random.default_rng(0)
    pi, mu = rng.uniform(0.01, 1.0, (2, 20))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = trace.traced.call(np, pi, mu, pi / mu, *trace.parameters)
        wanted = trace.factors(np, pi, mu, pi / mu, *trace.parameters)
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, right)


def test_a_step_must_give_back_its_carry() -> None:
    with pytest.raises(TypeError, match="its carry is 2 numbers"):
        StepTrace(lambda xp, carry, now: (carry[0], carry[1]), carry=(1.0, 2.0))
    with pytest.raises(TypeError, match="a carry and β"):
        StepTrace(lambda xp, carry, now: carry)


def test_a_language_is_a_printer() -> None:
    """What is computed twice is one line; the rest is Python unless it is overridden."""

    class Shouting(symbols.Printer):
        def function(self, name: str) -> str:
            return name.upper()

    lines = ot.RBIS(0.9).traced.lines
    body, results = Shouting().body(lines.results)
    assert body == "    v0 = (p0 > 0.0)\n    v1 = WHERE(v0, p0, 1.0)\n    v2 = (rho / v1)\n"
    assert results == ["p0", "v2", "1.0"]
