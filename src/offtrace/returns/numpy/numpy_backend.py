"""The NumPy backend: a trace and a checked trajectory → corrections, by the kernel that its normal form allows.

Other backends come here with the memory of arrays that lie on the host: `attempt`, `weights`.

    cap = ∞              reverse_recursion.py      O(T)
    recursive, cap ≤ 1   recursive_cap.py   O(T)             cap > 1: O(T log T)
    cap at read-out      cap_at_readout.py     O(T) as a rule, O(T log T) at worst; every_pair.py for short rows
    horizon, lag bound   every_pair.py      O(T n)
    custom               custom_traces.py      O(T²)

Rows are independent, and the kernels let go of the interpreter's lock: a large batch is shared among threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from offtrace._shared.cores import cores
from offtrace.arrays import BOOL, FLOATS, NumPyKind
from offtrace.returns.backend import Backend, UsualCall
from offtrace.returns.needed_arrays import bounded, decisions, needed, needed_on_states
from offtrace.returns.numpy import (
    cap_at_readout,
    compiled_pass,
    custom_traces,
    every_pair,
    given_factors,
    linear_pass,
    linear_state_pass,
    recursive_cap,
    rejected_rows,
    reverse_recursion,
    rule_rows,
    state_rows,
    uncorrected_returns,
    weight_rows,
)
from offtrace.returns.numpy.by_address import Kernel
from offtrace.returns.numpy.scratch_rows import NOT_BY_STEP, by_step, scratch
from offtrace.returns.numpy.whole_arrays import goes_on, probabilities
from offtrace.returns.weight_arrays import Criterion, Decisions, Weighing, agreed
from offtrace.traces import Factors, Rule, Trace
from offtrace.traces.arguments import as_state_rule, as_trace
from offtrace.traces.symbols import Traced
from offtrace.trajectory import (
    Trajectory,
    agree,
    explain_bad_value,
    first_index,
    laid_out,
    spell,
)

SHORT = 64  # up to this T a cap at read-out is cheapest by its definition (benchmarks/crossover.py)
PARALLEL, PARALLEL_CAPPED = 500_000, 30_000  # a batch of fewer steps is not worth waking a thread for
CORES = cores()


class NumPyBackend(NumPyKind, Backend[np.ndarray]):
    """NumPy arrays, and lists. Every value is looked at, since that is free here."""

    word, converter, differentiates = "NumPy array", "np.asarray", False
    xp, storable = np, tuple(map(np.dtype, (np.float16, np.float32, np.float64)))

    def trajectory(self, trace: Rule, arrays: Mapping[str, object]) -> Trajectory:
        """The arrays that the rule reads, checked."""
        return laid_out(agree(self, needed(self, trace, arrays)), bounded(trace))

    def correct(
        self, trace: Rule, arrays: Mapping[str, object], *, add_q: bool, differentiable: bool, check: bool | None
    ) -> np.ndarray:
        """q + Δ, or Δ."""
        x = self.trajectory(trace, arrays)
        out = attempt(trace, x, add_q=add_q)
        return explain_bad_value(x) if out is None else x.restore(out)

    def usual(self, call: UsualCall[np.ndarray]) -> np.ndarray | None:
        """q + Δ, or Δ, of a usual call; else None."""
        trace, _, _, reward, q, next_value, terminated, truncated, _, log_pi, log_mu, valid = call
        if not _are_plain((reward, q, next_value, log_pi, log_mu), (terminated, truncated, valid)):
            return None
        plan = plan_for(trace, reward.shape, reward.dtype)
        return None if plan is None else compute_usual(plan, call)

    def coefficients(self, trace: Trace, arrays: Mapping[str, object]) -> np.ndarray:
        """β_{k:t} of one trajectory [T] as [T, T]."""
        x = self.trajectory(trace, {**arrays, "gamma": 1.0})
        if len(x.shape) != 1:
            raise ValueError(f"coefficients takes one trajectory [T], got shape {x.shape}: pass one row")
        return weights(trace, x)

    def correct_states(
        self, trace: Trace, arrays: Mapping[str, object], *, differentiable: bool, check: bool | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Target, advantage and correction of state values."""
        x = laid_out(agree(self, needed_on_states(self, trace, arrays)), bounded(trace))
        made = attempt_on_states(trace, x)
        return explain_bad_value(x) if made is None else restored_states(x, made)

    def usual_states(
        self,
        trace: Trace | None,
        lam: float | None,
        rho_bar: float | None,
        c_bar: float | None,
        reward: np.ndarray,
        value: np.ndarray,
        next_value: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        gamma: float,
        log_pi: np.ndarray,
        log_mu: np.ndarray,
        valid: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Target, advantage and correction of a usual call; else None."""
        if value is None or next_value is None or log_pi is None or log_mu is None:
            return None
        if not _are_plain((reward, value, next_value, log_pi, log_mu), (terminated, truncated, valid)):
            return None
        shape, dtype = reward.shape, reward.dtype
        if len(shape) != 2 or (shape[1] == 1 and shape[0] > 1):
            return None
        try:
            plan = usual_state_plan(trace, lam, rho_bar, c_bar, shape[1])
        except TypeError:  # a rule that holds arrays has no hash; a wrong argument is refused later
            return None
        if plan is None:
            return None
        nothing, is_read = NOT_BY_STEP[dtype], NOT_BY_STEP[BOOL] if valid is None else valid
        read = reward, value, next_value, terminated, truncated, gamma, nothing, log_pi, log_mu, is_read
        made = _computed_on_states(plan, read, shape, dtype)
        if valid is not None and made is not None:
            for out in made:
                out[~valid] = 0.0
        return made

    def weights(self, trace: Trace, arrays: Mapping[str, object], how: Weighing, *, check: bool | None) -> np.ndarray:
        """The weight of each decision, in the wider dtype of the log-probabilities."""
        if how.process_group is not None:
            raise TypeError("process_group is one of torch.distributed: it goes with tensors")
        given = decisions(self, trace, arrays)
        dtype = np.result_type(*given.dtypes) if given.dtypes else np.dtype(np.float64)
        with np.errstate(over="ignore"):  # of a dtype with less range than the weights
            return weigh(trace, given, how).astype(dtype, copy=False)

    def reject(
        self, criteria: tuple[Criterion, ...], arrays: Mapping[str, object], *, check: bool | None
    ) -> np.ndarray:
        """Whether each decision is kept."""
        return rejected_rows.keep(criteria, agreed(self, self.storable, arrays))

    def as_numpy(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array

    def looks(self, check: bool | None, arrays: Mapping[str, object]) -> bool:
        """Always."""
        return True

    def take(self, array: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The entries of the last axis at indices [..., 1]."""
        return np.take_along_axis(array, index, -1)

    def cast(self, array: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        """The array in another dtype."""
        return array.astype(dtype, copy=False)

    def constant(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array


BACKEND = NumPyBackend()


def attempt(trace: Rule, x: Trajectory, *, add_q: bool) -> np.ndarray | None:
    """q + Δ, or Δ, [B, T]; None where a value is bad, which `explain_bad_value` then names. Invalid steps hold anything."""
    uncorrected = trace.uncorrected_return
    if uncorrected is not None:
        out = uncorrected_returns.of(uncorrected, x)
        return out if add_q or out is None else out - x.read("q")
    trace = as_trace(trace)
    if not trace.custom:
        return _by_compiled_pass(trace, x, add_q=add_q)
    out = custom_traces.correct(trace, x)
    return x.read("q") + out if add_q and out is not None else out


def attempt_on_states(trace: Trace, x: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """What `state_targets` gives, [B, T] each; None where a value is bad, which `explain_bad_value` then names."""
    if trace.custom:
        return state_rows.of_custom(trace, x)
    B, T = x.terminated.shape
    gamma, gammas, valid = by_step(x)
    read = x.reward, x.q, x.next_value, x.terminated, x.truncated, gamma, gammas, x.log_pi, x.log_mu, valid
    lam = _parameter(trace, trace.advantage_lam, (B, T), x.valid)
    plan = _state_plan(_plan_of(trace, B, T, x.valid), trace, lam)
    return _computed_on_states(plan, read, (B, T), x.dtype)


def restored_states(x: Trajectory, made: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three results in the shape and dtype that came in."""
    target, advantage, correction = map(x.restore, made)
    return target, advantage, correction


def weights(trace: Trace, x: Trajectory) -> np.ndarray:
    """β_{k:t} [T, T] of a trajectory of one row."""
    T, passes = x.terminated.shape[1], goes_on(x)[0].astype(float)
    valid = np.ones(T, bool) if x.valid is None else x.valid[0]
    if trace.custom:
        made = np.diag(valid.astype(float))
        if custom_traces.sweep(trace, x, np.zeros((1, T)), passes[None], matrix=made) is None:
            explain_bad_value(x)
    else:
        decay, ratio, cap = (factor[0] for factor in normal_form(trace, x))
        lags = lag_caps(trace, T)
        passes[:-1] *= decay[1:]
        made = given_factors.weights(passes, ratio, cap, every_pair.NO_LAGS if lags is None else lags, trace.recursive)
        made[~valid] = 0.0
    with np.errstate(over="ignore"):  # of float32, by importance sampling
        return made.astype(x.given_back or x.dtype, copy=False)


def weigh(
    trace: Trace, given: Decisions[np.ndarray], how: Weighing, merge: weight_rows.Merge | None = None
) -> np.ndarray:
    """The weights of decisions on the host, in float64; `merge` puts together what several processes have to be normalised by."""
    x = weight_rows.trajectory(given, bounded(trace))
    lags = lag_caps(trace, x.terminated.shape[1] + 1)
    made = weight_rows.weigh(
        lambda rows: normal_form(trace, rows),
        x,
        every_pair.NO_LAGS if lags is None else lags,
        trace.recursive,
        how,
        whole=trace.per_step,
        group=given.group,
        merge=merge,
    )
    return made.reshape(given.shape)


class Plan(NamedTuple):
    """How a rule is computed on rows of some length: all that does not depend on the arrays."""

    kernel: Kernel
    rule: int
    """The address of its own lines, which give what the kernel needs: decay · ratio where there is no cap."""
    factors: Callable[[], int]
    """The same for decay, ratio and cap."""
    reads: tuple[bool, bool, bool]
    """Whether these read π, μ and ρ."""
    numbers: np.ndarray
    """Its constants and its parameters that are numbers."""
    arrays: np.ndarray
    """Its parameters that are arrays, one after the other."""
    lags: np.ndarray
    """Its bounds by lag."""
    needs_pi: bool
    needs_mu: bool


def _by_compiled_pass(trace: Trace, x: Trajectory, *, add_q: bool) -> np.ndarray | None:
    B, T = x.terminated.shape
    gamma, gammas, valid = by_step(x)
    nothing = NOT_BY_STEP[x.dtype]
    log_pi, log_mu = nothing if x.log_pi is None else x.log_pi, nothing if x.log_mu is None else x.log_mu
    read = x.reward, x.q, x.next_value, x.terminated, x.truncated, gamma, gammas, log_pi, log_mu, valid
    return _computed(_plan_of(trace, B, T, x.valid), read, np.empty((B, T), x.dtype), add_q)


def _computed(plan: Plan, read: tuple[object, ...], out: np.ndarray, add_q: bool) -> np.ndarray | None:
    """q + Δ, or Δ, from the arrays in the order of the compiled passes; None where a value is bad."""
    B, T = out.shape
    kernel, rule, factors, reads, numbers, arrays, lags, _, _ = plan
    if kernel is reverse_recursion.KERNEL:
        linear = linear_pass.linear_rows()

        def some_rows(first: int, stop: int) -> int:
            return linear(rule, first, stop, *reads, numbers, arrays, add_q, *read, out)

        found = some_rows(0, B) if B * T < PARALLEL else _in_threads(some_rows, B)
        if found != compiled_pass.UNFINISHED:
            return None if found else out
        rule = factors()
    run = compiled_pass.correct_rows()

    def all_rows(sweep: int, finish: int) -> int:
        def rows(first: int, stop: int) -> int:
            return run(rule, sweep, finish, first, stop, *reads, numbers, arrays, lags, add_q, *read, *scratch(T), out)

        return rows(0, B) if B * T < PARALLEL_CAPPED else _in_threads(rows, B)

    return None if compiled_pass.by_kernel(kernel, all_rows) else out


class StatePlan(NamedTuple):
    """How a rule is computed on state values."""

    plan: Plan
    share: float
    """Of π in the policy that it evaluates."""
    bound: float
    """On the ratio that δ carries."""
    lam: float
    """How much of the next target an advantage takes."""
    lams: np.ndarray
    """The same where it is given by step; else empty."""
    parallel: int
    """Of how many steps on a batch is worth waking a thread for."""


def _state_plan(plan: Plan, trace: Trace, lam: float | np.ndarray) -> StatePlan:
    lam, lams = (0.0, lam) if isinstance(lam, np.ndarray) else (lam, NOT_BY_STEP[FLOATS[1]])
    parallel = PARALLEL if trace.per_decision else PARALLEL_CAPPED
    return StatePlan(plan, float(trace.target_share), float(trace.delta_bound), lam, lams, parallel)


def _computed_on_states(
    plan: StatePlan, read: tuple[object, ...], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The results, from the arrays in the order of the compiled passes; None where a value is bad."""
    (kernel, rule, factors, reads, numbers, arrays, lags, _, _), share, bound, lam, lams, parallel = plan
    B, T = shape
    made = np.empty(shape, dtype), np.empty(shape, dtype), np.empty(shape, dtype)
    if kernel is reverse_recursion.KERNEL:
        if not len(lams):
            linear = linear_state_pass.linear_rows()

            def some_rows(first: int, stop: int) -> int:
                return linear(rule, first, stop, *reads[:2], numbers, arrays, share, bound, lam, *read, *made)

            found = some_rows(0, B) if parallel > B * T else _in_threads(some_rows, B)
            if found != compiled_pass.UNFINISHED:
                return None if found else made
        rule = factors()
    run = state_rows.correct_rows()

    def all_rows(sweep: int, finish: int) -> int:
        def rows(first: int, stop: int) -> int:
            return run(
                rule, sweep, finish, first, stop, *reads[:2], numbers, arrays, lags, share, bound, lam, lams, *read, *scratch(T),
                *made,
            )  # fmt: skip

        return rows(0, B) if parallel > B * T else _in_threads(rows, B)

    return None if compiled_pass.by_kernel(kernel, all_rows) else made


def _plan_of(trace: Trace, B: int, T: int, valid: np.ndarray | None) -> Plan:
    """The plan of a rule, kept if it may be."""
    try:
        kept = usual_plan(trace, T)
    except TypeError:
        kept = None
    return _plan(trace, B, T, valid) if kept is None else kept


def _plan(trace: Trace, B: int, T: int, valid: np.ndarray | None = None) -> Plan:
    """The plan of a rule, which may hold arrays [T] or [B, T]."""
    lags = lag_caps(trace, T)
    parameters = [_parameter(trace, p, (B, T), valid) for p in trace.parameters]
    are_arrays = tuple(isinstance(p, np.ndarray) for p in parameters)
    kernel, factors = _kernel(trace, T, lags), partial(_rule, trace.traced, trace.reads, are_arrays)
    rule, constants = factors(kernel is reverse_recursion.KERNEL)
    numbers = np.array([*constants, *(p for p in parameters if not isinstance(p, np.ndarray))], np.float64)
    arrays = [p.ravel() for p in parameters if isinstance(p, np.ndarray)]
    reads = "pi" in trace.reads, "mu" in trace.reads, "rho" in trace.reads
    of_steps = np.concatenate(arrays) if arrays else every_pair.NO_LAGS
    bounds = every_pair.NO_LAGS if lags is None else lags
    return Plan(
        kernel, rule, lambda: factors(False)[0], reads, numbers, of_steps, bounds, trace.needs_pi, trace.needs_mu
    )


@lru_cache(1024)
def usual_plan(trace: object, T: int) -> Plan | None:
    """The plan of a rule that holds numbers only, from the last call with it; None for what a call must look at more closely.

    Its arguments are all that a plan depends on. A rule that holds arrays has no hash: that is a TypeError.
    """
    if not isinstance(trace, Trace) or trace.custom or trace.needs_greedy or trace.per_step:
        return None
    if not all(type(p) in (float, int) for p in trace.parameters):
        return None
    return _plan(trace, 1, T)


@lru_cache(1024, typed=True)  # a λ of True is an error, and one of 1.0 is not
def usual_state_plan(
    trace: Trace | None, lam: float | None, rho_bar: float | None, c_bar: float | None, T: int
) -> StatePlan | None:
    """The same on state values."""
    rule = as_state_rule(trace, {"lam": lam, "rho_bar": rho_bar, "c_bar": c_bar})
    plan = usual_plan(rule, T)
    return None if plan is None else _state_plan(plan, rule, float(rule.advantage_lam))


def _are_plain(reals: tuple[Any, ...], flags: tuple[Any, ...]) -> bool:
    """Whether arrays are all as compiled kernels take them: of one shape, in one piece, of one dtype or booleans.

    The first of each is there; None in the place of another means that it was not given.
    """
    first = reals[0]
    if type(first) is not np.ndarray or first.dtype not in FLOATS or 0 in first.shape:
        return False
    shape, dtype = first.shape, first.dtype
    for array in reals:
        if array is not None and not (
            type(array) is np.ndarray and array.dtype is dtype and array.shape == shape and array.flags.carray
        ):
            return False
    for array in flags:
        if array is not None and not (
            type(array) is np.ndarray and array.dtype is BOOL and array.shape == shape and array.flags.carray
        ):
            return False
    return flags[0] is not None and flags[1] is not None


def plan_for(trace: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Plan | None:
    """The plan of a usual call with arrays of this shape and dtype."""
    if dtype not in FLOATS or len(shape) != 2 or (shape[1] == 1 and shape[0] > 1) or 0 in shape:
        return None
    try:
        return usual_plan(trace, shape[1])
    except TypeError:
        return None


def compute_usual(plan: Plan, call: UsualCall[np.ndarray]) -> np.ndarray | None:
    """q + Δ, or Δ, of a usual call of NumPy arrays, all of one shape and dtype and in one piece; None where a value is bad."""
    _, add_q, _, reward, q, next_value, terminated, truncated, gamma, log_pi, log_mu, valid = call
    nothing = NOT_BY_STEP[reward.dtype]
    if plan.needs_pi:
        if log_pi is None:
            return None
    else:
        log_pi = nothing
    if plan.needs_mu:
        if log_mu is None:
            return None
    else:
        log_mu = nothing
    is_read = NOT_BY_STEP[BOOL] if valid is None else valid
    read = reward, q, next_value, terminated, truncated, gamma, nothing, log_pi, log_mu, is_read
    out = _computed(plan, read, np.empty(reward.shape, reward.dtype), add_q)
    if valid is not None and out is not None:
        out[~valid] = 0.0
    return out


@lru_cache(1024)
def _rule(
    traced: Traced, reads: tuple[str, ...], are_arrays: tuple[bool, ...], product: bool
) -> tuple[int, list[float]]:
    """The address of a rule's own lines, and its constants."""
    text, constants = rule_rows.source(traced.lines, reads, are_arrays, product)
    return rule_rows.compiled(text), constants


def _kernel(trace: Trace, T: int, lags: np.ndarray | None) -> Kernel:
    """The kernel that fits."""
    if trace.per_decision and lags is None:
        return reverse_recursion.KERNEL
    if trace.recursive:
        return recursive_cap.kernel_for(trace.constant_cap) if lags is None else every_pair.RECURSIVE
    return every_pair.KERNEL if lags is not None or T <= SHORT else cap_at_readout.KERNEL


def _parameter(trace: Trace, value: ArrayLike, shape: tuple[int, ...], valid: np.ndarray | None) -> float | np.ndarray:
    """A number as a float; an array, given for [T] or [B, T], as float64 [B, T], with 0 where it is not read."""
    if isinstance(value, float | int):
        return float(value)
    value = np.asarray(value)
    if not value.ndim:
        return float(value)
    if value.shape not in (shape, shape[1:] if shape[0] == 1 else shape):
        raise ValueError(
            f"{type(trace).__name__} holds an array of shape {value.shape}, one number for each step, "
            f"but the trajectory has {shape[0]} rows of {shape[1]} steps"
        )
    value = np.array(value, np.float64).reshape(shape)
    if valid is not None:
        value[~valid] = 0.0
    if np.isnan(value).any():
        at = first_index(np.isnan(value))
        raise ValueError(f"{type(trace).__name__} holds NaN for step {spell(at)}, which is not marked as padding")
    return value


def normal_form(trace: Trace, x: Trajectory) -> Factors:
    """decay, ratio and cap as NumPy arrays [B, T], for what does not go through a compiled pass."""
    shape = x.terminated.shape
    parameters = [_parameter(trace, p, shape, x.valid) for p in trace.parameters]
    with np.errstate(over="ignore"):  # ρ/λ of RBIS is infinite where it is beyond the floats, and then clipped
        seen = probabilities(x, trace.reads)
        if seen is None:
            explain_bad_value(x)
        factors = trace.traced.call(np, *(seen.get(p) for p in ("pi", "mu", "rho")), *parameters)
    return Factors(*(np.array(np.broadcast_to(f, shape), np.float64) for f in factors))


def lag_caps(trace: Trace, T: int) -> np.ndarray | None:
    """`Trace.bounds_by_lag` as an array."""
    bounds = trace.bounds_by_lag(T)
    return None if bounds is None else np.array(bounds)


def _in_threads(rows: Callable[[int, int], int], B: int) -> int:
    """Share the rows among threads; the worst that any pass found."""
    workers = max(1, min(B // compiled_pass.ROWS, CORES))
    if workers == 1:
        return rows(0, B)
    edges = np.linspace(0, B // compiled_pass.ROWS, workers + 1).astype(int) * compiled_pass.ROWS
    edges[-1] = B
    *others, (first, stop) = pairwise(int(edge) for edge in edges)
    jobs = [_pool().submit(rows, *block) for block in others]
    return max(rows(first, stop), *(job.result() for job in jobs))  # a share is done here, without waiting for a thread


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES, thread_name_prefix="offtrace")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
