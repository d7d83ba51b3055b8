"""What a trajectory-aware rule costs beside Retrace on the same batch.

The claim is 5 times for a recursive cap and 30 for Truncated IS. Both sides are `offtrace.targets`, from
log-probabilities to targets, checks on, float32. Besides the near and far policies there is an endless setting: one
episode a row, γ = λ = 1, where no trace fades by discount or ends.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from functools import partial

from batches import SETTINGS, Batch, Setting, draw
from peers import SHAPES
from timing import Competitor, emit, interleave, ratio

import offtrace as ot


def rules(setting: Setting) -> dict[str, ot.Trace]:
    """Retrace, and all trajectory-aware rules that are listed, with the setting's λ where they have one."""
    aware = [rule.typical()[0] for rule in ot.rules() if issubclass(rule, ot.Trace) and not rule.per_decision]
    return {type(trace).__name__: with_lam(trace, setting.lam) for trace in (ot.Retrace(), *aware)}


def with_lam(trace: ot.Trace, lam: float) -> ot.Trace:
    """The trace with another λ, if it has one."""
    return replace(trace, lam=lam) if "lam" in {f.name for f in fields(trace)} else trace


def competitor(rule: ot.Trace) -> Competitor:
    return Competitor(Batch.for_targets, lambda x: ot.targets(rule, **x))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.5)
    seconds = parser.parse_args().seconds
    for setting in SETTINGS.values():
        for B, T in SHAPES:
            them = {name: competitor(rule) for name, rule in rules(setting).items()}
            times = interleave(them, partial(draw, setting=setting, B=B, T=T), seconds=seconds)
            for name in list(them)[1:]:
                emit("aware", shape=[B, T], setting=setting.name, rule=name, **ratio(times, name, "Retrace"))
