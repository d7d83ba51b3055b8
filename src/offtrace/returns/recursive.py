"""Kernel 2, recursive cap: exact in O(T) for cap ≤ 1, in O(T log T) above.

A trace that runs with x at step k is worth V_k(x), piecewise linear in x: it runs unclipped to the first step j at which it
reaches the cap, and from there on it is the *same* trace as every other one clipped at j. Going backward, a stack holds the
steps j at which a trace that is alive now can still be clipped, the nearest on top. Entry j holds

    cap_j, W_j          the cap, and the worth of a trace that stands at its cap at j,
    S_j, D_j, R_j       from j to the entry below it, unclipped: Σ of discounted, ratio-weighted δ; discount; ratio,

so that with the current stretch (S, D, R) from k to the top j, a trace with x at k is clipped at j iff x·R ≥ cap_j, and is
then worth x·S + D·W_j; else the entry is folded into the stretch: S += D·R·S_j, D *= D_j, R *= R_j. For a new start k:

    fold while not clipped from x = 1:      Δ_k = S + D·W
    fold while not clipped from x = cap_k:  W_k = cap_k·S + D·W,   push k

Every earlier trace has x ≤ cap_k at k, so what it folds it folds for good: each entry is popped once. The bottom entry has
cap −∞ and W = 0: there every trace ends. Nothing is ever subtracted, so the result is as accurate as the direct sum, and
no logarithm is taken, so that no rounding of a long sum decides whether a trace is clipped.

With cap > 1 a start at x = 1 lies *below* the traces that are at the cap, so reading it off must not pop. It walks down
the stack instead, along skew-binary jump pointers (Myers 1983): entry d also holds the stretch to entry `leap[d]`.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

CAP, W, S, D, R = range(5)
LEAP_S, LEAP_D, LEAP_R = range(5, 8)


@register_jitable(error_model="numpy", fastmath={"contract"})
def sweep_low(delta, g, ratio, cap, out):
    """Δ of a block of rows into `out` [n, T], for cap ≤ 1."""
    B, T = delta.shape
    stack = np.empty((T + 1, 5))
    stack[0] = (-np.inf, 0.0, 0.0, 0.0, 0.0)
    one = np.uintp(1)  # unsigned indices spare the test for a negative one: a fifth of the time
    for b in range(B):
        top = np.uintp(0)
        for i in range(T):
            k = np.uintp(T - 1 - i)
            s, d, r = delta[b, k], g[b, k], ratio[b, k + one] if i else 1.0
            if d * r == 0.0:
                top, d, r = np.uintp(0), 0.0, 1.0
            while r < stack[top, CAP]:
                s, d, r = s + d * r * stack[top, S], d * stack[top, D], r * stack[top, R]
                top -= one
            out[b, k] = s + d * stack[top, W]
            c = cap[b, k]
            while c * r < stack[top, CAP]:
                s, d, r = s + d * r * stack[top, S], d * stack[top, D], r * stack[top, R]
                top -= one
            w = c * s + d * stack[top, W]
            top += one
            stack[top, CAP], stack[top, W], stack[top, S], stack[top, D], stack[top, R] = c, w, s, d, r


@register_jitable(error_model="numpy", fastmath={"contract"})
def sweep_high(delta, g, ratio, cap, out):
    """Δ of a block of rows into `out` [n, T], for any cap."""
    B, T = delta.shape
    stack = np.empty((T + 1, 8))
    leap = np.zeros(T + 1, np.int64)
    stack[0] = (-np.inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    for b in range(B):
        top = 0
        for i in range(T):
            k = T - 1 - i
            s, d, r = delta[b, k], g[b, k], ratio[b, k + 1] if i else 1.0
            if d * r == 0.0:
                top, d, r = 0, 0.0, 1.0

            at_entry, ss, dd, rr = top, s, d, r
            while rr < stack[at_entry, CAP]:
                e = stack[at_entry]
                if rr * e[LEAP_R] < stack[leap[at_entry], CAP]:
                    ss, dd, rr = ss + dd * rr * e[LEAP_S], dd * e[LEAP_D], rr * e[LEAP_R]
                    at_entry = leap[at_entry]
                else:
                    ss, dd, rr = ss + dd * rr * e[S], dd * e[D], rr * e[R]
                    at_entry -= 1
            out[b, k] = ss + dd * stack[at_entry, W]

            c = cap[b, k]
            while c * r < stack[top, CAP]:
                s, d, r = s + d * r * stack[top, S], d * stack[top, D], r * stack[top, R]
                top -= 1
            w = c * s + d * stack[top, W]
            top += 1
            stack[top, CAP], stack[top, W], stack[top, S], stack[top, D], stack[top, R] = c, w, s, d, r
            # Skew-binary: two leaps of equal length below make one of twice the length (plus this entry).
            below = top - 1
            middle = leap[below]
            if below - middle == middle - leap[middle] and below > 0:
                s1, d1, r1 = stack[below, LEAP_S], stack[below, LEAP_D], stack[below, LEAP_R]
                s, d, r = s + d * r * s1, d * d1, r * r1
                s1, d1, r1 = stack[middle, LEAP_S], stack[middle, LEAP_D], stack[middle, LEAP_R]
                s, d, r = s + d * r * s1, d * d1, r * r1
                leap[top] = leap[middle]
            else:
                leap[top] = below
            stack[top, LEAP_S], stack[top, LEAP_D], stack[top, LEAP_R] = s, d, r


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
