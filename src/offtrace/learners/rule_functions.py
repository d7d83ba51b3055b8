"""What a compiled loop needs of a trace and a method: numbers, and the rule's lines printed as one small compiled function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numba
import numpy as np
from numba import cfunc, types

from offtrace.learners.arrays import Floats
from offtrace.learners.eligibility import FORGET, Sparse
from offtrace.learners.methods.base import TRANSITION, Method, Store, Vectors
from offtrace.traces import History, OneStep, Trace
from offtrace.traces.symbols import NOW, Printer, Traced, definition, function

NO_HORIZON = 2**62
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

compile_function = cast(Any, cfunc)
"""For one signature. Loops take such functions as arguments, so that a new rule does not compile the loop again."""


def trace_of(method: Method) -> Trace:
    """The trace whose eligibility vector the loop computes."""
    return method.trace if method.uses_trace else OneStep()


def rule_functions(method: Method) -> tuple[object, object]:
    """The rule's three factors, or its custom step; the other is None."""
    trace = trace_of(method)
    if trace.form == "history":
        return None, PastSteps(trace).step
    return (None, _custom(trace.traced)) if trace.form == "step" else (_factors(trace.traced), None)


def rule_settings(method: Method) -> tuple[dict[str, float], Floats]:
    """The fields of SETTINGS that a method and its trace determine, and the bounds of β by lag."""
    trace, on_states = trace_of(method), method.values == "state"
    lags = np.array(trace.lag_bound or (), dtype=np.float64)
    single = trace.custom or trace.horizon is not None or len(lags) > 0
    per_decision = trace.per_decision and not single
    if method.passes_on and not per_decision:
        raise TypeError(f"{method.title} needs a trace with one coefficient for each decision; {trace.title} is not")
    horizon = trace.horizon or NO_HORIZON
    if len(lags) and lags[-1] == 0.0:
        horizon = min(horizon, 1 + int(np.max(np.nonzero(lags)[0] + 1, initial=0)))
    log_forget_w, log_forget_x = (float(np.log(max(f / trace.largest, 1e-150))) for f in (1e-18, FORGET))  # pyright: ignore[reportArgumentType]
    numbers: dict[str, float] = {
        "on_states": on_states,
        "per_decision": per_decision,
        "grouped": trace.recursive and not (per_decision or single),
        "recursive": trace.recursive,
        "horizon": horizon,
        "forget": max(1e-18 / trace.largest, 1e-150),
        "log_forget_w": log_forget_w,
        "log_forget_x": log_forget_x,
        "lam": float(getattr(trace, "lam", 0.0)) if trace.form == "step" else 0.0,
        "share": float(trace.target_share),
        "bound": float(np.min(trace.delta_bound)),
        "greedy": trace.needs_greedy and not on_states,  # on states π itself is greedy: see `arguments.policies_of`
        "history": trace.form == "history",
        "custom": trace.custom,
    }
    return numbers | {name: getattr(method, name) for name in ("uncorrected", "sampled", "expects", "passes_on")}, lags


def first_carry(method: Method) -> Floats:
    """[c]: what a custom step carries from a new start."""
    trace = trace_of(method)
    carry: float | tuple[float, ...] = (1.0, 1.0) if trace.form == "history" else getattr(trace, "carry", 1.0)
    return np.array(carry, dtype=np.float64).reshape(-1)


def parameters(method: Method, shape: tuple[int, int] | None) -> Floats:
    """The parameters of the factors, [1, n], or [S·A, n] where one of them is an array [S, A]. `shape` is [S, A] of a table."""
    trace = trace_of(method)
    given = () if trace.custom else trace.parameters
    arrays = [p for p in given if np.ndim(p)]
    if not arrays:
        return np.array([[float(p) for p in given] or [1.0 if trace.custom else 0.0]])
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
def _factors(traced: Traced) -> object:
    """The three factors of a rule."""
    lines = traced.lines
    names = {name: f"p[row, {i}]" for i, name in enumerate(lines.inputs[3:])}
    body, results = _Scalars(names).body(lines.results)
    text = definition("factors", ("pi", "mu", "rho", "p", "row"), body, ", ".join(f"float({r})" for r in results))
    return compile_function(FACTORS, error_model="numpy")(function("factors", text, {"np": np}))


@cache
def _custom(traced: Traced) -> object:
    """The step of a custom trace."""
    lines = traced.lines
    carries = lines.inputs[: -len(NOW)]
    body, (*after, beta) = _Scalars().body(lines.results)
    before = "".join(f"    {name} = c[row, {i}]\n" for i, name in enumerate(carries))
    stored = "".join(f"    c[row, {i}] = {name}\n" for i, name in enumerate(after))
    arguments = ("c", "row", "pi", "mu", "lam", "lag", "start_pair", "pair")
    text = definition("step", arguments, f"{before}    rho = pi / mu\n{body}{stored}", f"float({beta})")
    return compile_function(CUSTOM, error_model="numpy")(function("step", text, {"np": np}))


@cache
def _own_step(step: Callable[..., object]) -> object:
    return compile_function(STEP, error_model="numpy", fastmath={"contract"})(step)


def own_step(method: Method) -> object:
    """The method's step, compiled."""
    given = method.step.__code__
    if given.co_argcount != 3 or given.co_flags & inspect.CO_VARARGS:
        raise TypeError(
            f"{type(method).__name__}.step takes {', '.join(given.co_varnames[: given.co_argcount])}: it must take (t, m, x), "
            "the step, what the learner keeps (m.θ, m.further, m.numbers, …) and its vectors (x.e, x.φ, x.φ_next, …)"
        )
    return _own_step(method.step)


class PastSteps:
    """A `HistoryTrace`, which is a Python function, as a custom step, and the steps of the episode that it is given.

    The loop, which is then Python too, calls it once for each live start, the oldest first. So at every step the youngest start
    has lag 1, what was not seen before is seen now, and a lag that is not smaller than the last one means a new step. Only π
    and μ of the start itself come with the start.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace: Any = trace
        self.steps = np.empty((0, 3))
        """[n, 3]: π, μ and pair of the last n steps."""
        self.lag = 1

    def step(
        self, carry: Floats, row: int, π: float, μ: float, lam: float, lag: float, start_pair: int, pair: int
    ) -> float:
        """β of the start in this row."""
        n = int(lag)
        if n >= self.lag:
            self.steps = np.vstack([self.steps[len(self.steps) + 1 - n :], [π, μ, pair]])
        self.lag = n
        seen = np.vstack([[*carry[row], start_pair], self.steps[len(self.steps) - n :]])
        pi, mu, pairs = seen.T
        every = {"pi": pi, "mu": mu, "rho": pi / mu, "pair": pairs.astype(np.int64)}
        given = (every[name] if name in self.trace.reads else None for name in History._fields)
        return self.trace.history_form(History(*given))
