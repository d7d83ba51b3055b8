"""Methods compared over all environments: interquartile means, their differences, and probabilities of improvement.

The definitions are those of Agarwal et al. (2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice*): each
environment's seeds are resampled by themselves. All resampling is scipy's, with a seed, so that the same rows give the same page.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import polars as pl
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 2000
DRAWS = 4_000_000  # about as many values are drawn for one interval, so that large samples take no longer
SEED = 2021


def interquartile_means(samples: pl.DataFrame, methods: list[str], *, seed: int = SEED) -> pl.DataFrame:
    """The mean of the middle half of all scores of a method, best first, with a stratified bootstrap interval.

    A method that lacks a environment that another one has is left out: its mean would be over something else.
    """
    places = strata(samples)
    rows = []
    for method in methods:
        parts = [groups[method] for groups in places.values() if method in groups]
        if len(parts) == len(places) and parts:
            whole = float(interquartile_mean(*parts, axis=-1))
            low, high = resampled(parts, interquartile_mean, whole, seed)
            rows.append((method, whole, low, high, len(parts), sum(map(len, parts))))
    schema = {"method": pl.String, "iqm": pl.Float64, "low": pl.Float64, "high": pl.Float64}
    frame = pl.DataFrame(rows, schema={**schema, "strata": pl.Int64, "n": pl.Int64}, orient="row")
    return frame.sort("iqm", descending=True, maintain_order=True)


def interquartile_mean(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
    """scipy's mean trimmed by a quarter at both ends, of all parts together."""
    return stats.trim_mean(np.concatenate(parts, axis=axis), 0.25, axis=axis)


def improvements(samples: pl.DataFrame, methods: list[str], *, seed: int = SEED) -> pl.DataFrame:
    """P(X > Y) + ½ P(X = Y) for runs of one environment, averaged over these; all pairs. Those of the first have intervals."""
    places = strata(samples)
    rows = []
    for x, y in combinations(methods, 2):
        whole = float(np.mean([_compared(groups[x], groups[y]) for groups in places.values()]))
        low = high = float("nan")
        if x == methods[0]:
            parts = [part for groups in places.values() for part in ranked(groups[x], groups[y])]
            low, high = resampled(parts, probability, whole, seed)
        rows += [(x, y, whole, low, high), (y, x, 1 - whole, 1 - high, 1 - low)]
    schema = {"better": pl.String, "worse": pl.String, "probability": pl.Float64, "low": pl.Float64, "high": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def differences(samples: pl.DataFrame, methods: list[str], *, seed: int = SEED) -> pl.DataFrame:
    """By how much the interquartile mean of the first method is above that of each other, with intervals.

    Runs of the same seed are resampled together (`in_pairs`): what makes a seed easy for all methods then cancels. Methods
    whose seeds differ in some environment are resampled each by itself.
    """
    seeds = {key: part for key, part in _by_seed(samples).items() if key[1] in methods}
    places = sorted({environment for environment, _ in seeds})
    rows = []
    for other in methods[1:]:
        pairs = [(seeds[place, methods[0]], seeds[place, other]) for place in places]
        in_pairs = all(x["seed"].equals(y["seed"]) for x, y in pairs)
        parts = [part["score"].to_numpy() for side in zip(*pairs, strict=True) for part in side]
        whole = float(difference(*parts))
        low, high = paired(parts, whole, seed) if in_pairs else resampled(parts, difference, whole, seed)
        rows.append((other, whole, low, high, in_pairs))
    schema = {"method": pl.String, "difference": pl.Float64, "low": pl.Float64, "high": pl.Float64}
    return pl.DataFrame(rows, schema={**schema, "in_pairs": pl.Boolean}, orient="row")


def at_each_age(samples: pl.DataFrame, methods: list[str], baseline: str, *, seed: int = SEED) -> pl.DataFrame:
    """For every age and method its interquartile mean, and that less the baseline's, with intervals.

    `samples` has environment, method, seed, age and score. A method that lacks an environment at an age has no row there.
    """
    rows = []
    for (age,), part in samples.sort("age").group_by("age", maintain_order=True):
        places = strata(part)
        complete = {
            m: [groups[m] for groups in places.values()] for m in methods if all(m in g for g in places.values())
        }
        for method, parts in complete.items():
            whole = float(interquartile_mean(*parts))
            row = [age, method, whole, *resampled(parts, interquartile_mean, whole, seed)]
            less: list[float | None] = [None] * 3
            if baseline in complete and method != baseline:
                both = [*parts, *complete[baseline]]
                less = [apart := float(difference(*both)), *resampled(both, difference, apart, seed)]
            rows.append((*row, *less))
    kinds = dict.fromkeys(("iqm", "low", "high", "difference", "difference_low", "difference_high"), pl.Float64)
    return pl.DataFrame(rows, schema={"age": pl.Float64, "method": pl.String, **kinds}, orient="row")


def difference(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
    """The interquartile mean of the first half of the parts minus that of the second half."""
    half = len(parts) // 2
    return interquartile_mean(*parts[:half], axis=axis) - interquartile_mean(*parts[half:], axis=axis)


def paired(parts: list[np.ndarray], whole: float, seed: int) -> tuple[float, float]:
    """The interval of a difference whose halves have the same seeds: these are resampled, and both methods' runs with them."""
    half = len(parts) // 2

    def of_seeds(*seeds: np.ndarray, axis: int = -1) -> np.ndarray:
        drawn = [part[chosen] for part, chosen in zip(parts, [*seeds, *seeds], strict=True)]
        return difference(*drawn, axis=axis)

    return resampled([np.arange(len(part)) for part in parts[:half]], of_seeds, whole, seed)


def probability(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean over strata of U/(nm), Mann and Whitney's, of integer ranks x₁, y₁, x₂, y₂, … along the last axis."""
    if axis not in (-1, parts[0].ndim - 1):
        raise ValueError(f"probability works along the last axis, and axis {axis} was given.")
    total = np.zeros(())
    for x, y in zip(parts[::2], parts[1::2], strict=True):
        (n, m), shape = (x.shape[-1], y.shape[-1]), x.shape[:-1]
        x, y = x.reshape(-1, n).astype(np.int64), y.reshape(-1, m).astype(np.int64)
        width = int(max(x.max(), y.max())) + 1
        row = np.arange(len(x))[:, None] * width
        counts = np.bincount((y + row).ravel(), minlength=len(x) * width).reshape(len(x), width)
        below = np.cumsum(counts, axis=1) - counts / 2  # how many y's are smaller than a value; equal ones count half
        total = total + np.take_along_axis(below, x, axis=1).mean(axis=1).reshape(shape) / m
    return total / (len(parts) // 2)


def _compared(x: np.ndarray, y: np.ndarray) -> float:
    """P(X > Y) + ½ P(X = Y) of two samples."""
    x, y = np.sort(x), np.sort(y)
    return float((np.searchsorted(y, x, "left") + np.searchsorted(y, x, "right")).mean() / (2 * len(y)))


def ranked(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dense ranks of both samples together: comparisons need no more, and integers can be counted instead of sorted."""
    _, ranks = np.unique(np.concatenate([x, y]), return_inverse=True)
    return ranks[: len(x)], ranks[len(x) :]


def _by_seed(samples: pl.DataFrame) -> dict[tuple[str, str], pl.DataFrame]:
    """Seeds and scores by environment and method, in the order of the seeds."""
    groups = samples.sort("environment", "method", "seed").group_by("environment", "method", maintain_order=True)
    return {(str(environment), str(method)): part for (environment, method), part in groups}


def strata(samples: pl.DataFrame) -> dict[object, dict[str, np.ndarray]]:
    """Scores by environment and method, in the order of the seeds, so that no order of running shows."""
    by_place: dict[object, dict[str, np.ndarray]] = {}
    for (environment, method), part in _by_seed(samples).items():
        by_place.setdefault(environment, {})[method] = part["score"].to_numpy()
    return by_place


def resampled(
    parts: list[np.ndarray], statistic: Callable[..., np.ndarray], whole: float, seed: int
) -> tuple[float, float]:
    """scipy resamples each part by itself: the stratified bootstrap. NaN where a part has only one value.

    Percentiles of 2000 resamples. Where the sample is so large that `DRAWS` allows fewer, which are too few for percentiles but
    enough for a standard error, it is whole ± 1.96 standard errors: such a sample's mean is as good as normal.
    """
    if min(map(len, parts)) < 2:
        return float("nan"), float("nan")
    size = sum(map(len, parts))
    resamples = int(np.clip(DRAWS // size, 32, RESAMPLES))
    bootstrap = stats.bootstrap(
        parts,
        statistic,
        n_resamples=resamples,
        batch=max(1, 1_000_000 // size),
        vectorized=True,
        method="percentile",
        confidence_level=CONFIDENCE,
        rng=np.random.default_rng(seed),
    )
    if resamples >= RESAMPLES // 2:
        return float(bootstrap.confidence_interval.low), float(bootstrap.confidence_interval.high)
    half = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * float(bootstrap.standard_error)
    return whole - half, whole + half
