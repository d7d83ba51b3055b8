"""The spectral radius ρ of a matrix Z that is known up to an error for each entry: |Z − A| ≤ R.

Strongly connected classes of |A| + R first: the eigenvalues of Z are those of its diagonal blocks. Then for each block, until the
answer is narrow enough, and all of it intersected:

    ratios      for B ≥ 0 and v > 0, v ≥ 0:   min_{v_i>0} (Bv)_i/v_i ≤ ρ(B) ≤ max (Bv)_i/v_i     (Collatz 1942, Wielandt 1950)
                with ρ(Z) ≤ ρ(|A| + R), and ρ(max(A − R, 0)) ≤ ρ(Z) where Z ≥ 0; the v by Noda's iteration
    discs       Gershgorin's, of V⁻¹ZV about approximate eigenvalues; a group of discs that is apart from the others holds as many
                eigenvalues as discs (Wilkinson 1965)
    powers      |tr Z^k| / n ≤ ρ^k ≤ ‖Z^k‖ by repeated squaring, where there are too few eigenvectors
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from offtrace.operators.interval import Interval
from offtrace.operators.setting import EPS


def spectral_radius(A: np.ndarray, R: np.ndarray, nonnegative: bool = False, enough: float = 1e-9) -> Interval:
    """[lower, upper] of the largest |eigenvalue| of any matrix within R of A; `nonnegative`: of those that are ≥ 0."""
    radius = Interval(0.0, 0.0)
    for group in classes(np.abs(A) + R):
        block = np.ix_(group, group)
        radius = _larger(radius, _of_block(A[block], R[block], nonnegative, enough))
    return radius


def classes(B: np.ndarray | sparse.csr_array) -> list[np.ndarray]:
    """The strongly connected classes of the entries that are not 0."""
    B = sparse.csr_array(B)
    B.eliminate_zeros()
    n, label = csgraph.connected_components(B, directed=True, connection="strong")
    return np.split(np.argsort(label, kind="stable"), np.cumsum(np.bincount(label, minlength=n))[:-1])


def _larger(one: Interval, other: Interval) -> Interval:
    return Interval(max(one.lower, other.lower), max(one.upper, other.upper))


def _of_block(A: np.ndarray, R: np.ndarray, nonnegative: bool, enough: float) -> Interval:
    if nonnegative:
        A, R = 0.5 * (np.maximum(A - R, 0) + np.maximum(A + R, 0)), 0.5 * (np.maximum(A + R, 0) - np.maximum(A - R, 0))
        R = R + 4 * EPS * A
    radius = Interval(0.0, perron(np.abs(A) + R).upper)
    if (A - R).min() >= 0 or nonnegative:
        low = np.maximum(A - R, 0.0)
        for group in classes(low):
            radius = radius.intersection(Interval(perron(low[np.ix_(group, group)]).lower, np.inf))
    elif len(A) == 1:
        return Interval(max(0.0, abs(A[0, 0]) - R[0, 0]), radius.upper)
    for bounds in (_discs, _powers):
        if radius.width > enough:
            radius = radius.intersection(bounds(A, R))
    return radius


def perron(B: np.ndarray) -> Interval:
    """ρ of a matrix B ≥ 0 by the ratios (Bv)_i/v_i, v by Noda's iteration (σI − B)v' = v, σ the upper bound so far.

    Always a bound; it closes, quadratically, where B is irreducible.
    """
    n, v, radius = len(B), np.ones(len(B)), Interval(0.0, np.inf)
    for _ in range(40):
        ratio = (B @ v) / v
        radius = radius.intersection(ratios(ratio, ratio, (n + 4) * EPS))
        if n == 1 or radius.width <= 64 * n * EPS * radius.upper:
            break
        try:
            v = np.abs(np.linalg.solve(radius.upper * np.eye(n) - B, v))
        except np.linalg.LinAlgError:
            break
        if not (np.isfinite(v).all() and v.max() > 0):
            break
        v = np.maximum(v / v.max(), 1e-200)
    return radius


def ratios(low: np.ndarray, high: np.ndarray, rounding: float) -> Interval:
    """Collatz and Wielandt's bounds from the ratios (Bv)_i/v_i, themselves known to lie between `low` and `high`."""
    return Interval(float(low.min()) * (1 - rounding), float(high.max()) * (1 + rounding))


def by_ratios(times: Callable[[np.ndarray, float], tuple[np.ndarray, np.ndarray]], n: int, enough: float) -> Interval:
    """The same for Z ≥ 0 of which only `times(V, gap)` is known, bounds of the columns ZV for V ≥ 0: a power iteration.

    It ends when the bounds are `enough`, or have stopped to close, or `times` raises TimeoutError. Where v is small, Zv is not
    known well enough to divide by it: such entries count for the upper bound only, and the lower one does without them.
    """
    v, radius, stalled = np.ones(n), Interval(0.0, np.inf), 0
    while radius.width > enough and stalled < 3:
        held, before = v > 0.02, radius.width
        V = v[:, None] if held.all() else np.stack([v, v * held], axis=1)
        try:
            low, high = times(V, 0.2 * min(0.1, max(enough, 0.1 * radius.width)))
        except TimeoutError:
            break
        lower = float((low[held, -1] / v[held]).min())
        radius = radius.intersection(Interval(max(0.0, lower), max(0.0, lower, float((high[:, 0] / v).max()))))
        stalled += radius.width > 0.7 * before
        v = np.maximum(low[:, 0] + high[:, 0], 0.0)
        if not v.max() > 0:
            break
        v = np.maximum(v / v.max(), 1e-3)
    return radius


def _discs(A: np.ndarray, R: np.ndarray) -> Interval:
    """Bounds from the discs of V⁻¹ZV; [0, ∞] where V cannot be inverted well enough to say anything."""
    values, V = np.linalg.eig(A)
    try:
        W = np.linalg.inv(V)
    except np.linalg.LinAlgError:
        return Interval(0.0, np.inf)
    # V⁻¹ = (I − Δ)⁻¹W with Δ = I − WV, so |V⁻¹X| ≤ |WX| + |Δ|(I + |Δ| + …)|WX|.
    Δ = np.abs(np.eye(len(A)) - W @ V) + len(A) * EPS * (np.abs(W) @ np.abs(V))
    δ = Δ.sum(axis=1).max()
    if not δ < 0.1:
        return Interval(0.0, np.inf)
    remainder = A @ V - V * values
    rounding = (len(A) + 4) * EPS * (np.abs(A) @ np.abs(V) + np.abs(V) * np.abs(values))
    bound = np.abs(W @ remainder) + np.abs(W) @ (rounding + R @ np.abs(V))
    bound = bound + Δ @ bound / (1 - δ) * (1 + δ)
    radius = bound.sum(axis=1) * (1 + 1e-10)
    size = np.abs(values)
    lower = max(float((size[group] - radius[group]).min()) for group in _groups(values, radius))
    upper = float((size + radius).max())
    return Interval(min(max(lower, 0.0), upper), upper)


def _groups(centre: np.ndarray, radius: np.ndarray) -> list[np.ndarray]:
    """Discs that overlap, directly or through others."""
    return classes((np.abs(centre[:, None] - centre) <= radius[:, None] + radius).astype(float))


def _powers(A: np.ndarray, R: np.ndarray) -> Interval:
    """Z^k within e^scale·(X ± E), k = 1, 2, 4, …, until the error has outgrown the power."""
    n, X, E, k, scale, radius = len(A), A, R, 1, 0.0, Interval(0.0, np.inf)
    while k < 2**40:
        norm = float((np.abs(X) + E).sum(axis=1).max())
        if norm == 0:
            return Interval(0.0, 0.0)
        trace = (abs(np.trace(X)) - np.trace(E) - n * EPS * np.abs(np.diag(X)).sum()) / n
        lower = np.exp((scale + np.log(trace)) / k) * (1 - 1e-12) if trace > 0 else 0.0
        radius = radius.intersection(Interval(lower, np.exp((scale + np.log(norm)) / k) * (1 + 1e-12)))
        if radius.width <= 1e-12 * radius.upper or E.sum() > 0.5 * np.abs(X).sum():
            break
        X, E, scale = X / norm, E / norm, 2 * (scale + np.log(norm))
        size = np.abs(X)
        E = (E @ (size + E) + size @ (E + (2 * n + 8) * EPS * size)) * (1 + 1e-12) + 1e-290
        X, k = X @ X, 2 * k
    return radius
