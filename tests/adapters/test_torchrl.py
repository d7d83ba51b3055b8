"""The torchrl estimators against the definition and the real torchrl: equal where that is right, different where it says so."""

# pyright: reportArgumentType=false
# torchrl and tensordict declare less than they take.

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Categorical, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate
from torchrl.objectives.utils import ValueEstimators, build_value_estimator, get_value_estimator_entry

import offtrace as ot
from helpers import TRACES, correct_by_definition, name_of
from offtrace.adapters.torchrl import StateEstimator, TraceEstimator, epsilon_greedy, greedy, log_mu, softmax
from torchrl_batches import A, Table, batch, q_network, γ

POLICIES = {"greedy": greedy, "epsilon-greedy": epsilon_greedy(0.25), "softmax": softmax(0.5)}
MIXED = (ot.AlphaRetrace, ot.CTrace)


def by_hand(data: Any, network: Any, policy: Any, **change: Any) -> dict[str, Any]:
    """The arguments of `targets`, by NumPy: [N, T]."""
    table = network[0].module.values.detach()
    values, after = (table[data[key][..., 0].long()] for key in ("state", ("next", "state")))
    over_actions = [a.numpy().reshape(-1, data.shape[-1], A) for a in (values, after, policy(values), policy(after))]
    made = ot.from_action_values(*over_actions, data["action"].numpy().reshape(-1, data.shape[-1]))  # pyright: ignore
    entries = {
        "reward": ("next", "reward"), "terminated": ("next", "terminated"), "truncated": ("next", "truncated"),
        "log_mu": "action_log_prob", "pair": "pair",
    }  # fmt: skip
    rows = {name: data[key].numpy().reshape(-1, data.shape[-1]) for name, key in entries.items()}
    best = over_actions[0].argmax(-1) == data["action"].numpy().reshape(-1, data.shape[-1])
    return made | rows | {"gamma": γ, "greedy": best} | change


@pytest.mark.parametrize("trace", TRACES, ids=name_of)
def test_every_trace_is_its_definition(trace: Any) -> None:
    for seed, policy in enumerate(POLICIES.values()):
        data, network = batch(3, 7, seed=seed), q_network()
        given = by_hand(data, network, policy)
        wanted, scale = correct_by_definition(trace, given)
        if isinstance(trace, MIXED):
            network = None
            data["chosen_action_value"], data["log_pi"] = (
                torch.from_numpy(given[n])[..., None] for n in ("q", "log_pi")
            )
            data["next", "chosen_action_value"] = torch.from_numpy(given["next_value"])[..., None]
        before = set(data.keys(True, True))
        TraceEstimator(trace=trace, gamma=γ, value_network=network, target_policy=policy)(data)
        assert set(data.keys(True, True)) - before == {"advantage", "value_target"}
        found, q = data["value_target"], given["q"]
        assert found.shape == (3, 7, 1)
        assert not found.requires_grad
        assert (np.abs(found[..., 0].numpy() - q - wanted) <= 1e-12 * (scale + np.abs(q))).all()
        torch.testing.assert_close(data["advantage"][..., 0], found[..., 0] - torch.from_numpy(q))


def test_rows_of_one_step_need_no_word() -> None:
    """The batch size says which dimension is time, so [N, 1] is not read in two ways here."""
    data, network = batch(4, 1), q_network()
    wanted = ot.targets(ot.Retrace(0.9), **by_hand(data, network, greedy), time_major=False)
    TraceEstimator(trace=ot.Retrace(0.9), gamma=γ, value_network=network, target_policy=greedy)(data)
    torch.testing.assert_close(data["value_target"][..., 0], torch.from_numpy(wanted))
    data["state_value"], data["next", "state_value"] = data["value_target"], data["value_target"]
    ends = data["next", "terminated"]
    StateEstimator(gamma=γ, value_network=None)(data)
    wanted = data["next", "reward"] + γ * torch.where(ends, 0.0, data["next", "state_value"])
    torch.testing.assert_close(data["value_target"], wanted)


@pytest.mark.parametrize("trace", [ot.PengQ(0.7), ot.NStep(3), ot.RBIS(0.9)], ids=name_of)
def test_layouts(trace: Any) -> None:
    data, network = batch(2, 3, 6), q_network()
    wanted = ot.targets(trace, **by_hand(data, network, greedy))  # pyright: ignore[reportArgumentType]
    wanted = torch.from_numpy(wanted).reshape(2, 3, 6, 1)
    estimator = TraceEstimator(trace=trace, gamma=γ, value_network=network)
    torch.testing.assert_close(estimator.value_estimate(data), wanted)
    turned = data.permute(2, 0, 1)
    torch.testing.assert_close(estimator.value_estimate(turned, time_dim=0), wanted.permute(2, 0, 1, 3))
    turned.names = ["time", None, None]
    torch.testing.assert_close(estimator.value_estimate(turned), wanted.permute(2, 0, 1, 3))
    one_hot = data.clone()
    one_hot["action"] = nn.functional.one_hot(data["action"], A)
    torch.testing.assert_close(estimator.value_estimate(one_hot), wanted)
    one_hot["action"] = data["action"][..., None]
    torch.testing.assert_close(estimator.value_estimate(one_hot), wanted)
    row = data[0, 0].clone()  # a flat batch of slices, each cut at its end, is one row
    row["next", "done"][2] = row["next", "truncated"][2] = True
    parts = [estimator.value_estimate(part) for part in (row[:3], row[3:])]
    torch.testing.assert_close(estimator.value_estimate(row), torch.cat(parts))
    del row["next", "truncated"]  # done says it already
    torch.testing.assert_close(estimator.value_estimate(row), torch.cat(parts))


def test_padding_of_split_trajectories_is_not_read() -> None:
    data, network = batch(1, 12), q_network()
    data["next", "done"][0, [3, 8, 11]] = data["next", "truncated"][0, [3, 8, 11]] = True
    estimator = TraceEstimator(trace=ot.Retrace(0.9), gamma=γ, value_network=network)
    wanted = estimator(data.clone())
    with warnings.catch_warnings():  # torchrl uses what it deprecates
        warnings.simplefilter("ignore")
        from torchrl.collectors.utils import split_trajectories
    split = split_trajectories(data, prefix="collector")
    mask = split["collector", "mask"]
    split["next", "reward"][~mask] = torch.nan
    estimator(split)
    for key in ("value_target", "advantage"):
        torch.testing.assert_close(split[key][mask], wanted[key][0])
        assert not split[key][~mask].any()


def test_gamma_of_several_steps() -> None:
    data, network = batch(2, 5), q_network()
    data["steps_to_next_obs"] = torch.tensor([1, 2, 3, 1, 2]).expand(2, 5)[..., None]
    given = by_hand(data, network, greedy, gamma=γ ** data["steps_to_next_obs"][..., 0].double().numpy())
    found = TraceEstimator(trace=ot.Retrace(0.9), gamma=γ, value_network=network).value_estimate(data)
    np.testing.assert_allclose(found[..., 0], ot.targets(ot.Retrace(0.9), **given), rtol=1e-12)


def test_gradients_and_the_call_without_a_tensordict() -> None:
    data, network = batch(2, 5), q_network()
    estimator = TraceEstimator(trace=ot.RBIS(0.9), gamma=γ, value_network=network, differentiable=True)
    wanted = estimator(data.clone())
    wanted["value_target"].sum().backward()
    assert network[0].module.values.grad.abs().sum() > 0
    entries = {"_".join(map(str, key)) if isinstance(key, tuple) else key: data[key] for key in estimator.in_keys}
    for found, key in zip(estimator(**entries), ("advantage", "value_target"), strict=True):
        torch.testing.assert_close(found, wanted[key])


def test_keys_are_those_one_sets() -> None:
    network = TensorDictModule(Table(A), ["state"], ["Q"])
    data = batch(2, 5)
    estimator = TraceEstimator(trace=ot.QSigma(0.5), gamma=γ, value_network=q_network())
    wanted = estimator(data.clone())
    names = {"reward": "r", "done": ("end", "any"), "terminated": ("end", "task"), "truncated": ("end", "limit")}
    own = {"action": "a", "sample_log_prob": ("mu", "log")}
    out = {"advantage": ("out", "Δ"), "value_target": ("out", "G")}
    renamed = TensorDict({"state": data["state"], "next": {"state": data["next", "state"]}}, data.shape)
    for name, key in names.items():
        renamed[("next", key)] = data["next", name]
    renamed["a"], renamed["mu", "log"] = data["action"], data["action_log_prob"]
    estimator = TraceEstimator(trace=ot.QSigma(0.5), gamma=γ, value_network=network)
    estimator.set_keys(**names, **own, **out, action_value="Q")
    estimator(renamed)
    torch.testing.assert_close(renamed["out", "Δ"], wanted["advantage"])
    torch.testing.assert_close(renamed["out", "G"], wanted["value_target"])
    with pytest.raises(KeyError, match="not an accepted tensordict key"):
        estimator.set_keys(lam="x")
    assert ("mu", "log") in estimator.in_keys


def made_loss(double: bool = False, supported: bool = False, delay: bool = True) -> Any:
    cls: Any = DQNLoss
    if supported:

        class Loss(DQNLoss):
            SUPPORTED_VALUE_ESTIMATORS: Any = (*DQNLoss.SUPPORTED_VALUE_ESTIMATORS, "offtrace")

        cls = Loss
    loss = cls(q_network(), action_space=Categorical(A), double_dqn=double, delay_value=delay)
    if delay:
        SoftUpdate(loss, tau=0.5)  # without one the loss warns
        loss.target_value_network_params["module", "0", "module", "values"].data.copy_(Table(A, 1).values.data)
    return loss


@pytest.mark.parametrize("double", [False, True])
def test_dqn_loss_with_one_step_is_that_of_td0_and_with_peng_that_of_td_lambda(double: bool) -> None:
    data = batch(4, 6)
    for theirs, ours, options in (
        (ValueEstimators.TD0, ot.OneStep(), {}),
        (ValueEstimators.TDLambda, ot.PengQ(0.75), {"lmbda": 0.75}),
    ):
        loss = made_loss(double)
        loss.make_value_estimator(theirs, gamma=γ, **options)
        wanted = loss(data)["loss"]
        loss.make_value_estimator(TraceEstimator.for_loss(loss, trace=ours, gamma=γ))
        torch.testing.assert_close(loss(data)["loss"], wanted, rtol=1e-6, atol=0)


def test_dqn_loss_sees_the_action_taken() -> None:
    """DQNLoss lets its network write its greedy action over the one taken, and only then asks for a target."""
    data, trace = batch(4, 6), ot.Retrace(0.9)
    loss = made_loss(supported=True)
    loss.make_value_estimator("offtrace", trace=trace, gamma=γ, target_policy=POLICIES["softmax"])
    target = ot.targets(trace, **by_hand(data, q_network(seed=1), POLICIES["softmax"]))
    online = by_hand(data, q_network(), greedy)["q"]
    found = loss(data)["loss"]
    np.testing.assert_allclose(found.item(), np.square(online - target).mean(), rtol=1e-12)
    found.backward()
    assert loss.value_network_params["module", "0", "module", "values"].grad.abs().sum() > 0
    again = pickle.loads(pickle.dumps(loss.value_estimator._keep_action))
    assert isinstance(again.__self__, TraceEstimator)

    # An estimator that the loss does not know cannot tell which action was taken, and says so.
    loss = made_loss()
    loss.make_value_estimator(TraceEstimator(trace=trace, gamma=γ, value_network=q_network()))
    with pytest.raises(RuntimeError, match="for_loss"):
        loss(batch(4, 6))
    params = TensorDict.from_module(q_network(seed=1))
    data["taken_action"] = data["action"]
    data["action"] = (data["action"] + 1) % A
    estimator = TraceEstimator(trace=trace, gamma=γ, value_network=q_network(), target_policy=POLICIES["softmax"])
    np.testing.assert_allclose(estimator.value_estimate(data, params)[..., 0], target, rtol=1e-12)


def test_a_double_dqn_takes_pi_from_the_online_network() -> None:
    data, trace = batch(4, 6), ot.WatkinsQ(0.9)
    loss = made_loss(double=True)
    loss.make_value_estimator(TraceEstimator.for_loss(loss, trace=trace, gamma=γ))
    online, delayed = (by_hand(data, q_network(seed), greedy) for seed in (0, 1))
    table = q_network(1)[0].module.values.detach()
    states = data["next", "state"][..., 0].long()
    best = q_network()[0].module.values[states].argmax(-1)
    value = table[states].gather(-1, best[..., None])[..., 0].numpy()
    target = ot.targets(
        trace, **(delayed | {"next_value": value, "log_pi": online["log_pi"], "greedy": online["greedy"]})
    )
    np.testing.assert_allclose(loss(data)["loss"].item(), np.square(online["q"] - target).mean(), rtol=1e-12)
    loss.make_value_estimator(TraceEstimator.for_loss(loss, trace=trace, gamma=γ, target_policy=softmax(1.0)))
    with pytest.raises(ValueError, match="double"):
        loss(data)


def test_the_registry() -> None:
    assert get_value_estimator_entry("offtrace").cls is TraceEstimator
    assert get_value_estimator_entry("offtrace_states").cls is StateEstimator
    loss = made_loss()
    with pytest.raises(NotImplementedError):  # a loss has its own list of names, and torchrl's hold torchrl's only
        loss.make_value_estimator("offtrace", trace=ot.Retrace(0.9))
    loss.make_value_estimator(build_value_estimator(loss, "offtrace", trace=ot.Retrace(0.9)))
    assert isinstance(loss.value_estimator, TraceEstimator)
    assert loss.value_estimator.gamma == 0.99
    loss(batch(2, 4))


def test_policies() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0], [2.0, torch.finfo(torch.float32).min, 1.0]])
    assert greedy(values).tolist() == [[0, 1, 0], [1, 0, 0]]
    torch.testing.assert_close(epsilon_greedy(0.3)(values), torch.tensor([[0.1, 0.8, 0.1], [0.85, 0.0, 0.15]]))
    torch.testing.assert_close(softmax(2.0)(values), torch.softmax(values / 2, -1))


def test_what_is_wrong_is_said() -> None:
    data, network = batch(2, 4), q_network()
    options: dict[str, Any] = {"trace": ot.Retrace(0.9), "gamma": γ, "value_network": network}
    wrong: list[tuple[dict[str, Any], dict[Any, Any], type[Exception], str]] = [
        ({"trace": "retrace"}, {}, TypeError, "offtrace.trace"),
        ({"trace": ot.AlphaRetrace(mix=0.5)}, {}, ValueError, "mixture"),
        ({"gamma": 1.5}, {}, ValueError, r"gamma must lie in \[0, 1\]"),
        ({"target_policy": lambda values: values[..., 0]}, {}, ValueError, "a probability for each action"),
        ({}, {"action_log_prob": None}, KeyError, "action_log_prob.*set_keys"),
        ({}, {"action": torch.zeros(2, 4, 2)}, ValueError, "actions must be integers"),
        ({}, {("next", "reward"): torch.zeros(2, 4, 2, dtype=torch.float64)}, ValueError, "one number for each step"),
        ({}, {("next", "reward"): torch.full((2, 4, 1), torch.nan).double()}, ValueError, "reward must be finite"),
        ({}, {("next", "reward"): torch.zeros(2, 4, 1)}, TypeError, "one dtype"),
        ({"value_network": None}, {}, KeyError, "chosen_action_value"),
    ]
    for change, entries, error, words in wrong:
        altered = data.clone()
        for key, entry in entries.items():
            altered = altered.exclude(key) if entry is None else altered.set(key, entry)
        with pytest.raises(error, match=words):
            TraceEstimator(**(options | change))(altered)
    with pytest.raises(ValueError, match="no batch size"):
        TraceEstimator(**options)(data[0, 0])


def test_training_on_slices_of_a_real_environment() -> None:
    """Collect with ε-greedy and its log μ, replay slices, learn: CartPole, torchrl's own parts throughout."""
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    env.set_seed(0)
    q_values = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    network = QValueActor(q_values, in_keys=["observation"], spec=env.action_spec)
    explore: Any = EGreedyModule(env.action_spec, eps_init=0.5, eps_end=0.5)
    behavior = TensorDictSequential(network, explore, log_mu(epsilon_greedy(explore.eps)))
    memory = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000),
        sampler=SliceSampler(slice_len=5, end_key=("next", "done")),
        batch_size=40,
    )
    with torch.no_grad():
        rollout = env.rollout(100, behavior, break_when_any_done=False)
    assert set(rollout["action_log_prob"].exp().unique().tolist()) == {0.25, 0.75}
    rollout["next", "truncated"][-1] = rollout["next", "done"][-1] = True
    memory.extend(rollout)

    loss: Any = DQNLoss(network, action_space=env.action_spec)
    loss.make_value_estimator(
        TraceEstimator.for_loss(loss, trace=ot.NonMarkovRetrace(0.9), gamma=0.99, target_policy=epsilon_greedy(0.1))
    )
    update, optimiser = SoftUpdate(loss, tau=0.01), torch.optim.Adam(loss.parameters(), lr=1e-2)
    losses, drawn = [], memory.sample()
    for _ in range(40):
        drawn = memory.sample()
        found = loss(drawn)["loss"]
        optimiser.zero_grad()
        found.backward()
        optimiser.step()
        update.step()
        losses.append(found.item())
    assert drawn["taken_action"].shape == (40,)
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:5])


def test_watkins_goes_by_the_greedy_action_under_a_soft_target() -> None:
    """The values of the network tell which action is greedy; a soft target policy acts in next_value only."""
    data, trace = batch(4, 6), ot.WatkinsQ(0.9)
    estimator = TraceEstimator(trace=trace, gamma=γ, value_network=q_network(), target_policy=POLICIES["softmax"])
    wanted = ot.targets(trace, **by_hand(data, q_network(), POLICIES["softmax"]))
    np.testing.assert_allclose(estimator.value_estimate(data)[..., 0], wanted, rtol=1e-12)
