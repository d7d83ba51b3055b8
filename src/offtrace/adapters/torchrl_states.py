"""State values for torchrl: V-trace where there is an actor, GAE where there is none."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from typing import Protocol, Self

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, set_composite_lp_aggregate, set_skip_existing  # pyright: ignore[reportMissingTypeStubs]
from tensordict.utils import NestedKey  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor
from torch.distributions import Distribution
from torchrl.objectives import LossModule  # pyright: ignore[reportMissingTypeStubs]

from offtrace.adapters.torchrl_entries import (
    Estimator,
    dispatched,
    entry_of,
    parameters_of,
    registered,
    under_next,
    write,
)
from offtrace.returns.api import state_targets
from offtrace.traces import VTrace


class Actor(Protocol):
    """A policy of torchrl, such as ProbabilisticActor."""

    in_keys: list[NestedKey]

    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Return the distribution of the actions."""
        ...


@registered("offtrace_states")
class StateEstimator(Estimator):
    """`offtrace.state_targets`: V-trace with λ, and GAE(λ) where there is no `actor_network`.

    `value_network` writes V(s) as `state_value`; without one the tensordict holds it, and V(s') as ("next", "state_value").
    `actor_network` gives log π of the action taken; log μ is the entry `sample_log_prob`. Without it the data counts as
    on-policy, ρ = 1. What the network says is written into the tensordict, as by torchrl's estimators: losses with
    `clip_value` read it there.

    The advantage is that of the method: GAE's is `value_target − state_value`, V-trace's ρ̄_k (r_k + γ_k v_{k+1} − V_k).
    On-policy the two are equal where V(s'_k) = V(s_{k+1}) inside an episode, which `target_params` for V(s') make untrue.

    `differentiable` lets gradients through to rewards and to the inputs of V(s). As in torchrl the networks themselves get none;
    V(s') and ρ are constants. `skip_existing=True` takes the values that the tensordict already holds instead of the network's.
    `shifted` is taken for torchrl's sake and changes no number: V(s') is always that of the true next state, which is what
    torchrl's one call to the network makes of `shifted=True` where each next state is the state that follows.

    >>> # so it is GAE(0.95)
    >>> StateEstimator(gamma=0.99, value_network=None, lmbda=0.95).actor_network is None
    True
    """

    actor_network: Actor | None

    def __init__(
        self,
        *,
        gamma: float,
        value_network: TensorDictModuleBase | None,
        actor_network: Actor | None = None,
        lmbda: float = 1.0,
        rho_thresh: float = 1.0,
        c_thresh: float = 1.0,
        differentiable: bool = False,
        shifted: bool = False,
        skip_existing: bool | None = None,
        time_dim: int | None = None,
        device: torch.device | str | None = None,
        **others: object,
    ) -> None:
        super().__init__(
            gamma=gamma,
            value_network=value_network,
            time_dim=time_dim,
            differentiable=differentiable,
            device=device,
            shifted=shifted,
            skip_existing=skip_existing,
            **others,
        )
        if others:
            raise TypeError(f"StateEstimator takes no {', '.join(sorted(others))}")
        self.trace = VTrace(lam=lmbda, rho_bar=rho_thresh, c_bar=c_thresh)
        self.__dict__["actor_network"] = actor_network  # not a part of this module, as the value network is not

    @classmethod
    def for_loss(cls, loss_module: LossModule, **hyperparams: object) -> Self:
        """Make the estimator of a loss, with its critic and its actor; `actor_network=None` is GAE."""
        if "actor_network" not in hyperparams:
            actor = loss_module.actor_network
            if getattr(loss_module, "functional", False):
                actor = deepcopy(actor)
                loss_module.actor_network_params.to_module(actor, preserve_module_state=False)  # pyright: ignore
            hyperparams["actor_network"] = actor
        return super().for_loss(loss_module, **hyperparams)

    def _reads(self) -> list[NestedKey]:
        keys, actor = self.tensor_keys, self.actor_network
        return [] if actor is None else [keys.action, keys.sample_log_prob, *actor.in_keys]

    @dispatched
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        tensordict: TensorDictBase,
        *,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
        time_dim: int | None = None,
    ) -> TensorDictBase:
        """Write `value_target`, `advantage` and the values. V(s) is that of `params`, V(s') that of `target_params`."""
        keys = self.tensor_keys
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()):
            rows, steps = self._steps(tensordict, time_dim)
            value, next_value = self._values(tensordict, params, target_params)
            value, next_value = rows.of(keys.value, value), rows.of(keys.value, next_value.detach())
            log_pi = log_mu = torch.zeros_like(value)
            if self.actor_network is not None:
                log_pi, log_mu = (
                    rows.of(keys.sample_log_prob, a) for a in self._log_probabilities(self.actor_network, tensordict)
                )
            result = state_targets(
                self.trace, **steps, value=value, next_value=next_value, log_pi=log_pi, log_mu=log_mu,
                time_major=False, differentiable=self.differentiable,
            )  # fmt: skip
            advantage = result.correction if self.actor_network is None else result.advantage
            write(tensordict, keys.advantage, rows.restored(advantage))
            write(tensordict, keys.value_target, rows.restored(result.target))
        return tensordict

    def _values(
        self, tensordict: TensorDictBase, params: TensorDictBase | None, target_params: TensorDictBase | None
    ) -> tuple[Tensor, Tensor]:
        """Return V(s) and V(s'), which are left in the tensordict."""
        key, after, network = self.tensor_keys.value, under_next(tensordict), self.value_network
        if network is None:
            return entry_of(tensordict, key), entry_of(after, key)
        target_params = target_params if target_params is not None else params
        if self.differentiable:
            params, target_params = (_detached(network if p is None else p) for p in (params, target_params))
        with nullcontext() if self.skip_existing is None else set_skip_existing(self.skip_existing):
            value = self._evaluated(network, tensordict, key, params, keep=True)
            next_value = self._evaluated(network, after, key, target_params, keep=True)
        write(tensordict, key, value)
        write(tensordict, ("next", key), next_value)
        return value, next_value

    @torch.no_grad()
    def _log_probabilities(self, actor: Actor, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Return log π and log μ of the action taken."""
        keys = self.tensor_keys
        π = actor.get_dist(tensordict.select(*actor.in_keys, strict=False))
        with set_composite_lp_aggregate(True):
            return π.log_prob(entry_of(tensordict, keys.action)), entry_of(tensordict, keys.sample_log_prob)

    def value_estimate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tensordict: TensorDictBase, target_params: TensorDictBase | None = None, **options: object
    ) -> Tensor:
        """Return the targets; the tensordict stays as it is."""
        written = self(tensordict.copy(), target_params=target_params, **options)
        return written.get(self.tensor_keys.value_target)


def _detached(source: TensorDictModuleBase | TensorDictBase) -> TensorDictBase:
    """Return parameters, or those of a network, without gradients."""
    own = source if isinstance(source, TensorDictBase) else parameters_of(source)
    return own.detach()
