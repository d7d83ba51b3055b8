"""The columns of a table as the integers and floats that `assembly` checks: polars converts them, in one pass over the source.

What cannot be converted becomes MISSING, UNKNOWN, NaN or NO_FLAG, and is named by the checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offtrace._shared.suggestions import did_you_mean
from offtrace.logs.reading.assembly import Rows
from offtrace.logs.reading.columns import CONTINUOUS, MISSING, NO_FLAG, NUMBERS, UNKNOWN, Columns, Names
from offtrace.logs.reading.problems import LogsError
from offtrace.logs.reading.tables import Table, pl

EPOCH = 10**8
"""Steps from here on are seconds (or less) since 1970: no episode has so many."""
EXACT = {"Float16": 2**11, "Float32": 2**24, "Float64": 2**53}
"""Below this, a float is one integer."""


class Conversion:
    """How each column is converted: looks at the types, and at all names where ids are strings."""

    def __init__(self, table: Table, columns: Columns, states: Names, actions: Names) -> None:
        self.table, self.columns, self.given = table, columns, (states, actions)
        self.frame = table.frame
        self.schema = table.frame.collect_schema()
        self.hints: dict[str, str] = {}
        self.never: dict[str, list[int | str]] = {}
        there = self.schema.names()
        self.episodes: Names = None
        if columns.episode is None:
            self._episode = pl.int_range(pl.len(), dtype=pl.Int64)
        else:
            (self._episode,), self.episodes = self._ids("episode", [columns.episode], None)
        self.timed = columns.episode is not None and columns.step is not None and self._is_time(columns.step)
        self._step = None
        if columns.step is not None and columns.episode is not None:
            self._step = self._time(columns.step) if self.timed else self._whole("step", columns.step)
        self._single: dict[str, pl.Expr] = {"reward": self._number("reward", columns.reward)}
        for what, column in (("terminated", columns.terminated), ("truncated", columns.truncated)):
            if column is not None and column in there:
                self._single[what] = self._flag(what, column)
        if columns.behaviour is not None:
            self._single["mu"] = self._number("mu" if columns.mu else "log_mu", columns.behaviour)
        if columns.log_pi is not None:
            self._single["log_pi"] = self._number("log_pi", columns.log_pi)
        self._several: dict[str, list[pl.Expr]] = {}
        self.actions = actions
        if isinstance(columns.action, tuple) or actions == NUMBERS or self._is_list(columns.action):
            self._several["action"] = self._real_actions(columns.action, actions)
            self.actions = NUMBERS
        else:
            (self._single["action"],), self.actions = self._ids("action", [columns.action], actions)
        if columns.log_pi is not None and self.actions != NUMBERS:
            raise ValueError(
                f"log_pi={columns.log_pi!r} is declared, but actions are ids: there the target policy is a table or a "
                f'function. If they are real numbers, say actions="{CONTINUOUS}"'
            )
        self.states = states
        named = {"state": columns.state, "next_state": columns.next_state}
        present = {name: column for name, column in named.items() if column is not None}
        given_ids = states is not None and isinstance(columns.state, str) and self.schema[columns.state].is_float()
        if isinstance(columns.state, str) and (self._is_id(columns.state) or given_ids):
            ids, self.states = self._ids("state", [str(column) for column in present.values()], states)
            self._single |= dict(zip(present, ids, strict=True))
        else:
            features = {name: self._features(name, column) for name, column in present.items()}
            self._several |= features
            if len({len(each) for each in features.values()}) > 1:
                wide = {name: len(each) for name, each in features.items()}
                raise ValueError(f"state and next_state have different numbers of features: {wide}")

    def rows(self, cut_at_end: bool) -> Rows:
        """All rows, sorted."""
        several = {f"{name} {i}": one for name, each in self._several.items() for i, one in enumerate(each)}
        order = {"episode": self._episode} | ({} if self._step is None else {"step": self._step})
        keep = {f"keep {name}": pl.col(name) for name in self.columns.keep}
        frame = self.frame.select(**order, **self._single, **several, **keep).collect(engine="streaming")
        number = None
        keys = [frame[name].to_numpy() for name in order]
        if not _is_sorted(*keys):
            number = np.lexsort(keys[::-1])  # polars takes six times as long to sort by two columns
            frame = frame[pl.Series(number)]
        values = {name: frame[name].to_numpy() for name in self._single}
        for name, each in self._several.items():
            values[name] = frame.select([f"{name} {i}" for i in range(len(each))]).to_numpy(order="c")
        episode = frame["episode"].to_numpy()
        if self.columns.episode is None and "terminated" not in values:
            values["terminated"] = np.ones(len(episode), np.uint8)
        return Rows(
            how=self,
            episode=episode,
            step=None if self._step is None else frame["step"].to_numpy(),
            values=values,
            number=number,
            keep={name: frame[f"keep {name}"].to_numpy() for name in self.columns.keep},
            cut_at_end=cut_at_end,
        )

    def _ids(self, what: str, columns: Sequence[str], given: Names) -> tuple[list[pl.Expr], Names]:
        """Integers as they are; others by their place among all names, or among those that are given."""
        if any(map(self._is_text, columns)):  # if one column of states is, the other's numbers are names too
            return self._ids_by_name(what, columns, given, pl.String)
        if isinstance(given, tuple) and isinstance(given[0], str):
            raise TypeError(f"{what}s={given!r} are strings, but column {columns[0]!r} holds {self.schema[columns[0]]}")
        if any(map(self._is_wide, columns)):
            return self._ids_by_name(what, columns, given, pl.Int128)
        for column in columns:
            if given is None and self.schema[column].is_float():
                self._require_exact(what, column)
        ids = [self._whole(what, column) for column in columns]
        if isinstance(given, tuple):
            places = _places(ids, pl.Series(given))
            ids = [pl.when(a == MISSING).then(MISSING).otherwise(b) for a, b in zip(ids, places, strict=True)]
        return ids, given

    def _ids_by_name(
        self, what: str, columns: Sequence[str], given: Names, kind: type[pl.DataType]
    ) -> tuple[list[pl.Expr], Names]:
        """Strings, or integers of any size, by their place among the names."""
        text = kind == pl.String
        if isinstance(given, int):
            they = "they are strings" if text else "there are integers of 2^63 and more"
            raise TypeError(f"{what}s={given} is a number, but {they}: give their names in the order of their ids")
        if text and given is not None and not any(isinstance(name, str) for name in given):
            raise TypeError(f"{what}s={given!r} are integers, but column {columns[0]!r} holds strings")
        values = [pl.col(column).cast(kind) for column in columns]
        parts = [self.frame.select(each.alias("name")) for each in values]
        there = pl.concat(parts).unique().drop_nulls().collect()["name"].sort().to_list()
        names = tuple(there if given is None else map(str, given) if text else given)
        unknown = [name for name in there if name not in set(names)]
        if given is not None:
            self.never[what] = [name for name in names if name not in set(there)]
        if unknown:
            said = [f"{name!r}{did_you_mean(str(name), list(map(str, names)))}" for name in unknown[:3]]
            self.hints[what] = f": {'; '.join(said)}" + (" and others" if len(unknown) > 3 else "")
        places = _places(values, pl.Series(names, dtype=kind))
        return [pl.when(a.is_null()).then(MISSING).otherwise(b) for a, b in zip(values, places, strict=True)], names

    def _is_wide(self, column: str) -> bool:
        """Whether it holds integers that int64 does not, as hashes of 64 bits do."""
        if self.schema[column] not in (pl.UInt64, pl.Int128, pl.UInt128):
            return False
        low, high = self.frame.select(low=pl.col(column).min(), high=pl.col(column).max()).collect().row(0)
        return low is not None and not (low > UNKNOWN and high < -MISSING)

    def _is_time(self, column: str) -> bool:
        """Whether a column of steps holds times: dates, strings, or numbers as large as seconds since 1970."""
        kind = self.schema[column]
        if kind.is_temporal() or self._is_text(column):
            return True
        if not kind.is_numeric():
            return False
        least = self.frame.select(pl.col(column).min()).collect().item()
        return least is not None and least >= EPOCH

    def _time(self, column: str) -> pl.Expr:
        """Times as integers, in order; what is no time is missing."""
        kind, value = self.schema[column], pl.col(column)
        if self._is_text(column):
            value, kind = value.cast(pl.String).str.to_datetime(strict=False, time_unit="us"), pl.Datetime("us")
        if kind.is_float():
            value = (value * 1e6).round()
        return value.cast(pl.Int64, strict=False).fill_null(MISSING)

    def _is_text(self, column: str) -> bool:
        return self.schema[column] in (pl.String, pl.Categorical, pl.Enum)

    def _is_id(self, column: str) -> bool:
        return self._is_text(column) or self.schema[column].is_integer() or self.schema[column] == pl.Boolean

    def _is_list(self, column: str) -> bool:
        return self.schema[column] in (pl.List, pl.Array)

    def _whole(self, what: str, column: str) -> pl.Expr:
        """Floats too, if they hold whole numbers: pandas makes them of integers among which one is missing."""
        kind, value = self.schema[column], pl.col(column)
        if kind.is_float():
            value = pl.when(value == value.floor()).then(value)
        elif not (kind.is_integer() or kind == pl.Boolean):
            wanted = "integers" if what == "step" else "integers or strings"
            raise TypeError(f"{what} must be {wanted}, but column {column!r} holds {kind}")
        return value.cast(pl.Int64, strict=False).fill_null(MISSING)

    def _require_exact(self, what: str, column: str) -> None:
        """Two large integers may be one float: then it is not known which is meant."""
        kind, value = self.schema[column], pl.col(column).abs()
        largest, most = self.frame.select(value.filter(value.is_finite()).max()).collect().item(), EXACT[str(kind)]
        if largest is not None and largest >= most:
            raise LogsError(
                f"{what}: column {column!r} holds {kind} up to {largest:g}, and from {most:,} on two integers may be one float, "
                f"so that two {what}s may have become one. Store them as integers or strings (pandas makes floats of "
                'integers among which one is missing; its dtypes "UInt64" and "Int64" do not)'
            )

    def _number(self, what: str, column: str) -> pl.Expr:
        kind = self.schema[column]
        if not (kind.is_numeric() or kind in (pl.Boolean, pl.Null)):
            raise TypeError(f"{what} must be numbers, but column {column!r} holds {kind}{self._such_as(column)}")
        return pl.col(column).cast(pl.Float64).fill_null(np.nan)

    def _such_as(self, column: str) -> str:
        """The first text of a column that should hold numbers, and what may be done about it."""
        if not self._is_text(column):
            return ""
        text = self.frame.select(pl.col(column).cast(pl.String))
        odd = text.filter(pl.col(column).str.strip_chars().cast(pl.Float64, strict=False).is_null())
        first: Any = odd.drop_nulls().head(1).collect().to_series()
        if not len(first):
            return ": cast it to float first, as with pl.col(…).cast(float) in polars"
        hint = ""
        if any(sign in first[0] for sign in "$€£¥%,"):
            hint = (
                ": take the signs of currency, percent and thousands away first, as with "
                '.str.replace_all("[$€£¥%,]", "").cast(float) in polars'
            )
        return f", such as {first[0]!r}{hint}"

    def _flag(self, what: str, column: str) -> pl.Expr:
        kind, value = self.schema[column], pl.col(column)
        if kind.is_integer():
            value = pl.when(value.is_in([0, 1])).then(value)
        elif kind != pl.Boolean:
            hint = ": .astype(int) in pandas and .cast(int) in polars make integers of them" if kind.is_float() else ""
            raise TypeError(
                f"{what} must be booleans, or the integers 0 and 1, but column {column!r} holds {kind}{hint}"
            )
        return value.cast(pl.UInt8).fill_null(NO_FLAG)

    def _real_actions(self, columns: str | tuple[str, ...], actions: Names) -> list[pl.Expr]:
        if actions not in (None, NUMBERS):
            raise TypeError(
                f"action is declared as {columns!r}, which holds real numbers, but actions={actions!r} are ids: leave out "
                f'actions=…, or say actions="{CONTINUOUS}". A policy that is a table [S, A] needs actions that are ids'
            )
        return self._features("action", columns)

    def _features(self, what: str, columns: str | tuple[str, ...]) -> list[pl.Expr]:
        """Numbers of several columns, or of one column of lists; a list that is too short lacks its last ones."""
        if isinstance(columns, tuple):
            return [self._number(what, column) for column in columns]
        kind = self.schema[columns]
        if kind not in (pl.List, pl.Array):
            return [self._number(what, columns)]
        value = pl.col(columns) if kind == pl.List else pl.col(columns).arr.to_list()
        width = self.frame.select(value.list.len().max()).collect().item()
        if not (kind.inner.is_numeric() and width):  # pyright: ignore[reportAttributeAccessIssue]
            raise TypeError(f"{what} must be lists of numbers, but column {columns!r} holds {kind} of length {width}")
        return [value.list.get(i, null_on_oob=True).cast(pl.Float64).fill_null(np.nan) for i in range(width)]


def _places(values: Sequence[pl.Expr], names: pl.Series) -> list[pl.Expr]:
    """The place of each value among the names; UNKNOWN where it is none of them."""
    ids = pl.Series(range(len(names)), dtype=pl.Int64)
    return [each.replace_strict(names, ids, default=UNKNOWN, return_dtype=pl.Int64) for each in values]


def _is_sorted(episode: np.ndarray, step: np.ndarray | None = None) -> bool:
    """Whether rows are sorted by (episode, step)."""
    if (episode[1:] < episode[:-1]).any():
        return False
    return step is None or not ((step[1:] < step[:-1]) & (episode[1:] == episode[:-1])).any()
