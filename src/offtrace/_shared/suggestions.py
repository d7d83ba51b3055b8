"""What somebody may have meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.5
"""How alike two names must be, from 0 to 1, for one to be suggested in place of the other."""


def closest(given: object, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one, whatever the case of its letters; None where none is alike.

    >>> closest("retrase", ["Retrace", "RBIS"]), closest("x", ["Retrace"])
    ('Retrace', None)
    """
    spelt = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(given).lower(), spelt, n=1, cutoff=CUTOFF)
    return spelt[near[0]] if near else None


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """A hint within a sentence, or nothing.

    >>> did_you_mean("rewrad", ["reward"]), did_you_mean("x", ["reward"])
    (" (did you mean 'reward'?)", '')
    """
    near = closest(given, known)
    return "" if near is None else f" (did you mean {near!r}?)"


def ending(near: str | None) -> str:
    """The end of a sentence about an unknown name: a question where something is near to it, else a full stop.

    >>> "there is no 'rewrad'" + ending("reward"), "there is no 'x'" + ending(None)
    ("there is no 'rewrad'; did you mean 'reward'?", "there is no 'x'.")
    """
    return "." if near is None else f"; did you mean {near!r}?"
