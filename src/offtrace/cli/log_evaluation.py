"""`offtrace logs evaluate`: what target policies are worth, by a trace and by the standard estimators."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from offtrace._shared.suggestions import did_you_mean
from offtrace.cli.log_columns import columns_of, read_logs
from offtrace.cli.log_policies import Target, load_policies
from offtrace.cli.log_traces import chosen_trace
from offtrace.logs.container import Logs


def add_options(command: argparse.ArgumentParser) -> None:
    """Add what `evaluate` takes beside the dataset, the policy, the trace and the columns."""
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


def run(args: argparse.Namespace) -> int:
    """Evaluate, and print what was found."""
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
    logs = read_logs(args, first)
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
    states = logs.names("states")
    names = [str(name) for name in states]
    for text in given:
        if text not in names:
            raise ValueError(
                f"--initial {text}: there is no such state{did_you_mean(text, names)}; the log has {len(names)}"
            )
    return np.array([states[names.index(text)] for text in given])


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
    return {str(logged): Target(None)} if args.policy is None else load_policies(args.policy)
