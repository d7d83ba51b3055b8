"""The traces of a declaration: every name is looked up, and every trace is constructed once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

import offtrace
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.learners.methods.registry import method, method_named, rule_named
from offtrace.studies import agents, environments
from offtrace.studies.fields import DeclarationError, Lams, Table, Toml, declaration_error
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


def grid(arguments: Toml) -> list[Table]:
    """Return all combinations, where some arguments are lists.

    >>> grid({"states": 20, "seed": [0, 1]})
    [{'states': 20, 'seed': 0}, {'states': 20, 'seed': 1}]
    """
    choices: list[Sequence[object]] = [v if is_list(v) else [v] for v in arguments.values()]
    return [dict(zip(arguments, picked, strict=True)) for picked in itertools.product(*choices)]


def trace_grids(entries: Sequence[object], lams: tuple[float | None, ...], task: str) -> tuple[TraceGrid, ...]:
    """Check the traces of a task; `lams` are the λ's of those that say no other."""
    grids: dict[tuple[str, object], TraceGrid] = {}
    for i, entry in enumerate(entries):
        key = f"traces[{i}]"
        try:
            name, parameters = (entry, {}) if isinstance(entry, str) else environments.split(entry)
        except ValueError as error:
            raise DeclarationError(key, entry, str(error)) from None
        if ":" in name:  # workers would not know it, and the hash of the modules would not cover it
            raise DeclarationError(key, name, "a trace without a colon: list its module in `modules`")
        for one in _grids_of(key, name, parameters, lams, task):
            if (one.title, one.parameters) in grids:
                raise DeclarationError(key, entry, "each trace with the same parameters once")
            grids[one.title, one.parameters] = one
    return tuple(grids.values())


def _grids_of(key: str, name: str, parameters: Table, lams: tuple[float | None, ...], task: str) -> list[TraceGrid]:
    title, allowed = _title_and_parameters(key, name, task)
    extra = agents.keys() if task == "deep" else []
    known = [*allowed, *(name for name in extra if name not in allowed)]
    for parameter in parameters:
        if parameter not in known:
            what = f"no such parameter{did_you_mean(parameter, known)}; {title} takes {', '.join(known) or 'none'}"
            raise DeclarationError(f"{key}.{parameter}", parameters[parameter], what)
    own = parameters.pop("lam", None)
    if "lam" not in allowed:
        lams = (None,)
    elif own is not None:
        try:
            lams = TypeAdapter(Lams).validate_python(own if is_list(own) else [own])
        except ValidationError as error:
            raise declaration_error(f"{key}.lam", error) from None
    elif not lams:
        raise DeclarationError("lams", None, f"a list of λ, which {title} needs (or {key}.lam)")
    for parameter, values in parameters.items():
        if is_list(values) and not values:
            raise DeclarationError(f"{key}.{parameter}", [], "a number, or a list that is not empty")
    grids: list[TraceGrid] = []
    for picked in map(agents.labelled, grid(parameters)):
        try:
            make(title, picked, lams[0])
        except (ValueError, TypeError, OverflowError) as error:
            worst = next(iter(picked), "name")
            raise DeclarationError(f"{key}.{worst}", parameters.get(worst, name), f"{error}") from error
        grids.append(TraceGrid(title, tuple(sorted(picked.items())), lams))
    return grids


def _title_and_parameters(key: str, name: str, task: str) -> tuple[str, list[str]]:
    """Look up a trace, or in tasks that learn a learning method: its title, and the names of its parameters."""
    learns = task in ("control", "evaluation", "replay")
    listed = method_named(name) if learns and rule_named(name) is None else None
    if listed is not None:
        if task == "control" and listed.values == "state":
            raise DeclarationError(key, name, "methods on action values: state values say nothing of actions")
        return listed.name, [n for n in listed.parameters() if n != "alpha"]
    rule = type(_plain_rule(key, name, learns))
    if not issubclass(rule, Trace) and not (rule.uncorrected and (learns or task in ("map", "deep"))):
        raise DeclarationError(key, name, "traces with coefficients β")
    return rule.title, [f.name for f in fields(rule)]


def _plain_rule(key: str, name: str, learns: bool) -> Rule:
    """The trace of this name, with its default parameters."""
    try:
        return offtrace.trace(name)
    except ValueError as error:
        what = "a trace, or a learning method" if learns else "a trace"
        raise DeclarationError(key, name, f"{what}: {error}") from error
    except TypeError as error:
        raise DeclarationError(key, name, f"traces whose parameters are numbers: {error}") from error


def make(title: str, parameters: Mapping[str, Any], lam: float | None) -> Any:
    """Make the trace, or the learning method, of this title with those of the parameters that it has, and `lam` if it is given.

    >>> make("Retrace", {}, 0.9)
    Retrace(horizon=None, lam=0.9)
    """
    listed = None if rule_named(title) else method_named(title)
    own = listed.parameters() if listed else tuple(field.name for field in fields(offtrace.trace(title)))
    given: Table = {k: tuple(v) if is_list(v) else v for k, v in parameters.items() if k in own}
    given |= {} if lam is None else {"lam": lam}
    return method(title, **given) if listed else offtrace.trace(title, **given)
