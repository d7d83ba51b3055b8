"""The mixtures of `returns.mixtures` by a compiled loop over starts, later steps and atoms."""

from __future__ import annotations

import numpy as np

from offtrace.returns.mixtures import Mixture
from offtrace.returns.numpy.compiling import kernel


def mixed(x: Mixture) -> np.ndarray:
    """The target's masses [B, T, N] in float64."""
    out = np.empty(x.own.shape)
    _mix(*(np.ascontiguousarray(a, np.float64) for a in x), out)
    return out


@kernel
def _mix(beta, reward, discount, own, ahead, support, out):
    B, T, N = own.shape
    C = np.empty(N)
    for b in range(B):
        for k in range(T):
            G, Γ = 0.0, 1.0
            C[:] = 0.0
            for t in range(k, T):
                G, Γ = G + Γ * reward[b, t], Γ * discount[b, t]
                weight, weight_own = beta[b, k, t], beta[b, k, t + 1] if t + 1 < T else 0.0
                if weight == 0.0 and weight_own == 0.0:
                    continue
                i, below, first = 0, 0.0, 0.0
                for n in range(N):
                    beyond = support[n] - G
                    while i < N and Γ * support[i] <= beyond:
                        mass = weight * ahead[b, t, i]
                        if weight_own != 0.0:
                            mass -= weight_own * own[b, t + 1, i]
                        below, first = below + mass, first + mass * support[i]
                        i += 1
                    C[n] += beyond * below - Γ * first
            before = 0.0
            for n in range(N - 1):
                slope = (C[n + 1] - C[n]) / (support[n + 1] - support[n])
                out[b, k, n], before = slope - before, slope
            out[b, k, N - 1] = 1.0 - before
