"""Bias, RMSE and coverage of every estimator on logs of FrozenLake, Taxi and CartPole, made in Gymnasium by a known μ.

    .venv/bin/python benchmarks/evaluation_table.py            prints the table, and keeps it in docs/logs_table.md

Each repetition has logs of its own. The truth is exact for FrozenLake and Taxi, whose transitions are published, and the mean of
many episodes of π itself for CartPole. Time limits cut episodes; values are those without a limit.
"""

from __future__ import annotations

import os

for library in ("OMP", "OPENBLAS"):  # one thread for each process; before NumPy is imported
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import argparse  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv  # noqa: E402

import offtrace as ot  # noqa: E402
from offtrace import mdps  # noqa: E402
from offtrace.logs import Features, Logs, evaluate  # noqa: E402

PAGE = Path(__file__).resolve().parent.parent / "docs" / "logs_table.md"
TRACES = (ot.RBIS(lam=0.9), ot.Retrace(lam=0.9), ot.TreeBackup(lam=0.9))
TRUTH_STEPS = 6000
Policy = Any  # a table [S, A], or features → probabilities


@dataclass(frozen=True)
class Task:
    """An environment with its discount, and how much is logged and repeated."""

    name: str
    gamma: float
    episodes: int
    repetitions: int
    model: Any
    note: str


WAVES = np.random.default_rng(0).normal(size=(4, 20)) / np.array([[1.2], [1.0], [0.1], [1.0]])


def waves(x: np.ndarray) -> np.ndarray:
    """Random Fourier features of CartPole's state."""
    return np.column_stack([np.cos(x @ WAVES), np.sin(x @ WAVES)])


TASKS = {
    "FrozenLake-v1": Task("FrozenLake-v1", 0.95, 500, 100, None, "a table of values; limit 100 steps"),
    "Taxi-v4": Task("Taxi-v4", 0.95, 500, 40, None, "a table of values; limit 200 steps"),
    "CartPole-v1": Task(
        "CartPole-v1", 0.98, 200, 60, Features(waves), "values linear in 40 random Fourier features; limit 500 steps"
    ),
}


@cache
def exact(name: str) -> tuple[mdps.MDP, np.ndarray]:
    mdp = mdps.from_gymnasium(name, gamma=TASKS[name].gamma)
    return mdp, mdp.optimal_q()


def controller(epsilon: float, side: float = 0.0) -> Callable[[np.ndarray], np.ndarray]:
    """Push towards where the pole falls, ε uniform; `side` shifts where that is thought to be."""

    def pi(x: np.ndarray) -> np.ndarray:
        right = (x[:, 2] + 0.5 * x[:, 3] + 0.1 * x[:, 1] > side).astype(float)
        right = (1 - epsilon) * right + epsilon / 2
        return np.column_stack([1 - right, right])

    return pi


def policies(name: str) -> tuple[Policy, dict[str, Policy]]:
    """μ, and the target policies by what they are called."""
    if name == "CartPole-v1":
        targets = {"ε = 0.6": controller(0.6), "ε = 0.8": controller(0.8), "leaning": controller(0.7, 0.05)}
        return controller(0.7), targets
    best = exact(name)[1]
    if name == "FrozenLake-v1":
        mu = mdps.epsilon_greedy(best, 0.5)
        targets = {"ε = 0.3": mdps.epsilon_greedy(best, 0.3), "ε = 0.8": mdps.epsilon_greedy(best, 0.8)}
        return mu, {**targets, "greedy": mdps.greedy(best)}
    mu = mdps.epsilon_greedy(best, 0.3)
    targets = {"ε = 0.2": mdps.epsilon_greedy(best, 0.2), "ε = 0.4": mdps.epsilon_greedy(best, 0.4)}
    return mu, {**targets, "greedy": mdps.greedy(best)}


def generator(seed: int) -> np.random.Generator:
    """For actions. With the bare seed it would be the generator of the environment, draw for draw."""
    return np.random.default_rng([seed, 1])


def truth(name: str, pi: Policy) -> float:
    """V(π), without a time limit.

    For CartPole, the mean over all episodes that many environments begin in so many steps (whose number is a stopping time, so by
    Wald's identity nothing is favoured), each followed to its end.
    """
    if isinstance(pi, np.ndarray):
        mdp, _ = exact(name)
        return float(mdp.start @ (pi * mdp.q(pi)).sum(axis=1))
    n, gamma, tail = 4000, TASKS[name].gamma, 700  # γ^tail < 1e-6
    env = CartPoleVectorEnv(num_envs=n, max_episode_steps=10**9)
    rng, (x, _) = generator(12345), env.reset(seed=12345)
    total, begun, discount, fresh = 0.0, n, np.ones(n), np.zeros(n, bool)
    for step in range(TRUTH_STEPS + tail):
        x, _, terminated, _, _ = env.step((rng.random(n) < pi(x)[:, 1]).astype(int))
        if step < TRUTH_STEPS:  # after an end the next step is the reset, and earns nothing
            begun += np.count_nonzero(fresh)
            discount[fresh] = 1.0
        else:
            discount[fresh] = 0.0  # what begins now does not count
        total += discount[~fresh].sum()
        discount[~fresh] *= gamma
        fresh = terminated
    return total / begun


def log(name: str, seed: int) -> Logs:
    """The logs of one repetition, in the real environment."""
    mu, _ = policies(name)
    table = isinstance(mu, np.ndarray)
    steps = toy_text(name, mu, seed) if table else cart_pole(mu, seed)
    arrays = {key: np.array(values) for key, values in steps.items()}
    ends = np.flatnonzero(arrays["terminated"] | arrays["truncated"])
    shape = {"states": mu.shape[0], "actions": mu.shape[1]} if table else {"states": 0, "actions": 2}
    return Logs(starts=np.append(0, ends + 1), **arrays, **shape)  # pyright: ignore[reportArgumentType]


KEYS = ("state", "action", "reward", "next_state", "terminated", "truncated", "log_mu")


def toy_text(name: str, mu: np.ndarray, seed: int) -> dict[str, list[Any]]:
    env, rng = gym.make(name), generator(seed)
    cumulative, log_mu = mu.cumsum(axis=1), np.log(mu, where=mu > 0, out=np.full(mu.shape, -np.inf))
    steps: dict[str, list[Any]] = {key: [] for key in KEYS}
    for episode in range(TASKS[name].episodes):
        s, _ = env.reset(seed=seed if not episode else None)
        over = False
        while not over:
            a = min(int(np.searchsorted(cumulative[s], rng.random(), side="right")), mu.shape[1] - 1)
            after, reward, terminated, truncated, _ = env.step(a)
            found = (s, a, float(reward), after, terminated, truncated and not terminated, log_mu[s, a])
            for key, value in zip(KEYS, found, strict=True):
                steps[key].append(value)
            s, over = after, terminated or truncated
    return steps


def cart_pole(mu: Callable[[np.ndarray], np.ndarray], seed: int) -> dict[str, list[Any]]:
    """The first episode of each of many environments side by side: none is chosen for its length."""
    n = TASKS["CartPole-v1"].episodes
    env, rng = CartPoleVectorEnv(num_envs=n, max_episode_steps=500), generator(seed)
    x, _ = env.reset(seed=seed)
    episodes: list[list[tuple]] = [[] for _ in range(n)]
    running = np.ones(n, bool)
    while running.any():
        p = mu(x)
        a = (rng.random(n) < p[:, 1]).astype(int)
        before = x.astype(np.float64)
        x, reward, terminated, truncated, _ = env.step(a)
        for i in np.flatnonzero(running):
            cut = bool(truncated[i] and not terminated[i])
            after = x[i].astype(np.float64)
            episodes[i].append((before[i], a[i], float(reward[i]), after, bool(terminated[i]), cut, np.log(p[i, a[i]])))
        running &= ~(terminated | truncated)
    flat = [step for episode in episodes for step in episode]
    return {key: [step[i] for step in flat] for i, key in enumerate(KEYS)}


def repetition(name: str, seed: int) -> dict[tuple[str, str], tuple[float, float, float]]:
    """(policy, estimator) → estimate, and the ends of its interval; the conservative one among them."""
    task, logs, found = TASKS[name], log(name, seed), {}
    for called, pi in policies(name)[1].items():
        for trace in TRACES:
            only = None if trace is TRACES[0] else ["fitted"]
            result = evaluate(logs, pi, trace=trace, gamma=task.gamma, model=task.model, estimators=only, seed=seed)
            for row in result.estimates:
                found[called, row.title] = row.estimate, row.low, row.high
        bounds = result.conservative  # pyright: ignore[reportPossiblyUnboundVariable]
        found[called, "conservative"] = float("nan"), bounds.low, bounds.high  # pyright: ignore
        found[called, "weights"] = result.diagnosis.effective, len(logs), float(logs.truncated.sum())  # pyright: ignore
    return found


def table(name: str, found: list[dict[tuple[str, str], tuple[float, float, float]]]) -> list[str]:
    task, targets = TASKS[name], policies(name)[1]
    true = {called: truth(name, pi) for called, pi in targets.items()}
    several = [np.array([f[called, "weights"] for f in found]) for called in targets]
    lines = [
        f"## {name}",
        "",
        f"γ = {task.gamma:g}, {task.episodes} episodes, about {several[0][:, 1].mean():,.0f} steps, "
        f"{100 * several[0][:, 2].mean() / task.episodes:.2g} % of the episodes cut; {task.note}; {len(found)} repetitions.",
        "",
        "| estimator | "
        + " | ".join(f"{called}: bias | RMSE | coverage" for called in targets)
        + " |\n|---|"
        + "---|" * 3 * len(targets),
    ]
    first = next(iter(targets))
    for estimator in [e for called, e in found[0] if called == first and e not in ("weights", "conservative")]:
        cells = []
        for called in targets:
            x = np.array([f[called, estimator] for f in found])
            known = np.isfinite(x[:, 0])  # weighted estimates are undefined where all weights are 0
            error = x[known, 0] - true[called]
            given = known & ~np.isnan(x[:, 1:]).any(axis=1)  # some say that they have no interval
            held = (x[given, 1] <= true[called]) & (true[called] <= x[given, 2])
            covers = f"{100 * held.mean():.0f} %" if given.any() else "none"
            cells += [f"{error.mean():+.3g}", f"{np.sqrt(np.mean(error**2)):.3g}", covers]
            if given.any() and not given.all():
                cells[-1] += f" of {100 * given.mean():.0f} %"
        lines.append(f"| {estimator} | {' | '.join(cells)} |")
    cells = []
    for called in targets:
        x = np.array([f[called, "conservative"] for f in found])
        covers = np.mean((x[:, 1] <= true[called]) & (true[called] <= x[:, 2]))
        cells += ["", f"[{x[:, 1].mean():.3g}, {x[:, 2].mean():.3g}]", f"{100 * covers:.0f} %"]
    lines += [f"| conservative interval | {' | '.join(cells)} |", ""]
    values = "; ".join(f"{called}: V = {true[called]:.4g}" for called in targets)
    effective = "; ".join(f"{called}: {s[:, 0].mean():.0f}" for called, s in zip(targets, several, strict=True))
    return [*lines, f"The truth: {values}. Effective episodes by their weights: {effective}.", ""]


HEAD = """# Estimators on real logs

Made by `python benchmarks/evaluation_table.py`: logs of a known μ in Gymnasium, and what each estimator says of policies that
were not run. Coverage is the share of repetitions in which the 95 % bootstrap interval holds the true value; with {few} to {many}
repetitions it is known to within some points. μ is ε-greedy, with ε = 0.5 in FrozenLake, 0.3 in Taxi, 0.7 in CartPole. For the
conservative interval its mean ends stand in place of an RMSE; the range of rewards is taken from the data. "Of n %": in the
others the estimate is undefined, since at some step no episode has any weight, or says that it has no interval.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tasks", nargs="*", help=f"of {', '.join(TASKS)}; all, and the page is written, if none is given"
    )
    parser.add_argument("--repetitions", type=int, help="in place of each task's own")
    given = parser.parse_args()
    began, lines = time.perf_counter(), []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name in given.tasks or TASKS:
            start, n = time.perf_counter(), given.repetitions or TASKS[name].repetitions
            found = list(pool.map(repetition, [name] * n, range(n)))
            lines += table(name, found)
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    text = "\n".join(lines)
    print(text)
    print(f"{time.perf_counter() - began:.0f} s in all")
    if not given.tasks and not given.repetitions:
        counts = [task.repetitions for task in TASKS.values()]
        PAGE.write_text(HEAD.format(few=min(counts), many=max(counts)) + text)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="gymnasium")
    main()
