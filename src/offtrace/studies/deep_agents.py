"""Agents as an axis of a study of deep agents: they stand beside the parameters of a trace, as `agent = "pqn"` does.

    traces = [{ name = "Retrace", agent = ["replay", "pqn"] }, { name = "Watkins", agent = "stream-q", label = "Stream Q(λ)" }]

`frames`, `gamma`, `sticky` and `limit` of the protocol hold for all agents; the rest of it is the replay agent's. Any other agent
has its own defaults, and what stands beside its name. Nothing here needs JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from offtrace.deep.config import AGENTS, Config, WithMemory, configuration
from offtrace.deep.settings import Settings
from offtrace.studies.declaration_checks import like
from offtrace.studies.task_protocols import Protocol
from offtrace.traces import Rule

LABEL = "label"
"""The key of a name for people; "{agent}" in it stands for that parameter."""
SHARED = ("frames", "gamma", "sticky", "limit")
"""The keys of the protocol that hold for all agents, so that returns can be compared."""
ELSEWHERE = ("game", "trace", "capacity", *SHARED)
"""The settings that other parts of the declaration say."""


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


def keys() -> list[str]:
    """What a declaration may give beside the parameters of a trace."""
    own = {field.name: None for cls in AGENTS.values() for field in fields(cls) if field.name not in ELSEWHERE}
    return ["agent", LABEL, *own]


def configured(protocol: Protocol, game: str, trace: Rule, age: int, parameters: Mapping[str, Any]) -> Settings:
    """Make the configuration of a run. The age of the data is as many frames as the memory holds, where there is one."""
    own = {k: v for k, v in parameters.items() if k not in (f.name for f in fields(trace)) and k != LABEL}
    kind = configuration(own.pop("agent", Config.agent))
    inherited = fields(protocol) if kind is Config else [f for f in fields(protocol) if f.name in SHARED]
    settings: dict[str, Any] = {f.name: getattr(protocol, f.name) for f in inherited}
    if issubclass(kind, WithMemory):
        settings["capacity"] = age
    known = {f.name: f.default for f in fields(kind) if f.name not in ELSEWHERE}
    for name, value in own.items():
        if name not in known:
            raise ValueError(f"the agent {kind.agent!r} has no setting {name!r}; it has {', '.join(known)}")
        if name == "hidden":
            value = tuple(value) if isinstance(value, list | tuple) else (value,)
            settings[name] = like(known[name])(name, list(value))
        else:
            settings[name] = like(known[name])(name, value)
    return kind(game=game, trace=trace, **settings)
