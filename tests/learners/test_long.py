"""Episodes of thousands of steps: starts are gathered and forgotten, slots given up, the stack sinks; `ot.Stream` knows it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import name_of
from learners import by_definition
from offtrace.learners import evaluate, run
from offtrace.mdps import MDP

LONG: list[ot.Trace] = [
    ot.Retrace(lam=0.95),
    ot.ImportanceSampling(lam=0.9),
    ot.NonMarkovRetrace(lam=0.99),
    ot.NonMarkovRetrace(lam=1.0),
    ot.RBIS(lam=0.95),
    ot.RBIS(lam=1.0),
    ot.HistoryBounded(bound=0.8),
    ot.HistoryBounded(bound=3.0),
    ot.HistoryBounded(bound=1e6),
    ot.TruncatedIS(bound=1.5),
    ot.TruncatedIS(bound=(0.5, 2.0), lam=0.9),
    ot.NonMarkovRetrace(lam=0.9, horizon=50),
    ot.count_dependent(lam=0.9),
]


def ring(states: int, gamma: float, stay: dict[int, float] | None = None) -> MDP:
    """A long way round: one action goes on, one may stay. In the states of `stay` both do, with these probabilities."""
    P = np.zeros((states, 2, states))
    for s in range(states):
        P[s, 0, (s + 1) % states] = 1.0
        P[s, 1, s] = P[s, 1, (s + 1) % states] = 0.5
    for s, p in (stay or {}).items():
        P[s, :, s], P[s, :, (s + 1) % states] = p, 1.0 - p
    R = np.random.default_rng(0).normal(size=(states, 2))
    return MDP(P, R, gamma, np.eye(states)[0], np.zeros(states, bool))


def by_stream(mdp: MDP, trace: ot.Trace, pi: np.ndarray, mu: np.ndarray, steps: int, seed: int) -> np.ndarray:
    """Algorithm 1 with the eligibility of `ot.Stream`, one step after another."""
    draws, stream, Q = by_definition.SplitMix(seed), ot.Stream(trace, mdp.pairs), np.zeros((mdp.S, mdp.A))
    s = draws.pick(mdp.start)
    for _ in range(steps):
        a = by_definition.inverse(draws.uniform(), mu[s])
        after, reward = by_definition._next(mdp, s, a, draws)
        step: dict[str, Any] = {"reward": reward, "q": Q[s, a], "next_value": pi[after] @ Q[after]}
        step |= {"log_pi": math.log(pi[s, a]) if pi[s, a] else -math.inf, "log_mu": math.log(mu[s, a])}
        change = stream.step(s * mdp.A + a, terminated=False, truncated=False, gamma=mdp.gamma, **step)
        Q += 0.1 * change.reshape(mdp.S, mdp.A)
        s = after
    return Q


def assert_as_by_stream(trace: ot.Trace, mdp: MDP, pi: np.ndarray, steps: int) -> None:
    mu = np.full((mdp.S, 2), 0.5)
    found = evaluate(trace, mdp, target=pi, behavior=mu, alpha=0.1, steps=steps, seed=4, certify=False, points=1)
    wanted = by_stream(mdp, trace, pi, mu, steps, seed=4)
    assert np.abs(found.Q - wanted).max() <= 1e-10 * np.abs(wanted).max()


@pytest.mark.parametrize("near", [True, False], ids=["π = μ nearly", "π far from μ"])
@pytest.mark.parametrize("trace", LONG, ids=name_of)
def test_an_episode_of_thousands_of_steps(trace: ot.Trace, near: bool) -> None:
    mdp, steps = ring(300, gamma=0.9), 900
    if near and isinstance(trace, ot.HistoryBounded):
        steps = 400  # `Stream` is slow here: with a cap above 1 it lifts many groups at each step
    pi = np.tile([0.5, 0.5] if near else [0.8, 0.2], (mdp.S, 1))
    pi[::50] = [0.7, 0.3]
    assert_as_by_stream(trace, mdp, pi, steps)


@pytest.mark.parametrize(
    "trace", [ot.NonMarkovRetrace(lam=0.99), ot.RBIS(lam=1.0), ot.HistoryBounded(bound=3.0)], ids=name_of
)
def test_an_action_that_cuts_all_traces_late_in_an_episode(trace: ot.Trace) -> None:
    """π = 0 in one state, where the starts have long been gathered into groups: they begin anew, and are gathered again."""
    mdp = ring(300, gamma=0.9)
    pi = np.tile([0.6, 0.4], (mdp.S, 1))
    pi[110] = [1.0, 0.0]
    assert_as_by_stream(trace, mdp, pi, steps=600)


@pytest.mark.parametrize("trace", [ot.Retrace(), ot.NonMarkovRetrace(), ot.RBIS()], ids=name_of)
def test_after_a_long_stay_slots_know_when_their_weights_were_visited(trace: ot.Trace) -> None:
    """Weights from before the stay are given up soon after it. A second time comes while those from after it still count."""
    mdp = ring(300, gamma=0.9, stay={60: 0.998})
    assert_as_by_stream(trace, mdp, np.tile([0.6, 0.4], (mdp.S, 1)), steps=1_000)


@pytest.mark.parametrize(
    "trace", [ot.Retrace(lam=0.9, horizon=3), ot.NonMarkovRetrace(lam=0.9), ot.RBIS(lam=0.9), ot.OneStep()], ids=name_of
)
def test_memory_does_not_grow_with_the_episode(trace: ot.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    grown, calls = run.grown, []
    monkeypatch.setattr(run, "grown", lambda *given: (calls.append(0), grown(*given))[1])
    mdp = ring(40, gamma=0.9)
    mu, pi = np.full((mdp.S, 2), 0.5), np.tile([0.6, 0.4], (mdp.S, 1))
    evaluate(trace, mdp, target=pi, behavior=mu, steps=200_000, points=1)
    assert len(calls) <= 5
