"""The part of kernel 3 that makes it O(T log T) at worst: a cap at read-out, by halves.

    Δ_k = δ_k + Σ_{t>k} D_{k:t} min(cap_t, x_{k:t}) δ_t,   D_{k:t} = g_k ··· g_{t-1},   x_{k:t} = ratio_{k+1} ··· ratio_t

A row is split at m, and again each half. A start k in the left half is served by the steps t of the right half in the order
of their thresholds,

    x_{k:t} ≥ cap_t   ⟺   X_t / cap_t ≥ X_k,         X_t = the product of all ratios from the first step to t,

by two sums: Σ D_{m:t} x_{m:t} δ_t of the steps below its threshold, Σ D_{m:t} cap_t δ_t of those above. One radix sort gives the
order and each start's place in it; parting the sorted steps into left and right keeps both sorted, and counting how many
went left gives each start's place in its half (a wavelet tree). Products start anew from m in each node, so they are as
accurate as the direct sum's; none is ever divided out, no two sums are subtracted, and X only decides on which side of the
cap a term lies, where an error of X costs no more than the error itself. Products are kept as f · 2^{512 n} (`scaled`), and so
neither overflow nor underflow. D is a plain number: one that underflows stands before a cap below 2^100, or a discount that has
not faded, and else the stretch is summed pair by pair.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy import reverse_recursion
from offtrace.returns.numpy.by_address import kernel_part
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
    lone_group,
    within,
)
from offtrace.returns.numpy.every_pair import NO_LAGS
from offtrace.returns.numpy.scaled_numbers import BOTTOM, DOWN, HIGH, MUCH, TOP, UP, add_pairs, raised, tame, times

LEAF = 128  # steps in a node that is summed directly
DIGIT = 11  # bits in a digit of the radix sort
ORDERED = 44  # bits of a mantissa that decide the order
MANTISSA = 52
INDEX = np.uintp
"""Unsigned indices spare the test for a negative one, which is half of the time in these loops."""


@kernel_part
def by_halves(delta, g, ratio, cap, starts, out):
    """Δ of the first `starts` steps of a row, stretch by stretch between the ends of traces."""
    T = len(delta)
    a = 0
    while a < starts:
        b = a + 1
        D, lowest, highest = 1.0, np.inf, 0.0
        while b < T and g[b - 1] > 0.0 and ratio[b] > 0.0:
            D *= g[b - 1]
            lowest, highest = min(lowest, cap[b]), max(highest, cap[b])
            b += 1
        for t in range(a, b):
            out[t] = delta[t]
        if lowest == np.inf:
            reverse_recursion.finish(delta[a:b], g[a:b], ratio[a:b], cap[a:b], NO_LAGS, b - a, out[a:b])
        elif highest > HIGH and D < 1.0 / MUCH:
            add_pairs(delta[a:b], g[a:b], ratio[a:b], cap[a:b], False, NO_LAGS, out[a:b])
        else:
            stretch(delta[a:b], g[a:b], ratio[a:b], cap[a:b], out[a:b])
        a = b


@kernel_part
def stretch(delta, g, ratio, cap, out):
    """Adds to out_k the terms t > k, for steps that no trace ends between: depth first, so that small nodes stay in cache."""
    n = len(delta)
    order, rank = np.empty((2, n + 1), np.int32), np.empty(n + 1, np.int32)
    if n > LEAF:
        sort(ratio, cap, order[0], rank)
    went_left = np.empty(n + 1, np.int32)
    below, above, scale = np.empty(n + 1), np.empty(n + 1), np.empty(n + 1, np.int32)
    term, capped, power = np.empty(n), np.empty(n), np.empty(n, np.int32)
    room, first, x, total = np.empty((4, LEAF + 2 * STARTS)), lone_group(), np.empty(STARTS), np.empty(STARTS)
    todo = np.empty((64, 3), np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, n, 0
    top = 1
    while top:
        top -= 1
        a, b, side = todo[top, 0], todo[top, 1], todo[top, 2]
        if b - a <= LEAF:
            leaf(delta[a:b], g[a:b], ratio[a:b], cap[a:b], room, first, x, total, out[a:b])
            continue
        m = (a + b) // 2
        part(order[side, a:b], m, m - a, order[1 - side, a:b], went_left)
        weigh(delta, g, ratio, cap, m, b, term, capped, power, went_left, rank)
        gather(order[1 - side, m:b], term, capped, power, below, above, scale)
        serve(g, ratio, a, m, went_left, below, above, scale, rank, out)
        todo[top, 0], todo[top, 1], todo[top, 2] = a, m, 1 - side
        todo[top + 1, 0], todo[top + 1, 1], todo[top + 1, 2] = m, b, 1 - side
        top += 2


@kernel_part
def part(order, m, half, parted, went_left):
    """Sorted steps into `half` steps before m and then the others, both sorted; went_left_i of the first i went left."""
    i, n = INDEX(0), len(order)
    for q in range(n):
        p = INDEX(q)
        t = order[p]
        left = t < m
        went_left[p] = i
        parted[i if left else INDEX(half) + p - i] = (
            t  # chosen, not branched on: a guess would be wrong half of the time
        )
        i += INDEX(1) if left else INDEX(0)
    went_left[n] = i


@kernel_part
def onward(f, n, r, h):
    """f · 2^{512n} · r · h."""
    f, n = times(f, n, r)
    return times(f, n, h)


@kernel_part
def weigh(delta, g, ratio, cap, m, b, term, capped, power, went_left, rank):
    """D_{m:t} x_{m:t} δ_t as term · 2^{512 power}, and D_{m:t} cap_t δ_t, for t = m … b-1, whose ranks move to the right half."""
    D, f, n = 1.0, 1.0, 0
    term[m], power[m], capped[m] = delta[m], 0, cap[m] * delta[m]
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
        term[t], power[t], capped[t] = f * d, n, D * cap[t] * d


@kernel_part
def gather(order, term, capped, power, below, above, scale):
    """Sums over sorted steps: below_i · 2^{512 scale_i} of the first i terms, above_i of the capped ones from i on."""
    n = len(order)
    s, e, u = 0.0, power[INDEX(order[0])], 0.0
    above[n] = 0.0
    for q in range(n):
        i, j = INDEX(q), INDEX(n - 1 - q)  # both sums at once, since each addition waits for the one before it
        u += capped[INDEX(order[j])]
        above[j] = u
        below[i], scale[i] = s, e
        t = INDEX(order[i])
        v, p = term[t], power[t]
        if p != e and v != 0.0:
            if p > e or s == 0.0:
                s, e = raised(s, e - p), p
            else:
                v = raised(v, p - e)
        s += v
    below[n], scale[n] = s, e


@kernel_part
def serve(g, ratio, a, m, went_left, below, above, scale, rank, out):
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
        s, e = f * below[i], scale[i] + n
        if e != 0:
            s = raised(s, e)
        out[k] += s + D * above[i]


@kernel_part
def leaf(delta, g, ratio, cap, steps, first, x, total, out):
    """Adds to out_k the terms t > k of a short stretch, pair by pair."""
    n = len(delta)
    r, c, e, discount = steps[R], steps[C], steps[E], steps[P]
    for t in range(n):
        r[t], c[t], discount[t] = ratio[t], cap[t], g[t]
        e[t] = delta[t] if cap[t] > 0.0 else 0.0
    for t in range(n, n + 2 * STARTS):  # nothing happens there
        r[t], c[t], e[t] = 1.0, 0.0, 0.0
    discount[n - 1] = 1.0
    accumulate(discount[:n], e[:n])
    if discount[n - 1] < FAINT or not tame(g, ratio, cap):
        add_pairs(delta, g, ratio, cap, False, NO_LAGS, out)
        return
    for k in range(0, n, STARTS):
        within(steps, k, first, x, total)
        for t in range(k + STARTS, n, CHUNK):
            chunk(r[t : t + CHUNK], c[t : t + CHUNK], e[t : t + CHUNK], 1.0, x, total)
        into, by = out[k:], discount[k:]
        for i in range(min(STARTS, n - k)):
            into[i] += total[i] / by[i]


@kernel_part
def exponent(y):
    """The power of two below y, a normal number."""
    return (np.float64(y).view(np.int64) >> MANTISSA) - 1023


@kernel_part
def sort(ratio, cap, order, rank):
    """The steps in the order of X_t / cap_t; rank_k is how many of these are not above X_k."""
    n = len(ratio)
    keys, room = np.empty(2 * n, np.int64), np.empty((2, 2 * n), np.int64)
    items, count = np.empty((2, n), np.int32), np.empty(1 << DIGIT, np.int64)
    bits, same = thresholds(ratio, cap, keys, room[0]), True
    for t in range(n):
        same &= cap[t] == cap[0]
    starts = sorted_items(keys[n:], bits, room, items, count)
    order[:n] = starts
    if not same:  # else X_t / cap_t has the order of X_t
        order[:n] = sorted_items(keys[:n], bits, room, items, count)
        starts = sorted_items(keys[n:], bits, room, items, count)
    p = INDEX(0)
    for i in range(n):
        k = INDEX(starts[i])
        key = keys[INDEX(n) + k]
        while p < INDEX(n) and keys[INDEX(order[p])] <= key:
            p += INDEX(1)
        rank[k] = p


@kernel_part
def sorted_items(keys, bits, room, items, count):
    """0 … n-1 in the order of their keys, in `items`."""
    n = len(keys)
    for i in range(n):
        items[0, i], room[0, i] = i, keys[i]
    side = 0
    for low in range(0, bits, DIGIT):
        side = radix(room[side, :n], items[side], room[1 - side, :n], items[1 - side], low, count, side)
    return items[side]


@kernel_part
def thresholds(ratio, cap, keys, exponents):
    """X_t / cap_t for all steps and then X_k for all starts, as integers of the same order; returns how many bits they have."""
    n = len(ratio)
    f, e = 1.0, 0
    lowest, highest = 0, 0
    for t in range(n):
        if t > 0:
            f, e = times(f, e, ratio[t])
        c, up = cap[t], 0
        if c < DOWN:
            c, up = c * UP, 1
        elif c > UP:
            c, up = c * DOWN, -1
        never = cap[t] == np.inf
        y = f if never or c == 0.0 else f / c
        keys[t], keys[n + t] = np.float64(y).view(np.int64), np.float64(f).view(np.int64)
        exponents[t] = 512 * (e + up) + exponent(y)
        exponents[n + t] = 512 * e + exponent(f)
        if never:
            exponents[t] = -(1 << 62)
        elif c == 0.0:
            exponents[t] = 1 << 62
        else:
            lowest, highest = min(lowest, exponents[t]), max(highest, exponents[t])
        lowest, highest = min(lowest, exponents[n + t]), max(highest, exponents[n + t])
    span = 2
    while (1 << span) < highest - lowest + 3:
        span += 1
    kept = min(ORDERED, 62 - span)
    mask = (1 << MANTISSA) - 1
    for i in range(2 * n):
        e = min(max(exponents[i], lowest - 1), highest + 1) - (lowest - 1)
        keys[i] = (e << kept) | ((keys[i] & mask) >> (MANTISSA - kept))
    return span + kept


@kernel_part
def radix(keys, items, keys_out, items_out, low, count, side):
    """One stable pass by the digit that begins at bit `low`; returns the side on which the result is."""
    n = len(keys)
    mask = (1 << DIGIT) - 1
    for d in range(1 << DIGIT):
        count[d] = 0
    for i in range(n):
        count[INDEX((keys[i] >> low) & mask)] += 1
    if count[INDEX((keys[0] >> low) & mask)] == n:
        return side
    at = 0
    for d in range(1 << DIGIT):
        count[d], at = at, at + count[d]
    for i in range(n):
        d = INDEX((keys[i] >> low) & mask)
        p = INDEX(count[d])
        count[d] += 1
        keys_out[p], items_out[p] = keys[i], items[i]
    return 1 - side
