"""The exact moments of a named loss's gradient on long rows, by counting rows that have the same context and the same ratios.

Every token is of one of two kinds, j = 1 or −1, and so are its ratios π/π_prox and π_prox/μ. So what a loss reads of a row's past
is how many tokens of the first kind it has, n. For each node (s, n) the recursion carries the moments of

    G± = Σ_t c_t ∇log π(a_t|s_t),  over decisions with A_t > 0 and A_t < 0

where c_t is the slope of the loss's shape. A loss of the whole row's ratio multiplies G+ and G− at the end, by the sign of A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from long_rows import Automaton, true_gradient

import offtrace as ot
from offtrace.policy import GradientMoments, PolicyLoss
from offtrace.policy.shapes import GeometricClip, Ratios
from offtrace.policy.steps import Steps


class Logs(NamedTuple):
    """Log-probabilities of each token, [S, A]."""

    pi: np.ndarray
    prox: np.ndarray
    mu: np.ndarray


def logs_of(a: Automaton, share: float) -> Logs:
    """π, μ, and π_prox whose logits are `share` of the way from π to μ."""
    p = np.where(a.exponent > 0, 1.0, -1.0) * np.log(a.u) / 2  # of π; of μ the opposite
    of_kind = np.exp(p) / (np.exp(p) + np.exp(-p))
    moved = np.exp((1 - 2 * share) * p) / (np.exp((1 - 2 * share) * p) + np.exp(-(1 - 2 * share) * p))
    return Logs(np.log(a.pi), np.log(a.pi * moved / of_kind), np.log(a.mu))


class Counted:
    """The part of a row that position-dependent shapes ask for."""

    def __init__(self, position: np.ndarray) -> None:
        self._position = position

    def position(self) -> np.ndarray:
        """1, 2, … along the row."""
        return self._position


def slopes(loss: PolicyLoss, log_pi: float, log_prox: float, level: np.ndarray, A: float, t: int) -> np.ndarray:
    """The slope of the shape where the ratio at its level is given, [N]."""
    full = np.full(level.shape, 0.0)
    x: Any = Steps({"log_pi": full + log_pi, "log_prox": full + log_prox}, check=False)
    there = np.full(level.shape, A != 0)
    rows: Any = Counted(full + t + 1)
    r = Ratios(x, rows, full + (log_pi - log_prox), np.where(there, level, 0.0), full + A, there)
    return np.broadcast_to(loss.shape(r).slope, level.shape)


def token_weight(loss: PolicyLoss, logs: Logs) -> np.ndarray:
    """π_prox/μ of each token by the loss's trace, [S, A]; 1 where the loss weighs whole rows, or nothing."""
    if loss.weight is None or loss.weight_options.get("level", "token") != "token":
        return np.ones_like(logs.mu)
    options: dict[str, Any] = {"level": "token", **loss.weight_options}
    flat = ot.weights(loss.weight, log_pi=logs.prox.reshape(-1, 1), log_mu=logs.mu.reshape(-1, 1), **options)
    return flat.reshape(logs.mu.shape)


def row_factors(loss: PolicyLoss, a: Automaton, logs: Logs, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """By what G+ and G− count where n of the row's tokens are of the first kind, [T + 1] each."""
    n = np.arange(steps + 1)

    def total(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
        of_kind = [float((upper - lower)[a.exponent == j][0]) for j in (1, -1)]
        return n * of_kind[0] + (steps - n) * of_kind[1]

    plus = minus = np.ones(steps + 1)
    moved = total(logs.pi, logs.prox)
    if loss.level.startswith("sequence"):
        level = moved / steps if loss.level.endswith("mean") else moved
        plus, minus = (slopes(loss, -1.0, -1.0, level, sign, 0) * sign for sign in (1.0, -1.0))
    if loss.keep_negative is not None:
        minus = np.where(-moved / steps > loss.keep_negative, 0.0, minus)
    if loss.weight is not None and loss.weight_options.get("level") == "sequence":
        w = np.exp(total(logs.prox, logs.mu))
        w = np.where(w > loss.weight_options["upper"], 0.0, w)
        plus, minus = plus * w, minus * w
    return plus, minus


def long_loss(a: Automaton, steps: int, loss: PolicyLoss, *, share: float = 0.25) -> GradientMoments:
    """The moments of minus the gradient of the loss's sum over a row; advantages are Q^π − V^π."""
    if isinstance(loss.shape, GeometricClip):
        raise TypeError(f"{loss.name} counts clipped tokens by the sign of A, which is not carried here")
    logs = logs_of(a, share)
    S, tokens = a.mu.shape
    q = a.action_values(steps, a.pi)
    advantage = q - (a.pi * q).sum(axis=2, keepdims=True)
    score, F, n = a.score, a.score.shape[-1], np.arange(steps + 1)
    w = token_weight(loss, logs)
    log_r = logs.pi - logs.prox
    of_kind = [float(log_r[a.exponent == j][0]) for j in (1, -1)]
    # for each node: 1; G+ and G−; ‖G+‖², G+·G−, ‖G−‖²
    X = np.zeros((S, 2 * F + 4, steps + 1))
    X[a.start, 0, 0] = 1.0
    for t in range(steps):
        new = np.zeros_like(X)
        prefix = n * of_kind[0] + (t + 1 - n) * of_kind[1]
        level: Callable[[float], np.ndarray] = {
            "token": lambda own: np.full(steps + 1, own),
            "prefix": lambda own, prefix=prefix: prefix,
            "prefix-mean": lambda own, prefix=prefix, t=t: prefix / (t + 1),
        }.get(loss.level, lambda own: np.zeros(steps + 1))
        for s in np.flatnonzero(X[:, 0].any(axis=1)):
            for b in range(tokens):
                A = float(advantage[t, s, b])
                moved = X[s] * a.mu[s, b]
                if a.exponent[s, b] > 0:
                    moved = np.roll(moved, 1, axis=-1)  # a row's last place is empty until its end
                c = np.full(steps + 1, A)
                if not loss.level.startswith("sequence"):
                    c = slopes(loss, logs.pi[s, b], logs.prox[s, b], level(float(log_r[s, b])), A, t)
                new[a.following[s, b]] += _gathered(moved, w[s, b] * c, score[s, b], first=A > 0)
        X = new
    sums = X.sum(axis=0)
    plus, minus = row_factors(loss, a, logs, steps)
    mean = sums[1 : F + 1] @ plus + sums[F + 1 : 2 * F + 1] @ minus
    square = sums[-3] @ plus**2 + 2 * (sums[-2] @ (plus * minus)) + sums[-1] @ minus**2
    return GradientMoments(mean, max(0.0, float(square - mean @ mean)), true_gradient(a, steps))


def _gathered(x: np.ndarray, c: np.ndarray, score: np.ndarray, *, first: bool) -> np.ndarray:
    """From the moments of G+ and G− to those with c · score added to one of them."""
    F = len(score)
    out = x.copy()
    own, other = (slice(1, F + 1), slice(F + 1, 2 * F + 1)) if first else (slice(F + 1, 2 * F + 1), slice(1, F + 1))
    out[own] += c * score[:, None] * x[0]
    out[-3 if first else -1] += 2 * c * (score @ x[own]) + c**2 * (score @ score) * x[0]
    out[-2] += c * (score @ x[other])
    return out
