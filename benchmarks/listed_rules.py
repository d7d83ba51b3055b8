"""The rules that benchmarks try: those that are listed, with typical parameters."""

from __future__ import annotations

from dataclasses import fields, replace

import offtrace as ot


def trajectory_aware(lam: float) -> list[ot.Trace]:
    """One trace of each listed rule that is trajectory-aware and has a λ, with this λ."""
    aware = [rule for rule in ot.rules() if issubclass(rule, ot.Trace) and not rule.per_decision]
    with_lam = [rule for rule in aware if "lam" in {field.name for field in fields(rule)}]
    return [replace(rule.typical()[0], lam=lam) for rule in with_lam]


def complete() -> list[ot.Trace]:
    """One trace of each listed rule that can be computed from π and μ alone, with all its constants given."""
    listed = [rule for rule in ot.rules() if issubclass(rule, ot.Trace)]
    return [rule.examples()[-1] for rule in listed if rule.examples() and not rule.needs_greedy and not rule.per_step]
