"""Several target policies from the same logs: ranked, with the intervals of their differences.

All estimates come from the same episodes, so policies are compared in pairs: the interval of V(π) − V(π') is that of the mean
of what each episode contributes to the one less what it contributes to the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from offtrace._shared.number_text import four_digits
from offtrace.logs.container import Logs
from offtrace.logs.evaluation import evaluate
from offtrace.logs.intervals import bootstrap, by_cluster
from offtrace.logs.result import Result, Row, ends, finite, instead, rank
from offtrace.traces import Trace


@dataclass(frozen=True)
class Difference:
    """V(better) − V(worse), by the same estimator from the same episodes."""

    better: str
    worse: str
    estimate: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `compare` returns: policies from the best to the worst, those that fail a check last; prints as a table."""

    estimator: str
    """By which they are ranked: of those that fail the fewest checks over all policies, the first by the rule of headlines."""
    results: Mapping[str, Result]
    """The whole result of each policy, in the order of the ranks."""
    differences: tuple[Difference, ...]
    """Of each policy to the one ranked next."""

    @property
    def rows(self) -> dict[str, Row]:
        """The row of the estimator for each policy, from the best to the worst."""
        return {name: result[self.estimator] for name, result in self.results.items()}

    @property
    def instead(self) -> str:
        """Where they are not ranked by the fitted estimate although there is one: by which, and why; else nothing."""
        named = next(iter(self.rows.values()))
        return instead({name: result.estimates for name, result in self.results.items()}, named)

    def table(self) -> list[dict[str, str | float]]:
        """One dictionary for each policy and estimator, for tables and files."""
        return [{"policy": name, **row} for name, result in self.results.items() for row in result.rows()]

    def as_json(self) -> dict[str, object]:
        """What there is to know in numbers and texts, for `json.dumps`; what is not finite is None."""
        facts: dict[str, object] = finite({
            "estimator": self.estimator,
            "instead": self.instead or None,
            "ranking": list(self.results),
            "differences": [vars(difference) for difference in self.differences],
        })  # fmt: skip
        return {**facts, "policies": {name: result.as_json() for name, result in self.results.items()}}

    def __repr__(self) -> str:
        width = max(map(len, self.results))
        some = next(iter(self.results.values()))
        seen, title = some.observed, next(iter(self.rows.values())).title
        lines = [
            *([self.instead] if self.instead else []),
            f"{len(self.results)} policies by {title}",
            f"  V(μ) = {four_digits(seen.estimate)} {ends(seen.low, seen.high)}, as logged",
            f"  {'':<{width}}  {'V(π)':>10}  {'interval':^25}  V(π) − that of the next",
        ]
        for i, (name, row) in enumerate(self.rows.items()):
            less = ""
            if i < len(self.differences):
                d = self.differences[i]
                less = f"{four_digits(d.estimate)} {ends(d.low, d.high)}" + ("" if d.clear else ", which is not clear")
                less = "" if self.results[d.worse][self.estimator].failed else less
            lines.append(
                f"  {name:<{width}}  {four_digits(row.estimate):>10}  {ends(row.low, row.high):^25}  {less}".rstrip()
            )
            lines += [f"      ✗ {check.words}" for check in row.failed]
        return "\n".join(lines)


def compare(
    logs: Logs,
    targets: Mapping[str, object],
    *,
    gamma: float,
    trace: Trace | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    **options: object,
) -> Comparison:
    """Evaluate several target policies from the same logs, and rank them; those whose estimate fails a check come last.

    - `targets`: the policies by their names, each as `evaluate` takes one
    - `options`: further arguments of `evaluate`

    >>> from offtrace import mdps
    >>> from offtrace.logs import compare, simulate
    >>> walk = mdps.random_walk(3)
    >>> logs = simulate(walk, mdps.uniform(walk), episodes=200, seed=0)
    >>> targets = {"left": np.tile([0.6, 0.4], (4, 1)), "right": np.tile([0.4, 0.6], (4, 1))}
    >>> found = compare(logs, targets, gamma=walk.gamma)
    >>> list(found.results), found.differences[0].clear
    (['right', 'left'], True)
    """
    if len(targets) < 1:
        raise ValueError("targets is empty: give the policies by their names, such as {'new': pi}")
    given: Any = {"confidence": confidence, "resamples": resamples, "seed": seed, **options}
    by_name = {name: evaluate(logs, target, trace=trace, gamma=gamma, **given) for name, target in targets.items()}
    estimator = _for_all(list(by_name.values()))
    order = sorted(
        by_name, key=lambda name: (bool(by_name[name][estimator].failed), -by_name[name][estimator].estimate)
    )
    results = {name: by_name[name] for name in order}
    differences = [_difference(a, b, results, estimator, confidence, resamples, seed) for a, b in pairwise(order)]
    return Comparison(estimator, results, tuple(differences))


def _for_all(results: Sequence[Result]) -> str:
    """The estimator that fails the fewest checks over all policies; of those, by the rule of headlines."""

    def of(name: str) -> tuple[int, int]:
        ranks = [rank(result[name]) for result in results]
        return sum(failures for failures, _ in ranks), ranks[0][1]

    common = [row.estimator for row in results[0].estimates if all(row.estimator in each.names for each in results)]
    return min(common, key=of)


def _difference(
    a: str, b: str, results: Mapping[str, Result], estimator: str, confidence: float, resamples: int, seed: int
) -> Difference:
    rows, nan = (results[a][estimator], results[b][estimator]), float("nan")
    value = rows[0].estimate - rows[1].estimate
    x, y = (results[name].contributions[estimator] for name in (a, b))
    if not np.isfinite(x - y).all() or any(np.isnan(row.low) for row in rows):
        return Difference(a, b, value, nan, nan)
    columns = by_cluster(np.column_stack([x - y, x, y]), results[a].cluster)
    low, high = bootstrap(columns, confidence, resamples, seed)
    # Intervals of rows are wider than the draws' own, as by pairs that were never logged: so is that of the difference.
    less = [max(0.0, float(end) - row.low) for end, row in zip(low[1:], rows, strict=True)]
    more = [max(0.0, row.high - float(end)) for end, row in zip(high[1:], rows, strict=True)]
    return Difference(a, b, value, float(low[0]) - less[0] - more[1], float(high[0]) + more[0] + less[1])
