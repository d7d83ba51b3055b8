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

PAGE = Path(__file__).parents[2] / "docs" / "stability_table.md"


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
