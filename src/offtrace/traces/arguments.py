"""What a call takes as its `trace`. All calls ask here, so that a wrong argument is refused in the same words everywhere."""

from __future__ import annotations

from offtrace.traces.base import Rule, Trace


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
