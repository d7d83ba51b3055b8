"""`offtrace logs sweep`: a policy's value from files that need not fit into memory together."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import Positional, arg

from offtrace.cli.log_policies import POLICY, load_policy
from offtrace.cli.log_reading import Names, ReadColumns, names_given
from offtrace.cli.options import Quiet
from offtrace.cli.rule_options import parameters, trace_of_logs

JSON = (
    *("value", "low", "high", "confidence", "standard_error", "observed", "observed_error", "unlogged"),
    *("steps", "episodes", "sweeps", "converged"),
)
"""What `--json` tells; null where there is no number."""


def sweep(
    dataset: Positional[str],
    *,
    policy: Annotated[str, arg(metavar="FILE", help=POLICY)],
    gamma: float,
    trace: Annotated[str, arg(metavar="NAME")] = "rbis",
    rule: Annotated[Mapping[str, Any], arg(name="", constructor_factory=parameters)],
    model: Literal["table", "linear", "fourier", "network"] | None = None,
    actions: Names = None,
    confidence: float = 0.95,
    interval: bool = True,
    seed: int = 0,
    sweeps: int | None = None,
    on: Literal["here", "ray"] = "here",
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None,
    workers: int | None = None,
    checkpoint: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    output: Annotated[Path | None, arg(aliases=["-o"], metavar="FILE.npz")] = None,
    json: bool = False,
    quiet: Quiet = False,
    reading: Annotated[ReadColumns, arg(name="")],
) -> int:
    """What a target policy is worth by a trace alone, from files that need not fit into memory together.

    Example: `offtrace logs sweep FOLDER --policy policy.npz --trace rbis --lam 0.95 --gamma 0.99`

    Args:
        dataset: a table, a folder or a pattern of them, or a Minari dataset
        gamma: the discount γ
        trace: by its name, or FILE.py:NAME, a trace that the Python file makes. offtrace executes the whole file
        model: of Q: a table for states that are ids; fourier (the default for features), linear or network
        actions: where states are features: how many actions there are, or their names
        confidence: of the interval
        interval: none: of a table it takes as many sweeps as Q itself
        seed: of Fourier features and networks
        sweeps: so many, from Q = 0; as many as the fixed point takes by default
        on: threads of this machine, or a Ray cluster
        address: of the Ray cluster; a new one on this machine by default
        workers: files that are read at the same time; one for each core by default
        checkpoint: keep sums here; the same command resumes from them
        output: also write Q and counts [S, A] of a table
        json: print the result as JSON, and nothing else, on standard output
        quiet: show no progress
    """
    from offtrace.logs import sweep

    target = load_policy(policy)
    of_features = callable(target.policy) or hasattr(target.policy, "predict_proba")
    if of_features and output is not None:
        raise ValueError("--output writes a table [S, A], and with features there is none")
    swept = sweep(
        dataset,
        target.policy,
        trace=trace_of_logs(trace, rule),
        gamma=gamma,
        model=model,
        confidence=confidence if interval else None,
        seed=seed,
        columns=reading.named(),
        truncated=reading.cuts(),
        states=target.states,
        actions=names_given(actions) or target.actions,
        sweeps=sweeps,
        on=on,
        address=address,
        workers=workers,
        checkpoint=checkpoint,
        progress=not quiet,
    )
    if output is not None:
        np.savez(output, Q=swept.Q, counts=swept.counts)
    told = {name: getattr(swept, name) for name in JSON}
    print(json_format.dumps({name: None if x != x else x for name, x in told.items()}) if json else swept)
    return 0
