"""The step of a stream as a rule sees it, and what the rule makes of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.traces import Factors, Trace


class Now(NamedTuple):
    """One step as the rule sees it. NaN and −1 stand for what it does not read."""

    where: int | np.ndarray
    pair: int
    pi: float
    mu: float
    rho: float
    number: int
    """The number of the step, from 0 when the stream was made."""


def factors_of(trace: Trace, now: Now) -> Factors:
    """decay, ratio and cap of this step, as floats; arrays of the rule are read at the number of the step."""
    parameters = (p[now.number] if np.ndim(p) else p for p in trace.parameters)
    return Factors(*map(float, trace.traced.call(np, now.pi, now.mu, now.rho, *parameters)))
