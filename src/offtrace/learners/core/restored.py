"""What a snapshot may hold: compiled loops do not look whether an index lies within its array, so that is checked before.

A checkpoint may have been written by anybody. Whatever numbers it holds, the loop must not read or write beside its arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from offtrace.learners.core.acting import GREEDY, Coded
from offtrace.learners.core.eligibility import kept as eligibility
from offtrace.learners.core.eligibility.kept import GROUPS, VISITS, Kept
from offtrace.learners.core.loop_memory import Memory, Out
from offtrace.learners.core.loop_settings import Settings

Array = NDArray[np.generic]
Saved = Mapping[str, Array]
T = TypeVar("T", Memory, Kept, Out)


class Room(NamedTuple):
    """How many there are of what indices count."""

    states: int
    """Or rows of features that are remembered."""
    actions: int
    weights: int


def require(holds: bool | np.bool_, name: str) -> None:
    """Refuse a snapshot whose part `name` is not what the loop could have left."""
    if not holds:
        raise ValueError(f"its {name} is not what a learner leaves")


def require_within(array: Array, low: int, high: int, name: str) -> None:
    """Refuse indices outside of low, …, high − 1."""
    require(bool(np.greater_equal(array, low).all() and np.less(array, high).all()), name)


def read(saved: Saved, part: str, like: T) -> T:
    """The arrays of a part, with the dtypes and shapes of `like`.

    A file does not tell records from other types with fields, hence the views.
    """
    arrays: list[Array] = []
    for name, wanted in zip(like._fields, like, strict=True):
        found = saved.get(f"{part}.{name}")
        if found is None or found.shape != wanted.shape or found.dtype.itemsize != wanted.dtype.itemsize:
            raise ValueError(f"its {part}.{name} has another size than this run's")
        arrays.append(np.ascontiguousarray(found).view(wanted.dtype))
    return like._make(arrays)


def read_kept(saved: Saved, like: Kept, way: int, room: Room) -> Kept:
    """What the eligibility vector keeps, which may have more room than `like`."""
    slots, depths = saved["kept.weight_of"].shape, saved["kept.w" if way == VISITS else "kept.x"].shape
    require(len(slots) == len(depths) == 2 and max(*slots, *depths) < 2**40, "eligibility")
    lanes, k, carry = len(like.counts), like.weights.shape[2], like.carry.shape[2]
    copies = like.copied_weights.size > 0
    wanted = eligibility.empty(way, like.slot_of.shape[1], k, carry, slots[1], depths[1], lanes, copies)
    kept = read(saved, "kept", wanted)
    counts, visits = kept.counts, kept.w.shape[1]
    in_order = (0, "bottom", "top", kept.x.shape[1] if way == GROUPS else 0), (0, "first", "last", visits)
    for low, first, last, most in (*in_order, (0, "slots", "slots", kept.weight_of.shape[1])):
        begin, end = counts[first], counts[last]
        require(bool(((low <= begin) & (begin <= end) & (end <= most)).all()), "eligibility")
    for indices, low, high in (
        (kept.slot_of, -1, kept.weight_of.shape[1]),
        (kept.weight_of, 0, room.weights),
        (kept.at, 0, max(kept.weight_of.shape[1], 1)),
        (kept.weights, 0, room.weights),
        (kept.pair, 0, room.states * room.actions),
    ):
        require_within(indices, low, high, "eligibility")
    for count, began in zip(counts, kept.began, strict=True):
        require_within(began[count["first"] : count["last"]], 0, int(count["step"]) + 1, "eligibility")
    return kept


def read_memory(
    saved: Saved, like: Memory, settings: Settings, policies: Sequence[Coded], room: Room, out: Out
) -> Memory:
    """What a learner keeps. `policies` are the behaviour and the target; `out` is what came of its seeds so far."""
    m = read(saved, "m", like)
    p, ring = m.progress[0], m.buffer.shape[1]
    require(0 <= p.seed < len(out.seeds) or (not p.begun and p.seed == len(out.seeds)), "seed")
    require(0 <= p.mark <= len(settings.marks) and 0 <= p.looks <= len(out.look_step), "progress")
    for now, end in ((p.step, settings.steps), (p.episode, settings.episodes)):
        require(now >= 0 and (not p.begun or not end or now < end), "progress")
    require_within(p.look_state.reshape(1), -1, room.states, "state")
    lane, buffer = m.lane, m.buffer
    for name, array, low, high in (
        ("state", lane["state"], -1, room.states),
        ("action", lane["action"], 0, room.actions),
        ("action", lane["chosen"], -1, room.actions),
        ("buffer", lane["head"], 0, max(ring, 1)),
        ("buffer", lane["filled"], 0, ring + 1),
        ("buffer", buffer["state"], 0, room.states),
        ("buffer", buffer["next_state"], 0, room.states),
        ("buffer", buffer["action"], 0, room.actions),
        ("list of touched weights", m.touched, 0, room.weights),
    ):
        require_within(array, low, high, name)
    is_touched = m.is_touched.view(np.uint8)
    require_within(is_touched, 0, 2, "list of touched weights")
    require(bool((lane["touched"] == is_touched.sum(axis=1)).all()), "list of touched weights")
    under_way = (lane["state"] >= 0) & bool(p.begun)  # else the policies are set before they are asked
    for policy, now in zip(policies, (m.behavior, m.target), strict=True):
        now = now[under_way]
        require(bool(np.isin(now["kind"], (policy.kind, GREEDY)).all()), "policy")
        for name in ("level", "share", "nth"):
            require(bool((np.isfinite(now[name]) & (now[name] >= 0)).all()), "policy")
    return m


def read_out(saved: Saved, like: Out) -> Out:
    """What came of seeds so far: there may be more room for evaluation episodes than in `like`."""
    looks = max(len(saved["out.look_step"]), len(like.look_step))
    room = {"look_step": np.zeros(looks, np.int64), "look_return": np.zeros(looks)}
    out = read(saved, "out", like._replace(**room))
    require(bool((out.seeds == like.seeds).all()), "seeds")
    return out
