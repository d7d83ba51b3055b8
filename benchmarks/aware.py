"""What a trajectory-aware rule costs beside Retrace on the same batch.

The claim is 5 times for a recursive cap and 20 for Truncated IS. Both sides are `offtrace.targets`, from
log-probabilities to targets, checks on, float32. Besides the near and far policies there is an endless setting: one
episode a row, γ = λ = 1, where no trace fades by discount or ends; and an independent one, the hardest for Truncated IS: one
endless row, γ = 0.999, λ = 1, log-probabilities that are independent exponentials, so that no action was drawn from μ, log x has
no drift, and what a trace has left has a closed form nowhere.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from functools import partial

import numpy as np
from batches import ENDLESS, SETTINGS, Batch, Setting, draw
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


INDEPENDENT = replace(ENDLESS, name="independent", gamma=0.999)


def independent(rng: np.random.Generator, B: int, T: int) -> Batch:
    """A batch whose log-probabilities are independent exponentials."""
    log_pi, log_mu = (-rng.standard_exponential((B, T), dtype=np.float32) for _ in range(2))
    return replace(draw(rng, INDEPENDENT, B, T), log_pi=log_pi, log_mu=log_mu)


def competitor(rule: ot.Trace) -> Competitor:
    return Competitor(Batch.for_targets, lambda x: ot.targets(rule, **x))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.5)
    seconds = parser.parse_args().seconds
    cases = [(setting, shape) for setting in SETTINGS.values() for shape in SHAPES]
    for setting, (B, T) in (*cases, (INDEPENDENT, (1, 100_000))):
        them = {name: competitor(rule) for name, rule in rules(setting).items()}
        drawn = partial(independent if setting is INDEPENDENT else partial(draw, setting=setting), B=B, T=T)
        times = interleave(them, drawn, seconds=seconds)
        for name in list(them)[1:]:
            emit("aware", shape=[B, T], setting=setting.name, rule=name, **ratio(times, name, "Retrace"))
