"""Kernel 3, cap at read-out (Truncated IS): exact, O(T log T), by halves.

    Δ_k = δ_k + Σ_{t>k} D_{k:t} min(cap_t, x_{k:t}) δ_t,   D_{k:t} = g_k ··· g_{t-1},   x_{k:t} = ratio_{k+1} ··· ratio_t

A row is split at m, and again each half. A start k in the left half is served by the steps t of the right half in the order
of their thresholds,

    x_{k:t} ≥ cap_t   ⟺   X_t / cap_t ≥ X_k,         X_t = the product of all ratios up to t,

by two sums: Σ D_{m:t} x_{m:t} δ_t of the steps below its threshold, Σ D_{m:t} cap_t δ_t of those above. Sorting the row once
gives the order and each start's place in it; splitting the sorted steps into left and right keeps both sorted, and counting
how many went left gives each start's place in its half (a wavelet tree). Products start again from m in each node, so they are as
accurate as the direct sum's; none is ever divided out, no two sums are subtracted, and X only decides on which side of the
cap a term lies, where an error of X costs no more than the error itself. A short stretch is summed pair by pair (`every_pair`).
Products are f · 2^{512 n} (`big_float`), and so neither overflow nor underflow. D is a plain number. It may underflow where no
cap is above 2^100; where it fades and a cap is higher, the row is summed pair by pair. Where a trace ends, g is 0, and so D and x
are 0 from there on.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.big_float import BOTTOM, MUCH, TOP, raised, sum_pairs, times
from offtrace.returns.numpy.compiling import kernel, part
from offtrace.returns.numpy.every_pair import NO_LAGS, STARTS, sweep_rows
from offtrace.returns.numpy.linear import solve_big
from offtrace.trajectory import HIGH_CAP

LEAF = 128  # steps in a node that is summed pair by pair
INDEX = np.uintp
"""Unsigned indices spare the test for a negative one, which is half of the time in these loops."""


def sweep(
    delta: np.ndarray, g: np.ndarray, ratio: np.ndarray, cap: np.ndarray, lags: np.ndarray, out: np.ndarray
) -> None:
    """Δ of a block of rows into `out` [n, T]; lags do not act."""
    for b in range(len(delta)):
        goes_on = np.where(np.append(ratio[b, 1:] > 0.0, False), g[b], 0.0)
        by_halves(delta[b], goes_on, ratio[b], cap[b], *thresholds(goes_on, ratio[b], cap[b]), out[b])


def thresholds(g: np.ndarray, ratio: np.ndarray, cap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The steps in the order of X_t / cap_t, and for each start k how many of them are not above X_k."""
    X, power = np.empty(len(ratio)), np.empty(len(ratio), np.int64)
    products(g, ratio, X, power)
    with np.errstate(divide="ignore"):
        of_starts = np.log2(X) + 512.0 * power
        of_steps = of_starts - np.log2(cap)
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
        is_high |= cap[t] > HIGH_CAP
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
    """Δ of a row into `out`: depth first, so that small nodes stay in the cache."""
    n = len(delta)
    orders, went_left = np.empty((2, n), np.int32), np.empty(n + 1, np.int32)
    power, scale = np.empty(n, np.int32), np.empty(n + 1, np.int32)
    terms, sums = np.empty(2 * n), np.empty(2 * n + 2)
    sums_of_leaf = np.empty(LEAF)
    for t in range(n):
        orders[0, t], out[t] = order[t], 0.0
    todo = np.empty((64, 3), np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, n, 0
    top = 1
    while top:
        top -= 1
        a, b, side = todo[top, 0], todo[top, 1], todo[top, 2]
        if b - a <= LEAF:
            add_pairs(delta[a:b], g[a:b], ratio[a:b], cap[a:b], sums_of_leaf[: b - a], out[a:b])
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
def add_pairs(delta, g, ratio, cap, sums, out):
    """Adds to `out` the Δ of a short stretch by itself."""
    n = len(delta)
    one = 1, n
    row = delta.reshape(one), g.reshape(one), ratio.reshape(one), cap.reshape(one)
    sweep_rows(*row, False, NO_LAGS, sums.reshape(one))
    for t in range(n):
        out[t] += sums[t]
