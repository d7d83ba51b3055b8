"""Acting and learning in turns, for all seeds at once: compiled with the game, or with a game that the host steps.

Both have `first` (makes the state before training), `collect` (plays without learning) and `advance` (plays a number of rounds:
act, draw, update), which also returns a Tally of those rounds, with numbers [seeds].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from offtrace.deep import agent as agents
from offtrace.deep.agent import Acted, Agent, Credit, Learned
from offtrace.deep.games import Hosted, Numbers, Stepped, World, WorldState, compiled
from offtrace.deep.settings import Settings
from offtrace.traces import Rule, pytrees

REPORT = 8_192
"""About how many frames there are between two reports: a run is cut into equal pieces and a rest, a resumed run as well."""


class State(NamedTuple):
    """Everything that a run depends on, except its configuration. All leaves have the seeds as their first axis."""

    learner: Any
    """What the agent has learned: its own tree, whose first part are the weights."""
    memory: Any
    """What the agent remembers: its own tree."""
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


def batched(trace: Rule, seeds: int) -> Rule:
    """Return the trace with its numbers repeated for every seed, as `advance` takes it."""
    pytrees.register(type(trace))  # it may have been made before JAX was imported
    return jax.tree.map(lambda number: jnp.full((seeds, *np.shape(number)), number, jnp.float32), trace)


def rounds(config: Settings, frames: int = 0) -> int:
    """Return how many rounds there are from this frame to the next report: as many as between any two, or those left."""
    piece = max(1, min(REPORT, config.frames // 20) // config.round)
    return min(piece, -(-(config.end - frames) // config.round))


AnyAgent = Agent[Any, Any, Any]


def _remembered(agent: AnyAgent, state: State, acted: Acted, seen: Stepped[Array]) -> tuple[State, Array, Array]:
    """Return the state after a step of one seed's games, how many episodes ended there, and the sum of their returns."""
    ended = seen.terminated | seen.truncated
    returns = state.returns + seen.reward
    after = state._replace(
        memory=agent.remember(state.learner, state.memory, state.frames, state.observation, acted, seen),
        world=seen.state,
        observation=seen.now,
        returns=jnp.where(ended, 0.0, returns),
        frames=state.frames + ended.size,
    )
    return after, jnp.sum(ended), jnp.sum(jnp.where(ended, returns, 0.0))


def _learned(agent: AnyAgent, trace: Rule, state: State) -> tuple[State, Array]:
    """Return the state of one seed after it has learned from a round, and the loss."""
    key, to_learn = jax.random.split(state.key)
    learner, memory, loss = agent.learn(trace, state.learner, state.memory, to_learn)
    return state._replace(learner=learner, memory=memory, key=key), loss


def _of_its_dtype(leaf: Array) -> Array:
    """A number of a game as the array that a checkpoint gives back: else a resumed run would be compiled again."""
    return leaf.astype(leaf.dtype)


def _unchanged(state: State) -> State:
    return state


class Compiled:
    """Trains in one program, with the game in it."""

    def __init__(self, config: Settings, world: World) -> None:
        self.config, self.world = config, world
        self.agent = agents.make(config, world.shape, world.actions)
        self.first: Callable[[Array], State] = jax.jit(jax.vmap(self._first))
        self.collect: Callable[[State], State] = _unchanged  # compile nothing, if there is no warm-up
        if config.begin:
            self.collect = jax.jit(jax.vmap(self._collect), donate_argnums=0)
        advance = jax.vmap(self._advance, in_axes=(0, 0, None))
        self.advance: Callable[[Rule, State, int], tuple[State, Tally[Array]]] = jax.jit(advance, donate_argnums=1)

    def _first(self, key: Array) -> State:
        key, to_learn, to_reset = jax.random.split(key, 3)
        c = self.config
        world, observation = jax.vmap(self.world.reset)(jax.random.split(to_reset, c.envs))
        returns, frames = jnp.zeros(c.envs), jnp.zeros((), jnp.int32)
        learner, memory = self.agent.first(to_learn), self.agent.empty(observation)
        state = State(learner, memory, world, observation, returns, frames, key)
        return jax.tree.map(_of_its_dtype, state)

    def _stepped(self, keys: Array, world: WorldState | None, action: Array) -> Stepped[Array]:
        return jax.vmap(self.world.step)(keys, world, action)  # pyright: ignore[reportArgumentType] (here it is never None)

    def _play(self, state: State, _: None) -> tuple[State, Ended]:
        key, to_act, to_step = jax.random.split(state.key, 3)
        acted = self.agent.act(state.learner, state.observation, state.frames, to_act)
        seen = self._stepped(jax.random.split(to_step, self.config.envs), state.world, acted.action)
        after, ended, returns = _remembered(self.agent, state._replace(key=key), acted, seen)
        return after, (ended, returns)

    def _collect(self, state: State) -> State:
        return lax.scan(self._play, state, length=self.config.begin // self.config.envs)[0]

    def _advance(self, trace: Rule, state: State, n: Array) -> tuple[State, Tally[Array]]:
        """Play n rounds. n is an argument of the program: the last piece of a run may be shorter, and is not compiled again."""
        c = self.config

        def one_round(_: Array, carried: tuple[State, Array, Array, Array]) -> tuple[State, Array, Array, Array]:
            state, ended, returns, losses = carried
            if c.round == c.envs:  # a stream learns from every step: no loop in the loop
                state, (episodes, total) = self._play(state, None)
            else:
                state, (episodes, total) = lax.scan(self._play, state, length=c.round // c.envs)
            state, loss = _learned(self.agent, trace, state)
            return state, ended + jnp.sum(episodes), returns + jnp.sum(total), losses + loss

        nothing = jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(())
        state, episodes, total, loss = lax.fori_loop(0, n, one_round, (state, *nothing))
        key, to_measure = jax.random.split(state.key)
        credit = self.agent.credit(trace, state.learner, state.memory, to_measure)
        return state._replace(key=key), Tally(episodes, total, loss / n, *credit)


class Programs:
    """The compiled parts of the loop that the host runs."""

    def __init__(self, config: Settings, shape: tuple[int, ...], actions: int) -> None:
        self.agent = agents.make(config, shape, actions)
        self.first: Callable[[Array], Learned] = jax.jit(jax.vmap(self.agent.first))
        self.empty: Callable[[Array], tuple[object, ...]] = jax.jit(jax.vmap(self.agent.empty))
        self.cut: Callable[[tuple[object, ...], Array], tuple[object, ...]] = jax.jit(jax.vmap(self.agent.cut))
        self.act: Callable[[State], tuple[Array, Acted]] = jax.jit(jax.vmap(self._act))
        self.remember: Callable[[State, Acted, Stepped[np.ndarray]], tuple[State, Array, Array]]
        self.remember = jax.jit(jax.vmap(partial(_remembered, self.agent)), donate_argnums=0)
        self.learn: Callable[[Rule, State], tuple[State, Array]] = jax.jit(
            jax.vmap(partial(_learned, self.agent)), donate_argnums=1
        )
        self.credit: Callable[[Rule, Learned, tuple[object, ...], Array], Credit]
        self.credit = jax.jit(jax.vmap(self.agent.credit))

    def _act(self, state: State) -> tuple[Array, Acted]:
        key, to_act = jax.random.split(state.key)
        return key, self.agent.act(state.learner, state.observation, state.frames, to_act)


class OnHost:
    """Trains on a vector of Gymnasium games, those of all seeds; acting, remembering and learning are compiled."""

    def __init__(self, config: Settings, seeds: list[int]) -> None:
        self.config, self.seeds = config, len(seeds)
        self.stop: Callable[[], bool] = lambda: False
        """Whether to come back after the round under way: an environment may be slow."""
        self.world = Hosted(config, len(seeds) * config.envs, seeds[0])
        self.programs = _programs(config.for_programs(), self.world.shape, self.world.actions)
        self.agent = self.programs.agent

    def first(self, keys: Array) -> State:
        """Make the state before training."""
        c = self.config
        split = jax.vmap(partial(jax.random.split, num=2))(keys)
        observation = jnp.asarray(self._by_seed(self.world.first))
        returns, frames = jnp.zeros((self.seeds, c.envs)), jnp.zeros(self.seeds, jnp.int32)
        learner, memory = self.programs.first(split[:, 0]), self.programs.empty(observation)
        return State(learner, memory, None, observation, returns, frames, split[:, 1])

    def resumed(self, state: State) -> State:
        """Begin new episodes, since a Gymnasium environment cannot be saved."""
        seen = jnp.asarray(self._by_seed(self.world.first))
        memory = self.programs.cut(state.memory, seen)
        return state._replace(memory=memory, observation=seen, returns=jnp.zeros_like(state.returns))

    def _by_seed(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.seeds, self.config.envs, *array.shape[1:])

    def _play(self, state: State, steps: int) -> tuple[State, Array, Array]:
        episodes, total = jnp.zeros(self.seeds, jnp.int32), jnp.zeros(self.seeds)
        for _ in range(steps):
            key, acted = self.programs.act(state)
            world = self.world.step(np.asarray(acted.action).reshape(-1))
            seen = Stepped(None, *(self._by_seed(a) for a in world[1:]))
            state, ended, returns = self.programs.remember(state._replace(key=key), acted, seen)
            episodes, total = episodes + ended, total + returns
        return state, episodes, total

    def collect(self, state: State) -> State:
        """Play the frames before the first update."""
        return self._play(state, self.config.begin // self.config.envs)[0]

    def advance(self, traces: Rule, state: State, n: int) -> tuple[State, Tally[Array]]:
        """Play n rounds, or fewer if `stop` says so."""
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
def _compiled(config: Settings) -> Compiled:
    return Compiled(config, compiled(config))


def trainer(config: Settings, seeds: list[int]) -> Compiled | OnHost:
    """Make what trains on the game of the configuration."""
    if config.game.startswith("gym/"):
        return OnHost(config, seeds)
    return _compiled(config.for_programs())
