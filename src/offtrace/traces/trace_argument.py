"""What a call takes as its `trace`. All calls ask here, so that a wrong argument is refused in the same words everywhere."""

from __future__ import annotations

from typing import Any

from offtrace.traces.base import Rule, Trace
from offtrace.traces.per_decision import ImportanceSampling, QLambda, VTrace

V_TRACE = VTrace()
UNCAPPED = ImportanceSampling()
"""Whose β is the product of all ratios."""


def as_rule(trace: object) -> Rule:
    """The rule, if it is one: anything that has targets."""
    if isinstance(trace, Rule):
        return trace
    raise TypeError(
        f"trace must be an offtrace trace such as offtrace.Retrace(lam=0.9), got {trace!r}; "
        "offtrace.trace(name) finds one by name"
    )


def as_trace(trace: object) -> Trace:
    """The trace, if it is one: a rule for β."""
    if isinstance(trace, Trace):
        return trace
    raise TypeError(f"{as_rule(trace).title} is not of the operator's form: it has a target, but no coefficients β")


def eligibility_of(rule: Rule) -> Trace:
    """The trace whose eligibility vector a rule uses online: itself; λ^t up to n, without ratios, for an uncorrected return."""
    form = rule.uncorrected_return
    return as_trace(rule) if form is None else QLambda(lam=form.lam, horizon=form.n)


def as_state_rule(trace: Trace | None, of_v_trace: dict[str, Any]) -> Trace:
    """The trace of state values: without one it is V-trace with these numbers, of which None are left out."""
    given = {name: number for name, number in of_v_trace.items() if number is not None}
    if trace is None:
        return VTrace(**given) if given else V_TRACE
    if given:
        name = next(iter(given))
        raise TypeError(
            f"{name} is of V-trace only, and a trace is given: say VTrace({name}=…), or give {name} to the trace"
        )
    if as_rule(trace).uncorrected:
        raise TypeError(
            f"{trace.title} has no β, and so no ratios: its return of state values is that of offtrace.targets, without q"
        )
    return as_trace(trace)
