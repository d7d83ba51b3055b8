"""`offtrace logs describe` and `offtrace logs evaluate`.

A target policy is an .npz file with `probabilities` [S, A] and, where the log names its states or actions, `states` [S] and
`actions` [A] with these names; or FILE.py:NAME, a function of states, or a classifier, that a Python file makes. The file is
executed for that, whatever it does; an .npz file is only read.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from offtrace._shared.array_files import read_arrays
from offtrace._shared.suggestions import did_you_mean
from offtrace.cli import trace_options
from offtrace.cli.commands import INTERRUPTED, Commands, Run
from offtrace.logs.container import Logs
from offtrace.logs.reading.columns import Columns
from offtrace.returns.api import as_trace
from offtrace.traces import Trace, rules
from offtrace.trajectory import distributions

LAMBDA = 0.95
"""The λ of a rule that has one, if none is given."""


def add(commands: Commands) -> None:
    """Add the commands to those of `offtrace`."""
    logs = commands.add_parser(
        "logs",
        help="what a policy would be worth, from logs of another one",
        description="Read logged trajectories, look at them, and evaluate a policy that did not make them.",
    )
    of_logs = logs.add_subparsers(required=True, metavar="COMMAND")
    for name, run, words in (
        ("describe", _describe, "say what logs are like, and what they can say about a target policy"),
        ("evaluate", _evaluate, "estimate what a target policy is worth, by a trace and by the standard estimators"),
    ):
        made = of_logs.add_parser(
            name,
            help=words,
            description=f"{words[0].upper()}{words[1:]}.",
            usage=f"offtrace logs {name} DATASET [options]",
        )
        made.add_argument(
            "dataset", metavar="DATASET", help="a table, a folder or a pattern of them, or a Minari dataset"
        )
        made.add_argument(
            "--policy",
            metavar="FILE",
            required=name == "evaluate",
            help="the target: an .npz file of `probabilities` [S, A] and, where the log has names, `states` and `actions`; or "
            "FILE.py:NAME, a function (states → probabilities) or a classifier that the Python file makes. offtrace executes the "
            "whole file: name only files that you would run yourself",
        )
        if name == "evaluate":
            _add_estimation(made)
        _add_reading(made)
        made.set_defaults(run=lambda args, run=run: _said(run, args))
    words = "list the estimators: what each computes, and what it needs"
    listed = of_logs.add_parser("estimators", help=words, description=f"{words[0].upper()}{words[1:]}.")
    listed.set_defaults(run=_list_estimators)


def _add_reading(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("reading")
    group.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="WHAT=COLUMN",
        help=f"what the columns are called, as in state=x,y mu=p next_state=; nothing after = is none. "
        f"WHAT is {', '.join(field.name for field in fields(Columns))}",
    )
    group.add_argument(
        "--truncated",
        choices=("never", "at-end"),
        help="where no column says it: no episode was cut, or those whose last step is not terminated",
    )
    group.add_argument(
        "--on-error", choices=("raise", "drop"), default="raise", help="drop: leave out episodes with impossible values"
    )


def _add_estimation(command: argparse.ArgumentParser) -> None:
    of_rule = command.add_argument_group("the trace", "Parameters that are not given are those of the rule itself.")
    names = ", ".join(rule.__name__ for rule in _rules())
    of_rule.add_argument("--trace", default="rbis", metavar="NAME", help=f"of the fitted estimate (RBIS): {names}")
    trace_options.add(of_rule.add_argument, _rules(), LAMBDA)
    group = command.add_argument_group("estimation")
    group.add_argument("--gamma", type=float, required=True, metavar="X", help="the discount γ")
    group.add_argument(
        "--model", choices=("table", "linear", "trees", "network"), help="of Q (a table for ids, linear in features)"
    )
    group.add_argument(
        "--estimators",
        nargs="+",
        metavar="NAME",
        help="only these (all that can be computed); `offtrace logs estimators` lists them",
    )
    group.add_argument(
        "--behavior",
        choices=("logged", "estimate", "unknown"),
        default="logged",
        help="μ as logged, and estimated where it was not (default); estimated in any case; or not even then",
    )
    group.add_argument("--confidence", type=float, default=0.95, metavar="X", help="of the intervals (0.95)")
    group.add_argument("--resamples", type=int, default=1000, metavar="N", help="of the bootstrap (1000)")
    group.add_argument(
        "--rewards",
        type=float,
        nargs=2,
        metavar=("LO", "HI"),
        help="their range, for the conservative interval (the data's)",
    )
    group.add_argument(
        "--longest",
        type=int,
        metavar="N",
        help="the most steps that an episode can have, for the conservative interval",
    )
    group.add_argument("--page", type=Path, metavar="FILE.html", help="also write one HTML page about it")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap and the folds (0)")


def _rules() -> list[type[Trace]]:
    """Those that a command line can name: C-trace adapts a number, and variable λ has one for every step."""
    return [r for r in rules() if issubclass(r, Trace) and not r.adaptive and not r.per_step]


class Target(NamedTuple):
    """A policy from a file."""

    policy: object
    """A table [S, A], a callable or a classifier."""
    states: int | tuple[int | str, ...] | None = None
    """S, or the names of the states; None: those of the log."""
    actions: int | tuple[int | str, ...] | None = None
    """A, or the names of the actions; None: those of the log."""


def load_policy(text: str) -> Target:
    """The target policy that --policy names."""
    file, colon, name = text.rpartition(":")
    return Target(_from_python(Path(file), name)) if colon and file.endswith(".py") else _from_npz(Path(text))


def _from_python(file: Path, name: str) -> object:
    made = runpy.run_path(str(file))
    if name not in made:
        there = [each for each in made if not each.startswith("__")]
        raise ValueError(f"{file} makes no {name!r}{did_you_mean(name, there)}: it makes {', '.join(sorted(there))}")
    return made[name]


def _from_npz(file: Path) -> Target:
    try:
        there = read_arrays(file)
    except ValueError as error:
        raise ValueError(
            f"{error}: np.savez(file, probabilities=pi) writes one; what a Python file makes is FILE.py:NAME"
        ) from None
    if "probabilities" not in there:
        raise ValueError(
            f"{file} has no array 'probabilities' [S, A]{did_you_mean('probabilities', list(there))}: it has {sorted(there)}. "
            "np.savez(file, probabilities=pi) writes one"
        )
    pi = there["probabilities"]
    if pi.ndim != 2 or 0 in pi.shape or pi.dtype.kind not in "fiub":
        raise ValueError(f"probabilities in {file} must be numbers [S, A], got {pi.dtype} of shape {pi.shape}")
    pi = distributions(pi, f"probabilities in {file}")
    named: list[int | tuple[int | str, ...]] = []
    for name, size in (("states", pi.shape[0]), ("actions", pi.shape[1])):
        names = there.get(name)
        if names is not None and names.shape != (size,):
            raise ValueError(
                f"{name} in {file} must be the {size} names of [S, A] = {pi.shape}, got shape {names.shape}"
            )
        named.append(size if names is None else tuple(names.tolist()))
    return Target(pi, *named)


def columns_of(texts: list[str]) -> Columns:
    """Columns as --columns has them."""
    known = [field.name for field in fields(Columns)]
    given: dict[str, Any] = {}  # `Columns` checks them
    for text in texts:
        what, equals, column = text.partition("=")
        if not equals or what not in known:
            raise ValueError(
                f"--columns takes WHAT=COLUMN, got {text!r}{did_you_mean(what, known)}: WHAT is {', '.join(known)}; "
                "DATASET comes before it"
            )
        several = tuple(column.split(","))
        given[what] = several if len(several) > 1 else column or None
    return Columns(**given)


def _read(args: argparse.Namespace, target: Target | None) -> Logs:
    from offtrace.logs.reading.sources import read

    return read(
        args.dataset,
        columns=columns_of(args.columns),
        truncated="at end" if args.truncated == "at-end" else args.truncated,
        on_error=args.on_error,
        states=None if target is None else target.states,
        actions=None if target is None else target.actions,
    )


def _describe(args: argparse.Namespace) -> int:
    from offtrace.logs.description import describe

    target = None if args.policy is None else load_policy(args.policy)
    print(describe(_read(args, target), None if target is None else target.policy))
    return 0


def _list_estimators(args: argparse.Namespace) -> int:
    from offtrace.logs.estimators.built_in import ESTIMATORS
    from offtrace.logs.estimators.registry import NEEDS

    width = max(map(len, ESTIMATORS))
    for name, entry in ESTIMATORS.items():
        needs = f"; needs {' and '.join(NEEDS[need] for need in entry.needs)}" if entry.needs else ""
        print(f"{name:<{width}}  {entry.equation}{needs}")
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from offtrace.logs.evaluation import evaluate

    rule = as_trace(trace_options.chosen(args, _rules(), LAMBDA))
    target = load_policy(args.policy)
    logs = _read(args, target)
    if logs.report is not None:
        print(logs.report)
    result = evaluate(
        logs,
        target.policy,
        trace=rule,
        gamma=args.gamma,
        model=args.model,
        estimators=args.estimators,
        behavior={"logged": None, "estimate": "estimate", "unknown": False}[args.behavior],
        confidence=args.confidence,
        resamples=args.resamples,
        rewards=args.rewards,
        longest=args.longest,
        seed=args.seed,
    )
    print(result)
    if args.page is not None:
        from offtrace import reports

        print(f"The page: {reports.evaluation_page(result, args.page, command=args.typed)}")
    return 0


def _said(run: Run, args: argparse.Namespace) -> int:
    """Errors are words, not tracebacks."""
    try:
        return run(args)
    except KeyboardInterrupt:
        print("offtrace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"offtrace: {error}", file=sys.stderr)
        return 2
