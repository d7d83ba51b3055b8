"""How often `logs.evaluate` turns from the fitted estimate to one by weights because the two differ "by more than chance".

    .venv/bin/python benchmarks/evaluation_veto.py confirming --repetitions 40 --seed 10000

On logs whose truth is known: fits that are right (tables of Markov states), and fits that are wrong (features or states that are
too coarse). The allowance for long tails of weights, `warnings_of_result.HEAVY`, was chosen on the tasks `choosing` with the
seeds 0 to 39, so that fits which are right are turned down as rarely as three standard errors promise (0.27 %). The tasks
`confirming`, with the seeds from 10,000 on, came afterwards, and it was not changed for them.
Each log is evaluated once; veto and headline are
then those of three choices of estimators, without the allowance (0, as it was before) and with it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import offtrace as ot
from offtrace import mdps
from offtrace.logs import Features, Logs, Result, evaluate, simulate, warnings_of_result
from offtrace.logs.cases import finite
from offtrace.logs.result import chosen

WEIGHTS = ("per-decision IS", "weighted per-decision IS", "IS", "weighted IS")
MODELS = ("direct method", "doubly robust", "weighted doubly robust")
CHOICES = {
    "all": ("fitted", *MODELS, *WEIGHTS),
    "as in the tutorial": ("fitted", "direct method", "per-decision IS"),
    "fitted and weights": ("fitted", *WEIGHTS),
}


@dataclass(frozen=True)
class Task:
    """Logs by seed, a target policy and its value."""

    logs: Callable[[int], Logs]
    target: np.ndarray
    gamma: float
    truth: float
    right: bool
    model: Features | None = None


def of_mdp(
    mdp: mdps.MDP, mu: np.ndarray, pi: np.ndarray, episodes: int, features: int = 0, limit: int | None = None
) -> Task:
    """All is logged; Q is a table, or linear in so many random features."""
    phi = np.random.default_rng(features + mdp.S).normal(size=(mdp.S, features)) if features else None
    return Task(
        lambda seed: simulate(mdp, mu, episodes=episodes, seed=seed, limit=limit), pi, mdp.gamma,
        float(mdp.start @ (pi * mdp.q(pi)).sum(axis=1)), phi is None, None if phi is None else Features(phi),
    )  # fmt: skip


def in_groups(mdp: mdps.MDP, observed: np.ndarray, seed: int, episodes: int) -> Task:
    """Only a group of states is logged."""
    k, A = int(observed.max()) + 1, mdp.A
    pi = np.random.default_rng(seed).dirichlet([2.0] * A, k)
    mu = np.full((k, A), 1 / A)
    return Task(
        lambda seed: finite.logged(mdp, observed, mu, episodes, seed),
        pi,
        mdp.gamma,
        finite.value(mdp, observed, pi),
        False,
    )


def between(mdp: mdps.MDP, mu: np.ndarray, far: float, seed: int) -> np.ndarray:
    """A policy on the way from μ to a random one."""
    return (1 - far) * mu + far * mdps.random_policy(mdp, np.random.default_rng(seed), 1.0)


def funnel(seed: int, episodes: int, far: float) -> Task:
    """Stages in which customers dawdle, go on, fall back or leave; those who leave from the last one have bought."""
    rng = np.random.default_rng(seed)
    S, A = int(rng.integers(4, 7)), int(rng.integers(2, 4))
    P = np.zeros((S, A, S))
    P[-1, :, -1] = 1.0
    for s in range(S - 1):
        for a in range(A):
            p = rng.dirichlet(np.ones(4)) * [2.0, 1.0, 1.0, 0.6]
            np.add.at(P[s, a], [s, min(s + 1, S - 2), max(s - 1, 0), S - 1], p / p.sum())
    reward = np.tile(-rng.uniform(0, 0.3, A), (S, 1))
    reward[S - 2] += 3.0 * P[S - 2, :, -1]
    reward[-1] = 0.0
    mdp = mdps.MDP(P, reward, gamma=0.95, start=np.eye(S)[0])
    mu = rng.dirichlet(np.full(A, 5.0), S)
    return of_mdp(mdp, mu, (1 - far) * mu + far * rng.dirichlet(np.full(A, 0.7), S), episodes)


def choosing() -> dict[str, Task]:
    """The tasks on which `HEAVY` was chosen."""
    found = {f"funnel {s}, {n}": funnel(s, n, far) for s in range(300, 312) for n, far in ((800, 0.5), (3000, 0.8))}
    for s, n in ((11, 200), (12, 800), (13, 3000)):
        mdp = mdps.garnet(12, 3, 3, seed=s, gamma=0.95, terminal=2)
        mu = mdps.uniform(mdp)
        found |= {f"garnet {s}, {far}": of_mdp(mdp, mu, between(mdp, mu, far, s), n) for far in (0.3, 0.6, 0.9)}
    walk = mdps.random_walk(9, gamma=0.97)
    for p in (0.6, 0.7):
        found[f"walk {p}"] = of_mdp(walk, mdps.uniform(walk), np.tile([1 - p, p], (walk.S, 1)), 500)
    for s in (21, 22, 23):
        mdp = mdps.garnet(15, 3, 3, seed=s, gamma=0.95, terminal=2)
        mu = mdps.uniform(mdp)
        found[f"two features {s}"] = of_mdp(mdp, mu, between(mdp, mu, 0.6, s), 800, 2)
        found[f"groups {s}"] = in_groups(mdp, np.arange(15) // 5, s, 800)
    return found


def confirming() -> dict[str, Task]:
    """Others."""
    found = {f"funnel {s}, {n}": funnel(s, n, far) for s in range(400, 412) for n, far in ((600, 0.6), (4000, 0.9))}
    for s, n in ((101, 300), (102, 1000), (103, 2000), (104, 600)):
        mdp = mdps.garnet(25, 4, 4, seed=s, gamma=0.9, terminal=3)
        mu = mdps.random_policy(mdp, np.random.default_rng(s), 3.0)
        found |= {f"garnet {s}, {far}": of_mdp(mdp, mu, between(mdp, mu, far, s + 1), n) for far in (0.4, 0.8)}
    for number in (2, 3):
        mdp = mdps.bifurcation(number)
        mu, pi = (mdps.epsilon_greedy(mdp.optimal_q(), epsilon) for epsilon in (0.5, 0.2))
        found[f"bifurcation {number}"] = of_mdp(mdp, mu, pi, 400)
    for s in (111, 112, 113):
        mdp = mdps.garnet(20, 4, 3, seed=s, gamma=0.9, terminal=2)
        mu = mdps.random_policy(mdp, np.random.default_rng(s), 3.0)
        found[f"three features {s}"] = of_mdp(mdp, mu, between(mdp, mu, 0.5, s + 1), 1000, 3)
        found[f"groups {s}"] = in_groups(mdp, np.arange(20) // 4, s, 1000)
    walk = mdps.random_walk(13, gamma=0.98)
    for n in (300, 1500):
        found[f"walk, one feature, {n}"] = of_mdp(walk, mdps.uniform(walk), np.tile([0.4, 0.6], (walk.S, 1)), n, 1)
    return found


def count(task: Task, result: Result, names: Sequence[str], heavy: int, into: Counter[str]) -> None:
    """What becomes of the headline if only these estimators are asked for."""
    warnings_of_result.HEAVY = heavy
    rows = [result[name] for name in names]
    rows = [replace(row, checks=tuple(c for c in row.checks if c.kind != "contradicted")) for row in rows]
    before = chosen(rows)
    rows = warnings_of_result.contradictions(rows, result.contributions)
    after = chosen(rows)
    into["logs"] += 1
    into["vetoes"] += any(check.kind == "contradicted" for check in rows[0].failed)
    switched = before.estimator == "fitted" != after.estimator
    into["switches"] += switched
    if not after.failed:
        into["pass"] += 1
        missed = not after.low <= task.truth <= after.high
        into["miss"] += missed
        into["miss by a switch"] += missed and switched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", choices=("choosing", "confirming"))
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=10_000, help="of the first log")
    parser.add_argument("--heavy", type=int, nargs="+", default=[0, warnings_of_result.HEAVY])
    given = parser.parse_args()
    found: dict[tuple[bool, str, int], Counter[str]] = {}
    for task in {"choosing": choosing, "confirming": confirming}[given.tasks]().values():
        for seed in range(given.seed, given.seed + given.repetitions):
            result = evaluate(
                task.logs(seed), task.target, trace=ot.RBIS(lam=0.9), gamma=task.gamma, model=task.model, resamples=400,
                seed=seed, estimators=CHOICES["all"], progress=lambda *told: None,
            )  # fmt: skip
            for choice, names in CHOICES.items():
                for heavy in given.heavy:
                    count(task, result, names, heavy, found.setdefault((task.right, choice, heavy), Counter()))
    for (right, choice, heavy), each in sorted(found.items()):
        title = f"{'right' if right else 'wrong'} fits, {choice}, allowance {heavy}"
        print(f"{title:<48}", ", ".join(f"{name} {n}" for name, n in each.items()))


if __name__ == "__main__":
    main()
