"""The traces of a declaration: every name is looked up, and every trace is constructed once.

In the task "deep" a trace names its agent, with the agent's settings, among its parameters:

    traces = [{ name = "Retrace", agent = ["replay", "pqn"] }, { name = "Watkins", agent = "stream-q", label = "Stream Q(λ)" }]

`frames`, `gamma`, `sticky` and `limit` of the protocol hold for all agents; the rest of it is the replay agent's. Any other agent
has its own defaults, and the settings that are given with its name. Nothing here needs JAX.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

import offtrace
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.deep.config import AGENTS, Config, WithMemory, configuration
from offtrace.deep.settings import Settings
from offtrace.learners.methods.registry import method, method_named, rule_named
from offtrace.studies import environments
from offtrace.studies.fields import DeclarationError, Declared, Lams, Share, Table, Text, declaration_error
from offtrace.studies.protocols import DeepBase
from offtrace.traces import Rule, Trace

LABEL = "label"
"""The key of a name for people; "{agent}" in it stands for that parameter."""
SHARED = ("frames", "gamma", "sticky", "limit")
"""The keys of the protocol that hold for all agents, so that returns can be compared."""
ELSEWHERE = ("game", "trace", "capacity", *SHARED)
"""The settings that other parts of the declaration say."""


class TraceGrid(Declared):
    """A trace with its further parameters, and the λ's that it runs with: (None,) if it has no λ."""

    title: Text
    parameters: dict[str, Any]
    lams: tuple[Share | None, ...]

    @property
    def spelt(self) -> str:
        """The parameters as JSON; empty where there are none."""
        return json.dumps(self.parameters, sort_keys=True) if self.parameters else ""


def trace_grids(entries: Sequence[object], lams: tuple[float | None, ...], task: str) -> tuple[TraceGrid, ...]:
    """Check the traces of a task; `lams` are the λ's of those that say no other."""
    grids: dict[tuple[str, str], TraceGrid] = {}
    for i, entry in enumerate(entries):
        key = f"traces[{i}]"
        try:
            name, parameters = (entry, {}) if isinstance(entry, str) else environments.split(entry)
        except ValueError as error:
            raise DeclarationError(key, entry, str(error)) from None
        if ":" in name:  # workers would not know it, and the hash of the modules would not cover it
            raise DeclarationError(key, name, "a trace without a colon: list its module in `modules`")
        for one in _grids_of(key, name, parameters, lams, task):
            if (one.title, one.spelt) in grids:
                raise DeclarationError(key, entry, "each trace with the same parameters once")
            grids[one.title, one.spelt] = one
    return tuple(grids.values())


def _grids_of(key: str, name: str, parameters: Table, lams: tuple[float | None, ...], task: str) -> list[TraceGrid]:
    title, allowed = _title_and_parameters(key, name, task)
    agents = AGENTS.values() if task == "deep" else ()
    extra = ["agent", LABEL] * (task == "deep") + [name for agent in agents for name in _settings(agent)]
    known = list(dict.fromkeys([*allowed, *extra]))
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
    for picked in map(labelled, environments.grid(parameters)):
        try:
            make(title, picked, lams[0])
        except (ValueError, TypeError, OverflowError) as error:
            worst = next(iter(picked), "name")
            raise DeclarationError(f"{key}.{worst}", parameters.get(worst, name), f"{error}") from error
        grids.append(TraceGrid(title=title, parameters=picked, lams=lams))
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


def labelled(parameters: Mapping[str, object]) -> dict[str, object]:
    """The parameters, with those that their label names filled in.

    >>> labelled({"bound": 2.0, "label": "token, at most {bound}"})
    {'bound': 2.0, 'label': 'token, at most 2'}
    """
    label = parameters.get(LABEL)
    if not isinstance(label, str):
        return dict(parameters)
    for name, value in parameters.items():
        label = label.replace(f"{{{name}}}", f"{value:g}" if isinstance(value, int | float) else str(value))
    return {**parameters, LABEL: label}


def _settings(kind: type[Settings]) -> list[str]:
    """The settings of an agent that no other part of a declaration says."""
    return [field.name for field in fields(kind) if field.name not in ELSEWHERE]


def configured(protocol: DeepBase, game: str, trace: Rule, age: int, parameters: Mapping[str, Any]) -> Settings:
    """Make the configuration of a run. The age of the data is as many frames as the memory holds, where there is one."""
    own = {k: v for k, v in parameters.items() if k not in (f.name for f in fields(trace)) and k != LABEL}
    kind = configuration(own.pop("agent", Config.agent))
    inherited = [name for name in type(protocol).model_fields if kind is Config or name in SHARED]
    settings: dict[str, Any] = {name: getattr(protocol, name) for name in inherited}
    if issubclass(kind, WithMemory):
        settings["capacity"] = age
    known = {name: hint for name, hint in get_type_hints(kind).items() if name in _settings(kind)}
    for name, value in own.items():
        if name not in known:
            raise ValueError(f"the agent {kind.agent!r} has no setting {name!r}; it has {', '.join(known)}")
        if name == "hidden":  # lists of widths cannot be grids too
            value = tuple(value) if is_list(value) else (value,)
        try:
            settings[name] = TypeAdapter(known[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise declaration_error(name, error) from None
    return kind(game=game, trace=trace, **settings)
