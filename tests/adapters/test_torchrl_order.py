"""Flat batches: a trace passes from one step to the next only where that step follows; the samplers are torchrl's own."""

# pyright: reportArgumentType=false
# torchrl and tensordict declare less than they take.

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, SliceSampler, SliceSamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import QValueActor

import offtrace as ot
from offtrace.adapters.torchrl import StateEstimator, TraceEstimator, softmax
from torchrl_batches import batch, q_network, γ

TRACE = ot.QLambda(0.9)


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(0)
    return QValueActor(nn.Linear(4, 2), in_keys=["observation"], action_space="categorical")


def estimator(network: Any, trace: Any = TRACE) -> TraceEstimator:
    return TraceEstimator(trace=trace, gamma=γ, value_network=network, target_policy=softmax(1.0))


def collected(counter: bool = False, frames: int = 300) -> Any:
    """Steps of CartPole by torchrl's collector: the last episode is not over."""
    with warnings.catch_warnings():  # torchrl uses what it deprecates
        warnings.simplefilter("ignore")
        from torchrl.collectors import Collector
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    env = TransformedEnv(env, StepCounter()) if counter else env
    env.set_seed(0)
    torch.manual_seed(0)
    collector = Collector(env, None, frames_per_batch=frames, total_frames=frames)
    data = next(iter(collector)).clone()
    collector.shutdown()
    return data


def sample(data: Any, size: int, sampler: Any = None, capacity: int = 300, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    options = {} if sampler is None else {"sampler": sampler}
    memory = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=size, **options)
    memory.extend(data.clone())
    return memory.sample()


def in_pieces(made: Any, drawn: Any) -> torch.Tensor:
    """The targets, if the steps are taken for one row exactly where they stood side by side as they were collected."""
    place, end = drawn["index"].flatten().tolist(), drawn["next", "done"].flatten().tolist()
    starts = [0, *(i for i in range(1, len(place)) if end[i - 1] or place[i] != place[i - 1] + 1), len(place)]
    pieces = [drawn[a:b].unsqueeze(0) for a, b in pairwise(starts)]
    return torch.cat([made.value_estimate(piece)[0] for piece in pieces])


@pytest.mark.parametrize("counter", [True, False])
def test_a_uniform_sample_is_not_a_trajectory(network: Any, counter: bool) -> None:
    drawn = sample(collected(counter), 256)
    assert ("collector", "traj_ids") in drawn.keys(True)
    ids, place = drawn["collector", "traj_ids"], drawn["index"]
    goes_on = ~drawn["next", "done"][:-1, 0]
    assert (goes_on & (ids[1:] == ids[:-1]) & (place[1:] != place[:-1] + 1)).any()  # equal ids, yet no neighbours
    made = estimator(network)
    found = made.value_estimate(drawn)
    torch.testing.assert_close(found, in_pieces(made, drawn))
    one_step = estimator(network, ot.OneStep()).value_estimate(drawn)
    alone = torch.ones(256, dtype=torch.bool)
    alone[:-1] = place[1:] != place[:-1] + 1
    torch.testing.assert_close(found[alone], one_step[alone])
    assert (made.value_estimate(drawn.unsqueeze(0).exclude("collector"))[0] - one_step).abs().mean() > 0.1


@pytest.mark.parametrize("sampler", [SliceSampler, SliceSamplerWithoutReplacement])
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("counter", [True, False])
def test_slices_are_read_as_slices(network: Any, sampler: Any, marked: bool, counter: bool) -> None:
    """Also where the sampler is told not to mark the ends of its slices, and where a slice goes round the end of the buffer."""
    options: dict[str, Any] = {"traj_key": ("collector", "traj_ids"), "slice_len": 5}
    options |= {} if marked else {"truncated_key": None}
    for capacity in (300, 277):
        drawn = sample(collected(counter), 60, sampler(**options), capacity)
        rows = drawn.reshape(12, 5)
        wanted = estimator(network).value_estimate(rows).reshape(60, 1)
        torch.testing.assert_close(estimator(network).value_estimate(drawn), wanted)
    one_step = estimator(network, ot.OneStep()).value_estimate(drawn)
    assert (wanted - one_step).abs().mean() > 0.1


def test_what_a_collector_gives_is_one_row(network: Any) -> None:
    data = collected()
    wanted = estimator(network).value_estimate(data.unsqueeze(0))[0]
    torch.testing.assert_close(estimator(network).value_estimate(data), wanted)
    memory = sample(torch.stack([data[:100], data[100:200]]), 2)  # rows in, rows out
    assert memory.shape == (2, 100)
    assert torch.isfinite(estimator(network).value_estimate(memory)).all()


def test_equal_states_of_steps_that_do_not_follow() -> None:
    """In a small world the next state may be, by chance, that of the step drawn after it. Ids, counter or places tell."""
    data = batch(12)
    data["next", "done"][:] = data["next", "terminated"][:] = data["next", "truncated"][:] = False
    data["next", "state"][:-1] = data["state"][1:]
    made = TraceEstimator(trace=TRACE, gamma=γ, value_network=q_network())
    wanted = made.value_estimate(data)
    pieces = torch.cat([made.value_estimate(part) for part in (data[:4], data[4:])])
    assert not torch.allclose(wanted, pieces)
    jump, count = torch.arange(12), torch.arange(12)
    jump[4:] += 7
    witnesses: list[dict[Any, Any]] = [
        {("collector", "traj_ids"): (count >= 4).long()},
        {"index": jump},
        {"index": torch.stack([count, (count >= 4).long()], -1)},
        {"step_count": jump[:, None], ("next", "step_count"): torch.where(count == 3, 4, jump + 1)[:, None]},
    ]
    for witness in witnesses:
        told = data.clone()
        for key, entry in witness.items():
            told[key] = entry
        torch.testing.assert_close(made.value_estimate(told), pieces)
    round_the_end = data.clone().set("index", (torch.arange(12) + 8) % 12)
    torch.testing.assert_close(made.value_estimate(round_the_end), wanted)
    parted = data.clone().unsqueeze(0)
    parted["collector", "traj_ids"] = (torch.arange(12)[None] >= 4).long()  # ids are read in [B, T] as well
    torch.testing.assert_close(made.value_estimate(parted)[0], pieces)


def test_ids_and_a_counter_go_before_states() -> None:
    """A transform may change what a step sees and what the step before it saw as next, each in its own way."""
    data = batch(12)
    data["collector", "traj_ids"] = torch.zeros(12, dtype=torch.long)
    data["step_count"], data["next", "step_count"] = torch.arange(12)[:, None], torch.arange(1, 13)[:, None]
    made = TraceEstimator(trace=TRACE, gamma=γ, value_network=q_network())
    data["next", "state"] = (data["next", "state"] + 1) % 40
    torch.testing.assert_close(made.value_estimate(data), made.value_estimate(data.unsqueeze(0))[0])


def test_a_flat_batch_that_says_nothing_is_refused() -> None:
    data = batch(9)
    data["state_value"], data["next", "state_value"] = torch.randn(2, 9, 1, dtype=torch.float64)
    bare = StateEstimator(gamma=γ, value_network=None)
    row = bare(data.clone().unsqueeze(0))["value_target"][0]
    with pytest.raises(ValueError, match=r"flat.*SliceSampler.*\[B, T\].*set_keys\(observation=…\).*unsqueeze\(0\)"):
        bare(data.clone())
    with pytest.raises(ValueError, match="flat"):  # two draws from one trajectory need not follow one another
        bare(data.clone().set(("collector", "traj_ids"), torch.zeros(9, dtype=torch.long)))
    named = data.clone()
    named.names = ["time"]
    torch.testing.assert_close(bare(named)["value_target"], row)
    told = StateEstimator(gamma=γ, value_network=None)
    told.set_keys(observation="state")
    torch.testing.assert_close(told(data.clone())["value_target"], row)
    every = data.clone()
    every["next", "done"][:] = True  # nothing is left to be known
    torch.testing.assert_close(bare(every)["value_target"], bare(every.unsqueeze(0))["value_target"][0])
    one = data[:1]
    torch.testing.assert_close(bare(one.clone())["value_target"], bare(one.clone().unsqueeze(0))["value_target"][0])


def test_state_values_of_a_uniform_sample() -> None:
    data = collected()
    value = TensorDictModule(nn.Linear(4, 1), ["observation"], ["state_value"])
    made = StateEstimator(gamma=γ, lmbda=0.9, value_network=value)
    drawn = sample(data, 128)
    place = drawn["index"]
    alone = torch.ones(128, dtype=torch.bool)
    alone[:-1] = (place[1:] != place[:-1] + 1) | drawn["next", "done"][:-1, 0]
    one_step = StateEstimator(gamma=γ, lmbda=0.0, value_network=value)(drawn.clone())
    found = made(drawn.clone())
    torch.testing.assert_close(found["advantage"][alone], one_step["advantage"][alone])
    assert alone.sum() > 100
