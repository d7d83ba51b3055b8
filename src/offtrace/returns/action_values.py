"""From full arrays over actions to the arrays that `targets` takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from offtrace.trajectory import FLOATS, ROW_TOLERANCE, first_index, spell


def from_action_values(
    q: Any, next_q: Any, pi: Any, next_pi: Any, action: Any, mu: Any = None, valid: Any = None
) -> dict[str, np.ndarray]:
    """q, next_value and log_pi (and log_mu, where mu is given) of the actions taken, ready for `targets(trace, **made, …)`.

    q, next_q, pi, next_pi, mu: [T, A] or [B, T, A], at s_t and at the true next state; action: integers [T] or [B, T].
    `valid`, if given, says where `action` is padding, say −1.
    next_value = Σ_a next_pi · next_q, where an action of probability 0 counts 0 whatever its value (−inf masks too).

    >>> import numpy as np
    >>> made = from_action_values(q=np.array([[1.0, 2.0]]), next_q=np.array([[3.0, 5.0]]), pi=np.array([[0.5, 0.5]]),
    ...                           next_pi=np.array([[0.5, 0.5]]), action=np.array([1]))
    >>> {name: array.tolist() for name, array in made.items()}
    {'q': [2.0], 'next_value': [4.0], 'log_pi': [-0.6931471805599453]}
    """
    arrays = {"q": q, "next_q": next_q, "pi": pi, "next_pi": next_pi} | ({} if mu is None else {"mu": mu})
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    action = np.asarray(action)
    shape, dtype = arrays["q"].shape, arrays["q"].dtype
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"q must be [T, A] or [B, T, A] and not empty, got shape {shape}")
    for name, array in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape} but q has shape {shape}: nothing is broadcast")
        if array.dtype not in FLOATS or array.dtype != dtype:
            raise TypeError(f"{name} is {array.dtype}: all arrays must be float32 or all float64, and q is {dtype}")
        if name in ("pi", "next_pi", "mu"):
            _check_rows(name, array)
    if action.shape != shape[:-1] or action.dtype.kind not in "iu":
        raise ValueError(f"action must hold integers of shape {shape[:-1]}, got {action.dtype} of shape {action.shape}")
    if valid is not None:
        action = np.where(np.asarray(valid, bool), action, 0)  # what stands at padding is not read
    outside = (action < 0) | (action >= shape[-1])
    if outside.any():
        at = first_index(outside)
        raise ValueError(f"action must lie in [0, {shape[-1]}), got {action[at]} at index {spell(at)}")

    def taken(array: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array, action[..., None], axis=-1)[..., 0]

    with np.errstate(divide="ignore", invalid="ignore"):
        weighted = np.where(arrays["next_pi"] == 0, 0, arrays["next_pi"] * arrays["next_q"])
        made = {"q": taken(arrays["q"]), "next_value": weighted.sum(axis=-1)}
        for name in ("pi", "mu") if mu is not None else ("pi",):
            made[f"log_{name}"] = np.log(np.clip(taken(arrays[name]), 0, 1))  # rounding may leave [0, 1]
    return made


def _check_rows(name: str, array: np.ndarray) -> None:
    """A policy's rows are probabilities that sum to one; a row of NaN (padding, or past an end) is let through."""
    total = array.sum(axis=-1, dtype=np.float64)
    bad = (np.abs(total - 1) > ROW_TOLERANCE) | (array < 0).any(axis=-1)
    if bad.any():
        at = first_index(bad)
        raise ValueError(
            f"{name} must hold probabilities that sum to 1 over actions, got {array[at]} at index {spell(at)}"
        )
