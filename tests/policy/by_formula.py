"""The losses as they are printed, one decision at a time, with their gradients written down: slow, obvious, and sharing no line.

Each function takes one row of decisions and returns, for each, its share of the loss and the gradients of that by log π and by
the critic. Targets, advantages and weights are given.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Share(NamedTuple):
    """Of one decision: its loss, and the derivatives."""

    loss: float
    by_log_pi: Any
    """One number, or one for each action."""
    by_critic: Any = 0.0
    """By V, or by each Q(s, a)."""


def vtrace(log_pi: float, value: float, target: float, advantage: float, value_cost: float) -> Share:
    loss = (-advantage * log_pi if advantage else 0.0) + value_cost * 0.5 * (target - value) ** 2
    return Share(loss, -advantage, -value_cost * (target - value))


def _entropy(pi: list[float]) -> float:
    return -sum(p * math.log(p) for p in pi if p > 0)


def acer(
    log_pi: Any, log_mu: Any, q: Any, action: int, target: float, c: float, value_cost: float, entropy_cost: float
) -> Share:
    pi, mu = [math.exp(x) for x in log_pi], [math.exp(x) for x in log_mu]
    V = sum(p * x for p, x in zip(pi, q, strict=True))
    loss, by_log_pi, by_q = 0.0, [], []
    for a in range(len(pi)):
        factor = 0.0
        if a == action:
            factor += min(c, pi[a] / mu[a]) * (target - V)
        if pi[a] > 0:
            rho = pi[a] / mu[a] if mu[a] > 0 else math.inf
            lost = 1.0 if rho == math.inf else max(0.0, 1 - c / rho)
            factor += lost * pi[a] * (q[a] - V)
        loss -= factor * log_pi[a] if factor else 0.0
        of_entropy = -pi[a] * (log_pi[a] + 1) if pi[a] > 0 else 0.0
        by_log_pi.append(-factor - entropy_cost * of_entropy)
        by_q.append(-value_cost * (target - q[a]) if a == action else 0.0)
    loss += value_cost * 0.5 * (target - q[action]) ** 2 - entropy_cost * _entropy(pi)
    return Share(loss, by_log_pi, by_q)


def reactor(
    log_pi: Any, log_mu: float, q: Any, action: int, target: float, c: float, value_cost: float, entropy_cost: float
) -> Share:
    pi, beta = [math.exp(x) for x in log_pi], min(c, 1 / math.exp(log_mu))
    loss, by_log_pi, by_q = 0.0, [], []
    for a in range(len(pi)):
        factor = q[a] + (beta * (target - q[a]) if a == action else 0.0)
        loss -= factor * pi[a]
        of_entropy = -pi[a] * (log_pi[a] + 1) if pi[a] > 0 else 0.0
        by_log_pi.append(-factor * pi[a] - entropy_cost * of_entropy)
        by_q.append(-value_cost * (target - q[a]) if a == action else 0.0)
    loss += value_cost * 0.5 * (target - q[action]) ** 2 - entropy_cost * _entropy(pi)
    return Share(loss, by_log_pi, by_q)


def clipped(log_pi: float, log_prox: float, weight: float, A: float, low: float, high: float, dual: Any) -> Share:
    r = math.exp(log_pi - log_prox)
    inside = max(1 - low, min(1 + high, r))
    surrogate, slope = (r * A, r * A) if r * A <= inside * A else (inside * A, 0.0)
    if dual is not None and A < 0 and surrogate < dual * A:
        surrogate, slope = dual * A, 0.0
    return Share(-weight * surrogate, -weight * slope)
