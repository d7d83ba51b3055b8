"""How the answer changes with the age of the data: interquartile means at each age, and differences to one trace, the reference.

All from scaled scores (`statistics.scores`), whose scale is the same at every age. Intervals are those of `statistics`: each
environment's seeds are resampled by themselves, here for every trace and age.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import numpy as np
import polars as pl

from offtrace.reports.study import resampling
from offtrace.reports.study.resampling import SEED, difference, interquartile_mean, resampled

F = pl.Float64
COLUMNS = {"age": F, "method": pl.String, "iqm": F, "low": F, "high": F}
COLUMNS |= {f"difference{end}": F for end in ("", "_low", "_high")}
COLUMNS |= {f"probability{end}": F for end in ("", "_low", "_high")}


def at_each_age(samples: pl.DataFrame, methods: list[str], reference: str | None, *, seed: int = SEED) -> pl.DataFrame:
    """For every age and method its IQM, IQM − IQM of the reference, and P(better than the reference), with intervals.

    `samples` has environment, method, seed, age and score. A method that lacks an environment at an age has no row there.
    """
    found = []
    for (age,), part in samples.sort("age").group_by("age", maintain_order=True):
        strata = resampling.strata(part)
        whole = {m: parts for m in methods if (parts := _parts(strata, m))}
        for method, parts in whole.items():
            iqm = float(interquartile_mean(*parts))
            row: list[object] = [age, method, iqm, *resampled(parts, interquartile_mean, iqm, seed)]
            if reference in whole and method != reference:
                row += _with_interval([*parts, *whole[reference]], difference, seed)
                pairs = zip(parts, whole[reference], strict=True)
                ranks = [rank for x, y in pairs for rank in resampling.ranked(x, y)]
                row += _with_interval(ranks, resampling.probability, seed)
            found.append((*row, *repeat(None, len(COLUMNS) - len(row))))
    return pl.DataFrame(found, schema=COLUMNS, orient="row")


def changes(samples: pl.DataFrame, methods: list[str], reference: str | None, *, seed: int = SEED) -> pl.DataFrame:
    """By how much the difference to the reference grows from the youngest to the oldest data: method, change, low, high."""
    ages = sorted(samples["age"].drop_nulls().unique().to_list())
    found = []
    if len(ages) > 1 and reference is not None:
        young, old = (resampling.strata(samples.filter(age=age)) for age in (ages[0], ages[-1]))
        for method in methods:
            four = [
                _parts(at, name) for at, name in ((old, method), (old, reference), (young, method), (young, reference))
            ]
            if method != reference and all(four):
                parts = [part for group in four for part in group]
                found.append((method, *_with_interval(parts, change, seed)))
    return pl.DataFrame(found, schema={"method": pl.String, "change": F, "low": F, "high": F}, orient="row")


def change(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
    """The difference of the first two quarters of the parts minus that of the last two."""
    half = len(parts) // 2
    return difference(*parts[:half], axis=axis) - difference(*parts[half:], axis=axis)


def _parts(strata: dict[object, dict[str, np.ndarray]], method: str) -> list[np.ndarray]:
    """One for each environment; none if it lacks one that another method has."""
    parts = [groups[method] for groups in strata.values() if method in groups]
    return parts if len(parts) == len(strata) else []


def _with_interval(
    parts: list[np.ndarray], statistic: Callable[..., np.ndarray], seed: int
) -> tuple[float, float, float]:
    whole = float(statistic(*parts))
    return whole, *resampled(parts, statistic, whole, seed)
