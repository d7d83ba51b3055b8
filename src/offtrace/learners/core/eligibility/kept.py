"""The eligibility vector z_t = Σ_k (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k of one learner, compiled, in three ways:

    LINEAR    per-decision rules      z ← γ_{t-1} decay_t ratio_t z + ∇q_t                O(active weights) a step
    GROUPS    recursive caps          a stack of groups of starts that share x          O(active weights), amortised
    VISITS    all other rules         every live start with its own state               O(live starts)

The stack is explained in `offtrace.returns.streaming.eligibility_vector`; this is the same in arrays, on the weights that are
active. A weight is active from its first visit in an episode on. It has a *slot*, so that vectors are short and stand
together. While an episode is short, single visits are cheaper than the stack: a recursive cap begins with them and gathers
them into groups when there are more than `SHORT`.

Nothing that could still matter is dropped: a start goes when γ^n β has sunk below 10⁻³⁰ (or when its discounts and decays
alone are below 10⁻¹⁸ and a cap keeps β from making up for it). Under μ the product of ratios is a martingale, so by Ville's
inequality the chance that such a start ever comes back to 10⁻¹⁸ of an update is at most 10⁻¹².
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners.core.compiling import inlined, leaf, seldom
from offtrace.learners.core.record_arrays import Floats, Integers, Records, record

LINEAR, GROUPS, VISITS = 0, 1, 2

SHORT = 128
"""So many visits of an episode are kept one by one before they are gathered into groups."""
TINY = 1e-40
"""What is smaller than this in a vector becomes 0: it would only sink on, to where arithmetic is slow."""
FORGET = 1e-30
"""A start whose weight is smaller than this is dropped."""

COUNTS = record(
    slots=np.int64,  # slots in use
    tidy=np.int64,  # how many may be in use before unused ones are looked for
    top=np.int64,  # the stack of groups is bottom … top − 1
    bottom=np.int64,
    first=np.int64,  # the live visits are first … last − 1
    last=np.int64,
    step=np.int64,  # steps of this episode
    gathered=np.int64,  # whether visits have been gathered into groups
)

AGES = record(
    discounts=np.float64,  # Σ log(γ·decay) since visits were gathered
    products=np.float64,  # Σ log(γ·decay·ratio) since then
    last_discount=np.float64,  # the last γ·decay, and its logarithm
    log_of_discount=np.float64,
    last_product=np.float64,  # the last γ·decay·ratio, and its logarithm
    log_of_product=np.float64,
)


class Kept(NamedTuple):
    """What lasts from one step of an episode to the next. All have a first axis of lanes; compiled functions see one lane."""

    counts: Records
    """A record COUNTS."""
    ages: Records
    """A record AGES."""
    slot_of: Integers
    """[size]: the slot of a weight; −1 if it has none."""
    weight_of: Integers
    """[slots]: the weight in a slot."""
    seen: Floats
    """[2, slots]: both ages when it was visited last."""
    moved: Integers
    """[slots]: room for their new numbers."""
    z: Floats
    """[slots]: z itself (LINEAR), or room for a sum (GROUPS)."""
    x: Floats
    """[groups]: what the starts of a group share. Groups are sorted by it, the largest on top."""
    below_x: Floats
    """[groups]: what x of all groups below is still to be multiplied by."""
    below_G: Floats
    """[groups]: the same for their G."""
    born: Floats
    """[2, groups]: the ages less these are log(w) and log(w·x) of the group's starts, or above them."""
    fresh: Floats
    """[groups]: the weight of a group that is one start still, whose ∇q stands in `at`; −1 for the others."""
    G: Floats
    """[groups, slots]: Σ of the discounted ∇q of the group."""
    C: Floats
    """[groups, slots]: x·G + C of the group below; so z is the C of the top."""
    at: Integers
    """[groups, k]: the slots of the ∇q of a group that is one start."""
    by: Floats
    """[groups, k]: the numbers of that ∇q."""
    weights: Integers
    """[visits, k]: the weights of a start's ∇q."""
    numbers: Floats
    """[visits, k]: the numbers of a start's ∇q."""
    product: Floats
    """[visits]: x."""
    w: Floats
    """[visits]: discounts and decays since the start."""
    wβ: Floats
    """[visits]: w·β now."""
    carry: Floats
    """[visits, c]: what a custom step keeps."""
    began: Integers
    """[visits]: the step of the episode at which the start was."""
    pair: Integers
    """[visits]: the id of the start's state and action."""
    copied_weights: Integers
    """[2, room]: z of this step and z as it is passed on, weight by weight, where a method's own step asks for them."""
    copied_numbers: Floats
    """[2, room]: the numbers there."""


def empty(way: int, size: int, k: int, carry: int, slots: int, deep: int, lanes: int, copies: bool = False) -> Kept:
    """Nothing yet, with room for so many slots, and for `deep` groups or visits; `copies`: and for copies of z."""
    groups, visits = {LINEAR: (0, 0), GROUPS: (max(deep, SHORT + 3), SHORT + 3), VISITS: (0, deep)}[way]
    slots = min(size, max(slots, (SHORT + 3) * k)) if way != VISITS else 0
    room = max(slots, visits * k) if copies else 0
    ages = np.zeros(lanes, AGES)
    ages["last_discount"] = ages["last_product"] = 1.0

    def floats(*shape: int) -> Floats:
        return np.zeros((lanes, *shape))

    def integers(*shape: int) -> Integers:
        return np.zeros((lanes, *shape), np.int64)

    return Kept(
        counts=np.zeros(lanes, COUNTS),
        ages=ages,
        slot_of=np.full((lanes, size if way != VISITS else 0), -1, np.int64),
        weight_of=integers(slots),
        seen=floats(2, slots),
        moved=integers(slots),
        z=floats(slots),
        x=floats(groups),
        below_x=floats(groups),
        below_G=floats(groups),
        born=floats(2, groups),
        fresh=floats(groups),
        G=floats(groups, slots),
        C=floats(groups, slots),
        at=integers(groups, k),
        by=floats(groups, k),
        weights=integers(visits, k),
        numbers=floats(visits, k),
        product=floats(visits),
        w=floats(visits),
        wβ=floats(visits),
        carry=floats(visits, carry),
        began=integers(visits),
        pair=integers(visits),
        copied_weights=integers(2, room),
        copied_numbers=floats(2, room),
    )


def grown(way: int, old: Kept) -> Kept:
    """The same with twice the room where it has run out in a lane; the very same where it has not."""
    lanes = len(old.counts)
    lack_slots, lack_depth = np.any([lacking(way, Kept(*(a[j] for a in old))) for j in range(lanes)], axis=0)
    if not (lack_slots or lack_depth):
        return old
    slots, deep = old.weight_of.shape[1], (old.w if way == VISITS else old.x).shape[1]
    k, carry = old.weights.shape[2], old.carry.shape[2]
    room = slots << int(lack_slots), deep << int(lack_depth)
    new = empty(way, old.slot_of.shape[1], k, carry, *room, lanes, copies=old.copied_weights.size > 0)
    for a, b in zip(old, new, strict=True):
        b[tuple(slice(0, n) for n in a.shape)] = a
    return new


def as_seen(ks: Kept, j: int) -> Kept:
    """What lane j keeps."""
    return Kept._make(array[j, ...] for array in ks)


@inlined
def put(n, to, at, what, of):
    """to[at, :n] = what[of, :n]."""
    for i in range(n):
        to[at, i] = what[of, i]


@leaf
def lacking(way, kept):
    """Whether slots, and whether groups or visits, might not suffice for one more step, or for gathering visits."""
    most = (SHORT + 1) * kept.weights.shape[1]
    slots = way != VISITS and len(kept.weight_of) < min(len(kept.slot_of), kept.counts.slots + most)
    if way == VISITS:
        return slots, kept.counts.last == len(kept.w)
    return slots, way == GROUPS and kept.counts.top + 3 > len(kept.x)


@inlined
def has_room(way, kept):
    """Whether one more step fits for certain."""
    slots, deep = lacking(way, kept)
    return not (slots or deep)


@inlined
def clear(kept):
    """Forget everything: an episode begins."""
    for i in range(kept.counts.slots):
        kept.slot_of[kept.weight_of[i]] = -1
    counts, ages = kept.counts, kept.ages
    counts.slots, counts.tidy, counts.top, counts.bottom = 0, 64, 0, 0
    counts.first, counts.last, counts.step, counts.gathered = 0, 0, 0, 0
    ages.discounts, ages.products = 0.0, 0.0


@inlined
def slot(kept, weight):
    """The slot of a weight, a new one if it has none."""
    i = kept.slot_of[weight]
    if i < 0:
        i = kept.counts.slots
        kept.counts.slots += 1
        kept.slot_of[weight] = i
        kept.weight_of[i] = weight
        kept.z[i] = 0.0
        for g in range(kept.counts.bottom, kept.counts.top):
            kept.G[g, i] = 0.0
            kept.C[g, i] = 0.0
    kept.seen[0, i], kept.seen[1, i] = kept.ages.discounts, kept.ages.products
    return i


@inlined
def is_over(kept, since, i, log_forget):
    """Whether what dates from `since` has nothing more to say."""
    return kept.ages.discounts - since[0, i] < log_forget[0] or kept.ages.products - since[1, i] < log_forget[1]


@seldom
def tidy(way, kept, log_forget):
    """Give up the slots whose weights are no longer active. Called when there are twice as many as after the last time."""
    n, bottom, top, m = kept.counts.slots, kept.counts.bottom, kept.counts.top, 0
    to = kept.moved
    for i in range(n):
        if kept.z[i] == 0.0 if way == LINEAR else is_over(kept, kept.seen, i, log_forget):
            kept.slot_of[kept.weight_of[i]] = to[i] = -1
            continue
        to[i] = m
        kept.slot_of[kept.weight_of[i]] = m
        kept.weight_of[m], kept.z[m] = kept.weight_of[i], kept.z[i]
        kept.seen[0, m], kept.seen[1, m] = kept.seen[0, i], kept.seen[1, i]
        m += 1
    for g in range(bottom, top):
        for i in range(n):
            if to[i] >= 0:
                kept.G[g, to[i]], kept.C[g, to[i]] = kept.G[g, i], kept.C[g, i]
        if kept.fresh[g] >= 0.0:
            for j in range(kept.at.shape[1]):
                i = to[kept.at[g, j]]
                kept.at[g, j] = max(i, 0)
                kept.by[g, j] *= i >= 0
    kept.counts.slots = m
    kept.counts.tidy = max(64, 2 * m)
