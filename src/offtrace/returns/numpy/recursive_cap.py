"""Kernel 2, recursive cap: exact in O(T) for cap ≤ 1, in O(T log T) above.

A trace that runs with x at step k is worth V_k(x), piecewise linear in x: it runs unclipped to the first step j at which it
reaches the cap, and from there on it is the *same* trace as every other one clipped at j. Going backward, a stack holds the
steps j at which a trace that is alive now can still be clipped, the nearest on top. Entry j holds

    cap_j, W_j           the cap, and the worth of a trace that stands at its cap at j,
    R_j, D_j, S_j        the stretch from j to the entry below, unclipped: the product of ratios, the product of g's,
                         and S = Σ of discounted, ratio-weighted δ,

so that with the current stretch (r, d, s) from k to the top j, a trace with x at k is clipped at j iff x·r ≥ cap_j, and is
then worth x·s + d·W_j; else the entry is folded into the stretch: s += d·r·S_j, r *= R_j, d *= D_j. For a new start k:

    fold while not clipped from x = 1:      Δ_k = s + d·W
    fold while not clipped from x = cap_k:  W_k = cap_k·s + d·W,   push k

Every earlier trace has x ≤ cap_k at k, so what it folds it folds for good: each entry is popped once. The bottom entry has
cap −∞ and W = 0: there every trace ends. Nothing is ever subtracted, so the result is as accurate as the direct sum, and
no logarithm is taken, so that no rounding of a long sum decides whether a trace is clipped.

Plain numbers hold these products, however far x falls or rises, if the cap is the same at every step. Entry j was pushed with
cap_j·R_j at or above the cap of the entry below, so R_j ≥ 1: r begins as one ratio, and folding only raises it. It is folded
while it is below cap_j / x, so it does not overflow either, and no term of S exceeds its δ. A cap that changes by a factor of c
lets r fall to ratio / c. Where that may underflow, or where the cap is above 2^100, so that D underflows before D·x does, a row
whose products leave the range of plain numbers (`big_float.fits_float64`) is summed pair by pair.

With cap > 1 a start at x = 1 lies *below* the traces that are at the cap, so reading it off must not pop. It walks down the
stack instead, which is a step or two as a rule. A row in which it is many more is done again with skew-binary jump
pointers (Myers 1983): entry e then also holds the stretch to entry `leap[e]`, and a walk takes O(log T).
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.big_float import MUCH, fits_float64, sum_pairs
from offtrace.returns.numpy.compiling import kernel, part
from offtrace.trajectory import HIGH_CAP

W, S, D, LEAP_S, LEAP_D, CAP, R, LEAP_R = range(8)
PATIENCE = 8  # steps down the stack for each start, on average, before leaps pay


@kernel
def sweep_low(delta, g, ratio, cap, lags, out):
    """Δ of a block of rows into `out` [n, T], for one cap ≤ 1; lags do not act."""
    B, T = delta.shape
    caps, ratios, stack = np.empty(T + 1), np.empty(T + 1), np.empty((T + 1, 4))  # of four: a row is half a cache line
    caps[0], ratios[0] = -np.inf, 1.0
    stack[0, W] = stack[0, S] = stack[0, D] = 0.0
    one = np.uintp(1)  # unsigned indices spare the test for a negative one: a fifth of the time
    for b in range(B):
        top = np.uintp(0)
        for i in range(T):
            k = np.uintp(T - 1 - i)
            s, d, r = delta[b, k], g[b, k], ratio[b, k + one] if i else 1.0
            p = d * r
            if not p > 0.0 and not (d > 0.0 and r > 0.0):  # p alone may have underflowed
                top, d, r, p = np.uintp(0), 0.0, 1.0, 0.0
            while r < caps[top]:
                s, r, d = s + p * stack[top, S], r * ratios[top], d * stack[top, D]
                p = d * r
                top -= one
            out[b, k] = s + d * stack[top, W]
            c = cap[b, k]
            while c * r < caps[top]:
                s, r, d = s + p * stack[top, S], r * ratios[top], d * stack[top, D]
                p = d * r
                top -= one
            w = c * s + d * stack[top, W]
            top += one
            caps[top], ratios[top] = c, r
            stack[top, W], stack[top, S], stack[top, D] = w, s, d


@kernel
def sweep_high(delta, g, ratio, cap, lags, out):
    """Δ of a block of rows into `out` [n, T], for any one cap."""
    T = delta.shape[1]
    stack, leap = np.zeros((T + 1, 8)), np.zeros(T + 1, np.uintp)
    stack[0, CAP], stack[0, R], stack[0, LEAP_R] = -np.inf, 1.0, 1.0
    for b in range(delta.shape[0]):
        if not high_row(delta[b], g[b], ratio[b], cap[b], False, stack, leap, out[b]):
            high_row(delta[b], g[b], ratio[b], cap[b], True, stack, leap, out[b])


@part
def high_row(delta, g, ratio, cap, leaping, stack, leap, out):
    """One row, with or without leaps; without, it gives up after PATIENCE steps down the stack for each start."""
    T = len(delta)
    budget = PATIENCE * T
    one, top = np.uintp(1), np.uintp(0)
    for i in range(T):
        k = np.uintp(T - 1 - i)
        s, d, r = delta[k], g[k], ratio[k + one] if i else 1.0
        p = d * r
        if not p > 0.0 and not (d > 0.0 and r > 0.0):
            top, d, r, p = np.uintp(0), 0.0, 1.0, 0.0

        e, ss, rr, dd = top, s, r, d
        while rr < stack[e, CAP]:
            if leaping and rr * stack[e, LEAP_R] < stack[leap[e], CAP]:
                ss, rr, dd = ss + dd * rr * stack[e, LEAP_S], rr * stack[e, LEAP_R], dd * stack[e, LEAP_D]
                e = leap[e]
            else:
                ss, rr, dd = ss + dd * rr * stack[e, S], rr * stack[e, R], dd * stack[e, D]
                e -= one
                budget -= 1
        out[k] = ss + dd * stack[e, W]
        if not leaping and budget < 0:
            return False

        c = cap[k]
        while c * r < stack[top, CAP]:
            s, r, d = s + d * r * stack[top, S], r * stack[top, R], d * stack[top, D]
            top -= one
        w = c * s + d * stack[top, W]
        below = top
        top += one
        stack[top, CAP], stack[top, R] = c, r
        stack[top, W], stack[top, S], stack[top, D] = w, s, d
        if leaping:
            # Skew-binary: two leaps of equal length below make one of twice the length, plus this entry.
            middle = leap[below]
            leap[top] = below
            if below > 0 and below - middle == middle - leap[middle]:
                for e in (below, middle):
                    s, r, d = s + d * r * stack[e, LEAP_S], r * stack[e, LEAP_R], d * stack[e, LEAP_D]
                leap[top] = leap[middle]
            stack[top, LEAP_S], stack[top, LEAP_R], stack[top, LEAP_D] = s, r, d
    return True


@kernel
def sweep(delta, g, ratio, cap, lags, out):
    """Δ of a block of rows into `out` [n, T], for caps that may change or be huge."""
    B, T = delta.shape
    highest = 0.0
    for b in range(B):
        for t in range(T):
            highest = max(highest, cap[b, t])
    if highest <= 1.0:
        sweep_low(delta, g, ratio, cap, lags, out)
    else:
        sweep_high(delta, g, ratio, cap, lags, out)
    for b in range(B):
        if not stack_holds(g[b], ratio[b], cap[b]):
            sum_pairs(delta[b], g[b], ratio[b], cap[b], True, lags, out[b])


@part
def stack_holds(g, ratio, cap):
    """Whether the stack holds the products of a row: for one cap up to 2^100, else if neither cap nor ratio is extreme."""
    lowest, highest, smallest = np.inf, 0.0, 1.0
    for t in range(len(g)):
        highest = max(highest, cap[t])
        if cap[t] > 0.0:
            lowest = min(lowest, cap[t])
        if ratio[t] > 0.0:
            smallest = min(smallest, ratio[t])
    mild = lowest >= 1.0 / HIGH_CAP and smallest >= HIGH_CAP * HIGH_CAP / MUCH
    return (highest <= HIGH_CAP and (lowest == highest or mild)) or fits_float64(g, ratio, cap)


def kernel_for(cap):
    """The kernel for a cap that is this number at every step; None where it is not known before the data are."""
    if cap is None or cap > HIGH_CAP:
        return sweep
    return sweep_low if cap <= 1.0 else sweep_high
