"""What a log's columns are called, and what they must hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list

MISSING = -(2**63)
"""In place of an integer that the source does not have."""
UNKNOWN = MISSING + 1
"""In place of a state or action that is none of those that were given."""
NO_FLAG = 2
"""In place of a flag that is missing, or neither 0 nor 1."""

Names = int | tuple[int | str, ...] | None
"""How many ids of states or actions there are, or what they are called; None takes what the source shows."""
CONTINUOUS = "continuous"
"""Given as `actions`: they are real numbers."""
NUMBERS = 0
"""The number of ids where there are none, but real numbers."""
REQUIRED = ("state", "action", "reward")
OPTIONAL = ("mu", "log_mu", "log_pi", "next_state")
"""Columns that are not used unless they are declared."""
SEVERAL = ("state", "next_state", "action", "keep")
"""What may be in several columns."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The source's names of what a log holds. None: the source does not have it.

    Integers and strings in `state` and `action` are ids; lists and several columns of numbers are features of states, and actions
    that are real numbers. Floats in `state` are features.

    >>> Columns(episode="user", state=("age", "visits"), action="offer", reward="spent",
    ...         mu="probability").step
    'step'
    """

    episode: str | None = "episode"
    """Which episode: an integer or a string; None: each row is an episode of one step, terminated unless a column says else."""
    step: str | None = "step"
    """Consecutive integers from 0 or from 1, or times, by which rows are sorted; None: rows are in the order of the steps."""
    state: str | tuple[str, ...] = "state"
    """One column of ids or of lists of numbers, or several columns of numbers."""
    action: str | tuple[str, ...] = "action"
    """The action taken: an id, which is an integer or a string; or real numbers, in several columns or in one of lists."""
    reward: str = "reward"
    """The reward, a finite number."""
    terminated: str | None = "terminated"
    """Booleans or 0 and 1; None: no episode ended by the task."""
    truncated: str | None = "truncated"
    """Booleans or 0 and 1; None, or not there: see the argument `truncated` of `read`."""
    mu: str | None = None
    """μ(a|s) of the action taken, in (0, 1], or its density where actions are real numbers; of Minari and Gymnasium episodes a
    key of `infos`."""
    log_mu: str | None = None
    """log μ(a|s) in its place."""
    log_pi: str | None = None
    """log π(a|s), the log density of a target policy at the action taken, where actions are real numbers."""
    next_state: str | tuple[str, ...] | None = None
    """Like `state`; None: the state of the next row, so that the last row of a truncated episode only says where it was cut."""
    keep: str | tuple[str, ...] = ()
    """Further columns, such as the user or the region of an episode, for `cluster` and `by` of `evaluate`: the value of an
    episode's first row counts."""

    def __post_init__(self) -> None:
        if self.mu is not None and self.log_mu is not None:
            raise ValueError(
                f"mu={self.mu!r} and log_mu={self.log_mu!r} are two names of one thing: declare the column that there is"
            )
        for field in fields(self):
            value: object = getattr(self, field.name)
            if field.name == "keep" and isinstance(value, str):
                value = [value]
            if field.name in SEVERAL and is_list(value):
                value = tuple(value)
                object.__setattr__(self, field.name, value)
                named = (bool(value) or field.name == "keep") and all(isinstance(each, str) for each in value)
            else:
                named = isinstance(value, str) or (value is None and field.name not in REQUIRED)
            if not named:
                raise TypeError(f"columns.{field.name} must be the name of a column, got {value!r}")
        if self.next_state is not None and isinstance(self.state, tuple) != isinstance(self.next_state, tuple):
            raise ValueError(f"next_state={self.next_state!r} must be declared in the form of state={self.state!r}")
        if isinstance(self.next_state, tuple) and len(self.next_state) != len(self.state):
            raise ValueError(
                f"state has {len(self.state)} columns and next_state has {len(self.next_state)}: the same features of both"
            )

    @property
    def behaviour(self) -> str | None:
        """The column of μ or of log μ."""
        return self.mu if self.log_mu is None else self.log_mu

    def used(self) -> Iterator[tuple[str, str]]:
        """Yield (what it is, the name of the column) for each declared column.

        >>> list(Columns(step=None, terminated=None, truncated=None, state=("x", "y")).used())
        [('episode', 'episode'), ('state', 'x'), ('state', 'y'), ('action', 'action'), ('reward', 'reward')]
        """
        for field in fields(self):
            value: str | tuple[str, ...] | None = getattr(self, field.name)
            if field.name == "step" and self.episode is None:
                continue
            for column in value if isinstance(value, tuple) else (value,):
                if column is not None:
                    yield field.name, column

    def passed_over(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the source whose names are those of optional ones that are not declared."""
        used = {column for _, column in self.used()}
        return tuple(name for name in OPTIONAL if name in there and name not in used and getattr(self, name) is None)

    def check(self, there: Sequence[str], truncated: str | None) -> None:
        """Check that every declared column is in the source, and that it is said which episodes were cut."""
        has_truncated, rows_are_episodes = self.truncated in there, self.episode is None
        declared = {column for _, column in self.used()}
        others = [column for column in there if column not in declared]  # one that is something else is not meant
        for name, column in self.used():
            if column not in there and name != "truncated" and not (rows_are_episodes and name == "terminated"):
                raise ValueError(
                    f"the source has no column {column!r} for {name}{did_you_mean(column, others)}: it has {_listed(there)}. "
                    f"Declare another one with Columns({name}=…){_or_none(name)}"
                )
        if truncated == "never" and has_truncated:
            raise ValueError(
                f'truncated="never" was said, but the source has a column {self.truncated!r}: leave out one of the two '
                "(Columns(truncated=None) leaves out the column)"
            )
        if truncated is None and not has_truncated and not rows_are_episodes:
            called = "truncated" if self.truncated is None else repr(self.truncated)
            raise ValueError(
                f"the source has no column {called}{did_you_mean(self.truncated or '', others)}, and whether an episode was cut "
                "decides if values beyond its end count. Declare the column with Columns(truncated=…), or say which it is:\n"
                '  truncated="never"   no episode was cut: each must end with a terminated step\n'
                '  truncated="at end"  an episode whose last step is not terminated was cut there'
            )


def _or_none(name: str) -> str:
    return {
        "episode": ", or None if each row is an episode",
        "step": ", or None if the rows of an episode are in order",
        "terminated": ", or None if no episode ended by the task",
        "mu": ", or None if μ is not known",
        "log_mu": ", or None if μ is not known",
    }.get(name, "")


def _listed(there: Sequence[str], most: int = 20) -> str:
    return ", ".join(map(repr, there[:most])) + (f" and {len(there) - most} more" if len(there) > most else "")


def checked_names(what: str, given: object) -> Names:
    """Check what the user says of the states or actions that there are, and return names as a tuple.

    >>> checked_names("actions", ["left", "right"])
    ('left', 'right')
    """
    if isinstance(given, np.integer | np.ndarray):
        given = cast(object, given.tolist())
    if given is None:
        return None
    if given == CONTINUOUS and what == "actions":
        return NUMBERS
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise ValueError(f"{what} must be at least 1, got {given}")
        return given
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(
            f"{what} must be a number, or a sequence of their names in the order of their ids"
            + (f', or "{CONTINUOUS}" for real numbers' if what == "actions" else "")
            + f", got {given!r}"
        )
    names: list[Any] = [getattr(name, "item", lambda name=name: name)() for name in cast("Sequence[object]", given)]
    if not all(isinstance(name, int | str) for name in names):
        raise TypeError(f"{what} must be integers or strings, got {names!r}")
    if any(isinstance(name, str) for name in names):  # text and numbers in one column are text there
        names = [str(name) for name in names]
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"{what} must be different names, at least one, got {names!r}")
    return tuple(names)
