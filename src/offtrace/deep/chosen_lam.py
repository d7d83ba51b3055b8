"""Targets whose λ is chosen by the sequences themselves: the dynamic λ of DQN(λ).

Source: Daley and Amato (2019), Reconciling λ-Returns with Experience Replay, NeurIPS. "median" takes, at each step, the median
of the targets of 21 λ's from 0 to 1; "bounded" takes, for each sequence, the largest λ whose targets differ from q by no more
than a bound, in the mean of the squares, found by bisection; if not even λ = 0 does, it is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from offtrace.deep.agent import Trajectory
from offtrace.returns import targets
from offtrace.traces import Rule

CANDIDATES, HALVINGS = 21, 7
"""As published."""


def with_lam(trace: Rule, lam: Array) -> Rule:
    """The same rule with another λ."""
    given: Any = {"lam": lam}
    return replace(trace, **given)


def median(trace: Rule, x: Trajectory, compute: Callable[..., Array] = targets) -> Array:
    """Return the medians of the targets over λ, [n, steps]."""
    each = jax.vmap(lambda lam: compute(with_lam(trace, lam), **x))(jnp.linspace(0.0, 1.0, CANDIDATES))
    return jnp.median(each, axis=0)


def bounded(trace: Rule, x: Trajectory, bound: float, compute: Callable[..., Array] = targets) -> Array:
    """Return the targets of each sequence with the largest λ that keeps their mean squared error below the bound, [n, steps]."""
    rows = {name: value for name, value in x.items() if isinstance(value, Array)}
    others = {name: value for name, value in x.items() if name not in rows}

    def of_row(row: dict[str, Array]) -> Array:
        one: Any = {**{name: array[None] for name, array in row.items()}, **others}

        def at(lam: Array) -> Array:
            return compute(with_lam(trace, lam), **one)[0]

        def fits(lam: Array) -> Array:
            off = jnp.where(row["valid"], jnp.square(at(lam) - row["q"]), 0.0)
            return jnp.sum(off) <= bound * jnp.sum(row["valid"])

        def halved(_: int, between: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = between
            middle = 0.5 * (low + high)
            ok = fits(middle)
            return jnp.where(ok, middle, low), jnp.where(ok, high, middle)

        low, _ = lax.fori_loop(0, HALVINGS, halved, (jnp.zeros(()), jnp.ones(())))
        return at(jnp.where(fits(jnp.ones(())), 1.0, low))

    return jax.vmap(of_row)(rows)
