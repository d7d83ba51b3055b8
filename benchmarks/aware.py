"""What a trajectory-aware rule costs beside Retrace on the same batch.

The claim is 5 times for a recursive cap and 30 for Truncated IS. Both sides are `offtrace.targets`, from
log-probabilities to targets, checks on, float32. Besides the near and far policies there is an endless setting: one
episode a row, γ = λ = 1, where no trace fades by discount or ends.
"""

from __future__ import annotations

import argparse
from functools import partial

from batches import SETTINGS, Batch, Setting, draw
from peers import SHAPES
from timing import Competitor, emit, interleave, ratio

import offtrace as ot


def rules(setting: Setting) -> dict[str, ot.Trace]:
    return {
        "Retrace": ot.Retrace(lam=setting.lam),
        "NonMarkovRetrace": ot.NonMarkovRetrace(lam=setting.lam),
        "RBIS": ot.RBIS(lam=setting.lam),
        "HistoryBounded(2)": ot.HistoryBounded(bound=2.0),
        "TruncatedIS": ot.TruncatedIS(bound=1.0, lam=setting.lam),
    }


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
