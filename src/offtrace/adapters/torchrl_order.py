"""Which steps of a batch follow one another. torchrl's samplers give flat batches [N], and only some of them in order.

A uniform sampler may well draw two steps of one trajectory in a row, so that equal ids alone say nothing. In a flat batch step
t + 1 follows step t, which is no end, if

- both have one trajectory id, and the counter of steps continues; or, where there are not both ids and a counter,
- the next state of t is to the bit the state of t + 1, and nothing speaks against it: neither ids that differ, nor a counter
  that does not go on, nor places in the replay buffer that are not neighbours.

If there are no states to compare, a flat batch is refused, unless its dimension has the name "time", which torchrl's collectors
and rollouts give and its samplers take away. In a batch [*B, T] the layout says that the steps are in order, and only ids that
differ speak against it.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor


class Keys(Protocol):
    """The names of the entries that tell whether steps follow one another."""

    traj_ids: NestedKey
    index: NestedKey
    step_count: NestedKey


def cuts(
    tensordict: TensorDictBase, keys: Keys, state: list[NestedKey], ids: Tensor | None, end: Tensor
) -> Tensor | None:
    """Mark the steps that the next one does not follow, [N, T]; None where the layout says that all do.

    `ids` are those of the trajectories, if the batch has them, and `end` says where episodes end, both as rows [N, T].
    """
    one_trajectory = None if ids is None else ids[:, 1:] == ids[:, :-1]
    if tensordict.ndim == 1:
        follows = _in_flat(tensordict, keys, state, None if one_trajectory is None else one_trajectory[0], end[0])[None]
    elif one_trajectory is None:
        return None
    else:
        follows = one_trajectory
    return torch.cat([~follows, follows.new_zeros(len(follows), 1)], 1)  # after the last step the row ends anyway


def _in_flat(
    tensordict: TensorDictBase, keys: Keys, state: list[NestedKey], one_trajectory: Tensor | None, end: Tensor
) -> Tensor:
    """Tell for each two steps, [N − 1], whether the second follows the first; at an end it does not matter."""
    counted = _goes_on(tensordict, [keys.step_count])
    if one_trajectory is not None and counted is not None:
        return one_trajectory & counted
    same = _goes_on(tensordict, state)
    places = tensordict.get(keys.index, None)
    known = [a for a in (one_trajectory, counted, same) if a is not None]
    if places is not None:
        known.append(_neighbours(places))
    follows = torch.stack([end[:-1] == 0, *known]).all(0)
    if same is None and "time" not in tensordict.names and follows.any():
        raise ValueError(
            f"the batch is flat, {tuple(tensordict.shape)}, and nothing in it says whether step {int(follows.nonzero()[0]) + 1} "
            f"follows the one before it: there are no states to compare, under {state} and under 'next', nor both "
            f"{keys.traj_ids!r} and {keys.step_count!r}. A uniform sampler gives steps in no order: use SliceSampler, or a batch "
            "[B, T]; say what tells a state with set_keys(observation=…); or, if the steps are one row in order, give "
            "tensordict.unsqueeze(0)"
        )
    return follows


def _goes_on(tensordict: TensorDictBase, entries: list[NestedKey]) -> Tensor | None:
    """Tell for each two steps whether what the first has under "next" is what the second has; None if no entry tells."""
    later, follows = tensordict.get("next").select(*entries, strict=False), None
    for key, entry in tensordict.select(*entries, strict=False).items(True, True):
        after = later.get(key, None)
        if isinstance(entry, Tensor) and after is not None:
            same = (after[:-1] == entry[1:]).reshape(len(entry) - 1, math.prod(entry.shape[1:])).all(-1)
            follows = same if follows is None else follows & same
    return follows


def _neighbours(places: Tensor) -> Tensor:
    """Tell for each two steps whether they may be neighbours in the replay buffer: its first place comes after its last."""
    places = places.reshape(len(places), -1)  # [N], or [N, dimensions of the storage] with that of time first
    before, after = places[:-1], places[1:]
    beside = (after[:, 0] == before[:, 0] + 1) | (after[:, 0] == 0) & (before[:, 0] > 0)
    return beside & (after[:, 1:] == before[:, 1:]).all(-1)
