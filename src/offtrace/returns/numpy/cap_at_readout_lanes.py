"""Starts of a trace with a cap at read-out, side by side in the vector units: the inner loops of `readout` and `halves`."""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part

STARTS = 32  # side by side; also the length of a group of steps that shares one discount
CHUNK = 8  # steps between two looks at what is left
SHIFT = 16  # lags done at once where starts begin one after the other
FAINT = 2.0**-128  # the smallest discount within a group that sums are divided by: they lose what is below 2^-1074
R, C, E, P = range(
    4
)  # steps: ratio, or 0 where a trace ends; cap; P δ; the discount P from the first step of the group


@kernel_part
def accumulate(discount, weighted):
    """Turns a group's g into discounts from its first step, and weights δ with them; returns the discount over the group."""
    d = 1.0
    for t in range(len(discount)):
        h = discount[t]
        discount[t] = d
        weighted[t] *= d
        d *= h
    return d


@kernel_part
def shift(ratio, cap, weighted, n, x, total):
    """SHIFT lags of n starts, start i at step i + lag: no start waits for the one before it."""
    for i in range(n):
        y, s = x[i], total[i]
        for j in range(SHIFT):
            y *= ratio[i + j]
            s += weighted[i + j] * (y if y < cap[i + j] else cap[i + j])
        x[i], total[i] = y, s


@kernel_part
def chunk(ratio, cap, weighted, D, x, total):
    """CHUNK steps of all starts of a group, which stand at the same step and share what it brings."""
    for i in range(STARTS):
        y, s = x[i], total[i]
        for j in range(CHUNK):
            y *= ratio[j]
            s += D * weighted[j] * (y if y < cap[j] else cap[j])
        x[i], total[i] = y, s


@kernel_part
def lone_group():
    """Room for a group's R, C and E, and then for steps that change nothing."""
    first = np.zeros((3, 2 * STARTS))
    for i in range(STARTS, 2 * STARTS):
        first[R, i] = 1.0
    return first


@kernel_part
def within(steps, k, first, x, total):
    """What each start of the group from k on gets from the others of the group; x is then where they all stand."""
    for i in range(STARTS):
        first[R, i], first[C, i], first[E, i] = steps[R, k + i], steps[C, k + i], steps[E, k + i]
        x[i], total[i] = 1.0, 0.0
    shift(first[R, 1:], first[C, 1:], first[E, 1:], STARTS, x, total)
    shift(first[R, 1 + SHIFT :], first[C, 1 + SHIFT :], first[E, 1 + SHIFT :], STARTS - SHIFT, x, total)
