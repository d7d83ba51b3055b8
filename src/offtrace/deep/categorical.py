"""The replay agent with a categorical critic (C51), whose targets are distributions by any trace.

    loss = −Σ_i target_i log p_i(s, a),      target = offtrace.distributional_targets of the drawn sequence

with the distributions of the target network, and π from the means of the current one (double estimation) or of the target one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from offtrace.deep.agent import of_action
from offtrace.deep.config import Categorical
from offtrace.deep.networks import Network, Weights
from offtrace.deep.replay import Learner, ReplayAgent
from offtrace.deep.replay_memory import Sequences
from offtrace.returns.distributions import distributional_targets
from offtrace.traces import Rule


class CategoricalAgent(ReplayAgent):
    """Acts and chooses by the means of its distributions."""

    config: Categorical

    def __init__(self, config: Categorical, shape: tuple[int, ...], actions: int) -> None:
        self.support = jnp.linspace(config.least, config.most, config.atoms)
        super().__init__(config, shape, actions)

    def make_network(self) -> Network:
        """Make the network that learns."""
        return Network(self.shape, self.actions * self.config.atoms, self.config.hidden)

    def logits(self, weights: Weights, observation: Array) -> Array:
        """Return log p(s, ·), up to a constant, [..., A, atoms] of observations."""
        outputs = self.network(weights, observation)
        return outputs.reshape(*outputs.shape[:-1], self.actions, self.config.atoms)

    def of_weights(self, weights: Weights, observation: Array) -> Array:
        """Return the means Q(s, ·) [..., A]."""
        return jax.nn.softmax(self.logits(weights, observation)) @ self.support

    def _whole(self, trace: Rule, learner: Learner, drawn: Sequences) -> tuple[Learner, Array, Array]:
        weight = self.counted(drawn)
        fixed = jax.nn.softmax(self.logits(learner.target, drawn.observation))

        def objective(weights: Weights) -> tuple[Array, Array]:
            logits = self.logits(weights, drawn.observation)
            online = jax.nn.softmax(logits) @ self.support
            x: dict[str, Any] = {**self.trajectory(learner, drawn, lax.stop_gradient(online), trace)}
            _, evaluated = self.policies(learner, drawn, lax.stop_gradient(online), trace)
            names = ("reward", "terminated", "truncated", "valid", "log_pi", "log_mu", "greedy", "gamma")
            target = distributional_targets(
                trace,
                probabilities=_of_action(fixed[:, :-1], drawn.action),
                next_probabilities=jnp.einsum("nta,ntai->nti", evaluated[:, 1:], fixed[:, 1:]),
                support=self.support,
                clip=self.config.clip_masses,
                **{name: x[name] for name in names},
            ).probabilities
            each = -jnp.sum(target * jax.nn.log_softmax(_of_action(logits[:, :-1], drawn.action)), -1)
            error = target @ self.support - of_action(online[:, :-1], drawn.action)
            return jnp.sum(weight * each) / jnp.maximum(jnp.sum(weight > 0), 1), error

        (loss, error), gradient = jax.value_and_grad(objective, has_aux=True)(learner.weights)
        return self._stepped(learner, gradient), loss, error


def _of_action(arrays: Array, action: Array) -> Array:
    """What stands at the action taken [n, t, atoms], of arrays [n, t, A, atoms]."""
    return jnp.take_along_axis(arrays, action[..., None, None], -2)[..., 0, :]
