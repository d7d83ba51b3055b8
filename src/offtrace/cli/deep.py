"""`offtrace deep train`, whose options are the fields of the agents' configurations, and `offtrace deep play`.

Nothing here imports JAX before a command runs: `--help` and wrong options need not wait for it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from docstring_parser import parse_from_object
from tyro.conf import Positional, arg

from offtrace.cli.options import Modules, Output, Quiet, spelt
from offtrace.cli.rule_options import chosen_rule, given_only, parameters
from offtrace.deep.config import AGENTS, configuration
from offtrace.deep.settings import Settings

if TYPE_CHECKING:
    from offtrace.deep.runs import Trained

LAMBDA = 0.9
"""The λ of a rule that has one, if none is given."""


def _agent_options() -> Any:
    """The fields of all configurations as options; each says which agents have it, and its defaults."""
    options: dict[str, tuple[object, str]] = {}
    for cls in AGENTS.values():
        kinds, about = get_type_hints(cls), documented(cls)
        for field in fields(cls):
            if field.name in options or field.name in ("game", "trace"):
                continue
            owners = {agent: kind for agent, kind in AGENTS.items() if field.name in kind.__dataclass_fields__}
            whose = "" if len(owners) == len(AGENTS) else f"{', '.join(owners)}: "
            defaults = {agent: kind.__dataclass_fields__[field.name].default for agent, kind in owners.items()}
            first = next(iter(defaults.values()))
            others = [f"{agent}: {spelt(default)}" for agent, default in defaults.items() if default != first]
            default = "" if first is None and not others else f" (default: {'; '.join([spelt(first), *others])})"
            options[field.name] = kinds[field.name], whose + about[field.name].rstrip(".") + default
    return given_only("Agent", options)


def train(
    game: Positional[str],
    *,
    agent: Literal["replay", "pqn", "stream-q", "stream-ac", "qrc", "acer", "categorical"] = "replay",
    seeds: int = 1,
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    keep: int = 2,
    quiet: Quiet = False,
    trace: Annotated[str | None, arg(metavar="NAME")] = None,
    rule: Annotated[Mapping[str, Any], arg(name="", constructor_factory=lambda: parameters(LAMBDA))],
    of_agent: Annotated[Mapping[str, Any], arg(name="", constructor_factory=_agent_options)],
) -> int:
    """Train an agent; interrupt it at any time, and the same command resumes.

    Example: `offtrace deep train CartPole-v1 --trace rbis --lam 0.9 --frames 200_000 --seeds 3`

    Args:
        game: "minatar/breakout", a gymnax environment such as "CartPole-v1", or "gym/" and the id of a Gymnasium environment
        agent: what learns
        seeds: seeds 0 to N − 1, trained at the same time
        out: for logs and checkpoints; runs/GAME-AGENT-TRACE by default
        keep: how many checkpoints to keep
        quiet: show no progress
        trace: the rule that makes the targets; by default that of the agent as published
    """
    config = configured(game, agent, trace, rule, of_agent)
    if keep < 1:
        raise ValueError(f"keep must be at least 1: no run resumes without a checkpoint, got {keep}")
    from offtrace.deep import train

    named = f"{config.agent} " if config.agent != "replay" else ""
    name = re.sub(r"[^\w.-]+", "-", f"{config.game} {named}{spelt_rule(config)}").strip("-")
    folder = out or Path("runs") / name
    try:
        trained = train(config, seeds, folder, keep=keep, progress=not quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("at once; the same command resumes from the last checkpoint, if there is one") from None
    print(summary(trained, folder))
    return 0 if trained.finished else 130


def configured(
    game: str, agent: str, trace: str | None, rule: Mapping[str, Any], of_agent: Mapping[str, Any]
) -> Settings:
    """The configuration that the options ask for."""
    kind = configuration(agent)
    for name in of_agent:
        if name not in kind.__dataclass_fields__:
            owners = ", ".join(other for other, cls in AGENTS.items() if name in cls.__dataclass_fields__)
            raise ValueError(f"--{name.replace('_', '-')} is an option of {owners}, not of {agent}")
    default = kind.__dataclass_fields__["trace"].default
    gamma = of_agent.get("gamma", kind.__dataclass_fields__["gamma"].default)
    return kind(game=game, trace=chosen_rule(trace, rule, LAMBDA, default, gamma), **of_agent)


def documented(cls: type[Settings]) -> dict[str, str]:
    """The string below each field in the source of its class, or of the class that it has it from."""
    bases = [base for base in reversed(cls.__mro__) if issubclass(base, Settings)]
    return {field.arg_name: field.description or "" for base in bases for field in parse_from_object(base).params}


def spelt_rule(config: Settings) -> str:
    """The rule with what is set of it."""
    numbers = {field.name: getattr(config.trace, field.name) for field in fields(config.trace)}
    return f"{type(config.trace).__name__}({', '.join(f'{k}={v}' for k, v in numbers.items() if v is not None)})"


def summary(trained: Trained, folder: Path) -> str:
    """What came of a run, and what to do with it."""
    config, seeds = trained.config, trained.seeds
    frames = int(trained.state.frames[0])
    returns = trained.last_return(frames // 10) if len(trained.curve) else []
    ended = [(seed, value) for seed, value in zip(seeds, returns, strict=False) if not math.isnan(value)]
    mean = f"{sum(value for _, value in ended) / len(ended):.2f}" if ended else "no episode ended there"
    done = f"{frames:,} frames" if trained.finished else f"interrupted after {frames:,} of {config.end:,} frames"
    agent = f"{config.agent} and " if config.agent != "replay" else ""
    return "\n".join(
        [
            f"{config.game} with {agent}{spelt_rule(config)}: {done}{' each' * (len(seeds) > 1)}",
            f"Return over the last 10% of frames: {mean}",
            *(f"  seed {seed:<4}{value:10.2f}" for seed, value in ended * (len(seeds) > 1)),
            f"Logs and checkpoints: {folder}",
            *([] if trained.finished else ["  resume:  the same command"]),
            f"  watch:   tensorboard --logdir {shlex.quote(str(folder))}",
            f"  play:    offtrace deep play {shlex.quote(str(folder))}",
        ]
    )


def play(
    folder: Positional[Path],
    *,
    seed: int | None = None,
    episodes: int = 1,
    steps: int = 1_000,
    epsilon: float = 0.0,
    modules: Modules = (),
    trust: bool = False,
    output: Output = None,
) -> int:
    """Record a GIF of a trained agent: the latest checkpoint.

    Example: `offtrace deep play runs/CartPole-v1-RBIS-lam-0.9 --episodes 3`

    Args:
        folder: of a run: what train calls FOLDER
        seed: whose network plays; the first by default
        episodes: to play
        steps: after which it ends in any case
        epsilon: the share of random actions; 0 is greedy
        modules: a Python module that may be imported for the game
        trust: import whatever module the checkpoint names: that runs it
        output: the GIF; play-seed-N.gif in FOLDER by default
    """
    from offtrace.deep import play

    game = play(folder, seed=seed, episodes=episodes, steps=steps, epsilon=epsilon, trust=trust, modules=list(modules))
    path = game.save(output or folder / f"play-seed-{game.seed}.gif")
    last = game.moments[-1]
    cut = f"{last.score:g} so far after {last.step:,} steps, where --steps ended it"
    scores = [*(f"{value:g}" for value in game.returns), *([] if last.ended else [cut])]
    print(f"{game.config.game}, seed {game.seed}: return {', '.join(scores)}")
    print(f"The GIF: {path} ({len(game.moments):,} pictures)")
    return 0
