"""How often the intervals of `logs.evaluate` hold the true value on the gallery and on CliffWalking, whose values are exact.

    .venv/bin/python benchmarks/evaluation_coverage.py --repetitions 60

Prints, for each estimator, in how many repetitions it gave an interval, how many of these held the truth (and how many must, at
the 99 % level of the binomial distribution of a 95 % interval), and how often it passed its checks.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

import offtrace as ot
from offtrace import mdps
from offtrace.logs import evaluate, simulate

EPISODES = 300


@dataclass
class Count:
    """What became of one estimator."""

    given: int = 0
    held: int = 0
    passed: int = 0
    widths: list[float] = field(default_factory=list)


def tasks() -> dict[str, tuple[mdps.MDP, np.ndarray, np.ndarray, int | None]]:
    """The MDP, μ, π, and where episodes are cut."""
    found: dict[str, tuple[mdps.MDP, np.ndarray, np.ndarray, int | None]] = {}
    for number in (1, 2, 3, 4):
        mdp = mdps.bifurcation(number)
        best = mdp.optimal_q()
        found[f"bifurcation {number}"] = mdp, mdps.epsilon_greedy(best, 0.5), mdps.epsilon_greedy(best, 0.1), None
    for name, behavior, target, limit in (("CliffWalking-v1", 0.3, 0.1, 200), ("FrozenLake-v1", 0.5, 0.3, 100)):
        mdp = mdps.from_gymnasium(name, gamma=0.95)
        best = mdp.optimal_q()
        found[name] = mdp, mdps.epsilon_greedy(best, behavior), mdps.epsilon_greedy(best, target), limit
    walk = mdps.random_walk(9, gamma=0.95)
    found["random walk"] = walk, mdps.uniform(walk), np.tile([0.4, 0.6], (walk.S, 1)), None
    garnet = mdps.garnet(20, 3, 4, seed=1, gamma=0.95, terminal=3)
    found["garnet"] = garnet, mdps.uniform(garnet), mdps.random_policy(garnet, np.random.default_rng(0), 5.0), None
    return found


def counted(mdp: mdps.MDP, mu: np.ndarray, pi: np.ndarray, limit: int | None, repetitions: int) -> dict[str, Count]:
    """Evaluate π from so many logs, and count."""
    truth = float(mdp.start @ (pi * mdp.q(pi)).sum(axis=1))
    found: dict[str, Count] = {}
    for seed in range(repetitions):
        logs = simulate(mdp, mu, episodes=EPISODES, seed=seed, limit=limit)
        result = evaluate(logs, pi, trace=ot.Retrace(lam=0.9), gamma=mdp.gamma, resamples=400, seed=seed)
        for name, row in [*((row.estimator, row) for row in result.estimates), ("headline", result.headline)]:
            one = found.setdefault(name, Count())
            one.passed += not row.failed
            if not np.isnan(row.low):
                one.given += 1
                one.held += bool(row.low <= truth <= row.high)
                one.widths.append(row.high - row.low)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(tasks())}; all if none is given")
    parser.add_argument("--repetitions", type=int, default=60)
    given = parser.parse_args()
    for name, task in tasks().items():
        if given.tasks and name not in given.tasks:
            continue
        print(name, flush=True)
        for estimator, one in counted(*task, given.repetitions).items():
            least = int(stats.binom.ppf(0.005, one.given, 0.95)) if one.given else 0
            width = f"{np.median(one.widths):.3g}" if one.widths else "–"
            held = f"held {one.held:>3} of {one.given:>3} (at least {least:>3})"
            print(f"  {estimator:<26} {held}   passed {one.passed:>3}   width {width}")


if __name__ == "__main__":
    main()
