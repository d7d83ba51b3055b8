"""Published experiments as functions, so that a figure can be computed again and compared.

"daley2023": the control experiment of Daley, White, Amato, Machado (2023) on the Bifurcation gridworlds. `collision_error`: the
prediction experiment of Ghiassian, Sutton (2021) on the Collision task.
"""

from __future__ import annotations

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.learners.api import control
from offtrace.learners.arguments import Evaluation
from offtrace.learners.arrays import Floats, Integers
from offtrace.learners.follow import follow
from offtrace.learners.methods.base import Method
from offtrace.learners.policies import EpsilonGreedy
from offtrace.mdps import bifurcation, collision, collision_features
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


def collision_error(
    method: Method | Trace | str, *, alpha: float | None = None, runs: int = 50, steps: int = 20_000, seed: int = 0
) -> Floats:
    """The mean error over all steps of each run on the Collision task, [runs], for a method on state values.

    The error after a step is √Σ_s d(s) (v(s) − V^π(s))², d being the distribution of states under μ. Each run has its own
    trajectory and its own features (`mdps.collision_features`), drawn from `seed` and the number of the run.

    >>> from offtrace.learners import collision_error, method
    >>> collision_error(method("td", alpha=2**-6, lam=0.9), runs=2, steps=500).shape
    (2,)
    """
    mdp, target, behavior = collision()
    live = ~np.asarray(mdp.terminal)
    onwards = np.einsum("sa,sat->st", behavior, mdp.dense_P)[np.ix_(live, live)]
    visits = np.array(np.linalg.solve(np.eye(len(onwards)) - onwards.T, mdp.start[live]), dtype=np.float64)
    truth = (target * mdp.q(target)).sum(axis=1)[live]
    errors: list[float] = []
    for run in range(runs):
        rng = np.random.default_rng((seed, run))
        x = collision_features(rng)
        lived = mdp.rollout(behavior, seed=rng, steps=steps)
        w = follow(
            method, features=x, target=target, behavior=behavior, gamma=mdp.gamma, marks=np.arange(1, steps + 1), alpha=alpha,
            values="state", state=lived["state"], action=lived["action"], reward=lived["reward"],
            next_state=lived["next_state"], terminated=lived["terminated"], truncated=lived["truncated"],
        )  # fmt: skip
        wrong = w @ x[live].T - truth
        errors.append(float(np.sqrt(wrong**2 @ (visits / visits.sum())).mean()))
    return np.array(errors)


def area(at: Integers, returns: Floats, steps: int, window: int = WINDOW) -> float:
    """Σ_{t=0}^{steps} curve(t): at step 0, and after step at[i], the mean of the last `window` returns, and linear in between.

    The curve begins with a return of 0 at step 0, which counts in the mean as the others do. Between two episodes it is
    linspace(y₁, y₂, num=t₂ − t₁), both ends included; after the last one it stays.
    """
    return float(_area(at, returns, steps, window))


@cached_njit(nogil=True)
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
