"""Two tasks whose answers can be verified. A row has T symbols x_t, one for each answer token a_t; both are in 0 … SYMBOLS − 1.

`sum`    a_t = a_{t-1} + x_t modulo SYMBOLS: each token follows from the policy's own token before it; a slip changes the rest
`lag`    a_t = x_t + x_{t-LAG} modulo SYMBOLS: no answer token matters for another

The reward is sparse: 1 if the whole answer is right, else 0.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

SYMBOLS = 8
LAG = 7


def _sum(x: Array) -> Array:
    return jnp.cumsum(x, axis=1) % SYMBOLS


def _lag(x: Array) -> Array:
    return (x + jnp.pad(x, ((0, 0), (LAG, 0)))[:, : x.shape[1]]) % SYMBOLS


TASKS: dict[str, Callable[[Array], Array]] = {"sum": _sum, "lag": _lag}
"""By name, the right answers [B, T] to the symbols [B, T]. Add your own here."""


def solution(task: Array | int, x: Array) -> Array:
    """The right answers of the task with this number, which may be traced."""
    return jnp.stack([solve(x) for solve in TASKS.values()])[task]
