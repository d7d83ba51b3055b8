"""QRC(λ): gradient temporal differences in a stream, with a second network h(s, a) that estimates the expected δ.

Source: Elelimy, Daley, Patterson, Machado, White, White (2025), Deep Reinforcement Learning with Gradient Eligibility Traces,
RLJ, equations 26 to 28. With the same β for three traces, z^h of the numbers h, z^θ of ∇h and z^w of ∇q,

    w ← w + α   [δ_t z^w_t − h_t ∇q_t − z^h_t ∇δ_t],      ∇δ_t = γ Σ_a π(a|s') ∇q(s', a) − ∇q_t,
    θ ← θ + α_h [δ_t z^θ_t − h_t ∇h_t − κ θ].

Published is the β of Watkins' rule; any rule with a β takes its place. α and α_h are those of Adam here. Networks and
normalisation are those of `streaming`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import Array

from offtrace.deep.agent import ValueAgent
from offtrace.deep.config import QRC
from offtrace.deep.eligibility import Now, Tree, of_action
from offtrace.deep.networks import Weights
from offtrace.deep.streaming import Learner, Stream, StreamingAgent, Transition
from offtrace.traces import Rule


class QRCAgent(StreamingAgent[QRC], ValueAgent[QRC, Learner, Stream]):
    """Keeps beside the weights those of h, and what Adam keeps of both."""

    def __init__(self, config: QRC, shape: tuple[int, ...], actions: int) -> None:
        self.optimizers = optax.adam(config.learning_rate), optax.adam(config.h_rate * config.learning_rate)
        super().__init__(config, shape, actions)

    def beside(self, weights: Weights, key: Array) -> Tree:
        """The weights of h, and what Adam keeps."""
        of_h = self.network.first(key)
        return of_h, self.optimizers[0].init(weights), self.optimizers[1].init(of_h)

    def traced(self, learner: Learner) -> Tree:
        """∇q, ∇h, h."""
        return learner.weights, learner.beside[0], jax.ShapeDtypeStruct((), jnp.float32)

    def update(
        self, trace: Rule, learner: Learner, memory: Stream, step: Transition
    ) -> tuple[Learner, Tree, Now, Array]:
        """Take a step with each network."""
        c, (of_h, *kept_by_adam) = self.config, learner.beside

        def taken(weights: Weights) -> tuple[Array, Array]:
            values = self.network(weights, step.state)[0]
            return values[step.action], values

        def error(weights: Weights) -> Array:
            ahead = self.network(weights, step.after)[0]
            π = jax.lax.stop_gradient(self.target_policy(ahead))
            return step.reward + c.gamma * step.goes_on * jnp.sum(π * ahead) - taken(weights)[0]

        (q, values), of_q = jax.value_and_grad(taken, has_aux=True)(learner.weights)
        (h, _), of_h_taken = jax.value_and_grad(taken, has_aux=True)(of_h)
        δ, of_δ = jax.value_and_grad(error)(learner.weights)
        now = of_action(trace, self.target_policy(values)[step.action], step.mu, q >= jnp.max(values))
        kept, (z_q, z_grad_h, z_h) = self.eligibility.step(trace, memory.kept, c.gamma, now, (of_q, of_h_taken, h))
        up_q = jax.tree.map(lambda z, g, d: δ * z - h * g - z_h * d, z_q, of_q, of_δ)
        up_h = jax.tree.map(lambda z, g, w: δ * z - h * g - c.regularization * w, z_grad_h, of_h_taken, of_h)
        weights, adam_q = self._stepped(0, learner.weights, up_q, kept_by_adam[0])
        of_h, adam_h = self._stepped(1, of_h, up_h, kept_by_adam[1])
        return learner._replace(weights=weights, beside=(of_h, adam_q, adam_h)), kept, now, δ

    def _stepped(self, which: int, weights: Weights, up: Tree, kept: optax.OptState) -> tuple[Weights, optax.OptState]:
        """Move weights up along a direction."""
        change, kept = self.optimizers[which].update(jax.tree.map(jnp.negative, up), kept, weights)
        return optax.apply_updates(weights, change), kept  # pyright: ignore (a tree stays what it is)
