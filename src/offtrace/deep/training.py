"""Acting and learning in turns, for all seeds at once: compiled with the game, or with a game that the host steps.

Both have `first` (the state before training), `collect` (frames without learning) and `advance` (so many rounds: act, draw,
update), which also returns a Tally of those rounds, [seeds] each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from offtrace.deep import memory as memories
from offtrace.deep.agent import Agent, Learner
from offtrace.deep.config import Config
from offtrace.deep.games import Hosted, Stepped, World, compiled
from offtrace.deep.memory import Memory
from offtrace.traces import OneStep, Rule

REPORT = 8_192
"""Frames between two reports, about: a run is a number of equal pieces and what is left, so that a resumed one is cut alike."""


class State(NamedTuple):
    """Everything that a run is, but for its configuration. All leaves have the seeds as their first axis."""

    learner: Learner
    memory: Memory
    world: Any
    observation: Any
    """[envs, …]: what is acted on next."""
    returns: Any
    """[envs]: of the episodes that are being played."""
    frames: Any
    key: Any


class Tally(NamedTuple):
    """Of what happened since the last report."""

    episodes: Any
    """How many ended,"""
    total: Any
    """and the sum of their returns."""
    loss: Any
    """The mean."""
    length: Any
    magnitude: Any
    cut: Any
    """These three: `Agent.credit`."""


def batched(trace: Rule, seeds: int) -> Rule:
    """The trace with its numbers for every seed, as `advance` takes it: they may then differ."""
    import offtrace.returns.jax.jax_backend  # noqa: F401 (makes traces pytrees)

    return jax.tree.map(lambda number: jnp.full((seeds, *np.shape(number)), number, jnp.float32), trace)


def rounds(config: Config, frames: int = 0) -> int:
    """From this frame to the next report: as many as between any two, or those that are left."""
    piece = max(1, min(REPORT, config.frames // 20) // config.round)
    return min(piece, -(-(config.end - frames) // config.round))


def _remembered(state: State, action: Any, log_mu: Any, seen: Stepped) -> tuple[State, Any, Any]:
    """The state after a step of one seed's games, how many episodes ended there, and the sum of their returns."""
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
    """The whole loop is one program."""

    def __init__(self, config: Config, world: World) -> None:
        self.config, self.world = config, world
        self.agent = Agent(config, world.shape, world.actions)
        self.first: Any = jax.jit(jax.vmap(self._first))
        self.collect: Any = jax.jit(jax.vmap(self._collect), donate_argnums=0)
        self.advance: Any = jax.jit(jax.vmap(self._advance, in_axes=(0, 0, None)), donate_argnums=1)
        self.evaluate: Any = jax.jit(jax.vmap(self._evaluate, in_axes=(0, 0, None, None)), static_argnums=(2, 3))

    def _first(self, key: Any) -> State:
        key, to_learn, to_reset = jax.random.split(key, 3)
        c = self.config
        world, observation = jax.vmap(self.world.reset)(jax.random.split(to_reset, c.envs))
        memory = memories.empty(c.envs, c.slots, observation, prioritised=c.priority > 0)
        returns, frames = jnp.zeros(c.envs), jnp.zeros((), jnp.int32)
        return State(self.agent.first(to_learn), memory, world, observation, returns, frames, key)

    def _play(self, state: State, _: Any) -> tuple[State, Any]:
        key, to_act, to_step = jax.random.split(state.key, 3)
        action, log_mu = self.agent.act(state.learner.weights, state.observation, state.frames, to_act)
        seen = jax.vmap(self.world.step)(jax.random.split(to_step, self.config.envs), state.world, action)
        after, *ended = _remembered(state._replace(key=key), action, log_mu, seen)
        return after, ended

    def _collect(self, state: State) -> State:
        return lax.scan(self._play, state, length=self.config.begin // self.config.envs)[0]

    def _advance(self, trace: Rule, state: State, n: Any) -> tuple[State, Tally]:
        """`n` is no constant of the program: the last piece of a run may be shorter, and is not compiled for itself."""
        c = self.config

        def one_round(_: Any, carried: Any) -> Any:
            state, *sums = carried
            state, (episodes, total) = lax.scan(self._play, state, length=c.round // c.envs)
            key, to_learn = jax.random.split(state.key)
            learner, memory, loss = self.agent.learn(trace, state.learner, state.memory, to_learn)
            after = state._replace(learner=learner, memory=memory, key=key)
            return after, *(a + b for a, b in zip(sums, (jnp.sum(episodes), jnp.sum(total), loss), strict=True))

        nothing = jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(())
        state, episodes, total, loss = lax.fori_loop(0, n, one_round, (state, *nothing))
        key, to_measure = jax.random.split(state.key)
        credit = self.agent.credit(trace, state.learner, state.memory, to_measure)
        return state._replace(key=key), Tally(episodes, total, loss / n, **credit)

    def _evaluate(self, weights: Any, key: Any, episodes: int, steps: int) -> Any:
        """The mean return of greedy episodes, each from a start of its own, cut after so many steps."""

        def play(carried: Any, key: Any) -> tuple[Any, None]:
            world, observation, returns, alive = carried
            action = jnp.argmax(self.agent.values(weights, observation), axis=-1)
            seen = jax.vmap(self.world.step)(jax.random.split(key, episodes), world, action)
            ended = seen.terminated | seen.truncated
            return (seen.state, seen.now, returns + alive * seen.reward, alive & ~ended), None

        to_reset, to_play = jax.random.split(key)
        first = jax.vmap(self.world.reset)(jax.random.split(to_reset, episodes))
        carried = (*first, jnp.zeros(episodes), jnp.ones(episodes, bool))
        return jnp.mean(lax.scan(play, carried, jax.random.split(to_play, steps))[0][2])


class Programs:
    """The compiled parts of a loop that the host runs."""

    def __init__(self, config: Config, shape: tuple[int, ...], actions: int) -> None:
        self.agent = Agent(config, shape, actions)
        self.first: Any = jax.jit(jax.vmap(self.agent.first))
        self.act: Any = jax.jit(jax.vmap(self._act))
        self.remember: Any = jax.jit(jax.vmap(_remembered), donate_argnums=0)
        self.learn: Any = jax.jit(jax.vmap(self._learn), donate_argnums=1)
        self.credit: Any = jax.jit(jax.vmap(self.agent.credit))

    def _act(self, state: State) -> tuple[Any, Any, Any]:
        key, to_act = jax.random.split(state.key)
        return key, *self.agent.act(state.learner.weights, state.observation, state.frames, to_act)

    def _learn(self, trace: Rule, state: State) -> tuple[State, Any]:
        key, to_learn = jax.random.split(state.key)
        learner, memory, loss = self.agent.learn(trace, state.learner, state.memory, to_learn)
        return state._replace(learner=learner, memory=memory, key=key), loss


class OnHost:
    """The games of all seeds are one Gymnasium vector; acting, remembering and learning are compiled."""

    def __init__(self, config: Config, seeds: list[int]) -> None:
        self.config, self.seeds = config, len(seeds)
        self.world = Hosted(config, len(seeds) * config.envs, seeds[0])
        self.programs = _programs(config, self.world.shape, self.world.actions)
        self.agent = self.programs.agent

    def first(self, keys: Any) -> State:
        """The state before training."""
        c = self.config
        split: Any = jax.vmap(partial(jax.random.split, num=2))(keys)
        observation = jnp.asarray(self._by_seed(self.world.first))
        memory = jax.vmap(partial(memories.empty, c.envs, c.slots, prioritised=c.priority > 0))(observation)
        returns, frames = jnp.zeros((self.seeds, c.envs)), jnp.zeros(self.seeds, jnp.int32)
        return State(self.programs.first(split[:, 0]), memory, None, observation, returns, frames, split[:, 1])

    def resumed(self, state: State) -> State:
        """New episodes, since a Gymnasium environment cannot be saved: each begins in a slot of its own."""
        seen = jnp.asarray(self._by_seed(self.world.first))

        def cut(memory: Memory, now: Any) -> Memory:
            """The step that was last written is where its episode was cut."""
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

        memory: Any = jax.jit(jax.vmap(cut))(state.memory, seen)
        return state._replace(memory=memory, observation=seen, returns=jnp.zeros_like(state.returns))

    def _by_seed(self, array: Any) -> Any:
        return np.asarray(array).reshape(self.seeds, self.config.envs, *np.shape(array)[1:])

    def _play(self, state: State, steps: int) -> tuple[State, Any, Any]:
        episodes = total = 0
        for _ in range(steps):
            key, action, log_mu = self.programs.act(state)
            seen = self.world.step(np.asarray(action).reshape(-1))
            seen = Stepped(None, *(self._by_seed(a) for a in seen[1:]))
            state, ended, returns = self.programs.remember(state._replace(key=key), action, log_mu, seen)
            episodes, total = episodes + ended, total + returns
        return state, episodes, total

    def collect(self, state: State) -> State:
        """Frames without learning."""
        return self._play(state, self.config.begin // self.config.envs)[0]

    def advance(self, traces: Rule, state: State, n: int) -> tuple[State, Tally]:
        """So many rounds."""
        episodes: Any = 0
        total: Any = 0
        losses = []
        for _ in range(n):
            state, ended, returns = self._play(state, self.config.round // self.config.envs)
            state, loss = self.programs.learn(traces, state)
            episodes, total = episodes + ended, total + returns
            losses.append(loss)
        credit = self.programs.credit(traces, state.learner, state.memory, state.key)
        return state, Tally(episodes, total, jnp.mean(jnp.stack(losses), axis=0), **credit)


# One configuration that is trained again, in a notebook or a test, is not compiled again.
_programs = lru_cache(8)(Programs)
_compiled = lru_cache(8)(lambda config: Compiled(config, compiled(config)))


def trainer(config: Config, seeds: list[int]) -> Compiled | OnHost:
    """The one that the game needs."""
    if config.game.startswith("gym/"):
        return OnHost(config, seeds)
    return _compiled(replace(config, trace=OneStep()))  # traces are arguments: another rule compiles `advance` alone
