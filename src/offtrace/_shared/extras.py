"""How to install an extra of offtrace, for messages about what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def from_extra(extra: str, needs: str) -> Iterator[None]:
    """Within the block, a package that is missing is an error that says what needs it, and how to install it.

    >>> with from_extra("plot", "figures need"):
    ...     import no_such_package
    Traceback (most recent call last):
    ImportError: figures need no_such_package: pip install '.[plot]' in a checkout of offtrace, or pip install 'WHEEL[plot]' ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("offtrace"):
            raise
        raise ImportError(f"{needs} {error.name}: {install(extra)}", name=error.name) from None


def install(extra: str) -> str:
    """The command that installs an extra, from a checkout or from a wheel: offtrace is on no package index yet.

    >>> install("studies")
    "pip install '.[studies]' in a checkout of offtrace, or pip install 'WHEEL[studies]' with the path of its wheel"
    """
    return f"pip install '.[{extra}]' in a checkout of offtrace, or pip install 'WHEEL[{extra}]' with the path of its wheel"
