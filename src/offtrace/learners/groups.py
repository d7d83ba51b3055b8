"""Recursive caps: a stack of groups of starts that share x = min(cap, ratio · x), the largest x on top.

The stack is explained in `offtrace.returns.streaming.eligibility_vector`; this is the same in arrays, on the weights in use.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners.arrays import (
    Floats,
    Records,
    Slots,
    give_up_slots,
    is_crowded,
    move_slot,
    number,
    record,
    set_number,
    slots,
    take_slot,
)
from offtrace.learners.compiling import inside, seldom, seldom_contracted

SHORT = 128
"""So many starts of an episode are kept one by one before they are gathered into groups."""
TINY = 1e-40
"""What is smaller than this in a vector becomes 0: it would only sink on, to where arithmetic is slow."""

COUNTS = record(
    gathered=np.int64,  # whether the starts of this episode have been gathered into groups
    bottom=np.int64,  # the stack of groups is bottom … top − 1
    top=np.int64,
    discounts=np.float64,  # Σ log(γ·decay) since starts were gathered
    products=np.float64,  # Σ log(γ·decay·ratio) since then
    last_discount=np.float64,  # the last γ·decay, and its logarithm
    log_of_discount=np.float64,
    last_product=np.float64,  # the last γ·decay·ratio, and its logarithm
    log_of_product=np.float64,
)


class Groups(NamedTuple):
    """The stack. Its vectors have a number for each slot of the weights in use."""

    counts: Records
    """[1]: a record COUNTS."""
    used: Slots
    seen: Floats
    """[2, slots]: `discounts` and `products` when a weight was visited last."""
    merged: Floats
    """[slots]: room for the sum of groups that become one."""
    x: Floats
    """[groups]: what the starts of a group share. Groups are sorted by it, the largest on top."""
    below_x: Floats
    """[groups]: what x of all groups below is still to be multiplied by."""
    below_G: Floats
    """[groups]: the same for their G."""
    born: Floats
    """[2, groups]: `discounts` and `products` less these are log(w) and log(w·x) of the group's starts, or above them."""
    G: Floats
    """[groups, slots]: Σ of the discounted ∇q of the group."""
    C: Floats
    """[groups, slots]: x·G + C of the group below; so z is the C of the top."""


def groups(size: int, room: int, depth: int) -> Groups:
    """No group yet, with room for `depth` groups and `room` of the `size` weights."""
    counts = np.zeros(1, COUNTS)
    counts[0].last_discount = counts[0].last_product = 1.0
    return Groups(
        counts=counts,
        used=slots(size, room),
        seen=np.zeros((2, room)),
        merged=np.zeros(room),
        x=np.zeros(depth),
        below_x=np.zeros(depth),
        below_G=np.zeros(depth),
        born=np.zeros((2, depth)),
        G=np.zeros((depth, room)),
        C=np.zeros((depth, room)),
    )


def grown(old: Groups) -> Groups:
    """The same with twice the room."""
    size, room, depth = len(old.used.places), len(old.merged), len(old.x)
    new = groups(size, min(size, 2 * room), 2 * depth)
    for a, b in zip((*old.used, *old[2:]), (*new.used, *new[2:]), strict=True):
        b[tuple(slice(0, n) for n in a.shape)] = a
    new.counts[:] = old.counts
    return new


@inside
def has_room(stack, k):
    """Whether one more step fits for certain, with k active weights."""
    enough = len(stack.merged) >= min(len(stack.used.places), number(stack.used) + k)
    return not stack.counts[0].gathered or (enough and stack.counts[0].top + 3 <= len(stack.x))


@seldom
def clear(stack):
    """Forget everything: an episode begins."""
    counts = stack.counts[0]
    if counts.gathered:
        give_up_slots(stack.used)
        counts.gathered, counts.bottom, counts.top, counts.discounts, counts.products = 0, 0, 0, 0.0, 0.0


@inside
def slot(stack, weight):
    """The slot of a weight, whose vectors are 0 there if it is a new one."""
    before, counts = number(stack.used), stack.counts[0]
    i = take_slot(stack.used, weight)
    if i == before:
        for g in range(counts.bottom, counts.top):
            stack.G[g, i] = 0.0
            stack.C[g, i] = 0.0
    stack.seen[0, i], stack.seen[1, i] = counts.discounts, counts.products
    return i


@inside
def is_over(counts, since, i, log_forget):
    """Whether what dates from `since` has nothing more to say."""
    return counts.discounts - since[0, i] < log_forget[0] or counts.products - since[1, i] < log_forget[1]


@seldom
def copy_group(n, g, h, x, below_x, below_G, born, G, C):
    """Group h is copied to g."""
    x[g], below_x[g], below_G[g] = x[h], below_x[h], below_G[h]
    born[0, g], born[1, g] = born[0, h], born[1, h]
    for i in range(n):
        G[g, i] = G[h, i]
        C[g, i] = C[h, i]


@seldom_contracted
def scale_rows(n, g, d, c, G, C):
    """G of group g is multiplied by d, and C by c."""
    for i in range(n):
        G[g, i] *= d
        z = c * C[g, i]
        C[g, i] = z if abs(z) > TINY else 0.0


@inside
def scale(stack, g, r, d):
    """x of group g and of all below is multiplied by r, their G by d; those below wait until they are on top."""
    stack.x[g] *= r
    stack.below_x[g] *= r
    stack.below_G[g] *= d
    scale_rows(number(stack.used), g, d, r * d, stack.G, stack.C)


@seldom
def begin_group(n, g, bottom, x, xs, below_x, below_G, G, C):
    """Group g begins with this x on what is below it, with no start yet."""
    xs[g], below_x[g], below_G[g] = x, 1.0, 1.0
    for i in range(n):
        G[g, i] = 0.0
        C[g, i] = C[g - 1, i] if g > bottom else 0.0


@inside
def add_number(stack, g, weight, x, w, of_start):
    """A start with these x and w is in group g: the number of its ∇q at a weight."""
    i = stack.used.places[weight]
    stack.G[g, i] += w * of_start
    stack.C[g, i] += x * w * of_start


@seldom
def gather(stack, product, w, weights, numbers, first, last):
    """The starts first … last − 1 become groups, the smallest x first."""
    counts = stack.counts[0]
    counts.gathered = 1
    for g in range(last - first):
        v = first
        for u in range(first, last):
            if product[v] < 0.0 or 0.0 <= product[u] < product[v]:
                v = u
        x = product[v]
        product[v] = -1.0
        stack.born[0, g], stack.born[1, g] = -np.log(w[v]), -np.log(w[v] * x)
        for j in range(weights.shape[1]):
            slot(stack, weights[v, j])
        begin_group(number(stack.used), g, counts.bottom, x, stack.x, stack.below_x, stack.below_G, stack.G, stack.C)
        for j in range(weights.shape[1]):
            add_number(stack, g, weights[v, j], x, w[v], numbers[v, j])
        counts.top = g + 1


@seldom
def enter(stack, weights, numbers, s):
    """Put a start on top, or, where groups have x > 1 (only with caps above 1), below these, which move up by one.

    Its ∇q has `numbers[s]` at `weights`.
    """
    counts = stack.counts[0]
    bottom, top = counts.bottom, counts.top
    g = top
    while g > bottom and stack.x[g - 1] > 1.0:
        g -= 1
        if g > bottom:
            scale(stack, g - 1, stack.below_x[g], stack.below_G[g])
    for j in range(len(weights)):
        slot(stack, weights[j])
    for h in range(top, g, -1):
        copy_group(number(stack.used), h, h - 1, stack.x, stack.below_x, stack.below_G, stack.born, stack.G, stack.C)
        stack.below_x[h], stack.below_G[h] = 1.0, 1.0
        for j in range(len(weights)):
            stack.C[h, stack.used.places[weights[j]]] += numbers[s, j]
    stack.born[0, g], stack.born[1, g] = counts.discounts, counts.products
    begin_group(number(stack.used), g, bottom, 1.0, stack.x, stack.below_x, stack.below_G, stack.G, stack.C)
    for j in range(len(weights)):
        add_number(stack, g, weights[j], 1.0, 1.0, numbers[s, j])
    counts.top = top + 1


@seldom
def advance(stack, d, ratio, cap, log_forget):
    """x ← min(cap, ratio·x), G ← d G, d = γ decay: the groups that reach the cap become one. None of these numbers is 0."""
    counts = stack.counts[0]
    if d != counts.last_discount:
        counts.last_discount, counts.log_of_discount = d, np.log(d)
    if d * ratio != counts.last_product:
        counts.last_product, counts.log_of_product = d * ratio, np.log(d * ratio)
    counts.discounts += counts.log_of_discount
    counts.products += counts.log_of_product
    n, bottom, top, r = number(stack.used), counts.bottom, counts.top, ratio
    clipped, born_w, born_x, merged = 0, np.inf, np.inf, stack.merged
    while top > bottom and stack.x[top - 1] * r >= cap:
        top -= 1
        for i in range(n):
            merged[i] = d * stack.G[top, i] + (merged[i] if clipped else 0.0)
        clipped += 1
        born_w, born_x = min(born_w, stack.born[0, top]), min(born_x, stack.born[1, top])
        r *= stack.below_x[top]
        d *= stack.below_G[top]
    while bottom < top and is_over(counts, stack.born, bottom, log_forget):
        bottom += 1
    if top > bottom:
        scale(stack, top - 1, r, d)
    if bottom == top:
        bottom, top = 0, 0
    if clipped:
        stack.x[top], stack.below_x[top], stack.below_G[top] = cap, 1.0, 1.0
        stack.born[0, top], stack.born[1, top] = born_w, max(born_x, counts.products - np.log(cap))
        for i in range(n):
            stack.G[top, i] = merged[i]
            stack.C[top, i] = cap * merged[i] + (stack.C[top - 1, i] if top > bottom else 0.0)
        top += 1
    counts.top, counts.bottom = top, bottom
    if top + 4 > len(stack.x) and bottom > len(stack.x) // 2:  # before `has_room` asks for more
        for g in range(bottom, top):
            copy_group(
                number(stack.used), g - bottom, g, stack.x, stack.below_x, stack.below_G, stack.born, stack.G, stack.C
            )
        counts.top, counts.bottom = top - bottom, 0
    if is_crowded(stack.used):
        tidy(stack, log_forget)


@seldom
def tidy(stack, log_forget):
    """Give up the slots of weights that matter no more."""
    m = 0
    for i in range(number(stack.used)):
        if is_over(stack.counts[0], stack.seen, i, log_forget):
            move_slot(stack.used, i, -1)
            continue
        move_slot(stack.used, i, m)
        stack.seen[0, m], stack.seen[1, m] = stack.seen[0, i], stack.seen[1, i]
        for g in range(stack.counts[0].bottom, stack.counts[0].top):
            stack.G[g, m], stack.C[g, m] = stack.G[g, i], stack.C[g, i]
        m += 1
    set_number(stack.used, m)
