"""`offtrace logs sweep`: a policy's value from files that need not fit into memory together."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from offtrace.cli.log_columns import columns_of, names_given
from offtrace.cli.log_policies import load_policy
from offtrace.cli.log_traces import chosen_trace

MODELS = ("table", "linear", "fourier", "network")
JSON = (
    *("value", "low", "high", "confidence", "standard_error", "observed", "observed_error", "unlogged"),
    *("steps", "episodes", "sweeps", "converged"),
)
"""What `--json` tells; null where there is no number."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add what `sweep` takes beside the dataset, the policy, the trace and the columns."""
    group = command.add_argument_group("sweeping")
    group.add_argument("--gamma", type=float, required=True, metavar="X", help="the discount γ")
    group.add_argument(
        "--model",
        choices=MODELS,
        help="of Q: a table for states that are ids; fourier (the default for features), linear or network",
    )
    group.add_argument(
        "--actions",
        nargs="+",
        metavar="NAME",
        help="where states are features: how many actions there are, or their names",
    )
    group.add_argument("--confidence", type=float, default=0.95, metavar="X", help="of the interval (0.95)")
    group.add_argument(
        "--no-interval", action="store_true", help="none: of a table it takes as many sweeps as Q itself"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of Fourier features and networks (0)")
    group.add_argument("--sweeps", type=int, metavar="N", help="so many, from Q = 0 (as many as the fixed point takes)")
    group.add_argument(
        "--on", choices=("here", "ray"), default="here", help="threads of this machine, or a Ray cluster"
    )
    group.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster (a new one on this machine)")
    group.add_argument(
        "--workers", type=int, metavar="N", help="files that are read at the same time (one for each core)"
    )
    group.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER", help="keep sums here; the same command goes on from them"
    )
    group.add_argument(
        "--output", "-o", type=Path, metavar="FILE.npz", help="also write Q and counts [S, A] of a table"
    )
    group.add_argument(
        "--json", action="store_true", help="print the result as JSON, and nothing else, on standard output"
    )
    group.add_argument("--quiet", "-q", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Sweep, and print what was found."""
    from offtrace.logs import sweep

    target = load_policy(args.policy)
    of_features = callable(target.policy) or hasattr(target.policy, "predict_proba")
    if of_features and args.output is not None:
        raise ValueError("--output writes a table [S, A], and with features there is none")
    found = sweep(
        args.dataset,
        target.policy,
        trace=chosen_trace(args),
        gamma=args.gamma,
        model=args.model,
        confidence=None if args.no_interval else args.confidence,
        seed=args.seed,
        columns=columns_of(args.columns),
        truncated="at end" if args.truncated == "at-end" else args.truncated,
        states=target.states,
        actions=names_given(args.actions) or target.actions,
        sweeps=args.sweeps,
        on=args.on,
        address=args.address,
        workers=args.workers,
        checkpoint=args.checkpoint,
        progress=not args.quiet,
    )
    if args.output is not None:
        np.savez(args.output, Q=found.Q, counts=found.counts)
    told = {name: getattr(found, name) for name in JSON}
    print(json.dumps({name: None if x != x else x for name, x in told.items()}) if args.json else found)
    return 0
