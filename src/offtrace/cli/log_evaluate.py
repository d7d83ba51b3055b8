"""`offtrace logs evaluate`: what target policies are worth, by a trace and by the standard estimators."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import arg

from offtrace._shared.suggestions import did_you_mean
from offtrace.cli.log_options import POLICY, ByTrace, Names, Reading
from offtrace.cli.log_policies import Target, load_policies
from offtrace.cli.options import TYPED, Page, command_options
from offtrace.logs.container import Logs


@command_options
class Evaluate(ByTrace, Reading):
    """The options of `evaluate`."""

    policy: Annotated[tuple[str, ...] | None, arg(metavar="FILE [FILE …]", help=f"{POLICY}; several are ranked")] = None
    # the number of the step is a part of the state, or not; where episodes end by a horizon it is by default
    step: Literal["yes", "no"] | None = None
    # of Q: a table for ids, random Fourier features for features by default
    model: Literal["table", "linear", "fourier"] | None = None
    # only these, where all that can be computed is the default; `offtrace logs estimators` lists them
    estimators: Names = None
    # μ as logged, and estimated where it was not; estimated in any case; or not even then
    behavior: Literal["logged", "estimate", "unknown"] = "logged"
    # the first states to average over, by their names or ids; or one .npy file of ids, of a distribution [S], or of features
    # [m, d]. Those of the episodes by default
    initial: Annotated[tuple[str, ...] | None, arg(metavar="STATE [STATE …]")] = None
    # the column of what episodes belong to, such as a user: intervals take these for independent
    cluster: str | None = None
    by: str | None = None  # the column of segments, such as regions: each is evaluated from its own episodes, too
    gammas: tuple[float, ...] = ()  # further discounts, to see how much the value depends on γ
    confidence: float = 0.95  # of the intervals
    resamples: int = 1000  # of the bootstrap
    # their range, for the conservative interval; the data's by default
    rewards: Annotated[tuple[float, float] | None, arg(metavar="LO HI")] = None
    longest: int | None = None  # the most steps that an episode can have, for the conservative interval
    json: bool = False  # print the result as JSON, and nothing else, on standard output
    page: Page = None  # also write one HTML page about it
    csv: str | None = None  # also write the estimates as CSV, a row for each estimator (and policy)
    seed: int = 0  # of the bootstrap and the folds


PASSED = ("confidence", "resamples", "rewards", "longest", "cluster", "by", "gammas", "estimators")
"""What `offtrace.logs.evaluate` takes as it is."""


def evaluate(options: Annotated[Evaluate, arg(name="")]) -> int:
    """Estimate what a target policy is worth: the headline, the other estimators, and what they rest on.

    Example: `offtrace logs evaluate logs.parquet --policy greedy.npz --gamma 0.99 --page result.html`
    """
    from offtrace.logs.comparing import Comparison, compare
    from offtrace.logs.evaluation import evaluate

    rule, targets = options.rule_of(), _policies(options)
    first = next(iter(targets.values()))
    logs = options.read(first, options.cluster, options.by)
    say = (lambda text: None) if options.json else print
    if logs.report is not None:
        say(logs.report)
    given: dict[str, Any] = {
        "gamma": options.gamma,
        "model": options.model,
        "seed": options.seed,
        "behavior": {"logged": None, "estimate": "estimate", "unknown": False}[options.behavior],
        "initial": _initial(options.initial, logs),
    }
    given |= {name: getattr(options, name) for name in PASSED}
    given |= {"trace": rule, "step": None if options.step is None else options.step == "yes"}
    if len(targets) > 1:
        result = compare(logs, {name: each.policy for name, each in targets.items()}, **given)
    else:
        result = evaluate(logs, first.policy, **given)
    print(json.dumps(result.as_json(), ensure_ascii=False, indent=2) if options.json else result)
    if options.csv is not None:
        with Path(options.csv).open("w", newline="", encoding="utf-8") as file:
            rows = result.table() if isinstance(result, Comparison) else [*result.rows(), *result.parts()]
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)
        say(f"The estimates: {options.csv}")
    if options.page is not None:
        from offtrace import reports

        say(f"The page: {reports.evaluation_page(result, options.page, command=TYPED.get())}")
    return 0


def _initial(given: tuple[str, ...] | None, logs: Logs) -> object:
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


def _policies(options: Evaluate) -> dict[str, Target]:
    """The policies that --policy names, or the one of a column log_pi."""
    given, logged = options.policy, options.named().log_pi
    if given is None and logged is None:
        raise ValueError(
            "--policy is missing: name the target policy, FILE.npz or FILE.py:NAME; where actions are real numbers, a column of "
            "its log densities does, too: --columns log_pi=…"
        )
    if given is not None and logged is not None:
        raise ValueError("--policy and --columns log_pi=… both say what the target policy is: leave out one of them")
    return {str(logged): Target(None)} if given is None else load_policies(given)
