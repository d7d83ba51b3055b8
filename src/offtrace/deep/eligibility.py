"""Eligibility traces of trees of gradients, fed step by step: what `offtrace.Stream` does, inside compiled programs.

    z_t = Σ_{k≤t} (γ_k ··· γ_{t-1}) β_{k:t} g_k,      k from the start of the episode,

where g is any tree: the gradient of a network, those of two networks, numbers in addition. A per-decision rule needs one tree,

    z ← γ_{t-1} decay_t ratio_t z + g_t.

Any other rule keeps *groups* of starts, each with its x, its weight w (discounts and decays) and its tree G:  z = Σ w β G. At a
recursive cap all groups that are clipped meet at the cap, and continue as one: G = Σ w G. So the result is exact, and the memory
is `groups` trees in addition to the network's own. A program has room for a fixed number of groups. If it is full, the group that
counts least is forgotten, and `lost` says how much it counted: exactness is not silently given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from offtrace.traces import Rule, Trace

Tree = Any
"""A tree of arrays."""
HARMLESS = 1e-6
"""A group that counts less than this, where a new start counts 1, may be forgotten."""
LARGEST = 1e30
"""A product of ratios beyond this is no longer known."""


class Now(NamedTuple):
    """The action of this step as a rule sees it: numbers."""

    pi: Array
    mu: Array
    rho: Array


class Groups(NamedTuple):
    """The groups of starts, [groups] and [groups, …]."""

    gradient: Tree
    x: Array
    weight: Array
    """Discounts and decays since the start; 0 where there is no group."""
    lag: Array
    lost: Array
    """How much the largest of the groups counted that were forgotten because there was no room."""


def of_action(trace: Rule, pi: Array, mu: Array, greedy: Array) -> Now:
    """What the rule sees of an action: where it asks for the greedy policy, π is 1 or 0."""
    seen = jnp.asarray(greedy if trace.needs_greedy else pi, jnp.float32)
    return Now(seen, mu, seen / mu)


@dataclass(frozen=True)
class Eligibility:
    """Keeps z of a rule, for trees like `like`, with room for `groups` groups where the rule needs groups."""

    trace: Rule
    """Which rule it is; its numbers are those of the calls."""
    like: Tree
    groups: int

    @property
    def simple(self) -> bool:
        """Whether one tree is enough."""
        rule = self.trace
        return isinstance(rule, Trace) and rule.per_decision and rule.horizon is None and rule.lag_bound is None

    def first(self) -> Tree:
        """Make what is kept before the first step."""
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.like)
        if self.simple:
            return zeros
        many = jax.tree.map(lambda leaf: jnp.zeros((self.groups, *leaf.shape), leaf.dtype), self.like)
        none = jnp.zeros(self.groups)
        return Groups(many, none, none, none.astype(jnp.int32), jnp.zeros(()))

    def cleared(self, kept: Tree, ended: Array) -> Tree:
        """Forget all starts where the episode ended."""
        if self.simple:
            return jax.tree.map(lambda leaf: jnp.where(ended, 0.0, leaf), kept)
        return kept._replace(weight=jnp.where(ended, 0.0, kept.weight))

    def step(self, trace: Rule, kept: Tree, discount: Array | float, now: Now, gradient: Tree) -> tuple[Tree, Tree]:
        """Scale the older starts by γ_{t-1} and by the rule, and add the current one; return what is kept, and z."""
        if not isinstance(trace, Trace):
            raise TypeError(f"{trace.title} has no β, and cannot be fed step by step")
        decay, ratio, cap = (jnp.asarray(part, jnp.float32) for part in trace.normal_form(jnp, *now))
        if self.simple:
            scale = discount * decay * ratio
            z = jax.tree.map(lambda old, new: jnp.where(scale > 0, scale * old, 0.0) + new, kept, gradient)
            return z, z
        return self._grouped(trace, kept, discount * decay, ratio, cap, gradient)

    def _grouped(
        self, trace: Trace, kept: Groups, discount: Array, ratio: Array, cap: Array, gradient: Tree
    ) -> tuple[Groups, Tree]:
        lag, x, weight = kept.lag + 1, kept.x * ratio, kept.weight * discount
        bounds = jnp.asarray(trace.lag_bound or (jnp.inf,), jnp.float32)
        bound = jnp.minimum(cap, bounds[jnp.minimum(lag, bounds.size) - 1])
        alive = (weight > 0) & (x > 0)
        if trace.horizon is not None:
            alive &= lag < trace.horizon
        most = cap if trace.lag_bound is None else jnp.max(bounds)
        lost = jnp.where(jnp.any(alive & (x > LARGEST)) & (not trace.recursive), jnp.inf, kept.lost)
        weight = jnp.where(alive, weight, 0.0)
        gradients = kept.gradient
        if trace.recursive:
            clipped = alive & (x >= cap)
            x = jnp.minimum(x, cap)
            if trace.horizon is None and trace.lag_bound is None:  # else starts of other lags end at other times
                into = jnp.argmax(clipped)
                first = clipped & (jnp.arange(self.groups) == into)
                gradients = _merged(gradients, jnp.where(clipped, weight, 0.0), into, jnp.any(clipped))
                weight = jnp.where(first, 1.0, jnp.where(clipped, 0.0, weight))
        could = weight * jnp.minimum(x, most)
        at = jnp.argmin(could)  # an empty group, or the one that can count least
        lost = jnp.maximum(lost, could[at])
        entered = Groups(
            jax.tree.map(lambda many, one: many.at[at].set(one), gradients, gradient),
            x.at[at].set(1.0),
            weight.at[at].set(1.0),
            lag.at[at].set(0),
            lost,
        )
        counts = (weight * jnp.minimum(x, bound)).at[at].set(1.0)
        return entered, jax.tree.map(lambda many: jnp.tensordot(counts, many, axes=1), entered.gradient)

    def complaint(self, kept: Tree) -> str | None:
        """Say that groups that count had to be forgotten, of any seed; None if none had."""
        if self.simple or not (worst := float(jnp.max(kept.lost))) > HARMLESS:
            return None
        if worst == float("inf"):
            return f"a product of ratios of {self.trace.title} grew beyond {LARGEST:g}: take policies that are nearer"
        return (
            f"{self.trace.title} needs more than groups = {self.groups} groups of starts: one that counted {worst:.2g}, where a "
            "new start counts 1, was forgotten. Take more groups (each takes as much memory as the network), or a smaller lam"
        )


def _merged(gradients: Tree, weights: Array, into: Array, any_clipped: Array) -> Tree:
    """Put Σ w G of the groups that have a weight here into one of them."""

    def merged(many: Array) -> Array:
        one = jnp.tensordot(weights, many, axes=1)
        return many.at[into].set(jnp.where(any_clipped, one, many[into]))

    return jax.tree.map(merged, gradients)
