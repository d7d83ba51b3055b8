"""Gymnasium's tables against the environments themselves, stepped."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest

from offtrace import mdps

gymnasium = pytest.importorskip("gymnasium")
frozen_lake = pytest.importorskip("gymnasium.envs.toy_text.frozen_lake")
NAMES = [name for name, spec in gymnasium.registry.items() if "toy_text" in str(spec.entry_point)]
TABLES = [name for name in NAMES if not name.startswith(("Blackjack", "tabular/Blackjack", "phys2d"))]
SIZES = {"FrozenLake-v1": (16, 5), "CliffWalking-v1": (48, 1), "Taxi-v4": (501, 1)}


def test_the_three_environments_are_there() -> None:
    assert set(SIZES) <= set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_what_the_environment_does(name: str) -> None:
    """Put the real environment into every state, act, and compare with the MDP's row: support, reward and end."""
    mdp = mdps.from_gymnasium(name)
    environment = gymnasium.make(name)
    environment.reset(seed=0)
    inner: Any = environment.unwrapped
    S, A = inner.observation_space.n, inner.action_space.n
    assert mdp.A == A
    if name in SIZES:
        assert (mdp.S, int(mdp.terminal.sum())) == SIZES[name]
    rewards = np.zeros(mdp.P.nnz) if mdp.transition_rewards is None else mdp.transition_rewards
    tries = 12 if len(mdp.P.indices) > (~mdp.terminal).sum() * A else 1
    for s, a in itertools.product(np.flatnonzero(~mdp.terminal), range(A)):
        row = slice(mdp.P.indptr[s * A + a], mdp.P.indptr[s * A + a + 1])
        outcomes = dict(zip(mdp.P.indices[row].tolist(), rewards[row].tolist(), strict=True))
        for _ in range(tries):
            inner.s = int(s)
            after, reward, terminated, *_ = inner.step(a)
            reached = after if after in outcomes and mdp.terminal[after] == terminated else S
            possible = {r for p, t, r, end in inner.P[s][a] if p > 0 and (t, end) == (after, terminated)}
            assert reward in possible
            if len(possible) == 1:  # else the reward of (s, a, s') is a mean, and R[s, a] is checked below
                assert outcomes[reached] == pytest.approx(reward)
            assert mdp.terminal[reached] == terminated
        assert mdp.R[s, a] == pytest.approx(sum(p * r for p, _, r, _ in (inner.P[s][a] if s < S else ())))
    environment.close()


def test_episodes_of_the_real_environment_earn_the_computed_value() -> None:
    mdp = mdps.from_gymnasium("FrozenLake-v1", gamma=0.9, is_slippery=True)
    policy = mdps.greedy(mdp.optimal_q())
    environment = gymnasium.make("FrozenLake-v1", is_slippery=True, max_episode_steps=400)
    rng, returns = np.random.default_rng(1), []
    for episode in range(1500):
        state, _ = environment.reset(seed=episode)
        total, discount, over = 0.0, 1.0, False
        while not over:
            state, reward, terminated, truncated, _ = environment.step(int(rng.choice(4, p=policy[state])))
            total, discount, over = total + discount * float(reward), discount * 0.9, terminated or truncated
        returns.append(total)
    environment.close()
    truth = mdp.start @ mdp.optimal_q().max(axis=1)
    assert abs(np.mean(returns) - truth) <= 4 * np.std(returns) / np.sqrt(len(returns))


def test_known_optima() -> None:
    """The cliff has its 13 steps; and the FrozenLake without ice six, the last of which earns 1."""
    cliff = mdps.from_gymnasium("CliffWalking-v1", gamma=1.0)
    ours = mdps.cliff()
    assert cliff.start @ cliff.optimal_q().max(axis=1) == pytest.approx(-13)
    assert ours.start @ ours.optimal_q().max(axis=1) == pytest.approx(-13)
    dry = mdps.from_gymnasium("FrozenLake-v1", gamma=0.5, is_slippery=False)
    assert dry.start @ dry.optimal_q().max(axis=1) == pytest.approx(0.5**5)


@pytest.mark.parametrize(
    ("name", "options"),
    [("FrozenLake-v1", {"seed": seed}) for seed in range(6)]  # maps with holes that nobody can fall into
    + [("CliffWalkingSlippery-v1", {}), ("Taxi-v4", {"is_rainy": True})],
)
def test_values_are_those_of_the_raw_table(name: str, options: dict[str, Any]) -> None:
    """Value iteration on Gymnasium's own lists, where the end belongs to a transition."""
    if "seed" in options:
        options = {"desc": frozen_lake.generate_random_map(5, 0.6, options["seed"])}
    environment = gymnasium.make(name, **options)
    table: Any = environment.unwrapped.P  # pyright: ignore[reportAttributeAccessIssue]
    mdp, v = mdps.from_gymnasium(environment, gamma=0.5), np.zeros(len(table))
    for _ in range(60):
        v = np.array(
            [
                max(sum(p * (r + 0.5 * v[t] * (not end)) for p, t, r, end in table[s][a]) for a in table[s])
                for s in range(len(v))
            ]
        )
    acts = ~mdp.terminal[: len(v)]
    np.testing.assert_allclose(mdp.optimal_q().max(axis=1)[: len(v)][acts], v[acts], atol=1e-12)
    environment.close()


def test_an_environment_may_be_given_as_an_object() -> None:
    environment = gymnasium.make("FrozenLake-v1", is_slippery=False)
    assert mdps.from_gymnasium(environment) == mdps.from_gymnasium("FrozenLake-v1", is_slippery=False)
    with pytest.raises(TypeError, match=r"takes no further arguments, got \['is_slippery'\]"):
        mdps.from_gymnasium(environment, is_slippery=True)
    environment.close()


def test_what_has_no_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Blackjack-v1 does not publish its transitions"):
        mdps.from_gymnasium("Blackjack-v1")
    with pytest.raises(ValueError, match="CartPole-v1 does not publish"):
        mdps.from_gymnasium("CartPole-v1")
    with pytest.raises(ValueError, match="fickle_passenger=True is no MDP in its state"):
        mdps.from_gymnasium("Taxi-v4", fickle_passenger=True)
    with pytest.raises(TypeError, match="must be a name or a Gymnasium environment, got int"):
        mdps.from_gymnasium(3)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[gymnasium\]'"):
        mdps.from_gymnasium("FrozenLake-v1")
