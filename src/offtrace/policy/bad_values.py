"""Values that no loss can be made of: the first one is named, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from offtrace.trajectory import ROW_TOLERANCE, TOLERANCE, first_index, spell

FLAGS = ("valid", "mask", "skip", "keep")


def look(seen: Mapping[str, np.ndarray], decision: np.ndarray, over_actions: tuple[str, ...]) -> None:
    """Raise on the first value that is bad where there is a decision."""
    for name in filter(seen.__contains__, FLAGS):
        bad = (seen[name] != 0) & (seen[name] != 1)
        if bad.any():
            at = first_index(bad)
            raise ValueError(f"{name} must hold 0 or 1, got {seen[name][at]} at index {spell(at)}")
    for name, array in seen.items():
        if name not in FLAGS:
            refuse_bad(name, array, decision[..., None] if name in over_actions else decision, logarithm="log_" in name)
    for name in ("log_pi", "log_mu"):
        if name in over_actions:
            _refuse_unnormalised(name, seen[name], decision)
    if "action" in seen:
        actions = seen[over_actions[0]].shape[-1]
        outside = ((seen["action"] < 0) | (seen["action"] >= actions)) & decision
        if outside.any():
            at = first_index(outside)
            raise ValueError(f"action must lie in [0, {actions}), got {seen['action'][at]} at index {spell(at)}")
    for name in ("log_mu", "log_prox"):
        if name in seen:
            logs = seen[name]
            if name in over_actions:
                logs = np.take_along_axis(logs, np.where(decision, seen["action"], 0)[..., None], -1)[..., 0]
            _refuse_never(name, logs, decision)


def refuse_bad(name: str, array: np.ndarray, read: np.ndarray, *, logarithm: bool) -> None:
    """Raise where a number that is read is not finite; a logarithm may be −∞."""
    bad = (np.isnan(array) | (array == np.inf) if logarithm else ~np.isfinite(array)) & read
    if bad.any():
        at = first_index(bad)
        allowed = "finite, or −inf where the probability is 0" if logarithm else "finite"
        raise ValueError(
            f"{name} must be {allowed}, got {array[at]} at index {spell(at)}: if that step is no decision, say so"
        )


def _refuse_never(name: str, logs: np.ndarray, decision: np.ndarray) -> None:
    """Raise where an action was taken that its policy never takes."""
    bad = (logs == -np.inf) & decision
    if bad.any():
        raise ValueError(
            f"{name} is −inf at index {spell(first_index(bad))}: that action was taken, so that its probability is not 0"
        )


def _refuse_unnormalised(name: str, logs: np.ndarray, decision: np.ndarray) -> None:
    """Raise where probabilities of a decision do not sum to one: logits look like this."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.exp(np.asarray(logs, np.float64)).sum(axis=-1)
    bad = (np.abs(total - 1) > max(ROW_TOLERANCE, float(np.finfo(logs.dtype).eps) * logs.shape[-1])) & decision
    if bad.any():
        at = first_index(bad)
        raise ValueError(
            f"{name} must hold log-probabilities of all actions, but they sum to {total[at]:g} at index {spell(at)}: "
            "if these are logits, pass their log_softmax"
        )


def refuse_densities(name: str, logs: np.ndarray, decision: np.ndarray) -> None:
    """Raise where a probability is above 1."""
    bad = (logs > TOLERANCE) & decision
    if bad.any():
        at = first_index(bad)
        raise ValueError(
            f"{name} must not exceed 0, got {logs[at]} at index {spell(at)}: it is the logarithm of a probability here"
        )
