"""The operator laboratory: how long it takes to know what a trace does, and how narrow the answer is.

Figures of one run each, with compiled code warm: a certificate is not repeated in a loop by anyone. There is no peer: no
other software computes these.

    .venv/bin/python benchmarks/run.py laboratory
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

from timing import emit

import offtrace as ot
from offtrace.mdps import bifurcation, epsilon_greedy, garnet, random_policy
from offtrace.operators import Operator, audit, falsify


def timed(name: str, limit: float, call: Callable[[], Any], told: Callable[[Any], str]) -> None:
    start = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    emit("laboratory", case=name, seconds=seconds, limit=limit, told=told(found), peak_gb=peak)


if __name__ == "__main__":
    import numpy as np

    mdp = bifurcation(1)
    q = mdp.optimal_q()
    pi, mu = epsilon_greedy(q, 0.1), epsilon_greedy(q, 0.4)
    Operator(ot.NonMarkovRetrace(0.9), mdp, target=pi, behavior=mu).contraction  # noqa: B018  (compiles)
    Operator(ot.TruncatedIS(1.0, 0.9), mdp, target=pi, behavior=mu).C  # noqa: B018
    timed(
        "Bifurcation 1, ε-greedy, NonMarkovRetrace(0.8): ‖Z‖ to 1e-6",
        2.0,
        lambda: Operator(ot.NonMarkovRetrace(0.8), mdp, target=pi, behavior=mu, tolerance=1e-6).contraction,
        lambda found: f"width {found.width:.1e}",
    )
    timed(
        "Bifurcation 1, ε-greedy, TruncatedIS(1): ‖Z‖ from all of C, to 1e-6",
        20.0,
        lambda: Operator(ot.TruncatedIS(1.0), mdp, target=pi, behavior=mu, tolerance=1e-6).contraction,
        lambda found: f"width {found.width:.1e}",
    )
    large = garnet(2000, 5, 5, seed=0, gamma=0.99)
    rng = np.random.default_rng(0)
    two = random_policy(large, rng), random_policy(large, rng)
    timed(
        "Garnet, 10,000 pairs, γ = 0.99, NonMarkovRetrace(0.9): ‖Z‖ to 1e-4",
        120.0,
        lambda: Operator(ot.NonMarkovRetrace(0.9), large, target=two[0], behavior=two[1], tolerance=1e-4).contraction,
        lambda found: f"width {found.width:.1e}",
    )
    timed(
        "falsify TruncatedIS(1)",
        300.0,
        lambda: falsify(ot.TruncatedIS(1.0), seed=0),
        lambda found: str(found).splitlines()[0],
    )
    timed("offtrace audit", 30.0, audit, lambda rows: f"{len(rows)} rows")
