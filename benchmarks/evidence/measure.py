"""Bias, RMSE and coverage of every estimator on the cases whose truth is known, each repetition with logs of its own.

bias = mean of V̂ − V,      RMSE = √ mean of (V̂ − V)²,      coverage = the share of the intervals given that hold V
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import betaincinv  # pyright: ignore

from evidence.cases import Case, cases
from offtrace._shared.cores import cores
from offtrace._shared.suggestions import did_you_mean
from offtrace.logs.evaluation import evaluate
from offtrace.logs.result import Row
from offtrace.traces import Trace, trace

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM")}
"""One thread for each process."""
DIRECT, FITTED, HEADLINE = "direct method", "fitted", "headline"
Found = dict[str, tuple[float, float, float, bool]]
"""Estimate, the ends of its interval, and whether it passed its checks, by what the estimator is called."""
Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Plan:
    """What is tried."""

    traces: tuple[str, ...]
    """The rules, as `offtrace.trace` knows them. The first one is that whose λ is also chosen from the data."""
    lams: tuple[float, ...]
    complete: float
    """λ of the first rule in the evaluation that has all estimators."""

    @staticmethod
    def declared() -> Plan:
        """What `evidence.toml` declares."""
        given = tomllib.loads((Path(__file__).parent / "evidence.toml").read_text("utf-8"))
        return Plan(tuple(given["traces"]), tuple(given["lams"]), given["complete"])

    def grid(self) -> Iterator[Trace]:
        """Every rule with every λ, the complete one first."""
        first = trace(self.traces[0], lam=self.complete)
        yield first
        for name in self.traces:
            yield from (made for lam in self.lams if (made := trace(name, lam=lam)) != first)


@dataclass(frozen=True)
class Score:
    """How well one estimator did on one case."""

    title: str
    rule: str
    """The title of the trace, or nothing for other estimators."""
    lam: float | None
    """λ of the trace; None for other estimators, and where the data choose it."""
    errors: tuple[float, ...]
    """V̂ − V of the repetitions in which there was an estimate."""
    held: int
    """Intervals that held the truth,"""
    given: int
    """of so many that were given."""
    width: float
    """Their median width."""
    passed: int
    """Repetitions in which it passed its checks."""

    @property
    def bias(self) -> float:
        """The mean error."""
        return float(np.mean(self.errors)) if self.errors else float("nan")

    @property
    def rmse(self) -> float:
        """The root of the mean square error."""
        return float(np.sqrt(np.mean(np.square(self.errors)))) if self.errors else float("nan")

    @property
    def rmse_error(self) -> float:
        """The standard error of that, to first order."""
        squares = np.square(self.errors)
        return float(squares.std() / np.sqrt(len(squares)) / (2 * self.rmse)) if self.rmse > 0 else 0.0

    @property
    def coverage(self) -> tuple[float, float, float]:
        """The share of intervals that held the truth, and its own 95 % interval (Clopper and Pearson 1934)."""
        if not self.given:
            return float("nan"), float("nan"), float("nan")
        return self.held / self.given, *_binomial(self.held, self.given)


def _binomial(held: int, given: int) -> tuple[float, float]:
    low = 0.0 if not held else float(betaincinv(held, given - held + 1, 0.025))
    high = 1.0 if held == given else float(betaincinv(held + 1, given - held, 0.975))
    return low, high


@dataclass(frozen=True)
class Measured:
    """What was found on one case."""

    case: Case
    truth: float
    truth_error: float
    """The standard error of the truth; 0 where it is exact."""
    behavior: float
    """V(μ) as the logs have it, on average."""
    steps: float
    """Steps of a log, on average."""
    effective: float
    """What the episodes of a log are worth by their weights, on average."""
    repetitions: int
    scores: tuple[Score, ...]

    def __getitem__(self, title: str) -> Score:
        return next(score for score in self.scores if score.title == title)

    def curve(self, rule: str) -> list[Score]:
        """The scores of a rule by λ; the first, of λ = 0, is the direct method."""
        found = [self[DIRECT], *(score for score in self.scores if score.rule == rule and score.lam is not None)]
        return sorted(found, key=lambda score: score.lam or 0.0)

    def default(self) -> Score:
        """The score of the trace that `offtrace logs evaluate` takes if none is named."""
        plan = Plan.declared()
        rule = trace(plan.traces[0], lam=plan.complete).title
        return next(score for score in self.scores if score.rule == rule and score.lam == plan.complete)

    def verdict(self, score: Score) -> str:
        """Whether the squared errors are smaller than those of the direct method, in pairs, by two standard errors."""
        gain = np.square(self[DIRECT].errors) - np.square(score.errors)
        error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
        if abs(gain.mean()) <= 2 * error:
            return "makes no clear difference"
        return "helps" if gain.mean() > 0 else "hurts"

    def best(self) -> Score:
        """The one with the smallest RMSE, of those that a user could have named beforehand."""
        named = [score for score in self.scores if np.isfinite(score.rmse) and len(score.errors) == self.repetitions]
        return min(named, key=lambda score: score.rmse)


@cache
def _cases() -> dict[str, Case]:
    return cases()


def repetition(name: str, seed: int, plan: Plan) -> tuple[Found, tuple[float, float, float]]:
    """Every estimate of one repetition; V(μ), steps and effective episodes of its log."""
    case = _cases()[name]
    logs, model = case.logs(seed), case.model(seed)
    options: dict[str, Any] = {"gamma": case.gamma, "model": model, "seed": seed}
    found: Found = {}

    def keep(row: Row, title: str | None = None) -> None:
        found[title or row.title] = row.estimate, row.low, row.high, not row.failed

    first, *others = plan.grid()
    result = evaluate(logs, case.target, trace=first, **options)
    for row in result.estimates:
        keep(row)
    keep(result.headline, HEADLINE)
    for each in others:
        keep(evaluate(logs, case.target, trace=each, estimators=[FITTED], **options)[FITTED])
    return found, (result.observed.estimate, float(len(logs)), result.diagnosis.effective)


def measure(
    names: Sequence[str] | None = None,
    *,
    quick: bool = False,
    repetitions: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Measured]:
    """Try every estimator on the cases of these names, all if None, on so many processes (one for each core)."""
    known, plan = _cases(), Plan.declared()
    for name in names or ():
        if name not in known:
            raise ValueError(
                f"there is no case {name!r}{did_you_mean(name, list(known))}: there are {', '.join(known)}"
            )
    chosen = [known[name] for name in (names or known)]
    if repetitions is not None and repetitions < 2:
        raise ValueError(f"repetitions must be 2 at least, to tell a spread, got {repetitions}")
    counts = {case.name: repetitions or (case.quick if quick else case.repetitions) for case in chosen}
    found: dict[str, dict[int, tuple[Found, tuple[float, float, float]]]] = {case.name: {} for case in chosen}
    total = sum(counts.values())
    with _processes(min(workers or cores(), total)) as pool:
        jobs = {pool.submit(repetition, name, i, plan): (name, i) for name, n in counts.items() for i in range(n)}
        for done, job in enumerate(as_completed(jobs), 1):
            name, i = jobs[job]
            found[name][i] = job.result()
            if progress is not None:
                progress(done, total, f"{known[name].title}: {len(found[name])} of {counts[name]} repetitions")
    return [_measured(case, [found[case.name][i] for i in range(counts[case.name])], plan) for case in chosen]


@contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes with one thread each: as many as cores share them without getting into each other's way."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # read when NumPy is imported, in processes that begin from nothing
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _measured(case: Case, found: list[tuple[Found, tuple[float, float, float]]], plan: Plan) -> Measured:
    truth, error = case.truth()
    behavior, steps, effective = np.mean([about for _, about in found], axis=0)
    named = {f"fitted, {each.title}, λ = {getattr(each, 'lam', 0.0):g}": each for each in plan.grid()}
    scores: list[Score] = []
    for title in found[0][0]:
        rows = [each[title] for each, _ in found]
        known = [row for row in rows if np.isfinite(row[0])]
        given = [row for row in known if not np.isnan(row[1])]
        of = named.get(title)
        scores.append(
            Score(
                title=title,
                rule="" if of is None else of.title,
                lam=None if of is None else getattr(of, "lam", None),
                errors=tuple(row[0] - truth for row in known),
                held=sum(row[1] <= truth <= row[2] for row in given),
                given=len(given),
                width=float(np.median([row[2] - row[1] for row in given])) if given else float("nan"),
                passed=sum(row[3] for row in known),
            )
        )
    scores.sort(key=lambda score: _place(score, plan))
    return Measured(case, truth, error, float(behavior), float(steps), float(effective), len(found), tuple(scores))


def _place(score: Score, plan: Plan) -> tuple[int, int, float]:
    """Where the score stands in tables: the direct method, each rule by λ, the chosen λ, the others, the headline."""
    ruled = [trace(name, lam=1.0).title for name in plan.traces]
    groups = {DIRECT: 0, HEADLINE: 4}
    if score.rule:
        return 1, ruled.index(score.rule), score.lam or 0.0
    return groups.get(score.title, 3), 0, 0.0
