"""The mean return of uniformly random actions in the MinAtar games: the zeros of `offtrace.reports.study.views`.

python benchmarks/random_policies.py
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.deep.config import Config
from offtrace.deep.games import MINATAR, World, compiled

COPIES, STEPS = 256, 6_000


def measured(world: World) -> tuple[int, float, float]:
    """Episodes, their mean return, its standard error."""

    def step(carry: Any, _: Any) -> Any:
        state, returns, key = carry
        key, to_step, to_act = jax.random.split(key, 3)
        action = jax.random.randint(to_act, (COPIES,), 0, world.actions)
        seen = jax.vmap(world.step)(jax.random.split(to_step, COPIES), state, action)
        ended, returns = seen.terminated | seen.truncated, returns + seen.reward
        sums = [jnp.sum(jnp.where(ended, returns**power, 0.0)) for power in range(3)]
        return (seen.state, jnp.where(ended, 0.0, returns), key), sums

    def play(key: Any) -> Any:
        state, _ = jax.vmap(world.reset)(jax.random.split(key, COPIES))
        return jax.lax.scan(step, (state, jnp.zeros(COPIES), key), length=STEPS)[1]

    n, total, squares = (np.asarray(sums, dtype=float).sum() for sums in jax.jit(play)(jax.random.PRNGKey(0)))
    return int(n), total / n, ((squares / n - (total / n) ** 2) / n) ** 0.5


if __name__ == "__main__":
    for game in MINATAR:
        episodes, mean, error = measured(compiled(Config(game=game)))
        print(f"{game:<24}{mean:8.3f} ± {error:.3f}  {episodes:,} episodes", flush=True)
