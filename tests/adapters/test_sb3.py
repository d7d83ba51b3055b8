"""The adapter of Stable-Baselines3, against the library itself. `make peers` makes its environment."""

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3 import DQN, HerReplayBuffer  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.buffers import ReplayBuffer  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.vec_env import VecNormalize  # pyright: ignore[reportMissingImports]

import offtrace as ot
from offtrace.adapters.sb3 import SequenceReplayBuffer, TraceDQN
from offtrace.returns import by_definition

SMALL: dict[str, Any] = {
    "learning_starts": 40,
    "batch_size": 8,
    "seed": 3,
    "device": "cpu",
    "target_update_interval": 30,
    "policy_kwargs": {"net_arch": [16]},
    "learning_rate": 1e-2,
}


class Counting(gym.Env[Any, Any]):
    """The observation is (episode, step). Episodes end after 5 steps; those of an odd number by truncation."""

    observation_space = gym.spaces.Box(0, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, first: int = 0) -> None:
        self.episode, self.step_number = first - 1, 0

    def _observation(self) -> np.ndarray:
        return np.array([self.episode, self.step_number], np.float32)

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.step_number = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        end, odd = self.step_number == 5, self.episode % 2 == 1
        return self._observation(), float(self.step_number), end and not odd, end and odd, {}


def model_of(env: Any, **options: Any) -> TraceDQN:
    return TraceDQN("MlpPolicy", env, **SMALL | options)


def test_with_one_step_targets_it_is_dqn() -> None:
    theirs = DQN("MlpPolicy", "CartPole-v1", **SMALL).learn(200)
    ours = model_of("CartPole-v1", trace=ot.OneStep(), target_epsilon=0.0, sequence_length=1).learn(200)
    for a, b in zip(theirs.policy.parameters(), ours.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(theirs.replay_buffer.actions, ours.replay_buffer.actions)


@pytest.mark.parametrize("buffer_size", [1000, 45])  # the second is written over several times
def test_sequences_are_what_happened(buffer_size: int) -> None:
    """Every step of a sequence follows the one before it, unless that one is marked as an end; and ends are of the right kind."""
    from stable_baselines3.common.env_util import DummyVecEnv  # pyright: ignore[reportMissingImports]

    envs = DummyVecEnv([lambda: Counting(0), lambda: Counting(1000), lambda: Counting(2000)])
    model = model_of(envs, buffer_size=buffer_size, sequence_length=8)
    model.learn(48)
    model.learn(30)  # the environments start anew, in the middle of an episode
    batch = model.replay_buffer.sample(500)
    now, after = batch.observations.numpy(), batch.next_observations.numpy()
    terminated, truncated = batch.terminated.numpy(), batch.truncated.numpy()
    assert now.shape == (500, 8, 2)
    np.testing.assert_array_equal(after, now + np.array([0, 1]))  # the true next observation, at ends too
    end = terminated | truncated
    follows = (after[:, :-1] == now[:, 1:]).all(-1)
    np.testing.assert_array_equal(follows, ~end[:, :-1])
    fifth, odd = after[..., 1] == 5, after[..., 0] % 2 == 1
    np.testing.assert_array_equal(terminated, fifth & ~odd)
    assert (truncated[fifth & odd]).all()
    assert (truncated & ~fifth).any()  # where `learn` started anew


def test_log_mu_is_that_of_the_policy_that_acted() -> None:
    """The frequencies of greedy actions, and the probabilities that were stored."""
    model = model_of(
        "CartPole-v1", learning_starts=0, exploration_fraction=1e-9, exploration_final_eps=0.3, gradient_steps=0
    )
    model.learn(600)
    buffer = model.replay_buffer
    with torch.no_grad():
        greedy = model.q_net(torch.as_tensor(buffer.observations[:600, 0])).argmax(-1).numpy()
    is_greedy = buffer.actions[:600, 0, 0] == greedy
    mu = np.exp(buffer.log_mu[1:600, 0])  # ε is 0 at the first step: the schedule starts after it
    np.testing.assert_allclose(mu, np.where(is_greedy[1:], 0.85, 0.15), rtol=1e-5)
    assert abs(is_greedy.mean() - 0.85) < 0.06


def test_before_learning_starts_mu_is_uniform() -> None:
    model = model_of(Counting(), learning_starts=20).learn(20)
    np.testing.assert_allclose(model.replay_buffer.log_mu[:20], np.log(1 / 3), rtol=1e-6)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", ["retrace", "non-markov-retrace", "rbis", "tree-backup"])
def test_targets_are_those_of_the_definition(name: str, double: bool) -> None:
    model = model_of(Counting(), trace=name, sequence_length=12, double=double, target_epsilon=0.2).learn(80)
    batch = model.replay_buffer.sample(5)
    got = model.sequence_targets(batch).numpy()
    with torch.no_grad():
        slow, judge = model.q_net_target, model.q_net if double else model.q_net_target
        for b in range(5):
            q, next_q = slow(batch.observations[b]).numpy(), slow(batch.next_observations[b]).numpy()
            best = judge(batch.observations[b]).argmax(-1).numpy()
            next_best = judge(batch.next_observations[b]).argmax(-1).numpy()
            steps, action = np.arange(12), batch.actions[b, :, 0].numpy()
            pi = np.where(action == best, 0.8 + 0.2 / 3, 0.2 / 3)
            given = {"q": q[steps, action], "next_value": 0.2 * next_q.mean(-1) + 0.8 * next_q[steps, next_best]}
            given |= {"reward": batch.rewards[b].numpy(), "log_pi": np.log(pi), "log_mu": batch.log_mu[b].numpy()}
            given |= {"terminated": batch.terminated[b].numpy(), "truncated": batch.truncated[b].numpy()}
            np.testing.assert_allclose(got[b], expected(ot.trace(name), given), rtol=1e-4, atol=1e-4)


def expected(trace: ot.Trace, given: dict[str, np.ndarray]) -> np.ndarray:
    made = {name: array.tolist() for name, array in given.items()}
    Δ, _ = by_definition.corrections(trace, **made, gamma=0.99)
    return given["q"] + np.array(Δ)


@pytest.mark.parametrize("trace", [ot.NStep(3), ot.PengQ(lam=0.5), ot.WatkinsQ(lam=0.9), ot.TruncatedIS(lam=0.9)])
def test_every_kind_of_rule_trains(trace: Any) -> None:
    assert model_of("CartPole-v1", trace=trace, target_epsilon=0.1).learn(80)._n_updates > 0


def test_a_saved_model_goes_on(tmp_path: Path) -> None:
    model = model_of("CartPole-v1", trace=ot.RBIS(lam=0.7), sequence_length=5, target_epsilon=0.1).learn(80)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = TraceDQN.load(tmp_path / "model", env=model.get_env())
    again.load_replay_buffer(tmp_path / "buffer")
    assert (again.trace, again.target_epsilon, again.replay_buffer.sequence_length) == (model.trace, 0.1, 5)
    np.testing.assert_array_equal(again.replay_buffer.log_mu, model.replay_buffer.log_mu)
    again.learn(40, reset_num_timesteps=False)
    assert again.replay_buffer.timeouts[79, 0] or again.replay_buffer.dones[79, 0]  # a new episode: no trace goes on
    again.replay_buffer = ReplayBuffer(10, again.observation_space, again.action_space)
    with pytest.raises(TypeError, match="needs a SequenceReplayBuffer"):
        again.train(1)


def test_normalised_and_discrete_observations() -> None:
    envs = VecNormalize(model_of("CartPole-v1").get_env())
    model = model_of(envs, trace=ot.Retrace(lam=0.9)).learn(80)
    raw, normalised = model.replay_buffer.sample(64), model.replay_buffer.sample(64, env=envs)
    assert raw.observations.std() != normalised.observations.std()
    assert model_of("FrozenLake-v1", trace=ot.Retrace(lam=0.9)).learn(80)._n_updates > 0  # discrete observations


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="NStep"):
        model_of("CartPole-v1", n_steps=3)
    with pytest.raises(ValueError, match="loses the observation"):
        model_of("CartPole-v1", optimize_memory_usage=True)
    with pytest.raises(TypeError, match="replay_buffer_class is HerReplayBuffer"):
        model_of("CartPole-v1", replay_buffer_class=HerReplayBuffer)
    with pytest.raises(ValueError, match="sequence_length is 16"):
        model_of("CartPole-v1", buffer_size=10)
    with pytest.raises(ValueError, match="probability"):
        model_of("CartPole-v1", target_epsilon=2)
    box, two = gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2)
    with pytest.raises(TypeError, match="flatten"):
        SequenceReplayBuffer(10, gym.spaces.Dict({"a": box}), two, sequence_length=2)
    buffer = SequenceReplayBuffer(10, box, two, sequence_length=2)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
    with pytest.raises(KeyError, match="log_mu"):
        buffer.add(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros(1), np.zeros(1), np.zeros(1), [{}])


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "libraries.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    ours = [block for block in blocks if "adapters.sb3" in block]
    assert ours
    for block in ours:
        exec(block.replace("50_000", "60").replace("100_000", "1_000").replace("=256", "=4"), {})
