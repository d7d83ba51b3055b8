"""One compiled pass from the user's arrays to corrections, for any rule and any kernel.

For a block of four rows at a time, in scratch that stays in the cache:

    δ and discount, π, μ, ρ      from `row_opening`
    g_t = discount_t decay_{t+1},  ratio_t,  cap_t      from the rule (`rule_rows`)
    Δ                   from the kernel (`by_address`)
    out = q + Δ, or Δ

Bad values are noticed on the way, at one comparison each; `trajectory.explain_bad_value` then finds them. Memory: O(T) for
each thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from offtrace._shared.compile_cache import kept_njit
from offtrace.returns.numpy.by_address import (
    DONE,
    OPTIONS,
    Kernel,
    call,
    fingerprint,
    finish_of,
    kernel_part,
    room_for,
    sweep_of,
)
from offtrace.returns.numpy.row_opening import MU, PI, RHO, read_row, room_for_copies

ROWS = 4
BLOCKS = 10  # of rows of scratch that a thread needs, for state values too
GOOD, BAD, UNFINISHED, FAILED = range(4)
"""What a pass found: nothing wrong; a bad value; a row that the sweep has left, and no address of what finishes it; an error."""


def width(T: int) -> int:
    """More than T, up to an odd number of cache lines: rows at a power of two would evict each other from the cache."""
    return (T // 8 + 1 | 1) * 8


@cache
def compiled(function: Callable[..., object]) -> Callable[..., Any]:
    """A function that is made of parts of kernels, compiled; its code is in the key on disk."""
    of_kernels = fingerprint()

    @kept_njit(nogil=True, no_cfunc_wrapper=True, **OPTIONS)
    def run(*arguments):
        _ = of_kernels  # part of the key on disk
        return function(*arguments)

    return run


_unfinished: set[Kernel] = set()
"""Kernels that have left a row undone: their second function is compiled from then on."""


def by_kernel(kernel: Kernel, run: Callable[[int, int], int]) -> bool:
    """Calls `run` with the addresses of a kernel, its pass or `sweep_rows`; returns whether it found a bad value."""
    found = run(sweep_of(kernel), finish_of(kernel) if kernel in _unfinished else 0)
    if found == UNFINISHED:
        _unfinished.add(kernel)
        found = run(sweep_of(kernel), finish_of(kernel))
    if found == FAILED:
        raise MemoryError("there was not enough memory for a row of this length")
    return found == BAD


@kernel_part
def sweep_block(n, sweep, finish, delta, g, ratio, cap, lags, undone, room, out):
    """Δ of the first n rows, at most four, into `out`."""
    T = delta.shape[1]
    if call(sweep, (delta, g, ratio, cap, lags, undone, room, out, n, T, len(lags))) != DONE:
        return FAILED
    for i in range(n):
        if undone[i]:
            if finish == 0:
                return UNFINISHED
            row = delta[i], g[i], ratio[i], cap[i], lags, room, out[i], undone[i], T, len(lags)
            if call(finish, row) != DONE:
                return FAILED
    return GOOD


@kernel_part
def sweep_rows(sweep, finish, delta, g, ratio, cap, lags, out):
    """Δ [B, T], for given δ, g, ratio and cap."""
    undone = np.empty(ROWS, np.int64)
    B, T = delta.shape
    room = np.empty(room_for(T))
    for b in range(0, B, ROWS):
        c = min(b + ROWS, B)
        found = sweep_block(c - b, sweep, finish, delta[b:], g[b:], ratio[b:], cap[b:], lags, undone, room, out[b:])
        if found != GOOD:
            return found
    return GOOD


@cache
def correct_rows() -> Callable[..., int]:
    """The pass, compiled for arrays of the dtype that it is called with."""
    of_kernels = fingerprint()

    @kept_njit(nogil=True, no_cfunc_wrapper=True, **OPTIONS)
    def correct_rows(
        rule, sweep, finish, first, stop, reads_pi, reads_mu, reads_rho, numbers, by_step, lags, add_q,
        reward, q, next_value, terminated, truncated, gamma, gammas, log_pi, log_mu, valid, scratch, room, out,
    ):  # fmt: skip
        """q + Δ, or Δ, of the rows from `first` to before `stop` into `out`."""
        _ = of_kernels  # part of the key on disk
        T, W = reward.shape[1], scratch.shape[2]
        delta, g, ratio, cap, correction, γ = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5]
        decay, seen, undone = scratch[6, 0], scratch[6, 1:], np.empty(ROWS, np.int64)
        reals = reward.ravel(), q.ravel(), next_value.ravel(), log_pi.ravel(), log_mu.ravel()
        flags, γs, reads = (
            (terminated.ravel(), truncated.ravel(), valid.ravel()),
            gammas.ravel(),
            (reads_pi, reads_mu, reads_rho),
        )
        copied, cuts = room_for_copies(T, reward, valid)
        for i in range(min(ROWS, stop - first)):
            for t in range(T):
                γ[i, t] = gamma
            for t in range(T, W):  # nothing happens in the columns beyond T
                delta[i, t], g[i, t], ratio[i, t], cap[i, t] = 0.0, 0.0, 1.0, 1.0
        for b0 in range(first, stop, ROWS):
            n, bad = min(ROWS, stop - b0), False
            for i in range(n):
                at = (b0 + i) * T
                bad |= read_row(at, T, reals, flags, γs, reads, copied, cuts, γ[i], delta[i], g[i], seen)
                call(
                    rule,
                    (seen[PI], seen[MU], seen[RHO], numbers, by_step[at:], decay, ratio[i], cap[i], T, reward.size),
                )
                for t in range(1, T):
                    g[i, t - 1] *= decay[t]
            if bad:
                return BAD
            found = sweep_block(n, sweep, finish, delta, g, ratio, cap, lags, undone, room, correction)
            if found != GOOD:
                return found
            for i in range(n):
                b = b0 + i
                if add_q:
                    for t in range(T):
                        out[b, t] = np.float64(q[b, t]) + correction[i, t]
                else:
                    for t in range(T):
                        out[b, t] = correction[i, t]
        return GOOD

    return correct_rows
