"""The compiled passes, called by a plan: the linear one for a rule without a cap; else, or if that gives up, the one for kernels.

A large batch is shared among threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offtrace.returns.numpy import compiled_pass, linear_pass, linear_state_pass, reverse_recursion, state_rows
from offtrace.returns.numpy.call_plans import Plan, StatePlan
from offtrace.returns.numpy.row_threads import in_threads
from offtrace.returns.numpy.scratch_rows import scratch

PARALLEL, PARALLEL_CAPPED = 500_000, 30_000  # a batch of fewer steps is not worth waking a thread for


def corrected(plan: Plan, read: tuple[object, ...], out: np.ndarray, add_q: bool) -> np.ndarray | None:
    """q + Δ, or Δ, from the arrays in the order of the compiled passes; None where a value is bad."""
    B, T = out.shape
    kernel, rule, factors, reads, numbers, arrays, lags, _, _ = plan
    if kernel is reverse_recursion.KERNEL:
        linear = linear_pass.linear_rows()

        def some_rows(first: int, stop: int) -> int:
            return linear(rule, first, stop, *reads, numbers, arrays, add_q, *read, out)

        found = some_rows(0, B) if B * T < PARALLEL else in_threads(some_rows, B)
        if found != compiled_pass.UNFINISHED:
            return None if found else out
        rule = factors()
    run = compiled_pass.correct_rows()

    def all_rows(sweep: int, finish: int) -> int:
        def rows(first: int, stop: int) -> int:
            return run(rule, sweep, finish, first, stop, *reads, numbers, arrays, lags, add_q, *read, *scratch(T), out)

        return rows(0, B) if B * T < PARALLEL_CAPPED else in_threads(rows, B)

    return None if compiled_pass.by_kernel(kernel, all_rows) else out


def corrected_states(
    plan: StatePlan, read: tuple[object, ...], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The results, from the arrays in the order of the compiled passes; None where a value is bad."""
    (kernel, rule, factors, reads, numbers, arrays, lags, _, _), share, bound, lam, lams = plan
    B, T = shape
    parallel = PARALLEL if kernel is reverse_recursion.KERNEL else PARALLEL_CAPPED
    made = np.empty(shape, dtype), np.empty(shape, dtype), np.empty(shape, dtype)
    if kernel is reverse_recursion.KERNEL:
        if not len(lams):
            linear = linear_state_pass.linear_rows()

            def some_rows(first: int, stop: int) -> int:
                return linear(rule, first, stop, *reads[:2], numbers, arrays, share, bound, lam, *read, *made)

            found = some_rows(0, B) if parallel > B * T else in_threads(some_rows, B)
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

        return rows(0, B) if parallel > B * T else in_threads(rows, B)

    return None if compiled_pass.by_kernel(kernel, all_rows) else made
