"""The environments of a declaration: each is looked up, and what is to be run there is tried."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import offtrace
from offtrace._shared.type_guards import is_list
from offtrace.studies import declared_policies, deep_agents, named_environments
from offtrace.studies.declaration_checks import DeclarationError
from offtrace.studies.declared_traces import TraceGrid, make
from offtrace.studies.task_protocols import Deep, Evaluation, Map, Protocol, Replay


@dataclass(frozen=True)
class Place:
    """An environment and how the task is run there."""

    name: str
    protocol: Any


def places(given: object, protocol: Protocol, task: str) -> tuple[Place, ...]:
    """Check the environments of a task, each with the protocol and its own changes of it."""
    if not is_list(given) or not given:
        raise DeclarationError("environments", given, "a list of environments that is not empty")
    found: dict[str, Place] = {}
    for i, entry in enumerate(given):
        key = f"environments[{i}]"
        name, arguments = named_environments.split(key, entry)
        changes = arguments.pop("protocol", {})
        for picked in named_environments.grid(arguments):
            label = named_environments.join(name, picked)
            if task == "deep":
                if picked:  # Gymnasium would take what stands before the colon for a module
                    raise DeclarationError(key, entry, "a game without arguments")
                named_environments.known_game(key, label)
            else:
                label = named_environments.known(key, label, name, picked, seeded=task == "map")
            if label in found:
                raise DeclarationError(key, label, "each environment once")
            found[label] = Place(label, protocol.with_changes(f"{key}.protocol", changes))
    if not found:
        raise DeclarationError("environments", given, "a grid that is not empty")
    return tuple(found.values())


def fits(place: Place, ages: tuple[int, ...]) -> None:
    """Check that the policies of the protocol can be made there."""
    protocol = place.protocol
    if isinstance(protocol, Deep):
        for age in ages:
            try:
                protocol.config(place.name, offtrace.OneStep(), age)
            except (ValueError, TypeError) as error:
                declared = {k: v for k, v in asdict(protocol).items() if v != getattr(Deep(), k)}
                where = f"what the agent can do on {place.name} with the age {age}: {error}"
                raise DeclarationError("protocol", declared, where) from error
        return
    mdp = named_environments.mdp(place.name, 0 if isinstance(protocol, Map) else None)
    if isinstance(protocol, Evaluation | Map):
        rng = np.random.default_rng(0) if isinstance(protocol, Map) else None
        for key in ("behavior", "target"):
            try:
                declared_policies.policy(getattr(protocol, key), mdp, rng)
            except ValueError as error:
                where = f"a policy for {place.name}: {error}"
                raise DeclarationError(f"protocol.{key}", getattr(protocol, key), where) from error
    if isinstance(protocol, Replay) and max(ages) > protocol.updates:
        raise DeclarationError("ages", list(ages), f"ages of at most protocol.updates = {protocol.updates}")


def agent_fits(key: str, trace: TraceGrid, places: tuple[Place, ...], ages: tuple[int, ...]) -> None:
    """Check that the agent of a trace can be made with its settings, in each environment."""
    parameters = dict(trace.parameters)
    rule = make(trace.title, parameters, trace.lams[0])
    for place in places:
        for age in ages:
            try:
                config = deep_agents.configured(place.protocol, place.name, rule, age, parameters)
            except (ValueError, TypeError) as error:
                raise DeclarationError(key, {"name": trace.title, **parameters}, f"{error}") from error
            if config.memory_slots is None and len(ages) > 1:
                what = f"one age, since the agent {config.agent!r} has no memory, and its runs would only be repeated"
                raise DeclarationError("ages", list(ages), what)
