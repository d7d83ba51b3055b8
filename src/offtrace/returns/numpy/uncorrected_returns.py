"""Peng's Q(λ) and the uncorrected n-step return: the two that bootstrap from `next_value` alone."""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy import gradients
from offtrace.returns.numpy.compiling import kernel
from offtrace.returns.numpy.read_steps import td_errors
from offtrace.traces.base import UncorrectedReturn
from offtrace.trajectory import Trajectory


def of(rule: UncorrectedReturn, x: Trajectory) -> np.ndarray | None:
    """G [B, T], or None where a value is bad. Without a limit n it is the linear recursion G_k = a_k + λ discount_k G_{k+1}."""
    made = td_errors(x, without_q=True)
    if made is None:
        return None
    one_step, discount = made
    with np.errstate(invalid="ignore"):  # what is not read may be anything
        a = np.where(discount > 0, x.read("reward") + (1.0 - rule.lam) * discount * x.read("next_value"), one_step)
    if rule.n is None:
        return gradients.solve(a, rule.lam * discount)
    out = np.empty(one_step.shape)
    _within(a, one_step, rule.lam * discount, rule.n, out)
    return out


@kernel
def _within(a, one_step, passed, n, out):
    """G_k = Σ_{i<n−1} (λγ)^i a_{k+i} + (λγ)^{n−1} (r + γ v)_{k+n−1}, shorter where the episode is."""
    B, T = one_step.shape
    for b in range(B):
        for k in range(T):
            w, total, t = 1.0, 0.0, k
            while t + 1 < k + n and passed[b, t] != 0.0:  # nothing is passed on at the row's end
                total += w * a[b, t]
                w *= passed[b, t]
                t += 1
            out[b, k] = total + w * one_step[b, t]
