"""Rows → summaries: means, the tuned α and λ, scores between 0 and 1. What compares methods over environments is in `resampling`.

A *method* is a trace with its further parameters; λ and α are tuned for each method and environment. Tuning looks at the tuning
phase, every number that is reported comes from the final one (test, or map).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import stats

from offtrace.reports.study import method_names, resampling

KEYS = ["environment", "method", "lam", "age", "alpha"]
SETTING = ["environment", "method", "lam"]
BASELINE = "Retrace"
"""The method from which differences are measured, where it is there; else the first one."""
TIED = 1e-9
"""Values that differ by a smaller share than this tie: the difference is one of rounding."""
DIGITS = 9
"""Digits of a score, so that values which tie have the same one."""
PARTS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Summary:
    """What the rows say. `better` is +1 where a higher value is better, −1 where a lower one is."""

    better: int
    final: str  # the phase that is reported
    methods: list[str]
    environments: list[str]
    configurations: pl.DataFrame  # phase, environment, method, lam, alpha, age: mean, low, high, n, failed
    chosen: pl.DataFrame  # environment, method, lam, age: the tuned alpha
    table: pl.DataFrame  # the final phase at each tuned α; `best_lam` marks a method's λ, `mark` the best and ties
    runs: pl.DataFrame  # environment, method, lam, seed, value: the runs that the table is of
    iqm: pl.DataFrame  # method: iqm, low, high, strata, n
    improvement: pl.DataFrame  # better, worse: probability; low and high for pairs of the first method
    differences: pl.DataFrame  # method: how far the first of `iqm` is above it: difference, low, high, in_pairs
    zeros: bool  # whether 0 is a random policy, in every environment
    each_age: pl.DataFrame  # environment, method, seed, age: score; empty where the study has no two ages
    diverged: int  # runs at a tuned α whose learner diverged
    baseline: str  # the method from which `against` measures
    against: (
        pl.DataFrame
    )  # environment ("": the mean over all), method: difference, low, high, n, in the metric's units

    def leaders(self) -> list[str]:
        """The method with the best interquartile mean, and those that cannot be distinguished from it."""
        level = self.differences.filter(pl.col("low").is_finite() & (pl.col("low") <= 0))
        return [*self.iqm["method"].head(1), *level["method"]]


def summarise(
    rows: pl.DataFrame,
    better: str,
    *,
    zeros: dict[str, float] | None = None,
    seed: int = resampling.SEED,
) -> Summary:
    """All summaries of a study's rows. `better` is "higher" or "lower".

    `zeros` are values, by environment, that have the score 0.
    """
    if better not in ("higher", "lower"):
        raise ValueError(f'better is "higher" or "lower", and {better!r} was given.')
    sign = 1 if better == "higher" else -1
    if rows.is_empty():
        raise ValueError("there are no rows to summarise; run the study first (offtrace study run).")
    rows = method_names.with_methods(rows)
    environments = in_natural_order(rows["environment"].unique().to_list())
    for name, kind in (("age", pl.Float64), ("diverged", pl.Boolean)):
        if name not in rows.columns:
            rows = rows.with_columns(pl.lit(None, kind).alias(name))
    phases = rows["phase"].unique().to_list()
    final = next(phase for phase in ("test", "map", *sorted(phases)) if phase in phases)
    cells = configurations(rows)
    chosen = tuned(cells, final, sign)
    rows = rows.join(chosen, on=KEYS, how="semi", nulls_equal=True)
    diverged = int(rows.filter(pl.col("phase") == final)["diverged"].sum())
    each_age, rows = rows.filter(pl.col("phase") == final).drop_nulls("age"), over_ages(rows)
    methods = method_names.in_order(rows["method"].unique().to_list())
    reported = rows.filter(pl.col("phase") == final).select(*SETTING, "seed", "value")
    table = marked(best_lambdas(configurations(rows), final, sign), reported, sign)
    place, order = (pl.col(name).cast(pl.Enum(of)) for name, of in (("environment", environments), ("method", methods)))
    table = table.sort(place, order, "lam")
    samples = at_best(reported, table)
    baseline = BASELINE if BASELINE in methods else methods[0]
    against = differences_to(samples, baseline).sort(pl.col("environment").cast(pl.Enum(["", *environments])), order)
    ends = scale(samples, sign, zeros)
    samples = scores(samples, sign, ends)
    iqm = resampling.interquartile_means(samples, methods, seed=seed)
    several = each_age["age"].n_unique() > 1
    each_age = scores(at_best(each_age if several else each_age.clear(), table, "age"), sign, ends)
    return Summary(
        better=sign,
        final=final,
        methods=methods,
        environments=environments,
        configurations=cells,
        chosen=chosen,
        table=table,
        runs=reported,
        iqm=iqm,
        differences=resampling.differences(samples, iqm["method"].to_list(), seed=seed),
        improvement=resampling.improvements(samples, iqm["method"].to_list(), seed=seed),
        zeros=zeros is not None and set(samples["environment"]) <= set(zeros),
        each_age=each_age,
        diverged=diverged,
        baseline=baseline,
        against=against,
    )


def in_natural_order(names: Iterable[str]) -> list[str]:
    """Names sorted so that numbers in them count as numbers.

    >>> in_natural_order(["Walk 11", "Walk 5", "Cliff"])
    ['Cliff', 'Walk 5', 'Walk 11']
    """
    return sorted(
        names, key=lambda name: [(len(part), part) if part.isdecimal() else (0, part) for part in PARTS.split(name)]
    )


def differences_to(samples: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """The mean of value − value of the baseline in pairs of the same seed, with Student's t interval.

    The environment "" is the mean over all of them, for methods whose seeds are the same in all.
    """
    samples = samples.select("environment", "method", "seed", pl.col("value").cast(pl.Float64))
    own = samples.filter(method=baseline).select("environment", "seed", base="value")
    pairs = samples.filter(pl.col("method") != baseline).join(own, on=["environment", "seed"])
    gap = pl.col("value") - pl.col("base")
    pairs = pairs.with_columns(value=pl.when(gap.abs() > TIED * pl.col("base").abs()).then(gap).otherwise(0.0))
    places = samples["environment"].n_unique()
    whole = pairs.group_by("method", "seed").agg(pl.col("value").mean(), places=pl.len())
    whole = whole.with_columns(environment=pl.lit("")).filter((pl.col("places") == places).all().over("method"))
    columns = "environment", "method", "seed", "value"
    means = _means(pl.concat([pairs.select(columns), whole.select(columns)]), ["environment", "method"])
    return means.filter(pl.col("mean").is_finite()).rename({"mean": "difference"}).drop("failed")


def configurations(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean and Student's t interval of each configuration; a mean over runs of which some failed is not finite."""
    return _means(rows, ["phase", *KEYS])


def _means(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    value = pl.col("value").cast(pl.Float64).fill_null(float("nan"))
    of_value = {"mean": pl.col("value").mean(), "deviation": pl.col("value").std()}
    failed = (~pl.col("value").is_finite()).sum()
    frame = rows.with_columns(value).group_by(keys).agg(**of_value, n=pl.len(), failed=failed).sort(keys)
    n = frame["n"].to_numpy().astype(float)
    deviation = frame["deviation"].fill_null(float("nan")).to_numpy()
    with np.errstate(invalid="ignore"):
        half = stats.t.ppf((1 + resampling.CONFIDENCE) / 2, np.maximum(n - 1, 1)) * deviation / np.sqrt(n)
    half = pl.Series(np.where((n > 1) & np.isfinite(half), half, np.nan))
    return frame.drop("deviation").with_columns(low=pl.col("mean") - half, high=pl.col("mean") + half)


def tuned(cells: pl.DataFrame, final: str, sign: int) -> pl.DataFrame:
    """For each environment, method, λ and age its α: the best mean in the tuning phase, of those that the final phase has.

    Where there was no tuning, the final phase itself decides. Ties go to the smaller α.
    """
    scored = _scored(cells, final, sign, KEYS)
    best = scored.sort(*KEYS[:-1], -pl.col("score"), "alpha").group_by(KEYS[:-1], maintain_order=True).first()
    return best.select(KEYS)


def curves_over_seeds(curves: pl.DataFrame) -> pl.DataFrame:
    """Curves whose seeds stand by themselves as means over the seeds with Student's t intervals; others as they are."""
    for name, kind in (("age", pl.Float64), ("seed", pl.Int64)):
        if name not in curves.columns:
            curves = curves.with_columns(pl.lit(None, kind).alias(name))
    alone = curves.filter(pl.col("seed").is_not_null())
    if alone.is_empty():
        return curves
    return _means(alone.with_columns(value="mean"), ["phase", *KEYS, "step"])


def over_ages(rows: pl.DataFrame) -> pl.DataFrame:
    """Where a study has ages, the mean over them for each seed; `alpha` is then that of all ages, or null if they differ."""
    if rows["age"].null_count() == len(rows):
        return rows
    one = pl.when(pl.col("alpha").n_unique() == 1).then(pl.col("alpha").first())
    keys = ["phase", "environment", "method", "lam", "seed"]
    mean = rows.sort(*keys, "age").group_by(keys, maintain_order=True).agg(pl.col("value").mean(), alpha=one)
    return mean.with_columns(age=pl.lit(None, pl.Float64))


def best_lambdas(cells: pl.DataFrame, final: str, sign: int) -> pl.DataFrame:
    """The final phase, with `best_lam`: for each environment and method the λ that was best in the phase `chosen_on`."""
    scored = _scored(cells, final, sign, SETTING)
    first = scored.sort("environment", "method", -pl.col("score"), "lam").group_by("environment", "method").first()
    first = first.select(*SETTING, best_lam=pl.lit(True))
    scored = scored.join(first, on=SETTING, how="left", nulls_equal=True)
    return scored.drop("phase", "age", "score").with_columns(pl.col("best_lam").fill_null(False))


def _scored(cells: pl.DataFrame, final: str, sign: int, keys: list[str]) -> pl.DataFrame:
    """The final phase, with `score` from the phase `chosen_on`: tuning where the method was tuned, else this one."""
    score = pl.when(pl.col("mean").is_finite()).then(sign * pl.col("mean")).otherwise(-float("inf"))
    cells = cells.with_columns(own=score)
    before = cells.filter((pl.col("phase") == "tuning") & (final != "tuning")).select(*keys, tuning="own")
    both = cells.filter(pl.col("phase") == final).join(before, on=keys, how="left", nulls_equal=True)
    was_tuned = pl.col("tuning").is_not_null().any().over("environment", "method")
    score = pl.when(was_tuned).then(pl.col("tuning").fill_null(-float("inf"))).otherwise(pl.col("own"))
    chosen_on = pl.when(was_tuned).then(pl.lit("tuning")).otherwise(pl.lit(final))
    return both.with_columns(score=score, chosen_on=chosen_on).drop("own", "tuning")


def marked(table: pl.DataFrame, rows: pl.DataFrame, sign: int) -> pl.DataFrame:
    """Add the column `mark`: in each environment "best", and "level" where the runs do not tell a row apart from the best.

    Both are compared in pairs of the same seed, by Student's t interval of the mean difference; where they share fewer than two
    seeds, whether their intervals overlap.
    """
    score = pl.when(pl.col("mean").is_finite()).then(sign * pl.col("mean")).otherwise(-float("inf"))
    table = table.with_row_index("row").with_columns(score=score)
    best = table.sort(-pl.col("score"), "row").group_by("environment", maintain_order=True).first()
    runs = rows.select(*SETTING, "seed", pl.col("value").cast(pl.Float64))
    of_best = runs.join(best, on=SETTING, how="semi", nulls_equal=True).select("environment", "seed", best="value")
    pairs = runs.join(of_best, on=["environment", "seed"]).with_columns(value=pl.col("value") - pl.col("best"))
    pairs = _means(pairs, SETTING).select(*SETTING, "n", "low", "high")
    pairs = pairs.filter(pl.col("n") > 1).select(*SETTING, paired_low="low", paired_high="high")
    best = best.select("environment", first="score", best_low="low", best_high="high")
    table = table.join(best, on="environment", how="left").join(pairs, on=SETTING, how="left", nulls_equal=True)
    overlaps = (pl.col("low") <= pl.col("best_high")) & (pl.col("high") >= pl.col("best_low"))
    known = pl.col("high").is_finite() & pl.col("best_high").is_finite()
    within = (pl.col("paired_low") <= 0) & (pl.col("paired_high") >= 0)
    level = known & pl.when(pl.col("paired_low").is_not_null()).then(within).otherwise(overlaps)
    equal = (pl.col("score") >= pl.col("first") - 1e-12 * pl.col("first").abs()) & pl.col("score").is_finite()
    mark = pl.when(equal).then(pl.lit("best")).when(level).then(pl.lit("level")).otherwise(pl.lit(""))
    further = "row", "score", "first", "best_low", "best_high", "paired_low", "paired_high"
    return table.sort("row").with_columns(mark=mark).drop(*further)


def at_best(rows: pl.DataFrame, table: pl.DataFrame, *further: str) -> pl.DataFrame:
    """The rows of each method at its tuned λ and α."""
    rows = rows.join(table.filter("best_lam").select(SETTING), on=SETTING, how="semi", nulls_equal=True)
    return rows.select("environment", "method", "seed", *further, "value")


def scale(samples: pl.DataFrame, sign: int, zeros: dict[str, float] | None = None) -> pl.DataFrame:
    """What is 0 and what is 1 in each environment: the interquartile means of the worst and of the best method.

    Where `zeros` has the environment, such as the return of a random policy, that is 0. The scale is not resampled. Where all
    methods tie, but for rounding, there is nothing to scale by: its span is ∞, so that all scores are 0.
    """
    quarter = pl.len() // 4
    middle = pl.col("score").sort().slice(quarter, pl.len() - 2 * quarter).mean()  # trim_mean, for all at once
    means = _finite(samples, sign).group_by("environment", "method").agg(mean=middle)
    ends = means.group_by("environment").agg(worst=pl.col("mean").min(), best=pl.col("mean").max())
    known = {name: sign * value for name, value in (zeros or {}).items()}
    zero = pl.col("environment").replace_strict(known, default=None, return_dtype=pl.Float64)
    ends = ends.with_columns(zero=pl.when(zero < pl.col("best")).then(zero).otherwise("worst"))
    span, size = pl.col("best") - pl.col("zero"), pl.max_horizontal(pl.col("best").abs(), pl.col("zero").abs())
    return ends.select("environment", "zero", span=pl.when(span > TIED * size).then(span).otherwise(float("inf")))


def scores(samples: pl.DataFrame, sign: int, ends: pl.DataFrame) -> pl.DataFrame:
    """Add the column `score`, on the scale `ends`. A failed run counts as the worst run of its environment."""
    scaled = _finite(samples, sign).join(ends, on="environment", how="left")
    score = (pl.col("score") - pl.col("zero")) / pl.col("span")
    return scaled.with_columns(score=score.round(DIGITS)).drop("value", "zero", "span")


def _finite(samples: pl.DataFrame, sign: int) -> pl.DataFrame:
    """Add the column `score`: the value, higher if it is better, and the worst of the environment where it is not finite."""
    value = pl.col("value").cast(pl.Float64).fill_null(float("nan"))
    samples = samples.with_columns(score=pl.when(value.is_finite()).then(sign * value))
    return samples.with_columns(pl.col("score").fill_null(pl.col("score").min().over("environment")).fill_null(0.0))
