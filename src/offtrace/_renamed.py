"""Calls that were written for an earlier version fail with an error that says what to write now."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def ends_apart(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse the keyword `done`, which most libraries have, with an error that says what is to be given in its place."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        if "done" in named:
            raise TypeError(
                f"{function.__name__} has no parameter 'done': give terminated, where the task ended, and truncated, where a "
                "limit cut the episode; a truncated step still bootstraps. Where nothing is ever truncated, terminated=done and "
                "truncated=np.zeros_like(done)"
            )
        return function(*arguments, **named)

    return call


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse these keywords with an error that names the ones that replaced them: `renamed(pi="target")`.

    >>> @renamed(step_size="alpha")
    ... def learn(alpha: float) -> float:
    ...     return alpha
    >>> learn(step_size=0.5)
    Traceback (most recent call last):
    TypeError: learn has no parameter 'step_size': it is called 'alpha' now
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            for old in names.keys() & named.keys():
                title = function.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{title} has no parameter {old!r}: it is called {names[old]!r} now")
            return function(*arguments, **named)

        return call

    return decorate
