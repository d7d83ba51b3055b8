"""The columns of a table in the form that `filling` wants, batch after batch.

Polars reads and converts, streaming, on all cores. What cannot be converted becomes MISSING, UNKNOWN, NaN or NO_FLAG, and is
found by the checks. Each pass over the source scans only the columns that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.suggestions import did_you_mean
from offtrace.logs.reading.columns import CONTINUOUS, MISSING, NO_FLAG, NUMBERS, UNKNOWN, Columns, Names
from offtrace.logs.reading.polars_tables import Table, polars
from offtrace.logs.reading.problems import LogsError

if TYPE_CHECKING:
    import polars as pl

BATCH = 1 << 17
"""At most so many rows at a time: a few megabytes, which a cache may hold."""
EPOCH = 10**8
"""Steps from here on are seconds (or less) since 1970: no episode has so many."""
EXACT = {"Float16": 2**11, "Float32": 2**24, "Float64": 2**53}
"""Below this, a float is one integer."""


class Conversion:
    """How each column is converted: looks at the types, and at all names where ids are strings."""

    def __init__(self, table: Table, columns: Columns, has_truncated: bool, states: Names, actions: Names) -> None:
        self.frame = table.frame
        self.schema = table.frame.collect_schema()
        self.hints: dict[str, str] = {}
        """For states and actions that were given by name: which names of the source are none of them, in words."""
        self.never: dict[str, list[str]] = {}
        """And which of them the source does not have."""
        (self._episode,), self.episodes = self._ids("episode", [columns.episode], None)
        self.timed = columns.step is not None and self._is_time(columns.step)
        """Whether steps are times, which order the rows of an episode, and have gaps."""
        self._step = None
        if columns.step is not None:
            self._step = self._time(columns.step) if self.timed else self._whole("step", columns.step)
        self._single: dict[str, pl.Expr] = {"reward": self._number("reward", columns.reward)}
        if columns.terminated is not None:
            self._single["terminated"] = self._flag("terminated", columns.terminated)
        if has_truncated and columns.truncated is not None:
            self._single["truncated"] = self._flag("truncated", columns.truncated)
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
        self.states = states
        given = {"state": columns.state, "next_state": columns.next_state}
        present = {name: column for name, column in given.items() if column is not None}
        given_ids = states is not None and isinstance(columns.state, str) and self.schema[columns.state].is_float()
        if isinstance(columns.state, str) and (self._is_id(columns.state) or given_ids):
            made, self.states = self._ids("state", [str(column) for column in present.values()], states)
            self._single |= dict(zip(present, made, strict=True))
        else:
            made = {name: self._features(name, column) for name, column in present.items()}
            self._several |= made
            if len({len(each) for each in made.values()}) > 1:
                wide = {name: len(each) for name, each in made.items()}
                raise ValueError(f"state and next_state have different numbers of features: {wide}")

    @property
    def features(self) -> int:
        """The number of features of a state; 0 where states are ids."""
        return len(self._several.get("state", ()))

    @property
    def numbers(self) -> int:
        """The number of numbers that an action has; 0 where actions are ids."""
        return len(self._several.get("action", ()))

    def episode_name(self, code: int) -> str:
        """The name of an episode in the source, from its code."""
        if code == MISSING:
            return "missing"
        return repr(self.episodes[code]) if isinstance(self.episodes, tuple) else str(code)

    def order(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Batches of (episode, step)."""
        columns = {"episode": self._episode} | ({} if self._step is None else {"step": self._step})
        for batch in self._batches(columns):
            yield batch["episode"].to_numpy(), None if self._step is None else batch["step"].to_numpy()

    def rows(self) -> Iterator[dict[str, np.ndarray]]:
        """The other columns, in batches of rows. The features of a batch lie where those of the next one will."""
        columns = {f"{name} {i}": one for name, each in self._several.items() for i, one in enumerate(each)}
        room: dict[str, np.ndarray] = {}
        for batch in self._batches({**self._single, **columns}):
            made = {name: batch[name].to_numpy() for name in self._single}
            for name, each in self._several.items():
                if len(room.get(name, ())) < len(batch):  # new memory for each batch costs more than the copy
                    room[name] = np.empty((len(batch), len(each)))
                made[name] = room[name][: len(batch)]
                for i in range(len(each)):
                    made[name][:, i] = batch[f"{name} {i}"].to_numpy()
            yield made

    def _batches(self, columns: dict[str, pl.Expr]) -> Iterator[pl.DataFrame]:
        """Pieces as the source has them, which need no copy; larger ones are cut, and small ones joined."""
        held: list[pl.DataFrame] = []
        for piece in self.frame.select(**columns).collect_batches(engine="streaming"):
            for part in piece.iter_slices(BATCH):
                held.append(part)
                if sum(map(len, held)) > BATCH // 2:
                    yield polars().concat(held)
                    held = []
        if held:
            yield polars().concat(held)

    def _ids(self, what: str, columns: Sequence[str], given: Names) -> tuple[list[pl.Expr], Names]:
        """Integers as they are; strings by their place among all names, or among those that are given."""
        pl = polars()
        text = [self._is_text(column) for column in columns]
        if len(set(text)) > 1:
            kinds = {column: str(self.schema[column]) for column in columns}
            raise TypeError(f"{what} must be integers or strings in all its columns, got {kinds}")
        if not text[0]:
            if isinstance(given, tuple) and isinstance(given[0], str):
                raise TypeError(
                    f"{what}s={given!r} are strings, but column {columns[0]!r} holds {self.schema[columns[0]]}"
                )
            if any(map(self._is_wide, columns)):
                return self._wide_ids(what, columns, given)
            for column in columns:
                if given is None and self.schema[column].is_float():
                    self._require_exact(what, column)
            made = [self._whole(what, column) for column in columns]
            if isinstance(given, tuple):
                ids = list(range(len(given)))
                coded = [each.replace_strict(given, ids, default=UNKNOWN, return_dtype=pl.Int64) for each in made]
                made = [pl.when(a == MISSING).then(MISSING).otherwise(b) for a, b in zip(made, coded, strict=True)]
            return made, given
        if isinstance(given, int):
            raise TypeError(
                f"{what}s={given} is a number, but they are strings: give their names in the order of their ids"
            )
        if given is None:
            parts = [self.frame.select(pl.col(column).cast(pl.String).alias("name")) for column in columns]
            given = tuple(pl.concat(parts).unique().drop_nulls().collect()["name"].sort())
        else:
            self._compare(what, columns, given)
        names = tuple(name for name in given if isinstance(name, str))
        if len(names) < len(given):
            raise TypeError(f"{what}s={given!r} are integers, but column {columns[0]!r} holds strings")
        return [self._coded(column, names) for column in columns], names

    def _compare(self, what: str, columns: Sequence[str], given: tuple[int | str, ...]) -> None:
        """Which names of the source were not given, with those that may have been meant, and which given ones it lacks."""
        pl = polars()
        parts = [self.frame.select(pl.col(column).cast(pl.String).alias("name")) for column in columns]
        there = set(pl.concat(parts).unique().drop_nulls().collect()["name"])
        names = [name for name in given if isinstance(name, str)]
        unknown = sorted(there - set(names))
        self.never[what] = [name for name in names if name not in there]
        if unknown:
            said = [f"{name!r}{did_you_mean(name, names)}" for name in unknown[:3]]
            self.hints[what] = f": {'; '.join(said)}" + (" and others" if len(unknown) > 3 else "")

    def _is_time(self, column: str) -> bool:
        """Whether a column of steps holds times: dates, strings, or numbers as large as seconds since 1970."""
        pl = polars()
        kind = self.schema[column]
        if kind.is_temporal() or self._is_text(column):
            return True
        if not kind.is_numeric():
            return False
        first = self.frame.select(pl.col(column).first()).collect().item()
        if first is not None and first < EPOCH:  # so is the least, and not all rows need be read
            return False
        least = self.frame.select(pl.col(column).min()).collect().item()
        return least is not None and least >= EPOCH

    def _time(self, column: str) -> pl.Expr:
        """Times as integers, in order; what is no time is missing."""
        pl = polars()
        kind, value = self.schema[column], pl.col(column)
        if self._is_text(column):
            value, kind = value.cast(pl.String).str.to_datetime(strict=False, time_unit="us"), pl.Datetime("us")
        if kind.is_float():
            value = (value * 1e6).round()
        return value.cast(pl.Int64, strict=False).fill_null(MISSING)

    def _is_wide(self, column: str) -> bool:
        """Whether it holds integers that int64 does not, as hashes of 64 bits do."""
        pl = polars()
        if self.schema[column] not in (pl.UInt64, pl.Int128, pl.UInt128):
            return False
        low, high = self.frame.select(low=pl.col(column).min(), high=pl.col(column).max()).collect().row(0)
        return low is not None and not (low > UNKNOWN and high < -MISSING)

    def _wide_ids(self, what: str, columns: Sequence[str], given: Names) -> tuple[list[pl.Expr], Names]:
        """Integers of any size by their place among all of them, or among those that are given."""
        pl = polars()
        if isinstance(given, int):
            raise TypeError(f"{what}s={given} is a number, but there are integers of 2^63 and more: give their names")
        wide = [pl.col(column).cast(pl.Int128) for column in columns]
        if given is None:
            parts = [self.frame.select(each.alias("id")) for each in wide]
            given = tuple(pl.concat(parts).unique().drop_nulls().collect()["id"].sort().to_list())
        known, ids = pl.Series(given, dtype=pl.Int128), pl.Series(range(len(given)), dtype=pl.Int64)
        coded = [each.replace_strict(known, ids, default=UNKNOWN, return_dtype=pl.Int64) for each in wide]
        return [pl.when(a.is_null()).then(MISSING).otherwise(b) for a, b in zip(wide, coded, strict=True)], given

    def _is_text(self, column: str) -> bool:
        pl = polars()
        return self.schema[column] in (pl.String, pl.Categorical, pl.Enum)

    def _is_id(self, column: str) -> bool:
        return self._is_text(column) or self.schema[column].is_integer() or self.schema[column] == polars().Boolean

    def _coded(self, column: str, names: tuple[str, ...]) -> pl.Expr:
        pl = polars()
        code = pl.col(column).cast(pl.String).cast(pl.Enum(names), strict=False).to_physical().cast(pl.Int64)
        return pl.when(pl.col(column).is_null()).then(MISSING).otherwise(code.fill_null(UNKNOWN))

    def _whole(self, what: str, column: str) -> pl.Expr:
        """Floats too, if they hold whole numbers: pandas makes them of integers among which one is missing."""
        pl = polars()
        kind, value = self.schema[column], pl.col(column)
        if kind.is_float():
            value = pl.when(value == value.floor()).then(value)
        elif not (kind.is_integer() or kind == pl.Boolean):
            wanted = "integers" if what == "step" else "integers or strings"
            raise TypeError(f"{what} must be {wanted}, but column {column!r} holds {kind}")
        return value.cast(pl.Int64, strict=False).fill_null(MISSING)

    def _require_exact(self, what: str, column: str) -> None:
        """Two large integers may be one float: then it is not known which is meant."""
        pl = polars()
        kind, value = self.schema[column], pl.col(column).abs()
        largest, most = self.frame.select(value.filter(value.is_finite()).max()).collect().item(), EXACT[str(kind)]
        if largest is not None and largest >= most:
            raise LogsError(
                f"{what}: column {column!r} holds {kind} up to {largest:g}, and from {most:,} on two integers may be one float, "
                f"so that two {what}s may have become one. Store them as integers or strings (pandas makes floats of "
                'integers among which one is missing; its dtypes "UInt64" and "Int64" do not)'
            )

    def _number(self, what: str, column: str) -> pl.Expr:
        pl = polars()
        kind = self.schema[column]
        if not (kind.is_numeric() or kind in (pl.Boolean, pl.Null)):
            raise TypeError(f"{what} must be numbers, but column {column!r} holds {kind}")
        return pl.col(column).cast(pl.Float64).fill_null(np.nan)

    def _flag(self, what: str, column: str) -> pl.Expr:
        pl = polars()
        kind, value = self.schema[column], pl.col(column)
        if kind.is_integer():
            value = pl.when(value.is_in([0, 1])).then(value)
        elif kind != pl.Boolean:
            hint = ": .astype(int) in pandas and .cast(int) in polars make integers of them" if kind.is_float() else ""
            raise TypeError(
                f"{what} must be booleans, or the integers 0 and 1, but column {column!r} holds {kind}{hint}"
            )
        return value.cast(pl.UInt8).fill_null(NO_FLAG)

    def _is_list(self, column: str) -> bool:
        pl = polars()
        return self.schema[column] in (pl.List, pl.Array)

    def _real_actions(self, columns: str | tuple[str, ...], actions: Names) -> list[pl.Expr]:
        if actions not in (None, NUMBERS):
            raise TypeError(
                f"action is declared as {columns!r}, which holds real numbers, but actions={actions!r} are ids: leave out "
                f'actions=…, or say actions="{CONTINUOUS}". A policy that is a table [S, A] needs actions that are ids'
            )
        return self._features("action", columns)

    def _features(self, what: str, columns: str | tuple[str, ...]) -> list[pl.Expr]:
        """Numbers of several columns, or of one column of lists; a list that is too short lacks its last ones."""
        pl = polars()
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
