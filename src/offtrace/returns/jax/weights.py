"""Weights of decisions by JAX operations in float64, for what is traced, is not on the CPU, or is not to be looked at."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import tree_unflatten

from offtrace.returns.jax.float64_programs import Numbers
from offtrace.returns.jax.operations import Rows, factors
from offtrace.returns.weights.decisions import ONE_A_ROW, Criterion, Weighing
from offtrace.returns.weights.scan import Kind, kept, starts, weigh
from offtrace.traces import Trace

KIND = Kind(
    jnp,
    lambda array, index: jnp.take_along_axis(array, index, -1),
    lambda like: lax.broadcasted_iota(jnp.int64, like.shape, like.ndim - 1),
)


class GivenWeights(NamedTuple):
    """What decides about the program."""

    rule: Hashable
    """The rule's structure, without its numbers."""
    shape: tuple[int, ...]
    how: Weighing


def weights(given: GivenWeights, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """The weights. `valid` is the mask and `pair` the segment, since these are what a program takes beside real numbers."""
    trace: Trace = tree_unflatten(given.rule, numbers)
    how, T = given.how, given.shape[-1]
    flat = {name: a.reshape(-1, T) for name, a in (real | other).items() if name != "group"}
    decision = flat["valid"] != 0
    segment = flat.get("pair")
    logs = {name: jnp.where(decision, flat[name], 0.0) for name in ("log_pi", "log_mu") if name in flat}
    made = factors(trace, Rows(logs, jnp.ones(()), decision, decision, None))
    found = weigh(KIND, *made, decision, segment, bounds_of(trace, T), trace.recursive, how)
    if how.normalize is not None:
        counted = starts(KIND, decision, segment) if how.level in ONE_A_ROW else decision
        found = _normalized(found, counted, real.get("group"))
    return found.reshape(given.shape)


def bounds_of(trace: Trace, T: int) -> Array | None:
    """log d_n for n = 0, 1, …, T decisions, where the rule has bounds by lag."""
    lags = trace.bounds_by_lag(T + 1)
    return None if lags is None else jnp.log(jnp.array([jnp.inf, *lags, *[0.0] * T][: T + 1], jnp.float64))


def _normalized(weights: Array, counted: Array, group: Array | None) -> Array:
    """Weights over their mean, in the batch or in their group."""
    rows = len(weights)
    ids = jnp.zeros(rows) if group is None else group
    place = jnp.unique(ids, return_inverse=True, size=rows)[1].reshape(rows)
    total, count = (
        jnp.zeros(rows).at[place].add(part)[place] for part in (jnp.where(counted, weights, 0.0).sum(1), counted.sum(1))
    )
    return weights / jnp.where(total > 0, total / count, 1.0)[:, None]


class GivenCriteria(NamedTuple):
    """What decides about the program of `keep`."""

    criteria: tuple[Criterion, ...]
    shape: tuple[int, ...]


def keep(given: GivenCriteria, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """1 where a decision is kept, else 0."""
    flat = {name: a.reshape(-1, given.shape[-1]) for name, a in (real | other).items()}
    decision = flat["valid"] != 0
    log_mu = jnp.where(jnp.isneginf(flat["log_mu"]), jnp.nan, flat["log_mu"])  # NaN passes no criterion
    log_ratio = jnp.where(decision, flat["log_pi"] - log_mu, 0.0)
    found = kept(KIND, given.criteria, log_ratio, decision, flat.get("pair"))
    return jnp.where(found, 1.0, 0.0).reshape(given.shape)
