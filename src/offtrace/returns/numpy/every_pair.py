"""Kernel 4, the definition itself: every start, every later step. For short rows, horizons, bounds by lag, read-out caps.

    Δ_k = Σ_{t≥k} D_{k:t} min(cap_t, d_{t-k}, x_{k:t}) δ_t,        D_{k:t} = g_k ··· g_{t-1}

Thirty-two starts go side by side in the vector units. Once all of them have started, they share the step's ratio, cap and
discounted δ, so a step costs one multiplication, one minimum and one addition for each of them.

It is O(T²) at worst and stops early wherever nothing is left: at an end, a zero ratio or decay, or where an upper bound on
all that is still to come,

    D_{k:t} · min(highest cap · E_t, x_{k:t} · F_t),   E_t = |δ_t| + g_t E_{t+1},   F_t = |δ_t| + g_t ratio_{t+1} F_{t+1}

is below 2⁻⁶⁰ of each start's sum so far: less than a rounding error of the last addition. A row whose products leave the
range of plain numbers (`big_float.fits_float64`) is summed pair by pair, with products of any size.
"""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.big_float import FLOOR, fits_float64, floored, sum_pairs
from offtrace.returns.numpy.compiling import kernel, part

STARTS = 32
STRIDE = 16  # steps between two looks at what is left
NEGLIGIBLE = 2.0**-60
NO_LAGS = np.empty(0)


@part
def sweep_rows(delta, g, ratio, cap, recursive, lags, out):
    """Δ of a block of rows into `out` [n, T].

    `lags` [n] bounds x at lags 1 … n and ends the trace after them; empty means no bound by lag.
    """
    B, T = delta.shape
    reach = len(lags) + 1 if len(lags) else T
    still, still_is = np.empty(T + 1), np.empty(T + 1)
    x, w, total, part = np.empty(STARTS), np.empty(STARTS), np.empty(STARTS), np.empty(STARTS)
    still[T] = still_is[T] = 0.0
    for b in range(B):
        highest, m = 0.0, FLOOR
        for i in range(T):
            t = T - 1 - i
            r = ratio[b, t + 1] if i else 0.0
            m = floored(r * m)
            still[t] = abs(delta[b, t]) + g[b, t] * still[t + 1]
            still_is[t] = abs(delta[b, t]) + g[b, t] * r * still_is[t + 1]
            highest = max(highest, cap[b, t])
        if not m < np.inf and not fits_float64(g[b], ratio[b], cap[b]):
            sum_pairs(delta[b], g[b], ratio[b], cap[b], recursive, lags, out[b])
            continue

        for k0 in range(0, T, STARTS):
            n = min(STARTS, T - k0)
            # The triangle: starts that begin one after the other; lane i joins at step k0 + i + 1.
            for i in range(n):
                total[i] = delta[b, k0 + i]
                x[i] = w[i] = 1.0
                part[i] = 0.0
            for j in range(1, n):
                t = k0 + j
                h, r, c, e = g[b, t - 1], ratio[b, t], cap[b, t], delta[b, t]
                ends = h == 0.0 or r == 0.0  # an x that has overflowed must not meet a zero
                for i in range(n):
                    started = i < j
                    h_i = h if started else 1.0
                    x_i = 0.0 if started and ends else x[i] * (r if started else 1.0)
                    e_i = e if started else 0.0
                    w[i] *= h_i
                    y = min(x_i, c) if started else x_i
                    x[i] = y if recursive else x_i
                    if len(lags):
                        y = min(y, lags[j - i - 1]) if started and j - i <= len(lags) else 0.0
                    total[i] += w[i] * y * e_i

            # The rectangle: all have started, and share what the step brings.
            D = 1.0
            stop = min(T, k0 + n - 1 + reach)
            for t in range(k0 + n, stop):
                D *= g[b, t - 1]
                if D == 0.0 or ratio[b, t] == 0.0:
                    break
                if (t - k0) % STRIDE == 0:
                    settled = True
                    for i in range(n):
                        left = w[i] * D * min(highest * still[t], x[i] * ratio[b, t] * still_is[t])
                        settled &= left <= NEGLIGIBLE * abs(total[i] + w[i] * part[i])
                    if settled:
                        break
                r, c, e = ratio[b, t], cap[b, t], D * delta[b, t]
                if len(lags):
                    for i in range(max(0, t - k0 - len(lags)), n):
                        x[i] *= r
                        if recursive:
                            x[i] = min(x[i], c)
                        part[i] += e * min(min(x[i], c), lags[t - k0 - i - 1])
                elif recursive:
                    for i in range(n):
                        x[i] = min(r * x[i], c)
                        part[i] += e * x[i]
                else:
                    for i in range(n):
                        x[i] = r * x[i]
                        part[i] += e * min(x[i], c)
            for i in range(n):
                out[b, k0 + i] = total[i] + w[i] * part[i]


@kernel
def sweep(delta, g, ratio, cap, lags, out):
    """A cap at read-out, bounds by lag."""
    sweep_rows(delta, g, ratio, cap, False, lags, out)


@kernel
def sweep_recursive(delta, g, ratio, cap, lags, out):
    """A recursive cap, bounds by lag."""
    sweep_rows(delta, g, ratio, cap, True, lags, out)
