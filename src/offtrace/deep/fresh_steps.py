"""What agents remember that have no replay memory: the steps of all games since they last learned."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from offtrace.deep.agent import Acted
from offtrace.deep.games import Stepped


class Steps(NamedTuple):
    """The last `length` steps of each copy of the game, [envs, length, …], written over and over again."""

    observation: Array
    action: Array
    log_mu: Array
    reward: Array
    terminated: Array
    truncated: Array
    after: Array
    """The true next observation."""
    now: Array
    """The observation that was acted on next: that of a new episode, where this one ended."""
    at: Array
    """Where the next step is written."""


def empty(length: int, observation: Array) -> Steps:
    """Make room for `length` steps of each copy of the game, whose observations are like these, [envs, …]."""
    shape = (observation.shape[0], length)
    seen = jnp.zeros((*shape, *observation.shape[1:]), observation.dtype)
    number, flag = jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool)
    return Steps(seen, jnp.zeros(shape, jnp.int32), number, number, flag, flag, seen, seen, jnp.zeros((), jnp.int32))


def write(steps: Steps, observation: Array, acted: Acted, seen: Stepped[Array]) -> Steps:
    """Write one step of every copy of the game."""
    new = (observation, *acted, seen.reward, seen.terminated, seen.truncated, seen.after, seen.now)

    def written(ring: Array, values: Array) -> Array:
        return ring.at[:, steps.at].set(values)

    rings: list[Array] = jax.tree.map(written, list(steps[:-1]), list(new))
    return Steps._make([*rings, (steps.at + 1) % steps.action.shape[1]])
