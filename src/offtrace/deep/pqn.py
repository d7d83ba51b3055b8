"""PQN: a Q-network that learns from fresh steps of many games, without memory and target network.

Source: Gallici, Fellows, Ellis, Pou, Masmitja, Foerster, Martin (2025), Simplifying Deep Temporal Difference Learning, ICLR,
algorithm 1. After `length` steps of all games,

    target_k = q_k + Δ_k of these steps (offtrace.targets), with q, next_value and π from the current network,

computed once; then each step is learned from `epochs` times, in `minibatches` random pieces, by ½ (target − q)². The network's
LayerNorm stands in for the target network. Published are Peng's Q(λ) and the greedy π; any other rule takes their place.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from offtrace.deep import fresh_steps
from offtrace.deep.agent import Acted, Credit, Trajectory, ValueAgent, measured, of_action
from offtrace.deep.config import PQN
from offtrace.deep.fresh_steps import Steps
from offtrace.deep.games import Stepped
from offtrace.deep.networks import LAYER_NORM, Fitted, Network, Optimizer, Weights
from offtrace.returns import targets
from offtrace.traces import Rule


class PQNAgent(ValueAgent[PQN, Fitted, Steps]):
    """Acts ε-greedily, or by softmax, in the current network; remembers the steps of a round."""

    def __init__(self, config: PQN, shape: tuple[int, ...], actions: int) -> None:
        super().__init__(config, shape, actions)
        self.network = Network(shape, actions, config.hidden, LAYER_NORM)
        self.optimizer = Optimizer(optax.radam(config.learning_rate), config.clip)

    def first(self, key: Array) -> Fitted:
        """Make what there is before anything has been learned."""
        return self.optimizer.first(self.network.first(key))

    def empty(self, observation: Array) -> Steps:
        """Make room for the steps of a round."""
        return fresh_steps.empty(self.config.length, observation)

    def values(self, learner: Fitted, observation: Array) -> Array:
        """Return Q(s, ·) [n, A] of observations [n, …]."""
        return self.network(learner.weights, observation)

    def remember(
        self, learner: Fitted, memory: Steps, frames: Array, observation: Array, acted: Acted, seen: Stepped[Array]
    ) -> Steps:
        """Write one step of every copy of the game."""
        return fresh_steps.write(memory, observation, acted, seen)

    def trajectory(self, learner: Fitted, steps: Steps) -> Trajectory:
        """Return what `offtrace.targets` is given: the steps of a round, [envs, length]."""
        c = self.config
        q, q_after = self.values(learner, steps.observation), self.values(learner, steps.after)
        π, π_after = self.target_policy(q), self.target_policy(q_after)
        return {
            "reward": steps.reward,
            "q": of_action(q, steps.action),
            "next_value": jnp.sum(π_after * q_after, axis=-1),
            "terminated": steps.terminated,
            "truncated": steps.truncated,
            "valid": jnp.ones_like(steps.terminated),
            "log_pi": jnp.log(of_action(π, steps.action)),
            "greedy": of_action(q, steps.action) >= jnp.max(q, axis=-1),
            "log_mu": steps.log_mu,
            "gamma": c.gamma,
            "time_major": False,  # a round may be one step
        }

    def learn(self, trace: Rule, learner: Fitted, memory: Steps, key: Array) -> tuple[Fitted, Steps, Array]:
        """Compute the targets of the round, and learn from them in pieces; the last result is the mean loss."""
        c = self.config
        target = targets(trace, **self.trajectory(learner, memory))
        observation, action, wanted = (
            a.reshape(c.round, *a.shape[2:]) for a in (memory.observation, memory.action, target)
        )

        def piece(learner: Fitted, some: Array) -> tuple[Fitted, Array]:
            def objective(weights: Weights) -> Array:
                error = wanted[some] - of_action(self.network(weights, observation[some]), action[some])
                return 0.5 * jnp.mean(jnp.square(error))

            loss, gradient = jax.value_and_grad(objective)(learner.weights)
            return self.optimizer.step(learner, gradient), loss

        orders = jax.vmap(lambda key: jax.random.permutation(key, c.round))(jax.random.split(key, c.epochs))
        learner, losses = lax.scan(piece, learner, orders.reshape(c.epochs * c.minibatches, -1))
        return learner, memory, jnp.mean(losses)

    def credit(self, trace: Rule, learner: Fitted, memory: Steps, key: Array) -> Credit:
        """Measure what the trace does to the steps of the last round, by the network that has learned from them."""
        x = self.trajectory(learner, memory)
        return measured(trace, x, x["valid"])
