"""The part of kernel 3 that makes it O(T log T) at worst: a cap at read-out, by halves.

    Δ_k = δ_k + Σ_{t>k} D_{k:t} min(cap_t, x_{k:t}) δ_t,   D_{k:t} = g_k ··· g_{t-1},   x_{k:t} = ratio_{k+1} ··· ratio_t

A row is split at m, and again each half. A start k in the left half is served by the steps t of the right half in the order
of their thresholds,

    x_{k:t} ≥ cap_t   ⟺   X_t / cap_t ≥ X_k,         X_t = the product of all ratios up to t,

by two sums: Σ D_{m:t} x_{m:t} δ_t of the steps below its threshold, Σ D_{m:t} cap_t δ_t of those above. Sorting the row once
gives the order and each start's place in it; splitting the sorted steps into left and right keeps both sorted, and counting
how many went left gives each start's place in its half (a wavelet tree). Products start anew from m in each node, so they are as
accurate as the direct sum's; none is ever divided out, no two sums are subtracted, and X only decides on which side of the
cap a term lies, where an error of X costs no more than the error itself. Products are f · 2^{512 n} (`big_float`), and so
neither overflow nor underflow. D is a plain number: one that underflows comes before a cap below 2^100, or a discount that has
not faded, and else the row is summed pair by pair. Where a trace ends, g is 0, and so D and x are 0 from there on.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.big_float import BOTTOM, HIGH, MUCH, TOP, fits_float64, raised, sum_pairs, times
from offtrace.returns.numpy.compiling import kernel, part
from offtrace.returns.numpy.every_pair import NO_LAGS
from offtrace.returns.numpy.linear import solve_big

LEAF = 128  # steps in a node that is summed directly
STARTS = 32  # side by side in the vector units; also the length of a group of steps that shares one discount
CHUNK = 8  # steps between two looks at what is left
FAINT = 2.0**-128  # the smallest discount within a group that sums are divided by: they lose what is below 2^-1074
R, C, E, P = range(4)
"""Of a step: the ratio, or 0 where a trace ends; the cap; P δ; the discount P from the first step of the group."""
INDEX = np.uintp
"""Unsigned indices spare the test for a negative one, which is half of the time in these loops."""


def correct_row(delta: np.ndarray, g: np.ndarray, ratio: np.ndarray, cap: np.ndarray, out: np.ndarray) -> None:
    """Δ of a row [T] into `out`."""
    g = np.where(np.append(ratio[1:] > 0.0, False), g, 0.0)
    order, rank = thresholds(g, ratio, cap)
    by_halves(delta, g, ratio, cap, order, rank, out)


def thresholds(g: np.ndarray, ratio: np.ndarray, cap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps in the order of X_t / cap_t, and for each start how many of them are not above X_k."""
    X, power = np.empty(len(ratio)), np.empty(len(ratio), np.int64)
    products(g, ratio, X, power)
    mantissa, exponent = np.frexp(X)
    exponent = exponent + 512 * power
    with np.errstate(divide="ignore"):
        of_cap, shift = np.frexp(cap)
        of_steps, carry = np.frexp(mantissa / of_cap)  # 0 where the cap is ∞, ∞ where it is 0
    steps = exponent - shift + carry
    lowest, highest = min(exponent.min(), steps.min()), max(exponent.max(), steps.max())
    steps = np.where(np.isinf(of_steps), highest + 1, np.where(of_steps == 0.0, lowest - 1, steps)) - lowest + 1
    bits = min(52, 61 - int(highest - lowest + 2).bit_length())  # that of a mantissa fit beside the exponent
    of_starts, of_steps = (
        (e << bits) + (np.where(np.isinf(m), 0.0, m) * 2.0**bits).astype(np.int64)
        for m, e in ((mantissa, exponent - lowest + 1), (of_steps, steps))
    )
    order, starts = np.argsort(of_steps), np.argsort(of_starts)
    rank = np.empty(len(g), np.int64)
    rank[starts] = np.searchsorted(of_steps[order], of_starts[starts], side="right")
    return order, rank


@kernel
def products(g, ratio, X, power):
    """X_t, the product of the ratios up to t, as numbers X_t · 2^{512 power_t}; where a trace ends, nothing is multiplied."""
    f, n = 1.0, 0
    for t in range(len(ratio)):
        if t > 0 and g[t - 1] > 0.0:
            f, n = times(f, n, ratio[t])
        X[t], power[t] = f, n


@kernel
def by_halves(delta, g, ratio, cap, order, rank, out):
    """Δ of a row whose steps are in this order; rank_k is how many of them are not above the threshold of start k."""
    n = len(delta)
    is_high, is_capped, D, faintest = False, False, 1.0, 1.0
    for t in range(n):
        out[t] = delta[t]
        is_high |= cap[t] > HIGH
        is_capped |= cap[t] < np.inf
        D = D * g[t] if g[t] > 0.0 else 1.0
        faintest = min(faintest, D)
    if not is_capped:
        solve_big(delta, g, ratio, out)
    elif is_high and faintest < 1.0 / MUCH:
        sum_pairs(delta, g, ratio, cap, False, NO_LAGS, out)
    else:
        add_halves(delta, g, ratio, cap, order, rank, out)


@part
def add_halves(delta, g, ratio, cap, order, rank, out):
    """Adds to out_k the terms t > k: depth first, so that small nodes stay in the cache."""
    n = len(delta)
    orders, went_left = np.empty((2, n), np.int32), np.empty(n + 1, np.int32)
    power, scale = np.empty(n, np.int32), np.empty(n + 1, np.int32)
    terms, sums = np.empty(2 * n), np.empty(2 * n + 2)
    steps, x, total = np.empty((4, LEAF + 2 * STARTS)), np.empty(STARTS), np.empty(STARTS)
    for t in range(n):
        orders[0, t] = order[t]
    todo = np.empty((64, 3), np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, n, 0
    top = 1
    while top:
        top -= 1
        a, b, side = todo[top, 0], todo[top, 1], todo[top, 2]
        if b - a <= LEAF:
            leaf(delta[a:b], g[a:b], ratio[a:b], cap[a:b], steps, x, total, out[a:b])
            continue
        m = a + (b - a) // 2 // STARTS * STARTS  # leaves are then of whole groups, but for the last
        here, there = orders[side], orders[1 - side]
        split(here[a:b], m, m - a, there[a:b], went_left)
        plain = weigh(delta, g, ratio, cap, m, b, terms, power, went_left, rank)
        gather(there[m:b], plain, terms, power, sums, scale)
        serve(g, ratio, a, m, plain, went_left, sums, scale, rank, out)
        todo[top, 0], todo[top, 1], todo[top, 2] = a, m, 1 - side
        todo[top + 1, 0], todo[top + 1, 1], todo[top + 1, 2] = m, b, 1 - side
        top += 2


@part
def split(order, m, half, parted, went_left):
    """Sorted steps into `half` steps before m and then the others, both sorted; went_left_i of the first i went left."""
    i, n = INDEX(0), len(order)
    for q in range(n):
        p = INDEX(q)
        t = order[p]
        left = t < m
        went_left[p] = i
        # Chosen, not branched on: a guess would be wrong half of the time.
        parted[i if left else INDEX(half) + p - i] = t
        i += INDEX(1) if left else INDEX(0)
    went_left[n] = i


@part
def onward(f, n, r, h):
    """f · 2^{512n} · r · h."""
    if r == 0.0 or h == 0.0:
        return 0.0, 0
    f, n = times(f, n, r)
    return times(f, n, h)


@part
def weigh(delta, g, ratio, cap, m, b, terms, power, went_left, rank):
    """For t = m … b-1, whose ranks move to the right half: D_{m:t} x_{m:t} δ_t, by 2^{512 power}, and D_{m:t} cap_t δ_t, side by
    side. Returns whether all powers are 0."""
    D, f, n, plain = 1.0, 1.0, 0, True
    terms[2 * m], terms[2 * m + 1], power[m] = delta[m], cap[m] * delta[m], 0
    rank[m] -= went_left[rank[m]]
    for i in range(1, b - m):
        t = INDEX(m) + INDEX(i)
        r, h, d = ratio[t], g[t - INDEX(1)], delta[t]
        rank[t] -= went_left[INDEX(rank[t])]
        D *= h
        y = f * (r * h)  # one multiplication that waits for the one before it
        if BOTTOM <= y <= TOP:
            f = y
        else:
            f, n = onward(f, n, r, h)
            plain &= n == 0
        terms[t + t], terms[t + t + INDEX(1)], power[t] = f * d, D * cap[t] * d, n
    return plain


@part
def gather(order, plain, terms, power, sums, scale):
    """Sums over sorted steps, side by side: of the first i terms, by 2^{512 scale_i}, and of the capped ones from i on."""
    n = len(order)
    s, e, u = 0.0, power[INDEX(order[0])], 0.0
    sums[2 * n + 1] = 0.0
    for q in range(n):
        i, j = INDEX(q), INDEX(n - 1 - q)  # both sums at once, since each addition waits for the one before it
        t, last = INDEX(order[i]), INDEX(order[j])
        u += terms[last + last + INDEX(1)]
        sums[j + j + INDEX(1)] = u
        sums[i + i] = s
        v = terms[t + t]
        if not plain:
            scale[i] = e
            p = power[t]
            if p != e and v != 0.0:
                if p > e or s == 0.0:
                    s, e = raised(s, e - p), p
                else:
                    v = raised(v, p - e)
        s += v
    sums[2 * n], scale[n] = s, e


@part
def serve(g, ratio, a, m, plain, went_left, sums, scale, rank, out):
    """Adds the right half's part to the starts of the left half, and moves their ranks to the left half."""
    D, f, n = 1.0, 1.0, 0
    for j in range(m - a):
        k = INDEX(m - 1 - j)
        r, h = ratio[k + INDEX(1)], g[k]
        D *= h
        y = f * (r * h)
        if BOTTOM <= y <= TOP:
            f = y
        else:
            f, n = onward(f, n, r, h)
        place = INDEX(rank[k])
        left = went_left[place]
        rank[k] = left
        i = place - INDEX(left)
        s, e = f * sums[i + i], n if plain else scale[i] + n
        if e != 0:
            s = raised(s, e)
        out[k] += s + D * sums[i + i + INDEX(1)]


@part
def leaf(delta, g, ratio, cap, steps, x, total, out):
    """Adds to out_k the terms t > k of a short stretch, pair by pair."""
    n = len(delta)
    r, c, e, discount = steps[R], steps[C], steps[E], steps[P]
    D, X, highest, lowest, least = 1.0, 1.0, 1.0, 1.0, np.inf
    for t in range(n):
        goes_on = t > 0 and g[t - 1] > 0.0 and ratio[t] > 0.0
        X = X * ratio[t] if goes_on else 1.0
        D *= g[t - 1] if goes_on else 1.0
        highest, lowest = max(highest, X), min(lowest, X)
        r[t], c[t], discount[t] = ratio[t] if goes_on else 0.0, cap[t], D
        e[t] = D * delta[t] if cap[t] > 0.0 else 0.0
        least = min(least, cap[t]) if cap[t] > 0.0 else least
    for t in range(n, n + 2 * STARTS):  # nothing happens there
        r[t], c[t], e[t] = 1.0, 0.0, 0.0
    near = highest <= MUCH * lowest and least >= 1.0 / MUCH  # `fits_float64` would say so too, and takes longer
    if discount[n - 1] < FAINT or not (near or fits_float64(g, ratio, cap)):
        sums = np.empty(n)
        sum_pairs(delta, g, ratio, cap, False, NO_LAGS, sums)
        for t in range(n):
            out[t] += sums[t] - delta[t]
        return
    for k in range(0, n, STARTS):
        within(steps, k, x, total)
        for t in range(k + STARTS, n, CHUNK):
            chunk(r[t : t + CHUNK], c[t : t + CHUNK], e[t : t + CHUNK], 1.0, STARTS, x, total)
        into, by = out[k:], discount[k:]
        for i in range(min(STARTS, n - k)):
            into[i] += total[i] / by[i]


@part
def chunk(ratio, cap, weighted, D, n, x, total):
    """CHUNK steps of the first n starts of a group, which stand at the same step and share what it brings."""
    for i in range(n):
        y, s = x[i], total[i]
        for j in range(CHUNK):
            y *= ratio[j]
            s += D * weighted[j] * (y if y < cap[j] else cap[j])
        x[i], total[i] = y, s


@part
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
