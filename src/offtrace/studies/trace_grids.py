"""The traces of a declaration: every name is looked up, and every trace made once."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import offtrace
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.learners.methods.registry import method, method_named, rule_named
from offtrace.studies import deep_agents, named_environments
from offtrace.studies.declaration_checks import DeclarationError, Table, Toml, number, several
from offtrace.traces import Rule, Trace


@dataclass(frozen=True)
class TraceGrid:
    """A trace with its further parameters, and the λ's that it runs with: (None,) if it has no λ."""

    title: str
    parameters: tuple[tuple[str, object], ...]
    lams: tuple[float | None, ...]

    @property
    def spelt(self) -> str:
        """The parameters as JSON; empty where there are none."""
        return json.dumps(dict(self.parameters), sort_keys=True) if self.parameters else ""


def traces(given: object, lams: tuple[float | None, ...], task: str) -> tuple[TraceGrid, ...]:
    """Check the traces of a task; `lams` are the λ's of those that say no other."""
    if not is_list(given) or not given:
        raise DeclarationError("traces", given, "a list of traces that is not empty")
    found: list[TraceGrid] = []
    for i, entry in enumerate(given):
        key = f"traces[{i}]"
        if isinstance(entry, str):
            name, parameters = entry, {}
        else:
            name, parameters = named_environments.split(key, entry)
        if ":" in name:  # workers would not know it, and the digest not cover its code
            raise DeclarationError(key, name, "a trace without a colon: list its module in `modules`")
        for made in _grid_of(key, name, parameters, lams, task):
            if any((made.title, made.parameters) == (t.title, t.parameters) for t in found):
                raise DeclarationError(key, entry, "each trace with the same parameters once")
            found.append(made)
    return tuple(found)


def _grid_of(key: str, name: str, parameters: Table, lams: tuple[float | None, ...], task: str) -> list[TraceGrid]:
    learns = task in ("control", "evaluation", "replay")
    listed = method_named(name) if learns and rule_named(name) is None else None
    if listed is not None:
        title, allowed = listed.name, [n for n in listed.parameters() if n != "alpha"]
        if task == "control" and listed.values == "state":
            raise DeclarationError(key, name, "methods on action values: state values say nothing of actions")
    else:
        rule = type(_plain_rule(key, name, learns))
        title, allowed = rule.title, [f.name for f in fields(rule)]
        if not issubclass(rule, Trace) and not (rule.uncorrected and (learns or task in ("map", "deep"))):
            raise DeclarationError(key, name, "traces with coefficients β")
    beside_it = deep_agents.keys() if task == "deep" else []
    known = [*allowed, *(name for name in beside_it if name not in allowed)]
    for parameter in parameters:
        if parameter not in known:
            what = f"no such parameter{did_you_mean(parameter, known)}; {title} takes {', '.join(known) or 'none'}"
            raise DeclarationError(f"{key}.{parameter}", parameters[parameter], what)
    own = parameters.pop("lam", None)
    if "lam" not in allowed:
        lams = (None,)
    elif own is not None:
        lams = several(number(0, 1), "λ")(f"{key}.lam", own if is_list(own) else [own])
    elif not lams:
        raise DeclarationError("lams", None, f"a list of λ, which {title} needs (or {key}.lam)")
    for parameter, values in parameters.items():
        if isinstance(values, list) and not values:
            raise DeclarationError(f"{key}.{parameter}", [], "a number, or a list that is not empty")
    found: list[TraceGrid] = []
    for picked in named_environments.grid(parameters):
        try:
            picked = deep_agents.labelled(picked)
            make(title, picked, lams[0])
        except (ValueError, TypeError) as error:
            worst = next(iter(picked), "name")
            raise DeclarationError(f"{key}.{worst}", parameters.get(worst, name), f"{error}") from error
        found.append(TraceGrid(title, tuple(sorted(picked.items())), lams))
    return found


def _plain_rule(key: str, name: str, learns: bool) -> Rule:
    """The trace of this name, with all parameters as they are if none is given."""
    try:
        return offtrace.trace(name)
    except ValueError as error:
        what = "a trace, or a learning method" if learns else "a trace"
        raise DeclarationError(key, name, f"{what}: {error}") from error
    except TypeError as error:
        raise DeclarationError(key, name, f"traces whose parameters are numbers: {error}") from error


def make(title: str, parameters: Toml, lam: float | None) -> Any:
    """Make the trace, or the learning method, of this title with those of the parameters that it has, and `lam` if it is given.

    >>> make("Retrace", {}, 0.9)
    Retrace(horizon=None, lam=0.9)
    """
    listed = None if rule_named(title) else method_named(title)
    own = listed.parameters() if listed else tuple(field.name for field in fields(offtrace.trace(title)))
    given: Table = {k: tuple(v) if is_list(v) else v for k, v in parameters.items() if k in own}
    given |= {} if lam is None else {"lam": lam}
    return method(title, **given) if listed else offtrace.trace(title, **given)
