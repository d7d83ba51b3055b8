"""`offtrace deep train`, whose options are the fields of Config and the parameters of the rules, and `offtrace deep play`.

Nothing here imports JAX before a command runs: `--help` and wrong options need not wait for it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import re
import shlex
import sys
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from offtrace._shared.extras import install
from offtrace.cli import trace_options
from offtrace.cli.commands import INTERRUPTED, Commands, Run, commands_of
from offtrace.cli.options import add_option, integer
from offtrace.deep.config import AGENTS, Config, configuration
from offtrace.deep.settings import Settings
from offtrace.traces import Rule, rules

if TYPE_CHECKING:
    from offtrace.deep.runs import Trained

LAMBDA = 0.9
"""The λ of a rule that has one, if none is given."""


def add(commands: Commands) -> None:
    """Add the commands to those of `offtrace`."""
    deep = commands.add_parser(
        "deep",
        help="train deep agents, and watch them play",
        description="Deep agents that learn with any trace: from a replay memory, from fresh steps, or in a stream.",
    )
    of_deep = commands_of(deep)
    _add_train(of_deep)
    _add_play(of_deep)


def _add_train(of_deep: Commands) -> None:
    words = "train an agent; interrupt it at any time, and the same command goes on"
    train = of_deep.add_parser(
        "train", help=words, description=f"{words[0].upper()}{words[1:]}.", usage="offtrace deep train GAME [options]"
    )
    about = documented(Config)
    train.add_argument("game", metavar="GAME", help=about["game"])
    train.add_argument("--agent", choices=tuple(AGENTS), default="replay", help="what learns (replay)")
    train.add_argument(
        "--seeds", type=integer, default=1, metavar="N", help="seeds 0 to N − 1, trained side by side (1)"
    )
    train.add_argument("--out", type=Path, metavar="FOLDER", help="of logs and checkpoints (runs/GAME-AGENT-TRACE)")
    train.add_argument("--keep", type=integer, default=2, metavar="N", help="checkpoints to keep (2)")
    train.add_argument("--quiet", "-q", action="store_true", help="show no progress")
    of_rule = train.add_argument_group("the trace", "Parameters that are not given are those of the rule itself.")
    defaults = _defaults("trace")
    of_rule.add_argument("--trace", metavar="NAME", help=f"{about['trace'][:-1]}{defaults}")
    trace_options.add(of_rule.add_argument, _rules(), LAMBDA)
    added = {"game", "trace"}
    for cls in (Settings, *AGENTS.values()):
        new = [field for field in fields(cls) if field.name not in added]
        title = f"the agent {cls.agent}" if cls.agent else "every agent"
        group = train.add_argument_group(title, f"{cls.title[0].upper()}{cls.title[1:]}." if cls.title else None)
        kinds, about = get_type_hints(cls), documented(cls)
        for field in new:
            words = about[field.name].rstrip(".,") + _defaults(field.name)
            add_option(group.add_argument, field.name, kinds[field.name], words)
        added |= {field.name for field in new}
    train.set_defaults(run=lambda args: _said(_train, args))


def _add_play(of_deep: Commands) -> None:
    words = "record a GIF of a trained agent"
    play = of_deep.add_parser("play", help=words, description=f"{words[0].upper()}{words[1:]}: the latest checkpoint.")
    play.add_argument("folder", type=Path, help="of a run: what train calls FOLDER")
    play.add_argument("--seed", type=int, metavar="N", help="whose network plays (the first)")
    play.add_argument("--episodes", type=integer, default=1, metavar="N", help="to play (1)")
    play.add_argument(
        "--steps", type=integer, default=1_000, metavar="N", help="after which it ends in any case (1_000)"
    )
    play.add_argument("--epsilon", type=float, default=0.0, metavar="X", help="the share of random actions (0: greedy)")
    play.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="a Python module that may be imported for the game",
    )
    play.add_argument("--trust", action="store_true", help="import whatever module the checkpoint names: that runs it")
    play.add_argument("--output", "-o", type=Path, metavar="FILE", help="the GIF (play-seed-N.gif in FOLDER)")
    play.set_defaults(run=lambda args: _said(_play, args))


def documented(cls: type) -> dict[str, str]:
    """The string below each field in the source of its class, or of the class that it has it from."""
    found: dict[str, str] = {}
    for each in reversed([base for base in cls.__mro__ if issubclass(base, Settings)]):
        found |= _below_fields(each)
    return found


@cache
def _below_fields(cls: type) -> dict[str, str]:
    """Return the strings below the fields that a class itself adds. They are kept, as reading a source takes long."""
    (made,) = ast.parse(inspect.getsource(cls)).body
    return {
        field.target.id: str(ast.literal_eval(below.value))
        for field, below in pairwise(made.body if isinstance(made, ast.ClassDef) else ())
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr)
    }


def _defaults(name: str) -> str:
    """What an option is if it is not given: that of the first agent that has it, and of those where it is another."""
    kept: dict[str, object] = {
        agent: field.default for agent, cls in AGENTS.items() for field in fields(cls) if field.name == name
    }
    first, *_ = kept.values()
    others = [f"{agent}: {_spelt(default)}" for agent, default in kept.items() if default != first]
    if first is None and not others:
        return ""
    return f" ({'; '.join([_spelt(first), *others])})"


def _rules() -> list[type[Rule]]:
    """The rules that some agent can use."""
    return [rule for rule in rules() if any(cls.refusal(rule) is None for cls in AGENTS.values())]


def _spelt(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    if isinstance(default, Rule):
        return spelt(default)
    return f"{default:_}" if type(default) is int else f"{default:g}" if type(default) is float else str(default)


def configured(args: argparse.Namespace) -> Settings:
    """The configuration that the options ask for."""
    given, kind = vars(args), configuration(args.agent)
    own = [field.name for field in fields(kind)]
    every = {field.name for cls in AGENTS.values() for field in fields(cls)}
    for name in sorted(every - {*own}):
        if name in given:
            whose = ", ".join(agent for agent, cls in AGENTS.items() if name in (f.name for f in fields(cls)))
            raise ValueError(f"--{name.replace('_', '-')} is an option of {whose}, not of {args.agent}")
    of_agent = {name: given[name] for name in own if name in given and name != "trace"}
    default = kind.__dataclass_fields__["trace"].default
    return kind(**of_agent, trace=trace_options.chosen(args, _rules(), LAMBDA, default))


def spelt(rule: Rule) -> str:
    """The rule with what is set of it."""
    numbers = {field.name: getattr(rule, field.name) for field in fields(rule)}
    return f"{type(rule).__name__}({', '.join(f'{k}={v}' for k, v in numbers.items() if v is not None)})"


def _train(args: argparse.Namespace) -> int:
    config = configured(args)
    if args.keep < 1:
        raise ValueError(f"keep must be at least 1: with no checkpoint nothing can go on, got {args.keep}")
    from offtrace.deep.runs import train

    agent = f"{config.agent} " if config.agent != "replay" else ""
    name = re.sub(r"[^\w.-]+", "-", f"{config.game} {agent}{spelt(config.trace)}").strip("-")
    folder = args.out or Path("runs") / name
    trained = train(config, args.seeds, folder, keep=args.keep, progress=not args.quiet)
    print(summary(trained, folder))
    return 0 if trained.finished else INTERRUPTED


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
            f"{config.game} with {agent}{spelt(config.trace)}: {done}{' each' * (len(seeds) > 1)}",
            f"Return over the last 10% of frames: {mean}",
            *(f"  seed {seed:<4}{value:10.2f}" for seed, value in ended * (len(seeds) > 1)),
            f"Logs and checkpoints: {folder}",
            *([] if trained.finished else ["  go on:   the same command"]),
            f"  watch:   tensorboard --logdir {shlex.quote(str(folder))}",
            f"  play:    offtrace deep play {shlex.quote(str(folder))}",
        ]
    )


def _play(args: argparse.Namespace) -> int:
    from offtrace.deep.player import play

    given = {name: getattr(args, name) for name in ("seed", "episodes", "steps", "epsilon", "trust")}
    game = play(args.folder, **given, modules=args.module)
    path = game.save(args.output or args.folder / f"play-seed-{game.seed}.gif")
    last = game.moments[-1]
    cut = (
        ""
        if last.ended
        else f"{', ' * bool(game.returns)}{last.score:g} so far after {last.step:,} steps, where --steps ended it"
    )
    print(f"{game.config.game}, seed {game.seed}: return {', '.join(f'{value:g}' for value in game.returns)}{cut}")
    print(f"The GIF: {path} ({len(game.moments):,} pictures)")
    return 0


def _said(run: Run, args: argparse.Namespace) -> int:
    """Errors are words, not tracebacks."""
    try:
        return run(args)
    except ImportError as error:
        hint = f": {install('deep')}" if error.name in ("jax", "flax", "optax", "PIL") else ""
        print(f"offtrace: {error}{hint}", file=sys.stderr)
    except KeyboardInterrupt:
        print(
            "offtrace: interrupted at once; the same command goes on from the last checkpoint, if there is one",
            file=sys.stderr,
        )
        return INTERRUPTED
    except (ValueError, TypeError, OSError) as error:
        print(f"offtrace: {error}", file=sys.stderr)
    except Exception as error:
        from offtrace.deep import CheckpointError, LearningError  # these need JAX

        if not isinstance(error, CheckpointError | LearningError):
            raise
        print(f"offtrace: {error}", file=sys.stderr)
    return 2
