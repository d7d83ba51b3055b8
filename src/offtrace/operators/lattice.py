"""C = Σ γ^t K_t fast enough to be an optimiser's objective, and MDPs with policies on which it is exact.

A trace with a cap remembers the product x of its ratios. Let all of them be powers of one number, ρ = e^{hk} with integer
k. Then x lives on the lattice {e^{hk}}, and (s, x) is a Markov chain with few values. With v(s, x) [S·A] the discounted
coefficients that are still to come, for a trace that arrives in s with x,

    v(s, x) = Σ_a μ(a|s) γ decay(s,a) [ min(cap, y) 1_{(s,a)} + Σ_{s'} P(s'|s,a) v(s', y) ],     y = x · ratio(s,a)

(a recursive trace goes on with y = min(cap, y)) is one linear system, and C = I + P v(·, 1). Its matrix is I minus a
nonnegative one with row sums below 1, so elimination needs no pivots. Off the lattice v is replaced by its chord: v is
concave in x, so that is a bound from below. Beyond the lattice's ends v is taken as constant above and as linear below.

This is not a certificate: `Operator` is, and shares no line with this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from offtrace.traces import Step

MOST = 8.0
"""Logits are kept within ±MOST, so that a choice may be nearly deterministic."""


@njit(cache=True, nogil=True, error_model="numpy")
def decode(theta, S, A, h, reach):
    """Logits [S·A·(S+2)] → P [S·A, S], π and μ [S·A], all ratios π/μ in {0} ∪ {e^{hk}: |hk| ≤ reach}.

    The third part of `theta` holds wanted log-ratios, rounded to multiples of h; below −reach means π = 0. In each state μ(a) is
    then scaled by one factor where ρ > 1 and another where ρ < 1, such that μ and π = ρμ both sum to one. Where the
    wanted ratios are all on one side, π = μ.
    """
    n = S * A
    P = theta[: n * S].copy().reshape((n, S))
    for i in range(n):
        P[i] = np.exp(P[i] - P[i].max())
        P[i] /= P[i].sum()
    mu, pi = np.empty(n), np.empty(n)
    for s in range(S):
        m = np.exp(theta[n * S + s * A : n * S + (s + 1) * A])
        m /= m.sum()
        rho = np.empty(A)
        gain, loss, up, down = 0.0, 0.0, 0.0, 0.0
        for a in range(A):
            wanted = theta[n * S + n + s * A + a]
            rho[a] = 0.0 if wanted < -reach else np.exp(h * np.round(min(wanted, reach) / h))
            if rho[a] > 1.0:
                gain += m[a] * (rho[a] - 1.0)
                up += m[a]
            elif rho[a] < 1.0:
                loss += m[a] * (1.0 - rho[a])
                down += m[a]
        apart = gain > 0.0 and loss > 0.0
        share = (up + down) / (up * loss + down * gain) if apart else 0.0
        for a in range(A):
            if apart and rho[a] != 1.0:
                m[a] *= share * (loss if rho[a] > 1.0 else gain)
            mu[s * A + a] = m[a]
            pi[s * A + a] = m[a] * rho[a] if apart else m[a]
    return P, pi, mu


@njit(cache=True, nogil=True, error_model="numpy")
def discounted(P, mu, decay, ratio, cap, recursive, linear, bounds, horizon, gamma, h, half):
    """C [S·A, S·A] on the lattice x = e^{hk}, |k| ≤ half. `linear`: no cap acts, and v(s, x) = x v(s, 1).

    `bounds` [L] holds for lags 1, 2, …, its last entry for all later ones; β = 0 from lag `horizon` on, 0 meaning never.
    """
    n, S = P.shape
    A, G = n // S, 2 * half + 1
    N = S * G
    step, reads = np.zeros((N, N)), np.zeros((N, n))  # v = reads(bound) + step v
    grid = np.exp(h * np.arange(-half, half + 1))
    for g in range(G):
        for s in range(S):
            r = g * S + s
            for j in range(s * A, (s + 1) * A):
                weight, y = mu[j] * gamma * decay[j], grid[g] * ratio[j]
                if weight == 0.0 or y == 0.0:
                    continue
                if recursive:
                    y = min(y, cap[j])
                reads[r, j] = weight * min(y, cap[j])
                at, low, high = 0, y / grid[0], 0.0
                if not linear and y > grid[0]:
                    place = np.log(y) / h + half
                    at = min(G - 1, int(place + 1e-6))
                    low = 1.0
                    if at < G - 1 and place - at > 1e-6:
                        high = (y - grid[at]) / (grid[at + 1] - grid[at])
                        low = 1.0 - high
                for t in range(S):
                    step[r, at * S + t] += weight * P[j, t] * low
                    if high > 0.0:
                        step[r, (at + 1) * S + t] += weight * P[j, t] * high
    last = max(len(bounds), horizon - 1)
    v = np.zeros((N, n))
    if horizon == 0:
        v = _read(reads, mu, gamma, decay, bounds[-1])
        _eliminate(step.copy(), v)
    for lag in range(last if horizon > 0 else last - 1, 0, -1):
        if horizon == 0 or lag < horizon:
            v = _read(reads, mu, gamma, decay, bounds[min(lag, len(bounds)) - 1]) + step @ v
    return np.eye(n) + P @ v[half * S : (half + 1) * S]


@njit(cache=True, nogil=True, error_model="numpy")
def _read(reads, mu, gamma, decay, bound):
    """What is read off at a lag with this bound on x."""
    out = np.empty_like(reads)
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[r, j] = min(reads[r, j], mu[j] * gamma * decay[j] * bound) if reads[r, j] > 0.0 else 0.0
    return out


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def eigenvalues(C, P, pi, gamma):
    """The eigenvalues of Z = I − C(I − γP_π)."""
    n, S = P.shape
    A = n // S
    D = np.eye(n)
    for i in range(n):
        for j in range(n):
            D[i, j] -= gamma * P[i, j // A] * pi[j]
    return np.linalg.eigvals((np.eye(n) - C @ D).astype(np.complex128))


def carried(trace: Any, P: np.ndarray, pi: np.ndarray, mu: np.ndarray, gamma: float, *, most: int = 4096) -> np.ndarray:
    """C of a custom trace: masses over (start, pair, carry) go forward in time, and meet where all three are equal.

    Stops where γ^t < 1e-3 (or at the horizon), and keeps the heaviest `most` histories: terms are left out, none is made up.
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
        new, beta = trace.step(np, parts if several else parts[0], now)
        columns = new if several else (new,)
        carry = np.stack([np.broadcast_to(np.asarray(c, dtype=float), mass.shape) for c in columns], axis=1)
        np.add.at(C, (start, pair), mass * beta)
        _, first, group = np.unique(
            np.column_stack([start, pair, np.round(carry, 9)]), axis=0, return_index=True, return_inverse=True
        )
        mass = np.bincount(group.ravel(), mass)
        start, pair, carry = start[first], pair[first], carry[first]
        if len(mass) > most:
            keep = np.argpartition(mass, -most)[-most:]
            mass, start, pair, carry = mass[keep], start[keep], pair[keep], carry[keep]
    return C
