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
sum.

**Halves.** A row for which this takes too many pairs (zero drift and no discount), or whose products leave the range of plain
numbers (`big_float`), or whose discount fades by 2^-128 within 32 steps, goes to `readout_halves`, O(T log T). What is lost
here is below 2^-940: a sum of discounted terms below 2^-1074, which is then divided by that discount.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy import readout_halves
from offtrace.returns.numpy.big_float import HIGH, LITTLE, MUCH
from offtrace.returns.numpy.compiling import kernel, part
from offtrace.returns.numpy.readout_halves import CHUNK, FAINT, LEAF, STARTS, C, E, P, R, chunk, within

NEGLIGIBLE = 2.0**-60
TIE = 2.0**-48  # x and cap nearer than the rounding of a long product: either may stand for their minimum
HUGE = 1e300

MOST, LEAST, LINEAR, CAPPED, SIZE = range(5)
"""Marks of a step: max and min of x / cap after it, both sums, Σ D |δ|."""
MARKS = 5
WALK, ONCE, TREE, LEVEL = (
    45,
    6000,
    24,
    3,
)  # ns: a chunk for a group of starts; a tree, for each step, and for each level of it
TRIED = 64  # chunks to walk before a row is given up


def sweep(delta, g, ratio, cap, lags, out):
    """Δ of a block of rows into `out` [n, T]; lags do not act."""
    unfinished = np.empty(len(delta), np.bool_)
    if walk_rows(delta, g, ratio, cap, unfinished, out):
        for b in np.flatnonzero(unfinished):
            readout_halves.correct_row(delta[b], g[b], ratio[b], cap[b], out[b])


@kernel
def walk_rows(delta, g, ratio, cap, unfinished, out):
    """Δ of rows by walking ahead; returns whether some are unfinished, because that takes as long as the tree does."""
    B, T = delta.shape
    room, some = np.empty(6 * T + 1024), False
    for b in range(B):
        unfinished[b] = walk_ahead(delta[b], g[b], ratio[b], cap[b], affordable(T), room, out[b])
        some |= unfinished[b]
    return some


@part
def affordable(T):
    """How many chunks to walk ahead take as long as the tree."""
    cost, width = TREE, T
    while width > LEAF:
        cost += LEVEL
        width >>= 1
    return (ONCE + T * cost) // WALK


@part
def walk_ahead(delta, g, ratio, cap, budget, room, out):
    """Δ of one row from its end on; returns whether it is unfinished, for the budget or a product out of range.

    The row is given up once it has spent some of `budget`, a number of chunks, and at this pace would need more than all of it.
    """
    T = len(delta)
    last = (T - 1) // STARTS * STARTS
    length = last + 2 * STARTS  # with steps beyond the row's end
    n = length // CHUNK + 1
    steps, rest = room[: 4 * length].reshape(4, length), room[4 * length :]
    marks, over = rest[: n * MARKS].reshape(n, MARKS), rest[n * MARKS :]  # over: the discount over each group
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
        D = 1.0
        for t in range(k, k + n):  # from g to discounts from the first step of the group
            steps[P, t], steps[E, t], D = D, D * steps[E, t], D * steps[P, t]
        over[k // STARTS] = D
        near = rise <= MUCH and min(fall, caps[0]) >= 1.0 / MUCH and caps[1] <= HIGH
        out_of_range = not (rise <= LITTLE or near) or steps[P, k + n - 1] < FAINT
        too_slow = spent > min(budget // 4, TRIED + budget // 64) and spent * last >= budget * (last - k)
        if out_of_range or too_slow:
            return True
        spent += walk_group(k, steps, marks, over, caps[1], x, total)
        for j in range(n):
            out[k + j] = delta[k + j] + total[j] / steps[P, k + j]
    return False


@part
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


@part
def walk_group(k, steps, marks, over, highest, x, total):
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
            D *= over[t // STARTS - 1]
        chunk(steps[R, t : t + CHUNK], steps[C, t : t + CHUNK], steps[E, t : t + CHUNK], D, STARTS, x, total)
        t += CHUNK
    linear, capped = before * mark[LINEAR], before * mark[CAPPED]
    for i in range(STARTS):  # a start for which neither form holds has nothing left that counts
        rest = capped if x[i] * mark[LEAST] >= 1.0 - TIE else 0.0
        total[i] += x[i] * linear if x[i] * mark[MOST] <= 1.0 + TIE else rest
    return spent
