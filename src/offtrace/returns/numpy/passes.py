"""Corrections by blocks of rows that fit the cache: read the steps, evaluate the rule by NumPy, run the kernel, write results.

    Δ_k = Σ_{t≥k} D_{k:t} min(cap_t, x_{k:t}) δ_t,   D_{k:t} = g_k ··· g_{t-1},   x_{k:t} = ratio_{k+1} ··· ratio_t

with g_k = passed_k decay_{k+1}, and δ and passed as `read_steps` has them. On state values a trace starts one step before k: the
factors are those of the action before, and w δ with w = min(ρ̄, ρ) replaces δ. The kernels are

    cap = ∞              linear.py           O(T)
    recursive            recursive_cap.py    O(T) for cap ≤ 1, else O(T log T)
    cap at read-out      readout_cap.py      O(T log T); every_pair.py for short rows
    bounds by lag        every_pair.py       O(T n)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from offtrace._shared.cores import cores
from offtrace.returns.numpy import every_pair, linear, readout_cap, recursive_cap
from offtrace.returns.numpy.big_float import FLOOR
from offtrace.returns.numpy.normal_form import lag_caps, parameter
from offtrace.returns.numpy.read_steps import NOTHING, Steps, read, steps_of, write, write_states
from offtrace.traces import Trace
from offtrace.trajectory import Trajectory, explain_bad_value, warn_if_infinite

BLOCK = 32768  # steps of a block: smaller ones cost more calls than they save in the cache
LONG = 4096  # a row of more steps without a cap is solved in stretches
FEW_STEPS = 512  # up to this T a cap at read-out is cheapest pair by pair (benchmarks/crossover.py)
PARALLEL, PARALLEL_CAPPED = 500_000, 30_000  # a batch of fewer steps is not worth waking a thread for
CORES = cores()


class BadValue(Exception):
    """A value that breaks the contract was read: `explain_bad_value` names it."""


class RuleMath:
    """NumPy's functions, as rules call them. `clip` takes a third of the time of `minimum` where one argument is a number."""

    where, abs, sqrt, exp, log = np.where, np.abs, np.sqrt, np.exp, np.log

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        """The smaller of two arrays or numbers, elementwise; NaN where either is."""
        array, number = (b, a) if isinstance(a, float) else (a, b)
        return array.clip(-np.inf, number) if isinstance(number, float) and np.ndim(array) else np.minimum(a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        """The larger of two arrays or numbers, elementwise; NaN where either is."""
        array, number = (b, a) if isinstance(a, float) else (a, b)
        return array.clip(number, np.inf) if isinstance(number, float) and np.ndim(array) else np.maximum(a, b)


class Plan(NamedTuple):
    """How a rule is computed on rows of some length."""

    factors: Callable[..., tuple[Any, Any, Any]]
    """Its lines: decay, ratio and cap."""
    parameters: tuple[float | np.ndarray, ...]
    """What they take after ρ; an array is flat, with a number for each step."""
    reads: tuple[bool, bool, bool]
    """Whether they read π, μ and ρ."""
    kernel: Callable[..., Any] | None
    """What computes Δ from δ, g, ratio, cap and bounds by lag; None where no cap acts."""
    lags: np.ndarray
    """Bounds by lag."""
    delta_ratio: Callable[..., Any] | None = None
    """On state values, what δ is multiplied by."""
    lam: float | np.ndarray = 1.0
    """How much of the next target an advantage takes; an array is flat."""


class Scratch(NamedTuple):
    """Float64 arrays of a block, one longer than its steps. Factors act where a trace comes to a step: ratio_{k+1} for k."""

    delta: np.ndarray
    passed: np.ndarray
    pi: np.ndarray
    mu: np.ndarray
    rho: np.ndarray
    decay: np.ndarray
    ratio: np.ndarray
    cap: np.ndarray
    weight: np.ndarray
    """On state values what the next target counts in an advantage: λ w passed."""
    x: np.ndarray
    """Δ; and beyond the last step, that of the next one."""
    after: np.ndarray
    """x and m beyond the last steps of rows (`linear`)."""

    @classmethod
    def of(cls, n: int) -> Scratch:
        """Arrays for n steps or more. Those of a block are used again by the same thread: fresh memory costs page faults."""
        scratch = getattr(_of_thread, "scratch", None)
        if scratch is None or len(scratch.x) <= n:
            scratch = cls._make([*np.empty((len(cls._fields) - 1, n + 1)), np.empty(2)])
            if n <= BLOCK:
                _of_thread.scratch = scratch
        return scratch


_of_thread = threading.local()


@lru_cache(1024)
def _cached_plan(trace: Trace, T: int) -> Plan:
    return _plan(trace, T, tuple(map(float, trace.parameters)))


def plan_of(trace: Trace, x: Trajectory, on_states: bool) -> Plan:
    """The plan of a rule, from the cache if the rule holds no arrays."""
    T = x.terminated.shape[1]
    if trace.hashable:
        plan = _cached_plan(trace, T)
    else:
        plan = _plan(trace, T, tuple(_flat(trace, p, x, on_states) for p in trace.parameters))
    if not on_states:
        return plan
    return plan._replace(delta_ratio=trace.delta_ratio, lam=_flat(trace, trace.advantage_lam, x, True))


def _flat(trace: Trace, value: float | np.ndarray, x: Trajectory, on_states: bool) -> float | np.ndarray:
    number = parameter(trace, value, x, start_acts=on_states)
    return number.reshape(-1) if isinstance(number, np.ndarray) else number


def _plan(trace: Trace, T: int, parameters: tuple[float | np.ndarray, ...]) -> Plan:
    lags = lag_caps(trace, T)
    reads = "pi" in trace.reads, "mu" in trace.reads, "rho" in trace.reads
    return Plan(trace.traced.call, parameters, reads, _kernel(trace, T, lags), lags)


def _kernel(trace: Trace, T: int, lags: np.ndarray) -> Callable[..., Any] | None:
    if len(lags):
        return every_pair.sweep_recursive if trace.recursive else every_pair.sweep
    if trace.per_decision:
        return None
    if trace.recursive:
        return recursive_cap.kernel_for(trace.constant_cap)
    return every_pair.sweep if T <= FEW_STEPS else readout_cap.sweep


def correct(trace: Trace, x: Trajectory, add_q: bool | None) -> tuple[np.ndarray, ...]:
    """q + Δ or Δ; without `add_q` target, advantage and correction of state values. [B, T] each; invalid steps hold anything.

    An error where a value is bad.
    """
    B, T = x.terminated.shape
    on_states = add_q is None
    plan, steps = plan_of(trace, x, on_states), steps_of(x)
    out = np.empty((B, T), x.dtype)
    outs = (out, np.empty_like(out), np.empty_like(out)) if on_states else (out,)
    added = steps.value if add_q else NOTHING[x.dtype]

    def correct_rows(first: int, stop: int) -> bool:
        is_finite, values = True, (steps.value, steps.next_value)
        for at, n, block in solved_blocks(plan, steps, T, first, stop):
            if on_states:
                is_finite &= write_states(at, n, block.delta, block.weight, block.x, *values, *outs)
            else:
                is_finite &= write(at, n, block.x, added, *outs)
        return is_finite

    try:
        is_finite = _run(plan, correct_rows, B, T)
    except BadValue:
        explain_bad_value(x, partial(trace.delta_ratio, np) if on_states else None)
    if not is_finite:
        for result in outs:
            warn_if_infinite(result, x)
    return outs


def _run(plan: Plan, correct_rows: Callable[[int, int], bool], B: int, T: int) -> bool:
    """Whether all results are finite, from a function of some rows. Those of a large batch are shared among threads."""
    if (PARALLEL if plan.kernel is None else PARALLEL_CAPPED) > B * T:
        return correct_rows(0, B)
    *others, (first, stop) = pairwise(np.linspace(0, B, max(1, min(B // 4, CORES)) + 1).astype(int).tolist())
    jobs = [_pool().submit(correct_rows, *share) for share in others]
    here = correct_rows(first, stop)  # one share runs here, without waiting for a thread
    return all([here, *(job.result() for job in jobs)])


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES, thread_name_prefix="offtrace")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def solved_blocks(plan: Plan, steps: Steps, T: int, first: int, stop: int) -> Iterator[tuple[int, int, Scratch]]:
    """The rows from `first` to before `stop` by blocks: the flat index of the first step, their number, and Δ in the scratch."""
    if plan.kernel is None and T > LONG:
        block = Scratch.of(BLOCK)
        for b in range(first, stop):
            yield from _stretches(plan, steps, T, b, block)
        return
    rows = min(stop - first, max(4, BLOCK // T // 4 * 4) if plan.kernel is None else max(1, BLOCK // T))
    block = Scratch.of(rows * T)
    for b in range(first, stop, rows):
        n = min(rows, stop - b) * T
        block.x[n], block.ratio[n] = 0.0, 0.0  # beyond the last row nothing acts
        block.after[:] = 0.0, FLOOR
        _read(plan, steps, T, b * T, n, block)
        if not _solve(plan, n, T, block):
            _solve_big(n, T, block)
        yield b * T, n, block


def _stretches(plan: Plan, steps: Steps, T: int, b: int, block: Scratch) -> Iterator[tuple[int, int, Scratch]]:
    """The stretches of a long row, from its end on. If a product leaves the range of floats, the whole row follows."""
    block.ratio[0], block.after[:] = 0.0, (0.0, FLOOR)
    for end in range(T, 0, -BLOCK):
        begin = max(0, end - BLOCK)
        n = end - begin
        block.x[n], block.ratio[n] = block.after[0], block.ratio[0]
        _read(plan, steps, T, b * T + begin, n, block)
        if not _solve(plan, n, n, block):
            row = Scratch.of(T)
            _read(plan, steps, T, b * T, T, row)
            _solve_big(T, T, row)
            yield b * T, T, row
            return
        yield b * T + begin, n, block


@np.errstate(all="ignore")  # ρ/λ of RBIS is infinite where it is beyond the floats, and then clipped
def _read(plan: Plan, steps: Steps, T: int, at: int, n: int, block: Scratch) -> None:
    """Fill δ, passed and the rule's factors of n steps."""
    delta, passed, pi, mu, rho = block[:5]
    on_states = plan.delta_ratio is not None
    reads_pi, reads_mu, reads_rho = plan.reads
    if read(at, n, T, steps, (reads_pi, reads_mu, reads_rho or on_states), delta, passed, pi, mu, rho):
        raise BadValue
    if plan.delta_ratio is not None:
        weight = plan.delta_ratio(RuleMath, rho[:n])
        lam = plan.lam[at : at + n] if isinstance(plan.lam, np.ndarray) else plan.lam
        delta[:n] *= weight
        np.multiply(passed[:n], lam, out=block.weight[:n])
        block.weight[:n] *= weight
        if not np.isfinite(delta[:n].sum()) and not np.isfinite(delta[:n]).all():  # a sum takes less time
            raise BadValue
    parameters = (p[at : at + n] if isinstance(p, np.ndarray) else p for p in plan.parameters)
    decay, ratio, cap = plan.factors(RuleMath, pi[:n], mu[:n], rho[:n], *parameters)
    place = slice(1, n + 1) if on_states else slice(0, n)
    if plan.kernel is None:
        np.multiply(decay, ratio, out=block.ratio[place])
    else:
        block.decay[place], block.ratio[place], block.cap[place] = decay, ratio, cap
        g = passed[: n - 1]
        np.multiply(g, block.decay[1:n], out=g, where=g > 0.0)  # a decay that does not act may be infinite
        if on_states:  # before the first action nothing acts
            block.ratio[0:n:T] = block.cap[0:n:T] = 1.0


def _solve(plan: Plan, n: int, T: int, block: Scratch) -> bool:
    """Compute Δ of rows of T steps; returns whether all is within the range of floats."""
    shape = n // T, T
    if plan.kernel is None:
        return linear.solve(*shape, block.delta, block.passed, block.ratio[1:], block.after, block.decay, block.x)
    delta, passed, x = block.delta[:n].reshape(shape), block.passed[:n].reshape(shape), block.x[:n].reshape(shape)
    plan.kernel(delta, passed, block.ratio[:n].reshape(shape), block.cap[:n].reshape(shape), plan.lags, x)
    return True


def _solve_big(n: int, T: int, block: Scratch) -> None:
    """Compute Δ of rows without a cap, with products of any size."""
    linear.solve_big_rows(
        *(array[:n].reshape(n // T, T) for array in (block.delta, block.passed, block.ratio, block.x))
    )
