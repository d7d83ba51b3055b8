"""Values from logs: one sweep of the sampled operator over 10⁷ logged steps, tabular, RBIS, and a whole evaluation of fewer.

Time is of a sweep after one that compiles; memory is the peak of this process, logs included.

    .venv/bin/python benchmarks/run.py evaluation_sweep
"""

from __future__ import annotations

import resource
import time

import numpy as np
from timing import emit

import offtrace as ot
from offtrace import mdps
from offtrace.logs import Logs, evaluate, simulate
from offtrace.logs.bases import Table
from offtrace.logs.fit import sweep
from offtrace.logs.operator import Sampled
from offtrace.logs.policies import as_policy

STEPS = 10_000_000


def made(steps: int) -> tuple[Logs, np.ndarray, float]:
    """Logs of a Garnet of 1,000 states and 10 actions, about 100 steps an episode, and a target policy."""
    mdp = mdps.garnet(1000, 10, 5, seed=0, gamma=0.99, terminal=10)
    rng = np.random.default_rng(0)
    mu, pi = mdps.random_policy(mdp, rng, 5.0), mdps.random_policy(mdp, rng, 5.0)
    return simulate(mdp, mu, steps=steps, seed=rng), 0.5 * (pi + mu), mdp.gamma


def one_sweep() -> None:
    logs, pi, gamma = made(STEPS)
    basis = Table(Sampled(ot.RBIS(lam=0.95), logs, as_policy(pi, logs), gamma))
    theta = sweep(basis, np.zeros(basis.size))
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        theta = theta + sweep(basis, theta)
        taken.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    emit("evaluation sweep", steps=STEPS, episodes=logs.episodes, seconds=float(np.median(taken)), peak_gb=peak)


def whole(steps: int = 1_000_000) -> None:
    logs, pi, gamma = made(steps)
    start = time.perf_counter()
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.95), gamma=gamma)
    seconds = time.perf_counter() - start
    emit("evaluation", steps=steps, episodes=logs.episodes, seconds=seconds, sweeps=result.sweeps)


if __name__ == "__main__":
    one_sweep()
    whole()
