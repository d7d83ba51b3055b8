"""Kernel 2, recursive cap: exact in O(T) for cap ≤ 1, in O(T log T) above.

A trace that runs with x at step k is worth V_k(x), piecewise linear in x: it runs unclipped to the first step j at which it
reaches the cap, and from there on it is the *same* trace as every other one clipped at j. Going backward, a stack holds the
steps j at which a trace that is alive now can still be clipped, the nearest on top. Entry j holds

    cap_j, W_j           the cap, and the worth of a trace that stands at its cap at j,
    R_j, D_j, P_j, S_j   the stretch from j to the entry below, unclipped: the product of ratios, the product of g's,
                         P = D·R, and S = Σ of discounted, ratio-weighted δ,

so that with the current stretch (r, d, p, s) from k to the top j, a trace with x at k is clipped at j iff x·r ≥ cap_j, and is
then worth x·s + d·W_j; else the entry is folded into the stretch: s += p·S_j, r *= R_j, d *= D_j, p *= P_j. For a new start k:

    fold while not clipped from x = 1:      Δ_k = s + d·W
    fold while not clipped from x = cap_k:  W_k = cap_k·s + d·W,   push k

Every earlier trace has x ≤ cap_k at k, so what it folds it folds for good: each entry is popped once. The bottom entry has
cap −∞ and W = 0: there every trace ends. Nothing is ever subtracted, so the result is as accurate as the direct sum, and
no logarithm is taken, so that no rounding of a long sum decides whether a trace is clipped.

With cap > 1 a start at x = 1 lies *below* the traces that are at the cap, so reading it off must not pop. It walks down the
stack instead, which is a step or two as a rule. A row in which it is many more is done again with skew-binary jump
pointers (Myers 1983): entry e then also holds the stretch to entry `leap[e]`, and a walk takes O(log T).
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

W, S, P, D = range(4)
LEAP_S, LEAP_P, LEAP_D = range(4, 7)
PATIENCE = 8  # steps down the stack for each start, on average, before leaps pay


@register_jitable(error_model="numpy", fastmath={"contract"})
def sweep_low(delta, g, ratio, cap, out):
    """Δ of a block of rows into `out` [n, T], for cap ≤ 1."""
    B, T = delta.shape
    caps, R, stack = np.empty(T + 1), np.empty(T + 1), np.empty((T + 1, 4))
    caps[0], R[0], stack[0] = -np.inf, 1.0, 0.0
    one = np.uintp(1)  # unsigned indices spare the test for a negative one: a fifth of the time
    for b in range(B):
        top = np.uintp(0)
        for i in range(T):
            k = np.uintp(T - 1 - i)
            s, d, r = delta[b, k], g[b, k], ratio[b, k + one] if i else 1.0
            p = d * r
            if p == 0.0:
                top, d, r, p = np.uintp(0), 0.0, 1.0, 0.0  # p again: without it LLVM emits slower code
            while r < caps[top]:
                s, r, d, p = s + p * stack[top, S], r * R[top], d * stack[top, D], p * stack[top, P]
                top -= one
            out[b, k] = s + d * stack[top, W]
            c = cap[b, k]
            while c * r < caps[top]:
                s, r, d, p = s + p * stack[top, S], r * R[top], d * stack[top, D], p * stack[top, P]
                top -= one
            w = c * s + d * stack[top, W]
            top += one
            caps[top], R[top] = c, r
            stack[top, W], stack[top, S], stack[top, P], stack[top, D] = w, s, p, d


@register_jitable(error_model="numpy", fastmath={"contract"})
def sweep_high(delta, g, ratio, cap, out):
    """Δ of a block of rows into `out` [n, T], for any cap."""
    T = delta.shape[1]
    caps, R, stack = np.empty(T + 1), np.empty(T + 1), np.empty((T + 1, 7))
    leap, leap_R = np.zeros(T + 1, np.uintp), np.ones(T + 1)
    caps[0], R[0], stack[0] = -np.inf, 1.0, 0.0
    for b in range(delta.shape[0]):
        if not high_row(delta[b], g[b], ratio[b], cap[b], False, PATIENCE * T, caps, R, stack, leap, leap_R, out[b]):
            high_row(delta[b], g[b], ratio[b], cap[b], True, 0, caps, R, stack, leap, leap_R, out[b])


@register_jitable(error_model="numpy", fastmath={"contract"})
def high_row(delta, g, ratio, cap, leaping, budget, caps, R, stack, leap, leap_R, out):
    """One row, with or without leaps; without, it gives up after `budget` steps down the stack."""
    T = len(delta)
    one, top = np.uintp(1), np.uintp(0)
    for i in range(T):
        k = np.uintp(T - 1 - i)
        s, d, r = delta[k], g[k], ratio[k + one] if i else 1.0
        p = d * r
        if p == 0.0:
            top, d, r, p = np.uintp(0), 0.0, 1.0, 0.0

        e, ss, rr, dd, pp = top, s, r, d, p
        while rr < caps[e]:
            if leaping and rr * leap_R[e] < caps[leap[e]]:
                ss, rr = ss + pp * stack[e, LEAP_S], rr * leap_R[e]
                dd, pp = dd * stack[e, LEAP_D], pp * stack[e, LEAP_P]
                e = leap[e]
            else:
                ss, rr, dd, pp = ss + pp * stack[e, S], rr * R[e], dd * stack[e, D], pp * stack[e, P]
                e -= one
                budget -= 1
        out[k] = ss + dd * stack[e, W]
        if not leaping and budget < 0:
            return False

        c = cap[k]
        while c * r < caps[top]:
            s, r, d, p = s + p * stack[top, S], r * R[top], d * stack[top, D], p * stack[top, P]
            top -= one
        w = c * s + d * stack[top, W]
        below = top
        top += one
        caps[top], R[top] = c, r
        stack[top, W], stack[top, S], stack[top, P], stack[top, D] = w, s, p, d
        if leaping:
            # Skew-binary: two leaps of equal length below make one of twice the length, plus this entry.
            middle = leap[below]
            leap[top] = below
            if below > 0 and below - middle == middle - leap[middle]:
                for e in (below, middle):
                    s, r = s + p * stack[e, LEAP_S], r * leap_R[e]
                    d, p = d * stack[e, LEAP_D], p * stack[e, LEAP_P]
                leap[top] = leap[middle]
            leap_R[top] = r
            stack[top, LEAP_S], stack[top, LEAP_P], stack[top, LEAP_D] = s, p, d
    return True


@register_jitable
def sweep(delta, g, ratio, cap, lags, out):
    """Δ of a block of rows into `out` [n, T]; lags do not act."""
    highest = 0.0
    for b in range(cap.shape[0]):
        for t in range(cap.shape[1]):
            highest = max(highest, cap[b, t])
    if highest <= 1.0:
        sweep_low(delta, g, ratio, cap, out)
    else:
        sweep_high(delta, g, ratio, cap, out)
