"""The spectral radius of a matrix that is known up to an error for each entry.

With A the midpoint, |Z − A| ≤ R, and V of approximate eigenvectors (AV ≈ VΛ), V⁻¹ZV = Λ + a remainder whose entries are at most
|V⁻¹|R|V| and rounding. So every eigenvalue of Z lies in a Gershgorin disc about some λ_i, and a group of discs that is
apart from the others holds as many eigenvalues as discs (Gershgorin 1931; Wilkinson 1965). Where A has too few eigenvectors, the
triangle of its Schur form, with rows scaled by powers of a small number, takes the place of Λ.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import schur

from offtrace.operators.interval import Interval
from offtrace.operators.setting import EPS


def spectral_radius(A: np.ndarray, R: np.ndarray) -> Interval:
    """[lower, upper] of the largest |eigenvalue| of any matrix within R of A."""
    found = Interval(0.0, float((np.abs(A) + R).sum(axis=1).max(initial=0.0)))
    R = R + 4 * EPS * np.abs(A)
    values, vectors = np.linalg.eig(A)
    found = _meet(found, _discs(A, R, values, vectors))
    if found.width > 1e-9:
        triangle, Q = schur(A.astype(complex), output="complex")[:2]
        n = np.arange(len(A))
        for scale in (1e-1, 1e-2, 1e-4, 1e-8):
            if scale ** len(A) < 1e-250:
                break
            found = _meet(found, _discs(A, R, np.diag(triangle), Q * scale ** (n - n.mean())))
            if found.width <= 1e-9:
                break
    return found


def _meet(one: Interval, other: Interval | None) -> Interval:
    return one if other is None else one.intersection(other)


def _discs(A: np.ndarray, R: np.ndarray, values: np.ndarray, V: np.ndarray) -> Interval | None:
    """Bounds from the discs of V⁻¹ZV about `values`; None where V cannot be inverted well enough to say anything."""
    try:
        W = np.linalg.inv(V)
    except np.linalg.LinAlgError:
        return None
    identity = np.eye(len(A))
    # V⁻¹ = (I − Δ)⁻¹W with Δ = I − WV, so |V⁻¹X| ≤ |WX| + |Δ|(I + |Δ| + …)|WX|.
    Δ = np.abs(identity - W @ V) + len(A) * EPS * (np.abs(W) @ np.abs(V))
    δ = Δ.sum(axis=1).max()
    if not δ < 0.1:
        return None
    remainder = A @ V - V * values
    rounding = (len(A) + 4) * EPS * (np.abs(A) @ np.abs(V) + np.abs(V) * np.abs(values))
    bound = np.abs(W @ remainder) + np.abs(W) @ (rounding + R @ np.abs(V))
    bound = bound + Δ @ bound / (1 - δ) * (1 + δ)
    radius = bound.sum(axis=1) * (1 + 1e-10)
    size = np.abs(values)
    upper = float((size + radius).max())
    lower = 0.0
    for group in _groups(values, radius):
        lower = max(lower, float((size[group] - radius[group]).min()))
    return Interval(min(lower, upper), upper)


def _groups(centre: np.ndarray, radius: np.ndarray) -> list[np.ndarray]:
    """Discs that overlap, directly or through others."""
    touching = np.abs(centre[:, None] - centre) <= radius[:, None] + radius
    free, groups = np.ones(len(centre), bool), []
    while free.any():
        group = np.zeros(len(centre), bool)
        group[np.flatnonzero(free)[0]] = True
        while True:
            more = touching[group].any(axis=0)
            if (more == group).all():
                break
            group = more | group
        groups.append(np.flatnonzero(group))
        free &= ~group
    return groups
