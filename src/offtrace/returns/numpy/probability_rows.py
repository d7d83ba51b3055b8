"""π, μ and ρ of the actions taken in a stretch of steps, into scratch, and whether a log-probability was bad."""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part
from offtrace.returns.numpy.scalar_math import exp
from offtrace.trajectory import LARGEST_LOG, TOLERANCE


@kernel_part
def probabilities(n, log_pi, log_mu, reads_pi, reads_mu, reads_rho, π, μ, ρ):
    """What a rule reads of n steps."""
    bad = False
    if reads_rho:
        for t in range(n):
            log_μ = np.float64(log_mu[t])
            log_ρ = np.float64(log_pi[t]) - log_μ
            ρ[t] = exp(log_ρ)
            bad |= not ((log_ρ < LARGEST_LOG) & (log_μ < np.inf))
    for of_μ in range(2):  # one loop for both, since it takes a while to compile
        if reads_mu if of_μ else reads_pi:
            logs, into, lowest = (log_mu, μ, -np.inf) if of_μ else (log_pi, π, -1.0)
            for t in range(n):
                log = np.float64(logs[t])
                into[t] = exp(log)
                bad |= not ((log <= TOLERANCE) & ((log > -np.inf) | (lowest > -np.inf)))
    return bad
