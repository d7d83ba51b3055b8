"""Every live start by itself: rules of any form, and recursive caps while an episode is short."""

from __future__ import annotations

import numpy as np

from offtrace.learners.core.compiling import contracted, inlined, seldom
from offtrace.learners.core.eligibility.kept import FORGET, put


@inlined
def drop_visits(kept, reach, forget):
    """Drop the oldest starts where they have reached their horizon or have nothing more to say."""
    first, last, step = kept.counts.first, kept.counts.last, kept.counts.step + 1
    while first < last and (
        step - kept.began[first] >= reach
        or not kept.w[first] > forget
        or not kept.w[first] * kept.product[first] > FORGET
    ):
        first += 1
    kept.counts.first = first
    room = len(kept.w)
    if first > 0 and (first == last or last == room or (last + 1 == room and 2 * first > last)):
        k = kept.weights.shape[1]
        for v in range(first, last):
            h = v - first
            put(k, kept.weights, h, kept.weights, v)
            put(k, kept.numbers, h, kept.numbers, v)
            put(kept.carry.shape[1], kept.carry, h, kept.carry, v)
            kept.product[h], kept.w[h], kept.wβ[h] = kept.product[v], kept.w[v], kept.wβ[v]
            kept.began[h], kept.pair[h] = kept.began[v], kept.pair[v]
        kept.counts.first, kept.counts.last = 0, last - first


@contracted
def advance_products(kept, discount, decay, ratio, cap, recursive, lags):
    """x ← ratio·x, clipped if recursive; β = min(cap, x), and its bound by lag where there are some."""
    d = discount * decay
    if d == 0.0 or ratio == 0.0 or (recursive and cap == 0.0):
        kept.counts.first = kept.counts.last = 0
        return
    for v in range(np.uintp(kept.counts.first), np.uintp(kept.counts.last)):
        x = min(kept.product[v] * ratio, 1e300)
        w, β = kept.w[v] * d, min(cap, x)
        kept.product[v] = β if recursive else x
        kept.w[v] = w
        kept.wβ[v] = w * β
    if len(lags):
        for v in range(kept.counts.first, kept.counts.last):
            bound = lags[min(kept.counts.step + 1 - kept.began[v], len(lags)) - 1]
            kept.wβ[v] = kept.w[v] * min(bound, min(cap, kept.product[v]))


@seldom
def advance_steps(kept, custom, discount, π, μ, ρ, lam, pair):
    """One call of a custom step for each live start; False if a β is negative or not finite."""
    step = kept.counts.step + 1
    for v in range(kept.counts.first, kept.counts.last):
        β = custom(kept.carry[v], π, μ, ρ, lam, float(step - kept.began[v]), kept.pair[v], pair)
        if not (β >= 0.0 and β < np.inf):
            return False
        kept.w[v] *= discount
        kept.wβ[v] = kept.w[v] * β
    return True
