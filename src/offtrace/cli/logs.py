"""`offtrace logs describe`, `sweep` and `estimators`; `evaluate` is in `log_evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from tyro.conf import arg

from offtrace.cli.log_options import POLICY, ByTrace, Names, Reading, names_given
from offtrace.cli.log_policies import load_policy
from offtrace.cli.options import Quiet, command_options


@command_options
class Describe(Reading):
    """The options of `describe`."""

    policy: Annotated[str | None, arg(metavar="FILE", help=POLICY)] = None


def describe(options: Annotated[Describe, arg(name="")]) -> int:
    """Say what logs are like, and what they can say about a target policy.

    Example: `offtrace logs describe logs.parquet --columns mu=propensity --policy greedy.npz`
    """
    from offtrace.logs.description import describe

    target = None if options.policy is None else load_policy(options.policy)
    print(describe(options.read(target), None if target is None else target.policy))
    return 0


JSON = (
    *("value", "low", "high", "confidence", "standard_error", "observed", "observed_error", "unlogged"),
    *("steps", "episodes", "sweeps", "converged"),
)
"""What `--json` tells; null where there is no number."""


@command_options
class Sweep(ByTrace):
    """The options of `sweep`."""

    policy: Annotated[str, arg(metavar="FILE", help=POLICY)]
    # of Q: a table for states that are ids; fourier (the default for features) or linear
    model: Literal["table", "linear", "fourier"] | None = None
    actions: Names = None  # where states are features: how many actions there are, or their names
    confidence: float = 0.95  # of the interval
    interval: bool = True  # none: of a table it takes as many sweeps as Q itself
    seed: int = 0  # of Fourier features
    sweeps: int | None = None  # so many, from Q = 0; as many as the fixed point takes by default
    on: Literal["here", "ray"] = "here"  # threads of this machine, or a Ray cluster
    # of the Ray cluster; a new one on this machine by default
    address: Annotated[str | None, arg(metavar="HOST:PORT")] = None
    workers: int | None = None  # files that are read at the same time; one for each core by default
    # also write Q and counts [S, A] of a table
    output: Annotated[Path | None, arg(aliases=["-o"], metavar="FILE.npz")] = None
    json: bool = False  # print the result as JSON, and nothing else, on standard output
    quiet: Quiet = False  # show no progress


PASSED = ("gamma", "model", "seed", "sweeps", "on", "address", "workers")
"""What `offtrace.logs.sweep` takes as it is."""


def sweep(options: Annotated[Sweep, arg(name="")]) -> int:
    """What a target policy is worth by the direct method, or by a trace, from files that need not fit into memory together.

    Example: `offtrace logs sweep FOLDER --policy policy.npz --gamma 0.99`
    """
    from offtrace.logs import sweep

    target = load_policy(options.policy)
    of_features = callable(target.policy) or hasattr(target.policy, "predict_proba")
    if of_features and options.output is not None:
        raise ValueError("--output writes a table [S, A], and with features there is none")
    swept = sweep(
        options.dataset,
        target.policy,
        trace=options.rule_of(),
        confidence=options.confidence if options.interval else None,
        columns=options.named(),
        truncated=options.cuts(),
        states=target.states,
        actions=names_given(options.actions) or target.actions,
        progress=not options.quiet,
        **{name: getattr(options, name) for name in PASSED},
    )
    if options.output is not None:
        np.savez(options.output, Q=swept.Q, counts=swept.counts)
    told = {name: getattr(swept, name) for name in JSON}
    print(json.dumps({name: None if x != x else x for name, x in told.items()}) if options.json else swept)
    return 0


def estimators() -> int:
    """List the estimators: what each computes, and what it needs.

    Example: `offtrace logs estimators`
    """
    from offtrace.logs.estimators import ESTIMATORS
    from offtrace.logs.registry import NEEDS

    width = max(map(len, ESTIMATORS))
    for name, entry in ESTIMATORS.items():
        needs = f"; needs {' and '.join(NEEDS[need] for need in entry.needs)}" if entry.needs else ""
        print(f"{name:<{width}}  {entry.equation}{needs}")
    return 0
