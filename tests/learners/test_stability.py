"""The expected update: known figures, what the learners do, and the table of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm  # pyright: ignore[reportAttributeAccessIssue]

import offtrace as ot
from offtrace import mdps
from offtrace.learners import StateTraceLearner, follow, method, stability

PAGE = Path(__file__).parents[2] / "docs" / "stability_table.inc"


def learner(name: str, trace: ot.Trace, **more: Any) -> Any:
    return StateTraceLearner(trace, **more) if name == "TD" else method(name, trace=trace, **more)


def test_known_figures() -> None:
    """TD(0) on w → 2w: −A = (6γ − 5)/2. TDRC is unstable there for κ above 0.47 = −A, as its theorem allows."""
    mdp, π, μ, X = mdps.w_to_2w(gamma=0.99)
    given: Any = {"features": X, "target": π, "behavior": μ}
    assert stability(method("td", lam=0.0), mdp, **given).rate == pytest.approx((6 * 0.99 - 5) / 2)
    assert not stability(method("td", lam=0.0), mdps.w_to_2w(0.834)[0], **given).converges
    assert stability(method("td", lam=0.0), mdps.w_to_2w(0.833)[0], **given).converges
    assert stability(method("tdrc", lam=0.0, kappa=0.46), mdp, **given).converges
    assert not stability(method("tdrc", lam=0.0, kappa=0.48), mdp, **given).converges
    star, π, μ, X = mdps.baird_star()
    for name, lam, stable in (("td", 0.0, False), ("td", 1.0, True), ("gtd", 0.0, True), ("gtd2", 0.9, True)):
        assert stability(method(name, lam=lam), star, features=X, target=π, behavior=μ).converges is stable


def test_on_policy_methods_converge_and_a_table_is_told_apart() -> None:
    """On-policy A is positive definite (Tsitsiklis and Van Roy 1997), with ends as well; HTD is TD there."""
    mdp = mdps.random_walk(7)
    μ = mdps.uniform(mdp)
    X = np.random.default_rng(0).normal(size=(len(mdp.start), 3))
    for features in (X, None):
        td = stability(method("td", lam=0.7), mdp, features=features, target=μ, behavior=μ)
        htd = stability(method("htd", lam=0.7), mdp, features=features, target=μ, behavior=μ)
        n = len(td.matrix)
        np.testing.assert_allclose(htd.matrix[:n], np.hstack([td.matrix, np.zeros((n, n))]), atol=1e-12)
        if features is not None:
            assert td.converges


def small_mdp_with_an_end() -> tuple[mdps.MDP, Any, Any, Any]:
    """Action 0 leads to state 1, action 1 ends the episode. Visits are (10/11, 1/11), and TD(0) diverges."""
    P = np.zeros((3, 2, 3))
    P[:2, 0, 1] = P[:2, 1, 2] = 1.0
    mdp = mdps.MDP(P, np.zeros((3, 2)), gamma=0.99, start=[1, 0, 0])
    π, μ = np.array([[1, 0], [0.5, 0.5], [0.5, 0.5]]), np.array([[0.1, 0.9], [0, 1], [0.5, 0.5]])
    return mdp, π, μ, np.array([[1.0], [5.0], [0.0]])


def weights_after(
    made: Any, mdp: mdps.MDP, X: Any, first: Any, π: Any, μ: Any, *, seed: int, steps: int, marks: Any = None
) -> np.ndarray:
    row = mdp.rollout(μ, seed=seed, steps=steps)
    given: Any = {n: row[n] for n in ("state", "action", "reward", "next_state", "terminated")}
    return follow(made, features=X, first=first, target=π, behavior=μ, gamma=mdp.gamma, marks=marks, **given)


@pytest.mark.filterwarnings("ignore:behavior = 0 where target > 0")
def test_an_mdp_with_an_end() -> None:
    """A = Σ d(s) E[ρ x (x − γx')] by hand: d = (10, 1)/11; ρ x' = 5 in the mean at state 0, and at the end ρ = ½, x' = 0."""
    mdp, π, μ, X = small_mdp_with_an_end()
    td = stability(method("td", lam=0.0), mdp, features=X, target=π, behavior=μ)
    assert td.rate == pytest.approx(-(10 * (1 - 0.99 * 5) + 0.5 * 25) / 11)
    assert not td.converges
    end = weights_after(method("td", lam=0.0, alpha=0.01), mdp, X, [1.0], π, μ, seed=0, steps=8000)
    assert abs(end[-1, 0]) > 1e60


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("trace", [ot.ImportanceSampling(0.5), ot.Retrace(0.9), ot.RBIS(0.9)], ids=lambda t: t.title)
def test_the_matrix_is_the_mean_of_updates_on_random_mdps_with_ends(seed: int, trace: ot.Trace) -> None:
    """With a vanishing step size the weights do not move, so that a long run sums the updates at `first`: G first."""
    rng = np.random.default_rng(seed)
    S, A, d = 6, 2, 3
    P = rng.dirichlet(np.full(S, 0.3), size=(S, A))
    P[-1] = 0.0  # the last state is terminal; it is entered from everywhere, with very different probabilities
    start = np.append(rng.dirichlet(np.full(S - 1, 0.5)), 0.0)
    mdp = mdps.MDP(P, np.zeros((S, A)), gamma=0.9, start=start)
    π, μ = 0.7 * rng.dirichlet(np.ones(A), size=S) + 0.15, 0.7 * rng.dirichlet(np.ones(A), size=S) + 0.15
    X, first, α, T = rng.normal(size=(S, d)), rng.normal(size=d), 1e-9, 100_000
    G = stability(StateTraceLearner(trace), mdp, features=X, target=π, behavior=μ).matrix
    marks = np.arange(1, 21) * (T // 20)
    path = weights_after(StateTraceLearner(trace, alpha=α), mdp, X, first, π, μ, seed=seed, steps=T, marks=marks)
    means = np.diff(np.vstack([first, path]), axis=0) / (α * T / 20)  # of 20 parts, hardly correlated
    error = means.std(axis=0, ddof=1) / np.sqrt(20)
    assert (abs(means.mean(axis=0) - G @ first) < 4.5 * error + 1e-6).all()


@pytest.mark.parametrize("name", ["TD", "GTD", "GTD2", "TDRC", "HTD"])
def test_learners_follow_the_matrix_where_episodes_end(name: str) -> None:
    """As on w → 2w below, with ends and restarts; all five methods."""
    mdp, π, μ, X = small_mdp_with_an_end()
    π, α, T = np.tile([0.4, 0.6], (3, 1)), 0.0001, 6000
    μ = np.tile([0.2, 0.8], (3, 1))
    made = learner(name, ot.Retrace(0.8), alpha=α)
    G = stability(made, mdp, features=X, target=π, behavior=μ).matrix
    ends = [weights_after(made, mdp, X, [1.0], π, μ, seed=seed, steps=T)[-1, 0] for seed in range(6)]
    wanted = (expm(α * T * G) @ np.eye(len(G))[0])[0]
    assert np.mean(ends) == pytest.approx(wanted, abs=0.02)


def test_features_that_are_not_finite_are_named() -> None:
    mdp, π, μ, X = small_mdp_with_an_end()
    X[1, 0] = np.nan
    with pytest.raises(ValueError, match="got nan for state 1, feature 0"):
        stability(method("td"), mdp, features=X, target=π, behavior=μ)


def test_runs_that_end_in_different_parts_have_no_stationary_distribution() -> None:
    P = np.zeros((3, 1, 3))
    P[0, 0, 1:] = 0.5
    P[1, 0, 1] = P[2, 0, 2] = 1.0
    mdp = mdps.MDP(P, [[0.0], [1.0], [2.0]], gamma=0.9, start=[1, 0, 0])
    one = np.ones((3, 1))
    with pytest.raises(ValueError, match="never leaves"):
        stability(method("td"), mdp, target=one, behavior=one)
    chosen = mdps.MDP(P, [[0.0], [1.0], [2.0]], gamma=0.9, start=[0, 1, 0])
    assert stability(method("td", lam=0.0), chosen, features=one, target=one, behavior=one).rate == pytest.approx(-0.1)


@pytest.mark.parametrize("name", ["TD", "GTD", "GTD2", "TDRC", "HTD"])
@pytest.mark.parametrize("trace", [ot.RBIS(0.5), ot.NonMarkovRetrace(0.5)], ids=lambda t: t.title)
def test_the_learners_do_what_is_computed(name: str, trace: ot.Trace) -> None:
    """With a small step size the weights follow exp(αtG); v is not seen, but w depends on it."""
    mdp, _, μ, X = mdps.w_to_2w()
    π, α, T = np.tile([0.2, 0.8], (2, 1)), 0.002, 8000
    made = learner(name, trace, alpha=α)
    G = stability(made, mdp, features=X, target=π, behavior=μ).matrix
    ends = []
    for seed in range(6):
        row = mdp.rollout(μ, seed=seed, steps=T)
        steps: Any = {n: row[n] for n in ("state", "action", "reward", "next_state", "terminated")}
        ends.append(follow(made, features=X, first=[1.0], target=π, behavior=μ, gamma=0.99, **steps)[-1, 0])
    wanted = (expm(α * T * G) @ np.eye(len(G))[0])[0]
    assert np.log(abs(np.mean(ends))) == pytest.approx(np.log(abs(wanted)), abs=0.25)


def test_a_part_of_the_table() -> None:
    """The first number of each cell, on the two tasks of the literature, for the traces whose operator takes no time."""
    parts = PAGE.read_text().split("## ")[1:3]
    names = ("TD", "GTD", "GTD2", "TDRC", "HTD")
    traces = (ot.ImportanceSampling(0.9), ot.Retrace(0.9), ot.RBIS(0.9), ot.TruncatedIS(bound=1.0, lam=1.0))
    for part, (mdp, π, μ, X) in zip(parts, (mdps.w_to_2w(), mdps.baird_star()), strict=True):
        for trace in traces:
            row = next(line for line in part.splitlines() if line.startswith(f"| {trace.title}, λ = {trace.lam:g} |"))
            cells = [cell.split(";")[0].strip(" *") for cell in row.split("|")[2:-1]]
            for name, cell in zip(names, cells, strict=True):
                rate = stability(learner(name, trace), mdp, features=X, target=π, behavior=μ).rate
                assert f"{rate:+.2g}" == cell, (part[:20], trace, name)


def test_what_it_does_not_know_is_an_error() -> None:
    mdp, π, μ, X = mdps.w_to_2w()
    for unknown in (method("etd"), method("retrace", values="action"), method("pgtd2")):
        with pytest.raises(TypeError, match="stability"):
            stability(unknown, mdp, features=X, target=π, behavior=μ)
    with pytest.raises(ValueError, match="a row for each state"):
        stability(method("td"), mdp, features=X.T, target=π, behavior=μ)
