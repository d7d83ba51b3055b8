"""TD errors, discounts and probabilities as NumPy arrays, for what does not go through the fused pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from offtrace.returns.numpy.scalar_math import LARGEST_LOG, SMALLEST_LOG
from offtrace.trajectory import TOLERANCE, Trajectory, explain_bad_value


def discounts(x: Trajectory) -> np.ndarray:
    """γ_t where a trace may go on from t to t+1, else 0: at an end, at padding, at the row's end. float64 [B, T]."""
    goes_on = ~(x.terminated | x.truncated)
    goes_on[:, -1] = False
    if x.valid is not None:
        goes_on &= x.valid
        goes_on[:, :-1] &= x.valid[:, 1:]
    if not isinstance(x.gamma, np.ndarray):
        return np.where(goes_on, x.gamma, 0.0)
    read = True if x.valid is None else x.valid
    if not np.all(((x.gamma >= 0) & (x.gamma <= 1)) | ~np.asarray(read)):
        explain_bad_value(x)
    return np.where(goes_on, x.gamma, 0.0).astype(np.float64)


def td_errors(x: Trajectory, *, without_q: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """δ (0 at invalid steps) and the discount, float64 [B, T]; `without_q`, δ is the one-step target r + γ next_value."""
    discount = discounts(x)
    with np.errstate(invalid="ignore", over="ignore"):
        ahead = np.where(x.terminated, 0.0, x.next_value).astype(np.float64) * x.gamma
        delta = np.add(x.reward, ahead, dtype=np.float64)
        if not without_q:
            delta -= x.q
    if x.valid is not None:
        delta[~x.valid] = 0.0
    if not np.isfinite(delta).all():
        explain_bad_value(x)
    return delta, discount


def _e_to(logs: np.ndarray) -> np.ndarray:
    return np.where(logs < SMALLEST_LOG, 0.0, np.exp(logs))


def probabilities(x: Trajectory, reads: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """π, μ and ρ of the actions taken, float64 [B, T], 1 at invalid steps; None for those that are not read."""
    valid = np.True_ if x.valid is None else x.valid
    logs = {"pi": x.log_pi, "mu": x.log_mu, "rho": None}
    with np.errstate(invalid="ignore", over="ignore"):
        if "rho" in reads:
            logs["rho"] = np.subtract(x.log_pi, x.log_mu, dtype=np.float64)
        found = {n: _e_to(np.where(valid, logs[n], 0.0).astype(np.float64)) for n in logs if n in reads}
    bad = any(not np.isfinite(array).all() for array in found.values())
    bad = bad or ("rho" in found and np.max(found["rho"]) > np.exp(LARGEST_LOG))
    bad = bad or any(array.max() > np.exp(TOLERANCE) for name, array in found.items() if name != "rho")
    if x.log_mu is not None:
        bad = bad or not np.isfinite(np.where(valid, x.log_mu, 0.0)).all()
    if bad:
        explain_bad_value(x)
    return found.get("pi"), found.get("mu"), found.get("rho")
