"""The eligibility vector z_t = Σ_k (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k of one learner, compiled, in three ways:

    LINEAR    per-decision rules      z ← γ_{t-1} decay_t ratio_t z + ∇q_t                O(active weights) a step
    GROUPS    recursive caps          a stack of groups of starts that share x          O(active weights), amortised
    VISITS    all other rules         every live start with its own state               O(live starts)

The stack is told in `offtrace.returns.streaming.eligibility_vector`; this is the same in arrays, on the weights that are
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

from offtrace.learners.core.compiling import contracted, inlined, leaf, seldom

LINEAR, GROUPS, VISITS = 0, 1, 2

SHORT = 128
TINY = 1e-40
"""What is smaller than this in a vector becomes 0: it would only sink on, to where arithmetic is slow."""

FORGET = 1e-30

# What `Kept.n` counts.
SLOTS, TIDY, TOP, BOTTOM, FIRST, LAST, STEP, GATHERED = range(8)
# What `Kept.age` holds.
DISCOUNTS, PRODUCTS, LAST_DISCOUNT, ITS_LOG, LAST_PRODUCT, LOG_OF_IT = range(6)


class Kept(NamedTuple):
    """Everything that lasts from one step of an episode to the next. `Room` says how large the arrays are."""

    n: np.ndarray
    """Integers: slots in use; how many may be in use before unused ones are looked for; the stack's top and bottom; the first
    and the last live visit; the steps of this episode; whether visits have been gathered into groups."""
    age: np.ndarray
    """[6]: Σ log(γ·decay) and Σ log(γ·decay·ratio) since visits were gathered; what was added last, and its log."""
    slot_of: np.ndarray
    """[size]: the slot of a weight; −1 if it has none."""
    weight_of: np.ndarray
    """[slots]: the weight in a slot."""
    seen: np.ndarray
    """[2, slots]: both ages when it was visited last."""
    moved: np.ndarray
    """[slots]: room for their new numbers."""
    z: np.ndarray
    """[slots]: z itself (LINEAR), or room for a sum (GROUPS)."""
    x: np.ndarray
    """[groups]: what the starts of a group share. Groups are sorted by it, the largest on top."""
    below_x: np.ndarray
    """[groups]: what x of all groups below is still to be multiplied by."""
    below_G: np.ndarray
    """[groups]: the same for their G."""
    born: np.ndarray
    """[2, groups]: the ages less these are log(w) and log(w·x) of the group's starts, or above them."""
    fresh: np.ndarray
    """[groups]: the weight of a group that is one start still, whose ∇q stands in `at`; −1 for the others."""
    G: np.ndarray
    """[groups, slots]: Σ of the discounted ∇q of the group."""
    C: np.ndarray
    """[groups, slots]: x·G + C of the group below; so z is the C of the top."""
    at: np.ndarray
    """[groups, k]: the slots of the ∇q of a group that is one start."""
    by: np.ndarray
    """[groups, k]: the numbers of that ∇q."""
    weights: np.ndarray
    """[visits, k]: the weights of a start's ∇q."""
    numbers: np.ndarray
    """[visits, k]: the numbers of a start's ∇q."""
    product: np.ndarray
    """[visits]: x."""
    w: np.ndarray
    """[visits]: discounts and decays since the start."""
    wβ: np.ndarray
    """[visits]: w·β now."""
    carry: np.ndarray
    """[visits, c]: what a custom step keeps."""
    began: np.ndarray
    """[visits]: the step of the episode at which the start was."""
    pair: np.ndarray
    """[visits]: the id of the start's state and action."""


def kept(way: int, size: int, k: int, carry: int, slots: int, deep: int) -> Kept:
    """Empty, with room for so many slots, and for `deep` groups or visits."""
    groups, visits = {LINEAR: (0, 0), GROUPS: (max(deep, SHORT + 3), SHORT + 3), VISITS: (0, deep)}[way]
    slots = min(size, max(slots, (SHORT + 3) * k)) if way != VISITS else 0
    return Kept(
        n=np.zeros(8, np.int64),
        age=np.ones(6),
        slot_of=np.full(size if way != VISITS else 0, -1, np.int64),
        weight_of=np.zeros(slots, np.int64),
        seen=np.zeros((2, slots)),
        moved=np.zeros(slots, np.int64),
        z=np.zeros(slots),
        x=np.zeros(groups),
        below_x=np.zeros(groups),
        below_G=np.zeros(groups),
        born=np.zeros((2, groups)),
        fresh=np.zeros(groups),
        G=np.zeros((groups, slots)),
        C=np.zeros((groups, slots)),
        at=np.zeros((groups, k), np.int64),
        by=np.zeros((groups, k)),
        weights=np.zeros((visits, k), np.int64),
        numbers=np.zeros((visits, k)),
        product=np.zeros(visits),
        w=np.zeros(visits),
        wβ=np.zeros(visits),
        carry=np.zeros((visits, carry)),
        began=np.zeros(visits, np.int64),
        pair=np.zeros(visits, np.int64),
    )


def grown(way: int, old: Kept) -> Kept:
    """The same with twice the room where it has run out."""
    k, size = old.weights.shape[1], len(old.slot_of)
    slots, deep = len(old.weight_of), len(old.w if way == VISITS else old.x)
    lack_slots, lack_depth = lacking(way, old)
    slots, deep = slots * (1 + lack_slots), deep * (1 + lack_depth)
    new = kept(way, size, k, old.carry.shape[1], slots, deep)
    for a, b in zip(old, new, strict=True):
        b[tuple(slice(0, n) for n in a.shape)] = a
    return new


@inlined
def put(n, to, at, what, of):
    """to[at, :n] = what[of, :n]."""
    for i in range(n):
        to[at, i] = what[of, i]


@leaf
def lacking(way, kept):
    """Whether slots, and whether groups or visits, might not suffice for one more step, or for gathering visits."""
    most = (SHORT + 1) * kept.weights.shape[1]
    slots = way != VISITS and len(kept.weight_of) < min(len(kept.slot_of), kept.n[SLOTS] + most)
    if way == VISITS:
        return slots, kept.n[LAST] == len(kept.w)
    return slots, way == GROUPS and kept.n[TOP] + 3 > len(kept.x)


@inlined
def has_room(way, kept):
    """Whether one more step fits for certain."""
    slots, deep = lacking(way, kept)
    return not (slots or deep)


@inlined
def clear(kept):
    """Forget everything: an episode begins."""
    for i in range(kept.n[SLOTS]):
        kept.slot_of[kept.weight_of[i]] = -1
    for i in range(len(kept.n)):
        kept.n[i] = 0
    kept.n[TIDY] = 64
    kept.age[DISCOUNTS] = kept.age[PRODUCTS] = 0.0


@inlined
def slot(kept, weight):
    """The slot of a weight, a new one if it has none."""
    i = kept.slot_of[weight]
    if i < 0:
        i = kept.n[SLOTS]
        kept.n[SLOTS] += 1
        kept.slot_of[weight] = i
        kept.weight_of[i] = weight
        kept.z[i] = 0.0
        for g in range(kept.n[BOTTOM], kept.n[TOP]):
            kept.G[g, i] = 0.0
            kept.C[g, i] = 0.0
    kept.seen[0, i], kept.seen[1, i] = kept.age[DISCOUNTS], kept.age[PRODUCTS]
    return i


@inlined
def _is_over(kept, since, i, log_forget):
    """Whether what dates from `since` has nothing more to say."""
    return kept.age[DISCOUNTS] - since[0, i] < log_forget[0] or kept.age[PRODUCTS] - since[1, i] < log_forget[1]


@seldom
def _tidy(way, kept, log_forget):
    """Give up the slots whose weights are no longer active. Called when there are twice as many as after the last time."""
    n, bottom, top, m = kept.n[SLOTS], kept.n[BOTTOM], kept.n[TOP], 0
    to = kept.moved
    for i in range(n):
        if kept.z[i] == 0.0 if way == LINEAR else _is_over(kept, kept.seen, i, log_forget):
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
    kept.n[SLOTS] = m
    kept.n[TIDY] = max(64, 2 * m)


@inlined
def enter(way, kept, weights, numbers, first, pair):
    """Start t enters with β = 1: its gradient has `numbers` at `weights`; `first` is what a custom step keeps of a new start."""
    kept.n[STEP] += 1
    if way == LINEAR:
        for j in range(len(weights)):
            kept.z[slot(kept, weights[j])] += numbers[j]
        return
    if way == GROUPS:
        if kept.n[GATHERED]:
            _enter_groups(kept, weights, numbers)
            return
        if kept.n[LAST] - kept.n[FIRST] == SHORT:
            _gather(kept)
            _enter_groups(kept, weights, numbers)
            return
    v = kept.n[LAST]
    kept.n[LAST] = v + 1
    for j in range(len(weights)):
        kept.weights[v, j], kept.numbers[v, j] = weights[j], numbers[j]
    for j in range(len(first)):
        kept.carry[v, j] = first[j]
    kept.product[v], kept.w[v], kept.wβ[v], kept.began[v], kept.pair[v] = 1.0, 1.0, 1.0, kept.n[STEP], pair


@contracted
def apply(way, kept, scale, sizes, to):
    """to += scale · sizes · z, `sizes` elementwise if there are any."""
    if way == VISITS or (way == GROUPS and not kept.n[GATHERED]):
        if kept.weights.shape[1] == 1 and not len(sizes):  # a table
            for v in range(np.uintp(kept.n[FIRST]), np.uintp(kept.n[LAST])):  # unsigned: nothing counts from the end
                to[np.uintp(kept.weights[v, 0])] += scale * kept.wβ[v] * kept.numbers[v, 0]
            return
        for v in range(kept.n[FIRST], kept.n[LAST]):
            c = scale * kept.wβ[v]
            for j in range(kept.weights.shape[1]):
                i = kept.weights[v, j]
                to[i] += c * kept.numbers[v, j] * (sizes[i] if len(sizes) else 1.0)
        return
    z = kept.z if way == LINEAR else kept.C[kept.n[TOP] - 1]
    if len(sizes):
        for i in range(kept.n[SLOTS]):
            to[kept.weight_of[i]] += scale * sizes[kept.weight_of[i]] * z[i]
    else:
        for i in range(np.uintp(kept.n[SLOTS])):
            to[np.uintp(kept.weight_of[i])] += scale * z[i]


@contracted
def advance_linear(kept, discount, decay, ratio):
    """z ← γ decay ratio z."""
    c = discount * decay * ratio
    if c == 0.0:
        clear(kept)
        return
    for i in range(np.uintp(kept.n[SLOTS])):
        z = c * kept.z[i]
        kept.z[i] = z if abs(z) > TINY else 0.0
    if kept.n[SLOTS] > kept.n[TIDY]:
        _tidy(LINEAR, kept, (0.0, 0.0))


@seldom
def advance_groups(kept, discount, decay, ratio, cap, log_forget):
    """x ← min(cap, ratio·x), G ← γ decay G: the groups that reach the cap become one."""
    d = discount * decay
    if d == 0.0 or ratio == 0.0 or cap == 0.0:
        clear(kept)
        return
    if d != kept.age[LAST_DISCOUNT]:
        kept.age[LAST_DISCOUNT], kept.age[ITS_LOG] = d, np.log(d)
    if d * ratio != kept.age[LAST_PRODUCT]:
        kept.age[LAST_PRODUCT], kept.age[LOG_OF_IT] = d * ratio, np.log(d * ratio)
    kept.age[DISCOUNTS] += kept.age[ITS_LOG]
    kept.age[PRODUCTS] += kept.age[LOG_OF_IT]
    n, bottom, top, r = kept.n[SLOTS], kept.n[BOTTOM], kept.n[TOP], ratio
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
    while bottom < top and _is_over(kept, kept.born, bottom, log_forget):
        bottom += 1
    if top > bottom:
        _scale(kept, top - 1, n, r, d)
    if bottom == top:
        bottom, top = 0, 0
    if clipped:
        kept.x[top], kept.below_x[top], kept.below_G[top], kept.fresh[top] = cap, 1.0, 1.0, -1.0
        kept.born[0, top], kept.born[1, top] = born_w, max(born_x, kept.age[PRODUCTS] - np.log(cap))
        for i in range(n):
            kept.G[top, i] = kept.z[i]
            kept.C[top, i] = cap * kept.z[i] + (kept.C[top - 1, i] if top > bottom else 0.0)
        top += 1
    kept.n[TOP], kept.n[BOTTOM] = top, bottom
    if top + 4 > len(kept.x) and bottom > len(kept.x) // 2:  # before `has_room` asks for more
        _sink(kept)
    if kept.n[SLOTS] > kept.n[TIDY]:
        _tidy(GROUPS, kept, log_forget)


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
def _enter_groups(kept, weights, numbers):
    """On top, or where x > 1 (only with caps above 1), below the groups that are larger: these move up by one."""
    bottom, top = kept.n[BOTTOM], kept.n[TOP]
    g, k = top, len(weights)
    while g > bottom and kept.x[g - 1] > 1.0:
        g -= 1
        if g > bottom:
            _scale(kept, g - 1, kept.n[SLOTS], kept.below_x[g], kept.below_G[g])
    for j in range(k):
        slot(kept, weights[j])
    n = kept.n[SLOTS]
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
    kept.born[0, g], kept.born[1, g] = kept.age[DISCOUNTS], kept.age[PRODUCTS]
    for i in range(n):
        kept.C[g, i] = kept.C[g - 1, i] if g > bottom else 0.0
    for j in range(k):
        kept.at[g, j], kept.by[g, j] = kept.slot_of[weights[j]], numbers[j]
        kept.C[g, kept.at[g, j]] += numbers[j]
    kept.n[TOP] = top + 1


@seldom
def _gather(kept):
    """Every visit becomes a group of its own, the smallest x first."""
    first, last = kept.n[FIRST], kept.n[LAST]
    kept.n[GATHERED], kept.n[TOP], kept.n[BOTTOM] = 1, 0, 0
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
        for i in range(kept.n[SLOTS]):
            kept.C[g, i] = kept.C[g - 1, i] if g > 0 else 0.0
        for j in range(k):
            kept.C[g, kept.at[g, j]] += x * kept.w[v] * kept.by[g, j]
        kept.n[TOP] = g + 1


@seldom
def _sink(kept):
    """Move the stack down to where its lowest groups have been forgotten."""
    bottom, top, n, k = kept.n[BOTTOM], kept.n[TOP], kept.n[SLOTS], kept.at.shape[1]
    for g in range(bottom, top):
        h = g - bottom
        kept.x[h], kept.fresh[h] = kept.x[g], kept.fresh[g]
        kept.born[0, h], kept.born[1, h] = kept.born[0, g], kept.born[1, g]
        kept.below_x[h], kept.below_G[h] = kept.below_x[g], kept.below_G[g]
        put(n, kept.G, h, kept.G, g)
        put(n, kept.C, h, kept.C, g)
        put(k, kept.at, h, kept.at, g)
        put(k, kept.by, h, kept.by, g)
    kept.n[TOP], kept.n[BOTTOM] = top - bottom, 0


@inlined
def drop_visits(kept, reach, forget):
    """Drop the oldest starts where they have reached their horizon or have nothing more to say."""
    first, last, step = kept.n[FIRST], kept.n[LAST], kept.n[STEP] + 1
    while first < last and (
        step - kept.began[first] >= reach
        or not kept.w[first] > forget
        or not kept.w[first] * kept.product[first] > FORGET
    ):
        first += 1
    kept.n[FIRST] = first
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
        kept.n[FIRST], kept.n[LAST] = 0, last - first


@contracted
def advance_products(kept, discount, decay, ratio, cap, recursive, lags):
    """x ← ratio·x, clipped if recursive; β = min(cap, x), and its bound by lag where there are some."""
    d = discount * decay
    if d == 0.0 or ratio == 0.0 or (recursive and cap == 0.0):
        kept.n[FIRST] = kept.n[LAST] = 0
        return
    for v in range(np.uintp(kept.n[FIRST]), np.uintp(kept.n[LAST])):
        x = min(kept.product[v] * ratio, 1e300)
        w, β = kept.w[v] * d, min(cap, x)
        kept.product[v] = β if recursive else x
        kept.w[v] = w
        kept.wβ[v] = w * β
    if len(lags):
        for v in range(kept.n[FIRST], kept.n[LAST]):
            bound = lags[min(kept.n[STEP] + 1 - kept.began[v], len(lags)) - 1]
            kept.wβ[v] = kept.w[v] * min(bound, min(cap, kept.product[v]))


@seldom
def advance_steps(kept, custom, discount, π, μ, ρ, lam, pair):
    """One call of a custom step for each live start; False if a β is negative or not finite."""
    step = kept.n[STEP] + 1
    for v in range(kept.n[FIRST], kept.n[LAST]):
        β = custom(kept.carry[v], π, μ, ρ, lam, float(step - kept.began[v]), kept.pair[v], pair)
        if not (β >= 0.0 and β < np.inf):
            return False
        kept.w[v] *= discount
        kept.wβ[v] = kept.w[v] * β
    return True
