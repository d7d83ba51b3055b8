"""Rules that cut where the action taken is not greedy (`Rule.needs_greedy`): they read π of the greedy policy, 1 or 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from offtrace.arrays import Array
from offtrace.returns.backend import Backend
from offtrace.traces import Rule
from offtrace.trajectory import TOLERANCE, spell

REMEDY = (
    "pass greedy=…, whether the action taken maximises Q, e.g. greedy=(q_of_all.argmax(-1) == action), "
    "or log_pi of a greedy policy, 0 or -inf"
)


def log_pi_of_greedy(backend: Backend[Array], trace: Rule, arrays: Mapping[str, Any]) -> Array:
    """log π(a_t|s_t) of the greedy policy, of the arrays' own kind: from `greedy`, or log_pi itself if it is 0 or −inf.

    A soft log_pi is an error; where no error can be raised, as under jit, it becomes NaN.
    """
    log_pi, greedy, valid = arrays.get("log_pi"), arrays.get("greedy"), arrays.get("valid")
    if greedy is not None:
        reward = arrays.get("reward")
        return _from_flags(backend, greedy, like=arrays["terminated"] if reward is None else reward)
    if log_pi is None:
        raise TypeError(f"greedy is missing: {trace.title} cuts where the action taken is not greedy; {REMEDY}")
    xp = backend.xp
    log_pi = xp.asarray(log_pi)
    soft = (log_pi < -TOLERANCE) & (log_pi > -np.inf)
    if valid is not None:
        soft = soft & (xp.asarray(valid) != 0)
    if backend.looks(None, {"log_pi": log_pi}) and bool(soft.any()):
        at = tuple(int(i) for i in np.argwhere(backend.as_numpy(soft))[0])
        raise ValueError(
            f"log_pi is of a soft policy: got {float(log_pi[at])} at index {spell(at)}, but {trace.title} cuts where the "
            f"action taken is not greedy, which a soft policy does not tell: {REMEDY}"
        )
    return xp.where(soft, np.nan, log_pi)


def _from_flags(backend: Backend[Array], greedy: Array, like: Array) -> Array:
    """0 where greedy, else −inf, in the dtype of `like` if that is real."""
    xp = backend.xp
    greedy, like = xp.asarray(greedy), xp.asarray(like)
    if tuple(greedy.shape) != tuple(like.shape):
        raise ValueError(
            f"greedy has shape {tuple(greedy.shape)} but the trajectory has {tuple(like.shape)}: nothing is broadcast"
        )
    if "float" in str(greedy.dtype):
        raise TypeError(f"greedy must be boolean or 0/1 integers, got {greedy.dtype}")
    zero = xp.zeros_like(like) if "float" in str(like.dtype) else like * 0.0
    return xp.where(greedy != 0, zero, -np.inf)
