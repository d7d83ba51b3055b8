"""Per-decision traces: β_t = ∏ c_i, so K_t = P_{cμ}^t and, with G = γP_{cμ}, c = decay·ratio,

    C = Σ_{t≥0} G^t = (I − G)⁻¹,        with a horizon n:  C = Σ_{t<n} G^t.

Errors are bounded after the fact: if (I − G)C̃ = I − E then |C − C̃| = |C E| ≤ C|E|.
"""

from __future__ import annotations

import numpy as np

from offtrace.mdps.sparse_matrices import SparseMatrix, identity_minus, row_lengths, solved
from offtrace.operators.setting import EPS, Setting

DENSE = 4000
"""The most pairs for which [S·A, S·A] arrays are allocated."""


class Divergent(ValueError):
    """Σγ^tβ_t has no finite mean: there is no operator."""


def resolvent(G: SparseMatrix, n: int | None) -> tuple[np.ndarray, np.ndarray]:
    """C for a horizon n, or none, and a bound on its error, entry by entry."""
    return inverse(G) if n is None else _partial_sum(G.toarray(), n)


def inverse(G: SparseMatrix) -> tuple[np.ndarray, np.ndarray]:
    """(I − G)⁻¹ for G ≥ 0, and a bound on its error."""
    step = G.toarray()
    identity = np.eye(len(step))
    A = identity - step
    try:
        A_inverse = np.linalg.inv(A)
    except np.linalg.LinAlgError as singular:
        raise Divergent(_MESSAGE) from singular
    residual = np.abs(identity - A @ A_inverse)
    # For G ≥ 0 the inverse is nonnegative if and only if the spectral radius of G is below 1.
    if A_inverse.min() < -1e-9 * np.abs(A_inverse).max() or residual.sum(axis=1).max() > 1e-3:
        raise Divergent(_MESSAGE)
    C = np.maximum(A_inverse, 0.0)
    residual = residual + _rounding(G) * (identity + G @ C)
    return C, C @ residual * (1 + 2 * residual.sum(axis=1).max())


_MESSAGE = (
    "Σγ^tβ_t has an infinite mean on this MDP (the coefficients decay·ratio outweigh the discount): "
    "the operator does not exist. Use a smaller λ or a cap"
)


def _partial_sum(G: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Σ_{t<n} G^t by doubling: S_{2m} = S_m + G^m S_m. All terms are ≥ 0, so the relative error stays at rounding level."""
    total, power, identity = np.eye(len(G)), G, np.eye(len(G))
    for bit in bin(n)[3:]:
        total = total + power @ total
        power = power @ power
        if bit == "1":
            total = identity + G @ total
            power = G @ power
    return total, total * (8 * n.bit_length() * len(G) * EPS)


def solve(G: SparseMatrix, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """v = (I − G)⁻¹ b for b ≥ 0, [S·A] or [S·A, Y], and a bound on its error; for large sparse G too."""
    if len(b) <= DENSE:
        C, error = inverse(G)
        return C @ b, error @ b + 4 * len(C) * EPS * (C @ b)
    shape, b = b.shape, b.reshape(len(b), -1)
    e = np.ones(len(b))
    minus_G = identity_minus(G)
    w = solved(minus_G, e)
    off = np.abs(e - (w - G @ w)).max() + _rounding(G) * w.max()
    if not (w.min() > 0 and off < 0.5):
        raise Divergent(_MESSAGE)
    norm = w.max() / (1 - off)  # ‖C‖∞ ≤ max w / (1 − ‖e − (I−G)w‖∞)
    v = np.stack([solved(minus_G, column) for column in b.T], axis=1)
    residual = np.abs(b - (v - G @ v)).max(axis=0) + _rounding(G) * (np.abs(v) + b).max(axis=0)
    return v.reshape(shape), np.broadcast_to(norm * residual, v.shape).reshape(shape)


def _rounding(G: SparseMatrix) -> float:
    """The relative rounding error of G's entries and of sums over its rows."""
    return (8 + int(row_lengths(G).max(initial=1))) * EPS


def length(setting: Setting, policy: np.ndarray) -> float:
    """The largest mean of Σγ^t over the steps of an episode under a policy, or more."""
    if setting.gamma < 1:
        return 1 / (1 - setting.gamma)
    v, error = solve(setting.onto_pairs(policy), np.ones(setting.pairs))
    return float((v + error).max())
