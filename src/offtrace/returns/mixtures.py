"""Signed mixtures of shifted distributions, projected onto a support: what `distributional_targets` computes.

    target_k = P Σ_{t≥k} T_{k:t} [β_{k:t} ahead_t − β_{k:t+1} own_{t+1}],     T_{k:t}: z ↦ G_{k:t} + Γ_{k:t} z

with G_{k:t} = r_k + … + (γ_k ··· γ_{t-1}) r_t, Γ_{k:t} = γ_k ··· γ_t, and P the projection that shares an atom between its two
neighbours on the support, in proportion, and moves what is beyond it to its ends.

A distribution with atoms g_j and masses p_j is kept as C(x) = Σ_j p_j max(x − g_j, 0), which two cumulative sums give:

    C(x) = x F − M,     F = Σ_{g_j ≤ x} p_j,     M = Σ_{g_j ≤ x} p_j g_j

C of a mixture is the mixture of the C's, and the mean slope of C between two neighbours on the support is the mass that P puts on
the lower one and all below it. So no atom is scattered, and each term costs two look-ups for each atom of the support.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from offtrace.arrays import Module, Tensor, along_last_axis


class Mixture(NamedTuple):
    """The terms of rows of T steps. Nothing here is NaN."""

    beta: Tensor
    """β_{k:t}, [B, T, T]."""
    reward: Tensor
    """[B, T]."""
    discount: Tensor
    """γ_t, and 0 where the task ended after step t, [B, T]."""
    own: Tensor
    """The masses of Z(s_t, a_t), [B, T, N]."""
    ahead: Tensor
    """Those of Z at the true next state, under π, [B, T, N]."""
    support: Tensor
    """Ascending, [N]."""


def mixed(do: Any, x: Mixture) -> Tensor:
    """The target's masses [B, T, N], lag by lag for all starts, by the `Operations` of PyTorch or JAX."""
    xp, (_, T, N) = do.xp, x.own.shape
    k = xp.cumsum(xp.ones_like(x.reward[0], dtype=int), 0) - 1
    F, M = sums(xp, x.ahead, x.support)
    F_own, M_own = (xp.roll(a, -1, 1) for a in sums(xp, x.own, x.support))  # of step t + 1

    def add(lag: int, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        G, Γ, C = state
        t = xp.clip(k + lag, None, T - 1)
        weight = xp.where(k + lag < T, x.beta[:, k, t], 0.0)[..., None]
        weight_own = xp.where(k + lag + 1 < T, x.beta[:, k, xp.clip(t + 1, None, T - 1)], 0.0)[..., None]
        G, Γ = G + Γ * x.reward[:, t], Γ * x.discount[:, t]
        beyond, g = along_last_axis(x.support, 3) - G[..., None], Γ[..., None]
        scaled = xp.searchsorted(x.support, beyond / xp.where(g > 0.0, g, 1.0), side="right")
        index = xp.where(g > 0.0, scaled, xp.where(beyond >= 0.0, N, 0))  # with Γ = 0 all atoms are at G
        below = do.take(weight * F[:, t] - weight_own * F_own[:, t], index)
        first = do.take(weight * M[:, t] - weight_own * M_own[:, t], index)
        return G, Γ, C + beyond * below - g * first

    zero = 0.0 * x.reward
    return masses_of(xp, do.repeat(T, add, (zero, zero + 1.0, 0.0 * x.own))[2], x.support)


def masses_of(xp: Module, C: Tensor, support: Tensor) -> Tensor:
    """The projected masses of a distribution whose C is known on the support."""
    slope = (C[..., 1:] - C[..., :-1]) / along_last_axis(support[1:] - support[:-1], C.ndim)
    one = xp.ones_like(C[..., :1])
    return xp.concatenate([slope, one], -1) - xp.concatenate([0.0 * one, slope], -1)


def sums(xp: Module, masses: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_{j<i} p_j and Σ_{j<i} p_j z_j for i = 0 … N."""
    none = 0.0 * masses[..., :1]
    return tuple(
        xp.concatenate([none, xp.cumsum(a, -1)], -1) for a in (masses, masses * along_last_axis(support, masses.ndim))
    )  # pyright: ignore
