"""What the torchrl estimators have in common: the entries of a TensorDict [*B, T], as the rows of a trajectory and back.

A flat batch [N] is one row only where its steps follow one another: `torchrl_order` finds where they do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple, ParamSpec, Self, TypedDict, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives import LossModule
from torchrl.objectives.utils import register_value_estimator
from torchrl.objectives.value import ValueEstimatorBase

from offtrace.adapters.torchrl_order import cuts
from offtrace.traces.base import number


class Rows(NamedTuple):
    """How entries of a tensordict [*B, T] lie as the rows [N, T] of a trajectory, and back."""

    batch: torch.Size
    time: int
    entry: torch.Size
    """The shape of an entry, that of the reward."""

    def of(self, name: NestedKey, array: Tensor) -> Tensor:
        """Return an entry [*B, T, 1] or [*B, T] as [N, T]; its name is for the error."""
        if array.shape not in (self.batch, (*self.batch, 1)):
            raise ValueError(
                f"the entry {name!r} has shape {tuple(array.shape)}, but the tensordict has batch size {tuple(self.batch)}: "
                "there must be one number for each step, [*B, T, 1] or [*B, T]"
            )
        array = array.reshape(self.batch).movedim(self.time, -1)
        return array.reshape(-1, array.shape[-1])

    def restored(self, out: Tensor) -> Tensor:
        """Return a result [N, T] in the shape of an entry."""
        shape = [*self.batch]
        shape.append(shape.pop(self.time))
        return out.reshape(shape).movedim(-1, self.time).reshape(self.entry)


class Steps(TypedDict):
    """Rewards, ends and discounts, as `targets` takes them, [N, T] each."""

    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor | None
    gamma: float | Tensor


class Estimator(ValueEstimatorBase):
    """What both estimators have in common: keys, networks, and the steps of a trajectory."""

    @dataclass
    class _AcceptedKeys(ValueEstimatorBase._AcceptedKeys):
        """The entries that are read and written, for `set_keys`. Rewards and ends stand under "next"."""

        # torchrl looks for a key in this very class, so that those it has itself stand here again.
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        value: NestedKey = "state_value"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"
        truncated: NestedKey = "truncated"
        steps_to_next_obs: NestedKey = "steps_to_next_obs"
        valid: NestedKey = ("collector", "mask")  # as split_trajectories writes it: False is padding
        action: NestedKey = "action"
        taken_action: NestedKey = "taken_action"  # where a loss writes another one over the action
        action_value: NestedKey = "action_value"
        # log μ: torchrl puts "action_log_prob" here, or what it is set to.
        sample_log_prob: NestedKey = None  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]
        log_pi: NestedKey = "log_pi"
        pair: NestedKey = "pair"
        # What tells whether the steps of a flat batch follow one another.
        traj_ids: NestedKey = ("collector", "traj_ids")
        index: NestedKey = "index"  # the place in a replay buffer
        step_count: NestedKey = "step_count"
        observation: NestedKey = "observation"  # read only where there is no value network, which knows its inputs

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys  # pyright: ignore[reportIncompatibleMethodOverride]
    value_network: TensorDictModuleBase | None  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        time_dim: int | None,
        value_network: TensorDictModuleBase | None,
        differentiable: bool,
        device: torch.device | str | None,
        shifted: bool = False,
        skip_existing: bool | None = None,
        **others: object,
    ) -> None:
        super().__init__(
            value_network=value_network,  # pyright: ignore[reportArgumentType] (torchrl takes None, too)
            differentiable=differentiable,
            device=device,  # pyright: ignore[reportArgumentType]
            shifted=shifted,
            skip_existing=skip_existing,
            **others,  # pyright: ignore[reportArgumentType] (torchrl refuses the names of keys, with the remedy)
        )
        self.gamma = number("gamma", gamma if not isinstance(gamma, Tensor) else gamma.item(), 0.0, 1.0)
        self.time_dim = time_dim

    @classmethod
    def for_loss(cls, loss_module: LossModule, **hyperparams: object) -> Self:
        """Make the estimator of a loss, with the loss's network and keys, for `loss.make_value_estimator`."""
        estimator = super().for_loss(loss_module, **hyperparams)
        keys = estimator._AcceptedKeys.__dataclass_fields__
        known = {name: getattr(loss_module.tensor_keys, name, None) for name in keys}
        estimator.set_keys(**{name: key for name, key in known.items() if key is not None})
        return estimator

    @property
    def in_keys(self) -> list[NestedKey]:
        """The entries that are read in any case."""
        keys, network = self.tensor_keys, self.value_network
        inputs = [keys.value] if network is None else network.in_keys
        after = [("next", key) for key in (keys.reward, keys.done, keys.terminated, *inputs)]
        return [*dict.fromkeys([*inputs, *self._reads(), *after])]

    def _reads(self) -> list[NestedKey]:
        """Return what is read beside rewards, ends and the inputs of the network."""
        raise NotImplementedError

    def _steps(self, tensordict: TensorDictBase, time_dim: int | None) -> tuple[Rows, Steps]:
        """Return rewards and ends, as `targets` takes them. Without `terminated`, as in torchrl, every end terminates."""
        if not tensordict.ndim:
            raise ValueError("the tensordict has no batch size: it must be [*B, T], with the steps in their order")
        keys, after = self.tensor_keys, under_next(tensordict)
        reward = entry_of(after, keys.reward)
        rows = Rows(tensordict.shape, self._get_time_dim(time_dim, tensordict), reward.shape)
        if tensordict.ndim > 1 and reward.shape == tensordict.shape and tensordict.shape[-1] == 1:
            raise ValueError(
                f"the batch size {tuple(tensordict.shape)} and the rewards both end in 1: that is either one step or a trailing "
                "dimension of the entries. Give a TensorDict of batch size [*B, T] with rewards [*B, T, 1]"
            )
        done = entry_of(after, keys.done)
        terminated = after.get(keys.terminated, done)
        truncated = rows.of(keys.truncated, done | after.get(keys.truncated, done))
        ids = tensordict.get(keys.traj_ids, None)
        ids = None if ids is None else rows.of(keys.traj_ids, ids)
        if (cut := cuts(tensordict, keys, self._state_keys(), ids, truncated)) is not None:
            truncated = truncated | cut
        valid, steps = (tensordict.get(key, None) for key in (keys.valid, keys.steps_to_next_obs))
        gamma: float | Tensor = self.gamma
        if steps is not None:
            gamma = gamma ** rows.of(keys.steps_to_next_obs, steps).to(reward.dtype)
        return rows, {
            "reward": rows.of(keys.reward, reward),
            "terminated": rows.of(keys.terminated, terminated),
            "truncated": truncated,
            "valid": None if valid is None else rows.of(keys.valid, valid),
            "gamma": gamma,
        }

    def _state_keys(self) -> list[NestedKey]:
        """Return the entries that say in which state a step is."""
        return [self.tensor_keys.observation] if self.value_network is None else [*self.value_network.in_keys]

    def _evaluated(
        self,
        network: TensorDictModuleBase,
        data: TensorDictBase,
        key: NestedKey,
        params: TensorDictBase | None,
        keep: bool = False,
    ) -> Tensor:
        """Return what the network writes under `key`. The tensordict stays as it is; with `keep` the network sees its `key`."""
        data = data.select(*network.in_keys, *([key] if keep else []), strict=False)
        with nullcontext() if params is None else params.to_module(network, preserve_module_state=False):
            return entry_of(network(data), key)


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Kind = TypeVar("Kind", bound=Estimator)


def registered(name: str) -> Callable[[type[Kind]], type[Kind]]:
    """Register an estimator with torchrl under a name, with γ = 0.99 unless a loss is told another one."""
    return register_value_estimator(name, default_kwargs={"gamma": 0.99})


def dispatched(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Let a `forward` be called with the entries by name, too, as tensordict's `dispatch` does."""
    return dispatch()(function)


def write(tensordict: TensorDictBase, key: NestedKey, entry: Tensor) -> None:
    """Set an entry."""
    tensordict.set(key, entry)


def parameters_of(network: TensorDictModuleBase) -> TensorDictBase:
    """Return the parameters of a network."""
    return TensorDict.from_module(network)  # pyright: ignore[reportReturnType] (a TensorDict, unless one asks for a dict)


def entry_or_none(tensordict: TensorDictBase, key: NestedKey) -> Tensor | None:
    """Return an entry, or None where it is not there."""
    return tensordict.get(key, None)


def entry_of(tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """Return an entry, which must be there."""
    entry = tensordict.get(key, None)
    if entry is None:
        raise _missing(tensordict, key)
    return entry


def under_next(tensordict: TensorDictBase) -> TensorDictBase:
    """Return what stands under "next", which must be there."""
    after = tensordict.get("next", None)
    if after is None:
        raise _missing(tensordict, "next")
    return after


def _missing(tensordict: TensorDictBase, key: NestedKey) -> KeyError:
    return KeyError(
        f"the tensordict has no entry {key!r}; it has {sorted(map(str, tensordict.keys(True, True)))}. "
        "If it stands under another name, say so with set_keys"
    )
