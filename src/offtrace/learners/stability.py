"""Whether a method's expected update is stable on a finite MDP with given features: its matrix, exact, and the spectrum of it.

With x the features of s, D the stationary distribution of μ, and Z that of `operators.StateOperator` for the method's trace,

    A = E[ρ e (x − γx')ᵀ] = Xᵀ D (I − Z) X,     C = E[x xᵀ] = Xᵀ D X,     A_b = Xᵀ D (I − γλP_μ)⁻¹ (I − γP_μ) X

since Z holds all that a trace does, whichever trace it is. E[x' (γρe − e_on)ᵀ] = C − Aᵀ, where e_on is what remains of e. So the
expected change of (w, v) with the step sizes α and ηα, but for a constant vector, is α G (w, v):

    TD      [ −A ]                                       GTD, TDRC   [ −A,  Aᵀ − C ;  −ηA,  −η(C + κI) ]
    GTD2    [ 0,  Aᵀ ;  −ηA,  −ηC ]                      HTD         [ −A,  Aᵀ − A_bᵀ ;  −ηA,  −ηA_bᵀ ]

Small step sizes lead to the fixed point where every eigenvalue of G has a negative real part, and away from it where one has a
positive one. That is about means: where ratios are large, single runs may go astray though the mean does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from offtrace.learners.arrays import Floats
from offtrace.learners.environments import feature_rows
from offtrace.learners.methods.base import Method
from offtrace.learners.methods.gradient import GTD, GTD2, HTD, GradientTD
from offtrace.mdps.exact_values import over_pairs, visited
from offtrace.mdps.mdp import MDP
from offtrace.operators.state_operator import StateOperator
from offtrace.trajectory import distributions


class Stability(NamedTuple):
    """What `stability` returns."""

    rate: float
    """The largest real part of an eigenvalue of G, on what features tell apart: below 0 it converges, above 0 it diverges."""
    eigenvalues: np.ndarray
    """All of them, the one with the largest real part first."""
    matrix: Floats
    """G, [n, n], of the weights w, and of v after them where there are such. The expected change is α G (w, v) + a constant."""

    @property
    def converges(self) -> bool:
        """Whether every real part is below 0: then small step sizes lead to the fixed point, in the mean."""
        return bool(self.rate < 0.0)

    def __str__(self) -> str:
        verdict = "converges" if self.converges else "diverges" if self.rate > 0 else "neither converges nor diverges"
        return f"{verdict} in the mean with small step sizes: rate {self.rate:.6g} of {len(self.matrix)} weights"


class _Means(NamedTuple):
    A: Floats
    C: Floats
    A_b: Callable[[float], Floats]


def stability(
    method: Method, mdp: MDP, *, features: ArrayLike | None = None, target: ArrayLike, behavior: ArrayLike
) -> Stability:
    """The expected update of a method on state values, and whether small step sizes make it converge.

    - `method`: TD with any trace, or GTD, GTD2, TDRC or HTD with any trace, as `learners.method` makes them
    - `features`: [S, d], a row for each state; without them there is a weight for each state
    - `target`, `behavior`: policies [S, A], π and μ

    In an MDP with ends, episodes follow each other. Weights that no feature tells apart are left out of the spectrum.

    >>> from offtrace import mdps
    >>> from offtrace.learners import method, stability
    >>> mdp, π, μ, X = mdps.w_to_2w()
    >>> for name in ("td", "gtd"):
    ...     print(name, stability(method(name, lam=0.0), mdp, features=X, target=π,
    ...                           behavior=μ).converges)
    td False
    gtd True
    """
    if method.values != "state" or not (method.in_loop or isinstance(method, GradientTD)):
        raise TypeError(
            f"stability knows TD, GTD, GTD2, TDRC and HTD on state values, with any trace, and not {method.title}"
        )
    π, μ = (
        distributions(np.array(p, dtype=np.float64), name) for p, name in ((target, "target"), (behavior, "behavior"))
    )
    method = method.for_policies((π, π), (μ, μ))
    S = len(mdp.start)
    X = np.eye(S) if features is None else feature_rows(features, S)
    G = _matrix(method, _means(method, mdp, X, π, μ))
    basis = _told_apart(X)
    seen = np.kron(np.eye(len(G) // X.shape[1]), basis)
    eigenvalues = np.linalg.eigvals(seen.T @ G @ seen)
    eigenvalues = eigenvalues[np.argsort(-eigenvalues.real)]
    return Stability(float(eigenvalues[0].real), eigenvalues, G)


def _means(method: Method, mdp: MDP, X: Floats, π: Floats, μ: Floats) -> _Means:
    live, eye = ~np.asarray(mdp.terminal, dtype=bool), np.eye(mdp.S)
    Z = StateOperator(method.trace, mdp, target=π, behavior=μ).Z
    P: Floats = (over_pairs(μ, live) @ mdp.P).toarray()
    x, on = X * live[:, None], P * live
    weighted = x.T * _visits(P, live, np.asarray(mdp.start))

    def behavior_matrix(lam: float) -> Floats:
        return weighted @ np.linalg.solve(eye - mdp.gamma * lam * on, eye - mdp.gamma * on) @ x

    return _Means(weighted @ (eye - Z) @ x, weighted @ x, behavior_matrix)


def _visits(P: Floats, live: np.ndarray, start: Floats) -> Floats:
    """The stationary distribution over states in which an action is taken, [S]; after an end an episode begins."""
    chain = P * live + np.outer(P[:, ~live].sum(axis=1), start)
    at = np.flatnonzero(visited(sp.csr_array(chain), start > 0))
    stacked = np.vstack([chain[np.ix_(at, at)].T - np.eye(len(at)), np.ones(len(at))])
    solution, _, rank, _ = np.linalg.lstsq(stacked, np.append(np.zeros(len(at)), 1.0), rcond=None)
    if rank < len(at):
        raise ValueError(
            "the states have no one stationary distribution: from `start`, the behaviour policy reaches several sets of states "
            "that it never leaves. Give an MDP whose start leads to one of them"
        )
    d = np.zeros(len(P))
    d[at] = np.maximum(solution, 0.0)
    return d / d.sum()


def _matrix(method: Method, means: _Means) -> Floats:
    """G of the module's table."""
    A, C, eye = means.A, means.C, np.eye(len(means.A))
    match method:
        case GTD(eta=η, kappa=κ):  # κ is 0, but for TDRC
            return np.block([[-A, A.T - C], [-η * A, -η * (C + κ * eye)]])
        case GTD2(eta=η):
            return np.block([[0.0 * A, A.T], [-η * A, -η * C]])
        case HTD(eta=η):
            A_b = means.A_b(method.numbers[1])
            return np.block([[-A, A.T - A_b.T], [-η * A, -η * A_b.T]])
        case _ if method.in_loop:
            return -A
        case _:
            raise TypeError(f"stability does not know the expected update of {method.title}")


def _told_apart(X: Floats) -> Floats:
    """An orthonormal basis [d, r] of the weights that features tell apart: all others change no value, and never change."""
    _, size, rows = np.linalg.svd(X, full_matrices=False)
    return rows[size > 1e-10 * size.max()].T
