"""Rules that cut where the action taken is not greedy (`Rule.needs_greedy`): they read π of the greedy policy, 1 or 0."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from offtrace.returns.array_kinds import backend_of
from offtrace.traces import Rule
from offtrace.trajectory import TOLERANCE, spell

REMEDY = (
    "pass greedy=…, whether the action taken maximises Q, e.g. greedy=(q_of_all.argmax(-1) == action), "
    "or log_pi of a greedy policy, 0 or -inf"
)


def log_pi_of_greedy(
    trace: Rule, log_pi: Any, greedy: Any, *, terminated: Any, valid: Any = None, reward: Any = None, **_: Any
) -> Any:
    """log π(a_t|s_t) of the greedy policy, of the arrays' own kind: from `greedy`, or log_pi itself if it is 0 or −inf.

    A soft log_pi is an error; where no error can be raised, as under jit, it becomes NaN.
    """
    if greedy is not None:
        return _from_flags(greedy, like=reward if reward is not None else terminated)
    if log_pi is None:
        raise TypeError(f"greedy is missing: {trace.title} cuts where the action taken is not greedy; {REMEDY}")
    xp, look = _module(log_pi)
    log_pi = xp.asarray(log_pi)
    soft = (log_pi < -TOLERANCE) & (log_pi > -np.inf)
    if valid is not None:
        soft = soft & (xp.asarray(valid) != 0)
    if look and bool(soft.any()):
        at = tuple(int(i) for i in np.argwhere(np.asarray(soft))[0])
        raise ValueError(
            f"log_pi is of a soft policy: got {float(log_pi[at])} at index {spell(at)}, but {trace.title} cuts where the "
            f"action taken is not greedy, which a soft policy does not tell: {REMEDY}"
        )
    return xp.where(soft, np.nan, log_pi)


def _from_flags(greedy: Any, like: Any) -> Any:
    """0 where greedy, else −inf, in the dtype of `like` if that is real."""
    xp, _ = _module(like)
    greedy, like = xp.asarray(greedy), xp.asarray(like)
    if tuple(greedy.shape) != tuple(like.shape):
        raise ValueError(
            f"greedy has shape {tuple(greedy.shape)} but the trajectory has {tuple(like.shape)}: nothing is broadcast"
        )
    if "float" in str(greedy.dtype):
        raise TypeError(f"greedy must be boolean or 0/1 integers, got {greedy.dtype}")
    zero = xp.zeros_like(like) if "float" in str(like.dtype) else like * 0.0
    return xp.where(greedy != 0, zero, -np.inf)


def _module(array: Any) -> tuple[Any, bool]:
    """numpy, torch or jax.numpy, by the kind of the array; and whether its values can be looked at here and at no cost."""
    kind = backend_of({"array": array})
    if kind == "torch":
        torch = sys.modules["torch"]
        hidden = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        return torch, array.device.type == "cpu" and not hidden
    if kind == "jax":
        jax = sys.modules["jax"]
        hidden = isinstance(array, jax.core.Tracer)
        return sys.modules["jax.numpy"], not hidden and all(d.platform == "cpu" for d in array.devices())
    return np, True
