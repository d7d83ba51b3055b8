"""Operators that are affine but not of the form Q + C(T_πQ − Q): they have fixed points of their own.

    Peng's Q(λ)            N Q = (I − γλP_μ)⁻¹ (R + γ(1−λ)P_π Q)                      fixed point Q^{λμ+(1−λ)π}
    uncorrected n-step     N Q = Σ_{i<n} (γP_μ)^i R + (γP_μ)^{n−1} γP_π Q
    V-trace (on states)    N V = V + (I − γP_c)⁻¹ (r_ρ̄ + γP_ρ̄V − D_ρ̄V)               fixed point V^{π_ρ̄}, π_ρ̄ ∝ min(ρ̄μ, π)

with P_c(s,s') = Σ_a μ c P(s'|s,a), likewise P_ρ̄ and D_ρ̄ = diag Σ_a μ ρ̄, c = λ min(c̄, ρ), ρ̄ = min(ρ̄, ρ) (Espeholt et al.
2018; Kozuno et al. 2021 for Peng's). Dense linear algebra: for small MDPs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.operators import spectrum
from offtrace.operators.interval import Interval
from offtrace.operators.setting import EPS, setting
from offtrace.traces import NStep, OneStep, PengQ


@dataclass(frozen=True, eq=False)
class AffineOperator:
    """N X = Z X + b on action values [S, A] or state values [S]."""

    title: str
    Z: np.ndarray
    b: np.ndarray
    shape: tuple[int, ...]
    """Of what it acts on."""

    def apply(self, X: Any) -> np.ndarray:
        """N X."""
        return (self.Z @ np.ravel(X) + self.b).reshape(self.shape)

    @property
    def fixed_point(self) -> np.ndarray:
        """The solution of X = Z X + b."""
        return np.linalg.solve(np.eye(len(self.b)) - self.Z, self.b).reshape(self.shape)

    @property
    def _error(self) -> np.ndarray:
        return 64 * len(self.b) * EPS * (np.abs(self.Z) + np.abs(self.Z).max(initial=0.0))

    @property
    def contraction(self) -> Interval:
        """‖Z‖_∞."""
        size, error = np.abs(self.Z), self._error
        return Interval(np.clip(size - error, 0, None).sum(axis=1).max(), (size + error).sum(axis=1).max())

    @property
    def spectral_radius(self) -> Interval:
        """The largest |eigenvalue| of Z."""
        return spectrum.spectral_radius(self.Z, self._error)


def peng(mdp: Any, pi: Any, mu: Any, lam: float) -> AffineOperator:
    """Peng's Q(λ): modulus γ(1−λ)/(1−γλ) where no episode ends, at the price of another fixed point."""
    s = setting(mdp, OneStep(), pi, mu)
    lam = PengQ(lam=lam).lam
    inverse = np.linalg.inv(np.eye(s.pairs) - s.gamma * lam * s.onto_pairs(s.mu).toarray())
    Z = inverse @ (s.gamma * (1 - lam) * s.onto_pairs(s.pi).toarray())
    return AffineOperator(f"Peng's Q(λ)(lam={lam:g})", Z, inverse @ np.ravel(mdp.R), s.pi.shape)


def peng_variance(mdp: Any, pi: Any, mu: Any, Q: Any, lam: float) -> np.ndarray:
    """Var[G | s, a], [S, A], of Peng's return for given Q, by the law of total variance:

    Var G(x) = Var[r + γ(1−λ) v(s') + γλ E G(s', a')] + (γλ)² E Var G(s', a'),    v = Σ_a π Q,  (s', a') ~ P, μ
    """
    pi, mu, Q = (np.asarray(array, dtype=float) for array in (pi, mu, Q))
    γ, shape, live = mdp.gamma, (mdp.S, mdp.A), ~np.asarray(mdp.terminal)
    P, P_mu = mdp.P, np.asarray(mdp.P_pi(mu).todense())
    v = np.where(live, (pi * Q).sum(axis=1), 0.0)
    one = np.eye(mdp.pairs)
    mean = np.linalg.solve(one - γ * lam * P_mu, np.ravel(mdp.R) + γ * (1 - lam) * (P @ v)).reshape(shape)
    ahead = γ * (1 - lam) * v[:, None] + γ * lam * np.where(live[:, None], mean, 0.0)
    first, second = (mu * ahead).sum(axis=1), (mu * ahead**2).sum(axis=1)
    row = np.repeat(np.arange(mdp.pairs), np.diff(P.indptr))
    r = np.ravel(mdp.R)[row] if mdp.transition_rewards is None else mdp.transition_rewards
    to = P.indices
    square = np.bincount(row, P.data * (r**2 + 2 * r * first[to] + second[to]), minlength=mdp.pairs)
    here = np.maximum(0.0, square - np.bincount(row, P.data * (r + first[to]), minlength=mdp.pairs) ** 2)
    return np.linalg.solve(one - (γ * lam) ** 2 * P_mu, here).reshape(shape)


def n_step(mdp: Any, pi: Any, mu: Any, n: int) -> AffineOperator:
    """The uncorrected n-step return: modulus γ^n where no episode ends."""
    s = setting(mdp, OneStep(), pi, mu)
    n = NStep(n=n).n
    step = s.gamma * s.onto_pairs(s.mu)
    b, reward = np.ravel(mdp.R).astype(float), np.ravel(mdp.R)
    Z = s.gamma * s.onto_pairs(s.pi).toarray()
    for _ in range(n - 1):
        b, Z = reward + step @ b, step @ Z
    return AffineOperator(f"n-step(n={n})", Z, b, s.pi.shape)


def v_trace(mdp: Any, pi: Any, mu: Any, lam: float = 1.0, rho_bar: float = 1.0, c_bar: float = 1.0) -> AffineOperator:
    """V-trace on state values [S]."""
    s = setting(mdp, OneStep(), pi, mu)
    if not (rho_bar > 0 and c_bar > 0 and 0 <= lam <= 1):
        raise ValueError(f"V-trace needs rho_bar > 0, c_bar > 0 and lam in [0, 1], got {rho_bar!r}, {c_bar!r}, {lam!r}")
    P = s.P.toarray().reshape(s.S, s.A, s.S)
    c, clipped = s.mu * lam * np.minimum(c_bar, s.rho), s.mu * np.minimum(rho_bar, s.rho)
    inverse = np.linalg.inv(np.eye(s.S) - s.gamma * np.einsum("sa,sat->st", c, P))
    through = s.gamma * np.einsum("sa,sat->st", clipped, P) - np.diag(clipped.sum(axis=1))
    Z = np.eye(s.S) + inverse @ through
    ends = np.asarray(mdp.terminal, dtype=bool)
    Z[ends] = 0.0  # a terminal state's value is 0 and stays so
    Z[:, ends] = 0.0
    return AffineOperator(f"V-trace(lam={lam:g})", Z, inverse @ (clipped * np.asarray(mdp.R)).sum(axis=1), (s.S,))


def clipped_policy(pi: Any, mu: Any, rho_bar: float = 1.0) -> np.ndarray:
    """π_ρ̄(a|s) ∝ min(ρ̄ μ(a|s), π(a|s)): whose values V-trace finds."""
    weight = np.minimum(rho_bar * np.asarray(mu, dtype=float), np.asarray(pi, dtype=float))
    return weight / weight.sum(axis=1, keepdims=True)
