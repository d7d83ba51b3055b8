"""Advantages of rollouts against the others of their group, as GRPO takes them."""

from __future__ import annotations

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.arrays import Array, Module, Option
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.backend import Backend
from offtrace.traces.base import option
from offtrace.trajectory import first_index, spell

BLOCK = 1024  # so many rows are compared with all at a time
ROUNDING = 16.0
"""Rewards of a group that differ by at most so many units in the last place of the largest one are equal."""
ALONE = ("error", "zero")


def group_advantages(
    reward: Array, group: Array, *, std: bool = True, eps: float = 0.0, alone: str = "error", check: Option = None
) -> Array:
    """(R_i − mean) / (std + eps) over the rollouts of the same group, [B] as `reward`, or R_i − mean with std=False.

    `reward` [B] holds the reward of each rollout, `group` [B] integer ids, in any order: rollouts of one prompt share one. The
    standard deviation is that of a sample, with n − 1, as trainers take it. `eps` is added to it: TRL takes 1e-4, verl 1e-6.
    Where all rewards of a group are equal, or differ by rounding only (16 units in the last place), the advantages are 0. No
    gradient goes through.

    A group of one is an error; where values are not looked at, as in `jit` and on a GPU without check=True, its advantage is NaN.
    With alone="zero" it is 0 in both cases: such a rollout has nothing to be compared with.

    The rollout is part of its own baseline, which shrinks the expected gradient by (n − 1)/n and does not turn it. Dividing by
    the standard deviation gives groups other shares, those of nearly equal rewards the largest (Liu et al. 2025): it is *not* the
    gradient of the mean reward.

    >>> import numpy as np
    >>> group_advantages(np.array([1.0, 0.0, 3.0, 3.0]), np.array([7, 7, 9, 9]))
    array([ 0.70710678, -0.70710678,  0.        ,  0.        ])
    >>> group_advantages(np.array([1.0, 0.0, 4.0]), np.array([0, 0, 0]), std=False).round(3)
    array([-0.667, -1.667,  2.333])
    """
    do: Backend[Array] = backend_of({"reward": reward, "group": group})
    xp, rewards, ids = do.xp, do.array("reward", reward), do.array("group", group)
    _check(do, rewards, ids)
    if alone not in ALONE:
        raise ValueError(
            f"alone = {alone!r} is not known{ending(closest(alone, ALONE))} It is one of: {', '.join(ALONE)}"
        )
    eps = option("eps", eps, 0.0, np.inf)
    if do.looks(check, {"reward": rewards, "group": ids}):
        _look(do.as_numpy(rewards), do.as_numpy(ids), alone)
    dtype = xp.float32 if rewards.dtype.itemsize < 4 else rewards.dtype
    rewards = do.constant(do.cast(rewards, dtype))
    missing = np.nan if alone == "error" else 0.0
    blocks = (slice(at, at + BLOCK) for at in range(0, len(rewards), BLOCK))
    return xp.concatenate([_of_rows(xp, rewards, ids, rows, std, eps, missing) for rows in blocks])


def _of_rows(xp: Module, rewards: Array, ids: Array, rows: slice, std: bool, eps: float, alone: float) -> Array:
    """The advantages of some rows, by comparing them with all."""
    same = ids[rows, None] == ids[None, :]
    count = xp.where(same, 1.0, 0.0 * rewards).sum(-1)
    mean = xp.where(same, rewards, 0.0).sum(-1) / count
    apart = xp.where(same, xp.abs(rewards - rewards[rows, None]), 0.0)
    rounding = ROUNDING * xp.finfo(rewards.dtype).eps * xp.where(same, xp.abs(rewards), 0.0)
    equal = xp.amax(apart, -1) <= xp.amax(rounding, -1)  # their mean, too, may be off by rounding
    centred = xp.where(equal, 0.0 * mean, rewards[rows] - mean)
    if std:
        square = xp.where(same, rewards - mean[:, None], 0.0) ** 2
        spread = (square.sum(-1) / xp.where(count > 1, count - 1, 1.0)) ** 0.5
        centred = centred / xp.where(equal, 1.0, spread + eps)
    return xp.where(count > 1, centred, alone)


def _check(do: Backend[Array], rewards: Array, ids: Array) -> None:
    if rewards.ndim != 1 or ids.shape != rewards.shape or not len(rewards):
        raise ValueError(
            f"reward has shape {tuple(rewards.shape)} and group {tuple(ids.shape)}: both must be [B], one entry for each rollout"
        )
    if rewards.dtype not in do.reals:
        raise TypeError(
            f"reward must be of a floating dtype, got {rewards.dtype}: convert it, e.g. {do.converting('reward', 'float32')}"
        )
    if do.letter(ids.dtype) not in "iu":
        raise TypeError(
            f"group must hold integer ids, got {ids.dtype}: convert it, e.g. {do.converting('group', 'int64')}"
        )


def _look(rewards: np.ndarray, ids: np.ndarray, alone: str) -> None:
    bad = ~np.isfinite(rewards)
    if bad.any():
        at = first_index(bad)
        raise ValueError(f"reward must be finite, got {rewards[at]} at index {spell(at)}")
    names, first, count = np.unique(ids, return_index=True, return_counts=True)
    if alone == "error" and (count == 1).any():
        at = int(np.argmax(count == 1))
        raise ValueError(
            f"group {names[at]} has one rollout, at index [{first[at]}], which has nothing to be compared with: "
            'draw at least two for each prompt, leave it out, or pass alone="zero"'
        )
