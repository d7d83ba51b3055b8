"""The replay memory: for each copy of the game a ring of steps, from which sequences are drawn.

Slot i of a ring holds the observation s_i, and what was done there and came of it: action, reward, flags, log μ as it was when
the action was taken. **The slot after a step always holds its true next observation.** Within an episode that is the next step's
own; after its end it is the final observation, alone in a slot that is not `valid`, and the new episode begins one
further on. So next values are read from the next slot and are never those of another episode, and no trace passes such a slot.

    written:      s0 a0   s1 a1   s2 a2   s3 —    s0' a0'  s1' …
    valid:        yes     yes     yes     no      yes      no (yet)

`count` slots have been filled, those of final observations included; slot number count, the newest, has an observation and no
action yet. A sequence of n slots begins at count + 1 − slots at the earliest and at count + 1 − n at the latest, so it never runs
across the place that is written next.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from offtrace.deep.agent import of_action


class Memory(NamedTuple):
    """The rings of all copies of the game, [envs, slots, …]."""

    observation: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    log_mu: Array
    """log μ of the action taken, or, where the agent needs it, of all actions, [envs, slots, A]."""
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    """How many slots have been filled, [envs]."""
    priority: Array | None
    """The priority of each step, [envs, slots]; None if sequences are drawn uniformly."""
    peak: Array | None
    """The largest priority so far, which a new step gets; None if sequences are drawn uniformly."""


class Sequences(NamedTuple):
    """Sequences drawn from the memory, [n, steps, …]; `observation` has one step more."""

    observation: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    log_mu: Array
    at: Array
    """Where in the flattened memory the steps are, [n, steps]."""
    weight: Array
    """(N P)^−correction of each sequence, at most 1, [n]."""
    all_log_mu: Array | None
    """log μ of all actions, where the memory keeps them, [n, steps + 1, A]; the last is that of the observation after."""


def empty(envs: int, slots: int, observation: Array, *, prioritised: bool, actions: int | None = None) -> Memory:
    """Make a memory that holds nothing but the first observations [envs, …]; with `actions`, it keeps μ of so many actions."""
    shape = (envs, slots)
    frames = jnp.zeros((*shape, *observation.shape[1:]), observation.dtype)
    return Memory(
        observation=frames.at[:, 0].set(observation),
        action=jnp.zeros(shape, jnp.int32),
        reward=jnp.zeros(shape, jnp.float32),
        terminated=jnp.zeros(shape, bool),
        truncated=jnp.zeros(shape, bool),
        valid=jnp.zeros(shape, bool),
        log_mu=jnp.zeros(shape if actions is None else (*shape, actions), jnp.float32),
        count=jnp.zeros(envs, jnp.int32),
        priority=jnp.zeros(shape, jnp.float32) if prioritised else None,
        peak=jnp.ones((), jnp.float32) if prioritised else None,
    )


def write(
    memory: Memory,
    action: Array,
    log_mu: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    after: Array,
    now: Array,
    log_mu_after: Array | None = None,
) -> Memory:
    """Write one step of every copy of the game. `after` [envs, …] is its true next observation; `now` is what is seen next.

    They differ where the episode ended: `after` is its final observation, `now` the first one of the new episode.
    `log_mu_after` [envs, A] is log μ of all actions at `after`, where the next value depends on it.
    """
    envs, slots = memory.action.shape
    e = jnp.arange(envs)
    count = memory.count + 1 + (terminated | truncated)
    here, ahead, next_ = (c % slots for c in (memory.count, memory.count + 1, count))
    step = memory._replace(
        observation=memory.observation.at[e, ahead].set(after).at[e, next_].set(now),
        action=memory.action.at[e, here].set(action),
        reward=memory.reward.at[e, here].set(reward),
        terminated=memory.terminated.at[e, here].set(terminated),
        truncated=memory.truncated.at[e, here].set(truncated),
        valid=memory.valid.at[e, here].set(True).at[e, ahead].set(False).at[e, next_].set(False),
        log_mu=memory.log_mu.at[e, here].set(log_mu),
        count=count,
    )
    if log_mu_after is not None:
        step = step._replace(log_mu=step.log_mu.at[e, ahead].set(log_mu_after))
    if memory.priority is None:
        return step
    priority = memory.priority.at[e, ahead].set(0.0).at[e, here].set(memory.peak)  # a new step is drawn soon
    return step._replace(priority=priority)


def cut(memory: Memory, now: Array) -> Memory:
    """Mark the steps that were written last as those where episodes were cut; new ones begin at `now`, in slots of their own."""
    envs, slots = memory.action.shape
    e = jnp.arange(envs)
    last, next_ = (memory.count - 1) % slots, (memory.count + 1) % slots
    ended = ~memory.valid[e, last]  # the last slot is a final observation already
    truncated = memory.truncated.at[e, last].max(~ended & ~memory.terminated[e, last])
    at = jnp.where(ended, memory.count % slots, next_)
    return memory._replace(
        observation=memory.observation.at[e, at].set(now),
        truncated=truncated,
        valid=memory.valid.at[e, at].set(False),
        count=memory.count + ~ended,
    )


def starts(memory: Memory, window: int) -> tuple[Array, Array]:
    """Return the first and the last count, [envs] each, at which a sequence of `window` slots may begin."""
    return jnp.maximum(memory.count + 1 - memory.action.shape[1], 0), memory.count + 1 - window


def draw(
    memory: Memory, key: Array, n: int, window: int, *, priority: float = 0.0, correction: float = 0.0
) -> Sequences:
    """Draw n sequences of `window` slots: uniformly, or with chances in proportion to (priority of a start)^`priority`."""
    envs, slots = memory.action.shape
    first, last = starts(memory, window)
    if memory.priority is None:
        below = jnp.cumsum(jnp.maximum(last - first + 1, 0))
        pick = jax.random.randint(key, (n,), 0, below[-1])
        e = jnp.searchsorted(below, pick, side="right")
        start = first[e] + pick - jnp.where(e > 0, below[e - 1], 0)
        weight = jnp.ones(n, jnp.float32)
    else:
        slot = jnp.arange(slots)
        count = memory.count[:, None] - (memory.count[:, None] - slot) % slots  # which step is in each slot
        usable = (count >= first[:, None]) & (count <= last[:, None])
        mass = jnp.where(usable, memory.priority**priority, 0.0).reshape(-1)
        below = jnp.cumsum(mass)
        pick = jnp.searchsorted(below, jax.random.uniform(key, (n,)) * below[-1], side="right")
        pick = jnp.minimum(pick, envs * slots - 1)
        e, start = pick // slots, count.reshape(-1)[pick]
        rarity = below[-1] / (jnp.sum(usable) * jnp.maximum(mass[pick], 1e-30))
        weight = rarity**correction
        weight = weight / jnp.max(weight)
    return _at(memory, e, start, window, weight)


def newest(memory: Memory, window: int) -> Sequences:
    """Return the newest sequence of each copy of the game."""
    e = jnp.arange(memory.count.size)
    return _at(memory, e, starts(memory, window)[1], window, jnp.ones(e.size, jnp.float32))


def _at(memory: Memory, e: Array, start: Array, window: int, weight: Array) -> Sequences:
    """Return the sequences of these copies of the game that begin at these counts."""
    envs, slots = memory.action.shape
    at = e[:, None] * slots + (start[:, None] + jnp.arange(window)) % slots

    def taken(ring: Array, steps: int) -> Array:
        return ring.reshape(envs * slots, *ring.shape[2:])[at[:, :steps]]

    steps = window - 1
    rings = memory.action, memory.reward, memory.terminated, memory.truncated, memory.valid
    action, *of_steps = (taken(ring, steps) for ring in rings)
    log_mu, of_all = taken(memory.log_mu, window), memory.log_mu.ndim == 3
    return Sequences(
        taken(memory.observation, window),
        action,
        *of_steps,
        log_mu=of_action(log_mu[:, :-1], action) if of_all else log_mu[:, :-1],
        at=at[:, :steps],
        weight=weight,
        all_log_mu=log_mu if of_all else None,
    )


def reprioritised(memory: Memory, drawn: Sequences, error: Array) -> Memory:
    """Make |TD error| of the drawn steps their priorities, if the memory has any."""
    if memory.priority is None or memory.peak is None:
        return memory
    flat = memory.priority.reshape(-1)
    new = jnp.where(drawn.valid, jnp.abs(error) + 1e-3, flat[drawn.at])
    priority = flat.at[drawn.at.reshape(-1)].set(new.reshape(-1)).reshape(memory.priority.shape)
    return memory._replace(priority=priority, peak=jnp.maximum(memory.peak, jnp.max(new)))
