"""A method and its trace as the compiled loop takes them: a plan, and pointers to the rule, to its step and to the method's.

One signature for all rules means one compiled loop for all of them; a rule by itself compiles in a fraction of a second.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import register_jitable

from offtrace.learners.core import rule_math
from offtrace.learners.core.addressed import Addressed
from offtrace.learners.core.called import Called
from offtrace.learners.core.compiling import INSIDE, UNCOUNTED, Function, compiled_for, njit
from offtrace.learners.core.eligibility import kept as eligibility
from offtrace.learners.core.eligibility.groups_of_starts import advance_groups_of, enter_groups_of
from offtrace.learners.core.eligibility.kept import FORGET, GROUPS, LINEAR, VISITS
from offtrace.learners.core.history_callback import Past
from offtrace.learners.core.loop_memory import TRANSITION
from offtrace.learners.core.loop_settings import REPLAY, Plan
from offtrace.learners.core.pointed import Pointed
from offtrace.learners.core.rarer_learning import learns_of, otherwise_of, replay_of
from offtrace.learners.core.record_arrays import Floats
from offtrace.learners.methods.base import Method, Sparse, Store, Vectors
from offtrace.traces import OneStep, Step, Trace

FOR_EVER = 2**62
ROW = types.Array(types.float64, 1, "C")
FACTORS = types.UniTuple(types.float64, 3)(types.float64, types.float64, types.float64, ROW)
STEP = types.float64(ROW, *(types.float64,) * 5, types.int64, types.int64)
_SPARSE = types.NamedTuple((types.Array(types.int64, 1, "C"), ROW), Sparse)
_ROWS = types.Array(types.float64, 2, "C")
_STORE = types.NamedTuple((ROW, _ROWS, _ROWS, types.Array(types.int64, 1, "C"), ROW, ROW), Store)
_VECTORS = types.NamedUniTuple(_SPARSE, len(Vectors._fields), Vectors)
OWN_STEP = types.void(numba.from_dtype(TRANSITION), _STORE, _VECTORS)


class Pointers(NamedTuple):
    """Compiled functions that the loop is given, in the order in which it takes them. What is not needed is never called."""

    factors: Called
    """The rule: see `_factors`."""
    custom: Called
    """The step of a custom trace: see `_step`."""
    step: Called
    """The method's own: see `Method.step`."""


def plan(method: Method, shape: tuple[int, int] | None, past: Past | None = None) -> tuple[Plan, Pointers]:
    """The plan of a method. `shape` is [S, A] of a table; `past` is what a HistoryTrace has seen."""
    trace = method.trace if method.uses_trace else OneStep()
    custom, on_states = trace.custom, method.values == "state"
    lags = np.array(trace.lag_bound or (), dtype=np.float64)
    if custom or trace.horizon is not None or len(lags) or not (trace.per_decision or trace.recursive):
        way = VISITS
    else:
        way = LINEAR if trace.per_decision else GROUPS
    if method.passes_on and way != LINEAR:
        raise TypeError(f"{method.title} needs a trace with one coefficient for each decision; {trace.title} is not")
    reach = trace.horizon or FOR_EVER
    if len(lags) and lags[-1] == 0.0:
        reach = min(reach, 1 + int(np.max(np.nonzero(lags)[0] + 1, initial=0)))
    carry: float | tuple[float, ...] = getattr(trace, "carry", 1.0)
    largest = trace.largest
    old, small = (float(np.log(max(f / largest, 1e-150))) for f in (1e-18, FORGET))
    made = Plan(
        way=way,
        custom=custom,
        recursive=trace.recursive,
        share=float(trace.target_share),
        greedy=trace.needs_greedy and not on_states,  # there π itself is greedy: see `arguments.as_method`
        reach=reach,
        forget=max(1e-18 / largest, 1e-150),
        log_forget=(old, small),
        lags=lags,
        parameters=np.ones((1, 1)) if custom else _parameters(trace, shape),
        lam=float(getattr(trace, "lam", 0.0)) if trace.form == "step" else 0.0,
        first=np.array((1.0, 1.0) if trace.form == "history" else carry).reshape(-1),
        history=trace.form == "history",
        plain=method.in_loop and not (on_states or method.sampled or method.uncorrected),
        bound=float(np.min(trace.delta_bound)),
        uncorrected=method.uncorrected,
        sampled=method.sampled,
        own_step=not method.in_loop,
        traces=len(method.traces),
        expects=method.expects,
        passes_on=method.passes_on,
        numbers=np.array(method.numbers, dtype=np.float64),
        **_groups(way == GROUPS),
    )
    step = _no_own_step() if method.in_loop else _own_step(_checked_step(method))
    if past is not None:
        return made, Pointers(_no_factors(), past.step, step)
    if trace.form == "step":
        return made, Pointers(
            _no_factors(), _step(trace.traced.call, len(carry) if isinstance(carry, tuple) else 0), step
        )
    return made, Pointers(_factors(trace.traced.call, len(trace.parameters)), _no_step(), step)


def _parameters(trace: Trace, shape: tuple[int, int] | None) -> Floats:
    """[1, n], or [S·A, n] where one of them is an array [S, A]."""
    given = trace.parameters
    arrays = [p for p in given if np.ndim(p)]
    if not arrays:
        return np.array([[float(p) for p in given] or [0.0]])
    if shape is None or any(np.shape(p) != shape for p in arrays):
        wanted = "no arrays with features" if shape is None else f"one number for each pair, {list(shape)}"
        raise ValueError(f"{trace.title} in a learner needs {wanted}, got an array of shape {np.shape(arrays[0])}")
    return np.stack([np.broadcast_to(p, shape).ravel() for p in given], axis=1).astype(np.float64)


@cache
def _groups(used: bool) -> dict[str, Called]:
    """What keeps groups of starts, for a plan; where it is not used, functions that do nothing."""
    kept = Pointed(eligibility.as_seen(eligibility.empty(GROUPS, 1, 1, 1, 1, 1, 1), 0))
    entering = kept, np.zeros(1, np.int64), np.zeros(1)
    advancing = kept, 0.0, 0.0, 0.0, 0.0, (0.0, 0.0)
    return {
        "enter_groups": Called(compiled(enter_groups_of if used else _no_entering, *entering, **INSIDE)),
        "advance_groups": Called(compiled(advance_groups_of if used else _no_advance, *advancing, **INSIDE)),
    }


def _no_entering(digest: int) -> Function:
    return lambda kept, weights, numbers: None


def _no_advance(digest: int) -> Function:
    return lambda kept, discount, decay, ratio, cap, log_forget: None


@cache
def _tuple_of(n: int) -> Function:
    """A compiled function that makes a tuple of the first n numbers of an array."""
    if n == 0:
        return register_jitable(lambda row: ())
    before, last = _tuple_of(n - 1), n - 1
    return register_jitable(lambda row: (*before(row), row[last]))


@cache
def _factors(rule: Function, n: int) -> Called:
    """factors(π, μ, ρ, parameters) → decay, ratio, cap."""
    compiled, numbers = register_jitable(error_model="numpy")(rule), _tuple_of(n)

    @njit(FACTORS, error_model="numpy", **INSIDE)
    def factors(π, μ, ρ, p):
        decay, ratio, cap = compiled(rule_math, π, μ, ρ, *numbers(p))
        return float(decay), float(ratio), float(cap)

    return Called(factors)


@cache
def _step(step: Function, n: int) -> Called:
    """step(carry, π, μ, ρ, λ, lag, the start's pair, pair) → β; the carry is changed in place. n = 0: it is one number."""
    compiled, numbers = njit(error_model="numpy", **INSIDE)(step), _tuple_of(n)
    if n == 0:

        @njit(STEP, error_model="numpy", **INSIDE)
        def one(carry, π, μ, ρ, lam, lag, start, pair):
            carry[0], β = compiled(rule_math, carry[0], Step(π, μ, ρ, lam, lag, start, pair))
            return float(β)

        return Called(one)

    @njit(STEP, error_model="numpy", **INSIDE)
    def many(carry, π, μ, ρ, lam, lag, start, pair):
        new, β = compiled(rule_math, numbers(carry), Step(π, μ, ρ, lam, lag, start, pair))
        for i, c in enumerate(new):
            carry[i] = c
        return float(β)

    return Called(many)


def _checked_step(method: Method) -> Function:
    """The method's step, which earlier versions called with other arguments."""
    given = method.step.__code__
    if given.co_argcount != 3 or given.co_flags & inspect.CO_VARARGS:
        raise TypeError(
            f"{type(method).__name__}.step takes {', '.join(given.co_varnames[: given.co_argcount])}: it must take (t, m, x), "
            "the step, what the learner keeps (m.θ, m.further, m.numbers, …) and its vectors (x.e, x.φ, x.φ_next, …)"
        )
    return method.step


@cache
def _own_step(step: Function) -> Called:
    """A method's step; it changes arrays in place."""
    return Called(njit(OWN_STEP, nogil=True, fastmath={"contract"}, **INSIDE, **UNCOUNTED)(step))


@cache
def _no_factors() -> Called:
    return Called(njit(FACTORS, **INSIDE)(lambda π, μ, ρ, p: (0.0, 0.0, 0.0)))


@cache
def _no_step() -> Called:
    return Called(njit(STEP, **INSIDE)(lambda carry, π, μ, ρ, lam, lag, start, pair: 0.0))


@cache
def _no_own_step() -> Called:
    return Called(njit(OWN_STEP, **INSIDE)(lambda t, m, x: None))


_loops: dict[tuple[object, ...], Function] = {}
_compiling = threading.Lock()


def compiled(loop_of: Callable[[int], Function], *arguments: object, **options: object) -> Function:
    """A loop, compiled for arguments like these. Functions are given by their address, so it can stay on disk."""
    key = (loop_of, *map(_kind, arguments))
    with _compiling:  # threads that begin together want the same loop
        if key not in _loops:
            _loops[key] = compiled_for(tuple(map(numba.typeof, arguments)), loop_of, **options)
        return _loops[key]


def rarer_parts(
    update: int, made: Plan, pointers: Pointers, features: Pointed, policies: Sequence[Pointed], settings: Pointed,
    m: Pointed, kept: Pointed, in_python: bool,
) -> tuple[Called, Called, Called]:  # fmt: skip
    """`learns_of`, `replay_of` and `otherwise_of` for a loop, or what stands in their place where it does not call them.

    `in_python`: the loop calls an environment in Python, and leaves all learning to them.
    """
    factors, custom, step = pointers
    replays, lives = update == REPLAY, update != REPLAY and (in_python or not made.plain)
    first, common = (Pointed(made), factors, custom), (features, settings, *policies[:2], m, kept)
    learning = *first, features, settings, m, kept, 0.0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0
    learns = Called(compiled(learns_of if lives or not made.plain else _no_learning, *learning, **INSIDE))
    replay = compiled(replay_of if replays else _no_replay, *first, learns, *common, **INSIDE)
    otherwise = compiled(
        otherwise_of if lives else _no_other_way, *first, step, learns, *common, 0.0, 0, False, **INSIDE
    )
    return learns, Called(replay), Called(otherwise)


def _no_learning(digest: int) -> Function:
    return lambda plan, factors, custom, features, settings, m, kept, discount, s, a, after, δ, shift, π, μ: True


def _no_replay(digest: int) -> Function:
    return lambda plan, factors, custom, learns, features, settings, behavior, target, m, kept: True


def _no_other_way(digest: int) -> Function:
    return lambda plan, factors, custom, step, learns, features, settings, behavior, target, m, kept, r, after, ends: 0


def _kind(given: object) -> object:
    """What tells its Numba type from others: `numba.typeof` takes as long as many steps."""
    return given.kind if isinstance(given, Addressed) else type(given)
