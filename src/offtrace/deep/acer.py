"""ACER: an actor and a critic of action values, which learn from fresh sequences and from those of a replay memory.

Source: Wang et al. (2017), Sample Efficient Actor-Critic with Experience Replay, ICLR. The loss is `offtrace.policy.acer`, with
the targets of any trace. One network has the actor's preferences and the critic's values as outputs. An update takes the newest
sequence of each game and `batch` sequences of the memory together; the memory keeps μ of all actions. Not here: the trust region,
and the average policy that it needs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import Array

from offtrace.deep import replay_memory as memories
from offtrace.deep.agent import Acted, Agent, Credit, Trajectory, measured, of_action
from offtrace.deep.config import ACER
from offtrace.deep.games import Stepped
from offtrace.deep.networks import Fitted, Network, Optimizer, Weights
from offtrace.deep.replay_memory import Memory, Sequences
from offtrace.policy import acer
from offtrace.traces import Rule


class ACERAgent(Agent[ACER, Fitted, Memory]):
    """Acts by its actor; remembers all steps, with μ of all actions."""

    def __init__(self, config: ACER, shape: tuple[int, ...], actions: int) -> None:
        super().__init__(config, shape, actions)
        self.network = Network(shape, 2 * actions, config.hidden)
        self.optimizer = Optimizer(optax.adam(config.learning_rate, eps=1e-5), config.clip)

    def first(self, key: Array) -> Fitted:
        """Make what there is before anything has been learned."""
        return self.optimizer.first(self.network.first(key))

    def empty(self, observation: Array) -> Memory:
        """Make a memory that holds nothing but the first observations [envs, …]."""
        c = self.config
        return memories.empty(c.envs, c.slots, observation, prioritised=False, actions=self.actions)

    def cut(self, memory: Memory, now: Array) -> Memory:
        """Begin new episodes at the observations `now` [envs, …], although no step ended the old ones."""
        return memories.cut(memory, now)

    def outputs(self, weights: Weights, observation: Array) -> tuple[Array, Array]:
        """Return log π(·|s) and Q(s, ·), [..., A] each, of observations [..., …]."""
        outputs = self.network(weights, observation)
        return jax.nn.log_softmax(outputs[..., : self.actions]), outputs[..., self.actions :]

    def values(self, learner: Fitted, observation: Array) -> Array:
        """Return log π(·|s) [n, A] of observations [n, …]: the largest is that of the best action."""
        return self.outputs(learner.weights, observation)[0]

    def behavior(self, learner: Fitted, observation: Array, frames: int | Array) -> Array:
        """The actor's policy."""
        return jnp.exp(self.values(learner, observation))

    def act(self, learner: Fitted, observation: Array, frames: int | Array, key: Array) -> Acted:
        """Draw actions for observations [envs, …], and say how likely each other one was."""
        log_mu = self.values(learner, observation)
        return Acted(jax.random.categorical(key, log_mu), log_mu)

    def remember(
        self, learner: Fitted, memory: Memory, frames: Array, observation: Array, acted: Acted, seen: Stepped[Array]
    ) -> Memory:
        """Write one step of every copy of the game."""
        return memories.write(
            memory, acted.action, acted.log_mu, seen.reward, seen.terminated, seen.truncated, seen.after, seen.now
        )

    def learn(self, trace: Rule, learner: Fitted, memory: Memory, key: Array) -> tuple[Fitted, Memory, Array]:
        """Learn from the newest sequences and from drawn ones; the last result is the loss."""
        c = self.config
        fresh = memories.newest(memory, c.window)
        drawn = memories.draw(memory, key, c.batch, c.window)
        x: Sequences = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), fresh, drawn)
        all_log_mu = x.all_log_mu
        if all_log_mu is None:
            raise TypeError("this memory does not keep μ of all actions")

        def objective(weights: Weights) -> Array:
            log_pi, q = self.outputs(weights, x.observation)
            ahead = jax.lax.stop_gradient(jnp.sum(jnp.exp(log_pi) * q, axis=-1))[:, 1:]
            return acer(
                trace,
                reward=x.reward,
                q=q[:, :-1],
                next_value=ahead,
                terminated=x.terminated,
                truncated=x.truncated,
                log_pi=log_pi[:, :-1],
                log_mu=all_log_mu[:, :-1],
                action=x.action,
                gamma=c.gamma,
                bound=c.truncation,
                value_cost=c.value_cost,
                entropy_cost=c.entropy_cost,
                valid=x.valid,
                time_major=False,
            ).loss

        loss, gradient = jax.value_and_grad(objective)(learner.weights)
        return self.optimizer.step(learner, gradient), memory, loss

    def credit(self, trace: Rule, learner: Fitted, memory: Memory, key: Array) -> Credit:
        """Measure what the trace does to freshly drawn sequences."""
        drawn = memories.draw(memory, key, self.config.batch, self.config.window)
        log_pi, q = self.outputs(learner.weights, drawn.observation[:, :-1])
        taken = of_action(q, drawn.action)
        x: Trajectory = {
            "reward": drawn.reward,
            "q": taken,
            "next_value": taken,
            "terminated": drawn.terminated,
            "truncated": drawn.truncated,
            "valid": drawn.valid,
            "log_pi": of_action(log_pi, drawn.action),
            "greedy": taken >= jnp.max(q, axis=-1),
            "log_mu": drawn.log_mu,
            "gamma": self.config.gamma,
            "time_major": False,
        }
        return measured(trace, x, drawn.valid)
