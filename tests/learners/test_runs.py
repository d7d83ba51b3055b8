"""What a run gives back, and that it depends on its seed alone; divergence; honesty about fixed points."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from learners.settings import policies, world
from offtrace.learners import (
    Constant,
    EpsilonGreedy,
    Evaluation,
    Exponential,
    Harmonic,
    Learned,
    Linear,
    Replay,
    Schedule,
    control,
    evaluate,
)
from offtrace.learners import run as running
from offtrace.mdps import MDP, alternating, bifurcation, random_walk, uniform


def assert_same(one: Learned, other: Learned) -> None:
    """Bit for bit."""
    np.testing.assert_array_equal(one.Q, other.Q)
    for name in ("steps", "error", "returns"):
        np.testing.assert_array_equal(getattr(one.curve, name), getattr(other.curve, name))
    for a, b in zip(one.evaluations, other.evaluations, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.steps, other.steps)
    np.testing.assert_array_equal(one.episodes, other.episodes)


RUN: dict[str, Any] = {
    "behavior": EpsilonGreedy(0.2).exploring(2),
    "target": EpsilonGreedy(0.1),
    "alpha": 0.2,
    "steps": 2000,
    "spread": 0.1,
    "evaluation": Evaluation(EpsilonGreedy(0.05), limit=20),
}
UPDATES = ["online", "offline", Replay(capacity=300, every=5, batch=2, length=20)]


@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_a_learner_depends_on_its_seed_alone(update: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mdp, trace = world(seed=4), ot.NonMarkovRetrace(lam=0.9)
    many = control(trace, mdp, **RUN, update=update, seed=10, seeds=7, threads=1)
    assert many.Q.shape == (7, mdp.S, mdp.A)
    assert list(many.seeds) == list(range(10, 17))
    assert len({Q.tobytes() for Q in many.Q}) == 7
    for threads in (2, 1):
        monkeypatch.setattr(running, "SLICE", 777)
        assert_same(control(trace, mdp, **RUN, update=update, seed=10, seeds=7, threads=threads), many)
    for i in (0, 3):
        alone = control(trace, mdp, **RUN, update=update, seed=10 + i)
        np.testing.assert_array_equal(alone.Q, many.Q[i])
        np.testing.assert_array_equal(alone.curve.returns, many.curve.returns[i])
        np.testing.assert_array_equal(alone.evaluations[0], many.evaluations[i])


def test_looking_does_not_change_a_learner() -> None:
    mdp = world(seed=4)
    blind: dict[str, Any] = RUN | {"evaluation": None}
    unseen = control(ot.RBIS(lam=0.9), mdp, **blind)
    seen = control(ot.RBIS(lam=0.9), mdp, **RUN)
    np.testing.assert_array_equal(unseen.Q, seen.Q)
    assert len(unseen.evaluations[0][0]) == 0
    assert len(seen.evaluations[0][0]) == seen.episodes


def test_evaluation_episodes_go_on_after_the_limit() -> None:
    """Three states in a row, one action, reward 1 at the end: at two steps an episode every second one sees the reward."""
    P = np.zeros((4, 1, 4))
    P[[0, 1, 2], 0, [1, 2, 3]] = 1.0
    mdp = MDP(P, [[0.0], [0.0], [1.0], [0.0]], 0.5, np.eye(4)[0])
    found = control(
        "retrace",
        mdp,
        behavior=EpsilonGreedy(0.0),
        episodes=6,
        evaluation=Evaluation(EpsilonGreedy(0.0), every=2, limit=2),
    )
    steps, returns = found.evaluations[0]
    np.testing.assert_array_equal(steps, [6, 12, 18])
    np.testing.assert_array_equal(returns, [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(found.curve.returns, np.full(6, 0.25))
    np.testing.assert_array_equal(found.curve.steps, 3 * np.arange(1, 7))


@pytest.mark.parametrize(("steps", "points", "wanted"), [(1000, 4, 4), (10, 100, 10), (7, 1, 1)])
def test_the_curve(steps: int, points: int, wanted: int) -> None:
    mdp = world(seed=4)
    pi, mu = policies(mdp)
    found = evaluate(ot.Retrace(), mdp, target=pi, behavior=mu, steps=steps, points=points, seeds=3)
    assert found.curve.steps.shape == found.curve.error.shape == found.curve.returns.shape == (3, wanted)
    assert (found.curve.steps[:, -1] == steps).all()
    acting = ~mdp.terminal
    rms = np.sqrt(((found.Q - mdp.q(pi))[:, acting] ** 2).mean(axis=(1, 2)))
    np.testing.assert_allclose(found.curve.error[:, -1], rms, rtol=1e-12)


def test_the_curve_knows_the_mixture_of_alpha_retrace() -> None:
    mdp = world(seed=4, gamma=0.8)
    pi, mu = policies(mdp)
    found = evaluate(
        ot.AlphaRetrace(mix=0.5), mdp, target=pi, behavior=mu, alpha=Harmonic(0.5, half=500, by="step"), steps=300_000
    )
    assert found.curve.error[-1] < 0.1
    assert np.abs(found.Q - mdp.q((pi + mu) / 2))[~mdp.terminal].max() < 0.3


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Constant(0.3), {0: 0.3, 7: 0.3}),
        (Linear(1.0, 0.2, over=4), {0: 1.0, 1: 0.8, 4: 0.2, 9: 0.2}),
        (Linear(0.0, 1.0, over=2), {1: 0.5, 3: 1.0}),
        (Harmonic(1.0), {0: 1.0, 1: 0.5, 9: 0.1}),
        (Harmonic(0.5, half=10), {10: 0.25, 30: 0.125}),
        (Exponential(1.0, 0.5), {0: 1.0, 3: 0.125}),
        (Exponential(1.0, 0.5, last=0.2), {2: 0.25, 3: 0.2}),
    ],
)
def test_schedules(schedule: Schedule, values: dict[int, float]) -> None:
    for k, value in values.items():
        assert schedule(k) == pytest.approx(value, rel=1e-14)


def test_an_error_in_a_trace_is_said() -> None:
    def negative(xp: Any, carry: Any, now: Any) -> Any:
        return carry - 0.1, carry - 0.1

    with pytest.raises(ValueError, match="β that is negative or not finite"):
        control(ot.StepTrace(negative, title="negative"), bifurcation(1), behavior=EpsilonGreedy(0.2), steps=1000)


@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_divergence_is_said_and_stays_with_its_seed(update: Any) -> None:
    """One state, γ = 0.9, one-step: Q ← Q + α(r + 0.9Q − Q) goes away for α > 20 only."""
    mdp = MDP(np.ones((1, 2, 1)), [[1.0, 1.0]], 0.9, terminal=np.zeros(1, bool))
    run: dict[str, Any] = {"behavior": EpsilonGreedy(0.0), "update": update, "seeds": 3, "spread": 1.0}
    with pytest.warns(UserWarning, match="3 of 3 learners diverged") as caught:
        lost = control(ot.OneStep(), mdp, alpha=1e10, steps=2000, limit=3, **run)
    assert caught[0].filename == __file__
    assert np.isnan(lost.Q).all()
    assert lost.diverged.all()
    assert np.isinf(lost.curve.error[:, -1]).all()
    assert "diverged               3 of 3" in str(lost)
    found = control(ot.OneStep(), mdp, alpha=0.1, steps=2000, limit=3, **run)
    assert np.isfinite(found.Q).all()


def test_one_of_many_diverges() -> None:
    """Importance sampling on a walk with large ratios: some seeds blow up, and the others are as if alone."""
    mdp = MDP(np.ones((1, 2, 1)), [[1.0, -1.0]], 0.9, terminal=np.zeros(1, bool))
    run: dict[str, Any] = {
        "target": [[0.9, 0.1]],
        "behavior": [[0.1, 0.9]],
        "alpha": 0.5,
        "steps": 1000,
        "certify": False,
    }
    with pytest.warns(UserWarning, match="of 30 learners diverged"):
        many = evaluate(ot.ImportanceSampling(), mdp, seeds=30, **run)
    assert 0 < many.diverged.sum() < 30
    for seed in np.flatnonzero(~many.diverged)[:5]:
        np.testing.assert_array_equal(evaluate(ot.ImportanceSampling(), mdp, seed=int(seed), **run).Q, many.Q[seed])


def allowed(result: Any, mdp: MDP, q0: float = 0.0) -> float:
    """By the definition: no return of these rewards is larger, and no average of such returns and of q0."""
    most = np.abs(mdp.R if mdp.transition_rewards is None else mdp.transition_rewards).max()
    reach = sum(mdp.gamma**t for t in range(int(np.max(result.steps))))
    return q0 + most * reach


@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_values_that_blow_up_have_diverged_though_they_are_finite(update: Any) -> None:
    """α = 2: |Q| grows tenfold every few steps, and would be infinite only much later."""
    mdp = random_walk(5, gamma=0.9)
    run: dict[str, Any] = {"target": uniform(mdp), "behavior": uniform(mdp), "update": update, "steps": 500, "seeds": 4}
    with pytest.warns(
        UserWarning, match="4 of 4 learners diverged: .* 1,000,000 times larger than the rewards seen allow"
    ):
        lost = evaluate(ot.Retrace(), mdp, alpha=2.0, **run)
    assert lost.steps.tolist() == [500] * 4  # none of them had left the range of numbers
    assert lost.diverged.all()
    assert np.isnan(lost.Q).all()
    assert np.isinf(lost.curve.error[:, -1]).all()
    assert np.isfinite(lost.curve.error[:, :-1]).all()
    found = evaluate(ot.Retrace(), mdp, alpha=0.5, **run)
    assert not found.diverged.any()
    assert np.abs(found.Q).max() <= allowed(found, mdp)


def test_what_counts_as_diverged() -> None:
    """The bound knows the first values, the rewards seen and, without a discount, how many there were."""
    for gamma in (0.9, 1.0):
        for R, q0, spread in ((0.0, 0.0, 0.0), (1e-8, 0.0, 0.0), (1e12, 0.0, 0.0), (0.0, 1e9, 0.0), (1.0, 0.0, 1e8)):
            mdp = MDP(np.ones((1, 1, 1)), [[R]], gamma, terminal=np.zeros(1, bool)) if gamma < 1 else chain(R)
            run: dict[str, Any] = {
                "target": uniform(mdp),
                "behavior": uniform(mdp),
                "q0": q0,
                "spread": spread,
                "steps": 1000,
            }
            found = evaluate(ot.OneStep(), mdp, certify=False, **run)
            assert not found.diverged
            assert np.isfinite(found.Q).all()
    with pytest.warns(UserWarning, match="diverged"):
        assert evaluate(ot.OneStep(), mdp, certify=False, alpha=3.0, **run).diverged


def chain(R: float) -> MDP:
    """Three states in a row, an end, and no discount."""
    P = np.zeros((4, 1, 4))
    P[[0, 1, 2], 0, [1, 2, 3]] = 1.0
    return MDP(P, [[R], [R], [R], [0.0]], 1.0, start=[1.0, 0.0, 0.0, 0.0])


def test_features_whose_weights_are_large_have_not_diverged() -> None:
    """Q is what is bounded: with tiny features the weights of a sound Q are huge."""
    mdp = random_walk(5, gamma=0.9)
    features = 1e-9 * np.eye(mdp.S)
    run: dict[str, Any] = {"target": uniform(mdp), "behavior": uniform(mdp), "steps": 3000, "features": features}
    found = evaluate(ot.Retrace(), mdp, alpha=1e17, **run)
    assert np.abs(found.weights).max() > 1e7 > 1e3 > np.abs(found.Q).max()
    assert not found.diverged
    with pytest.warns(UserWarning, match="diverged"):
        assert evaluate(ot.Retrace(), mdp, alpha=2.5e18, **run).diverged


def test_it_says_where_a_trace_does_not_converge() -> None:
    mdp, pi, mu = alternating()
    with pytest.warns(UserWarning, match=r"spectral radius 2\.43") as caught:
        evaluate(ot.TruncatedIS(bound=(0, np.inf, 0)), mdp, target=pi, behavior=mu, alpha=0.01, steps=100)
    assert len(caught) == 1
    assert "(1, 0) → (0, 0) → (1, 0)" in str(caught[0].message)  # the history that violates the condition
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(
            ot.TruncatedIS(bound=(0, np.inf, 0)), mdp, target=pi, behavior=mu, alpha=0.01, steps=100, certify=False
        )
        evaluate(ot.Retrace(), mdp, target=pi, behavior=mu, steps=100)
        evaluate(
            ot.TruncatedIS(bound=1.0), mdp, target=pi, behavior=mu, steps=100
        )  # one bound for all lags converges here


def test_results_can_be_kept_and_read() -> None:
    mdp = random_walk(5, gamma=0.9)
    found = evaluate("non-markov retrace", mdp, target=uniform(mdp), behavior=uniform(mdp), episodes=20, seeds=2)
    assert_same(pickle.loads(pickle.dumps(found)), found)
    assert str(found).startswith("Non-Markov Retrace: 2 learners, ")
    assert "RMS error at the end" in str(found)
    one = control(ot.RBIS(lam=0.9), mdp, behavior=EpsilonGreedy(0.1), steps=500, evaluation=Evaluation())
    assert "1 learner, 500 steps" in str(one)
    assert "evaluation, last 100" in str(one)
    assert one.Q.shape == (mdp.S, mdp.A)
    assert not one.diverged


def test_a_bar_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    mdp = bifurcation(1)
    control(ot.Retrace(), mdp, behavior=EpsilonGreedy(0.2), steps=20_000, seeds=4, progress=True)
    assert "/4 learners" in capsys.readouterr().err
