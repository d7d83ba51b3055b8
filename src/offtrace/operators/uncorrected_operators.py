"""Operators that are affine but not of the form Q + C(T_πQ − Q): they have fixed points of their own.

    Peng's Q(λ)            N Q = (I − γλP_μ)⁻¹ (R + γ(1−λ)P_π Q)                      fixed point Q^{λμ+(1−λ)π}
    uncorrected n-step     N Q = Σ_{i<n} (γP_μ)^i R + (γP_μ)^{n−1} γP_π Q
    V-trace (on states)    that of `StateOperator`                                    fixed point V^{π_ρ̄}, π_ρ̄ ∝ min(ρ̄μ, π)

(Espeholt et al. 2018; Kozuno et al. 2021 for Peng's). Dense linear algebra: for small MDPs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from offtrace.mdps.mdp import MDP
from offtrace.mdps.sparse_matrices import row_lengths
from offtrace.operators import spectral_radius
from offtrace.operators.interval import Interval
from offtrace.operators.setting import EPS, Setting, checked, finite_values, named
from offtrace.operators.solve import closed_form
from offtrace.operators.state_operator import StateOperator
from offtrace.operators.variance import TemporalDifferences, per_decision
from offtrace.traces import VTrace
from offtrace.traces.base import Rule, UncorrectedReturn


@dataclass(frozen=True, eq=False)
class AffineOperator:
    """N X = Z X + b on action values [S, A] or state values [S]."""

    title: str
    Z: np.ndarray
    Z_error: np.ndarray
    """A bound on |Z − truth|, entry by entry."""
    b: np.ndarray
    b_error: np.ndarray
    """A bound on |b − truth|."""
    shape: tuple[int, ...]
    """The shape of what it acts on."""

    def apply(self, X: ArrayLike) -> np.ndarray:
        """N X, of the operator's `shape`; X has that shape, or is flat."""
        shape = self.b.shape if np.ndim(X) == 1 else self.shape
        return (self.Z @ finite_values("X", X, shape).ravel() + self.b).reshape(self.shape)

    @cached_property
    def fixed_point(self) -> np.ndarray:
        """The solution of X = Z X + b, known to ± `fixed_point_error`."""
        return np.linalg.solve(np.eye(len(self.b)) - self.Z, self.b).reshape(self.shape)

    @property
    def fixed_point_error(self) -> float:
        """A bound on the error of the fixed point, in the largest entry: ‖N X − X‖/(1 − ‖Z‖); ∞ where ‖Z‖ is not below 1."""
        X = np.ravel(self.fixed_point)
        off = np.abs(self.Z @ X + self.b - X) + self.Z_error @ np.abs(X) + self.b_error
        off += (len(X) + 4) * EPS * (np.abs(self.Z) @ np.abs(X) + np.abs(self.b) + np.abs(X))
        shrinks = 1 - self.contraction.upper
        return float(off.max(initial=0.0)) / shrinks if shrinks > 0 else np.inf

    @cached_property
    def contraction(self) -> Interval:
        """‖Z‖_∞."""
        size, error = np.abs(self.Z), self.Z_error
        lower, upper = np.clip(size - error, 0, None).sum(axis=1).max(), (size + error).sum(axis=1).max()
        return Interval(lower * (1 - len(size) * EPS), upper * (1 + len(size) * EPS))

    @cached_property
    def spectral_radius(self) -> Interval:
        """The largest |eigenvalue| of Z."""
        return spectral_radius.spectral_radius(self.Z, self.Z_error)


def uncorrected(trace: Rule, mdp: MDP, target: ArrayLike, behavior: ArrayLike) -> AffineOperator:
    """The operator of an uncorrected return, such as Peng's Q(λ) or the n-step return: `target` and `behavior` are [S, A].

    Where no episode ends, its modulus is γ(1−λ)/(1−γλ) for Peng's Q(λ) and γ^n for the n-step return, at the price of another
    fixed point.

    >>> import offtrace as ot
    >>> from offtrace.mdps import alternating
    >>> mdp, π, μ = alternating(gamma=0.5)
    >>> print(uncorrected(ot.NStep(n=3), mdp, π, μ).contraction)  # doctest: +ELLIPSIS
    0.125...
    """
    s, (lam, n) = _checked(trace, mdp, target, behavior)
    return _endless(named(trace), s, lam) if n is None else _within(named(trace), s, lam, n)


def _checked(trace: Rule, mdp: MDP, target: ArrayLike, behavior: ArrayLike) -> tuple[Setting, UncorrectedReturn]:
    uncorrected_return = trace.uncorrected_return if isinstance(trace, Rule) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if uncorrected_return is None:
        raise TypeError(
            f"uncorrected(trace, mdp, target, behavior) needs an uncorrected return such as PengQ(), got {trace!r}"
        )
    return checked(mdp, target, behavior), uncorrected_return


def _endless(title: str, s: Setting, lam: float) -> AffineOperator:
    """(I − γλP_μ)⁻¹ (R + γ(1−λ)P_π Q)."""
    C, error = closed_form.inverse(s.gamma * lam * s.onto_pairs(s.mu))
    step, r = s.gamma * (1 - lam) * s.onto_pairs(s.pi).toarray(), np.ravel(s.mdp.R)
    terms = (len(C) + s.A + 8) * EPS
    Z_error, b_error = (error @ size + terms * (C @ size) for size in (step, np.abs(r)))
    return AffineOperator(title, C @ step, Z_error, C @ r, b_error, s.pi.shape)


def _within(title: str, s: Setting, lam: float, n: int) -> AffineOperator:
    """The recursion of G(n), from G(1) on."""
    first = s.gamma * s.onto_pairs(s.pi).toarray()
    step = s.gamma * s.onto_pairs(s.mu)
    reward = np.ravel(s.mdp.R)
    b, size, through = reward.astype(float), np.abs(reward), first
    for _ in range(n - 1):
        b, size = reward + lam * (step @ b), np.abs(reward) + lam * (step @ size)
        through = (1 - lam) * first + lam * (step @ through)
    terms = n * (row_lengths(step).max(initial=1) + s.A + 8) * EPS
    return AffineOperator(title, through, terms * through, b, terms * size, s.pi.shape)


def uncorrected_variance(
    trace: Rule, mdp: MDP, target: ArrayLike, behavior: ArrayLike, Q: ArrayLike
) -> tuple[np.ndarray, np.ndarray] | None:
    """lower ≤ Var[G | s, a] ≤ upper, [S, A], of the return G for given Q; None where n limits it: that is not computed.

    Without a limit G = Σ (γλ)^t (r_t + γ(1−λ)v(s_{t+1})), v = Σ_a π Q.
    """
    s, (lam, n) = _checked(trace, mdp, target, behavior)
    if n is not None:
        return None
    v = (1 - lam) * (s.pi * np.asarray(Q, dtype=float)).sum(axis=1)
    δ = TemporalDifferences(s, np.zeros(s.pi.shape), v)
    low, high = per_decision(δ, np.full(s.pi.shape, lam))
    return low.reshape(s.pi.shape), high.reshape(s.pi.shape)


def v_trace(
    mdp: MDP, target: ArrayLike, behavior: ArrayLike, lam: float = 1.0, rho_bar: float = 1.0, c_bar: float = 1.0
) -> AffineOperator:
    """The operator of V-trace on state values [S]; `target` and `behavior` are [S, A].

    >>> from offtrace.mdps import alternating
    >>> mdp, π, μ = alternating(gamma=0.5)
    >>> v_trace(mdp, π, μ).fixed_point.shape
    (2,)
    """
    op = StateOperator(VTrace(lam, rho_bar, c_bar), mdp, target=target, behavior=behavior)
    r = op.mean_reward
    b_error = op.C_error @ np.abs(r) + (mdp.S + mdp.A + 8) * EPS * (op.C @ np.abs(r))
    return AffineOperator(f"V-trace(lam={lam:g})", op.Z, op.Z_error, op.C @ r, b_error, op.shape)


def clipped_policy(target: ArrayLike, behavior: ArrayLike, rho_bar: float = 1.0) -> np.ndarray:
    """π_ρ̄(a|s) ∝ min(ρ̄ μ(a|s), π(a|s)), [S, A]: the policy whose values V-trace finds.

    >>> clipped_policy([[1.0, 0.0]], [[0.5, 0.5]])
    array([[1., 0.]])
    """
    weight = np.minimum(rho_bar * np.asarray(behavior, dtype=float), np.asarray(target, dtype=float))
    return weight / weight.sum(axis=1, keepdims=True)
