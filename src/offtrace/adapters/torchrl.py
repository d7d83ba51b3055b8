"""offtrace as value estimators of torchrl, which read and write TensorDicts [*B, T] with entries [*B, T, 1].

    TraceEstimator    targets for Q(s, a), by any trace; registered with torchrl as "offtrace"
    StateEstimator    targets and advantages for V(s): V-trace, or GAE without an actor; registered as "offtrace_states"

A batch may be flat, [N], as torchrl's samplers give it. A trace then passes from one step to the next only where the batch shows
that the next one follows (`torchrl_order`); a flat batch that shows nothing is refused. Where torchrl itself differs:

- torchrl's VTrace takes log π of an action that it draws from the actor, or of the actor's mode, instead of the action that
  was taken, so that its ρ is another action's. Here it is always that of the action taken.
- Before torchrl 0.14 its V-trace advantage at a truncation inside a row took v_{k+1} from the next episode. Here, and in
  torchrl since then, it is V at the true next state.
"""

from __future__ import annotations

from typing import Self

from offtrace._shared.extras import install

try:
    import torch
    from tensordict import TensorDictBase, is_tensor_collection
    from tensordict.nn import TensorDictModuleBase  # pyright: ignore[reportMissingTypeStubs]
    from tensordict.utils import NestedKey  # pyright: ignore[reportMissingTypeStubs]
    from torch import Tensor
    from torchrl.objectives import LossModule  # pyright: ignore[reportMissingTypeStubs]
except ModuleNotFoundError as error:
    raise ImportError(f"offtrace.adapters.torchrl needs torchrl ({error}): {install('torchrl')}") from None

from offtrace.adapters.torchrl_entries import (
    Estimator,
    dispatched,
    entry_of,
    entry_or_none,
    registered,
    under_next,
    write,
)
from offtrace.adapters.torchrl_policies import Policy, epsilon_greedy, greedy, indices, log_mu, of_taken, softmax
from offtrace.adapters.torchrl_states import StateEstimator
from offtrace.returns.api import as_trace, targets
from offtrace.traces import Rule, Trace

__all__ = ["Policy", "StateEstimator", "TraceEstimator", "epsilon_greedy", "greedy", "log_mu", "softmax"]


@registered("offtrace")
class TraceEstimator(Estimator):
    """Targets q_k + Δ_k for action values, and the corrections Δ_k as advantages, by any trace.

    `value_network` writes the values Q(s, ·) of all actions as `action_value`, as QValueActor does; `target_policy` makes of them
    π: `greedy`, `epsilon_greedy(ε)`, `softmax(temperature)`, or any function from values to probabilities. q, next_value =
    Σ_a π(a|s') Q(s', a) and log π of the action taken all come from one network, `target_params` where they are given; s' is
    the entry under "next", the true next observation. log μ is the entry `sample_log_prob`.

    Without a network, as for continuous actions, the tensordict itself holds q as `value`, next_value as ("next", value), and
    log π as `log_pi`.

    >>> from torchrl.modules import QValueActor
    >>> import offtrace as ot
    >>> q_network = QValueActor(torch.nn.Linear(3, 2), in_keys=["observation"],
    ...                         action_space="categorical")
    >>> estimator = TraceEstimator(trace=ot.TreeBackup(lam=0.9), gamma=0.99, value_network=q_network)
    >>> estimator.out_keys
    ['advantage', 'value_target']
    """

    def __init__(
        self,
        *,
        trace: Rule,
        gamma: float,
        value_network: TensorDictModuleBase | None,
        target_policy: Policy = greedy,
        differentiable: bool = False,
        time_dim: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(trace, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            as_trace(trace)
        if isinstance(trace, Trace) and trace.target_share < 1 and value_network is not None:
            raise ValueError(
                f"{trace.title} with mix={trace.target_share} bootstraps from a mixture of π and μ at the next state, and no "
                "tensordict holds μ of all actions there: give next_value and log_pi as entries, with value_network=None"
            )
        super().__init__(
            gamma=gamma, value_network=value_network, differentiable=differentiable, time_dim=time_dim, device=device
        )
        self.trace, self.target_policy = trace, target_policy

    @staticmethod
    def default_keys() -> Estimator._AcceptedKeys:
        """Return the entries that are read and written if `set_keys` names no others."""
        return Estimator._AcceptedKeys(value="chosen_action_value")

    @classmethod
    def for_loss(cls, loss_module: LossModule, **hyperparams: object) -> Self:
        """Make the estimator of a loss, with the loss's network and keys.

        Losses such as DQNLoss let their network write its greedy action over the one taken before they ask for a target. So the
        batch gets the action taken a second time, as `taken_action`, whenever the loss is called.
        """
        estimator = super().for_loss(loss_module, **hyperparams)
        loss_module.register_forward_pre_hook(estimator._keep_action)
        return estimator

    def _keep_action(self, loss_module: LossModule, arguments: tuple[TensorDictBase, ...]) -> None:
        if arguments and is_tensor_collection(arguments[0]):
            keys = self.tensor_keys
            action = entry_of(arguments[0], getattr(loss_module.tensor_keys, "action", keys.action))
            write(arguments[0], keys.taken_action, action)

    def _reads(self) -> list[NestedKey]:
        keys, trace, network = self.tensor_keys, self.trace, self.value_network
        reads = {
            keys.action: network is not None,
            keys.log_pi: network is None and trace.needs_pi,
            keys.sample_log_prob: trace.needs_mu,
            keys.pair: "pair" in trace.reads,
        }
        return [key for key, read in reads.items() if read]

    @dispatched
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        tensordict: TensorDictBase,
        *,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
        time_dim: int | None = None,
    ) -> TensorDictBase:
        """Write `value_target` and `advantage`. `target_params`, or `params`, take the place of the network's own."""
        q, target, valid = self._run(tensordict, target_params if target_params is not None else params, time_dim)
        advantage = target - q
        advantage = advantage if valid is None else torch.where(valid, advantage, 0.0)
        write(tensordict, self.tensor_keys.advantage, advantage)
        write(tensordict, self.tensor_keys.value_target, target)
        return tensordict

    def value_estimate(
        self,
        tensordict: TensorDictBase,
        target_params: TensorDictBase | None = None,
        next_value: Tensor | None = None,
        time_dim: int | None = None,
        params: TensorDictBase | None = None,
        **_: object,
    ) -> Tensor:
        """Return the targets. A loss calls this, after it has let its network write into the tensordict.

        `next_value` is what a double DQN has found: then π is greedy with respect to the action values in the tensordict, which
        are the online network's.
        """
        params = target_params if target_params is not None else params
        return self._run(tensordict, params, time_dim, next_value, by_loss=params is not None)[1]

    def _run(
        self,
        tensordict: TensorDictBase,
        params: TensorDictBase | None,
        time_dim: int | None,
        next_value: Tensor | None = None,
        by_loss: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return q, the target and `valid`, in the shape of the rewards."""
        trace, keys = self.trace, self.tensor_keys
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()):
            rows, steps = self._steps(tensordict, time_dim)
            if self.value_network is None:
                q, next_value, log_pi = self._from_entries(tensordict, next_value)
            else:
                q, next_value, log_pi = self._from_network(self.value_network, tensordict, params, next_value, by_loss)
            given = {} if log_pi is None else {"log_pi": rows.of(keys.log_pi, log_pi)}
            if trace.needs_mu:
                given["log_mu"] = rows.of(keys.sample_log_prob, entry_of(tensordict, keys.sample_log_prob))
            if "pair" in trace.reads:
                given["pair"] = rows.of(keys.pair, entry_of(tensordict, keys.pair))
            target = targets(
                trace,
                **steps,
                q=rows.of(keys.value, q),
                next_value=rows.of(keys.value, next_value),
                **given,
                time_major=False,
                differentiable=self.differentiable,
            )
            valid = steps["valid"]
            return q.reshape(rows.entry), rows.restored(target), None if valid is None else rows.restored(valid)

    def _from_entries(
        self, tensordict: TensorDictBase, next_value: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return q, next_value and log π of the tensordict."""
        keys = self.tensor_keys
        next_value = entry_of(tensordict, ("next", keys.value)) if next_value is None else next_value
        return (
            entry_of(tensordict, keys.value),
            next_value,
            entry_of(tensordict, keys.log_pi) if self.trace.needs_pi else None,
        )

    def _from_network(
        self,
        network: TensorDictModuleBase,
        tensordict: TensorDictBase,
        params: TensorDictBase | None,
        next_value: Tensor | None,
        by_loss: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return q, next_value and log π, from the values of all actions."""
        key = self.tensor_keys.action_value
        values = self._evaluated(network, tensordict, key, params)
        action = indices(self._action(tensordict, by_loss), values)
        decides = values
        if next_value is None:
            later = self._evaluated(network, under_next(tensordict), key, params)
            π = self._probabilities(later)
            next_value = torch.where(π > 0, π * later, 0.0).sum(-1)  # a masked action may have the value −inf
        elif self.target_policy is greedy:
            decides = entry_of(tensordict, key)
        else:
            raise ValueError(
                "the loss gives a next_value of its own, the greedy one of a double DQN, but target_policy is not greedy: "
                "use double_dqn=False, or the greedy policy"
            )
        # Rules that cut where the action is not greedy read π of the greedy policy, whatever the target policy is.
        policy = _all_the_best if self.trace.needs_greedy else self._probabilities
        log_pi = of_taken(policy(decides), action).log() if self.trace.needs_pi else None
        return of_taken(values, action), next_value, log_pi

    def _probabilities(self, values: Tensor) -> Tensor:
        π = self.target_policy(values)
        if π.shape != values.shape:
            raise ValueError(
                f"target_policy gave an array of shape {tuple(π.shape)} for action values of shape {tuple(values.shape)}: "
                "it must give a probability for each action"
            )
        return π

    def _action(self, tensordict: TensorDictBase, by_loss: bool) -> Tensor:
        keys, network = self.tensor_keys, self.value_network
        taken = entry_or_none(tensordict, keys.taken_action) if by_loss else None
        if taken is not None:
            return taken
        if by_loss and keys.action in getattr(network, "out_keys", []):
            raise RuntimeError(
                f"the entry {keys.action!r} may hold the greedy action, which the loss's network writes over the one taken: "
                "make the estimator with TraceEstimator.for_loss(loss, …) and call the loss with a tensordict, or put the "
                f"action taken under {keys.taken_action!r} as well"
            )
        return entry_of(tensordict, keys.action)


def _all_the_best(values: Tensor) -> Tensor:
    """Return 1 for every action of the highest value, else 0."""
    return (values == values.amax(-1, keepdim=True)).to(values.dtype)
