"""`check_estimator`: hand it your own implementation of a return, and be told what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.testing.calling import PROBABILITIES, ArrayName, Estimator, Layout, asked_for, refuse_unknown
from offtrace.testing.explaining import Wrong, explained, finding_of
from offtrace.testing.findings import EstimatorCheck, Finding
from offtrace.testing.mistakes import Mistake
from offtrace.testing.trials import SINGLE_STEP, Quantity, Scenario, Values, right, scale, scenarios
from offtrace.traces import Rule
from offtrace.traces.trace_argument import as_rule, as_trace

Never = Literal["terminated", "truncated", "padding", "zero ratios", "one step"]
TOLERANCE = 1e-4
"""Differences below this share of what is summed up are rounding: of float32, and of a γ that was rounded to it on the way."""
HALF_TOLERANCE = 0.05
ALL_OVER: set[Mistake] = {"value of another step", "reward of another step", "not linear", "rows mixed up", "step lost"}
"""Mistakes that make every other number look wrong: what comes after them is not told."""
STEPS, LONGEST = 6, 16


def check_estimator(
    fn: Callable[..., object],
    trace: Rule,
    *,
    returns: Quantity | Sequence[Quantity] = "target",
    values: Values | None = None,
    names: Mapping[str, str] | None = None,
    arrays: ArrayName = "numpy",
    dtype: Literal["float32", "float64"] | None = None,
    layout: Layout = "[B, T]",
    gamma: float | Literal["by step"] = 0.83,
    never: Sequence[Never] = (),
    steps: int | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> EstimatorCheck:
    """Compare your own implementation of a return with its definition, and say which mistake it looks like where they differ.

    `fn` is called with keyword arguments, by the names of its parameters. Arrays mean what they mean in `targets` and
    `state_targets`. It may ask for any of these:

    - reward, q (or value), next_value, terminated, truncated, valid, greedy, pair, log_pi, log_mu, and gamma
    - done (terminated or truncated), discount (γ, 0 at terminated steps), log_rho, rho, pi, mu
    - tables of two actions, [B, T, 2]: q_table, next_q_table, pi_table, next_pi_table, mu_table, with the integers `action`
    - numbers of the trace, such as lam

    A parameter of another name that has a default is left alone; a function with `**names` gets what `targets` takes. A function
    that asks for no probabilities is tried with π = μ, one without `valid` on rows without padding.

    - `returns`: what comes back, one number for each step: "target", "correction" (target − q, or target − value; GAE's
      advantage), or "advantage" of state values as V-trace has it; several of them where `fn` returns a tuple
    - `values`: "action" or "state". If left out, it is "state" where `fn` has a parameter `value`
    - `names`: your names for ours, {"state_value": "value"}
    - `arrays`, `dtype`, `layout`: what `fn` takes: "numpy", "torch" or "jax"; float32, which is the default of the latter two, or
      float64; "[B, T]", "[T]", "[T, B]", "[B, T, 1]" or "[T, B, 1]". Flags are booleans
    - `gamma`: the discount, or "by step" for arrays of them
    - `never`: what never occurs in your data and need not be right: "terminated", "truncated", "padding", "zero ratios",
      "one step" (rows of T = 1)
    - `steps`: T, by default 6, or more where a horizon is longer
    - `tolerance`: which share of what is summed up counts as rounding; 0.0001, or more if `fn` returns half precision

    What comes back is true if `fn` is right, and prints as a report. `assert check_estimator(…)` makes a test. What `fn` writes
    at padding is not compared, since most code masks it later; a note says so where it is not 0.

    >>> import numpy as np, offtrace as ot
    >>> def my_q_lambda(reward, q, next_value, done, gamma, lam):                        # [B, T]
    ...     target, ahead = np.zeros_like(q), 0.0
    ...     for t in reversed(range(q.shape[1])):
    ...         delta = reward[:, t] + gamma * ~done[:, t] * next_value[:, t] - q[:, t]
    ...         ahead = delta + gamma * lam * ~done[:, t] * ahead
    ...         target[:, t] = q[:, t] + ahead
    ...     return target
    >>> check_estimator(my_q_lambda, ot.QLambda(lam=0.9))
    Q(λ), action values: wrong at 21 of 100 steps, 1 mistake.
    1. truncation taken for termination
      A truncated step must bootstrap from its next_value, as if the episode went on.
      next_value[0, 2] counts 0 in target[0, 2]; it should count 0.83.
      First seen on rows that show truncations: target[0, 0] is 0.420533, should be -0.236081.
      The smallest trajectory that shows it; rewards and values that are not printed are 0:
        t                 0
        next_value        1
        truncated         1
        target            0
        should be      0.83
    Note: fn has no parameter `valid`, so no row had padding.
    """
    rule, never = as_rule(trace), tuple(never)
    parameters = asked_for(fn, names or {})
    asked = set(parameters.values())
    kind: Values = values or ("state" if "value" in asked else "action")
    quantities: tuple[Quantity, ...] = (returns,) if isinstance(returns, str) else tuple(returns)
    _refuse(rule, kind, quantities, gamma)
    for name, given, allowed in (
        ("layout", (layout,), get_args(Layout)),
        ("arrays", (arrays,), get_args(ArrayName)),
        ("never", never, get_args(Never)),
    ):
        _refuse_strange(name, given, allowed)
    estimator = Estimator(
        fn,
        rule,
        kind,
        parameters,
        quantities,
        isinstance(returns, str),
        arrays,
        dtype or ("float64" if arrays == "numpy" else "float32"),
        layout,
        gamma == "by step",
    )
    refuse_unknown(estimator)
    on_policy = "**" not in asked and not asked & set(PROBABILITIES)
    if not asked & {"valid", "**"}:
        never = (*never, "padding")
    discount = None if isinstance(gamma, str) else float(gamma)
    tried = scenarios(
        rule, kind, steps=_steps(rule, steps), gamma=discount, on_policy=on_policy, never=never, seed=seed
    )
    findings, counted, wrong, notes = list[Finding](), 0, 0, list(_notes(rule, kind, asked, on_policy))
    if tried[-1].shows == SINGLE_STEP:
        try:
            estimator(tried[-1].rows)
        except Exception as error:  # refused, which is no wrong number
            tried.pop()
            notes.append(f"fn raised {type(error).__name__} on rows of a single step, which were left out: {error}")
    for quantity in quantities:
        outcome = _checked(estimator, tried, quantity, tolerance, on_policy)
        findings, counted, wrong = findings + outcome.findings, counted + outcome.steps, wrong + outcome.wrong
        if outcome.writes_at_padding:
            notes.append(f"fn writes other numbers than 0 at padding; {quantity} is not compared there.")
    return EstimatorCheck(rule, kind, tuple(findings), counted, wrong, tuple(s.shows for s in tried), tuple(notes))


def _refuse(rule: Rule, values: Values, returns: tuple[str, ...], gamma: object) -> None:
    """Errors of what is asked, before anything is called."""
    allowed = (
        ("target", "correction") if values == "action" or rule.uncorrected else ("target", "advantage", "correction")
    )
    if strange := [name for name in returns if name not in allowed]:
        raise ValueError(
            f"returns must be of {', '.join(allowed)} for {rule.title} and {values} values, got {strange[0]!r}"
        )
    if isinstance(gamma, str) and gamma != "by step":
        raise ValueError(f'gamma must be a number or "by step", got {gamma!r}')
    if values == "state" and not rule.uncorrected:
        as_trace(rule)


def _refuse_strange(name: str, given: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    for one in given:
        if one not in allowed:
            known = ", ".join(allowed)
            raise ValueError(f"{name} must be one of {known}, got {one!r}{ending(closest(one, allowed))}")


def _steps(rule: Rule, given: int | None) -> int:
    """T: long enough for a horizon to act."""
    shape = getattr(rule, "shape", None)
    if shape is not None:
        if len(shape) != 1:
            raise ValueError(f"{rule.title} holds numbers of shape {shape}: check it with those of one trajectory, [T]")
        return shape[0]
    form = rule.uncorrected_return
    reach = getattr(rule, "horizon", None) if form is None else form.n
    return given or (max(STEPS, reach + 3) if reach is not None and reach <= LONGEST else STEPS)


class _Outcome(NamedTuple):
    findings: list[Finding]
    steps: int
    wrong: int
    writes_at_padding: bool


def _checked(
    estimator: Estimator, tried: list[Scenario], quantity: Quantity, tolerance: float | None, on_policy: bool
) -> _Outcome:
    """Compare on all scenarios, then ask of those that failed, from the simplest on, what is wrong."""
    counted, wrong, failed, at_padding = 0, 0, list[Wrong](), False
    for scenario in tried:
        try:
            got = estimator(scenario.rows)[quantity]
        except Exception as error:
            error.add_note(f"check_estimator called fn on rows that show {scenario.shows}.")
            raise
        near = tolerance or (HALF_TOLERANCE if estimator.returned_half else TOLERANCE)
        of_rows = (estimator.rule, estimator.values, quantity)
        want, size = (np.stack([of(row, *of_rows) for row in scenario.rows]) for of in (right, scale))
        valid = np.stack([row.valid for row in scenario.rows])
        off = valid & ~(np.abs(got - want) <= near * size)
        counted, wrong = counted + int(valid.sum()), wrong + int(off.sum())
        at_padding |= bool((got[~valid] != 0.0).any())
        if off.any():
            failed.append(Wrong(scenario, got, want, off, near))
    found: dict[Mistake, Finding] = {}
    for failure in failed:
        if found.keys() & ALL_OVER:
            break
        for clue, b in explained(estimator, failure, quantity, on_policy, found=bool(found)):
            if clue.mistake not in found:
                found[clue.mistake] = finding_of(estimator, failure, clue, b, quantity)
    return _Outcome(list(found.values()), counted, wrong, at_padding)


def _notes(rule: Rule, values: Values, asked: set[str], on_policy: bool) -> tuple[str, ...]:
    """What the check could not see."""
    notes: list[str] = []
    if on_policy and (rule.reads or values == "state") and not rule.uncorrected:
        notes.append("fn asks for no probabilities, so it was tried with π = μ only.")
    if not asked & {"valid", "**"}:
        notes.append("fn has no parameter `valid`, so no row had padding.")
    lam = getattr(rule, "lam", None)
    if isinstance(lam, float) and lam in (0.0, 1.0):
        notes.append(f"λ is {lam:g}: a λ in the wrong place would not show.")
    return tuple(notes)
