"""Records → what each figure shows, as plain lists. `study_page` draws them in a browser, `paper_figures` with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl

from offtrace._shared.number_text import number
from offtrace.reports.study import method_names, resampling, statistics

UNBIASED = 1e-6
RETURNS = ("return", "mean return")
RANDOM: dict[str, float] = {
    "minatar/asterix": 0.49,
    "minatar/breakout": 0.38,
    "minatar/freeway": 0.36,
    "minatar/seaquest": 0.10,
    "minatar/space-invaders": 4.04,
}
"""The mean return of uniformly random actions, with sticky actions of 0.1 and gymnax's limits; 256 copies × 6,000 steps.

`python benchmarks/random_policies.py` measures them."""
POINTS = 120  # of a learning curve: more cannot be distinguished

Facts = Mapping[str, Any]
"""What a study says of itself: `Study.facts`."""
Row = Mapping[str, Any]
"""A row of a table of records or statistics."""
T = TypeVar("T")


class Line(NamedTuple):
    """One method in one panel: y over x with its interval; `alpha` is a number, or one for each point."""

    method: str
    x: list[float]
    y: list[float | None]
    low: list[float | None]
    high: list[float | None]
    lam: float | None = None
    alpha: float | Sequence[float | None] | None = None
    age: float | None = None
    best: bool = True  # this λ is the method's own best
    level: bool = False  # a method without λ: the same at every x


class Grid(NamedTuple):
    """One method's values over λ (columns) and α (rows); `chosen[j]` is the row of column j's tuned α."""

    method: str
    lam: list[float]
    alpha: list[float]
    values: list[list[float | None]]
    chosen: list[int | None]


class Cloud(NamedTuple):
    """One method's contraction against its variance, a point for each λ."""

    method: str
    lam: list[float | None]
    x: list[float | None]
    y: list[float | None]
    lower: list[float | None]
    upper: list[float | None]
    bias: list[float | None]


class Views:
    """What the page and the paper show of a study: its `summary`, and one attribute for each kind of figure.

    `learning`, `sweeps`, `ages`, `tradeoff` and `heat` are dictionaries from an environment to its panel, `aged` is one from
    what is shown over all environments; one that the study has nothing for is empty. `best` is the table of the summary with each
    method at its best λ only, marked again.
    """

    def __init__(self, rows: pl.DataFrame, curves: pl.DataFrame, facts: Facts, folder: Path | None = None) -> None:
        self.facts, self.folder = facts, folder or Path()
        self.rows = len(rows)
        self.declared = statistics.in_natural_order(rows["environment"].unique().to_list())
        names = titles(self.declared)
        rows, curves = (frame.with_columns(pl.col("environment").replace(names)) for frame in (rows, curves))
        zeros = {
            names[name]: RANDOM[name] for name in self.declared if name in RANDOM and facts.get("metric") in RETURNS
        }
        self.summary = statistics.summarise(rows, facts.get("better", "higher"), zeros=zeros or None)
        self.at_each_age = resampling.at_each_age(self.summary.each_age, self.summary.methods, self.summary.baseline)
        self.best = statistics.marked(self.summary.table.filter("best_lam"), self.summary.runs, self.summary.better)
        self._place = {name: i for i, name in enumerate([*self.summary.environments, *self.summary.methods])}
        self.sweeps = self._sweeps()
        self.heat = self._heat()
        self.learning = self._learning(curves)
        self.ages = self._ages()
        self.aged = self._aged()
        self.tradeoff = self._tradeoff(rows)

    @property
    def ages_apart(self) -> bool:
        """Whether ages are so far apart that an axis of them should be logarithmic."""
        ages = self.summary.configurations["age"].drop_nulls()
        return len(ages) > 0 and 0 < 20 * float(ages.min()) <= 2.5 * float(ages.max())  # pyright: ignore[reportArgumentType]

    def cells(self, cell: Callable[[Row], T], none: T) -> dict[str, list[T]]:
        """For each method what `cell` makes of its row of `best` in each environment; `none` where it has no row there."""
        rows = {(row["method"], row["environment"]): row for row in self.best.iter_rows(named=True)}
        drawn = {place: cell(row) for place, row in rows.items()}
        return {m: [drawn.get((m, name), none) for name in self.summary.environments] for m in self.summary.methods}

    def _panels(self, frame: pl.DataFrame, line: Callable[[str, pl.DataFrame], T | list[T]]) -> dict[str, list[T]]:
        """`line(method, part)` for each environment and method, in their order; what it leaves out is None."""
        panels: dict[str, list[T]] = {}
        parts = {
            (str(e), str(m)): part for (e, m), part in frame.group_by("environment", "method", maintain_order=True)
        }
        for environment, method in sorted(parts, key=lambda key: [self._place[name] for name in key]):
            drawn = line(method, parts[environment, method])
            if drawn:
                panels.setdefault(environment, []).extend(drawn if isinstance(drawn, list) else [drawn])
        return panels

    def _sweeps(self) -> dict[str, list[Line]]:
        """The final phase over λ, each at its tuned α. Nothing where no method has two λ's."""

        def line(method: str, part: pl.DataFrame) -> Line:
            whole = part["lam"].null_count() == len(part)
            part = part if whole else part.drop_nulls("lam").sort("lam")
            x = [0.0] if whole else part["lam"].to_list()
            return Line(method, x, *_bands(part), alpha=_clean(part["alpha"]), level=whole)

        panels = self._panels(self.summary.table, line)
        several = any(len(line.x) > 1 for lines in panels.values() for line in lines)
        return panels if several else {}

    def _heat(self) -> dict[str, list[Grid]]:
        """Means of the tuning phase (or the final one, if it alone has several α's) over λ and α."""
        cells = self.summary.configurations.drop_nulls(["lam", "alpha"])
        for phase in ("tuning", self.summary.final):
            shown = cells.filter(pl.col("phase") == phase)
            if shown["alpha"].n_unique() > 1:
                break
        else:
            return {}
        shown = shown.group_by("environment", "method", "lam", "alpha").agg(pl.col("mean").mean())  # over ages
        tuned = self.summary.table.select("environment", "method", "lam", tuned="alpha")
        shown = shown.join(tuned, on=["environment", "method", "lam"], how="left")

        def grid(method: str, part: pl.DataFrame) -> Grid:
            lam, alpha = (sorted(part[name].unique().to_list()) for name in ("lam", "alpha"))
            row_of, column_of = ({x: i for i, x in enumerate(axis)} for axis in (alpha, lam))
            values: list[list[float | None]] = [[None] * len(lam) for _ in alpha]
            chosen: list[int | None] = [None] * len(lam)
            for row in part.iter_rows(named=True):
                i, j = row_of[row["alpha"]], column_of[row["lam"]]
                values[i][j] = row["mean"] if np.isfinite(row["mean"]) else None
                if row["alpha"] == row["tuned"]:
                    chosen[j] = i
            return Grid(method, lam, alpha, values, chosen)

        return self._panels(shown, grid)

    def _learning(self, curves: pl.DataFrame) -> dict[str, list[Line]]:
        """The curves of the final phase at each tuned α, one for each λ and age; thinned to `POINTS` steps."""
        if curves.is_empty():
            return {}
        curves = method_names.with_methods(curves.filter(pl.col("phase") == self.summary.final))
        curves = statistics.curves_over_seeds(curves)
        best = self.summary.table.select("environment", "method", "lam", "best_lam")
        curves = curves.join(self.summary.chosen, on=statistics.KEYS, how="semi", nulls_equal=True)
        curves = curves.join(best, on=["environment", "method", "lam"], how="inner", nulls_equal=True)
        curves = curves.sort(*statistics.KEYS, "step")

        def lines(method: str, part: pl.DataFrame) -> list[Line]:
            of_method = []
            for _, one in part.group_by("lam", "age", maintain_order=True):
                one = one[np.unique(np.linspace(0, len(one) - 1, min(len(one), POINTS)).round().astype(int)).tolist()]
                first = one.row(0, named=True)
                about = {name: first[name] for name in ("lam", "alpha", "age")} | {"best": first["best_lam"]}
                of_method.append(Line(method, one["step"].to_list(), *_bands(one), **about))
            return of_method

        return self._panels(curves, lines)

    def _ages(self) -> dict[str, list[Line]]:
        """The final phase over the age of the data, if it has two, each method at its tuned λ, and at the tuned α of each age."""
        best = self.summary.table.filter("best_lam").select("environment", "method", "lam")
        cells = self.summary.configurations.filter(pl.col("phase") == self.summary.final).drop_nulls("age")
        if cells["age"].n_unique() < 2:
            return {}
        cells = cells.join(self.summary.chosen, on=statistics.KEYS, how="semi", nulls_equal=True)
        cells = cells.join(best, on=["environment", "method", "lam"], how="semi", nulls_equal=True).sort("age")

        def line(method: str, part: pl.DataFrame) -> Line:
            return Line(method, part["age"].to_list(), *_bands(part), lam=part["lam"][0], alpha=_clean(part["alpha"]))

        return self._panels(cells, line)

    def _aged(self) -> dict[str, list[Line]]:
        """Over all environments and the age of the data: interquartile means, and what they are less that of the baseline."""
        less = f"Difference to {self.summary.baseline}"
        panels = {
            "Interquartile mean": ("iqm", "low", "high"),
            less: ("difference", "difference_low", "difference_high"),
        }
        lines: dict[str, list[Line]] = {}
        for title, names in panels.items():
            for method in self.summary.methods:
                part = self.at_each_age.filter(pl.col("method") == method).drop_nulls(names[0])
                if len(part):
                    y, low, high = (_clean(part[name]) for name in names)
                    lines.setdefault(title, []).append(Line(method, part["age"].to_list(), y, low, high))
        return lines

    def edges(self, name: str = "alpha") -> pl.DataFrame:
        """The settings with more than two values of α (or λ), and whether the tuned one is the smallest or largest: `edge`.

        0 and 1 are no edges for λ, which cannot lie beyond them.
        """
        table, places = self.summary.table.drop_nulls(name), ["environment", "method"]
        source = table if name == "lam" else self.summary.configurations.drop_nulls(name)
        tried = source.group_by(places).agg(
            least=pl.col(name).min(), most=pl.col(name).max(), several=pl.col(name).n_unique()
        )
        edge = (pl.col(name) == pl.col("least")) | (pl.col(name) == pl.col("most"))
        if name == "lam":
            table, edge = table.filter("best_lam"), edge & ~pl.col(name).is_in([0.0, 1.0])
        table = table.join(tried, on=places).filter(pl.col("several") > 2)
        return table.select(*places, "lam", "alpha", edge=edge)

    def falls(self) -> dict[str, float]:
        """Methods that are behind the baseline at the same λ from some λ on in every environment, and that λ.

        The intervals of both do not overlap there. A method that is behind at every λ is left out.
        """
        behind_at: dict[str, set[float]] = {}
        for lines in self.sweeps.values():
            base = next((line for line in lines if line.method == self.summary.baseline and not line.level), None)
            for line in lines:
                if base is None or line.level or line is base or line.x != base.x:
                    continue
                behind = [_behind(line, base, i, self.summary.better) for i in range(len(line.x))]
                start = next((i + 1 for i in reversed(range(len(behind))) if not behind[i]), 0)
                later = set(line.x[start:]) if start else set()
                behind_at[line.method] = behind_at.get(line.method, later) & later
        return {method: min(lams) for method, lams in behind_at.items() if lams}

    def _tradeoff(self, rows: pl.DataFrame) -> dict[str, list[Cloud]]:
        """Mean contraction and variance over λ. The contraction is the middle of its guaranteed interval."""
        if "variance" not in rows.columns or rows["variance"].null_count() == len(rows):
            return {}
        shown = method_names.with_methods(rows.drop_nulls(["variance", "contraction_upper"]))
        names = ("contraction_lower", "contraction_upper", "variance", "bias")
        shown = shown.group_by("environment", "method", "lam").agg(pl.col(name).mean() for name in names).sort("lam")

        def cloud(method: str, part: pl.DataFrame) -> Cloud:
            lower, upper, variance, bias = (_clean(part[name]) for name in names)
            middle = _clean((part["contraction_lower"] + part["contraction_upper"]) / 2)
            return Cloud(method, _clean(part["lam"]), middle, variance, lower, upper, bias)

        return self._panels(shown, cloud)

    def points(self, environment: str) -> list[tuple[float, float, str, float | None, bool]]:
        """Contraction, variance, method, λ, and whether it is biased: whether it ends elsewhere than at Q^π."""
        return [
            (x, y, cloud.method, lam, bias is not None and bias > UNBIASED)
            for cloud in self.tradeoff[environment]
            for x, y, lam, bias in zip(cloud.x, cloud.y, cloud.lam, cloud.bias, strict=True)
            if x is not None and y is not None
        ]

    def front(self, environment: str) -> list[tuple[str, float | None]]:
        """The unbiased (method, λ) that no other one beats in contraction and in variance at once, fastest first."""
        points = [(x, y, method, lam) for x, y, method, lam, bias in self.points(environment) if not bias]
        points.sort(key=lambda point: point[:2])
        kept, least = [], float("inf")
        for _, y, method, lam in points:
            if y < least:
                kept.append((method, lam))
                least = y
        return kept


def titles(environments: list[str]) -> dict[str, str]:
    """Names for people: `garnet:states=5,gamma=0.9` is Garnet, with those of its parameters that tell it from the others."""
    parts = {name: name.partition(":")[::2] for name in environments}
    given = {
        name: [tuple(one.partition("=")[::2]) for one in text.split(",") if one] for name, (_, text) in parts.items()
    }
    titles_of = {}
    for name, (kind, _) in parts.items():
        like = [given[other] for other in environments if parts[other][0] == kind]
        differing = [(key, value) for key, value in given[name] if any((key, value) not in other for other in like)]
        told = ", ".join(f"{key} {value}".strip() for key, value in differing)
        kind = kind.rpartition("/")[2]  # a game's name is enough
        title = kind.replace("-", " ") if kind == kind.lower() else kind
        titles_of[name] = title[:1].upper() + title[1:] + (f" ({told})" if told else "")
    unique = len(set(titles_of.values())) == len(titles_of)
    return titles_of if unique else {name: name for name in environments}


def mean_and_half(row: Row) -> tuple[str, str]:
    """A mean and half of its 95% interval, as texts with the same decimals."""
    half = (row["high"] - row["low"]) / 2
    return number(row["mean"], half), number(half, half)


def _behind(line: Line, base: Line, i: int, better: int) -> bool:
    """Whether a line is worse than another at its i-th point, beyond both intervals; one that failed is."""
    if line.y[i] is None:
        return base.y[i] is not None
    own, other = (line.high[i], base.low[i]) if better > 0 else (line.low[i], base.high[i])
    return own is not None and other is not None and better * (own - other) < 0


def _bands(part: pl.DataFrame) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """Mean, low and high; what is not finite is None."""
    return _clean(part["mean"]), _clean(part["low"]), _clean(part["high"])


def _clean(series: pl.Series) -> list[float | None]:
    return [None if x is None or not np.isfinite(x) else float(x) for x in series.to_list()]
