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
    clear_slots,
    inline,
    is_crowded,
    move_slot,
    no_inline,
    record,
    set_number,
    slots,
    take_slot,
)

SHORT = 128
"""So many starts of an episode are kept one by one before they are gathered into groups."""
TINY = 1e-40
"""What is smaller than this in a vector becomes 0: it would only sink on, to where arithmetic is slow."""

COUNTS = record(
    in_use=np.int64,  # whether the starts of this episode have been gathered into groups
    bottom=np.int64,  # the stack of groups is bottom … top − 1
    top=np.int64,
    discounts=np.float64,  # Σ log(γ·decay) since starts were gathered
    products=np.float64,  # Σ log(γ·decay·ratio) since then
)


class Stack(NamedTuple):
    """The stack. Its vectors have a number for each slot of the weights in use."""

    counts: Records
    """[1]: a record COUNTS."""
    used: Slots
    seen: Floats
    """[2, slots]: `discounts` and `products` when a weight was visited last."""
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


def empty(size: int, room: int, depth: int) -> Stack:
    """No group yet, with room for `depth` groups and `room` of the `size` weights."""
    return Stack(
        counts=np.zeros(1, COUNTS),
        used=slots(size, room),
        seen=np.zeros((2, room)),
        x=np.zeros(depth),
        below_x=np.zeros(depth),
        below_G=np.zeros(depth),
        born=np.zeros((2, depth)),
        G=np.zeros((depth, room)),
        C=np.zeros((depth, room)),
    )


def grown(old: Stack) -> Stack:
    """The same with twice the room."""
    size, room, depth = len(old.used.places), old.seen.shape[1], len(old.x)
    new = empty(size, min(size, 2 * room), 2 * depth)
    for a, b in zip((*old.used, *old[2:]), (*new.used, *new[2:]), strict=True):
        b[tuple(slice(0, n) for n in a.shape)] = a
    new.counts[:] = old.counts
    return new


@inline
def has_room(stack, k):
    """Whether one more step fits for certain, with k active weights."""
    counts, used, x = stack.counts[0], stack.used, stack.x
    enough = stack.seen.shape[1] >= min(len(used.places), used.counts[0] + k)
    return not counts.in_use or (enough and counts.top + 3 <= len(x))


@inline
def in_use(stack):
    """Whether the starts of this episode have been gathered into groups."""
    counts = stack.counts[0]
    return counts.in_use != 0


@inline
def top(stack):
    """The number of the top group; −1 if there is none."""
    counts = stack.counts[0]
    return counts.top - 1 if counts.top > counts.bottom else -1


@no_inline
def clear(stack):
    """Forget everything: an episode begins."""
    counts = stack.counts[0]
    if counts.in_use:
        clear_slots(stack.used)
        counts.in_use, counts.bottom, counts.top, counts.discounts, counts.products = 0, 0, 0, 0.0, 0.0


@no_inline
def slot(stack, weight):
    """The slot of a weight, whose vectors are 0 there if it is a new one."""
    all_counts, used, seen, _, _, _, _, G, C = stack
    counts, slot_counts = all_counts[0], used.counts
    before = slot_counts[0]
    i = take_slot(used, weight)
    if i == before:
        for g in range(counts.bottom, counts.top):
            G[g, i] = 0.0
            C[g, i] = 0.0
    seen[0, i], seen[1, i] = counts.discounts, counts.products
    return i


@inline
def is_negligible(counts, since, i, log_forget_w, log_forget_x):
    """Whether what dates from `since` is too small to matter."""
    return counts.discounts - since[0, i] < log_forget_w or counts.products - since[1, i] < log_forget_x


@no_inline
def copy_group(stack, g, h):
    """Group h is copied to g."""
    _, used, _, x, below_x, below_G, born, G, C = stack
    n = used.counts[0]
    x[g], below_x[g], below_G[g] = x[h], below_x[h], below_G[h]
    born[0, g], born[1, g] = born[0, h], born[1, h]
    for i in range(n):
        G[g, i] = G[h, i]
        C[g, i] = C[h, i]


@no_inline
def scale(stack, g, r, d):
    """x of group g and of all below is multiplied by r, their G by d; those below wait until they are on top."""
    _, used, _, x, below_x, below_G, _, G, C = stack
    x[g] *= r
    below_x[g] *= r
    below_G[g] *= d
    c = r * d
    for i in range(used.counts[0]):
        G[g, i] *= d
        z = c * C[g, i]
        C[g, i] = z if abs(z) > TINY else 0.0


@no_inline
def begin_group(stack, g, x_of_group, w_log, x_log):
    """Group g begins with this x on what is below it, with no start yet."""
    counts, used, _, x, below_x, below_G, born, G, C = stack
    bottom = counts[0].bottom
    x[g], below_x[g], below_G[g], born[0, g], born[1, g] = x_of_group, 1.0, 1.0, w_log, x_log
    for i in range(used.counts[0]):
        G[g, i] = 0.0
        C[g, i] = C[g - 1, i] if g > bottom else 0.0


@inline
def add_number(places, G, C, g, weight, x, w, number):
    """A start with these x and w is in group g: the number of its ∇q at a weight."""
    i = places[weight]
    G[g, i] += w * number
    C[g, i] += x * w * number


@no_inline
def gather(stack, product, w, weights, numbers, first, last):
    """The starts first … last − 1 become groups, the smallest x first."""
    all_counts, used, _, _, _, _, _, G, C = stack
    counts, places = all_counts[0], used.places
    counts.in_use = 1
    for g in range(last - first):
        v = first
        for u in range(first, last):
            if product[v] < 0.0 or 0.0 <= product[u] < product[v]:
                v = u
        x = product[v]
        product[v] = -1.0
        for j in range(weights.shape[1]):
            slot(stack, weights[v, j])
        begin_group(stack, g, x, -np.log(w[v]), -np.log(w[v] * x))
        for j in range(weights.shape[1]):
            add_number(places, G, C, g, weights[v, j], x, w[v], numbers[v, j])
        counts.top = g + 1


@no_inline
def enter(stack, weights, numbers, s):
    """Put a start on top, or, where groups have x > 1 (only with caps above 1), below these, which move up by one.

    Its ∇q has `numbers[s]` at `weights`.
    """
    all_counts, used, _, x, below_x, below_G, _, G, C = stack
    counts, places = all_counts[0], used.places
    bottom, top = counts.bottom, counts.top
    g = top
    while g > bottom and x[g - 1] > 1.0:
        g -= 1
        if g > bottom:
            scale(stack, g - 1, below_x[g], below_G[g])
    for j in range(len(weights)):
        slot(stack, weights[j])
    for h in range(top, g, -1):
        copy_group(stack, h, h - 1)
        below_x[h], below_G[h] = 1.0, 1.0
        for j in range(len(weights)):
            C[h, places[weights[j]]] += numbers[s, j]
    begin_group(stack, g, 1.0, counts.discounts, counts.products)
    for j in range(len(weights)):
        add_number(places, G, C, g, weights[j], 1.0, 1.0, numbers[s, j])
    counts.top = top + 1


@no_inline
def advance(stack, d, ratio, cap, log_forget_w, log_forget_x):
    """x ← min(cap, ratio·x), G ← d G, d = γ decay: the groups that reach the cap become one. None of these numbers is 0."""
    all_counts, used, _, x, below_x, below_G, born, G, C = stack
    counts = all_counts[0]
    counts.discounts += np.log(d)
    counts.products += np.log(d * ratio)
    n, bottom, top, r = used.counts[0], counts.bottom, counts.top, ratio
    clipped, born_w, born_x = False, np.inf, np.inf
    while top > bottom and x[top - 1] * r >= cap:
        top -= 1
        for i in range(n):
            G[top, i] = d * G[top, i] + (G[top + 1, i] if clipped else 0.0)
        clipped = True
        born_w, born_x = min(born_w, born[0, top]), min(born_x, born[1, top])
        r *= below_x[top]
        d *= below_G[top]
    while bottom < top and is_negligible(counts, born, bottom, log_forget_w, log_forget_x):
        bottom += 1
    if top > bottom:
        scale(stack, top - 1, r, d)
    if clipped:
        x[top], below_x[top], below_G[top] = cap, 1.0, 1.0
        born[0, top], born[1, top] = born_w, max(born_x, counts.products - np.log(cap))
        for i in range(n):
            C[top, i] = cap * G[top, i] + (C[top - 1, i] if top > bottom else 0.0)
        top += 1
    elif bottom == top:
        bottom, top = 0, 0
    counts.top, counts.bottom = top, bottom
    if top + 4 > len(x) and bottom > len(x) // 2:  # before `has_room` asks for more
        for g in range(bottom, top):
            copy_group(stack, g - bottom, g)
        counts.top, counts.bottom = top - bottom, 0
    if is_crowded(used):
        remove_unused(stack, log_forget_w, log_forget_x)


@no_inline
def remove_unused(stack, log_forget_w, log_forget_x):
    """Remove the slots of weights that matter no more."""
    all_counts, used, seen, _, _, _, _, G, C = stack
    counts, m = all_counts[0], 0
    for i in range(used.counts[0]):
        keep = not is_negligible(counts, seen, i, log_forget_w, log_forget_x)
        move_slot(used, i, m, keep)
        if keep:
            seen[0, m], seen[1, m] = seen[0, i], seen[1, i]
            for g in range(counts.bottom, counts.top):
                G[g, m], C[g, m] = G[g, i], C[g, i]
            m += 1
    set_number(used, m)
