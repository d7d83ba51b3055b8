"""How good the headline of `logs.evaluate` is, beside four plain peers, on problems with a known truth, which are in
`logs_problems.py` and `logs_held_out.py`.

    python benchmarks/logs_headline.py [--repeats 40] [--sizes 50 500] [--which developed|held-out|all] [--only NAME …]

The peers are what somebody would write in thirty lines: fitted Q evaluation by ridge regression (α = 1), the same with time among
the features, doubly robust with the first, and weighted per-decision importance sampling. An error is the root mean square over
the repetitions, of all results; coverage is that of the headlines which pass their checks and have an interval.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from logs_held_out import HELD_OUT
from logs_problems import DEVELOPED, Problem, simulate, true_value
from sklearn.linear_model import Ridge

from offtrace.logs import Logs, evaluate

PEERS = ("ridge", "ridge with time", "doubly robust", "weighted PDIS")


def features(logs: Logs, states: np.ndarray, actions: np.ndarray, age: np.ndarray | None, horizon: int) -> np.ndarray:
    """φ(s, a): ids as columns of 0 and 1, all numbers once for each action; with time, its value and its square too."""
    x = np.eye(logs.states)[states] if logs.tabular else np.column_stack([np.ones(len(states)), states])
    if age is not None:
        x = np.column_stack([x, age / horizon, (age / horizon) ** 2])
    return (np.eye(logs.actions)[actions][:, :, None] * x[:, None, :]).reshape(len(x), -1)


def expected(logs: Logs, states: np.ndarray, pi: np.ndarray, age: np.ndarray | None, horizon: int) -> np.ndarray:
    """Σ_a π(a|s) φ(s, a)."""
    each = [pi[:, [a]] * features(logs, states, np.full(len(states), a), age, horizon) for a in range(logs.actions)]
    return np.sum(each, axis=0)


def fitted_q(
    logs: Logs, problem: Problem, timed: bool, alpha: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fitted Q evaluation by ridge regression: Q̂ and V̂(s′) at the steps, V̂(s_0); the fixed point of its iteration."""
    age = np.arange(len(logs)) - np.repeat(logs.starts[:-1], np.diff(logs.starts))
    at = age if timed else None
    x = features(logs, logs.state, logs.action, at, problem.horizon)
    following = logs.next_state
    goes_on = ~logs.terminated
    after = expected(logs, following, problem.target(following), None if at is None else at + 1, problem.horizon)
    after *= goes_on[:, None]
    # Ridge().fit(x, r + γ after θ) repeated until nothing changes solves this system
    matrix = x.T @ (x - problem.gamma * after) + alpha * np.eye(x.shape[1])
    theta = np.linalg.lstsq(matrix, x.T @ logs.reward, rcond=None)[0]
    first = logs.starts[:-1]
    v0 = expected(
        logs, logs.state[first], problem.target(logs.state[first]), None if at is None else at[first], problem.horizon
    )
    return x @ theta, after @ theta, v0 @ theta


def check_fixed_point(problem: Problem) -> float:
    """How far the fixed point is from scikit-learn's own ridge regression, iterated: a check of the peer."""
    logs = simulate(problem, 200, 0)
    x = features(logs, logs.state, logs.action, None, problem.horizon)
    following = logs.next_state
    after = expected(logs, following, problem.target(following), None, problem.horizon) * ~logs.terminated[:, None]
    theta = np.zeros(x.shape[1])
    for _ in range(2000):
        model = Ridge(alpha=1.0, fit_intercept=False).fit(x, logs.reward + problem.gamma * after @ theta)
        if np.abs(model.coef_ - theta).max() < 1e-9:
            break
        theta = model.coef_
    return float(np.abs(x @ theta - fitted_q(logs, problem, False)[0]).max())


def peers(logs: Logs, problem: Problem) -> dict[str, float]:
    """The four estimates."""
    q, v, v0 = fitted_q(logs, problem, False)
    age = np.arange(len(logs)) - np.repeat(logs.starts[:-1], np.diff(logs.starts))
    discount = problem.gamma**age
    pi = problem.target(logs.state)[np.arange(len(logs)), logs.action]
    if logs.log_mu is None:
        n = np.zeros((logs.states, logs.actions))
        np.add.at(n, (logs.state, logs.action), 1)
        mu = (n / np.maximum(n.sum(axis=1, keepdims=True), 1))[logs.state, logs.action]
    else:
        mu = np.exp(logs.log_mu)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        w = np.exp(np.concatenate([np.cumsum(x) for x in np.split(np.log(pi / mu), logs.starts[1:-1])]))
        beyond = np.where(logs.truncated, problem.gamma * v, 0.0)
        robust = v0.mean() + (discount * w * (logs.reward + problem.gamma * v - q)).sum() / logs.episodes
        T = int(age.max()) + 1
        last, lengths = w[logs.starts[1:] - 1], np.diff(logs.starts)
        total = np.bincount(age, w, T) + np.append(0.0, np.cumsum(np.bincount(lengths, last, T + 1)))[1 : T + 1]
        weighted = float((discount * w * (logs.reward + beyond) / total[age]).sum())
    return {
        "ridge": float(v0.mean()), "ridge with time": float(fitted_q(logs, problem, True)[2].mean()),
        "doubly robust": float(robust), "weighted PDIS": weighted,
    }  # fmt: skip


@dataclass
class Record:
    """What was found for one problem and size."""

    errors: dict[str, list[float]] = field(default_factory=dict)
    headlines: list[str] = field(default_factory=list)
    passed: int = 0
    covered: int = 0
    with_interval: int = 0
    widths: list[float] = field(default_factory=list)
    warned: int = 0
    seconds: float = 0.0

    def row(self, problem: Problem, size: int, scale: float) -> dict[str, Any]:
        """In numbers."""
        rms = {name: float(np.sqrt(np.mean(np.square(e)))) for name, e in self.errors.items()}
        best = min(PEERS, key=lambda name: rms[name] if np.isfinite(rms[name]) else np.inf)
        n = len(self.headlines)
        return {
            "problem": problem.name, "episodes": size, "repeats": n, "ratio": rms["headline"] / rms[best], "best": best,
            "errors": rms, "scale": scale, "passed": self.passed / n, "with interval": self.with_interval,
            "coverage": self.covered / self.with_interval if self.with_interval else float("nan"),
            "width": float(np.median(self.widths)) if self.widths else float("nan"), "warned": self.warned / n,
            "headlines": {name: self.headlines.count(name) for name in sorted(set(self.headlines))},
            "seconds": self.seconds / n,
        }  # fmt: skip


def measure(problem: Problem, size: int, repeats: int, truth: float, first_seed: int = 0) -> Record:
    """Repeat simulation and evaluation."""
    record = Record()
    for seed in range(first_seed, first_seed + repeats):
        logs = simulate(problem, size, 1000 + seed)
        for name, value in peers(logs, problem).items():
            record.errors.setdefault(name, []).append(value - truth)
        begin = time.perf_counter()
        target = problem.target(np.arange(logs.states)) if logs.tabular else problem.target
        users = np.arange(logs.episodes) // problem.per_user if problem.per_user > 1 else None
        result = evaluate(logs, target, gamma=problem.gamma, cluster=users)
        record.seconds += time.perf_counter() - begin
        head = result.headline
        record.errors.setdefault("headline", []).append(head.estimate - truth)
        record.headlines.append(head.estimator)
        record.warned += bool(result.warnings)
        if not head.failed:
            record.passed += 1
            if np.isfinite(head.low) and np.isfinite(head.high):
                record.with_interval += 1
                record.covered += bool(head.low <= truth <= head.high)
                record.widths.append(head.high - head.low)
    return record


def main() -> None:
    """Print a table, and write one line of JSON for each row if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--which", choices=["developed", "held-out", "all"], default="developed")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    problems = {"developed": DEVELOPED, "held-out": HELD_OUT, "all": (*DEVELOPED, *HELD_OUT)}[given.which]
    rows: list[dict[str, Any]] = []
    heads = f"{'problem':<16}{'E':>5} {'ratio':>7} {'best peer':<16}{'cover':>6}{'of':>4}{'pass':>6}{'warn':>6}"
    print(f"{heads}{'width':>8}{'sec':>6}  headlines")
    for problem in problems:
        if given.only and problem.name not in given.only:
            continue
        truth, _ = true_value(problem)
        for size in given.sizes:
            row = measure(problem, size, given.repeats, truth).row(problem, size, abs(truth))
            rows.append(row)
            print(
                f"{row['problem']:<16}{size:>5} {row['ratio']:>7.2f} {row['best']:<16}{row['coverage']:>6.2f}"
                f"{row['with interval']:>4}{row['passed']:>6.2f}{row['warned']:>6.2f}{row['width']:>8.3g}{row['seconds']:>6.2f}  "
                + ", ".join(f"{k} {v}" for k, v in row["headlines"].items()),
                flush=True,
            )
            if given.json:
                with given.json.open("a") as out:
                    out.write(json.dumps(row) + "\n")
    covered = sum(r["coverage"] * r["with interval"] for r in rows if r["with interval"])
    total = sum(r["with interval"] for r in rows)
    close = sum(r["ratio"] <= 1.2 for r in rows)
    print(f"coverage of all {covered / max(total, 1):.3f} of {total}; ratio ≤ 1.2 in {close} of {len(rows)}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
