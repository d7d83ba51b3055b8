"""Peng's Q(λ) and the uncorrected n-step return: the two that bootstrap from `next_value` alone."""

from __future__ import annotations

import numpy as np
from numba import njit

from offtrace.returns.numpy import given_factors
from offtrace.returns.numpy.whole_arrays import td_errors
from offtrace.traces import NStep, PengQ
from offtrace.trajectory import Trajectory


def peng(rule: PengQ, trajectory: Trajectory) -> np.ndarray:
    """G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}], as the linear recursion G_k = a_k + λ discount_k G_{k+1}."""
    one_step, discount = td_errors(trajectory, without_q=True)
    x = trajectory
    with np.errstate(invalid="ignore"):  # what is not read may be anything
        a = np.where(discount > 0, x.reward + (1.0 - rule.lam) * discount * x.next_value, one_step)
    return given_factors.solve(a, rule.lam * discount)


def n_step(rule: NStep, trajectory: Trajectory) -> np.ndarray:
    """G_k = Σ_{i<n} γ^i r_{k+i} + γ^n v_{k+n}, shorter where the episode is."""
    one_step, discount = td_errors(trajectory, without_q=True)
    out = np.empty(one_step.shape)
    _n_step(trajectory.reward, one_step, discount, rule.n, out)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _n_step(reward, one_step, discount, n, out):
    B, T = one_step.shape
    for b in range(B):
        for k in range(T):
            w, total, t = 1.0, 0.0, k
            while t + 1 < k + n and discount[b, t] != 0.0:  # the discount is 0 at the row's end
                total += w * reward[b, t]
                w *= discount[b, t]
                t += 1
            out[b, k] = total + w * one_step[b, t]
