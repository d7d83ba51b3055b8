"""Agents that learn in a stream: from every step once, as it comes, with eligibility traces of the networks' gradients.

Source: Elsayed, Vasan, Mahmood (2024), Streaming Deep Reinforcement Learning Finally Works. What makes it work is, beside the
traces: sparse initialisation, LayerNorm without parameters, observations and rewards that are normalised by their running
moments, and ObGD (algorithm 3), which bounds how far an update may overshoot:

    α = α₀ / max(1, α₀ κ max(1, |δ|) Σ|z|),      w ← w + α δ z.

Published are Q(λ) that is cut at actions that are not greedy (`StreamQ` with Watkins' rule) and AC(λ) (`StreamAC`). Here z is
that of any rule with a β (`eligibility`), and a truncated episode bootstraps.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from offtrace.deep import fresh_steps
from offtrace.deep.agent import Acted, Agent, ValueAgent
from offtrace.deep.config import StreamAC, Streaming, StreamQ
from offtrace.deep.eligibility import Eligibility, Now, Tree, of_action
from offtrace.deep.fresh_steps import Steps
from offtrace.deep.games import Stepped
from offtrace.deep.networks import Network, Style, Weights
from offtrace.traces import Rule

Chosen = TypeVar("Chosen", bound=Streaming)


class Moments(NamedTuple):
    """The moments of all samples so far, each like a sample (Welford 1962)."""

    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    mean: Array
    squares: Array
    """Σ (sample − mean)²."""

    @property
    def variance(self) -> Array:
        """The sample variance; 1 before there are two samples."""
        return jnp.where(self.count < 2, 1.0, self.squares / jnp.maximum(self.count - 1.0, 1.0))

    def with_sample(self, sample: Array, when: Array | bool = True) -> Moments:
        """Take in a sample where `when` holds."""
        count = self.count + jnp.where(when, 1.0, 0.0)
        off = jnp.where(when, sample - self.mean, 0.0)
        mean = self.mean + off / jnp.maximum(count, 1.0)
        return Moments(count, mean, self.squares + off * (sample - mean))

    def normalised(self, values: Array) -> Array:
        """(values − mean) / deviation."""
        return (values - self.mean) * self.scale

    @property
    def scale(self) -> Array:
        """1 / deviation."""
        return 1.0 / jnp.sqrt(self.variance + 1e-8)


def no_moments(shape: tuple[int, ...] = ()) -> Moments:
    """Make the moments of no sample at all."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


class Learner(NamedTuple):
    """What one seed has learned."""

    weights: Weights
    """Of the network that acts."""
    beside: Tree
    """What else is learned: the weights of other networks, optimizers; an agent may have none."""
    seen: Moments
    """Of the observations."""
    discounted: Moments
    """Of the discounted sums of rewards."""


class Stream(NamedTuple):
    """What is remembered from step to step."""

    last: Steps
    """The last step."""
    kept: Tree
    """What `Eligibility` keeps."""
    rewards: Array
    """The discounted sum of the episode's rewards so far."""
    before: Now
    """The action before the last one, as the rule saw it, for traces of state values."""


class Transition(NamedTuple):
    """One step, normalised."""

    state: Array
    """[1, …], as it was acted on."""
    action: Array
    mu: Array
    """The probability of the action."""
    reward: Array
    after: Array
    """The true next state, [1, …]."""
    goes_on: Array
    """0 where the episode terminated, else 1."""


def obgd(weights: Weights, z: Tree, delta: Array, rate: float, kappa: float) -> Weights:
    """Return the weights after a step of ObGD along δ z."""
    total = sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(z))
    step = delta * rate / jnp.maximum(1.0, rate * kappa * jnp.maximum(1.0, jnp.abs(delta)) * total)
    return jax.tree.map(lambda w, e: w + step * e, weights, z)


class StreamingAgent(Agent[Chosen, Learner, Stream], Generic[Chosen]):
    """What all agents do that learn in a stream. They differ in the trees that they trace, and in `update`."""

    def __init__(self, config: Chosen, shape: tuple[int, ...], actions: int) -> None:
        super().__init__(config, shape, actions)
        self.style = Style(normalised=True, slope=0.01, sparsity=config.sparsity, learned=False)
        self.network = Network(shape, actions, config.hidden, self.style)
        learner = jax.eval_shape(self.first, jax.random.PRNGKey(0))
        self.eligibility = Eligibility(config.trace, self.traced(learner), config.groups)

    @abstractmethod
    def beside(self, weights: Weights, key: Array) -> Tree:
        """Make what is learned beside the weights."""

    @abstractmethod
    def traced(self, learner: Learner) -> Tree:
        """Return a tree like the one that is traced."""

    @abstractmethod
    def update(
        self, trace: Rule, learner: Learner, memory: Stream, step: Transition
    ) -> tuple[Learner, Tree, Now, Array]:
        """Learn from a step: return what has been learned, what the traces keep, the action as the rule saw it, and δ."""

    def first(self, key: Array) -> Learner:
        """Make what there is before anything has been learned."""
        to_act, beside = jax.random.split(key)
        weights = self.network.first(to_act)
        return Learner(weights, self.beside(weights, beside), no_moments(self.shape), no_moments())

    def empty(self, observation: Array) -> Stream:
        """Make room for one step, and traces of none."""
        one = jnp.ones(())
        return Stream(fresh_steps.empty(1, observation), self.eligibility.first(), jnp.zeros(()), Now(one, one, one))

    def cut(self, memory: Stream, now: Array) -> Stream:
        """Begin a new episode, although no step ended the old one."""
        return memory._replace(kept=self.eligibility.cleared(memory.kept, jnp.asarray(True)), rewards=jnp.zeros(()))

    def complaint(self, learner: Learner, memory: Stream) -> str | None:
        """Say so if the traces had too little room."""
        return self.eligibility.complaint(memory.kept)

    def values(self, learner: Learner, observation: Array) -> Array:
        """Return Q(s, ·), or preferences, [n, A] of observations [n, …]."""
        return self.network(learner.weights, self.normalised(learner.seen, observation))

    def normalised(self, seen: Moments, observation: Array) -> Array:
        """Return observations [n, …] as the network gets them."""
        numbers = observation.astype(jnp.float32)
        return seen.normalised(numbers) if self.config.normalize else numbers

    def remember(
        self, learner: Learner, memory: Stream, frames: Array, observation: Array, acted: Acted, seen: Stepped[Array]
    ) -> Stream:
        """Take in one step."""
        return memory._replace(last=fresh_steps.write(memory.last, observation, acted, seen))

    def learn(self, trace: Rule, learner: Learner, memory: Stream, key: Array) -> tuple[Learner, Stream, Array]:
        """Learn from the last step; the last result is ½ δ²."""
        last = Steps._make([*(part[:, 0] for part in memory.last[:-1]), memory.last.at])
        ended = (last.terminated | last.truncated)[0]
        rewards = self.config.gamma * memory.rewards + last.reward[0]
        known = learner.seen.with_sample(last.observation[0].astype(jnp.float32), learner.seen.count == 0)
        after = known.with_sample(last.after[0].astype(jnp.float32))
        discounted = learner.discounted.with_sample(rewards)
        step = Transition(
            state=self.normalised(learner.seen, last.observation),
            action=last.action[0],
            mu=jnp.exp(last.log_mu[0]),
            reward=last.reward[0] * (discounted.scale if self.config.normalize else 1.0),
            after=self.normalised(after, last.after),
            goes_on=jnp.where(last.terminated[0], 0.0, 1.0),
        )
        learned, kept, now, δ = self.update(trace, learner, memory, step)
        learned = learned._replace(
            seen=after.with_sample(last.now[0].astype(jnp.float32), ended), discounted=discounted
        )
        remembered = memory._replace(
            kept=self.eligibility.cleared(kept, ended), rewards=jnp.where(ended, 0.0, rewards), before=now
        )
        return learned, remembered, 0.5 * jnp.square(δ)


class StreamQAgent(StreamingAgent[StreamQ], ValueAgent[StreamQ, Learner, Stream]):
    """Stream Q(λ), with any rule: δ = r + γ Σ_a π(a|s') Q(s', a) − Q(s, a), z of ∇Q(s, a), ObGD."""

    def beside(self, weights: Weights, key: Array) -> Tree:
        """Return nothing: these agents learn the weights alone."""
        return ()

    def traced(self, learner: Learner) -> Tree:
        """Return the weights, since ∇Q is traced."""
        return learner.weights

    def update(
        self, trace: Rule, learner: Learner, memory: Stream, step: Transition
    ) -> tuple[Learner, Tree, Now, Array]:
        """Take a step of ObGD."""
        c = self.config

        def taken(weights: Weights) -> tuple[Array, Array]:
            values = self.network(weights, step.state)[0]
            return values[step.action], values

        (q, values), gradient = jax.value_and_grad(taken, has_aux=True)(learner.weights)
        ahead = self.network(learner.weights, step.after)[0]
        δ = step.reward + c.gamma * step.goes_on * jnp.sum(self.target_policy(ahead) * ahead) - q
        now = of_action(trace, self.target_policy(values)[step.action], step.mu, q >= jnp.max(values))
        kept, z = self.eligibility.step(trace, memory.kept, c.gamma, now, gradient)
        weights = obgd(learner.weights, z, δ, c.learning_rate, c.overshooting)
        return learner._replace(weights=weights), kept, now, δ


class StreamACAgent(StreamingAgent[StreamAC]):
    """Stream AC(λ): δ = r + γ V(s') − V(s) moves a critic along z of ∇V, and an actor along z of ∇[log π(a|s) + τ sgn(δ) H(π)].

    It acts by its own policy, so that every ρ is 1. On state values, a start is scaled by the actions from its own on.
    """

    @cached_property
    def critic(self) -> Network:
        """The network of state values."""
        return Network(self.shape, 1, self.config.hidden, self.style)

    def beside(self, weights: Weights, key: Array) -> Tree:
        """The critic's weights."""
        return self.critic.first(key)

    def traced(self, learner: Learner) -> Tree:
        """Return the weights of critic and actor, since ∇V and the actor's gradient are traced."""
        return learner.beside, learner.weights

    def value(self, weights: Weights, state: Array) -> Array:
        """V(s)."""
        return self.critic(weights, state)[0, 0]

    def behavior(self, learner: Learner, observation: Array, frames: int | Array) -> Array:
        """The actor's policy."""
        return jax.nn.softmax(self.values(learner, observation), axis=-1)

    def update(
        self, trace: Rule, learner: Learner, memory: Stream, step: Transition
    ) -> tuple[Learner, Tree, Now, Array]:
        """Take a step of ObGD with each network."""
        c = self.config
        v, of_critic = jax.value_and_grad(self.value)(learner.beside, step.state)
        δ = step.reward + c.gamma * step.goes_on * self.value(learner.beside, step.after) - v

        def score(weights: Weights) -> Array:
            log = jax.nn.log_softmax(self.network(weights, step.state)[0])
            return log[step.action] - c.entropy_cost * jnp.sign(δ) * jnp.sum(jnp.exp(log) * log)

        gradient = of_critic, jax.grad(score)(learner.weights)
        greedy = jnp.asarray(True)  # every action is one of the policy that is evaluated
        kept, (z_v, z_pi) = self.eligibility.step(trace, memory.kept, c.gamma, memory.before, gradient)
        weights = obgd(learner.weights, z_pi, δ, c.learning_rate, c.actor_overshooting)
        critic = obgd(learner.beside, z_v, δ, c.learning_rate, c.overshooting)
        return learner._replace(weights=weights, beside=critic), kept, of_action(trace, step.mu, step.mu, greedy), δ
