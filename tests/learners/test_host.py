"""Learners in Gymnasium environments, and traces that are Python functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import name_of
from offtrace.learners import EpsilonGreedy, Evaluation, Harmonic, Replay, TileCoding, control, evaluate
from offtrace.learners.environments import Environment
from offtrace.mdps import from_gymnasium, garnet, uniform

gymnasium = pytest.importorskip("gymnasium")

Mode = gymnasium.vector.AutoresetMode

TRACES = [ot.Retrace(lam=0.9), ot.RBIS(lam=0.9), ot.NonMarkovRetrace(lam=0.8), ot.TruncatedIS(bound=1.5, lam=0.9)]
CARTPOLE = TileCoding(tilings=8, bins=6, low=(None, -3, None, -3.5), high=(None, 3, None, 3.5))


class Table(gymnasium.Env):
    """A deterministic corridor of 6 with two actions, numbered from 10 on: nothing is drawn, so draws are the learner's."""

    observation_space = gymnasium.spaces.Discrete(6, start=10)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return 10 + self.at, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (5, 6)
        self.at += 1 if action == 6 else -1 if self.at else 0
        return 10 + self.at, -1.0 - 0.1 * self.at, self.at == 5, False, {}


def table_mdp() -> ot.mdps.MDP:
    P, R = np.zeros((6, 2, 6)), np.zeros((6, 2))
    for s in range(5):
        for a, to in enumerate((max(s - 1, 0), s + 1)):
            P[s, a, to], R[s, a] = 1.0, -1.0 - 0.1 * to
    P[5, :, 5] = 1.0
    return ot.mdps.MDP(P, R, 0.95, np.eye(6)[0], np.arange(6) == 5)


@pytest.mark.parametrize("trace", TRACES, ids=name_of)
@pytest.mark.parametrize("update", ["online", "offline", Replay(capacity=50, every=3, length=7)], ids=str)
def test_equals_the_compiled_loop_to_the_bit(trace, update, monkeypatch):
    one = Environment.world.__get__  # an MDP draws its first state, even where there is only one

    def without_draw(self):
        world = one(self)
        rows = world.rows.copy()
        rows[-1] = rows[-2] + 1  # the first state is the only one from which an episode may start
        return world._replace(rows=rows)

    monkeypatch.setattr(Environment, "world", property(without_draw))
    same: dict[str, Any] = {
        "behavior": EpsilonGreedy(Harmonic(1.0, half=20)),
        "target": EpsilonGreedy(0.1),
        "update": update,
        "steps": 400,
        "limit": 40,
        "spread": 0.1,
        "seeds": 3,
        "points": 7,
        "evaluation": Evaluation(EpsilonGreedy(0.2), every=3, limit=20),
    }
    inside, outside = control(trace, table_mdp(), **same), control(trace, Table, gamma=0.95, **same)
    np.testing.assert_array_equal(inside.weights, outside.weights)
    np.testing.assert_array_equal(inside.curve.returns, outside.curve.returns)
    np.testing.assert_array_equal(inside.curve.steps, outside.curve.steps)
    for a, b in zip(inside.evaluations, outside.evaluations, strict=True):
        np.testing.assert_array_equal(a, b)
    alone = control(trace, Table(), gamma=0.95, **(same | {"seeds": None, "seed": 2}))
    np.testing.assert_array_equal(alone.Q, outside.Q[2])
    np.testing.assert_array_equal(alone.q(13), outside.Q[2, 3])


@pytest.mark.whole
def test_evaluate_finds_the_exact_values_of_the_table():
    mdp = from_gymnasium("FrozenLake-v1", gamma=0.9)
    rng = np.random.default_rng(0)
    pi = rng.dirichlet([2.0] * 4, 16)
    learned = evaluate(
        ot.Retrace(), "FrozenLake-v1", target=pi, behavior=uniform(mdp), gamma=0.9, alpha="1/N", steps=60_000
    )
    error = (learned.Q - mdp.q(pi))[~mdp.terminal]
    assert np.sqrt(np.mean(error**2)) < 0.03  # a tenth of the values; the MDP's own learner has 0.02
    assert np.abs(error[0]).max() < 0.01  # the first state is visited most


@pytest.mark.whole
def test_control_beats_chance():
    learned = control(
        ot.RBIS(lam=0.9),
        "FrozenLake-v1",
        behavior=EpsilonGreedy(0.3),
        gamma=0.99,
        alpha=0.1,
        steps=30_000,
        evaluation=Evaluation(every=20, limit=200),
    )
    _, returns = learned.evaluations[0]
    assert returns[-30:].mean() > 0.15  # the uniform policy has 0.01


def test_time_limits_are_kept():
    spoon = control(
        ot.Retrace(lam=0.9), "CliffWalking-v1", behavior=EpsilonGreedy(0.1), gamma=0.9, episodes=20, limit=10
    )
    assert spoon.steps <= 200
    assert spoon.episodes == 20
    car = control(
        ot.OneStep(), "MountainCar-v0", behavior=EpsilonGreedy(1.0), gamma=0.9, episodes=3, features=TileCoding()
    )
    assert car.steps == 600  # truncated by Gymnasium, after 200 each


class Cut(gymnasium.Env):
    """Truncated after one step, at an observation that is never the first of an episode."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0 if self.np_random.random() < 0.5 else 1
        return self.at, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return self.at, 1.0, False, self.at == 2, {}


MODES = [None, Mode.NEXT_STEP, Mode.SAME_STEP, Mode.DISABLED]


def many(mode: Any, n: int, of: Any = Cut) -> Any:
    return of if mode is None else lambda: gymnasium.vector.SyncVectorEnv([of] * n, autoreset_mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 5])
def test_truncation_bootstraps_from_the_true_last_observation(mode, n):
    """q0 of observation 2 is 10 and stays: q(1) → 1 + 10γ. A learner that took the reset for a step would spoil it."""
    q0 = np.array([[0.0], [0.0], [10.0]])
    learned = control(
        ot.Retrace(lam=0.5), many(mode, n), behavior=EpsilonGreedy(0.0), gamma=0.5, alpha=0.5, q0=q0, steps=400
    )
    np.testing.assert_allclose(learned.Q[:, 0], [1 + 0.5 * 6, 6, 10], atol=1e-9)
    assert learned.steps == 400


@pytest.mark.parametrize("update", ["online", "offline", Replay(capacity=64, every=2, length=9)], ids=str)
def test_one_copy_is_the_environment_itself(update):
    same: dict[str, Any] = {
        "behavior": EpsilonGreedy(0.3),
        "gamma": 0.97,
        "alpha": 0.3,
        "steps": 2000,
        "update": update,
        "evaluation": Evaluation(every=5, limit=30),
    }
    made = lambda: gymnasium.make("FrozenLake-v1")  # noqa: E731
    expected = control(ot.RBIS(lam=0.9), made, **same)
    assert np.abs(expected.Q).sum() > 0
    for mode in MODES[1:]:
        learned = control(ot.RBIS(lam=0.9), many(mode, 1, made), **same)
        np.testing.assert_array_equal(learned.Q, expected.Q)
        np.testing.assert_array_equal(learned.evaluations[0], expected.evaluations[0])


@pytest.mark.parametrize("update", ["online", "offline", Replay(every=2)], ids=str)
def test_many_copies_feed_one_learner(update):
    same: dict[str, Any] = {
        "behavior": EpsilonGreedy(0.3),
        "gamma": 0.95,
        "alpha": 0.2,
        "steps": 4000,
        "update": update,
    }
    results = [control(ot.RBIS(lam=0.9), many(mode, 4, Table), **same) for mode in MODES[1:]]
    for learned in results:
        assert learned.steps == 4000
        assert (learned.Q.argmax(axis=1)[:5] == 1).all()
    if update != "offline":  # what is unfinished when steps are over differs
        np.testing.assert_array_equal(results[1].Q, results[2].Q)  # the same episodes, whoever resets them
    again = control(ot.RBIS(lam=0.9), many(Mode.NEXT_STEP, 4, Table), **same, seeds=2)
    np.testing.assert_array_equal(again.Q[0], results[0].Q)
    assert not np.array_equal(again.curve.returns[1], again.curve.returns[0])


def test_copies_that_gymnasium_makes_are_evaluated():
    """`make_vec` leaves no functions that make a copy."""
    copies = lambda: gymnasium.make_vec("FrozenLake-v1", num_envs=3, vectorization_mode="sync")  # noqa: E731
    learned = control(
        ot.Retrace(lam=0.9), copies, behavior=EpsilonGreedy(0.5), gamma=0.9, steps=300, evaluation=Evaluation(limit=9)
    )
    assert len(learned.evaluations[0][0]) == learned.episodes > 5


def test_blackjack_is_a_table():
    learned = control(ot.OneStep(), "Blackjack-v1", behavior=EpsilonGreedy(1.0), gamma=1.0, alpha="1/N", steps=15_000)
    assert learned.Q.shape == (32 * 11 * 2, 2)
    stick, hit = learned.q((20, 10, 0))
    assert stick > hit
    stick, hit = learned.q((8, 10, 0))
    assert hit > stick
    with pytest.raises(ValueError, match="an observation here"):
        learned.q((40, 1, 0))


class Unsavable(Table):
    """Holds a generator."""

    def __init__(self) -> None:
        self.held = (i for i in range(3))


class Failing(Table):
    """Breaks at its third step."""

    count = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        if self.count == 3:
            raise ZeroDivisionError("in the environment")
        return super().step(action)


class Wrong(Table):
    """Observes what its space does not hold, and NaN rewards."""

    reward = 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (10 if self.reward else 99), self.reward, False, False, {}


class Continuous(Table):
    """Its actions are numbers."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0)


class Nowhere(gymnasium.Env):
    """Its observations become NaN."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, np.nan), 0.0, False, False, {}


def test_bad_input():
    def run(env: Any, **given: Any) -> Any:
        given = {"trace": ot.Retrace(), "behavior": EpsilonGreedy(0.1), "gamma": 0.9, "steps": 10} | given
        return control(given.pop("trace"), env, **given)

    with pytest.raises(ValueError, match="gamma is missing"):
        run(Table, gamma=None)
    with pytest.raises(ValueError, match="gamma must lie"):
        run(Table, gamma=1.5)
    with pytest.raises(TypeError, match="learners need Discrete actions"):
        run(Continuous)
    with pytest.raises(TypeError, match="give features=TileCoding"):
        run("CartPole-v1")
    with pytest.raises(ValueError, match=r"dimension 1, 3 of the observations has no bounds"):
        run("CartPole-v1", features=TileCoding())
    with pytest.raises(TypeError, match="TileCoding is for Box"):
        run("FrozenLake-v1", features=TileCoding())
    with pytest.raises(TypeError, match="env must be an MDP"):
        run(3)
    with pytest.raises(TypeError, match="was to make a Gymnasium environment"):
        run(lambda: 3)
    with pytest.raises(gymnasium.error.NameNotFound):
        run("FrozenLak-v1")
    with pytest.raises(ValueError, match="too many for a table"):
        run(lambda: _with(Table(), observation_space=gymnasium.spaces.MultiDiscrete([2000, 2000])))
    with pytest.raises(ValueError, match="learners take Discrete"):
        run(lambda: _with(Table(), observation_space=gymnasium.spaces.Text(3)))
    with pytest.raises(ValueError, match="begins anew by itself"):
        run(many(Mode.NEXT_STEP, 2), limit=5)
    with pytest.raises(ValueError, match="takes no vector environments"):
        run(many(Mode.DISABLED, 2), trace=ot.HistoryTrace(lambda h: 1.0))
    with pytest.raises(ValueError, match="which have no numbers with tile coding"):
        run("CartPole-v1", features=CARTPOLE, trace=ot.replacing(0.9))
    with pytest.raises(TypeError, match="with features, states have no numbers"):
        run("CartPole-v1", features=CARTPOLE, behavior=np.full((3, 2), 0.5))
    with pytest.raises(TypeError, match="give a function that makes it"):
        run(Unsavable())
    with pytest.raises(ZeroDivisionError, match="in the environment"):
        run(Failing)
    with pytest.raises(ValueError, match="an observation here is in"):
        run(Wrong)
    with pytest.raises(ValueError, match="a reward that is not finite"):
        run(lambda: _with(Wrong(), reward=float("nan")))
    with pytest.raises(ValueError, match="an observation that is not a number"):
        run(Nowhere, features=TileCoding())
    assert run(many(Mode.DISABLED, 2), limit=5).steps == 10


def _with(env: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(env, name, value)
    return env


HISTORIES = [
    (ot.HistoryTrace(lambda h: float(min(1.5, h.rho[1:].prod())) * 0.9 ** (len(h.rho) - 1)), TRACES[3]),
    (
        ot.HistoryTrace(lambda h: 0.9 ** (len(h.rho) - 1) * np.minimum(1, h.rho[1:]).prod(), horizon=3),
        ot.Retrace(lam=0.9, horizon=3),
    ),
    (
        ot.HistoryTrace(
            lambda h: 0.0 if h.pair[0] in h.pair[1:] else float((h.pi / h.mu)[1:].prod()) * 0.8 ** (len(h.pi) - 1),
            reads=("pi", "mu", "pair"),
        ),
        ot.replacing(0.8),
    ),
]


@pytest.mark.parametrize("pair", HISTORIES, ids=["TruncatedIS", "Retrace", "replacing"])
@pytest.mark.parametrize("update", ["online", "offline", Replay(every=5)], ids=str)
def test_traces_as_functions_equal_their_compiled_twins(pair, update):
    mdp = garnet(5, 2, 3, gamma=0.9, seed=1, terminal=1)
    rng = np.random.default_rng(2)
    pi, mu = rng.dirichlet([3.0, 3.0], 5), rng.dirichlet([9.0, 9.0], 5)
    one, other = (
        evaluate(t, mdp, target=pi, behavior=mu, alpha=0.1, steps=300, limit=20, update=update, seeds=2, certify=False)
        for t in pair
    )
    np.testing.assert_allclose(one.Q, other.Q, rtol=0, atol=1e-12)


def test_errors_of_functions_are_theirs():
    mdp = garnet(5, 2, 3, gamma=0.9, seed=1)

    def run(beta: Any) -> Any:
        return evaluate(ot.HistoryTrace(beta), mdp, target=uniform(mdp), behavior=uniform(mdp), steps=20, certify=False)

    with pytest.raises(KeyError, match="mine"):
        run(lambda h: {}["mine"])
    with pytest.raises(ValueError, match="negative or not finite"):
        run(lambda h: -1.0)
    seen: list[Any] = []
    run(lambda h: float(seen.append(h.rho) or 1.0))
    assert all(x[0] > 0 for x in seen)  # ρ of the start is known too
