"""Random batches that look like real ones, in NumPy, float32.

π and μ are softmax policies over six actions and a_t is drawn from μ, so that log π − log μ of the actions taken has
the distribution that a learner meets: E_μ[ρ] = 1, skewed. `next_value` is the value of the next step's state except
where an episode is cut, as in a real trajectory; V(s_t) stands in for Σ_a π(a|s_t) Q(s_t, a).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ACTIONS = 6


@dataclass(frozen=True)
class Setting:
    """What a batch is drawn from, and the γ and λ that the rules then use."""

    name: str
    spread: float
    """Standard deviation of π's logits around μ's."""
    terminations: float = 0.01
    truncations: float = 0.005
    gamma: float = 0.99
    lam: float = 0.95


NEAR = Setting("near", spread=0.3)
FAR = Setting("far", spread=1.0)
ENDLESS = Setting("endless", spread=0.3, terminations=0.0, truncations=0.0, gamma=1.0, lam=1.0)  # nothing fades or ends
SETTINGS = {s.name: s for s in (NEAR, FAR, ENDLESS)}


@dataclass(frozen=True)
class Batch:
    """All [B, T]. `q` is Q(s_t, a_t), `value` V(s_t), `next_value` V(s_{t+1})."""

    reward: np.ndarray
    q: np.ndarray
    value: np.ndarray
    next_value: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    log_pi: np.ndarray
    log_mu: np.ndarray
    gamma: float

    def for_targets(self) -> dict:
        """The arguments of `offtrace.targets`."""
        return {name: x for name, x in vars(self).items() if name != "value"}

    def for_state_targets(self) -> dict:
        """The arguments of `offtrace.state_targets`."""
        return {name: x for name, x in vars(self).items() if name != "q"}


def draw(rng: np.random.Generator, setting: Setting, B: int, T: int) -> Batch:
    """A fresh batch."""

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    mu = normal(B * T, ACTIONS)
    pi = mu + np.float32(setting.spread) * normal(B * T, ACTIONS)
    wait = np.maximum(rng.standard_exponential(mu.shape, dtype=np.float32), np.finfo(np.float32).tiny)
    noise = -np.log(wait)  # Gumbel: the arg max is a draw from the softmax
    taken = np.arange(B * T), np.argmax(mu + noise, axis=1)
    log_mu, log_pi = (x[taken] - np.log(np.exp(x).sum(axis=1)) for x in (mu, pi))
    terminated = rng.random((B, T), dtype=np.float32) < setting.terminations
    truncated = ~terminated & (rng.random((B, T), dtype=np.float32) < setting.truncations)
    value, next_value = normal(B, T), normal(B, T)
    goes_on = ~(terminated | truncated)[:, :-1]
    next_value[:, :-1][goes_on] = value[:, 1:][goes_on]
    return Batch(
        reward=normal(B, T),
        q=value + normal(B, T),
        value=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
        log_pi=log_pi.reshape(B, T),
        log_mu=log_mu.reshape(B, T),
        gamma=setting.gamma,
    )
