"""The part of kernel 3 that makes it O(T log T) at worst: a cap at read-out, by halves.

    Δ_k = δ_k + Σ_{t>k} D_{k:t} min(cap_t, x_{k:t}) δ_t,   D_{k:t} = g_k ··· g_{t-1},   x_{k:t} = ratio_{k+1} ··· ratio_t

A row is split at m, and again each half. A start k in the left half is served by the steps t of the right half in the order
of their thresholds,

    x_{k:t} ≥ cap_t   ⟺   X_t / cap_t ≥ X_k,         X_t = the product of all ratios from the first step to t,

by two sums: Σ D_{m:t} x_{m:t} δ_t of the steps below its threshold, Σ D_{m:t} cap_t δ_t of those above. One radix sort gives the
order and each start's place in it; parting the sorted steps into left and right keeps both sorted, and counting how many
went left gives each start's place in its half (a wavelet tree). Products start anew from m in each node, so they are as
accurate as the direct sum's; none is ever divided out, no two sums are subtracted, and X only decides on which side of the
cap a term lies, where an error of X costs no more than the error itself. Products are f · 2^{512 n} (`scaled_numbers`), and so
neither overflow nor underflow. D is a plain number: one that underflows stands before a cap below 2^100, or a discount that has
not faded, and else the stretch is summed pair by pair.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy import reverse_recursion
from offtrace.returns.numpy.by_address import kernel_part
from offtrace.returns.numpy.cap_at_readout_lanes import CHUNK, FAINT, STARTS, C, E, P, R, chunk, within
from offtrace.returns.numpy.cap_at_readout_order import INDEX, sort
from offtrace.returns.numpy.every_pair import NO_LAGS
from offtrace.returns.numpy.scaled_numbers import BOTTOM, HIGH, MUCH, TOP, add_pairs, raised, tame, times

LEAF = 128  # steps in a node that is summed directly


@kernel_part
def finish(delta, g, ratio, cap, lags, starts, room, out):
    """Δ of the first `starts` steps of a row, stretch by stretch between the ends of traces; lags do not act."""
    T = len(delta)
    a = 0
    while a < starts:
        b = a + 1
        while b < T and g[b - 1] > 0.0 and ratio[b] > 0.0:
            b += 1
        d, h, r, c, into = delta[a:b], g[a:b], ratio[a:b], cap[a:b], out[a:b]
        is_high, is_capped, D = False, False, 1.0
        for t in range(b - a):
            into[t] = d[t]
            is_high |= c[t] > HIGH
            is_capped |= c[t] < np.inf
        if is_high:
            for t in range(b - a - 1):
                D *= h[t]
        if not is_capped:
            reverse_recursion.finish(d, h, r, c, NO_LAGS, b - a, room, into)
        elif D < 1.0 / MUCH:
            add_pairs(d, h, r, c, False, NO_LAGS, into)
        else:
            stretch(d, h, r, c, room, into)
        a = b


@kernel_part
def stretch(delta, g, ratio, cap, room, out):
    """Adds to out_k the terms t > k, for steps that no trace ends between: depth first, so that small nodes stay in cache."""
    n = len(delta)
    whole, real = room[: 3 * n + 2].view(np.int32), room[3 * n + 2 :]
    order, rank, went_left = whole[: 2 * n], whole[2 * n : 3 * n], whole[3 * n : 4 * n + 1]
    power, scale = whole[4 * n + 1 : 5 * n + 1], whole[5 * n + 1 : 6 * n + 2]
    terms, sums = real[: 2 * n], real[2 * n : 4 * n + 2]
    steps, x, total = np.empty((4, LEAF + 2 * STARTS)), np.empty(STARTS), np.empty(STARTS)
    if n > LEAF:
        sort(ratio, cap, order[:n], order[n:], rank, real.view(np.int64))
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
        here, there = order[side * n :], order[n - side * n :]
        part(here[a:b], m, m - a, there[a:b], went_left)
        plain = weigh(delta, g, ratio, cap, m, b, terms, power, went_left, rank)
        gather(there[m:b], plain, terms, power, sums, scale)
        serve(g, ratio, a, m, plain, went_left, sums, scale, rank, out)
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
        # Chosen, not branched on: a guess would be wrong half of the time.
        parted[i if left else INDEX(half) + p - i] = t
        i += INDEX(1) if left else INDEX(0)
    went_left[n] = i


@kernel_part
def onward(f, n, r, h):
    """f · 2^{512n} · r · h."""
    f, n = times(f, n, r)
    return times(f, n, h)


@kernel_part
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


@kernel_part
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


@kernel_part
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


@kernel_part
def leaf(delta, g, ratio, cap, steps, x, total, out):
    """Adds to out_k the terms t > k of a short stretch, pair by pair."""
    n = len(delta)
    r, c, e, discount = steps[R], steps[C], steps[E], steps[P]
    D, X, highest, lowest, least = 1.0, 1.0, 1.0, 1.0, np.inf
    for t in range(n):
        X *= ratio[t] if t > 0 else 1.0
        highest, lowest = max(highest, X), min(lowest, X)
        r[t], c[t], discount[t] = ratio[t], cap[t], D
        e[t] = D * delta[t] if cap[t] > 0.0 else 0.0
        least = min(least, cap[t]) if cap[t] > 0.0 else least
        D *= g[t]
    for t in range(n, n + 2 * STARTS):  # nothing happens there
        r[t], c[t], e[t] = 1.0, 0.0, 0.0
    near = highest <= MUCH * lowest and least >= 1.0 / MUCH  # `tame` would say so too, and takes longer
    if discount[n - 1] < FAINT or not (near or tame(g, ratio, cap)):
        add_pairs(delta, g, ratio, cap, False, NO_LAGS, out)
        return
    for k in range(0, n, STARTS):
        within(steps, k, x, total)
        for t in range(k + STARTS, n, CHUNK):
            chunk(r[t : t + CHUNK], c[t : t + CHUNK], e[t : t + CHUNK], 1.0, STARTS, x, total)
        into, by = out[k:], discount[k:]
        for i in range(min(STARTS, n - k)):
            into[i] += total[i] / by[i]
