"""The compiled loop against the paper's Algorithm 1 by definition, for every trace."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import offtrace as ot
from helpers import name_of
from learners import by_definition
from learners.settings import LEARNERS, policies, world
from offtrace.learners import (
    EpsilonGreedy,
    Exponential,
    Harmonic,
    Linear,
    Replay,
    Softmax,
    control,
    evaluate,
)
from offtrace.mdps import MDP, bifurcation, garnet, random_policy
from offtrace.returns import by_definition as oracle


def assert_equal(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-10 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("trace", LEARNERS, ids=name_of)
def test_evaluation_online(trace: ot.Trace) -> None:
    mdp = world()
    pi, mu = policies(mdp)
    same: dict[str, Any] = {"alpha": 0.1, "steps": 60, "limit": 40, "seed": 3, "q0": 0.5}
    found = evaluate(trace, mdp, target=pi, behavior=mu, certify=False, **same)
    lived = by_definition.learn(trace, mdp, behavior=mu, target=pi, **same)
    first = [v.s * mdp.A + v.a for v in lived.visits[:40]]
    assert len(set(first)) < mdp.pairs < len(first)  # repeated visits
    assert_equal(found.Q, lived.Q)


CONTROL: dict[str, dict[str, Any]] = {
    "ε-greedy": {
        "behavior": EpsilonGreedy(Linear(0.9, 0.2, over=3)).exploring(1),
        "target": EpsilonGreedy(0.1),
        "alpha": 0.1,
    },
    "softmax": {
        "behavior": Softmax(Exponential(2.0, 0.99, last=0.5, by="step")),
        "target": Softmax(Harmonic(1.0)).exploring(1),
        "alpha": Harmonic(0.2, half=100, by="step"),
    },
    "greedy": {"behavior": EpsilonGreedy(Harmonic(1.0, half=20, by="step")), "target": Softmax(0.0), "alpha": "1/N"},
}


@pytest.mark.parametrize("how", CONTROL)
@pytest.mark.parametrize("trace", LEARNERS, ids=name_of)
def test_control_online(trace: ot.Trace, how: str) -> None:
    mdp = world(seed=1, gamma=0.9)
    same = CONTROL[how] | {"steps": 45, "limit": 25, "seed": 5, "spread": 0.1}
    assert_equal(control(trace, mdp, **same).Q, by_definition.learn(trace, mdp, **same).Q)


@pytest.mark.parametrize("gridworld", [1, 2, 3, 4])
@pytest.mark.parametrize("trace", [ot.Retrace(), ot.NonMarkovRetrace(lam=0.9), ot.TruncatedIS(lam=0.9)], ids=name_of)
def test_ties_in_a_gridworld(trace: ot.Trace, gridworld: int) -> None:
    same: dict[str, Any] = {"behavior": EpsilonGreedy(0.2), "target": EpsilonGreedy(0.0), "alpha": 0.5, "steps": 60}
    mdp = bifurcation(gridworld)
    assert_equal(control(trace, mdp, **same).Q, by_definition.learn(trace, mdp, **same).Q)


@st.composite
def problems(draw: Any) -> tuple[MDP, dict[str, Any]]:
    """Small Garnets, policies that are nearly or quite deterministic, all ways to update, any γ."""
    states, actions = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    terminal = draw(st.integers(0, min(1, states - 1)))
    gamma = draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))
    mdp = garnet(states, actions, draw(st.integers(1, states)), draw(st.integers(0, 99)), gamma, terminal)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    pi = random_policy(mdp, rng, concentration=0.3)
    if draw(st.booleans()):
        pi = np.eye(actions)[rng.integers(actions, size=states)]
    table = 0.2 / actions + 0.8 * random_policy(mdp, rng)
    target = draw(st.sampled_from([EpsilonGreedy(0.1), Softmax(0.5), pi]))
    behavior = draw(st.sampled_from([EpsilonGreedy(0.4).exploring(1), Softmax(1.0), table]))
    update = draw(st.sampled_from(["online", "offline", "replay"]))
    given: dict[str, Any] = {"behavior": behavior, "target": target, "update": update}
    given |= {"alpha": draw(st.sampled_from([0.05, "1/N", Harmonic(0.3)])), "spread": 0.2}
    given |= {"seed": draw(st.integers(0, 2**40)), "limit": draw(st.sampled_from([None, 1, 7, 40]))}
    given |= {"steps": draw(st.integers(1, 50))}
    if given["limit"] and draw(st.booleans()):
        given |= {"steps": None, "episodes": max(1, given["steps"] // given["limit"])}
    return mdp, given


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from([t for t in LEARNERS if not isinstance(t, ot.VariableLambda)]), st.data())
def test_everything(problem: tuple[MDP, dict[str, Any]], trace: ot.Trace, data: Any) -> None:
    mdp, same = problem
    memory = data.draw(
        st.builds(Replay, *(st.sampled_from(choice) for choice in ([3, 10, 1000], [1, 4], [1, 2], [1, 5, 40])))
    )
    wanted = by_definition.learn(trace, mdp, replay=memory, **same).Q
    if not np.abs(wanted).max() < 1e3:
        return  # it diverges: rounding decides where it goes
    update = memory if same["update"] == "replay" else same["update"]
    found = control(trace, mdp, truth=np.zeros((mdp.S, mdp.A)), **same | {"update": update})
    assert_equal(found.Q, wanted)


def corrections(trace: Any, visits: list[by_definition.Visit], mdp: MDP) -> np.ndarray:
    """Σ_k Δ_k at each pair, by the definition of corrections on the whole trajectory."""
    arrays = {
        "reward": np.array([v.reward for v in visits]),
        "q": np.array([v.q for v in visits]),
        "next_value": np.array([v.next_value for v in visits]),
        "terminated": np.array([v.terminated for v in visits]),
        "truncated": np.array([v.truncated for v in visits]),
        "pair": np.array([v.s * mdp.A + v.a for v in visits]),
    }
    with np.errstate(divide="ignore"):
        arrays |= {"log_pi": np.log([v.pi for v in visits]), "log_mu": np.log([v.mu for v in visits])}
        arrays["greedy"] = np.array([v.greedy for v in visits])
    if isinstance(trace, ot.VariableLambda):
        trace = ot.VariableLambda(lam=trace.lam.ravel()[arrays["pair"]])
    Δ, _ = oracle.corrections(trace, gamma=mdp.gamma, **arrays)
    return np.bincount(arrays["pair"], Δ, minlength=mdp.pairs).reshape(mdp.S, mdp.A)


@pytest.mark.parametrize("trace", LEARNERS, ids=name_of)
def test_offline_is_corrections_by_pair(trace: ot.Trace) -> None:
    mdp = world(seed=2)
    pi, mu = policies(mdp)
    q0 = np.random.default_rng(0).normal(size=(mdp.S, mdp.A))
    same: dict[str, Any] = {"alpha": 0.1, "episodes": 1, "limit": 30, "q0": q0, "update": "offline", "seed": 1}
    found = evaluate(trace, mdp, target=pi, behavior=mu, certify=False, **same)
    visits = by_definition.learn(trace, mdp, behavior=mu, target=pi, **same).visits
    assert len(visits) > 20
    assert_equal(found.Q, q0 + 0.1 * corrections(trace, visits, mdp))


@pytest.mark.parametrize("trace", LEARNERS, ids=name_of)
def test_replay_is_corrections_of_what_was_drawn(trace: ot.Trace) -> None:
    mdp, memory = world(seed=2), Replay(capacity=30, every=9, batch=2, length=20)
    pi, mu = policies(mdp)
    same: dict[str, Any] = {"alpha": 0.02, "steps": 60, "limit": 40, "q0": 0.2, "seed": 1}
    found = evaluate(trace, mdp, target=pi, behavior=mu, certify=False, update=memory, **same)
    lived = by_definition.learn(trace, mdp, behavior=mu, target=pi, update="replay", replay=memory, **same)
    after = [*lived.before[1:], found.Q]
    for before, sequence, Q in zip(lived.before, lived.drawn, after, strict=True):
        assert_equal(Q, before + 0.02 * corrections(trace, sequence, mdp))
    assert max(map(len, lived.drawn)) == 20
