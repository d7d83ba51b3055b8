"""How to install an extra of offtrace, for messages about what is missing."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that installs an extra, from a checkout or from a wheel: offtrace is on no package index yet.

    >>> install("studies")
    "pip install '.[studies]' in a checkout of offtrace, or pip install 'WHEEL[studies]' with the path of its wheel"
    """
    return f"pip install '.[{extra}]' in a checkout of offtrace, or pip install 'WHEEL[{extra}]' with the path of its wheel"
