"""The learning methods that are listed. `method` finds one by name; whatever goes over all of them asks `listed_methods`.

Every trace of `offtrace.rules()` is a method too: on state values it is the TD method with that trace's eligibility vector.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, TypeVar

from offtrace._shared.suggestions import closest, ending
from offtrace.learners.methods.base import Method
from offtrace.learners.methods.trace_learner import StateTraceLearner, TraceLearner
from offtrace.learners.methods.uncorrected_learner import UncorrectedLearner
from offtrace.traces import Rule, Trace, rules

M = TypeVar("M", bound=type[Method])
T = TypeVar("T", Method, Rule)

_listed: dict[str, type[Method]] = {}


def key(name: str) -> str:
    """One spelling for all: "V-trace(λ)", "v trace λ" and "Vtraceλ" are the same.

    >>> key("V-trace(λ)")
    'vtraceλ'
    """
    return re.sub(r"[^a-z0-9α-ω]", "", name.lower())


def register_method(cls: M) -> M:
    """List a method: `method` finds it by its `name`, its class name and its aliases. Use it above `@dataclass`.

    A name that another method has is refused. The same class, imported anew, takes the place of the old one.

    >>> from offtrace.learners import GQ, register_method
    >>> register_method(GQ) is GQ
    True
    """
    if not cls.name:
        raise TypeError(f"{cls.__name__} needs a `name`, by which it is found and printed")
    names = [key(name) for name in (cls.__name__, cls.name, *cls.aliases)]
    for name in names:
        other = _listed.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"the name {name!r} of {cls.__name__} belongs to {other.__name__} already: choose another")
    _listed.update(dict.fromkeys(names, cls))
    return cls


def unregister_method(cls: type[Method]) -> None:
    """Take a method from the list again, for instance after a test.

    >>> from offtrace.learners import GQ, register_method, unregister_method
    >>> unregister_method(GQ)
    >>> _ = register_method(GQ)
    """
    for name in [name for name, listed in _listed.items() if listed is cls]:
        del _listed[name]


def listed_methods() -> list[type[Method]]:
    """All listed methods, in the order in which they were listed. The traces by themselves are not among them.

    >>> from offtrace.learners import listed_methods
    >>> [m.name for m in listed_methods() if m.on_policy and m.values == "state"]
    ['True online TD(λ)']
    """
    return list(dict.fromkeys(_listed.values()))


def method_named(name: str) -> type[Method] | None:
    """The class of the method of this name; None where there is none."""
    return _listed.get(key(name))


def rule_named(name: str) -> type[Rule] | None:
    """The trace of this name, or None."""
    wanted = key(name)
    return next((r for r in rules() if wanted in map(key, (r.__name__, r.title, *r.aliases))), None)


def method(name: str, **parameters: object) -> Method:
    """Find a learning method by its name or an alias, and make it.

    - `name`: case, spaces and punctuation do not matter. The name of a trace makes the TD method on state values with that trace;
      with `values="action"`, the paper's Algorithm 1
    - `parameters`: what its constructor takes, such as `alpha`, `lam` or `eta`; for a trace, `alpha` and what the trace takes

    >>> from offtrace.learners import method
    >>> method("gtd2", alpha=0.01, lam=0.5, eta=0.5).title
    'GTD2(0.5)'
    >>> method("rbis", alpha=0.1, lam=0.9).trace
    RBIS(horizon=None, lam=0.9)
    """
    cls, rule = _listed.get(key(name)), rule_named(name)
    if cls is not None and (rule is None or parameters.get("values", cls.values) == cls.values):
        return _made(cls, cls.parameters(), {n: x for n, x in parameters.items() if n != "values" or x != cls.values})
    if rule is None:
        known = {key(m.name): m.name for m in listed_methods()} | {key(r.title): r.title for r in rules()}
        names = {
            **{k: m.name for k, m in _listed.items()},
            **{key(a): r.title for r in rules() for a in r.aliases},
            **known,
        }
        near = closest(key(name), names)
        hint = ending(None if near is None else names[near])
        raise ValueError(f"there is no learning method named {name!r}{hint} Known: {', '.join(sorted(known.values()))}")
    given = dict(parameters)
    alpha, values = given.pop("alpha", None), given.pop("values", "action" if rule.uncorrected else "state")
    made = _made(rule, ("alpha", "values", *(f.name for f in fields(rule))), given)
    return of_rule(made, values, alpha)


def of_rule(rule: Rule, values: object = "action", alpha: Any = None) -> Method:
    """The method that a rule by itself stands for."""
    if values not in ("action", "state"):
        raise ValueError(f'values must be "action" or "state", got {values!r}')
    if isinstance(rule, Trace):
        return (TraceLearner if values == "action" else StateTraceLearner)(rule, alpha=alpha)
    if values == "state":
        raise ValueError(f"{rule.title} has no ratios, and no method on state values here: use values='action'")
    return UncorrectedLearner(rule, alpha=alpha)


def _made(cls: type[T], allowed: tuple[str, ...], parameters: dict[str, object]) -> T:
    for given in parameters:
        if given not in allowed:
            hint = ending(closest(given, allowed))
            raise TypeError(f"{cls.__name__} has no parameter {given!r}{hint} It takes: {', '.join(allowed)}")
    make: Any = cls  # whose own checks follow
    return make(**parameters)
