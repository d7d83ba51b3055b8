"""The variance of the sampled correction Δ = Σ_t γ^tβ_t δ_t for a given Q, by second moments on the same chain.

For a per-decision trace, c = decay·ratio, F = δ + γc'F' at each pair; with m = E F, by the law of total variance,

    v = w + γ²P_{c²μ} v,        w = Var[δ + γ c' m(s', a')],        v = Var F

If the spectral radius of γ²P_{c²μ} is ≥ 1 on a class of pairs that can reach some w > 0, v is infinite there and wherever that
class can be reached from; a linear solve would still print a number. Traces with caps are in `squares`; custom ones stand below:
their coefficient at a node of the chain is β itself, and v = Var[βδ + γm'] + γ²E v'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from offtrace.mdps.exact_values import reaches
from offtrace.operators import spectral_radius
from offtrace.operators.interval import Interval
from offtrace.operators.setting import EPS, Setting
from offtrace.operators.solve import closed_form
from offtrace.operators.solve.custom_chain import CarryChain
from offtrace.operators.solve.monte_carlo import MonteCarlo
from offtrace.operators.solve.solutions import Chain, ClosedForm, Solution
from offtrace.operators.variance_bounds import PARTS, variance_bounds

if TYPE_CHECKING:
    from offtrace.operators.operator import Operator

Bounds = tuple[np.ndarray, np.ndarray]
MERGED = 1e-11
"""How far, relatively, merged carries and rounding may move a moment."""


def variance(op: Operator, solution: Solution, δ: TemporalDifferences) -> Bounds:
    """lower ≤ Var Δ ≤ upper by start pair, [S·A], of δ's setting; `solution` is how C is known there."""
    s = δ.setting
    if isinstance(solution, ClosedForm):
        return per_decision(δ, s.decay * s.ratio, s.horizon)
    if isinstance(solution, Chain):
        _ = op.magnitude  # refines the grid
        try:
            return variance_bounds(s, δ, solution.grid, op.method == "exact chain", op.tolerance, op._deadline())
        except closed_form.Divergent:  # no cap acts from some lag on, and there the second moment may grow without end
            return np.zeros(s.pairs), np.full(s.pairs, np.inf)
    if isinstance(solution, CarryChain):
        return _on_carries(δ, solution)
    assert isinstance(solution, MonteCarlo)
    return solution.variance(δ.δ)


def second_moment_radius(s: Setting) -> float:
    """The spectral radius of γ²P_{c²μ}, c = decay·ratio for a per-decision trace, decay for others: below 1, none is infinite."""
    if s.horizon is not None:
        return 0.0
    c = s.decay * s.ratio if s.per_decision else s.decay if s.normal else np.ones_like(s.mu)
    G2 = sparse.csr_array(s.gamma**2 * s.onto_pairs(s.mu * c**2))
    return max((_radius(G2, group).midpoint for group in spectral_radius.classes(G2)), default=0.0)


class TemporalDifferences:
    """δ = r + γv(s') − Q(z) by transition, with its moments; v is E_π Q unless given."""

    def __init__(self, setting: Setting, Q: np.ndarray, value: np.ndarray | None = None) -> None:
        s, mdp = setting, setting.mdp
        P = sparse.csr_array(mdp.P)
        row = np.repeat(np.arange(s.pairs), np.diff(P.indptr))
        live = ~np.asarray(mdp.terminal, dtype=bool)
        value = np.where(live, (s.evaluated * Q).sum(axis=1), 0.0) if value is None else value
        given: np.ndarray | None = getattr(mdp, "transition_rewards", None)
        reward = np.asarray(mdp.R).ravel()[row] if given is None else given
        q = Q.ravel()[row]
        δ = reward + s.gamma * value[P.indices] - q
        size = np.abs(reward) + s.gamma * np.abs(value[P.indices]) + np.abs(q)
        parts = np.stack([np.maximum(δ, 0), np.maximum(-δ, 0)], axis=1)

        def mean(of: np.ndarray) -> np.ndarray:
            return np.stack([np.bincount(row, P.data * column, s.pairs) for column in of.T], axis=1)

        def carried(of: np.ndarray) -> sparse.csr_array:
            """E[of · h(s')] = carried(of)·h over next states that are not terminal."""
            weighted = sparse.csr_array((P.data * of * live[P.indices], P.indices, P.indptr), shape=P.shape, copy=True)
            weighted.eliminate_zeros()
            return weighted

        self.setting = s
        self.δ = sparse.csr_array((δ, P.indices, P.indptr), shape=P.shape)
        self.mean, self.square = mean(parts), mean(np.stack([parts[:, a] * parts[:, b] for a, b in PARTS], axis=1))
        self.Pδ = [carried(part) for part in parts.T]
        self.largest = float(size.max(initial=0.0))
        """Of |r| + γ|v| + |q|: what δ's rounding is relative to."""

    @classmethod
    def of_gains(cls, setting: Setting, gain: np.ndarray, largest: float) -> TemporalDifferences:
        """On an MDP with one action, δ is what is gained by coming to a state; its P holds μ, that of the setting does not."""
        result, P = cls.__new__(cls), sparse.csr_array(setting.mdp.P)
        parts = np.stack([np.maximum(gain, 0), np.maximum(-gain, 0)], axis=1)
        result.setting, result.largest = setting, largest
        result.δ = sparse.csr_array((gain[P.indices], P.indices, P.indptr), shape=P.shape)
        result.mean, result.square = P @ parts, P @ np.stack([parts[:, a] * parts[:, b] for a, b in PARTS], axis=1)
        result.Pδ = [sparse.csr_array(setting.P @ sparse.diags_array(part)) for part in parts.T]
        return result

    def spread(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """w = Var[δ + γX] with first = E[X|s'] and second = E[X²|s'], [S]; and E[δ²] + γ²E[X²], which tells its size."""
        s, γ = self.setting, self.setting.gamma
        mean = self.mean[:, 0] - self.mean[:, 1] + γ * (s.P @ first)
        size = self.square[:, 0] + self.square[:, 1] + γ**2 * (s.P @ second)
        return size + 2 * γ * (self.Pδ[0] @ first - self.Pδ[1] @ first) - mean**2, size


def per_decision(δ: TemporalDifferences, c: np.ndarray, n: int | None = None) -> Bounds:
    """Var Σ_{t<n} γ^t c_1···c_t δ_t, [S·A], c being [S, A]."""
    s = δ.setting
    G, G2 = s.gamma * s.onto_pairs(s.mu * c), sparse.csr_array(s.gamma**2 * s.onto_pairs(s.mu * c**2))
    mean = δ.mean[:, 0] - δ.mean[:, 1]
    if n is not None:
        m, v, error = mean, *_spread(δ, c, 0 * mean, 0.0)
        for _ in range(n - 1):
            w, e = _spread(δ, c, m, 16 * n * s.pairs * EPS * float(np.abs(m).max()))
            m, v, error = mean + G @ m, np.maximum(w, 0.0) + G2 @ v, e + G2 @ error
        return np.maximum(v - error, 0.0), v + error
    terms = (np.diff(s.P.indptr).max(initial=1) + s.A + 8) * EPS  # of the means of δ
    v, error = closed_form.solve(G, np.stack([*δ.mean.T, np.full(s.pairs, terms * δ.largest)], axis=1))
    w, e = _spread(δ, c, v[:, 0] - v[:, 1], float((v[:, 2] + error.sum(axis=1)).max()))
    w = np.where(w > e, w, 0.0)  # a spread that rounding explains counts as none
    G2.eliminate_zeros()
    infinite, unknown = _infinite(G2, w)
    inner = np.flatnonzero(reaches(G2, w > 0) & ~infinite & ~unknown)
    lower, upper = np.where(infinite, np.inf, np.maximum(w - e, 0.0)), np.where(infinite | unknown, np.inf, w + e)
    if len(inner):
        # What leads out of `inner` leads to w = 0 for ever, or it would be infinite too.
        v, error = closed_form.solve(sparse.csr_array(G2[inner][:, inner]), np.stack([w[inner], e[inner]], axis=1))
        off = v[:, 1] + error.sum(axis=1)
        lower[inner], upper[inner] = np.maximum(v[:, 0] - off, 0.0), v[:, 0] + off
    return lower, upper


def _spread(δ: TemporalDifferences, c: np.ndarray, m: np.ndarray, off: float) -> Bounds:
    """w = Var[δ + γ c' m(s', a')], and a bound on its error where m is known to ± off."""
    s = δ.setting
    X = c * m.reshape(s.S, s.A)
    w, size = δ.spread((s.mu * X).sum(axis=1), (s.mu * X**2).sum(axis=1))
    terms = (s.A + np.diff(s.P.indptr).max(initial=1) + 16) * EPS
    each = terms * (δ.largest + float(np.abs(X).max())) + s.gamma * off * float(c.max(initial=0.0))
    return w, 8 * each * np.sqrt(2 * size) + 4 * each**2 + terms * 4 * size


def _radius(G: sparse.csr_array, group: np.ndarray) -> Interval:
    inner = G[group][:, group]
    if len(group) <= closed_form.DENSE // 2:
        return spectral_radius.perron(inner.toarray())
    off = (np.diff(inner.indptr).max() + 4) * EPS
    return spectral_radius.by_ratios(lambda V, _: (inner @ V * (1 - off), inner @ V * (1 + off)), len(group), 1e-9)


def _infinite(G: sparse.csr_array, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs from which a class of spectral radius ≥ 1 can be reached that can itself reach w > 0; and those where it may be."""
    feeds = reaches(G, w > 0)
    bad, unknown = np.zeros(len(w), bool), np.zeros(len(w), bool)
    for group in spectral_radius.classes(G):
        if feeds[group[0]]:
            radius = _radius(G, group)
            bad[group], unknown[group] = radius.lower >= 1, radius.upper >= 1
    bad = reaches(G, bad)
    return bad, reaches(G, unknown) & ~bad


def _on_carries(δ: TemporalDifferences, chain: CarryChain) -> Bounds:
    """Bound the variance by a recursion over the nodes of a custom trace's chain."""
    s, γ, b, z = δ.setting, δ.setting.gamma, chain.β, chain.pair
    step = sparse.csr_array(chain.step)
    row = np.repeat(np.arange(len(b)), np.diff(step.indptr))
    of = np.asarray(δ.δ[z[row], z[step.indices] // s.A]).ravel()
    with_δ = sparse.csr_array((step.data * of, step.indices, step.indptr), shape=step.shape)
    mean, square = b * (δ.mean[:, 0] - δ.mean[:, 1])[z], b**2 * (δ.square[:, 0] + δ.square[:, 1])[z]
    m, v, off, sweeps = mean, np.maximum(square - mean**2, 0.0), MERGED * square, 1
    while chain.depth is None or sweeps < chain.depth:
        sweeps += 1
        ahead = mean + γ * (step @ m)
        total = square + γ**2 * (step @ m**2)
        new = np.maximum(total + 2 * γ * b * (with_δ @ m) - ahead**2, 0.0) + γ**2 * (step @ v)
        still = np.abs(new - v).max() <= 1e-15 * new.max() and np.abs(ahead - m).max() <= 1e-15 * np.abs(ahead).max()
        m, v, off = ahead, new, MERGED * (total + ahead**2) + γ**2 * (step @ off)
        if still or sweeps >= 100_000:
            break
    m, v = np.abs(m[chain.first]), v[chain.first]
    tail = chain.tail * δ.largest
    error = off[chain.first] + MERGED * (v + m**2) + 2 * tail * (np.sqrt(v) + m) + tail**2
    return np.maximum(v - error, 0.0), v + error
