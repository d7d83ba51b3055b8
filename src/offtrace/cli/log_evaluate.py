"""`offtrace logs evaluate`: what target policies are worth, by a trace and by the standard estimators."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import Positional, arg

from offtrace._shared.suggestions import did_you_mean
from offtrace.cli.log_policies import POLICY, Target, load_policies
from offtrace.cli.log_reading import ReadOptions, read_logs
from offtrace.cli.options import TYPED, Page
from offtrace.cli.rule_options import parameters, trace_of_logs
from offtrace.logs.container import Logs


def evaluate(
    dataset: Positional[str],
    *,
    policy: Annotated[tuple[str, ...] | None, arg(metavar="FILE [FILE …]", help=POLICY)] = None,
    gamma: float,
    trace: Annotated[str, arg(metavar="NAME")] = "rbis",
    rule: Annotated[Mapping[str, Any], arg(name="", constructor_factory=parameters)],
    choose_lam: bool = False,
    model: Literal["table", "linear", "fourier", "trees", "network"] | None = None,
    estimators: Annotated[tuple[str, ...] | None, arg(metavar="NAME [NAME …]")] = None,
    behavior: Literal["logged", "estimate", "unknown"] = "logged",
    initial: Annotated[tuple[str, ...] | None, arg(metavar="STATE [STATE …]")] = None,
    truths: Annotated[tuple[float, ...] | None, arg(metavar="X [X …]")] = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    rewards: Annotated[tuple[float, float] | None, arg(metavar="LO HI")] = None,
    longest: int | None = None,
    json: bool = False,
    page: Page = None,
    seed: int = 0,
    reading: Annotated[ReadOptions, arg(name="")],
) -> int:
    """Estimate what a target policy is worth, by a trace and by the standard estimators.

    Example: `offtrace logs evaluate logs.parquet --policy greedy.npz --gamma 0.99 --page result.html`

    Args:
        dataset: a table, a folder or a pattern of them, or a Minari dataset
        gamma: the discount γ
        trace: of the fitted estimate, by its name, or FILE.py:NAME, a trace that the Python file makes. offtrace executes the
            whole file: name only files that you would run yourself
        choose_lam: let the data choose λ (SLOPE, and the check by V(μ)), and say why
        model: of Q: a table for ids, random Fourier features of features by default
        estimators: only these, where all that can be computed is the default; `offtrace logs estimators` lists them
        behavior: μ as logged, and estimated where it was not; estimated in any case; or not even then
        initial: the first states to average over, by their names or ids; or one .npy file of ids, of a distribution [S], or of
            features [m, d]. Those of the episodes by default
        truths: V(π) of each policy, where it is known: for regret and rank correlation
        confidence: of the intervals
        resamples: of the bootstrap
        rewards: their range, for the conservative interval; the data's by default
        longest: the most steps that an episode can have, for the conservative interval
        json: print the result as JSON, and nothing else, on standard output
        page: also write one HTML page about it
        seed: of the bootstrap and the folds
    """
    from offtrace._shared.progress_bar import ProgressBar
    from offtrace.logs.choosing import choose
    from offtrace.logs.comparing import Comparison, compare
    from offtrace.logs.evaluation import evaluate

    used, targets = trace_of_logs(trace, rule), _policies(policy, reading)
    if truths is not None and len(truths) != len(targets):
        raise ValueError(f"--truths has {len(truths)} values for {len(targets)} policies")
    if page is not None and len(targets) > 1:
        raise ValueError("--page shows one policy: name one --policy, or leave it out")
    first = next(iter(targets.values()))
    logs = read_logs(dataset, reading, first)
    say = (lambda text: None) if json else print
    if logs.report is not None:
        say(logs.report)
    mu = {"logged": None, "estimate": "estimate", "unknown": False}[behavior]
    options: dict[str, Any] = {"model": model, "behavior": mu, "initial": _initial(initial, logs), "seed": seed}
    if choose_lam:
        choice = choose(logs, first.policy, gamma=gamma, traces=[used], **options)
        used = choice.trace
        say(choice)
    options |= {"estimators": estimators and list(estimators), "confidence": confidence, "resamples": resamples}
    options |= {"rewards": rewards, "longest": longest, "trace": used, "gamma": gamma}
    with ProgressBar() as bar:
        options["progress"] = bar.show if sys.stderr.isatty() else None
        if len(targets) > 1:
            known = None if truths is None else dict(zip(targets, truths, strict=True))
            policies = {name: target.policy for name, target in targets.items()}
            result = compare(logs, policies, truths=known, **options)
        else:
            result = evaluate(logs, first.policy, **options)
    print(json_format.dumps(result.as_json(), ensure_ascii=False, indent=2) if json else result)
    if page is not None and not isinstance(result, Comparison):
        from offtrace import reports

        say(f"The page: {reports.evaluation_page(result, page, command=TYPED.get())}")
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


def _policies(given: tuple[str, ...] | None, reading: ReadOptions) -> dict[str, Target]:
    """The policies that --policy names, or the one of a column log_pi."""
    logged = reading.named().log_pi
    if given is None and logged is None:
        raise ValueError(
            "--policy is missing: name the target policy, FILE.npz or FILE.py:NAME; where actions are real numbers, a column of "
            "its log densities does, too: --columns log_pi=…"
        )
    if given is not None and logged is not None:
        raise ValueError("--policy and --columns log_pi=… both say what the target policy is: leave out one of them")
    return {str(logged): Target(None)} if given is None else load_policies(given)
