"""The replay agent: a Q-network that learns from sequences of its memory, with targets of any trace.

    target_k = q_k + Δ_k of the drawn sequence (offtrace.targets), with q and next_value from the target network, and
    π, for log π and next_value = Σ_a π(a|s_{t+1}) Q(s_{t+1}, a), from the current network (double estimation) or the target one,

so an update is a step towards M Q of the operator, with Q fixed.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from offtrace.deep import chosen_lam
from offtrace.deep import replay_memory as memories
from offtrace.deep.agent import Acted, Credit, Trajectory, ValueAgent, magnitude, measured, of_action
from offtrace.deep.config import Config
from offtrace.deep.games import Stepped
from offtrace.deep.networks import Fitted, Network, Optimizer, Weights
from offtrace.deep.replay_memory import Memory, Sequences
from offtrace.deep.settings import DEFAULT_TRACE
from offtrace.returns import SignedHyperbolic, SymLog, Transform, targets
from offtrace.traces import Rule, Trace, pytrees

TRANSFORMS: dict[str, Transform | None] = {"none": None, "hyperbolic": SignedHyperbolic(), "symlog": SymLog()}
"""The scales of the values that a network predicts, by their names in the configuration."""


class Learner(NamedTuple):
    """What one seed has learned."""

    weights: Weights
    target: Weights
    """The weights of the target network."""
    optimizer: optax.OptState
    updates: Array
    """How many updates there have been."""
    rule: Rule | None = None
    """The rule as it has been adapted, if it is one that adapts."""


class ReplayAgent(ValueAgent[Config, Learner, Memory]):
    """Acts ε-greedily, or by softmax, in the current network; remembers all steps; learns from drawn sequences."""

    def __init__(self, config: Config, shape: tuple[int, ...], actions: int) -> None:
        super().__init__(config, shape, actions)
        self.transform = TRANSFORMS[config.transform]
        self.mixes, self.adapts = config.trace.mixture, isinstance(config.trace, Trace) and config.trace.adaptive
        pytrees.register(type(config.trace))  # it may have been made before JAX was imported
        self.network = self.make_network()
        self.optimizer = Optimizer(optax.adam(config.learning_rate, eps=1e-5), config.clip)

    def make_network(self) -> Network:
        """Make the network that learns."""
        return Network(self.shape, self.actions, self.config.hidden)

    def first(self, key: Array) -> Learner:
        """Make what there is before anything has been learned."""
        weights, optimizer, updates = self.optimizer.first(self.network.first(key))
        rule = jax.tree.map(partial(jnp.asarray, dtype=jnp.float32), self.config.trace) if self.adapts else None
        return Learner(weights, weights, optimizer, updates, rule)

    def empty(self, observation: Array) -> Memory:
        """Make a memory that holds nothing but the first observations [envs, …]."""
        c = self.config
        actions = self.actions if self.mixes else None
        return memories.empty(c.envs, c.slots, observation, prioritised=c.priority > 0, actions=actions)

    def cut(self, memory: Memory, now: Array) -> Memory:
        """Begin new episodes at the observations `now` [envs, …], although no step ended the old ones."""
        return memories.cut(memory, now)

    def values(self, learner: Learner, observation: Array) -> Array:
        """Return Q(s, ·) [n, A] of observations [n, …]."""
        return self.of_weights(learner.weights, observation)

    def of_weights(self, weights: Weights, observation: Array) -> Array:
        """Return Q(s, ·) [..., A] of observations [..., *shape] by a network of these weights."""
        return self.network(weights, observation)

    def remember(
        self, learner: Learner, memory: Memory, frames: Array, observation: Array, acted: Acted, seen: Stepped[Array]
    ) -> Memory:
        """Write one step of every copy of the game."""
        after = jnp.log(self.behavior(learner, seen.after, frames)) if self.mixes else None
        flags = seen.terminated, seen.truncated
        return memories.write(memory, *acted, seen.reward, *flags, seen.after, seen.now, after)

    def act(self, learner: Learner, observation: Array, frames: int | Array, key: Array) -> Acted:
        """Draw actions for observations [envs, …]; for a rule that evaluates a mixture, log μ is that of all actions."""
        μ = jnp.log(self.behavior(learner, observation, frames))
        action = jax.random.categorical(key, μ)
        return Acted(action, μ if self.mixes else of_action(μ, action))

    def target_values(self, learner: Learner, drawn: Sequences) -> Array:
        """Return Q of the target network at all observations of the sequences, [n, steps + 1, A]."""
        return self.of_weights(learner.target, drawn.observation)

    def policies(
        self, learner: Learner, drawn: Sequences, online: Array, trace: Rule = DEFAULT_TRACE
    ) -> tuple[Array, Array]:
        """Return π, and the policy that the trace evaluates: π, or a mixture of π and μ; both [n, steps + 1, A]."""
        π = self.target_policy(online if self.config.double else self.target_values(learner, drawn))
        if self.mixes and isinstance(trace, Trace) and drawn.all_log_mu is not None:
            return π, trace.target_share * π + (1.0 - trace.target_share) * jnp.exp(drawn.all_log_mu)
        return π, π

    def trajectory(self, learner: Learner, drawn: Sequences, online: Array, trace: Rule = DEFAULT_TRACE) -> Trajectory:
        """Return what `offtrace.targets` is given; `online` is Q of the current network at all observations [n, steps + 1, A]."""
        c, fixed = self.config, self.target_values(learner, drawn)
        chosen_by = online if c.double else fixed
        π, evaluated = self.policies(learner, drawn, online, trace)
        h = self.transform
        returns = fixed if h is None else h.inverse(jnp, fixed)
        next_value = jnp.sum(evaluated[:, 1:] * returns[:, 1:], axis=-1)
        return {
            "reward": drawn.reward,
            "q": of_action(fixed[:, :-1], drawn.action),
            "next_value": next_value if h is None else h.forward(jnp, next_value),
            "terminated": drawn.terminated,
            "truncated": drawn.truncated,
            "valid": drawn.valid,
            "log_pi": jnp.log(of_action(π[:, :-1], drawn.action)),
            "greedy": of_action(chosen_by[:, :-1], drawn.action) >= jnp.max(chosen_by[:, :-1], axis=-1),
            "log_mu": drawn.log_mu,
            "gamma": c.gamma,
            "time_major": False,  # a window may be one step
        }

    def counted(self, drawn: Sequences) -> Array:
        """Return the weight of each step in the loss, [n, steps]: 0 in the burn-in and where there is no step."""
        late = jnp.arange(drawn.action.shape[1]) >= self.config.burn_in
        return jnp.where(drawn.valid & late, drawn.weight[:, None], 0.0)

    def loss(self, error: Array, weight: Array) -> Array:
        """Return the weighted mean of the losses of the steps that count."""
        each = optax.losses.huber_loss(error) if self.config.loss == "huber" else 0.5 * jnp.square(error)
        return jnp.sum(weight * each) / jnp.maximum(jnp.sum(weight > 0), 1)

    def learn(self, trace: Rule, learner: Learner, memory: Memory, key: Array) -> tuple[Learner, Memory, Array]:
        """Draw sequences and update once, or in `minibatches` pieces; the last result is the mean loss."""
        c, trace = self.config, self.adapted(trace, learner)
        to_draw, to_shuffle = jax.random.split(key)
        drawn = memories.draw(memory, to_draw, c.batch, c.window, priority=c.priority, correction=c.correction)
        if c.minibatches == 1:
            learner, loss, error = self._whole(trace, learner, drawn)
        else:
            learner, loss, error = self._pieces(trace, learner, drawn, to_shuffle)
        if self.adapts:
            learner = learner._replace(rule=self.moved(trace, learner, drawn))
        return learner, memories.reprioritised(memory, drawn, error), loss

    def moved(self, trace: Rule, learner: Learner, drawn: Sequences) -> Rule:
        """Return a rule that adapts after a step of `offtrace.adapt` on these sequences."""
        if not isinstance(trace, Trace):
            raise TypeError(f"{trace.title} does not adapt")
        x = self.trajectory(learner, drawn, self.values(learner, drawn.observation), trace)
        return trace.moved(1.0 - (1.0 - self.config.gamma) * magnitude(trace, x, drawn.valid), jnp)

    def adapted(self, trace: Rule, learner: Learner) -> Rule:
        """Return the trace as it has been adapted so far, where it is one that adapts."""
        if learner.rule is None:
            return trace
        return jax.tree.map(lambda given, kept: jnp.where(learner.updates == 0, given, kept), trace, learner.rule)

    def targets(self, trace: Rule, x: Trajectory) -> Array:
        """Return the targets of sequences, with the λ of the trace or with one that they choose."""
        how, compute = self.config.choose_lam, partial(targets, transform=self.transform)
        if how == "median":
            return chosen_lam.median(compute, trace, x)
        return compute(trace, **x) if how == "given" else chosen_lam.bounded(compute, trace, x, self.config.error_bound)

    def _whole(self, trace: Rule, learner: Learner, drawn: Sequences) -> tuple[Learner, Array, Array]:
        weight = self.counted(drawn)

        def objective(weights: Weights) -> tuple[Array, Array]:
            online = self.of_weights(weights, drawn.observation)
            target = self.targets(trace, self.trajectory(learner, drawn, lax.stop_gradient(online), trace))
            error = target - of_action(online[:, :-1], drawn.action)
            return self.loss(error, weight), error

        (loss, error), gradient = jax.value_and_grad(objective, has_aux=True)(learner.weights)
        return self._stepped(learner, gradient), loss, error

    def _pieces(self, trace: Rule, learner: Learner, drawn: Sequences, key: Array) -> tuple[Learner, Array, Array]:
        """Learn as DQN(λ), Daley and Amato (2019): targets are computed together, then learned from in random order."""
        c = self.config
        online = self.values(learner, drawn.observation)
        target = self.targets(trace, self.trajectory(learner, drawn, online, trace))
        error = target - of_action(online[:, :-1], drawn.action)
        late = slice(c.burn_in, None)
        steps = (
            drawn.observation[:, late][:, :-1],
            drawn.action[:, late],
            target[:, late],
            self.counted(drawn)[:, late],
        )
        order = jax.random.permutation(key, c.batch * c.length).reshape(c.minibatches, -1)
        flat = [a.reshape(c.batch * c.length, *a.shape[2:]) for a in steps]

        def piece(learner: Learner, some: Array) -> tuple[Learner, Array]:
            observation, action, wanted, weight = (a[some] for a in flat)

            def objective(weights: Weights) -> Array:
                return self.loss(wanted - of_action(self.of_weights(weights, observation), action), weight)

            loss, gradient = jax.value_and_grad(objective)(learner.weights)
            return self._stepped(learner, gradient), loss

        learner, losses = lax.scan(piece, learner, order)
        return learner, jnp.mean(losses), error

    def _stepped(self, learner: Learner, gradient: Weights) -> Learner:
        weights, optimizer, updates = self.optimizer.step(
            Fitted(learner.weights, learner.optimizer, learner.updates), gradient
        )
        c = self.config
        rate = jnp.where(updates % c.target_every == 0, c.target_rate, 0.0)
        target = jax.tree.map(lambda new, old: old + rate * (new - old), weights, learner.target)
        return learner._replace(weights=weights, target=target, optimizer=optimizer, updates=updates)

    def credit(self, trace: Rule, learner: Learner, memory: Memory, key: Array) -> Credit:
        """Measure what the trace does to freshly drawn sequences."""
        drawn = memories.draw(memory, key, self.config.batch, self.config.window, priority=self.config.priority)
        trace = self.adapted(trace, learner)
        x = self.trajectory(learner, drawn, self.values(learner, drawn.observation), trace)
        return measured(trace, x, self.counted(drawn) > 0)
