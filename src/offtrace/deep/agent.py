"""The agent: a Q-network that learns from sequences of its memory, with targets of any trace.

    target_k = q_k + Δ_k of the drawn sequence (offtrace.targets), with q and next_value from the target network, and
    π, for log π and next_value = Σ_a π(a|s_{t+1}) Q(s_{t+1}, a), from the network of now (double estimation) or the target one,

so an update is a step towards M Q of the operator, with Q fixed. Everything here is a pure function of one seed's state;
`training` maps it over seeds. The trace is an argument, whose numbers are leaves: another λ is not another program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

from offtrace.deep import memory as memories
from offtrace.deep.action_probabilities import of_action, probabilities
from offtrace.deep.config import Config
from offtrace.deep.memory import Memory, Sequences
from offtrace.deep.networks import network
from offtrace.returns import corrections, targets
from offtrace.traces import Rule, Trace


class Learner(NamedTuple):
    """What is learned, for one seed."""

    weights: Any
    target: Any
    """The weights of the target network."""
    optimizer: Any
    updates: Any
    """How many there have been."""


class Agent:
    """The functions of one configuration, for observations of one shape and so many actions."""

    def __init__(self, config: Config, shape: tuple[int, ...], actions: int) -> None:
        self.config, self.shape, self.actions = config, shape, actions
        clip = [optax.clip_by_global_norm(config.clip)] if config.clip else []
        self.optimizer = optax.chain(*clip, optax.adam(config.learning_rate, eps=1e-5))
        self.structure = nnx.split(nnx.eval_shape(lambda: self._network(nnx.Rngs(0))))[0]

    def _network(self, rngs: nnx.Rngs) -> Any:
        return network(self.shape, self.actions, self.config.hidden, rngs)

    def first(self, key: Any) -> Learner:
        """Before learning."""
        weights = nnx.split(self._network(nnx.Rngs(key)))[1]
        return Learner(weights, weights, self.optimizer.init(weights), jnp.zeros((), jnp.int32))

    def values(self, weights: Any, observation: Any) -> Any:
        """Q(s, ·) [n, A] of observations [n, …]."""
        return nnx.merge(self.structure, weights)(observation)

    def exploration(self, frames: Any) -> Any:
        """ε, or the temperature, of the behaviour after so many frames."""
        c = self.config
        share = jnp.clip(frames / max(c.explore_frames, 1), 0.0, 1.0)
        return c.explore + (c.behavior - c.explore) * share

    def act(self, weights: Any, observation: Any, frames: Any, key: Any) -> tuple[Any, Any]:
        """Actions for observations [envs, …], and log μ of each."""
        μ = probabilities(self.config.policies, self.values(weights, observation), self.exploration(frames))
        action = jax.random.categorical(key, jnp.log(μ))
        return action, jnp.log(of_action(μ, action))

    def trajectory(self, learner: Learner, drawn: Sequences, online: Any) -> dict[str, Any]:
        """What `offtrace.targets` is given; `online` is Q of the network of now at all observations [n, steps + 1, A]."""
        c = self.config
        n, window = drawn.observation.shape[:2]
        fixed = self.values(learner.target, drawn.observation.reshape(n * window, *self.shape)).reshape(online.shape)
        chosen_by = online if c.double else fixed
        π = probabilities(c.policies, chosen_by, c.target)
        return {
            "reward": drawn.reward,
            "q": of_action(fixed[:, :-1], drawn.action),
            "next_value": jnp.sum(π[:, 1:] * fixed[:, 1:], axis=-1),
            "terminated": drawn.terminated,
            "truncated": drawn.truncated,
            "valid": drawn.valid,
            "log_pi": jnp.log(of_action(π[:, :-1], drawn.action)),
            "greedy": of_action(chosen_by[:, :-1], drawn.action) >= jnp.max(chosen_by[:, :-1], axis=-1),
            "log_mu": drawn.log_mu,
            "gamma": c.gamma,
            "time_major": False,  # a window may be one step
        }

    def online(self, weights: Any, drawn: Sequences) -> Any:
        """Q of the network of now at all observations of the sequences, [n, steps + 1, A]."""
        n, window = drawn.observation.shape[:2]
        return self.values(weights, drawn.observation.reshape(n * window, *self.shape)).reshape(n, window, -1)

    def counted(self, drawn: Sequences) -> Any:
        """[n, steps]: the weight of each step in the loss; those of the burn-in and of no step have none."""
        late = jnp.arange(drawn.action.shape[1]) >= self.config.burn_in
        return jnp.where(drawn.valid & late, drawn.weight[:, None], 0.0)

    def loss(self, error: Any, weight: Any) -> Any:
        """The mean over all that count."""
        each = optax.losses.huber_loss(error) if self.config.loss == "huber" else 0.5 * jnp.square(error)
        return jnp.sum(weight * each) / jnp.maximum(jnp.sum(weight > 0), 1)

    def learn(self, trace: Rule, learner: Learner, memory: Memory, key: Any) -> tuple[Learner, Memory, Any]:
        """Draw, and update once, or in `minibatches` pieces; the mean loss."""
        c = self.config
        to_draw, to_shuffle = jax.random.split(key)
        drawn = memories.draw(memory, to_draw, c.batch, c.window, priority=c.priority, correction=c.correction)
        if c.minibatches == 1:
            learner, loss, error = self._whole(trace, learner, drawn)
        else:
            learner, loss, error = self._pieces(trace, learner, drawn, to_shuffle)
        if memory.priority is not None:
            memory = memories.reprioritised(memory, drawn, error)
        return learner, memory, loss

    def _whole(self, trace: Rule, learner: Learner, drawn: Sequences) -> tuple[Learner, Any, Any]:
        weight = self.counted(drawn)

        def objective(weights: Any) -> tuple[Any, Any]:
            online = self.online(weights, drawn)
            target = targets(trace, **self.trajectory(learner, drawn, lax.stop_gradient(online)))
            error = target - of_action(online[:, :-1], drawn.action)
            return self.loss(error, weight), error

        (loss, error), gradient = jax.value_and_grad(objective, has_aux=True)(learner.weights)
        return self._stepped(learner, gradient), loss, error

    def _pieces(self, trace: Rule, learner: Learner, drawn: Sequences, key: Any) -> tuple[Learner, Any, Any]:
        """DQN(λ), Daley and Amato (2019): whole blocks are refreshed together, then learned from in random order."""
        c = self.config
        online = self.online(learner.weights, drawn)
        target = targets(trace, **self.trajectory(learner, drawn, online))
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

        def piece(learner: Learner, some: Any) -> tuple[Learner, Any]:
            observation, action, wanted, weight = (a[some] for a in flat)

            def objective(weights: Any) -> Any:
                return self.loss(wanted - of_action(self.values(weights, observation), action), weight)

            loss, gradient = jax.value_and_grad(objective)(learner.weights)
            return self._stepped(learner, gradient), loss

        learner, losses = lax.scan(piece, learner, order)
        return learner, jnp.mean(losses), error

    def _stepped(self, learner: Learner, gradient: Any) -> Learner:
        change, optimizer = self.optimizer.update(gradient, learner.optimizer, learner.weights)
        weights: Any = optax.apply_updates(learner.weights, change)
        updates = learner.updates + 1
        c = self.config
        rate = jnp.where(updates % c.target_every == 0, c.target_rate, 0.0)
        target = jax.tree.map(lambda new, old: old + rate * (new - old), weights, learner.target)
        return Learner(weights, target, optimizer, updates)

    def credit(self, trace: Rule, learner: Learner, memory: Memory, key: Any) -> dict[str, Any]:
        """What the trace does to freshly drawn sequences: means over the steps that count.

        length      Σ_t β_t, over the steps that the sequence still has
        magnitude   Σ_t γ^t β_t
        cut         the share of those that could go on whose β is below 1/100 at the last step that they could reach
        """
        if not isinstance(trace, Trace):
            return dict.fromkeys(("length", "magnitude", "cut"), jnp.nan)
        drawn = memories.draw(memory, key, self.config.batch, self.config.window, priority=self.config.priority)
        x = self.trajectory(learner, drawn, self.online(learner.weights, drawn))
        counts = self.counted(drawn) > 0
        ends = drawn.terminated | drawn.truncated | ~jnp.pad(drawn.valid[:, 1:], ((0, 0), (0, 1)))
        nothing = {"q": jnp.zeros_like(x["q"]), "next_value": jnp.zeros_like(x["q"])}

        def summed(at: Any, gamma: float) -> Any:
            """Σ_t γ^t β_t over the steps t that are marked."""
            return corrections(trace, **(x | nothing | {"reward": at.astype(jnp.float32), "gamma": gamma}))

        def mean(values: Any, among: Any) -> Any:
            return jnp.sum(jnp.where(among, values, 0.0)) / jnp.maximum(jnp.sum(among), 1)

        one = jnp.ones_like(ends)
        return {
            "length": mean(summed(one, 1.0), counts),
            "magnitude": mean(summed(one, self.config.gamma), counts),
            "cut": mean(summed(ends, 1.0) < 0.01, counts & ~ends),
        }
