"""What methods are called, in which order they stand, and which colour each has, in all reports."""

from __future__ import annotations

import json
import math
from itertools import count

import polars as pl

from offtrace.traces import rules


def looks() -> dict[str, int]:
    """The places of those rules that have one (`Rule.look`): they keep one order, and so one colour, in all reports."""
    places = {rule.title: rule.look for rule in rules() if rule.look is not None}
    return dict(sorted(places.items(), key=lambda place: place[1]))


def with_methods(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with a column `method`: the label if there is one, else the title, with the parameters if several have that."""
    rows = rows.with_columns(pl.col("parameters").fill_null(""))
    kinds = rows.select("trace", "parameters").unique()
    several = kinds["trace"].value_counts().filter(pl.col("count") > 1)["trace"].to_list()
    names = [
        _label(parameters) or (f"{trace} ({_spelled(parameters)})" if trace in several and parameters else trace)
        for trace, parameters in kinds.iter_rows()
    ]
    return rows.join(
        kinds.with_columns(method=pl.Series(names, dtype=pl.String)), on=["trace", "parameters"], how="left"
    )


def in_order(methods: list[str]) -> list[str]:
    """Known traces first, in their fixed order, then the others by name."""
    known = looks()

    def place(method: str) -> tuple[float, str]:
        places = [look for title, look in known.items() if method == title or method.startswith(f"{title} (")]
        return (places[0] if places else math.inf, method)

    return sorted(methods, key=place)


def styles(methods: list[str]) -> list[int]:
    """A number for the colour, dash and marker of each method: known traces have their own, the others take what is free."""
    known = looks()
    fixed = {method: known[method] for method in methods if method in known}
    free = (i for i in count() if i not in fixed.values())
    return [fixed[method] if method in fixed else next(free) for method in methods]


def _label(parameters: str) -> str | None:
    """The name that a declaration has given, if it has."""
    try:
        return json.loads(parameters).get("label")
    except (ValueError, AttributeError):
        return None


def _spelled(parameters: str) -> str:
    """`{"bound": 2.0}` as `bound = 2`; what is no JSON object stays as it is."""
    try:
        return ", ".join(f"{name} = {_short(value)}" for name, value in json.loads(parameters).items())
    except (ValueError, AttributeError):
        return parameters


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
