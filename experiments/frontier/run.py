"""Does contraction for its variance predict how fast a rule learns? Garnets, by horizon, noise of rewards and length of training.

    cd experiments
    python -m frontier.run records.jsonl           # a quarter of an hour on one core; what is there is not run again

Each line of the file is one rule on one problem: what `operators.frontier` says of it (contraction, variance), and the
root-mean-square error of Q over pairs, averaged over the first 10, 40 and 160 segments, with the best of eight step sizes.
`frontier.tables` makes the tables and the figure of docs/frontier.md.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import offtrace as ot
from offtrace import mdps, operators
from offtrace.mdps import MDP

STATES, ACTIONS = 8, 3
HORIZONS = {0.9: 32, 0.97: 96}
"""γ, and the steps of a segment."""
NOISES = (0.0, 1.0, 4.0)
"""The standard deviation of rewards, in units of the spread of Q^π times 1 − γ, as large as one step's share of it."""
BUDGETS = (10, 40, 160)
STEP_SIZES = 0.7 * 2.0 ** -np.arange(8)
SEEDS = 16
PROBLEMS = 10


@dataclass(frozen=True)
class Problem:
    """A Garnet with two policies, and segments of its behaviour: [budget, seed, step]."""

    mdp: MDP
    target: np.ndarray
    behavior: np.ndarray
    noise: np.ndarray
    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray


def problem(number: int, gamma: float, noise: float) -> Problem:
    """π and μ differ, more on some states than on others; the noise of rewards differs between pairs by factors up to 20."""
    rng = np.random.default_rng([number, 1])
    mdp = mdps.garnet(STATES, ACTIONS, 3, seed=number, gamma=gamma)
    target = rng.dirichlet(np.full(ACTIONS, 0.7), STATES)
    behavior = 0.8 * rng.dirichlet(np.full(ACTIONS, 1.5), STATES) + 0.2 / ACTIONS
    behavior /= behavior.sum(axis=1, keepdims=True)
    sd = noise * np.std(mdp.q(target)) * (1 - gamma) * np.exp(rng.uniform(-1.5, 1.5, (STATES, ACTIONS)))
    steps, P = HORIZONS[gamma], mdp.P.toarray().reshape(STATES, ACTIONS, STATES)
    shape = (max(BUDGETS), SEEDS, steps + 1)
    states, actions, u = np.zeros(shape, int), np.zeros(shape, int), rng.random((2, *shape))
    s = rng.integers(0, STATES, SEEDS)
    for segment in range(shape[0]):
        for t in range(shape[2]):
            a = (behavior[s].cumsum(axis=1) < u[0, segment, :, t, None]).sum(axis=1).clip(max=ACTIONS - 1)
            states[segment, :, t], actions[segment, :, t] = s, a
            s = (P[s, a].cumsum(axis=1) < u[1, segment, :, t, None]).sum(axis=1).clip(max=STATES - 1)
        s = states[segment, :, -1]
    rewards = np.asarray(mdp.R)[states, actions] + sd[states, actions] * rng.normal(size=shape)
    return Problem(mdp, target, behavior, sd**2, states, actions, rewards[:, :, :-1])


def learned(of: Problem, trace: ot.Trace) -> list[float]:
    """The mean error of Q over the segments of each budget, with the best step size for that budget; Q starts at 0."""
    truth, π, μ, runs = of.mdp.q(of.target), of.target, of.behavior, len(STEP_SIZES)
    Q = np.zeros((runs, SEEDS, STATES, ACTIONS))
    run, seed = np.arange(runs)[:, None, None], np.arange(SEEDS)[None, :, None]
    log_π, log_μ = np.log(np.maximum(π, 1e-300)), np.log(μ)
    bound = getattr(trace, "bound", 0.0)
    errors = np.zeros((max(BUDGETS), runs))
    for segment, (s, a, r) in enumerate(zip(of.states, of.actions, of.rewards, strict=True)):
        values = (π * Q).sum(axis=-1)
        s0, a0 = s[:, :-1], a[:, :-1]
        q, next_value = Q[run, seed, s0, a0], values[run, seed, s[:, 1:]]
        if np.ndim(bound):
            rule: ot.Trace = ot.DiscountedBound(bound=_rows(np.asarray(bound)[s0, a0], runs), gamma=of.mdp.gamma)
        else:
            rule = trace
        no = np.zeros((runs * SEEDS, s0.shape[1]), bool)
        Δ = ot.corrections(
            rule,
            reward=_rows(r, runs), q=q.reshape(no.shape), next_value=next_value.reshape(no.shape), gamma=of.mdp.gamma,
            terminated=no, truncated=no, log_pi=_rows(log_π[s0, a0], runs), log_mu=_rows(log_μ[s0, a0], runs),
        ).reshape(q.shape)  # fmt: skip
        pair = np.broadcast_to(((run * SEEDS + seed) * STATES + s0) * ACTIONS + a0, q.shape).ravel()
        total = np.bincount(pair, Δ.ravel(), Q.size).reshape(Q.shape)
        visits = np.bincount(pair, minlength=Q.size).reshape(Q.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            Q = Q + STEP_SIZES[:, None, None, None] * total / np.maximum(visits, 1)
        Q[~np.isfinite(Q)] = 1e9  # diverged
        errors[segment] = np.sqrt(((Q - truth) ** 2).clip(max=1e9).mean(axis=(2, 3))).mean(axis=1)
    scale = float(np.sqrt((truth**2).mean()))
    return [float(errors[:n].mean(axis=0).min() / scale) for n in BUDGETS]


def _rows(array: np.ndarray, runs: int) -> np.ndarray:
    return np.broadcast_to(array, (runs, *array.shape)).reshape(-1, array.shape[-1])


def rows(number: int, gamma: float, noise: float) -> list[dict[str, Any]]:
    """Every rule on one problem."""
    of = problem(number, gamma, noise)
    λs = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)
    bounded = [ot.HistoryBounded(bound=b) for b in (0.5, 1.0, 2.0, 4.0)]
    traces = [rule(lam=λ) for λ in λs for rule in (ot.Retrace, ot.NonMarkovRetrace, ot.RBIS, ot.TreeBackup)]
    options = {"noise": of.noise, "tolerance": 0.01}
    known = operators.frontier(of.mdp, of.target, of.behavior, traces=[*traces, *bounded], **options)
    middle = float(np.median(known.bounds))
    constant = [ot.DiscountedBound(bound=p.number * middle, gamma=gamma) for p in known.optimum]
    more = operators.frontier(of.mdp, of.target, of.behavior, traces=constant, **options)
    optimal = [known.trace(p.number) for p in known.optimum]
    out: list[dict[str, Any]] = []
    for family, points, rules in (
        (None, known.points, [*traces, *bounded]), ("one constant", more.points, constant), ("optimum", known.optimum, optimal),
    ):  # fmt: skip
        for point, trace in zip(points, rules, strict=True):
            out.append({
                "problem": number, "gamma": gamma, "noise": noise, "family": family or point.family,
                "number": getattr(trace, "lam", None) or (getattr(trace, "bound", 0.0) if family != "optimum" else point.number),
                "contraction": point.contraction.midpoint, "variance": point.variance.midpoint,
                "excess": [point.excess.lower, point.excess.upper], "errors": learned(of, trace),
            })  # fmt: skip
    return out


def main() -> None:
    """Run what is not yet in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    arguments = parser.parse_args()
    done = set()
    if arguments.file.exists():
        done = {
            (r["problem"], r["gamma"], r["noise"]) for r in map(json.loads, arguments.file.read_text().splitlines())
        }
    warnings.simplefilter("ignore", RuntimeWarning)
    for number in range(arguments.problems):
        for gamma in HORIZONS:
            for noise in NOISES:
                if (number, gamma, noise) not in done:
                    with arguments.file.open("a") as file:
                        file.writelines(json.dumps(_plain(row)) + "\n" for row in rows(number, gamma, noise))
                    print(number, gamma, noise, flush=True)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Without NaN and infinity, which JSON does not know."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}


if __name__ == "__main__":
    main()
