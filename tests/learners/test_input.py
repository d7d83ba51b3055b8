"""Bad input: a clear error, before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace.learners import (
    EpsilonGreedy,
    Evaluation,
    Exponential,
    Harmonic,
    Linear,
    Replay,
    Softmax,
    control,
    evaluate,
)
from offtrace.mdps import MDP, alternating, random_walk, uniform

MDP_ = random_walk(3, gamma=0.9)
U = uniform(MDP_)
RIGHT = np.tile([0.0, 1.0], (MDP_.S, 1))
GOOD: dict[str, Any] = {"trace": ot.Retrace(), "target": U, "behavior": U, "steps": 10**12}


def told(given: object) -> str:
    """The id of a case: what the error says. That of the arguments would hold addresses."""
    return given if isinstance(given, str) else ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 1.5}, "steps must be an integer, got 1.5"),
        ({"steps": None}, "give either steps or episodes, got steps=None and episodes=None"),
        ({"episodes": 3}, "give either steps or episodes"),
        ({"steps": None, "episodes": 0}, "episodes must be at least 1"),
        ({"alpha": 0}, "alpha must be above 0, got 0"),
        ({"alpha": -0.1}, "alpha must be finite and not negative, got -0.1"),
        ({"alpha": float("nan")}, "alpha must be finite"),
        ({"alpha": "1/k"}, 'alpha must be a number, a schedule or "1/N"'),
        ({"alpha": [0.1]}, "alpha must be a number or a schedule"),
        ({"alpha": Linear(0.0, 1.0, over=3)}, "alpha must be above 0"),
        ({"trace": "retrase"}, "there is no learning method named 'retrase'; did you mean 'Retrace'"),
        ({"trace": ot.PengQ(), "values": "state"}, "has no ratios, and no method on state values"),
        ({"trace": ot.Retrace}, "Retrace"),
        (
            {"trace": ot.VariableLambda(lam=np.ones((2, 2)))},
            r"one number for each pair, \[4, 2\], got an array of shape",
        ),
        ({"target": U[:-1]}, r"target has shape \(3, 2\): a policy here is \[S, A\]"),
        ({"behavior": U * 2}, "behavior in state 0 is .* sums to 2"),
        ({"behavior": U * 0}, "behavior in state 0 is .* sums to 0"),
        ({"target": None}, "target is missing"),
        ({"behavior": RIGHT}, "behavior never takes action 0 in state 1, but target may"),
        ({"gamma": 0.5}, "gamma is 0.5, but the MDP has its own, 0.9"),
        ({"q0": np.zeros(3)}, r"q0 must be a number or an array \[S, A\] = \(4, 2\), got shape \(3,\)"),
        ({"q0": np.nan}, "q0 must be finite"),
        ({"q0": np.full((4, 2), np.inf)}, "q0 must be finite"),
        ({"spread": -1}, "spread must be a standard deviation"),
        ({"update": "batch"}, 'update must be "online", "offline", "replay"'),
        ({"update": Replay(length=0)}, "Replay.length must be at least 1"),
        ({"update": Replay(capacity=1.5)}, "Replay.capacity must be an integer"),  # pyright: ignore
        ({"points": 0}, "points must be at least 1"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"truth": np.zeros((2, 2))}, r"truth must be an array \[S, A\]"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"threads": 0}, "threads must be an integer of at least 1"),
        ({"threads": 1.5}, "threads must be an integer of at least 1"),
        ({"features": np.ones(4)}, r"features .*must be a finite array \[S, d\]"),
    ],
    ids=told,
)
def test_evaluate_refuses(change: dict[str, Any], message: str) -> None:
    given = GOOD | change  # it runs for so many steps that it would never come back
    with pytest.raises((ValueError, TypeError), match=message):
        evaluate(given.pop("trace"), MDP_, **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"behavior": EpsilonGreedy(1.5)}, r"epsilon must lie in \[0, 1\]"),
        ({"behavior": EpsilonGreedy(-0.5)}, "epsilon must be finite and not negative, got -0.5"),
        ({"behavior": EpsilonGreedy(Linear(2.0, 0.1, over=10))}, r"epsilon must lie in \[0, 1\]"),
        ({"behavior": EpsilonGreedy("0.1")}, "epsilon must be a number or a schedule"),  # pyright: ignore
        ({"behavior": EpsilonGreedy(0.1).exploring(-1)}, "explore must be a number of episodes"),
        ({"target": Softmax(-1.0)}, "temperature must be finite and not negative"),
        ({"target": "greedy"}, "target must be EpsilonGreedy"),
        ({"behavior": len}, "behavior must be EpsilonGreedy"),
        ({"behavior": RIGHT}, "behavior never takes action 0 in state 1, but target may"),
        ({"behavior": RIGHT, "target": U}, "behavior never takes action 0 in state 1, but target may"),
        ({"evaluation": 0.1}, "evaluation must be an Evaluation"),
        ({"evaluation": Evaluation(every=0)}, "evaluation.every must be at least 1"),
        ({"evaluation": Evaluation(policy="greedy")}, "evaluation.policy must be EpsilonGreedy"),
    ],
    ids=told,
)
def test_control_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        control(ot.Retrace(), MDP_, **{"behavior": EpsilonGreedy(0.1), "steps": 10**12} | change)


@pytest.mark.parametrize("learn", [evaluate, control])
def test_the_trace_comes_first(learn: Any) -> None:
    name = learn.__name__
    for order in ((MDP_, ot.Retrace()), (MDP_, "retrace"), ("FrozenLake-v1", ot.Retrace())):
        with pytest.raises(TypeError, match=rf"{name} takes the trace first: {name}\(trace, env, …\)"):
            learn(*order, target=U, behavior=U, steps=10)


def test_a_generator_draws_the_seed() -> None:
    run: dict[str, Any] = {"target": U, "behavior": U, "steps": 100, "seeds": 2}
    one, same = (evaluate(ot.Retrace(), MDP_, seed=np.random.default_rng(3), **run) for _ in range(2))
    np.testing.assert_array_equal(one.Q, same.Q)
    rng = np.random.default_rng(3)
    first, second = (evaluate(ot.Retrace(), MDP_, seed=rng, **run).seeds for _ in range(2))
    np.testing.assert_array_equal(first, one.seeds)
    assert first[0] != second[0]


def test_schedules_refuse() -> None:
    for make in (
        lambda: Linear(1.0, 0.1, over=0),
        lambda: Linear(-1.0, 0.1, over=5),
        lambda: Harmonic(1.0, half=0),
        lambda: Harmonic(1.0, by="year"),
        lambda: Exponential(1.0, 1.5),
        lambda: Exponential(np.inf, 0.5),
    ):
        with pytest.raises(ValueError, match="must"):
            make()


def test_episodes_must_end() -> None:
    mdp, pi, mu = alternating()
    with pytest.raises(ValueError, match="an episode may never end: from state 0"):
        evaluate(ot.Retrace(), mdp, target=pi, behavior=mu, episodes=3)
    evaluate(ot.Retrace(), mdp, target=pi, behavior=mu, episodes=3, limit=10)
    # Two states of which only action 1 leads out: a μ that never takes it stays for ever.
    P = np.zeros((2, 2, 2))
    P[0, 0, 0] = P[0, 1, 1] = 1.0
    mdp, stay = MDP(P, np.ones((2, 2)) * [[1.0], [0.0]], 0.9), np.array([[1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match="an episode may never end"):
        evaluate(ot.Retrace(), mdp, target=stay, behavior=stay, episodes=3)
    control(ot.Retrace(), mdp, behavior=EpsilonGreedy(0.5), episodes=3)


def test_support_matters_only_where_mu_comes() -> None:
    """From the middle, μ goes right only: what it would do on the left is nobody's business."""
    mu, pi = RIGHT.copy(), RIGHT.copy()
    pi[0] = [1.0, 0.0]
    assert evaluate(ot.Retrace(), MDP_, target=pi, behavior=mu, steps=10).steps == 10
