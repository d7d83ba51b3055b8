"""C = Σ γ^t K_t fast enough to be an optimiser's objective, and MDPs with policies on which it is exact.

A trace with a cap remembers the product x of its ratios. Let all of them be powers of one number, ρ = e^{hk} with integer
k. Then x lives on the lattice {e^{hk}}, and (s, x) is a Markov chain with few values. With v(s, x) [S·A] the discounted
coefficients that are still to come, for a trace that arrives in s with x,

    v(s, x) = Σ_a μ(a|s) γ decay(s,a) [ min(cap, y) 1_{(s,a)} + Σ_{s'} P(s'|s,a) v(s', y) ],     y = x · ratio(s,a)

(a recursive trace continues with y = min(cap, y)) is one linear system, and C = I + P v(·, 1). Its matrix is I minus a
nonnegative one with row sums below 1, so elimination needs no pivots. Off the lattice v is replaced by its chord: v is
concave in x, so that is a bound from below. Beyond the lattice's ends v is taken as constant above and as linear below.

This is not a certificate: `Operator` is, and shares no line with this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.traces import Step

MOST = 8.0
"""Logits are kept within ±MOST, so that a choice may be nearly deterministic."""


def decode(
    theta: np.ndarray, S: int, A: int, h: np.ndarray, reach: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits [K, S·A·(S+2)] → P [K, S·A, S], π and μ [K, S·A], all ratios π/μ in {0} ∪ {e^{hk}: |hk| ≤ reach}.

    The third part of `theta` holds wanted log-ratios, rounded to multiples of h [K]; below −reach means π = 0. In each state
    μ(a) is then scaled by one factor where ρ > 1 and another where ρ < 1, such that μ and π = ρμ both sum to one. Where the
    wanted ratios are all on one side, π = μ.
    """
    K, n = len(theta), S * A
    P = _softmax(theta[:, : n * S].reshape(K, n, S))
    mu = _softmax(theta[:, n * S : n * S + n].reshape(K, S, A))
    wanted, h, reach = theta[:, -n:].reshape(K, S, A), h[:, None, None], reach[:, None, None]
    rho = np.where(wanted < -reach, 0.0, np.exp(h * np.round(np.minimum(wanted, reach) / h)))
    more, less = mu * (rho > 1.0), mu * (rho < 1.0)
    up, down, gain, loss = (
        part.sum(axis=2, keepdims=True) for part in (more, less, more * (rho - 1), less * (1 - rho))
    )
    apart = (gain > 0.0) & (loss > 0.0)
    share = (up + down) / np.where(apart, up * loss + down * gain, 1.0)
    mu = np.where(apart & (rho != 1.0), mu * share * np.where(rho > 1.0, loss, gain), mu)
    pi = np.where(apart, rho * mu, mu)
    return P, pi.reshape(K, n), mu.reshape(K, n)


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def eigenvalues(C: np.ndarray, P: np.ndarray, pi: np.ndarray, gamma: float) -> np.ndarray:
    """The eigenvalues [K, S·A] of each Z = I − C(I − γP_π); NaN where Σ γ^tβ_t has no finite mean, so that there is no C ≥ 0."""
    n, A = P.shape[1], P.shape[1] // P.shape[2]
    finite = np.isfinite(C.sum(axis=(1, 2))) & (C.min(axis=(1, 2)) >= 0.0)
    C = np.where(finite[:, None, None], C, 0.0)
    values = np.linalg.eigvals(np.eye(n) - C + gamma * (C @ (P.repeat(A, axis=2) * pi[:, None, :])))
    return np.where(finite[:, None], values, np.nan)


def discounted(
    P: np.ndarray,
    mu: np.ndarray,
    factors: Sequence[np.ndarray],
    recursive: bool,
    bounds: np.ndarray,
    horizon: int,
    gamma: float,
    h: np.ndarray,
    width: float,
) -> np.ndarray:
    """C [K, S·A, S·A] of K traces with the `factors` decay, ratio and cap, arrays [K, S·A], on nodes e^{hk}, |hk| ≤ width.

    `bounds` [L] holds for lags 1, 2, …, its last entry for all later ones; β = 0 from lag `horizon` on, 0 meaning never.
    """
    decay, ratio, cap = (np.array(np.broadcast_to(f, mu.shape), np.float64) for f in factors)
    linear = not (np.isfinite(cap).any() or np.isfinite(bounds).any())  # then v(s, x) = x v(s, 1)
    half = np.zeros(len(h), np.int64) if linear else (width / h).astype(np.int64)
    K, n, S = P.shape
    v = np.empty((K, S, n))
    _to_come(P, mu, (decay, ratio, cap), (recursive, linear), (bounds, horizon), gamma, h, half, v)
    return np.eye(n) + P @ v


@cached_njit(error_model="numpy")
def _to_come(P, mu, factors, kind, lags, gamma, h, half, out):
    """v(·, 1) [K, S, S·A] of the recursion above."""
    (decay, ratio, cap), (recursive, linear), (bounds, horizon) = factors, kind, lags
    K, n, S = P.shape
    A = n // S
    for k in range(K):
        G = 2 * half[k] + 1
        N = S * G
        step, reads = np.zeros((N, N)), np.zeros((N, n))  # v = reads(bound) + step v
        for g in range(G):
            x = np.exp(h[k] * (g - half[k]))
            for j in range(n):
                weight, y, r = mu[k, j] * gamma * decay[k, j], x * ratio[k, j], g * S + j // A
                if weight == 0.0 or y == 0.0:
                    continue
                if recursive:
                    y = min(y, cap[k, j])
                reads[r, j] = weight * min(y, cap[k, j])
                place = np.log(y) / h[k] + half[k]
                if linear or place <= 0.0:
                    at, low, high = 0, y * np.exp(h[k] * half[k]), 0.0
                else:
                    at, low, high = min(G - 1, int(place + 1e-6)), 1.0, 0.0
                    if at < G - 1 and place - at > 1e-6:
                        high = (np.exp(h[k] * (place - at)) - 1.0) / (np.exp(h[k]) - 1.0)
                        low = 1.0 - high
                for t in range(S):
                    step[r, at * S + t] += weight * P[k, j, t] * low
                    if high > 0.0:
                        step[r, (at + 1) * S + t] += weight * P[k, j, t] * high
        v = np.zeros((N, n))
        last = max(len(bounds), horizon - 1)
        if horizon == 0:
            _read(reads, mu[k], gamma, decay[k], bounds[-1], v)
            _eliminate(step.copy(), v)
            last -= 1
        for lag in range(last, 0, -1):
            if horizon == 0 or lag < horizon:
                later = v
                v = np.zeros((N, n))
                _read(reads, mu[k], gamma, decay[k], bounds[min(lag, len(bounds)) - 1], v)
                for r in range(N):
                    for c in range(N):
                        if step[r, c] != 0.0:
                            for j in range(n):
                                v[r, j] += step[r, c] * later[c, j]
        for s in range(S):
            for j in range(n):
                out[k, s, j] = v[half[k] * S + s, j]


@cached_njit(error_model="numpy")
def _read(reads, mu, gamma, decay, bound, out):
    """What is read off at a lag with this bound on x."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            if reads[r, j] > 0.0:
                out[r, j] = min(reads[r, j], mu[j] * gamma * decay[j] * bound)


@cached_njit(error_model="numpy")
def _eliminate(step, v):
    """(I − step)⁻¹ v, in place, for a nonnegative `step` with row sums below 1."""
    N, n = v.shape
    for k in range(N):
        pivot = 1.0 / (1.0 - step[k, k])
        for r in range(k + 1, N):
            factor = step[r, k] * pivot
            if factor != 0.0:
                for c in range(k + 1, N):
                    step[r, c] += factor * step[k, c]
                for y in range(n):
                    v[r, y] += factor * v[k, y]
    for k in range(N - 1, -1, -1):
        for c in range(k + 1, N):
            factor = step[k, c]
            if factor != 0.0:
                for y in range(n):
                    v[k, y] += factor * v[c, y]
        pivot = 1.0 / (1.0 - step[k, k])
        for y in range(n):
            v[k, y] *= pivot


def carried(trace: Any, P: np.ndarray, pi: np.ndarray, mu: np.ndarray, gamma: float, *, most: int = 512) -> np.ndarray:
    """C of a custom trace: masses over (start, pair, carry) go forward in time, and meet where all three are equal.

    Stops where γ^t < 1e-3 (or at the horizon), and keeps the heaviest `most` histories: terms are left out, none is invented.
    """
    n, S = P.shape
    A = n // S
    onto = P.repeat(A, axis=1) * mu
    rho = np.where(mu > 0, pi / np.where(mu > 0, mu, 1.0), 0.0)
    lags = int(np.log(1e-3) / np.log(gamma)) if gamma > 0 else 0
    lags = lags if trace.horizon is None else min(lags, trace.horizon - 1)
    start = pair = np.arange(n)
    several = isinstance(trace.carry, tuple)
    carry = np.tile(np.atleast_1d(np.asarray(trace.carry, dtype=float)), (n, 1))
    mass, C = np.ones(n), np.eye(n)
    for lag in range(1, lags + 1):
        before, to = np.nonzero(onto[pair] > 0)
        mass = mass[before] * onto[pair[before], to] * gamma
        start, pair, old = start[before], to, carry[before]
        parts = tuple(old[:, i] for i in range(old.shape[1]))
        now = Step(pi[pair], mu[pair], rho[pair], trace.lam, float(lag), start, pair)
        new, beta = trace.traced.call(np, parts if several else parts[0], now)
        columns = new if several else (new,)
        carry = np.stack([np.broadcast_to(np.asarray(c, dtype=float), mass.shape) for c in columns], axis=1)
        np.add.at(C, (start, pair), mass * beta)
        mass, start, pair, carry = _met(mass, start, pair, carry, most)
    return C


def _met(
    mass: np.ndarray, start: np.ndarray, pair: np.ndarray, carry: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Histories with equal start, pair and carry are one, with the sum of their masses; the heaviest `most` are kept."""
    keys = (*np.round(carry, 9).T, pair, start)
    order = np.lexsort(keys)
    new_group = np.any([np.diff(key[order], prepend=np.nan) != 0 for key in keys], axis=0)
    first, mass = order[new_group], np.add.reduceat(mass[order], np.flatnonzero(new_group))
    if len(mass) > most:
        keep = np.argpartition(mass, -most)[-most:]
        first, mass = first[keep], mass[keep]
    return mass, start[first], pair[first], carry[first]
