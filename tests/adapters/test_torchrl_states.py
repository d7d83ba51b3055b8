"""StateEstimator against the definition and torchrl's own GAE, TD(λ) and V-trace: equal where they are right."""

# pyright: reportArgumentType=false
# torchrl and tensordict declare less than they take.

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchrl
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn import set_interaction_type as interaction
from torchrl.objectives import A2CLoss, ClipPPOLoss
from torchrl.objectives.value import GAE, TDLambdaEstimator, VTrace
from torchrl.objectives.value.functional import vtrace_advantage_estimate

import offtrace as ot
from offtrace.adapters.torchrl import StateEstimator
from offtrace.returns import by_definition
from torchrl_batches import Table, actor, batch, critic, off_policy, γ


@pytest.mark.parametrize("lmbda", [0.0, 0.75, 1.0])
def test_state_values_on_policy_are_those_of_gae_and_td_lambda(lmbda: float) -> None:
    data, options = batch(4, 9), {"gamma": γ, "lmbda": lmbda, "value_network": critic()}
    found = StateEstimator(**options)(data.clone())
    gae = GAE(**options)(data.clone())
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(found[key], gae[key], rtol=1e-6, atol=1e-6)
    td_lambda = TDLambdaEstimator(**options, vectorized=False)(data.clone())
    torch.testing.assert_close(found["value_target"], td_lambda["value_target"], rtol=1e-6, atol=1e-6)


def test_v_trace_is_the_definition_and_that_of_torchrl_also_at_a_truncation() -> None:
    data = batch(4, 9)
    assert data["next", "truncated"][:, :-1].any()
    log_pi, log_mu = off_policy(data)
    found = StateEstimator(gamma=γ, value_network=critic(), actor_network=actor())(data.clone())
    table = critic().module.values.detach()
    given = {
        "value": table[data["state"][..., 0].long()], "next_value": table[data["next", "state"][..., 0].long()],
        **{name: data["next", name] for name in ("reward", "terminated", "truncated")}, "log_pi": log_pi, "log_mu": log_mu,
    }  # fmt: skip
    for row in range(4):
        arrays = {name: a[row, :, 0].numpy() for name, a in given.items()}
        target, advantage, *_ = by_definition.state_targets(ot.VTrace(), **arrays, gamma=γ)
        np.testing.assert_allclose(found["value_target"][row, :, 0], target, rtol=1e-12)
        np.testing.assert_allclose(found["advantage"][row, :, 0], advantage, rtol=1e-12, atol=1e-12)
    after = data["next"]
    advantage, target = vtrace_advantage_estimate(
        γ, log_pi, log_mu, given["value"], given["next_value"], after["reward"], after["done"], after["terminated"]
    )
    if torchrl.__version__ < "0.14":  # at a truncation inside a row v_{k+1} was the next episode's
        leaked = (log_pi - log_mu).exp().clamp(max=1) * γ * (target.roll(-1, 1) - given["next_value"])
        inside = after["truncated"] & (torch.arange(9) < 8)[:, None]
        advantage = advantage - torch.where(inside, leaked, 0.0)
    torch.testing.assert_close(found["value_target"], target, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found["advantage"], advantage, rtol=1e-6, atol=1e-6)


def test_torchrl_v_trace_takes_another_action() -> None:
    """torchrl's VTrace takes π of the mode, or of an action that it draws: on-policy its ρ is not 1."""
    data, options = batch(4, 9), {"gamma": γ, "value_network": critic(), "actor_network": actor()}
    mode = actor()[0].module.values[data["state"][..., 0].long()].argmax(-1)
    values = critic().module.values.detach()
    value, next_value = (values[data[key][..., 0].long()] for key in ("state", ("next", "state")))
    after, (of_mode, log_mu) = data["next"], off_policy(data.clone().set("action", mode))
    _, wanted = vtrace_advantage_estimate(
        γ, of_mode, log_mu, value, next_value, after["reward"], after["done"], after["terminated"]
    )
    with interaction(InteractionType.DETERMINISTIC):
        theirs = VTrace(**options)(data.clone())["value_target"]
    torch.testing.assert_close(theirs, wanted)
    assert (theirs - StateEstimator(**options)(data.clone())["value_target"]).abs().max() > 0.1

    data["action_log_prob"] = off_policy(data)[0][..., 0]
    gae = GAE(gamma=γ, lmbda=1.0, value_network=critic())(data.clone())["value_target"]
    torch.testing.assert_close(StateEstimator(**options)(data.clone())["value_target"], gae, rtol=1e-6, atol=1e-6)
    torch.manual_seed(0)
    with interaction(InteractionType.RANDOM):
        drawn = [VTrace(**options)(data.clone())["value_target"] for _ in range(2)]
    assert not torch.equal(*drawn)
    assert all((target - gae).abs().max() > 0.1 for target in drawn)


@pytest.mark.parametrize("off", [True, False])
def test_a2c_loss(off: bool) -> None:
    data = batch(4, 6)
    loss: Any = A2CLoss(actor(), critic(), entropy_bonus=False)
    estimator = StateEstimator.for_loss(loss, gamma=γ, **({} if off else {"actor_network": None}))
    loss.make_value_estimator(estimator)
    made = estimator(data.clone())
    log_pi, _ = off_policy(data)
    found = loss(data)
    torch.testing.assert_close(found["loss_objective"], -(log_pi * made["advantage"]).mean())
    with torch.no_grad():  # the estimator's actor is the loss's own, as it stands
        loss.actor_network_params["module", "0", "module", "values"].mul_(0.5)
    assert torch.equal(estimator(data.clone())["advantage"], made["advantage"]) != off


def test_clip_ppo_loss_with_clipped_values() -> None:
    """With `clip_value` the loss reads the values of the batch, which the estimator leaves there, as torchrl's GAE does."""
    data, off = batch(4, 6), batch(4, 6)
    off["state_value"] = torch.zeros(4, 6, 1, dtype=torch.float64)  # a value that is no longer the network's
    loss: Any = ClipPPOLoss(actor(), critic(), clip_epsilon=0.1, clip_value=True, entropy_bonus=False)
    options = {"gamma": γ, "lmbda": 0.75, "value_network": critic()}
    wanted = loss(GAE(**options)(data.clone()))
    ours = StateEstimator(**options)(data.clone())
    assert torch.equal(ours["state_value"], critic()(data.clone())["state_value"])
    assert torch.equal(ours["next", "state_value"], critic()(data["next"].clone())["state_value"])
    loss.make_value_estimator(StateEstimator.for_loss(loss, gamma=γ, lmbda=0.75, actor_network=None))
    for found in (loss(ours), loss(data.clone()), loss(off)):
        torch.testing.assert_close(found["loss_critic"], wanted["loss_critic"], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found["loss_objective"], wanted["loss_objective"], rtol=1e-6, atol=1e-6)
    loss.make_value_estimator(StateEstimator.for_loss(loss, gamma=γ))
    found = loss(data.clone())
    (found["loss_critic"] + found["loss_objective"]).backward()
    assert loss.critic_network_params["module", "values"].grad.abs().sum() > 0


def test_next_values_of_another_network() -> None:
    """Where V(s'_k) is not V(s_{k+1}), as with target parameters, GAE's advantage is target − value; V-trace's is not."""
    data, own, delayed = batch(4, 9), TensorDict.from_module(critic()), TensorDict.from_module(Table(1, 9))
    delayed = TensorDict({"module": delayed})
    options = {"gamma": γ, "lmbda": 0.75, "value_network": critic()}
    call = {"params": own, "target_params": delayed}
    found, gae = (estimator(**options)(data.clone(), **call) for estimator in (StateEstimator, GAE))
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(found[key], gae[key], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found["advantage"], found["value_target"] - found["state_value"])
    data["action_log_prob"] = off_policy(data)[0][..., 0]  # on-policy
    v_trace = StateEstimator(**options, actor_network=actor())(data.clone(), **call)
    torch.testing.assert_close(v_trace["value_target"], found["value_target"])
    value, next_value, end = v_trace["state_value"], v_trace["next", "state_value"], data["next", "done"].clone()
    end[:, -1] = True
    more = torch.where(end, 0.0, γ * 0.75 * (value.roll(-1, 1) - next_value))
    torch.testing.assert_close(v_trace["advantage"], found["advantage"] + more)
    assert more.abs().max() > 0.1


@pytest.mark.parametrize("off", [True, False])
def test_gradients_go_to_rewards_and_inputs_and_not_to_networks(off: bool) -> None:
    data, network = batch(2, 5), TensorDictModule(torch.nn.Linear(2, 1).double(), ["state"], ["state_value"])
    options: dict[str, Any] = {"gamma": γ, "lmbda": 0.75, "value_network": network}
    options |= {"actor_network": actor()} if off else {}
    data["next", "reward"].requires_grad_()
    data["state"].requires_grad_()
    constant = StateEstimator(**options)(data.clone(False))
    made = StateEstimator(**options, differentiable=True)(data.clone(False))
    theirs = None if off else GAE(**options, differentiable=True, vectorized=False)(data.clone(False))
    for key in ("advantage", "value_target"):
        assert not constant[key].requires_grad
        torch.testing.assert_close(made[key], constant[key])
        wanted_from = [data["next", "reward"], data["state"]]
        weights = torch.arange(10.0, dtype=torch.float64).reshape(2, 5, 1)
        found = torch.autograd.grad((weights * made[key]).sum(), wanted_from, retain_graph=True)
        assert all(a.abs().sum() > 0 for a in found)
        if theirs is not None:
            wanted = torch.autograd.grad((weights * theirs[key]).sum(), wanted_from, retain_graph=True)
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    made["advantage"].sum().backward()
    for parameter in [*network.parameters(), *actor().parameters()]:
        assert parameter.requires_grad
        assert parameter.grad is None
    again = StateEstimator(**options, differentiable=True)(data.clone(False), params=TensorDict.from_module(network))
    torch.testing.assert_close(again["advantage"], made["advantage"])


def test_values_that_exist_and_shifted() -> None:
    data, options = batch(2, 5), {"gamma": γ, "lmbda": 0.75, "value_network": critic()}
    wanted = StateEstimator(**options)(data.clone())
    for shifted in (True, False):
        torch.testing.assert_close(StateEstimator(**options, shifted=shifted)(data.clone()), wanted)
    data["state_value"], data["next", "state_value"] = torch.zeros(2, 2, 5, 1, dtype=torch.float64)
    torch.testing.assert_close(StateEstimator(**options, skip_existing=False)(data.clone()), wanted)
    torch.testing.assert_close(StateEstimator(**options)(data.clone()), wanted)
    kept = StateEstimator(**options, skip_existing=True)(data.clone())
    torch.testing.assert_close(kept, StateEstimator(**(options | {"value_network": None}))(data.clone()))
    assert not kept["state_value"].any()
    with pytest.raises(TypeError, match="takes no num_chunks"):
        StateEstimator(**options, num_chunks=2)
    with pytest.raises(RuntimeError, match="set_keys"):
        StateEstimator(**options, value_key="v")


def test_a_trailing_dimension_that_is_not_time() -> None:
    """The call without a tensordict takes what all entries share for the batch size, here their last dimension too."""
    value, after, reward = torch.randn(3, 2, 5, 1)
    entries = {"state_value": value, "next_state_value": after, "next_reward": reward}
    end = torch.zeros(2, 5, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"\(2, 5, 1\).*TensorDict of batch size"):
        StateEstimator(gamma=γ, value_network=None)(**entries, next_done=end, next_terminated=end)
