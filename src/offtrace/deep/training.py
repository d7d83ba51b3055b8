"""Acting and learning in turns, for all seeds at once: compiled with the game, or with a game that the host steps.

Both have `first` (makes the state before training), `collect` (plays without learning) and `advance` (plays a number of rounds:
act, draw, update), which also returns a Tally of those rounds, with numbers [seeds].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from offtrace.deep import memory as memories
from offtrace.deep.agent import Agent, Credit, Learner
from offtrace.deep.config import DEFAULT_TRACE, Config
from offtrace.deep.games import Hosted, Numbers, Stepped, World, WorldState, compiled
from offtrace.deep.memory import Memory
from offtrace.deep.networks import Weights
from offtrace.traces import Rule, pytrees

REPORT = 8_192
"""About how many frames there are between two reports: a run is cut into equal pieces and a rest, a resumed run as well."""


class State(NamedTuple):
    """Everything that a run depends on, except its configuration. All leaves have the seeds as their first axis."""

    learner: Learner
    memory: Memory
    world: WorldState | None
    """The states of the games; None where the host holds them."""
    observation: Array
    """What is acted on next, [envs, …]."""
    returns: Array
    """The returns so far of the episodes that are being played, [envs]."""
    frames: Array
    key: Array


class Tally(NamedTuple, Generic[Numbers]):
    """What happened since the last report, [seeds] each."""

    episodes: Numbers
    """How many episodes ended."""
    total: Numbers
    """The sum of their returns."""
    loss: Numbers
    """The mean loss."""
    length: Numbers
    """`length`, `magnitude` and `cut` are those of `Credit`."""
    magnitude: Numbers
    cut: Numbers


Ended = tuple[Array, Array]
"""How many episodes ended, and the sum of their returns."""
Playing = tuple[WorldState | None, Array, Array, Array]
"""The game, the observation, the return so far, and whether the episode goes on, of each copy of the game."""


def batched(trace: Rule, seeds: int) -> Rule:
    """Return the trace with its numbers repeated for every seed, as `advance` takes it."""
    pytrees.register(type(trace))  # it may have been made before JAX was imported
    return jax.tree.map(lambda number: jnp.full((seeds, *np.shape(number)), number, jnp.float32), trace)


def rounds(config: Config, frames: int = 0) -> int:
    """Return how many rounds there are from this frame to the next report: as many as between any two, or those left."""
    piece = max(1, min(REPORT, config.frames // 20) // config.round)
    return min(piece, -(-(config.end - frames) // config.round))


def _remembered(state: State, action: Array, log_mu: Array, seen: Stepped[Array]) -> tuple[State, Array, Array]:
    """Return the state after a step of one seed's games, how many episodes ended there, and the sum of their returns."""
    memory = memories.write(
        state.memory, action, log_mu, seen.reward, seen.terminated, seen.truncated, seen.after, seen.now
    )
    ended = seen.terminated | seen.truncated
    returns = state.returns + seen.reward
    after = state._replace(
        memory=memory,
        world=seen.state,
        observation=seen.now,
        returns=jnp.where(ended, 0.0, returns),
        frames=state.frames + ended.size,
    )
    return after, jnp.sum(ended), jnp.sum(jnp.where(ended, returns, 0.0))


class Compiled:
    """Trains in one program, with the game in it."""

    def __init__(self, config: Config, world: World) -> None:
        self.config, self.world = config, world
        self.agent = Agent(config, world.shape, world.actions)
        self.first: Callable[[Array], State] = jax.jit(jax.vmap(self._first))
        self.collect: Callable[[State], State] = jax.jit(jax.vmap(self._collect), donate_argnums=0)
        advance = jax.vmap(self._advance, in_axes=(0, 0, None))
        self.advance: Callable[[Rule, State, int], tuple[State, Tally[Array]]] = jax.jit(advance, donate_argnums=1)
        evaluate = jax.vmap(self._evaluate, in_axes=(0, 0, None, None))
        self.evaluate: Callable[[Weights, Array, int, int], Array] = jax.jit(evaluate, static_argnums=(2, 3))

    def _first(self, key: Array) -> State:
        key, to_learn, to_reset = jax.random.split(key, 3)
        c = self.config
        world, observation = jax.vmap(self.world.reset)(jax.random.split(to_reset, c.envs))
        memory = memories.empty(c.envs, c.slots, observation, prioritised=c.priority > 0)
        returns, frames = jnp.zeros(c.envs), jnp.zeros((), jnp.int32)
        return State(self.agent.first(to_learn), memory, world, observation, returns, frames, key)

    def _stepped(self, keys: Array, world: WorldState | None, action: Array) -> Stepped[Array]:
        return jax.vmap(self.world.step)(keys, world, action)  # pyright: ignore[reportArgumentType] (here it is never None)

    def _play(self, state: State, _: None) -> tuple[State, Ended]:
        key, to_act, to_step = jax.random.split(state.key, 3)
        action, log_mu = self.agent.act(state.learner.weights, state.observation, state.frames, to_act)
        seen = self._stepped(jax.random.split(to_step, self.config.envs), state.world, action)
        after, ended, returns = _remembered(state._replace(key=key), action, log_mu, seen)
        return after, (ended, returns)

    def _collect(self, state: State) -> State:
        return lax.scan(self._play, state, length=self.config.begin // self.config.envs)[0]

    def _advance(self, trace: Rule, state: State, n: Array) -> tuple[State, Tally[Array]]:
        """Play n rounds. n is an argument of the program: the last piece of a run may be shorter, and is not compiled again."""
        c = self.config

        def one_round(_: Array, carried: tuple[State, Array, Array, Array]) -> tuple[State, Array, Array, Array]:
            state, ended, returns, losses = carried
            state, (episodes, total) = lax.scan(self._play, state, length=c.round // c.envs)
            key, to_learn = jax.random.split(state.key)
            learner, memory, loss = self.agent.learn(trace, state.learner, state.memory, to_learn)
            after = state._replace(learner=learner, memory=memory, key=key)
            return after, ended + jnp.sum(episodes), returns + jnp.sum(total), losses + loss

        nothing = jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(())
        state, episodes, total, loss = lax.fori_loop(0, n, one_round, (state, *nothing))
        key, to_measure = jax.random.split(state.key)
        credit = self.agent.credit(trace, state.learner, state.memory, to_measure)
        return state._replace(key=key), Tally(episodes, total, loss / n, *credit)

    def _evaluate(self, weights: Weights, key: Array, episodes: int, steps: int) -> Array:
        """Return the mean return of greedy episodes, each from a start of its own and cut after `steps` steps."""

        def play(carried: Playing, key: Array) -> tuple[Playing, None]:
            world, observation, returns, alive = carried
            action = jnp.argmax(self.agent.values(weights, observation), axis=-1)
            seen = self._stepped(jax.random.split(key, episodes), world, action)
            ended = seen.terminated | seen.truncated
            return (seen.state, seen.now, returns + alive * seen.reward, alive & ~ended), None

        to_reset, to_play = jax.random.split(key)
        first = jax.vmap(self.world.reset)(jax.random.split(to_reset, episodes))
        carried = (*first, jnp.zeros(episodes), jnp.ones(episodes, bool))
        return jnp.mean(lax.scan(play, carried, jax.random.split(to_play, steps))[0][2])


class Programs:
    """The compiled parts of the loop that the host runs."""

    def __init__(self, config: Config, shape: tuple[int, ...], actions: int) -> None:
        self.agent = Agent(config, shape, actions)
        self.first: Callable[[Array], Learner] = jax.jit(jax.vmap(self.agent.first))
        self.act: Callable[[State], tuple[Array, Array, Array]] = jax.jit(jax.vmap(self._act))
        self.remember: Callable[[State, Array, Array, Stepped[np.ndarray]], tuple[State, Array, Array]]
        self.remember = jax.jit(jax.vmap(_remembered), donate_argnums=0)
        self.learn: Callable[[Rule, State], tuple[State, Array]] = jax.jit(jax.vmap(self._learn), donate_argnums=1)
        self.credit: Callable[[Rule, Learner, Memory, Array], Credit] = jax.jit(jax.vmap(self.agent.credit))

    def _act(self, state: State) -> tuple[Array, Array, Array]:
        key, to_act = jax.random.split(state.key)
        return key, *self.agent.act(state.learner.weights, state.observation, state.frames, to_act)

    def _learn(self, trace: Rule, state: State) -> tuple[State, Array]:
        key, to_learn = jax.random.split(state.key)
        learner, memory, loss = self.agent.learn(trace, state.learner, state.memory, to_learn)
        return state._replace(learner=learner, memory=memory, key=key), loss


class OnHost:
    """Trains on a vector of Gymnasium games, those of all seeds; acting, remembering and learning are compiled."""

    def __init__(self, config: Config, seeds: list[int]) -> None:
        self.config, self.seeds = config, len(seeds)
        self.stop: Callable[[], bool] = lambda: False
        """Whether to come back after the round under way: an environment may be slow."""
        self.world = Hosted(config, len(seeds) * config.envs, seeds[0])
        self.programs = _programs(_compiled_for(config), self.world.shape, self.world.actions)
        self.agent = self.programs.agent

    def first(self, keys: Array) -> State:
        """Make the state before training."""
        c = self.config
        split = jax.vmap(partial(jax.random.split, num=2))(keys)
        observation = jnp.asarray(self._by_seed(self.world.first))
        memory = jax.vmap(partial(memories.empty, c.envs, c.slots, prioritised=c.priority > 0))(observation)
        returns, frames = jnp.zeros((self.seeds, c.envs)), jnp.zeros(self.seeds, jnp.int32)
        return State(self.programs.first(split[:, 0]), memory, None, observation, returns, frames, split[:, 1])

    def resumed(self, state: State) -> State:
        """Begin new episodes, each in a slot of its own, since a Gymnasium environment cannot be saved."""
        seen = jnp.asarray(self._by_seed(self.world.first))

        def cut(memory: Memory, now: Array) -> Memory:
            """Mark the step that was written last as the one where its episode was cut."""
            e, slots = jnp.arange(memory.count.size), memory.slots
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

        memory: Memory = jax.jit(jax.vmap(cut))(state.memory, seen)
        return state._replace(memory=memory, observation=seen, returns=jnp.zeros_like(state.returns))

    def _by_seed(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.seeds, self.config.envs, *array.shape[1:])

    def _play(self, state: State, steps: int) -> tuple[State, Array, Array]:
        episodes, total = jnp.zeros(self.seeds, jnp.int32), jnp.zeros(self.seeds)
        for _ in range(steps):
            key, action, log_mu = self.programs.act(state)
            world = self.world.step(np.asarray(action).reshape(-1))
            seen = Stepped(None, *(self._by_seed(a) for a in world[1:]))
            state, ended, returns = self.programs.remember(state._replace(key=key), action, log_mu, seen)
            episodes, total = episodes + ended, total + returns
        return state, episodes, total

    def collect(self, state: State) -> State:
        """Play the frames before the first update."""
        return self._play(state, self.config.begin // self.config.envs)[0]

    def advance(self, traces: Rule, state: State, n: int) -> tuple[State, Tally[Array]]:
        """Play n rounds, or fewer if it is told to stop."""
        episodes, total = jnp.zeros(self.seeds, jnp.int32), jnp.zeros(self.seeds)
        losses: list[Array] = []
        for _ in range(n):
            state, ended, returns = self._play(state, self.config.round // self.config.envs)
            state, loss = self.programs.learn(traces, state)
            episodes, total = episodes + ended, total + returns
            losses.append(loss)
            if self.stop():
                break
        credit = self.programs.credit(traces, state.learner, state.memory, state.key)
        return state, Tally(episodes, total, jnp.mean(jnp.stack(losses), axis=0), *credit)


# One configuration that is trained again, in a notebook or a test, is not compiled again.
_programs = lru_cache(8)(Programs)


@lru_cache(8)
def _compiled(config: Config) -> Compiled:
    return Compiled(config, compiled(config))


def _compiled_for(config: Config) -> Config:
    """The configuration as programs know it: when training ends, and the trace, are arguments of theirs.

    Another end compiles nothing again, and another rule `advance` alone.
    """
    return replace(config, trace=DEFAULT_TRACE, frames=config.begin + 1)


def trainer(config: Config, seeds: list[int]) -> Compiled | OnHost:
    """Make what trains on the game of the configuration."""
    if config.game.startswith("gym/"):
        return OnHost(config, seeds)
    return _compiled(_compiled_for(config))
