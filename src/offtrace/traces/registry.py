"""The rules that are listed. `trace` finds them by name; whatever goes over all rules asks `rules`.

A rule is listed by `register`, in the package or outside. From then on it has a name on the command line and in studies, stands
in the tables of the documentation, is tried by the tests, the audit and the benchmarks, and is swept by `operators.tradeoff`.
"""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from typing import Any, TypeVar

from offtrace._shared.suggestions import closest, ending
from offtrace.traces.base import Rule

R = TypeVar("R", bound=type[Rule])

_listed: dict[str, type[Rule]] = {}


def key(name: str) -> str:
    """One spelling for all: "Non-Markov Retrace", "non_markov_retrace" and "NonMarkovRetrace" are the same.

    >>> key("Non-Markov Retrace")
    'nonmarkovretrace'
    """
    return re.sub(r"[^a-z0-9λσα]", "", name.lower())


def register(cls: R) -> R:
    """List a rule: `trace` finds it by its class name, its title and its aliases. Use it as a decorator, above `@dataclass`.

    A name that another rule has is refused. The same class, imported anew, takes the place of the old one.

    >>> import offtrace as ot
    >>> ot.register(ot.Retrace) is ot.trace("retrace").__class__
    True
    """
    if not cls.title:
        raise TypeError(f"{cls.__name__} needs a `title`, the name to print")
    for name in (cls.__name__, cls.title, *cls.aliases):
        other = _listed.get(key(name), cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"the name {name!r} of {cls.__name__} belongs to {other.__name__} already: choose another")
    for name in (cls.__name__, cls.title, *cls.aliases):
        _listed[key(name)] = cls
    return cls


def unregister(cls: type[Rule]) -> None:
    """Take a rule from the list again, for instance after a test."""
    for name in [name for name, listed in _listed.items() if listed is cls]:
        del _listed[name]


def rules() -> list[type[Rule]]:
    """All listed rules, in the order in which they were listed.

    >>> import offtrace as ot
    >>> [rule.title for rule in ot.rules() if rule.uncorrected]
    ["Peng's Q(λ)", 'n-step']
    """
    return list(dict.fromkeys(_listed.values()))


def trace(name: str, **parameters: object) -> Any:
    """Find a rule by its name or an alias, and make it.

    - `name`: the class name, the title or an alias; case, spaces and punctuation do not matter. "module:name" imports first the
      module that lists the rule, as "my_rules:capped"
    - `parameters`: what the rule's constructor takes, such as `lam`

    >>> import offtrace as ot
    >>> ot.trace("non-markov retrace", lam=0.9)
    NonMarkovRetrace(horizon=None, lam=0.9)
    >>> ot.trace("recursive retrace").lam
    1.0
    """
    module, _, name = name.rpartition(":")
    if module:
        import_module(module)
    cls = _listed.get(key(name))
    if cls is None:
        near = closest(key(name), _listed)
        hint = ending(None if near is None else _listed[near].title)
        known = ", ".join(sorted(rule.title for rule in rules()))
        raise ValueError(f"there is no trace named {name!r}{hint} Known: {known}")
    allowed = [f.name for f in fields(cls)]
    for given in parameters:
        if given not in allowed:
            hint = ending(closest(given, allowed))
            raise TypeError(f"{cls.__name__} has no parameter {given!r}{hint} It takes: {', '.join(allowed)}")
    return cls(**parameters)
