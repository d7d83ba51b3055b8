"""Products that leave the range of floats and come back: numbers f · 2^{512n}, and the kernels' definition in them.

A product of ratios may fall below 10⁻³⁰⁰ and rise again to 1 before it is read off. The fast kernels keep it in plain numbers
where that is exact, and ask here otherwise. What is exact there:

    x never rises by more than 2^RISE    what an x below 2^-1022 has lost stays below 2^-958: no sum of representable δ shows it,
                                         though each x may fall as far as it likes. A row that was drawn from μ is of this kind:
                                         there x rises by 2^64 with a chance of 2^-64.
    all x lie within 2^±RANGE            nothing is lost at all.

Discounts only fall, so one that underflows takes with it what is smaller still, unless the cap lets x rise above HIGH_CAP.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.compiling import part
from offtrace.trajectory import HIGH_CAP, RANGE, RISE

UP, DOWN, TOP, BOTTOM = 2.0**512, 2.0**-512, 2.0**256, 2.0**-256
INFINITY = float("inf")
LITTLE, MUCH = 2.0**RISE, 2.0**RANGE  # how far x may rise in any case; how far it may rise and fall otherwise
FLOOR = 2.0 ** (1024 - RISE)  # FLOOR · LITTLE is infinite


@part
def times(f, n, r):
    """f · 2^{512n} · r in the same form, with |f| between 2^-256 and 2^256."""
    y = f * r
    if BOTTOM <= abs(y) <= TOP:
        return y, n
    if r > UP:
        r, n = r * DOWN, n + 1
    elif r < DOWN:
        r, n = r * UP, n - 1
    f *= r
    while 0.0 < abs(f) < BOTTOM:
        f, n = f * UP, n - 1
    while TOP < abs(f) < INFINITY:
        f, n = f * DOWN, n + 1
    return f, n


@part
def raised(y, n):
    """y · 2^{512n}; y = 0 and overflow end it."""
    while n > 0 and 0.0 < abs(y) < INFINITY:
        y, n = y * UP, n - 1
    while n < 0 and y != 0.0:
        y, n = y * DOWN, n + 1
    return y


@part
def floored(m):
    """max(FLOOR, m), and NaN where m is: ∞ · 0 has been infinite. m ← floored(r m) is infinite for good once x rose by 2^64."""
    return FLOOR if m < FLOOR else m


@part
def fits_float64(g, ratio, cap):
    """Whether plain numbers hold every x of a row, and every D x. The terms are those of the module's first lines."""
    rise = fall = fade = 1.0  # of x and D from step t on
    highest_rise = lowest_fall = faintest = 1.0
    lowest, highest = INFINITY, 0.0
    T = len(g)
    for i in range(T):
        t = T - 1 - i
        r = ratio[t + 1] if i else 0.0
        if g[t] > 0.0 and r > 0.0:
            rise, fall, fade = max(1.0, r * rise), min(1.0, r * fall), g[t] * fade
        else:
            rise = fall = fade = 1.0
        highest_rise, lowest_fall = max(highest_rise, rise), min(lowest_fall, fall)
        faintest = min(faintest, fade)
        if cap[t] > 0.0:
            lowest, highest = min(lowest, cap[t]), max(highest, cap[t])
    if highest_rise <= LITTLE:
        return True
    within = highest_rise <= MUCH and lowest_fall >= 1.0 / MUCH and lowest >= 1.0 / MUCH
    return within and (highest <= HIGH_CAP or faintest >= 1.0 / MUCH)


@part
def weigh(g, ratio, cap, recursive, lags, k, weight, power):
    """D_{k:t} min(cap_t, d_{t-k}, x_{k:t}) of a start k as weight_t · 2^{512 power_t}; returns the first t that is not reached.

    `lags` [n] bounds x at lags 1 … n and ends the trace after them; empty means no bound by lag.
    """
    T = len(g)
    stop = min(T, k + len(lags) + 1) if len(lags) else T
    D, Dn, x, xn = 1.0, 0, 1.0, 0
    weight[k], power[k] = 1.0, 0
    for t in range(k + 1, stop):
        if g[t - 1] == 0.0 or ratio[t] == 0.0 or x == 0.0:
            return t
        D, Dn = times(D, Dn, g[t - 1])
        x, xn = times(x, xn, ratio[t])
        c = cap[t]
        if recursive and clipped(x, xn, c):
            x, xn = times(1.0, 0, c)
        if len(lags):
            c = min(c, lags[t - k - 1])
        f, n = times(1.0, 0, c) if clipped(x, xn, c) else (x, xn)
        weight[t], power[t] = D * f, Dn + n
    return stop


@part
def clipped(x, n, cap):
    """Whether x · 2^{512n} is at the cap or above."""
    return cap < INFINITY and (x if n == 0 else raised(x, n)) >= cap


@part
def sum_pairs(delta, g, ratio, cap, recursive, lags, out):
    """Δ of a row, pair by pair, into `out`."""
    T = len(delta)
    weight, power = np.empty(T), np.empty(T, np.int64)
    for k in range(T):
        stop = weigh(g, ratio, cap, recursive, lags, k, weight, power)
        total = 0.0
        for t in range(k + 1, stop):
            total += weighted(delta[t], weight[t], power[t])
        out[k] = delta[k] + total


@part
def weighted(y, weight, power):
    """y · weight · 2^{512 power}, without a product that leaves the range of floats on the way."""
    f, n = times(y, 0, 1.0)
    f, n = times(f, n + power, weight)
    return raised(f, n)


@part
def added(a, an, b, bn):
    """a · 2^{512an} + b · 2^{512bn}, in the same form."""
    if a == 0.0 or (b != 0.0 and an < bn):
        a, an, b, bn = b, bn, a, an
    return a + raised(b, bn - an), an
