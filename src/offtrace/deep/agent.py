"""What an agent is: what training, checkpoints, players and studies ask of it. Each agent is a file of its own.

Training repeats a round: in every copy of the game `act`, let the game step, `remember`; after `config.round` frames, `learn`. An
agent without a replay memory remembers only what the next `learn` needs: the steps of the round, or, in a stream, the last one.

Everything is a pure function of one seed's state; `training` maps it over seeds. The trace is an argument, whose numbers are
leaves: another λ is not another program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from offtrace.deep.games import Stepped
from offtrace.deep.networks import Weights
from offtrace.deep.settings import ActsByValues, Settings
from offtrace.returns import corrections
from offtrace.traces import Rule


class Learned(Protocol):
    """What one seed has learned: a tree whose first part are the weights of the network that acts."""

    @property
    def weights(self) -> Weights:
        """The weights of the network that acts."""
        ...


Learner = TypeVar("Learner", bound=Learned)
Memory = TypeVar("Memory", bound=tuple[Any, ...])
Chosen = TypeVar("Chosen", bound=Settings)
Valued = TypeVar("Valued", bound=ActsByValues)


class Acted(NamedTuple):
    """The actions of all copies of the game, and how likely they were."""

    action: Array
    """[envs]"""
    log_mu: Array
    """log μ of these actions, [envs]; of all actions, [envs, A], where the agent keeps them."""


class Trajectory(TypedDict):
    """The arguments of `offtrace.targets`, for sequences [n, steps]."""

    reward: Array
    q: Array
    next_value: Array
    terminated: Array
    truncated: Array
    valid: Array
    log_pi: Array
    greedy: Array
    log_mu: Array
    gamma: float
    time_major: bool


class Credit(NamedTuple):
    """What the trace does to steps that are learned from: means over the starts that count; NaN for a rule that has no β."""

    length: Array
    """Σ_t β_t, over the steps that the sequence still has."""
    magnitude: Array
    """Σ_t γ^t β_t."""
    cut: Array
    """The share of the starts with further steps whose β is below 1/100 at the last step that they could reach."""


UNKNOWN = Credit(*(jnp.nan,) * 3)  # pyright: ignore[reportArgumentType] (numbers that become arrays)


class Agent(ABC, Generic[Chosen, Learner, Memory]):
    """The functions of one configuration, for observations of one shape and a number of actions."""

    def __init__(self, config: Chosen, shape: tuple[int, ...], actions: int) -> None:
        self.config, self.shape, self.actions = config, shape, actions

    @abstractmethod
    def first(self, key: Array) -> Learner:
        """Make what there is before anything has been learned."""

    @abstractmethod
    def empty(self, observation: Array) -> Memory:
        """Make a memory that holds nothing but the first observations [envs, …]."""

    @abstractmethod
    def values(self, learner: Learner, observation: Array) -> Array:
        """Return Q(s, ·) [n, A] of observations [n, …], or preferences: the largest is that of the best action."""

    @abstractmethod
    def behavior(self, learner: Learner, observation: Array, frames: int | Array) -> Array:
        """Return the behaviour policy μ(·|s) [n, A] after so many frames."""

    @abstractmethod
    def remember(
        self, learner: Learner, memory: Memory, frames: Array, observation: Array, acted: Acted, seen: Stepped[Array]
    ) -> Memory:
        """Take in one step of every copy of the game, from the observations [envs, …]."""

    @abstractmethod
    def learn(self, trace: Rule, learner: Learner, memory: Memory, key: Array) -> tuple[Learner, Memory, Array]:
        """Learn after a round; the last result is the mean loss."""

    def act(self, learner: Learner, observation: Array, frames: int | Array, key: Array) -> Acted:
        """Draw actions for observations [envs, …]."""
        μ = self.behavior(learner, observation, frames)
        action = jax.random.categorical(key, jnp.log(μ))
        return Acted(action, jnp.log(of_action(μ, action)))

    def credit(self, trace: Rule, learner: Learner, memory: Memory, key: Array) -> Credit:
        """Measure what the trace does to steps that are learned from; without sequences there is nothing to measure it on."""
        return UNKNOWN

    def cut(self, memory: Memory, now: Array) -> Memory:
        """Begin new episodes at the observations `now` [envs, …], although no step ended the old ones."""
        return memory

    def complaint(self, learner: Learner, memory: Memory) -> str | None:
        """Say in words what went wrong that numbers do not show, of all seeds; None if nothing did. Each report asks."""
        return None


class ValueAgent(Agent[Valued, Learner, Memory]):
    """An agent whose policies are those of its action values."""

    def behavior(self, learner: Learner, observation: Array, frames: int | Array) -> Array:
        """Return the behaviour policy μ(·|s) [n, A] after so many frames."""
        return probabilities(self.config.policies, self.values(learner, observation), self.exploration(frames))

    def exploration(self, frames: int | Array) -> Array:
        """Return ε, or the temperature, of the behaviour policy after so many frames."""
        c = self.config
        share = jnp.clip(frames / max(c.explore_frames, 1), 0.0, 1.0)
        return c.explore_epsilon + (c.behavior_epsilon - c.explore_epsilon) * share

    def target_policy(self, values: Array) -> Array:
        """Return the target policy π(·|s) [..., A] of Q(s, ·)."""
        return probabilities(self.config.policies, values, self.config.target_epsilon)


def make(config: Settings, shape: tuple[int, ...], actions: int) -> Agent[Any, Any, Any]:
    """Make the agent of a configuration."""
    module, _, name = config.home.partition(":")
    return getattr(import_module(f"offtrace.deep.{module}"), name)(config, shape, actions)


def measured(trace: Rule, x: Trajectory, counts: Array) -> Credit:
    """What the trace does to sequences; `counts` [n, steps] marks the steps that are learned from."""
    if trace.uncorrected:
        return UNKNOWN
    ends = x["terminated"] | x["truncated"] | ~jnp.pad(x["valid"][:, 1:], ((0, 0), (0, 1)))
    one = jnp.ones_like(ends)
    length, magnitude, reached = summed(trace, x, [(one, 1.0), (one, x["gamma"]), (ends, 1.0)])
    return Credit(
        length=_mean(length, counts), magnitude=_mean(magnitude, counts), cut=_mean(reached < 0.01, counts & ~ends)
    )


def magnitude(trace: Rule, x: Trajectory, counts: Array) -> Array:
    """The `magnitude` of `Credit` alone."""
    return _mean(summed(trace, x, [(jnp.ones_like(counts), x["gamma"])])[0], counts)


def summed(trace: Rule, x: Trajectory, wanted: Sequence[tuple[Array, float]]) -> list[Array]:
    """Return Σ_t γ^t β_t over the steps t that are marked, [n, steps], for each pair of marks [n, steps] and γ.

    It is Δ of values that are 0, and rewards that are 1 there; all are computed together, since a kernel takes long to compile.
    """
    none = jnp.zeros_like(x["q"])
    marks, gammas = zip(*wanted, strict=True)
    alone: Trajectory = {**x, "q": none, "next_value": none}
    stacked: Any = {k: jnp.concatenate([v] * len(wanted)) for k, v in alone.items() if isinstance(v, Array)}
    stacked["reward"] = jnp.concatenate(marks).astype(jnp.float32)
    stacked["gamma"] = jnp.concatenate([jnp.full_like(none, gamma) for gamma in gammas])
    return jnp.split(corrections(trace, **stacked, time_major=False), len(wanted))


def _mean(values: Array, among: Array) -> Array:
    return jnp.sum(jnp.where(among, values, 0.0)) / jnp.maximum(jnp.sum(among), 1)


def probabilities(kind: str, q: Array, number: float | Array) -> Array:
    """Return π(·|s) [..., A] for Q(s, ·) [..., A].

    "epsilon" is ε-greedy with `number` = ε, where the best actions share 1 − ε; "softmax" is softmax(Q / `number`).
    """
    if kind == "softmax":
        return jax.nn.softmax(q / number, axis=-1)
    best = q == jnp.max(q, axis=-1, keepdims=True)
    return number / q.shape[-1] + (1.0 - number) * best / jnp.sum(best, axis=-1, keepdims=True)


def of_action(values: Array, action: Array) -> Array:
    """Return values[..., action]."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
