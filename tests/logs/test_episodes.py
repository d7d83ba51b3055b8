"""Real Minari datasets, and lists of Gymnasium episodes, against what the environment did."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from minari import DataCollector, StepDataCallback

from offtrace.logs import Columns, Logs, LogsError, read
from offtrace.logs.reading.episodes import _of_space


class KeepsMu(gym.Wrapper):
    """Puts μ of the action into the info, as a logging policy would."""

    mu = np.nan

    def reset(self, **options: Any) -> Any:
        seen, info = self.env.reset(**options)
        return seen, {**info, "mu": np.nan, "policy": {"log_mu": np.nan}}

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "mu": self.mu, "policy": {"log_mu": float(np.log(self.mu))}}
        return seen, reward, terminated, truncated, info


def played(
    name: str, episodes: int, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, list[Any]]:
    """A Minari dataset and the same episodes as a list, under μ = (0.6, 0.4 shared by the others)."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    inner = KeepsMu(gym.make(name, **options))
    env = DataCollector(inner, StepDataCallback, record_infos=True)
    n = int(env.action_space.n)  # pyright: ignore[reportAttributeAccessIssue]
    mu = np.array([0.6] + [0.4 / (n - 1)] * (n - 1))
    rng, done = np.random.default_rng(0), []
    for seed in range(episodes):
        seen, _ = env.reset(seed=seed)
        one: dict[str, Any] = {"observations": [seen], "actions": [], "rewards": [], "terminations": []}
        one |= {"truncations": [], "infos": {"mu": []}}
        ended = False
        while not ended:
            action = int(rng.choice(n, p=mu))
            inner.mu = float(mu[action])
            seen, reward, terminated, truncated, info = env.step(action)
            values = (seen, action, reward, terminated, truncated)
            for key, value in zip(
                ("observations", "actions", "rewards", "terminations", "truncations"), values, strict=True
            ):
                one[key].append(value)
            one["infos"]["mu"].append(info["mu"])
            ended = terminated or truncated
        done.append(one)
    return kept(env, "offtrace/played-v0"), done


def kept(env: DataCollector, name: str) -> minari.MinariDataset:
    """Minari leaves its temporary folders to the garbage collector."""
    before = env._tmp_dir
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Minari would like to know more about it
        dataset = env.create_dataset(name)
    env.env.close()
    for folder in (before, env._tmp_dir):
        folder.cleanup()
    return dataset


def agree(logs: Logs, episodes: list[Any]) -> None:
    """Step by step."""
    assert logs.episodes == len(episodes)
    i = 0
    assert logs.log_mu is not None
    for start, one in zip(logs.starts, episodes, strict=False):
        assert start == i
        for t in range(len(one["rewards"])):
            np.testing.assert_array_equal(logs.state[i], one["observations"][t])
            np.testing.assert_array_equal(logs.next_state[i], one["observations"][t + 1])
            assert logs.action[i] == one["actions"][t]
            assert logs.reward[i] == one["rewards"][t]
            assert logs.terminated[i] == one["terminations"][t]
            assert logs.truncated[i] == (one["truncations"][t] and not one["terminations"][t])
            assert logs.log_mu[i] == np.log(one["infos"]["mu"][t])
            i += 1
    assert i == len(logs)


@pytest.mark.parametrize(
    ("name", "options", "states", "actions"),
    [("FrozenLake-v1", {"max_episode_steps": 8}, 16, 4), ("CartPole-v1", {"max_episode_steps": 20}, 0, 2)],
)
def test_minari_datasets_hold_what_was_played(
    name: str, options: Any, states: int, actions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, episodes = played(name, 12, tmp_path, monkeypatch, **options)
    assert any(one["truncations"][-1] for one in episodes)
    assert any(one["terminations"][-1] for one in episodes)
    columns = Columns(mu="mu")
    sources = (
        dataset,
        "offtrace/played-v0",
        tmp_path / "offtrace" / "played-v0",
        str(tmp_path / "offtrace/played-v0/data"),
    )
    for source in (*sources, episodes, list(dataset.iterate_episodes())):
        logs = read(source, columns=columns)
        agree(logs, episodes)
        if source is not episodes and not isinstance(source, list):
            assert (logs.states, logs.actions) == (states, actions)
    agree(read(dataset, columns=Columns(log_mu="policy/log_mu")), episodes)
    some = dataset.filter_episodes(lambda episode: episode.terminations[-1])
    agree(read(some, columns=columns), [one for one in episodes if one["terminations"][-1]])
    assert read(dataset).log_mu is None
    with pytest.raises(LogsError, match=r"have no 'nu' \(did you mean 'mu'\?\): they have \['mu'"):
        read(dataset, columns=Columns(mu="nu"))
    with pytest.raises(FileNotFoundError, match=r"no Minari dataset.*did you mean 'offtrace/played-v0'"):
        read("offtrace/playd-v0")
    with pytest.raises(LogsError, match="action is none of the 1 that there are"):
        read(dataset, actions=1)
    for steps, words in ((dataset.total_steps - 1, "more"), (dataset.total_steps + 1, f"only {dataset.total_steps}")):
        dataset.storage.update_metadata({"total_steps": steps})
        with pytest.raises(LogsError, match=f"says that it has {steps} steps, but its episodes have {words}"):
            read("offtrace/played-v0")


def test_spaces_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = DataCollector(gym.make("Pendulum-v1", max_episode_steps=3))
    env.reset(seed=0)
    taken = [env.action_space.sample() for _ in range(3)]
    for action in taken:
        env.step(action)
    dataset = kept(env, "pendulum-v0")
    logs = read(dataset)  # a Box of actions is read as real numbers
    assert (logs.actions, logs.continuous) == (0, True)
    np.testing.assert_array_equal(logs.action, np.array(taken, float))
    with pytest.raises(LogsError, match=r"actions of MultiDiscrete.* must be Discrete or Box"):
        _of_space("action", gym.spaces.MultiDiscrete([2, 2]), None)
    assert minari.load_dataset("pendulum-v0").total_steps == 3


def test_lists_of_episodes_with_names() -> None:
    one = {"observations": ["hall", "stairs", "roof"], "actions": ["up", "up"], "rewards": [0, 1.0]}
    one |= {"terminations": [0, 1], "truncations": [0, 0]}
    two = {
        "observations": ["hall", "hall"],
        "actions": ["down"],
        "rewards": [0],
        "terminations": [0],
        "truncations": [1],
    }
    logs = read([one, two])
    assert (logs.state_names, logs.action_names) == (("hall", "roof", "stairs"), ("down", "up"))
    assert logs.state.tolist() == [0, 2, 0]
    assert logs.next_state.tolist() == [2, 1, 0]
    assert logs.truncated.tolist() == [False, False, True]
    named = read([one, two], actions=("up", "down"))
    assert (named.action.tolist(), named.action_names) == ([0, 0, 1], ("up", "down"))
    with pytest.raises(LogsError, match=r"action is none of those that were given.*: 2 \(episode 1, step 0\)"):
        read([one, two], actions=("up", "left"))
    with pytest.raises(LogsError, match="one observation more"):
        read([one | {"observations": ["hall", "roof"]}])
    with pytest.raises(LogsError, match="has no truncations"):
        read([{k: v for k, v in one.items() if k != "truncations"}])
    with pytest.raises(LogsError, match=r"reward is missing.*: 1 \(episode 0, step 1\)"):
        read([one | {"rewards": [0, np.inf]}, two])
