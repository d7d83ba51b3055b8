"""`offtrace logs sweep`: a policy's value from files that need not fit into memory together."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np


def add_options(command: argparse.ArgumentParser) -> None:
    """Add what `sweep` takes beside the dataset, the policy, the trace and the columns."""
    group = command.add_argument_group("sweeping")
    group.add_argument("--gamma", type=float, required=True, metavar="X", help="the discount γ")
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
    group.add_argument("--output", "-o", type=Path, metavar="FILE.npz", help="also write Q and counts [S, A]")
    group.add_argument(
        "--json", action="store_true", help="print the result as JSON, and nothing else, on standard output"
    )
    group.add_argument("--quiet", "-q", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Sweep, and print what was found."""
    from offtrace.cli.logs import chosen_trace, columns_of, load_policy
    from offtrace.logs import sweep

    target = load_policy(args.policy)
    if callable(target.policy) or hasattr(target.policy, "predict_proba"):
        raise TypeError("a sweep needs π as a table: --policy must name an .npz file of `probabilities` [S, A]")
    found = sweep(
        args.dataset,
        np.asarray(target.policy),
        trace=chosen_trace(args),
        gamma=args.gamma,
        columns=columns_of(args.columns),
        truncated="at end" if args.truncated == "at-end" else args.truncated,
        states=target.states,
        actions=target.actions,
        sweeps=args.sweeps,
        on=args.on,
        address=args.address,
        workers=args.workers,
        checkpoint=args.checkpoint,
        progress=not args.quiet,
    )
    if args.output is not None:
        np.savez(args.output, Q=found.Q, counts=found.counts)
    names = ("value", "observed", "observed_error", "steps", "episodes", "sweeps", "converged")
    print(json.dumps({name: getattr(found, name) for name in names}) if args.json else found)
    return 0
