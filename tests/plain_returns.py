"""Returns as a careful user would write them: two plain loops over the normal form, without a line of the library's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def on_actions(trace: Any) -> Callable[..., np.ndarray]:
    """q_k + Σ_t γ^{t-k} β δ_t, for any rule in normal form."""

    def fn(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, greedy) -> np.ndarray:
        pi = greedy.astype(float) if trace.needs_greedy else np.exp(log_pi)
        shape = reward.shape
        made = trace.normal_form(np, pi, np.exp(log_mu), pi / np.exp(log_mu))
        decay, ratio, cap = (np.broadcast_to(part, shape) for part in made)
        bounds = trace.bounds_by_lag(shape[1]) or [np.inf] * shape[1]
        target = np.zeros(shape)
        for b, k in np.argwhere(valid):
            x, weight = 1.0, 1.0
            for t in range(k, shape[1]):
                if t > k:
                    if t - k > len(bounds):
                        break
                    x *= ratio[b, t]
                    weight *= gamma * decay[b, t]
                    x = min(x, cap[b, t]) if trace.recursive else x
                beta = min(x, cap[b, t], bounds[t - k - 1]) if t > k else 1.0
                ahead = 0.0 if terminated[b, t] else gamma * next_value[b, t]
                target[b, k] += weight * beta * (reward[b, t] + ahead - q[b, t])
                if terminated[b, t] or truncated[b, t] or t + 1 == shape[1] or not valid[b, t + 1]:
                    break
            target[b, k] += q[b, k]
        return target

    return fn
