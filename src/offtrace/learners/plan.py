"""A method and its trace as compiled loops take them: numbers, and the rule's lines printed as one small compiled function."""

from __future__ import annotations

import ctypes
import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

import numba
import numpy as np
from numba import cfunc, types

from offtrace.learners.acting import Policies
from offtrace.learners.arrays import Floats
from offtrace.learners.eligibility import FORGET, Sparse
from offtrace.learners.memory import Features, Settings
from offtrace.learners.methods.base import TRANSITION, Method, Store, Vectors
from offtrace.traces import History, OneStep, Trace
from offtrace.traces.symbols import NOW, Printer, Traced, definition, function

FOR_EVER = 2**62
NUMBER, WHOLE = types.float64, types.int64
_ROW, _TABLE = types.Array(NUMBER, 1, "C"), types.Array(NUMBER, 2, "C")
FACTORS = types.UniTuple(NUMBER, 3)(NUMBER, NUMBER, NUMBER, _TABLE, WHOLE)
"""factors(π, μ, ρ, parameters, row) → decay, ratio, cap."""
CUSTOM = NUMBER(_TABLE, WHOLE, NUMBER, NUMBER, NUMBER, NUMBER, WHOLE, WHOLE)
"""custom(carries, row, π, μ, λ, lag, the start's pair, pair) → β; the carry is changed in place."""
_SPARSE = types.NamedTuple((types.Array(WHOLE, 1, "C"), _ROW), Sparse)
_STORE = types.NamedTuple((_ROW, _TABLE, _TABLE, types.Array(WHOLE, 1, "C"), _ROW, _ROW), Store)
_VECTORS = types.NamedUniTuple(_SPARSE, len(Vectors._fields), Vectors)
STEP = types.void(numba.from_dtype(TRANSITION), _STORE, _VECTORS)
"""The signature of `Method.step`."""


class Rule(NamedTuple):
    """What the eligibility vector is told of a rule, besides its functions."""

    recursive: bool
    horizon: int
    forget: float
    """A start that has less weight than this, of discounts and decays, is dropped."""
    log_forget: tuple[float, float]
    lags: Floats
    """Bounds of β by lag, where there are some."""
    parameters: Floats
    """[1, n], or [pairs, n] where they differ from pair to pair."""
    lam: float
    """λ of a custom step."""


class Plan(NamedTuple):
    """The trace, and whether the method has a step of its own."""

    numbers: Rule
    first: Floats
    """What a custom step keeps of a new start."""
    per_decision: bool
    """Whether the eligibility vector is kept as it is."""
    grouped: bool
    """Whether groups of starts are kept."""
    share: float
    """The policy of δ is share·π + (1 − share)·μ: see `Trace.target_share`."""
    greedy: bool
    """Whether the rule reads π of the greedy policy: see `Rule.needs_greedy`."""
    history: bool
    """Whether what a custom step keeps of a start is π and μ there."""
    tells_pair: bool
    """Whether the rule is told where the starts come to, for a custom step, and not by which pair."""
    bound: float
    """On state values δ carries min(bound, ρ): see `Trace.delta_bound`."""
    uncorrected: bool
    """Whether later steps bootstrap from v(s') alone, without their q: see `UncorrectedLearner`."""
    sampled: bool
    """Whether δ has the value of the next action taken, not the mean over all: see `Method.sampled`."""
    expects: bool
    """Whether the method's own step is told Σ_a π(a|s) q(s, a): see `Method.expects`."""
    passes_on: bool
    """Whether that step is told what goes on, on action values: see `Method.passes_on`."""


class Functions(NamedTuple):
    """The compiled functions of a rule. They are arguments of loops by themselves: in a tuple, each call would take longer."""

    factors: CompiledFunction | None
    """The rule's three factors, if it is not a custom one."""
    custom: CompiledFunction | None
    """The step of a custom trace."""


class Task(NamedTuple):
    """All that a loop is told, but for the environment."""

    features: Features
    policies: Policies
    settings: Settings
    plan: Plan


class CompiledFunction(types.WrapperAddressProtocol):
    """A function that is compiled for one signature, as compiled loops take it: by its address."""

    def __init__(self, function: Callable[..., object], signature: Any, **options: object) -> None:
        self._signature, self._function = signature, function
        self._compiled = cast(Any, cfunc)(signature, nopython=True, error_model="numpy", **options)(function)

    def __call__(self, *arguments: object) -> object:
        """What the function returns, by Python: with NUMBA_DISABLE_JIT=1 the loop runs as Python."""
        return self._function(*arguments)

    def __wrapper_address__(self) -> int:
        return self._compiled.address

    def signature(self) -> Any:
        """Numba's type of it."""
        return self._signature


def functions_of(method: Method, past: Past | None) -> Functions:
    """The functions of a method's trace; `past` is what a HistoryTrace has seen."""
    trace = _trace_of(method)
    if past is not None:
        return Functions(None, past.step)
    if trace.form == "step":
        return Functions(None, _custom(trace.traced))
    return Functions(_factors(trace.traced), None)


def _trace_of(method: Method) -> Trace:
    return method.trace if method.uses_trace else OneStep()


def plan_of(method: Method, shape: tuple[int, int] | None) -> Plan:
    """The plan of a method. `shape` is [S, A] of a table."""
    trace = _trace_of(method)
    on_states = method.values == "state"
    lags = np.array(trace.lag_bound or (), dtype=np.float64)
    alone = trace.custom or trace.horizon is not None or len(lags) > 0
    per_decision = trace.per_decision and not alone
    if method.passes_on and not per_decision:
        raise TypeError(f"{method.title} needs a trace with one coefficient for each decision; {trace.title} is not")
    horizon = trace.horizon or FOR_EVER
    if len(lags) and lags[-1] == 0.0:
        horizon = min(horizon, 1 + int(np.max(np.nonzero(lags)[0] + 1, initial=0)))
    carry: float | tuple[float, ...] = getattr(trace, "carry", 1.0)
    largest = trace.largest
    return Plan(
        numbers=Rule(
            recursive=trace.recursive,
            horizon=horizon,
            forget=max(1e-18 / largest, 1e-150),
            log_forget=tuple(float(np.log(max(f / largest, 1e-150))) for f in (1e-18, FORGET)),  # pyright: ignore[reportArgumentType]
            lags=lags,
            parameters=np.ones((1, 1)) if trace.custom else _parameters(trace, shape),
            lam=float(getattr(trace, "lam", 0.0)) if trace.form == "step" else 0.0,
        ),
        per_decision=per_decision,
        grouped=trace.recursive and not (per_decision or alone),
        share=float(trace.target_share),
        greedy=trace.needs_greedy and not on_states,  # there π itself is greedy: see `arguments.policies_of`
        first=np.array((1.0, 1.0) if trace.form == "history" else carry, dtype=np.float64).reshape(-1),
        history=trace.form == "history",
        tells_pair=trace.custom,
        bound=float(np.min(trace.delta_bound)),
        uncorrected=method.uncorrected,
        sampled=method.sampled,
        expects=method.expects,
        passes_on=method.passes_on,
    )


def _parameters(trace: Trace, shape: tuple[int, int] | None) -> Floats:
    """[1, n], or [S·A, n] where one of them is an array [S, A]."""
    given = trace.parameters
    arrays = [p for p in given if np.ndim(p)]
    if not arrays:
        return np.array([[float(p) for p in given] or [0.0]])
    if shape is None or any(np.shape(p) != shape for p in arrays):
        wanted = "no arrays with features" if shape is None else f"one number for each pair, {list(shape)}"
        raise ValueError(f"{trace.title} in a learner needs {wanted}, got an array of shape {np.shape(arrays[0])}")
    return np.ascontiguousarray(np.stack([np.broadcast_to(p, shape).ravel() for p in given], axis=1), dtype=np.float64)


class _Scalars(Printer):
    """Lines on numbers, as Numba compiles them best."""

    def operation(self, operation: str, *parts: str) -> str:
        match operation:
            case "where":
                return f"({parts[1]} if {parts[0]} else {parts[2]})"
            case "minimum":
                return f"({parts[0]} if {parts[0]} < {parts[1]} else {parts[1]})"
            case "maximum":
                return f"({parts[0]} if {parts[0]} > {parts[1]} else {parts[1]})"
            case _:
                return super().operation(operation, *parts)

    def function(self, name: str) -> str:
        return f"np.{name}"


@cache
def _factors(traced: Traced) -> CompiledFunction:
    """The three factors of a rule."""
    lines = traced.lines
    names = {name: f"p[row, {i}]" for i, name in enumerate(lines.inputs[3:])}
    body, results = _Scalars(names).body(lines.results)
    text = definition("factors", ("pi", "mu", "rho", "p", "row"), body, ", ".join(f"float({r})" for r in results))
    return CompiledFunction(function("factors", text, {"np": np}), FACTORS)


@cache
def _custom(traced: Traced) -> CompiledFunction:
    """The step of a custom trace."""
    lines = traced.lines
    carries = lines.inputs[: -len(NOW)]
    body, (*after, beta) = _Scalars().body(lines.results)
    before = "".join(f"    {name} = c[row, {i}]\n" for i, name in enumerate(carries))
    kept = "".join(f"    c[row, {i}] = {name}\n" for i, name in enumerate(after))
    arguments = ("c", "row", "pi", "mu", "lam", "lag", "start_pair", "pair")
    text = definition("step", arguments, f"{before}    rho = pi / mu\n{body}{kept}", f"float({beta})")
    return CompiledFunction(function("step", text, {"np": np}), CUSTOM)


@cache
def own_step(step: Callable[..., object]) -> CompiledFunction:
    """A method's step; it changes arrays in place."""
    return CompiledFunction(step, STEP, fastmath={"contract"})


def checked_step(method: Method) -> Callable[..., object]:
    """The method's step, which earlier versions called with other arguments."""
    given = method.step.__code__
    if given.co_argcount != 3 or given.co_flags & inspect.CO_VARARGS:
        raise TypeError(
            f"{type(method).__name__}.step takes {', '.join(given.co_varnames[: given.co_argcount])}: it must take (t, m, x), "
            "the step, what the learner keeps (m.θ, m.further, m.numbers, …) and its vectors (x.e, x.φ, x.φ_next, …)"
        )
    return method.step


class _ByHistory(Protocol):
    """A trace whose form is "history"."""

    reads: tuple[str, ...]

    @property
    def history_form(self) -> Callable[[History], float]: ...


class Past:
    """What one learner's `HistoryTrace`, a Python function, has seen of the episode, and its step, which calls that function.

    The loop asks for β once for each live start, the oldest first, and tells what it would tell a compiled step. Those calls
    hold the whole past: at every step the youngest start has lag 1, so what was not seen before is seen now, and a lag that is
    not smaller than the last one means a new step. Only π and μ of the start itself come with the start.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = cast(_ByHistory, trace)
        self.error: BaseException | None = None
        self.steps = np.empty((0, 3))
        """[n, 3]: π, μ and pair of the last n steps."""
        self.lag = 1
        number, whole = ctypes.c_double, ctypes.c_int64
        call = ctypes.CFUNCTYPE(number, *(number,) * 5, whole, whole)(self._beta)

        def step(carry, row, π, μ, lam, lag, start, pair):
            return call(carry[row, 0], carry[row, 1], π, μ, lag, start, pair)

        self.step = CompiledFunction(step, CUSTOM)

    def _beta(self, π_k: float, μ_k: float, π: float, μ: float, lag: float, start: int, pair: int) -> float:
        try:
            n = int(lag)
            if n >= self.lag:
                self.steps = np.vstack([self.steps[len(self.steps) + 1 - n :], [π, μ, pair]])
            self.lag = n
            seen = np.vstack([[π_k, μ_k, start], self.steps[len(self.steps) - n :]])
            pi, mu, pairs = seen.T
            every = {"pi": pi, "mu": mu, "rho": pi / mu, "pair": pairs.astype(np.int64)}
            given = (every[name] if name in self.trace.reads else None for name in History._fields)
            return self.trace.history_form(History(*given))
        except BaseException as error:  # raised again when the loop has come back
            self.error = error
            return math.nan
