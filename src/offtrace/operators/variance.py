"""The variance of the sampled correction Δ = Σ_t γ^tβ_t δ_t for a given Q, by second moments on the same chain.

Let F(z, x) be what a trace with x at pair z still collects, b = min(cap, x) its coefficient there, δ = r + γ E_π Q(s') − Q(z):

    F(z, x) = b δ + γ decay' F(z', f(x)),        m = E F,        v = Var F
    v(z, x) = Var[ b δ + γ decay' m(z', f(x)) ] + γ² E[ decay'² v(z', f(x)) ]                       (law of total variance)

For a per-decision trace x drops out, with c in place of decay: v = w + γ²P_{c²μ} v. If the spectral radius of γ²P_{c²μ} is ≥ 1 on
a set of pairs that a trace can reach and where w is not 0, v is infinite there and wherever that set can be reached from; a
linear solve would still print a number. Where values of x do not merge, m and v are interpolated on the grid that gave C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, linalg

from offtrace.operators import closed
from offtrace.operators.custom import CarryChain
from offtrace.operators.landing import Landing, land
from offtrace.operators.setting import Setting
from offtrace.operators.solutions import Chain, ClosedForm

if TYPE_CHECKING:
    from offtrace.operators.operator import Operator


def variance(op: Operator, Q: np.ndarray) -> np.ndarray:
    """Var Δ by start pair, [S, A]."""
    s, found = op.setting, op.solution
    moments = _Moments(op, Q)
    if isinstance(found, ClosedForm):
        v = _per_decision(moments) if s.horizon is None else _swept(moments, np.ones(1), None)
    elif isinstance(found, Chain):
        _ = op.contraction  # refines the grid
        v = _swept(moments, found.grid, found)
    elif isinstance(found, CarryChain):
        v = _on_carries(moments, found)
    else:
        raise TypeError("the variance of a custom trace needs a carry of finitely many values, or a horizon")
    return np.where(op._live, v, 0.0).reshape(Q.shape)


def second_moment_radius(s: Setting) -> float:
    """The spectral radius of γ²P_{c²μ} for a per-decision trace: below 1, variances are finite for every Q."""
    G2 = s.gamma**2 * s.onto_pairs(s.mu * (s.decay * s.ratio) ** 2)
    return max((_radius(G2, group) for group in _classes(G2)[1]), default=0.0)


class _Moments:
    """δ by transition, with its moments."""

    def __init__(self, op: Operator, Q: np.ndarray) -> None:
        s = self.setting = op.setting
        mdp = op.mdp
        P = sparse.csr_array(mdp.P)
        row = np.repeat(np.arange(s.pairs), np.diff(P.indptr))
        live = ~np.asarray(mdp.terminal, dtype=bool)
        value = np.where(live, (s.target * Q).sum(axis=1), 0.0)
        given: Any = getattr(mdp, "transition_rewards", None)
        reward = np.asarray(mdp.R).ravel()[row] if given is None else given
        δ = reward + s.gamma * value[P.indices] - Q.ravel()[row]
        self.mean = np.bincount(row, P.data * δ, s.pairs)
        self.square = np.bincount(row, P.data * δ**2, s.pairs)
        self.δ = sparse.csr_array((δ, P.indices, P.indptr), shape=P.shape)
        # E[δ h(s')] = Pδ·h over next states that are not terminal
        self.Pδ = sparse.csr_array((P.data * δ * live[P.indices], P.indices, P.indptr), shape=P.shape)

    def spread(self, b: Any, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """w = Var[bδ + γX], with first = E[X|s'] and second = E[X²|s'], [S, N]: E[(bδ + γX)²] − (E[bδ + γX])²."""
        s, γ = self.setting, self.setting.gamma
        b = np.broadcast_to(b, (s.pairs, first.shape[1]))
        mean = b * self.mean[:, None] + γ * (s.P @ first)
        square = b**2 * self.square[:, None] + 2 * γ * b * (self.Pδ @ first) + γ**2 * (s.P @ second)
        w = square - mean**2
        return np.where(w > 1e-13 * square, w, 0.0)


def _per_decision(moments: _Moments) -> np.ndarray:
    s = moments.setting
    c = s.decay * s.ratio
    C, _ = closed.inverse(closed.one_step(s)) if s.pairs <= closed.DENSE else (None, None)
    if C is None:
        raise ValueError(f"the variance needs at most {closed.DENSE} pairs, got {s.pairs}")
    m = (C @ moments.mean).reshape(s.S, s.A)
    first = (s.mu * c * m).sum(axis=1, keepdims=True)
    second = (s.mu * (c * m) ** 2).sum(axis=1, keepdims=True)
    w = moments.spread(1.0, first, second)[:, 0]
    G2 = s.gamma**2 * s.onto_pairs(s.mu * c**2)
    infinite = _infinite(G2, w)
    v = np.full(s.pairs, np.inf)
    keep = np.flatnonzero(~infinite)
    # What leads out of `keep` leads to w = 0 for ever, or it would be infinite too.
    silent = ~_reaches(G2, w > 0)
    keep = keep[~silent[keep]]
    v[silent] = 0.0
    if len(keep):
        inner = sparse.csc_array(sparse.eye_array(len(keep), format="csr") - sparse.csr_array(G2)[keep][:, keep])
        v[keep] = linalg.spsolve(inner, w[keep])
    return v


def _classes(G: sparse.csr_array) -> tuple[np.ndarray, list[np.ndarray]]:
    """Strongly connected classes of pairs: the class of each, and the members of each."""
    G = sparse.csr_array(G)
    G.eliminate_zeros()
    n, label = csgraph.connected_components(G, directed=True, connection="strong")
    order = np.argsort(label, kind="stable")
    return label, np.split(order, np.cumsum(np.bincount(label, minlength=n))[:-1])


def _radius(G: sparse.csr_array, group: np.ndarray) -> float:
    inner = G[group][:, group].toarray()
    return float(np.abs(np.linalg.eigvals(inner)).max()) if inner.any() else 0.0


def _reaches(G: sparse.csr_array, goal: np.ndarray) -> np.ndarray:
    """From which pairs a goal can be reached."""
    while True:
        more = goal | ((G @ goal.astype(float)) > 0)
        if (more == goal).all():
            return goal
        goal = more


def _infinite(G: sparse.csr_array, w: np.ndarray) -> np.ndarray:
    """Pairs from which a class of spectral radius ≥ 1 can be reached that can itself reach w > 0."""
    feeds = _reaches(G, w > 0)
    bad = np.zeros(len(w), bool)
    for group in _classes(G)[1]:
        if feeds[group[0]] and _radius(G, group) >= 1 - 1e-12:
            bad[group] = True
    return _reaches(G, bad)


def _swept(moments: _Moments, grid: np.ndarray, found: Chain | None) -> np.ndarray:
    """m and v together, swept back on the grid: until they settle, or through the lags of a horizon."""
    s = moments.setting
    n, lags = s.horizon, s.lags
    cut = lags[-1] if lags else np.inf
    state = _Swept(moments, grid, found is None)
    if n is None or (n > 64 and s.gamma**n < 1e-30):
        for _ in range(100_000):
            if state.sweep(cut) <= 1e-14:
                break
        back = len(lags) - 1
    else:
        for _ in range(n - 1 - len(lags)):
            state.sweep(cut)
        back = min(len(lags), n - 1)
    for lag in range(back, 0, -1):
        state.sweep(lags[lag - 1])
    return state.at_start()


class _Swept:
    """m(s, x) and v(s, x) before the action: [S, N], for a trace that arrives in s with x."""

    def __init__(self, moments: _Moments, grid: np.ndarray, folded: bool) -> None:
        self.moments, self.grid, self.folded = moments, grid, folded
        self.first, self.second, self.var = (np.zeros((moments.setting.S, len(grid))) for _ in range(3))

    def _landing(self, bound: float) -> tuple[Landing, np.ndarray]:
        """The landings, and what is read at the nodes themselves; a per-decision trace has one node and c for its decay."""
        s, n = self.moments.setting, len(self.grid)
        if self.folded:
            one, zero = np.ones((s.pairs, 1)), np.zeros((s.pairs, 1))
            return Landing(s.mu.ravel(), one, zero, one, zero, zero.astype(np.int32), zero), one
        read = np.minimum(np.minimum(s.cap.reshape(-1, 1), bound), self.grid)
        return land(s, self.grid, bound), np.broadcast_to(read, (s.pairs, n))

    def sweep(self, bound: float) -> float:
        """One step back in time; the relative change."""
        s, γ = self.moments.setting, self.moments.setting.gamma
        to, b = self._landing(bound)
        d = (s.decay * s.ratio if self.folded else s.decay).reshape(s.S, s.A, 1)
        after_m = b * self.moments.mean[:, None] + γ * (s.P @ self.first)
        after_v = self.moments.spread(b, self.first, self.second) + γ**2 * (s.P @ self.var)
        m, v = self._at(to, after_m), self._at(to, after_v)
        μ = s.mu[:, :, None]
        with np.errstate(over="ignore", invalid="ignore"):
            new = (μ * d * m).sum(axis=1), (μ * (d * m) ** 2).sum(axis=1), (μ * d**2 * v).sum(axis=1)
        old = self.first, self.second, self.var
        self.first, self.second, self.var = new
        return max(float(np.abs(a - o).max() / (np.abs(a).max() or 1.0)) for a, o in zip(new, old, strict=True))

    def _at(self, to: Landing, E: np.ndarray) -> np.ndarray:
        """E [S·A, N] at the landings, by chords: [S, A, N]."""
        s = self.moments.setting
        after = np.minimum(to.interval + 1, E.shape[1] - 1)
        z = np.arange(s.pairs)[:, None]
        return ((1 - to.share) * E[z, to.interval] + to.share * E[z, after]).reshape(s.S, s.A, -1)

    def at_start(self) -> np.ndarray:
        """Var Δ by start pair: there β = 1."""
        s = self.moments.setting
        one = 0 if self.folded else int(np.searchsorted(self.grid, 1.0))
        first, second, var = (a[:, [one]] for a in (self.first, self.second, self.var))
        return (self.moments.spread(1.0, first, second) + s.gamma**2 * (s.P @ var))[:, 0]


def _on_carries(moments: _Moments, found: CarryChain) -> np.ndarray:
    """The same on the nodes of a custom trace, whose coefficient at a node is β itself."""
    s, γ, b, z = moments.setting, moments.setting.gamma, found.β, found.pair
    step = sparse.csr_array(found.step)
    row = np.repeat(np.arange(len(b)), np.diff(step.indptr))
    δ = np.asarray(moments.δ[z[row], z[step.indices] // s.A]).ravel()
    with_δ = sparse.csr_array((step.data * δ, step.indices, step.indptr), shape=step.shape)
    m, v = b * moments.mean[z], b**2 * np.maximum(moments.square[z] - moments.mean[z] ** 2, 0.0)
    for _ in range((found.depth or 100_000) - 1):
        mean = b * moments.mean[z] + γ * (step @ m)
        square = b**2 * moments.square[z] + 2 * γ * b * (with_δ @ m) + γ**2 * (step @ m**2)
        w = square - mean**2
        new = np.where(w > 1e-13 * square, w, 0.0) + γ**2 * (step @ v)
        change = max(np.abs(new - v).max() / (new.max() or 1.0), np.abs(mean - m).max() / (np.abs(mean).max() or 1.0))
        m, v = mean, new
        if change < 1e-14:
            break
    return v[found.first]
