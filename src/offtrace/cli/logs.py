"""`offtrace logs describe` and `offtrace logs evaluate`; also `sweep` (`log_sweeps`) and `evidence` (`log_evidence`).

A target policy is an .npz file with `probabilities` [S, A] and, where the log names its states or actions, `states` [S] and
`actions` [A] with these names; or FILE.py:NAME, a function of states, or a classifier, that a Python file makes. The file is
executed for that, whatever it does; an .npz file is only read. Where actions are real numbers it is a `Density` or a
`Deterministic` that a Python file makes, or nothing, where a column has log π of the actions taken.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offtrace._shared.array_files import read_arrays
from offtrace._shared.suggestions import did_you_mean
from offtrace.cli import log_evidence, log_sweeps, trace_options
from offtrace.cli.commands import INTERRUPTED, Commands, Run, commands_of
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
    of_logs = commands_of(logs)
    for name, run, words in (
        ("describe", _describe, "say what logs are like, and what they can say about a target policy"),
        ("evaluate", _evaluate, "estimate what a target policy is worth, by a trace and by the standard estimators"),
        ("sweep", log_sweeps.run, "the same by a trace alone, from files that need not fit into memory together"),
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
            nargs="+" if name == "evaluate" else None,
            required=name == "sweep",
            help="the target (several are ranked): an .npz file of `probabilities` [S, A] and, where the log has names, `states` "
            "and `actions`; or FILE.py:NAME, a function (states → probabilities) or a classifier that the Python file makes, or, "
            "where actions are real numbers, a Density or a Deterministic (none: --columns log_pi=…). offtrace executes the "
            "whole file: name only files that you would run yourself",
        )
        if name != "describe":
            _add_trace(made)
        if name == "evaluate":
            _add_estimation(made)
        if name == "sweep":
            log_sweeps.add_options(made)
        _add_reading(made, drops=name != "sweep")
        made.set_defaults(run=lambda args, run=run: _said(run, args))
    words = "list the estimators: what each computes, and what it needs"
    listed = of_logs.add_parser("estimators", help=words, description=f"{words[0].upper()}{words[1:]}.")
    listed.set_defaults(run=_list_estimators)
    words = "try traces and the other estimators where the truth is known: when traces help, and when not"
    evidence = of_logs.add_parser("evidence", help=words, description=f"{words[0].upper()}{words[1:]}.")
    log_evidence.add_options(evidence)
    evidence.set_defaults(run=lambda args: _said(log_evidence.run, args))


def _add_reading(command: argparse.ArgumentParser, *, drops: bool) -> None:
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
    if not drops:
        return
    group.add_argument(
        "--actions",
        choices=("continuous",),
        help="they are real numbers, and μ are densities; several columns (action=x,y) and lists are so without it",
    )
    group.add_argument(
        "--on-error", choices=("raise", "drop"), default="raise", help="drop: leave out episodes with impossible values"
    )
    group.add_argument(
        "--drop-at-most",
        type=float,
        default=0.05,
        metavar="X",
        help="the share of the episodes that may be dropped; more is an error (0.05)",
    )


def _add_trace(command: argparse.ArgumentParser) -> None:
    of_rule = command.add_argument_group("the trace", "Parameters that are not given are those of the rule itself.")
    names = ", ".join(rule.__name__ for rule in _rules())
    of_rule.add_argument(
        "--trace",
        default="rbis",
        metavar="NAME",
        help=f"of the fitted estimate (RBIS): {names}; or FILE.py:NAME, a trace that the Python file makes. offtrace executes "
        "the whole file: name only files that you would run yourself",
    )
    trace_options.add(of_rule.add_argument, _rules(), LAMBDA)


def _add_estimation(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("estimation")
    group.add_argument(
        "--choose-lam", action="store_true", help="let the data choose λ (SLOPE, and the check by V(μ)), and say why"
    )
    group.add_argument("--gamma", type=float, required=True, metavar="X", help="the discount γ")
    group.add_argument(
        "--model",
        choices=("table", "linear", "fourier", "trees", "network"),
        help="of Q (a table for ids, random Fourier features of features)",
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
    group.add_argument(
        "--initial",
        nargs="+",
        metavar="STATE",
        help="the first states to average over, by their names or ids; or one .npy file of ids, of a distribution [S], or of "
        "features [m, d] (those of the episodes)",
    )
    group.add_argument(
        "--truths",
        nargs="+",
        type=float,
        metavar="X",
        help="V(π) of each policy, where it is known: for regret and rank correlation",
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
    group.add_argument(
        "--json", action="store_true", help="print the result as JSON, and nothing else, on standard output"
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
        drop_at_most=args.drop_at_most,
        states=None if target is None else target.states,
        actions=_actions(args.actions, target),
    )


def _actions(said: str | None, target: Target | None) -> int | str | tuple[int | str, ...] | None:
    """The actions for `read`: what --actions says of them, or the policy's."""
    of_policy = None if target is None else target.actions
    if said is not None and of_policy is not None:
        raise ValueError(
            "--actions continuous says that actions are real numbers, but the policy is a table [S, A] of ids: give a Density or "
            "a Deterministic, --policy FILE.py:NAME, or a column of log π, --columns log_pi=…"
        )
    return said if said is not None else of_policy


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


def load_trace(text: str) -> Trace:
    """The trace that a Python file makes, named as FILE.py:NAME."""
    file, _, name = text.rpartition(":")
    made = _from_python(Path(file), name)
    made = made() if isinstance(made, type) else made
    if not isinstance(made, Trace):
        raise TypeError(
            f"{name} in {file} is no trace, but {type(made).__name__}: it must be one, such as RBIS(lam=0.9)"
        )
    return made


def chosen_trace(args: argparse.Namespace) -> Trace:
    """The trace that --trace and the options of its parameters name."""
    if ".py:" in args.trace:
        rule = load_trace(args.trace)
        return replace(rule, lam=args.lam) if getattr(args, "lam", None) is not None and hasattr(rule, "lam") else rule
    return as_trace(trace_options.chosen(args, _rules(), LAMBDA))


def _initial(given: list[str] | None, logs: Logs) -> object:
    """The first states that --initial names."""
    if given is None:
        return None
    if len(given) == 1 and given[0].endswith(".npy"):
        try:
            return np.load(given[0], allow_pickle=False)
        except (EOFError, ValueError) as error:
            raise ValueError(f"--initial {given[0]} cannot be read: {error}; np.save writes such a file") from None
    if not logs.tabular:
        raise ValueError(
            "--initial takes an .npy file of features [m, d] here, since the states of these logs are features"
        )
    names = [str(name) for name in logs.state_names or range(logs.states)]
    for text in given:
        if text not in names:
            raise ValueError(
                f"--initial {text}: there is no such state{did_you_mean(text, names)}; the log has {len(names)}"
            )
    return np.array([names.index(text) for text in given])


def _named(files: list[str]) -> dict[str, Target]:
    """The policies by the names of their files, or of what Python files make."""
    found: dict[str, Target] = {}
    for text in files:
        file, colon, name = text.rpartition(":")
        short = name if colon and file.endswith(".py") else Path(text).stem
        found[text if short in found else short] = load_policy(text)
    sizes = {(target.states, target.actions) for target in found.values()}
    if len(sizes) > 1:
        raise ValueError(
            f"the policies have different states or actions: {', '.join(found)}. Those of one command must agree"
        )
    return found


def _policies(args: argparse.Namespace) -> dict[str, Target]:
    """The policies that --policy names, or the one of a column log_pi."""
    logged = columns_of(args.columns).log_pi
    if args.policy is None and logged is None:
        raise ValueError(
            "--policy is missing: name the target policy, FILE.npz or FILE.py:NAME; where actions are real numbers, a column of "
            "its log densities does, too: --columns log_pi=…"
        )
    if args.policy is not None and logged is not None:
        raise ValueError("--policy and --columns log_pi=… both say what the target policy is: leave out one of them")
    return {str(logged): Target(None)} if args.policy is None else _named(args.policy)


def _evaluate(args: argparse.Namespace) -> int:
    from offtrace._shared.progress_bar import ProgressBar
    from offtrace.logs.choosing import choose
    from offtrace.logs.comparing import Comparison, compare
    from offtrace.logs.evaluation import evaluate

    rule, targets = chosen_trace(args), _policies(args)
    if args.truths is not None and len(args.truths) != len(targets):
        raise ValueError(f"--truths has {len(args.truths)} values for {len(targets)} policies")
    if args.page is not None and len(targets) > 1:
        raise ValueError("--page shows one policy: name one --policy, or leave it out")
    first = next(iter(targets.values()))
    logs = _read(args, first)
    options: dict[str, Any] = {
        "model": args.model,
        "behavior": {"logged": None, "estimate": "estimate", "unknown": False}[args.behavior],
        "initial": _initial(args.initial, logs),
        "seed": args.seed,
    }
    say = (lambda text: None) if args.json else print
    if logs.report is not None:
        say(logs.report)
    if args.choose_lam:
        choice = choose(logs, first.policy, gamma=args.gamma, traces=[rule], **options)
        rule = choice.trace
        say(choice)
    options |= {
        "estimators": args.estimators,
        "confidence": args.confidence,
        "resamples": args.resamples,
        "rewards": args.rewards,
        "longest": args.longest,
    }
    with ProgressBar() as bar:
        options |= {"trace": rule, "gamma": args.gamma, "progress": bar.show if sys.stderr.isatty() else None}
        if len(targets) > 1:
            truths = None if args.truths is None else dict(zip(targets, args.truths, strict=True))
            policies = {name: target.policy for name, target in targets.items()}
            found = compare(logs, policies, truths=truths, **options)
        else:
            found = evaluate(logs, first.policy, **options)
    print(json.dumps(found.as_json(), ensure_ascii=False, indent=2) if args.json else found)
    if args.page is not None and not isinstance(found, Comparison):
        from offtrace import reports

        say(f"The page: {reports.evaluation_page(found, args.page, command=args.typed)}")
    return 0


SPELT = (
    (r"Columns\((\w+)=…\)", r"--columns \1=…"),
    (r"Columns\((\w+)='([^']*)'\), or ", ""),
    (r"Columns\((\w+)=None\)", r"--columns \1="),
    (r'truncated="never"', "--truncated never"),
    (r'truncated="at end"', "--truncated at-end"),
    (r'on_error="drop" \(--on-error drop\)', "--on-error drop"),
    (r"drop_at_most \(--drop-at-most\)", "--drop-at-most"),
    (r"behavior=None, --behavior logged", "--behavior logged"),
    (r"behavior=False", "--behavior unknown"),
    (r"give it as a policy \(behavior=…\), or ", "or "),
    (r'actions="continuous"', "--actions continuous"),
    (r"give it as behavior=Density\(log_pi\), or ", "or "),
    (r"`read` their number or names: states=…, actions=…", "their names in the policy's file: states, actions"),
    (r"\b(estimators|initial|model|gamma|confidence|resamples|rewards|longest) (must|is|says)", r"--\1 \2"),
)
"""How Python says it, and how the command line does."""


def in_words_of_the_command(text: str) -> str:
    """An error's text with options in place of arguments.

    >>> in_words_of_the_command("Declare another one with Columns(mu=…)")
    'Declare another one with --columns mu=…'
    """
    for python, option in SPELT:
        text = re.sub(python, option, text)
    return text


def _said(run: Run, args: argparse.Namespace) -> int:
    """Errors are words, not tracebacks."""
    try:
        return run(args)
    except KeyboardInterrupt:
        print("offtrace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"offtrace: {in_words_of_the_command(str(error))}", file=sys.stderr)
        return 2
