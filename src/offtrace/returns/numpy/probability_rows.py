"""π, μ and ρ of the actions taken in a stretch of steps, into scratch, and whether a log-probability was bad."""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part
from offtrace.returns.numpy.scalar_math import LARGEST_LOG, exp
from offtrace.trajectory import TOLERANCE


@kernel_part
def ratios(at, n, log_pi, log_mu, ok, ρ):
    """ρ of the n steps from `at` on, counted through all rows; 1 where a step is not `ok`, and so not read."""
    bad = False
    π, μ = log_pi[at : at + n], log_mu[at : at + n]
    for t in range(n):
        log_μ = np.float64(μ[t])
        log_ρ = np.float64(π[t]) - log_μ
        ρ[t] = exp(log_ρ if ok[t] else 0.0)
        bad |= ok[t] & ~((log_ρ < LARGEST_LOG) & (log_μ < np.inf))
    return bad


@kernel_part
def probabilities(at, n, log_pi, log_mu, reads_pi, reads_mu, reads_rho, ok, π, μ, ρ):
    """The same of all that a rule reads."""
    bad = False
    if reads_rho:
        bad |= ratios(at, n, log_pi, log_mu, ok, ρ)
    if reads_pi:
        logs = log_pi[at : at + n]
        for t in range(n):
            log_π = np.float64(logs[t])
            π[t] = exp(log_π if ok[t] else 0.0)
            bad |= ok[t] & ~(log_π <= TOLERANCE)
    if reads_mu:
        logs = log_mu[at : at + n]
        for t in range(n):
            log_μ = np.float64(logs[t])
            μ[t] = exp(log_μ if ok[t] else 0.0)
            bad |= ok[t] & ~((log_μ <= TOLERANCE) & (log_μ > -np.inf))
    return bad
