"""Kernel 3, cap at read-out (Truncated IS): exact, O(T log T) at worst, and a few tens of steps for each start as a rule.

    Δ_k = δ_k + Σ_{t>k} D_{k:t} min(cap_t, x_{k:t}) δ_t,   D_{k:t} = g_k ··· g_{t-1},   x_{k:t} = ratio_{k+1} ··· ratio_t

A trace *ends* between t and t+1 where g_t or ratio_{t+1} is 0; nothing below looks across.

**Ahead.** Thirty-two starts walk ahead side by side, and stop at a step m where what is left of each has a closed form. If x
never reaches the cap again, or is never below it again, then all that follows is

    x_{k:m} · max_{t>m} x_{m:t} / cap_t ≤ 1:     D_{k:m} x_{k:m} Σ_{t>m} D_{m:t} x_{m:t} δ_t        (importance sampling)
    x_{k:m} · min_{t>m} x_{m:t} / cap_t ≥ 1:     D_{k:m}         Σ_{t>m} D_{m:t} cap_t δ_t          (all at the cap)

and both sums, the maximum and the minimum obey reverse recursions. This is exact, nothing is neglected, and it comes soon:
under μ the highest x still to come is above e^a with a chance of at most e^{-a}, so a walk of negative drift closes within a
few units of log x, and π = μ closes at once. A third reason to stop is that a bound on what is left falls below 2⁻⁶⁰ of the
sum. On a long walk the same two forms, over a group of 32 steps, leap over it where x stays on one side of the cap.

**Halves.** A row for which this takes too many pairs (zero drift and no discount), or whose products leave the range of plain
numbers (`scaled_numbers`), or whose discount fades by 2^-128 within 32 steps, goes to `halves`, O(T log T). What is lost
here is below 2^-940: a sum of discounted terms below 2^-1074, which is then divided by that discount.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import Kernel, kernel_part
from offtrace.returns.numpy.cap_at_readout_by_halves import LEAF, finish
from offtrace.returns.numpy.cap_at_readout_lanes import (
    CHUNK,
    FAINT,
    STARTS,
    C,
    E,
    P,
    R,
    accumulate,
    chunk,
    within,
)
from offtrace.returns.numpy.scaled_numbers import HIGH, LITTLE, MUCH

PATIENCE = 64  # steps to walk before looking for groups to leap over
NEGLIGIBLE = 2.0**-60
TIE = 2.0**-48  # x and cap nearer than the rounding of a long product: either may stand for their minimum
HUGE = 1e300

# Marks of a step: max and min of x / cap after it, both sums, Σ D |δ|. Groups hold the first four for their own steps, the
# product of their ratios (−1: not asked yet) and of their g.
MOST, LEAST, LINEAR, CAPPED, SIZE = range(5)
RATIO, DECAY = 4, 5
WIDE = 6

WALK, ONCE, TREE, LEVEL = (
    45,
    6000,
    24,
    3,
)  # ns: a chunk for a group of starts; a tree, for each step, and for each level of it
TRIED = 64  # chunks to walk before a row is given up


@kernel_part
def sweep(delta, g, ratio, cap, lags, undone, room, out):
    """Δ of a block of rows into `out` [n, T]; lags do not act.

    A row for which walking ahead takes as long as the tree does is left to it.
    """
    B, T = delta.shape
    for b in range(B):
        undone[b] = walk_ahead(delta[b], g[b], ratio[b], cap[b], affordable(T), room, out[b])


@kernel_part
def affordable(T):
    """How many chunks to walk ahead take as long as the tree."""
    cost, width = TREE, T
    while width > LEAF:
        cost += LEVEL
        width >>= 1
    return (ONCE + T * cost) // WALK


@kernel_part
def walk_ahead(delta, g, ratio, cap, budget, room, out):
    """Δ of one row from its end on; returns how many starts are left undone, for the budget or a product out of range.

    The row is given up once it has spent some of `budget`, a number of chunks, and at this pace would need more than all of it.
    """
    T = len(delta)
    last = (T - 1) // STARTS * STARTS
    length = last + 2 * STARTS  # with steps beyond the row's end
    n = length // CHUNK + 1
    steps, rest = room[: 4 * length].reshape(4, length), room[4 * length :]
    marks, groups = rest[: n * WIDE].reshape(n, WIDE), rest[n * WIDE : 2 * n * WIDE].reshape(n, WIDE)
    x, total = np.empty(STARTS), np.empty(STARTS)
    for t in range(T, length):
        steps[R, t] = steps[C, t] = steps[E, t] = 0.0
        steps[P, t] = 1.0
    for at in range(T // CHUNK, n):  # a walk goes by chunks, and may stop beyond T: nothing is left there
        mark = marks[at]
        mark[MOST], mark[LEAST], mark[LINEAR], mark[CAPPED], mark[SIZE] = 0.0, np.inf, 0.0, 0.0, 0.0
    left, reach, caps = (0.0, np.inf, 0.0, 0.0, 0.0), (1.0, 1.0), (np.inf, 0.0)
    spent = 0
    for i in range(0, last + 1, STARTS):
        k = last - i
        n = min(STARTS, T - k)
        left, reach, caps, rise, fall = look_back(delta, g, ratio, cap, k, n, steps, marks, left, reach, caps)
        groups[k // STARTS, DECAY] = accumulate(steps[P, k : k + n], steps[E, k : k + n])
        groups[k // STARTS, RATIO] = -1.0
        near = rise <= MUCH and min(fall, caps[0]) >= 1.0 / MUCH and caps[1] <= HIGH
        out_of_range = not (rise <= LITTLE or near) or steps[P, k + n - 1] < FAINT
        too_slow = spent > min(budget // 4, TRIED + budget // 64) and spent * last >= budget * (last - k)
        if out_of_range or too_slow:
            return k + n
        spent += walk_group(k, steps, marks, groups, caps[1], x, total)
        for j in range(n):
            out[k + j] = delta[k + j] + total[j] / steps[P, k + j]
    return 0


@kernel_part
def look_back(delta, g, ratio, cap, k, n, steps, marks, left, reach, caps):
    """The reverse recursions over steps k … k+n-1: `left` is what a trace that stands at x = 1 before step t has left there.

    `reach` is the largest and the smallest x to come from there on, `caps` the lowest and the highest cap. Returned with them are
    the largest and the smallest x of all these starts.
    """
    T = len(delta)
    most, least, linear, capped, size = left
    longest, shortest = reach
    lowest, highest = caps
    rise, fall = reach
    for i in range(n):
        t = k + n - 1 - i
        h, r = g[t], ratio[t + 1] if t + 1 < T else 0.0
        if h > 0.0 and r > 0.0:
            most, least = min(r * most, HUGE), r * least
            linear, capped, size = h * r * linear, h * capped, h * size
            longest, shortest = max(1.0, r * longest), min(1.0, r * shortest)
            rise, fall = max(rise, longest), min(fall, shortest)
        else:
            h, r = 1.0, 0.0
            most, least, linear, capped, size, longest, shortest = 0.0, np.inf, 0.0, 0.0, 0.0, 1.0, 1.0
        if (t + 1) % CHUNK == 0:
            mark = marks[(t + 1) // CHUNK]
            mark[MOST], mark[LEAST], mark[LINEAR], mark[CAPPED], mark[SIZE] = most, least, linear, capped, size
        d, c = delta[t], cap[t]
        if c > 0.0 and d != 0.0:
            u = min(1.0 / c, HUGE)
            most, least = max(most, u), min(least, u)
            linear, capped, size = linear + d, capped + c * d, size + abs(d)
            lowest, highest = min(lowest, c), max(highest, c)
        else:
            d = 0.0  # min(0, x) = 0 too: such a step is not there
        steps[R, t + 1], steps[C, t], steps[E, t], steps[P, t] = r, c, d, h
    return (most, least, linear, capped, size), (longest, shortest), (lowest, highest), rise, fall


@kernel_part
def walk_group(k, steps, marks, groups, highest, x, total):
    """P_k (Δ_k − δ_k) of the group of starts from k on, into `total`; returns how many chunks that took."""
    within(steps, k, x, total)
    start = steps[E, k : k + STARTS]
    D = 1.0  # from k to the first step of the group that t is in
    t = k + STARTS
    spent = 1
    while True:
        mark = marks[t // CHUNK]
        before = D * steps[P, t - 1]
        bound = highest * before * mark[SIZE]
        closed = 0
        for i in range(STARTS):
            linear, capped = x[i] * mark[MOST] <= 1.0 + TIE, x[i] * mark[LEAST] >= 1.0 - TIE
            closed += linear | capped | (bound <= NEGLIGIBLE * abs(start[i] + total[i]))
        if closed == STARTS:
            break
        spent += 1
        if t % STARTS == 0:
            D *= groups[t // STARTS - 1, DECAY]
            if t - k > PATIENCE and leap(groups[t // STARTS], steps[:, t : t + STARTS], D, x, total):
                t += STARTS
                continue
        chunk(steps[R, t : t + CHUNK], steps[C, t : t + CHUNK], steps[E, t : t + CHUNK], D, STARTS, x, total)
        t += CHUNK
    add_rest(x, mark[MOST], mark[LEAST], before * mark[LINEAR], before * mark[CAPPED], total)
    return spent


@kernel_part
def add_rest(x, most, least, linear, capped, total):
    """The closed forms: `linear` for x = 1, `capped` for any x. A start that neither holds for has nothing left to count."""
    for i in range(len(x)):
        rest = capped if x[i] * least >= 1.0 - TIE else 0.0
        total[i] += x[i] * linear if x[i] * most <= 1.0 + TIE else rest


@kernel_part
def leap(group, steps, D, x, total):
    """Takes all starts over a group of steps at once, if each stays on one side of the cap there; returns whether it did."""
    if group[RATIO] < 0.0:
        summarise(group, steps)
    most, least = group[MOST], group[LEAST]
    good = 0
    for i in range(len(x)):  # a constant would be unrolled here, and not vectorised: twice the time
        good += (x[i] * most <= 1.0 + TIE) | (x[i] * least >= 1.0 - TIE)
    if good < STARTS:
        return False
    add_rest(x, most, least, D * group[LINEAR], D * group[CAPPED], total)
    r = group[RATIO]
    for i in range(len(x)):
        x[i] *= r
    return True


@kernel_part
def summarise(group, steps):
    """Max and min of x / cap over a group, its sums and its ratio, for a trace that comes with x = 1."""
    x, most, least, linear, capped = 1.0, 0.0, np.inf, 0.0, 0.0
    for t in range(STARTS):
        x *= steps[R, t]
        e, c = steps[E, t], steps[C, t]
        if e != 0.0:
            u = min(x * min(1.0 / c, HUGE), HUGE)
            most, least = max(most, u), min(least, u)
            linear, capped = linear + e * x, capped + e * c
    group[MOST], group[LEAST], group[LINEAR], group[CAPPED], group[RATIO] = most, least, linear, capped, x


KERNEL = Kernel(sweep, finish)
