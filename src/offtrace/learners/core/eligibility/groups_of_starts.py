"""Recursive caps: a stack of groups of starts that share x = min(cap, ratio · x), the largest x on top.

The stack is explained in `offtrace.returns.streaming.eligibility_vector`; this is the same in arrays, on the active weights.
It is compiled by itself, where a rule needs it, and plans hold pointers to it.
"""

from __future__ import annotations

import numpy as np

from offtrace.learners.core.compiling import contracted, seldom
from offtrace.learners.core.eligibility.kept import GROUPS, TINY, clear, is_over, put, slot, tidy


@contracted
def _scale(kept, g, n, r, d):
    kept.x[g] *= r
    kept.below_x[g] *= r
    kept.below_G[g] *= d
    if kept.fresh[g] >= 0.0:
        kept.fresh[g] *= d
    else:
        for i in range(n):
            kept.G[g, i] *= d
    c = r * d
    for i in range(n):
        z = c * kept.C[g, i]
        kept.C[g, i] = z if abs(z) > TINY else 0.0


@seldom
def gather(kept):
    """Every visit becomes a group of its own, the smallest x first."""
    first, last = kept.counts.first, kept.counts.last
    kept.counts.gathered, kept.counts.top, kept.counts.bottom = 1, 0, 0
    for g in range(last - first):
        v = first
        for u in range(first, last):
            if kept.product[v] < 0.0 or 0.0 <= kept.product[u] < kept.product[v]:
                v = u
        x, k = kept.product[v], kept.weights.shape[1]
        kept.product[v] = -1.0
        kept.x[g], kept.below_x[g], kept.below_G[g], kept.fresh[g] = x, 1.0, 1.0, kept.w[v]
        kept.born[0, g], kept.born[1, g] = -np.log(kept.w[v]), -np.log(kept.w[v] * x)
        for j in range(k):
            kept.at[g, j], kept.by[g, j] = slot(kept, kept.weights[v, j]), kept.numbers[v, j]
        for i in range(kept.counts.slots):
            kept.C[g, i] = kept.C[g - 1, i] if g > 0 else 0.0
        for j in range(k):
            kept.C[g, kept.at[g, j]] += x * kept.w[v] * kept.by[g, j]
        kept.counts.top = g + 1


@seldom
def _sink(kept):
    """Move the stack down to where its lowest groups have been forgotten."""
    bottom, top, n, k = kept.counts.bottom, kept.counts.top, kept.counts.slots, kept.at.shape[1]
    for g in range(bottom, top):
        h = g - bottom
        kept.x[h], kept.fresh[h] = kept.x[g], kept.fresh[g]
        kept.born[0, h], kept.born[1, h] = kept.born[0, g], kept.born[1, g]
        kept.below_x[h], kept.below_G[h] = kept.below_x[g], kept.below_G[g]
        put(n, kept.G, h, kept.G, g)
        put(n, kept.C, h, kept.C, g)
        put(k, kept.at, h, kept.at, g)
        put(k, kept.by, h, kept.by, g)
    kept.counts.top, kept.counts.bottom = top - bottom, 0


def enter_groups_of(digest):
    """Make the function by which a start enters. For `digest` see `loop.run_of`."""

    def enter_groups(kept, weights, numbers):
        """Put the start on top, or, where groups have x > 1 (only with caps above 1), below these, which move up by one."""
        _ = digest
        if not kept.counts.gathered:
            gather(kept)
        bottom, top = kept.counts.bottom, kept.counts.top
        g, k = top, len(weights)
        while g > bottom and kept.x[g - 1] > 1.0:
            g -= 1
            if g > bottom:
                _scale(kept, g - 1, kept.counts.slots, kept.below_x[g], kept.below_G[g])
        for j in range(k):
            slot(kept, weights[j])
        n = kept.counts.slots
        for h in range(top, g, -1):
            kept.x[h], kept.fresh[h] = kept.x[h - 1], kept.fresh[h - 1]
            kept.born[0, h], kept.born[1, h] = kept.born[0, h - 1], kept.born[1, h - 1]
            kept.below_x[h], kept.below_G[h] = 1.0, 1.0
            put(n, kept.G, h, kept.G, h - 1)
            put(n, kept.C, h, kept.C, h - 1)
            put(k, kept.at, h, kept.at, h - 1)
            put(k, kept.by, h, kept.by, h - 1)
            for j in range(k):
                kept.C[h, kept.slot_of[weights[j]]] += numbers[j]
        kept.x[g], kept.below_x[g], kept.below_G[g], kept.fresh[g] = 1.0, 1.0, 1.0, 1.0
        kept.born[0, g], kept.born[1, g] = kept.ages.discounts, kept.ages.products
        for i in range(n):
            kept.C[g, i] = kept.C[g - 1, i] if g > bottom else 0.0
        for j in range(k):
            kept.at[g, j], kept.by[g, j] = kept.slot_of[weights[j]], numbers[j]
            kept.C[g, kept.at[g, j]] += numbers[j]
        kept.counts.top = top + 1

    return enter_groups


def advance_groups_of(digest):
    """Make the function by which all groups take a step. For `digest` see `loop.run_of`."""

    def advance_groups(kept, discount, decay, ratio, cap, log_forget):
        """x ← min(cap, ratio·x), G ← γ decay G: the groups that reach the cap become one."""
        _ = digest
        d = discount * decay
        if d == 0.0 or ratio == 0.0 or cap == 0.0:
            clear(kept)
            return
        if d != kept.ages.last_discount:
            kept.ages.last_discount, kept.ages.log_of_discount = d, np.log(d)
        if d * ratio != kept.ages.last_product:
            kept.ages.last_product, kept.ages.log_of_product = d * ratio, np.log(d * ratio)
        kept.ages.discounts += kept.ages.log_of_discount
        kept.ages.products += kept.ages.log_of_product
        n, bottom, top, r = kept.counts.slots, kept.counts.bottom, kept.counts.top, ratio
        clipped, born_w, born_x = 0, np.inf, np.inf
        while top > bottom and kept.x[top - 1] * r >= cap:
            top -= 1
            if clipped == 0:
                for i in range(n):
                    kept.z[i] = 0.0
            clipped += 1
            born_w, born_x = min(born_w, kept.born[0, top]), min(born_x, kept.born[1, top])
            if kept.fresh[top] >= 0.0:
                for j in range(kept.at.shape[1]):
                    kept.z[kept.at[top, j]] += d * kept.fresh[top] * kept.by[top, j]
            else:
                for i in range(n):
                    kept.z[i] += d * kept.G[top, i]
            r *= kept.below_x[top]
            d *= kept.below_G[top]
        while bottom < top and is_over(kept, kept.born, bottom, log_forget):
            bottom += 1
        if top > bottom:
            _scale(kept, top - 1, n, r, d)
        if bottom == top:
            bottom, top = 0, 0
        if clipped:
            kept.x[top], kept.below_x[top], kept.below_G[top], kept.fresh[top] = cap, 1.0, 1.0, -1.0
            kept.born[0, top], kept.born[1, top] = born_w, max(born_x, kept.ages.products - np.log(cap))
            for i in range(n):
                kept.G[top, i] = kept.z[i]
                kept.C[top, i] = cap * kept.z[i] + (kept.C[top - 1, i] if top > bottom else 0.0)
            top += 1
        kept.counts.top, kept.counts.bottom = top, bottom
        if top + 4 > len(kept.x) and bottom > len(kept.x) // 2:  # before `has_room` asks for more
            _sink(kept)
        if kept.counts.slots > kept.counts.tidy:
            tidy(GROUPS, kept, log_forget)

    return advance_groups
