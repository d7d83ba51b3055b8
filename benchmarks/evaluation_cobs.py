"""COBS (Caltech's OPE benchmarking suite, Voloshin et al. 2021) and offtrace on the same logs: Retrace, Tree Backup, Q(λ), FQE.

    PYTHONPATH=src:<a checkout of clvoloshin/COBS> python benchmarks/evaluation_cobs.py 10

It needs torch, pandas and tqdm beside offtrace. COBS's tables are fitted by sweeps in which visit k of an episode adds
γ^k c_0 ··· c_k Δ_k, where offtrace adds Δ_k: the discount and the trace's coefficients run from the episode's start, and are not
taken out again (and c_0 is λ in its Retrace, 1 in the others). So this prints, for each estimator, V̂ by COBS as it comes (at most
100 sweeps, to 1e-3) and by offtrace; and the largest difference between COBS's first sweep from Q = 0
and

    mean over the visits k of (s, a) of  γ^k c_0 ··· c_k Δ_k(0),      Δ and β = c_1 ··· c_k by offtrace
"""

from __future__ import annotations

import contextlib
import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from evidence.cases import cases
from ope.algos.fqe import FittedQEvaluation  # pyright: ignore[reportMissingImports]
from ope.algos.retrace_lambda import Retrace as COBS  # pyright: ignore[reportMissingImports]

import offtrace as ot
from offtrace.logs.container import Logs
from offtrace.logs.fit import fit
from offtrace.logs.operator import Sampled
from offtrace.logs.policies import as_policy

LAM = 0.95
RULES = {"Retrace": ot.Retrace(lam=LAM), "Tree-Backup": ot.TreeBackup(lam=LAM), "Q^pi(lambda)": ot.QLambda(lam=LAM)}
AS_IT_COMES, ONE_SWEEP = (1e-3, 100), (0.0, 0)


class Padded:
    """The logs as COBS has them: episodes of equal length, the rest of each filled with steps in the end."""

    def __init__(self, logs: Logs, pi: np.ndarray) -> None:
        E, T, end = logs.episodes, int(np.diff(logs.starts).max()), logs.states - 1
        self.n_actions = logs.actions
        episode = np.repeat(np.arange(E), np.diff(logs.starts))
        at = episode, np.arange(len(logs)) - logs.starts[:-1][episode]
        self.arrays = {}
        for name, found, rest in (
            ("states", logs.state, end),
            ("next_states", np.where(logs.terminated, end, logs.next_state), end),
            ("actions", logs.action, 0),
            ("rewards", logs.reward, 0.0),
            ("dones", logs.terminated, 1.0),
        ):
            filled = np.full((E, T), rest)
            filled[at] = found
            self.arrays[name] = filled
        self.pi, self.mu = pi[self.arrays["states"]], np.full((E, T, logs.actions), 1.0 / logs.actions)  # μ is uniform

    def __getattr__(self, name: str) -> Any:
        return lambda: self.arrays[name]

    def target_propensity(self) -> np.ndarray:
        """π [E, T, A]."""
        return self.pi

    def base_propensity(self) -> np.ndarray:
        """μ [E, T, A]."""
        return self.mu

    def basic_transitions(self) -> np.ndarray:
        """Rows of state, action, time, next state, reward and end."""
        a = self.arrays
        E, T = a["states"].shape
        t = np.tile(np.arange(T), (E, 1))
        names = ("states", "actions", None, "next_states", "rewards", "dones")
        return np.column_stack([(t if name is None else a[name]).ravel() for name in names])


def by_cobs(method: str, logs: Logs, pi: np.ndarray, gamma: float, ends: tuple[float, int]) -> np.ndarray:
    """Q [S, A] by COBS's own code."""
    model = {"convergence_epsilon": ends[0], "divergence_epsilon": 1000, "max_epochs": ends[1]}
    config = SimpleNamespace(models={method: model}, gamma=gamma)
    fitted = FittedQEvaluation() if method == "FQE" else COBS(method, LAM)
    with contextlib.redirect_stdout(io.StringIO()):
        fitted.fit_tabular(Padded(logs, pi), SimpleNamespace(predict=lambda s: pi[s]), config)
    q = np.zeros(pi.shape)
    q[np.array(list(fitted.mapping), int)] = fitted.table
    return q


def first_sweep(trace: ot.Trace, logs: Logs, pi: np.ndarray, gamma: float) -> np.ndarray:
    """The mean of γ^k c_1 ··· c_k Δ_k(0) over the visits of each pair [S, A], Δ by offtrace."""
    q = np.zeros(pi.shape)
    log_pi = np.log(pi)[logs.state, logs.action]
    arrays: dict[str, Any] = {
        "reward": logs.reward,
        "q": q[logs.state, logs.action],
        "next_value": (pi * q).sum(axis=1)[logs.next_state],
        "terminated": logs.terminated,
        "truncated": logs.truncated,
        "log_pi": log_pi,
        "log_mu": logs.log_mu,
        "gamma": gamma,
    }
    found = ot.corrections(trace, **arrays)
    total, visits = np.zeros(q.shape), np.zeros(q.shape)
    for first, last in zip(logs.starts[:-1], logs.starts[1:], strict=True):
        row: dict[str, Any] = {
            name: value if np.isscalar(value) else value[first:last] for name, value in arrays.items()
        }
        for name in ("reward", "q", "next_value", "gamma"):
            del row[name]
        c = ot.coefficients(trace, **row)[0]  # β of the history that starts with the episode
        at = logs.state[first:last], logs.action[first:last]
        np.add.at(total, at, gamma ** np.arange(last - first) * c * found[first:last])
        np.add.at(visits, at, 1)
    return total / np.maximum(visits, 1)


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    for name in ("shown", "hidden"):
        case = cases()[name]
        pi, truth = np.asarray(case.target), case.truth()[0]
        errors: dict[str, list[tuple[float, float]]] = {}
        worst = 0.0
        for seed in range(repetitions):
            logs = case.logs(seed)
            first = logs.state[logs.starts[:-1]]
            policy = as_policy(pi, logs)
            for method, trace in {"FQE": ot.OneStep(), **RULES}.items():
                q = by_cobs(method, logs, pi, case.gamma, AS_IT_COMES)
                theirs = float((pi * q).sum(axis=1)[first].mean())
                ours = float(fit(Sampled(trace, logs, policy, case.gamma), None).values(first).mean())
                errors.setdefault(method, []).append((theirs - truth, ours - truth))
                if method != "FQE":
                    scale = LAM if method == "Retrace" else 1.0
                    once = by_cobs(method, logs, pi, case.gamma, ONE_SWEEP)
                    worst = max(worst, float(np.abs(once - scale * first_sweep(trace, logs, pi, case.gamma)).max()))
        print(f"{case.title}: V(π) = {truth:.4f}, {repetitions} logs of {case.episodes} episodes, λ = {LAM}")
        print(f"  {'':<14}{'COBS':>22}{'offtrace':>22}     (bias, RMSE)")
        for method, found in errors.items():
            e = np.array(found)
            cells = [f"{b:+.4f}, {r:.4f}" for b, r in zip(e.mean(axis=0), np.sqrt((e**2).mean(axis=0)), strict=True)]
            print(f"  {method:<14}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
        print(f"  COBS's first sweep differs from the formula by at most {worst:.1g}", flush=True)


if __name__ == "__main__":
    main()
