"""Deep agents as an axis of a study: they stand beside the parameters of a trace, as `agent = "pqn"` does.

    traces = [{ name = "Retrace", agent = ["replay", "pqn"] }, { name = "Watkins", agent = "stream-q", label = "Stream Q(λ)" }]

`frames`, `gamma`, `sticky` and `limit` of the protocol hold for all agents; the rest of it is the replay agent's. Any other agent
has its own defaults, and the settings that stand beside its name. Nothing here needs JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.deep.config import AGENTS, Config, WithMemory, configuration
from offtrace.deep.settings import Settings
from offtrace.studies.fields import declaration_error
from offtrace.studies.protocols import DeepBase, like
from offtrace.traces import Rule

LABEL = "label"
"""The key of a name for people; "{agent}" in it stands for that parameter."""
SHARED = ("frames", "gamma", "sticky", "limit")
"""The keys of the protocol that hold for all agents, so that returns can be compared."""
ELSEWHERE = ("game", "trace", "capacity", *SHARED)
"""The settings that other parts of the declaration say."""
GAMES = (
    *(f"minatar/{game}" for game in ("asterix", "breakout", "freeway", "seaquest", "space-invaders")),
    *("Acrobot-v1", "CartPole-v1", "MountainCar-v0"),
)
"""Games of deep agents that need not be looked up, which takes seconds."""


def check_game(game: str) -> None:
    """Check that a game can be made; a ValueError says what is allowed."""
    if game in GAMES:
        return
    try:
        from offtrace.deep import games

        config = Config(game=game)
        games.Hosted(config, 1, 0) if game.startswith("gym/") else games.compiled(config)
    except ImportError as error:
        raise ValueError(f"what is installed: {error}") from error
    except (ValueError, TypeError) as error:
        what = f"a game such as {GAMES[0]!r}, a gymnax environment, or gym/ID{did_you_mean(game, GAMES)}: {error}"
        raise ValueError(what) from error


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


def configured(protocol: DeepBase, game: str, trace: Rule, age: int, parameters: Mapping[str, Any]) -> Settings:
    """Make the configuration of a run. The age of the data is as many frames as the memory holds, where there is one."""
    own = {k: v for k, v in parameters.items() if k not in (f.name for f in fields(trace)) and k != LABEL}
    kind = configuration(own.pop("agent", Config.agent))
    inherited = [name for name in type(protocol).model_fields if kind is Config or name in SHARED]
    settings: dict[str, Any] = {name: getattr(protocol, name) for name in inherited}
    if issubclass(kind, WithMemory):
        settings["capacity"] = age
    known = {f.name: f.default for f in fields(kind) if f.name not in ELSEWHERE}
    for name, value in own.items():
        if name not in known:
            raise ValueError(f"the agent {kind.agent!r} has no setting {name!r}; it has {', '.join(known)}")
        if name == "hidden" and not is_list(value):  # lists of widths cannot be grids too
            value = [value]
        try:
            settings[name] = TypeAdapter(like(known[name])).validate_python(value)
        except ValidationError as error:
            raise declaration_error(name, error) from None
    return kind(game=game, trace=trace, **settings)
