"""Published experiments as functions, so that a figure can be made again and compared.

"daley2023": the control experiment of Daley, White, Amato, Machado (2023) on the Bifurcation gridworlds.
"""

from __future__ import annotations

import numpy as np

from offtrace._shared.compile_cache import kept_njit
from offtrace.learners.api import control
from offtrace.learners.arguments import Evaluation
from offtrace.learners.core.records import Floats, Integers
from offtrace.learners.policies import EpsilonGreedy
from offtrace.mdps import bifurcation
from offtrace.traces import Trace

STEPS = {1: 3000, 2: 5000, 3: 3000, 4: 3000}
"""How long a trial lasts in each gridworld."""
EXPLORE = {1: 5, 2: 10, 3: 5, 4: 5}
"""How many episodes behave uniformly at first."""
WINDOW = 100
"""Over how many evaluation episodes the curve is averaged."""


def bifurcation_auc(
    gridworld: int,
    trace: Trace | str,
    *,
    alpha: float,
    seeds: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | None = None,
) -> Floats:
    """The area under the learning curve of each seed, [seeds], by protocol "daley2023".

    Q₀ ~ N(0, 0.01²); behaviour 0.2-greedy, target 0.1-greedy in the current Q; online updates with constant α; after each
    training episode an evaluation episode with ε = 0.05 of at most 51 steps.

    >>> import offtrace as ot
    >>> bifurcation_auc(1, ot.RBIS(lam=0.9), alpha=0.9, seeds=3).shape
    (3,)
    """
    steps = STEPS.get(gridworld)
    if steps is None:
        raise ValueError(f"there is no Bifurcation {gridworld!r}: choose from {sorted(STEPS)}")
    learned = control(
        trace,
        bifurcation(gridworld),
        behavior=EpsilonGreedy(0.2).exploring(EXPLORE[gridworld]),
        target=EpsilonGreedy(0.1),
        alpha=alpha,
        steps=steps,
        seed=seed,
        seeds=seeds,
        spread=0.01,
        points=1,
        evaluation=Evaluation(EpsilonGreedy(0.05), every=1, limit=51),
        threads=threads,
        progress=progress,
    )
    return np.array([area(at, returns, steps) for at, returns in learned.evaluations])


def area(at: Integers, returns: Floats, steps: int, window: int = WINDOW) -> float:
    """Σ_{t=0}^{steps} curve(t): at step 0, and after step at[i], the mean of the last `window` returns, and linear in between.

    The curve begins with a return of 0 at step 0, which counts in the mean as the others do. Between two episodes it is
    linspace(y₁, y₂, num=t₂ − t₁), both ends included; after the last one it stays.
    """
    return float(_area(at, returns, steps, window))


@kept_njit(nogil=True)
def _area(at: Integers, returns: Floats, steps: int, window: int) -> float:
    total, before, y, running = 0.0, 0, 0.0, 0.0
    for i in range(len(at)):
        running += returns[i]
        if i >= window:
            running -= returns[i - window]
        new, width = running / min(i + 2, window), at[i] - before
        total += y if width == 1 else width * (y + new) / 2.0
        before, y = at[i], new
    return total + (steps + 1 - before) * y
