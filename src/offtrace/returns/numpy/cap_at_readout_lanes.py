"""Starts of a trace with a cap at read-out, side by side in the vector units: the inner loops of `readout` and `halves`."""

from __future__ import annotations

from offtrace.returns.numpy.by_address import kernel_part

STARTS = 32  # side by side; also the length of a group of steps that shares one discount
CHUNK = 8  # steps between two looks at what is left
FAINT = 2.0**-128  # the smallest discount within a group that sums are divided by: they lose what is below 2^-1074
R, C, E, P = range(4)
"""Of a step: the ratio, or 0 where a trace ends; the cap; P δ; the discount P from the first step of the group."""


@kernel_part
def chunk(ratio, cap, weighted, D, n, x, total):
    """CHUNK steps of the first n starts of a group, which stand at the same step and share what it brings."""
    for i in range(n):
        y, s = x[i], total[i]
        for j in range(CHUNK):
            y *= ratio[j]
            s += D * weighted[j] * (y if y < cap[j] else cap[j])
        x[i], total[i] = y, s


@kernel_part
def within(steps, k, x, total):
    """What each start of the group from k on gets from the others of the group; x is then where they all stand."""
    r, c, e = steps[R, k : k + STARTS], steps[C, k : k + STARTS], steps[E, k : k + STARTS]
    for i in range(CHUNK):
        for a in range(STARTS // CHUNK):  # one start of each chunk, side by side: none waits for the product of another
            y, s = 1.0, 0.0
            for j in range(i + 1, CHUNK):
                t = a * CHUNK + j
                y *= r[t]
                s += e[t] * (y if y < c[t] else c[t])
            x[a * CHUNK + i], total[a * CHUNK + i] = y, s
    for a in range(CHUNK, STARTS, CHUNK):
        chunk(r[a : a + CHUNK], c[a : a + CHUNK], e[a : a + CHUNK], 1.0, a, x, total)
