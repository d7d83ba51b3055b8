"""The games. Compiled ones (gymnax) are pure functions for one copy of the game; `training` maps them over copies and seeds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offtrace._shared.extras import from_extra
from offtrace._shared.suggestions import closest, ending
from offtrace.deep.settings import Settings

if TYPE_CHECKING:
    from gymnax.environments.environment import Environment, EnvParams, EnvState

Numbers = TypeVar("Numbers", Array, np.ndarray)


class WorldState(NamedTuple):
    """The state of one copy of the game."""

    game: EnvState
    last_action: Array


class Stepped(NamedTuple, Generic[Numbers]):
    """The outcome of a step."""

    state: WorldState | None
    """The state of the game; None where the host holds it."""
    now: Numbers
    """The observation to act on next: that of a new episode, where this one ended."""
    after: Numbers
    """The true next observation."""
    reward: Numbers
    terminated: Numbers
    truncated: Numbers


@dataclass(frozen=True)
class World:
    """A gymnax environment. With the chance `sticky` the game sees the last action instead of the one chosen."""

    environment: Environment[EnvState, EnvParams]
    parameters: EnvParams
    sticky: float
    shape: tuple[int, ...]
    actions: int
    dtype: np.dtype[np.generic]
    """The dtype of observations in the memory: boolean where they are 0 or 1, which takes a quarter of the room."""

    def reset(self, key: Array) -> tuple[WorldState, Array]:
        """Begin an episode; return its first state and observation."""
        observation, game = self.environment.reset_env(key, self.parameters)
        return WorldState(game, jnp.zeros((), jnp.int32)), self._seen(observation)

    def step(self, key: Array, state: WorldState, action: Array) -> Stepped[Array]:
        """Take a step, and begin a new episode where this one ended."""
        to_step, to_stick = jax.random.split(key)
        if self.sticky:
            sticks = jax.random.uniform(to_stick) < self.sticky
            action = jnp.where(sticks, state.last_action, action)
        now, game, reward, terminated, truncated, info = self.environment.step(
            to_step, state.game, action, self.parameters
        )
        last = jnp.where(terminated | truncated, 0, action).astype(jnp.int32)
        after = self._seen(info["final_observation"])
        return Stepped(
            WorldState(game, last),
            self._seen(now),
            after,
            reward.astype(jnp.float32),
            terminated,
            truncated & ~terminated,
        )

    def _seen(self, observation: Array) -> Array:
        return jnp.asarray(observation).reshape(self.shape).astype(self.dtype)


MINATAR = {
    f"minatar/{short}": f"{long}-MinAtar"
    for short, long in {
        "asterix": "Asterix", "breakout": "Breakout", "freeway": "Freeway", "seaquest": "Seaquest",
        "space-invaders": "SpaceInvaders",
    }.items()
}  # fmt: skip


def compiled(config: Settings) -> World:
    """Make the gymnax game of a configuration."""
    with from_extra("deep", "compiled games need"):
        import gymnax
    known = [*MINATAR, *gymnax.registered_envs]
    name = MINATAR.get(config.game, config.game)
    if name not in gymnax.registered_envs:
        hint = ending(closest(config.game, known))
        raise ValueError(
            f"there is no game {config.game!r}{hint} MinAtar: {', '.join(MINATAR)}; gymnax: {', '.join(gymnax.registered_envs)}; "
            "any Gymnasium environment as gym/ID"
        )
    environment, parameters = gymnax.make(name)
    if config.limit is not None:
        parameters = parameters.replace(max_steps_in_episode=config.limit)
    space = environment.action_space(parameters)
    if not hasattr(space, "n"):
        raise TypeError(f"{config.game!r} has continuous actions: a Q-network needs a finite number of them")
    minatar = name.endswith("-MinAtar")
    sticky = config.sticky if config.sticky is not None else 0.1 * minatar
    observation = jax.eval_shape(lambda key: environment.reset_env(key, parameters)[0], jax.random.PRNGKey(0))
    dtype = np.dtype(np.bool_ if minatar else np.float32)
    return World(environment, parameters, sticky, tuple(observation.shape), int(space.n), dtype)


class Hosted:
    """A Gymnasium environment, as a vector of `count` copies that the host steps. Checkpoints do not hold its state."""

    def __init__(self, config: Settings, count: int, seed: int, render_mode: str | None = None) -> None:
        import gymnasium
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        name = config.game.removeprefix("gym/")
        limit = {} if config.limit is None else {"max_episode_steps": config.limit}
        make = partial(gymnasium.make, name, render_mode=render_mode, **limit)
        try:  # not gymnasium.spec: it does not know "module:ID"
            self.vector = SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)
        except gymnasium.error.Error as error:
            raise ValueError(f"Gymnasium cannot make {name!r}: {error}") from error
        space, seen = self.vector.single_action_space, self.vector.single_observation_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise TypeError(f"{name!r} has actions {space}: a Q-network needs a finite number of them")
        if not isinstance(seen, gymnasium.spaces.Box | gymnasium.spaces.Discrete):
            raise TypeError(f"{name!r} has observations {seen}: they must be arrays, or numbers of states")
        self.actions = int(space.n)
        self.states = int(seen.n) if isinstance(seen, gymnasium.spaces.Discrete) else 0
        self.shape = (self.states,) if self.states else tuple(seen.shape or ())
        self.dtype = np.uint8 if seen.dtype == np.uint8 else np.float32
        self.sticky = config.sticky or 0.0
        self.last = np.zeros(count, int)
        self.rng = np.random.default_rng(seed)
        self.first = self._seen(self.vector.reset(seed=seed)[0])

    def step(self, action: np.ndarray) -> Stepped[np.ndarray]:
        """Take a step in every copy."""
        sticks = self.rng.random(len(action)) < self.sticky
        action = np.where(sticks, self.last, action)
        now, reward, terminated, truncated, info = self.vector.step(action)
        after = now.copy()
        for i in np.flatnonzero(terminated | truncated):
            after[i] = info["final_obs"][i]
        self.last = np.where(terminated | truncated, 0, action)
        return Stepped(
            None, self._seen(now), self._seen(after), reward.astype(np.float32), terminated, truncated & ~terminated
        )

    def _seen(self, observation: np.ndarray) -> np.ndarray:
        return np.eye(self.states, dtype=self.dtype)[observation] if self.states else observation.astype(self.dtype)
