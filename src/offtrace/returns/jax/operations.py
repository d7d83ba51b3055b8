"""Returns and weights by JAX operations in float64, for what is traced, is not on the CPU, or is not to be looked at.

Each function takes what decides about the program, the numbers of a rule, the real arrays and the other arrays, as
`float64_programs.compute` calls it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import tree_map, tree_unflatten

from offtrace.returns import operations
from offtrace.returns.jax import by_lag, kernels
from offtrace.returns.jax.float64_programs import Numbers
from offtrace.returns.mixtures import Mixture, mixed
from offtrace.returns.operations import Operations, Rows, corrections, following, read_rows
from offtrace.returns.weights import scan
from offtrace.returns.weights.decisions import ONE_A_ROW, Weighing
from offtrace.traces import Step, Trace


class Given(NamedTuple):
    """What decides about the program: everything that is not an array."""

    rule: Hashable
    """The rule's structure, without its numbers."""
    shape: tuple[int, ...]
    how: Any
    """What else each function asks for; `single` is whether the result will be float32, or of half precision."""


class JaxOperations(Operations):
    """What JAX does not spell as PyTorch does."""

    xp = math = jnp

    def __init__(self, single: bool) -> None:
        self.single = single

    def linear(self, delta: Array, weight: Array) -> Array:
        return kernels.linear(delta, weight)

    def linear_within(self, delta: Array, weight: Array, n: int) -> Array:
        return by_lag.linear_within(delta, weight, n)

    def capped(
        self, delta: Array, g: Array, step: Array, cap: Array, lags: list[float] | None, recursive: bool
    ) -> Array:
        return by_lag.capped(delta, g, step, cap, None if lags is None else tuple(lags), recursive, self.single)

    def custom(self, trace: Trace, x: Rows, delta: Array) -> Array:
        """Δ of a custom step, for all starts side by side."""
        step = trace.step_form
        assert step is not None, "a history is refused before"
        probabilities = x.probabilities(jnp, trace.reads)

        def beta(carry: Array, lag: Array, later: Callable[[Array], Array]) -> tuple[Array, Array]:
            pi, mu, rho = (p if isinstance(p, float | int) else later(p) for p in probabilities)
            start, pair = (-1, -2) if x.pair is None else (x.pair, later(x.pair))
            now = Step(pi, mu, rho, step.lam, lag.astype(jnp.float64), start, pair)
            carry, β = step.traced.call(jnp, carry, now)
            return tree_map(lambda c: jnp.broadcast_to(jnp.asarray(c, jnp.float64), delta.shape), carry), β

        # The first carry varies over the axes of a shard_map, as δ does.
        first = tree_map(lambda c: c * jnp.ones_like(delta), step.carry)
        bad = following(jnp, x.bad(jnp, trace), False)
        stopped = lax.stop_gradient(jnp.where((x.discount != 0) & bad, jnp.nan, x.discount))
        return by_lag.by_lag(delta, stopped, trace.horizon or delta.shape[1], first, beta)

    def asarray(self, numbers: object, like: Array) -> Array:
        return jnp.asarray(numbers, jnp.float64)

    def constant(self, array: Array) -> Array:
        return lax.stop_gradient(array)

    def take(self, array: Array, index: Array) -> Array:
        return jnp.take_along_axis(array, index, -1)

    def repeat(self, n: int, body: Callable[..., tuple[Array, ...]], state: tuple[Array, ...]) -> tuple[Array, ...]:
        return lax.fori_loop(0, n, body, state)


DOUBLE = JaxOperations(False)


def results(given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> tuple[Array, ...]:
    """q + Δ or Δ; without `add_q` target, advantage and correction of state values."""
    add_q, single = given.how
    trace = tree_unflatten(given.rule, numbers)
    return operations.results(JaxOperations(single), trace, given.shape, real | other, add_q)


def matrix(given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """β_{k:t} [T, T]: Δ of row t, whose δ is 1 at t and 0 elsewhere, is β_{·:t}."""
    T, do, rule = given.shape[0], JaxOperations(given.how), tree_unflatten(given.rule, numbers)
    arrays = {n: jnp.broadcast_to(a, (T, T)) if a.ndim else a for n, a in (real | other).items()}
    x = read_rows(do, rule, (T, T), arrays)
    Δ = corrections(do, rule, x, jnp.eye(T))
    return jnp.where(x.valid & x.valid.T, Δ, 0.0).T


def mixed_masses(given: None, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """The masses of projected mixtures."""
    return mixed(DOUBLE, Mixture(**real))


def weights(given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """The weights. `valid` is the mask and `pair` the segment, since these are what a program takes besides real numbers."""
    how: Weighing = given.how
    flat = {name: a.reshape(-1, given.shape[-1]) for name, a in (real | other).items() if name != "group"}
    decision, segment = flat["valid"] != 0, flat.get("pair")
    logs = {name: flat[name] for name in ("log_pi", "log_mu") if name in flat}
    weights = scan.weigh(DOUBLE, tree_unflatten(given.rule, numbers), logs, decision, segment, how)
    if how.normalize is not None:
        counted = scan.starts(DOUBLE, decision, segment) if how.level in ONE_A_ROW else decision
        weights = _normalized(weights, counted, real.get("group"))
    return weights.reshape(given.shape)


def _normalized(weights: Array, counted: Array, group: Array | None) -> Array:
    """Weights over their mean, in the batch or in their group."""
    rows = len(weights)
    ids = jnp.zeros(rows) if group is None else group
    place = jnp.unique(ids, return_inverse=True, size=rows)[1].reshape(rows)
    total, count = (
        jnp.zeros(rows).at[place].add(part)[place] for part in (jnp.where(counted, weights, 0.0).sum(1), counted.sum(1))
    )
    return weights / jnp.where(total > 0, total / count, 1.0)[:, None]


def keep(given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """1 where a decision is kept, else 0."""
    rows = math.prod(given.shape[:-1])
    flat = {name: a.reshape(rows, -1) for name, a in (real | other).items()}
    arrays = flat["log_pi"], flat["log_mu"], flat["valid"] != 0, flat.get("pair"), flat.get("advantage")
    return jnp.where(scan.kept(DOUBLE, given.how, *arrays), 1.0, 0.0).reshape(given.shape)
