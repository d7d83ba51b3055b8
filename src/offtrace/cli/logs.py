"""`offtrace logs`, with `describe` and `estimators`; its other commands are `log_evaluation`, `log_sweeps` and `log_evidence`."""

from __future__ import annotations

import argparse

from offtrace.cli import log_columns, log_evaluation, log_evidence, log_sweeps, log_traces
from offtrace.cli.commands import Commands, commands_of
from offtrace.cli.error_words import said
from offtrace.cli.log_policies import load_policy


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
        (
            "evaluate",
            log_evaluation.run,
            "estimate what a target policy is worth, by a trace and by the standard estimators",
        ),
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
            log_traces.add_options(made)
        if name == "evaluate":
            log_evaluation.add_options(made)
        if name == "sweep":
            log_sweeps.add_options(made)
        log_columns.add_options(made, drops=name != "sweep")
        made.set_defaults(run=lambda args, run=run: said(run, args))
    words = "list the estimators: what each computes, and what it needs"
    listed = of_logs.add_parser("estimators", help=words, description=f"{words[0].upper()}{words[1:]}.")
    listed.set_defaults(run=_list_estimators)
    words = "try traces and the other estimators where the truth is known: when traces help, and when not"
    evidence = of_logs.add_parser("evidence", help=words, description=f"{words[0].upper()}{words[1:]}.")
    log_evidence.add_options(evidence)
    evidence.set_defaults(run=lambda args: said(log_evidence.run, args))


def _describe(args: argparse.Namespace) -> int:
    from offtrace.logs.description import describe

    target = None if args.policy is None else load_policy(args.policy)
    print(describe(log_columns.read_logs(args, target), None if target is None else target.policy))
    return 0


def _list_estimators(args: argparse.Namespace) -> int:
    from offtrace.logs.estimators.built_in import ESTIMATORS
    from offtrace.logs.estimators.registry import NEEDS

    width = max(map(len, ESTIMATORS))
    for name, entry in ESTIMATORS.items():
        needs = f"; needs {' and '.join(NEEDS[need] for need in entry.needs)}" if entry.needs else ""
        print(f"{name:<{width}}  {entry.equation}{needs}")
    return 0
