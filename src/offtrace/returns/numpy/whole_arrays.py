"""TD errors, discounts and probabilities as NumPy arrays, for what does not go through a compiled pass.

A trajectory that holds a bad value gives None in place of the arrays: a caller who wants to name the value asks
`trajectory.explain_bad_value`.
"""

from __future__ import annotations

import numpy as np

from offtrace.trajectory import LARGEST_LOG, SMALLEST_LOG, TOLERANCE, Trajectory, explain_bad_value


def goes_on(x: Trajectory) -> np.ndarray:
    """Whether a trace may pass from t to t+1, bool [B, T]: not at an end, at padding or at the row's end."""
    goes_on = ~(x.terminated | x.truncated)
    goes_on[:, -1] = False
    if x.valid is not None:
        goes_on &= x.valid
        goes_on[:, :-1] &= x.valid[:, 1:]
    return goes_on


def discounts(x: Trajectory) -> np.ndarray | None:
    """γ_t where a trace may pass from t to t+1, else 0. float64 [B, T]."""
    if isinstance(x.gamma, np.ndarray):
        read = np.True_ if x.valid is None else x.valid
        if not np.all(((x.gamma >= 0) & (x.gamma <= 1)) | ~read):
            return None
    return np.where(goes_on(x), x.gamma, 0.0).astype(np.float64, copy=False)


def td_errors(x: Trajectory, *, without_q: bool = False) -> tuple[np.ndarray, np.ndarray] | None:
    """δ (0 at invalid steps) and the discount, float64 [B, T]; `without_q`, δ is the one-step target r + γ next_value."""
    discount = discounts(x)
    with np.errstate(invalid="ignore", over="ignore"):
        ahead = np.where(x.terminated, 0.0, x.read("next_value")).astype(np.float64) * x.gamma
        delta = np.add(x.read("reward"), ahead, dtype=np.float64)
        if not without_q:
            delta -= x.read("q")
    if x.valid is not None:
        delta[~x.valid] = 0.0
    return None if discount is None or not np.isfinite(delta).all() else (delta, discount)


def _e_to(logs: np.ndarray) -> np.ndarray:
    return np.where(logs < SMALLEST_LOG, 0.0, np.exp(logs))


def probabilities(x: Trajectory, reads: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """π, μ and ρ of the actions taken, by name, of those that are read: float64 [B, T], 1 at invalid steps."""
    valid = np.True_ if x.valid is None else x.valid
    logs = {"pi": x.log_pi, "mu": x.log_mu}
    with np.errstate(invalid="ignore", over="ignore"):
        if "rho" in reads:
            logs["rho"] = np.subtract(x.read("log_pi"), x.read("log_mu"), dtype=np.float64)
        read = {name: log for name, log in logs.items() if name in reads and log is not None}
        found = {name: _e_to(np.where(valid, log, 0.0).astype(np.float64)) for name, log in read.items()}
    bad = any(not np.isfinite(array).all() for array in found.values())
    bad = bad or ("rho" in found and np.max(found["rho"]) > np.exp(LARGEST_LOG))
    bad = bad or any(array.max() > np.exp(TOLERANCE) for name, array in found.items() if name != "rho")
    if x.log_mu is not None:
        bad = bad or not np.isfinite(np.where(valid, x.log_mu, 0.0)).all()
    return None if bad else found


def preceding(array: np.ndarray) -> np.ndarray:
    """What stands one step earlier, [B, T]; NaN before the first."""
    return np.concatenate([np.full_like(array[:, :1], np.nan), array[:, :-1]], axis=1)


def following(array: np.ndarray) -> np.ndarray:
    """What stands one step later, [B, T]; 0 after the last."""
    return np.concatenate([array[:, 1:], np.zeros_like(array[:, :1])], axis=1)


def look(x: Trajectory, reads: tuple[str, ...]) -> None:
    """Raise an error that names the first bad value, if there is one."""
    if td_errors(x, without_q=x.q is None) is None or probabilities(x, reads) is None:
        explain_bad_value(x)
