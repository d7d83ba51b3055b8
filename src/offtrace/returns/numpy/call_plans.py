"""How a rule is computed on rows of some length: its kernel, its own lines and its numbers, kept from one call to the next.

cap = ∞              reverse_recursion.py      O(T)
recursive, cap ≤ 1   recursive_cap.py          O(T)             cap > 1: O(T log T)
cap at read-out      cap_at_readout.py         O(T) as a rule, O(T log T) at worst; every_pair.py for short rows
horizon, lag bound   every_pair.py             O(T n)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from offtrace.arrays import FLOATS
from offtrace.returns.numpy import cap_at_readout, every_pair, recursive_cap, reverse_recursion, rule_rows
from offtrace.returns.numpy.by_address import Kernel
from offtrace.returns.numpy.normal_form import lag_caps, parameter
from offtrace.returns.numpy.scratch_rows import NOT_BY_STEP
from offtrace.traces import Trace
from offtrace.traces.symbols import Traced
from offtrace.traces.trace_argument import as_state_rule

SHORT = 64  # up to this T a cap at read-out is cheapest by its definition (benchmarks/crossover.py)


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


@lru_cache(1024)
def usual_plan(trace: object, T: int) -> Plan | None:
    """The plan of a rule that holds numbers only, from the last call with it; None for what a call must look at more closely.

    Its arguments are all that a plan depends on. The rule must be `hashable`.
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
    return None if plan is None else state_plan(plan, rule, float(rule.advantage_lam))


def plan_of(trace: Trace, B: int, T: int, valid: np.ndarray | None) -> Plan:
    """The plan of a rule, kept if it may be."""
    kept = usual_plan(trace, T) if trace.hashable else None
    return _plan(trace, B, T, valid) if kept is None else kept


def _plan(trace: Trace, B: int, T: int, valid: np.ndarray | None = None) -> Plan:
    """The plan of a rule, which may hold arrays [T] or [B, T]."""
    lags = lag_caps(trace, T)
    parameters = [parameter(trace, p, (B, T), valid) for p in trace.parameters]
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


def state_plan(plan: Plan, trace: Trace, lam: float | np.ndarray) -> StatePlan:
    """The plan on state values of a rule whose advantages take λ as it is given, a number or one for each step."""
    lam, lams = (0.0, lam) if isinstance(lam, np.ndarray) else (lam, NOT_BY_STEP[FLOATS[1]])
    return StatePlan(plan, float(trace.target_share), float(trace.delta_bound), lam, lams)


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
