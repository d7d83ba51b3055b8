"""The efficient frontier against a quadratic programme over all histories, closed forms, and the rules that it judges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

import offtrace as ot
from offtrace import mdps, operators
from offtrace.mdps import MDP

LAYERS, STATES, ACTIONS = 4, 2, 2


def layered(seed: int, gamma: float) -> tuple[MDP, np.ndarray, np.ndarray, np.ndarray]:
    """Episodes of at most four steps, so that the histories of a start are a finite tree; π, μ and the noise of rewards."""
    rng = np.random.default_rng(seed)
    S = LAYERS * STATES + 1
    P, R = np.zeros((S, ACTIONS, S)), rng.normal(size=(S, ACTIONS, S))
    for s in range(S - 1):
        after = np.arange(STATES) + (s // STATES + 1) * STATES
        P[s][:, after if s // STATES + 1 < LAYERS else [S - 1]] = 1.0
        P[s, :, S - 1] += rng.uniform(0.0, 0.4)
    P[:-1] *= rng.uniform(0.2, 1.0, (S - 1, ACTIONS, S))
    P[:-1] /= P[:-1].sum(axis=2, keepdims=True)
    mdp = MDP(P, R * (P > 0), gamma=gamma)
    π, μ = rng.dirichlet(np.ones(ACTIONS), S), rng.dirichlet(4 * np.ones(ACTIONS), S)
    return mdp, π, μ, rng.uniform(0.0, 2.0, (S, ACTIONS))


def tree(mdp: MDP, π: np.ndarray, μ: np.ndarray, start: int) -> list[tuple[int, int, float, float]]:
    """Every history of a start pair: (its pair, the number of the history it extends, its chance, γρ), the start first."""
    P, grown = mdp.P.toarray(), [(start, -1, 1.0, 0.0)]
    for i, (z, _, chance, _) in enumerate(grown):
        for s in np.flatnonzero((P[z] > 0) & ~np.asarray(mdp.terminal)):
            steps = [(chance * P[z, s] * μ[s, a], mdp.gamma * π[s, a] / μ[s, a]) for a in range(ACTIONS)]
            grown += [(int(s) * ACTIONS + a, i, *step) for a, step in enumerate(steps)]
    return grown


@pytest.mark.parametrize(("seed", "gamma"), [(0, 0.9), (1, 0.9), (2, 0.5), (3, 1.0)])
def test_no_weights_of_histories_do_better(seed: int, gamma: float) -> None:
    """The quadratic programme over y_h for every history h, 0 ≤ y_h ≤ γρ y of its parent, has the value of the recursive cap."""
    mdp, π, μ, noise = layered(seed, gamma)
    only = np.zeros(π.shape)
    only[0, 0] = 1.0
    found = operators.frontier(mdp, π, μ, noise=noise, start=only, traces=[], points=3)
    σ2, c = found.delta_variance.ravel(), found.bounds.ravel()
    P = mdp.P.toarray()
    u = 1.0 - gamma * P[:, ~np.asarray(mdp.terminal)].sum(axis=1)
    histories = tree(mdp, π, μ, 0)
    pair, parent = np.array([h[0] for h in histories]), np.array([h[1] for h in histories])
    chance, factor = np.array([h[2] for h in histories]), np.array([h[3] for h in histories])
    n = len(histories)
    within = np.eye(n)
    within[np.arange(1, n), parent[1:]] -= factor[1:]
    for price in (0.2, 1.0, 5.0):
        y = np.ones(n)
        for i in range(1, n):
            y[i] = min(c[pair[i]] / price, factor[i] * y[parent[i]])

        def loss(y: np.ndarray, price: float = price) -> tuple[float, np.ndarray]:
            value = chance * (y * u[pair] - 0.5 * price * y**2 * σ2[pair])
            return -float(value[1:].sum()), np.where(parent < 0, 0.0, -chance * (u[pair] - price * y * σ2[pair]))

        constraint = LinearConstraint(within[1:], -np.inf, 0.0)  # pyright: ignore[reportArgumentType]
        bounds = [(1.0, 1.0), *[(0.0, None)] * (n - 1)]
        best: Any = minimize(
            loss, y * 0.9 ** np.arange(n).clip(max=1), jac=True, bounds=bounds, method="SLSQP", constraints=[constraint],
            options={"maxiter": 400, "ftol": 1e-13},
        )  # fmt: skip
        ours = -loss(y)[0]
        assert ours >= -best.fun - 1e-6 * abs(ours)
        bound = np.interp(price, found._prices, found._reachable)
        assert ours <= bound * (1 + 1e-6)
        assert bound <= ours * 1.002 + 1e-9


def test_on_policy_with_one_variance_it_is_one_step_mixed_with_monte_carlo() -> None:
    """c = (1 − γ²)/σ² there, and β_t = min(1, c/(γη)) for all t ≥ 1."""
    mdp = MDP(np.full((2, 2, 2), 0.5), np.zeros((2, 2)), gamma=0.9)
    π = np.full((2, 2), 0.5)
    found = operators.frontier(mdp, π, π, noise=2.0, traces=[], points=3)
    np.testing.assert_allclose(found.bounds, (1 - 0.9**2) / 2.0, rtol=1e-3)
    no = np.zeros(5, bool)
    trace = ot.DiscountedBound(bound=0.45, gamma=0.9)
    β = ot.coefficients(trace, terminated=no, truncated=no, log_pi=np.zeros(5), log_mu=np.zeros(5))
    np.testing.assert_allclose(β[0, 1:], 0.5, rtol=1e-12)


@pytest.mark.parametrize("gamma", [0.9, pytest.param(0.97, marks=pytest.mark.whole)])
def test_every_rule_that_keeps_the_condition_pays_at_least_the_least(gamma: float) -> None:
    mdp = mdps.garnet(5, 2, 2, seed=3, gamma=gamma)
    rng = np.random.default_rng(0)
    π, μ = rng.dirichlet(np.ones(2), 5), rng.dirichlet(3 * np.ones(2), 5)
    found = operators.frontier(mdp, π, μ, lams=(0.5, 1.0), points=6)
    assert {p.family for p in found.points} >= {"Retrace", "RBIS", "Tree Backup", "Non-Markov Retrace"}
    for p in found.points:
        least = found.least_variance(p.contraction.upper)
        assert p.variance.upper >= least.lower * (1 - 1e-6)
        assert p.excess.upper >= 1.0
    for p in found.optimum:
        assert p.excess.upper < 1.05
        assert p.variance.width < 0.01 * p.variance.upper
    # What the frontier says of a trace is what the laboratory says of it at Q^π.
    op = operators.Operator(found.trace(1.0), mdp, target=π, behavior=μ, tolerance=1e-4)
    low, high = op.variance_bounds(mdp.q(π))
    p = operators.frontier(mdp, π, μ, traces=[found.trace(1.0)], points=3).points[0]
    assert low.mean() - 1e-3 <= p.variance.upper
    assert high.mean() + 1e-3 >= p.variance.lower


def test_ratios_that_vary_more_than_their_bound_allows_cost_most() -> None:
    """Importance sampling far from on-policy has no second moment; the optimum at the same contraction has."""
    mdp = mdps.garnet(4, 2, 2, seed=1, gamma=0.95)
    π, μ = np.tile([0.95, 0.05], (4, 1)), np.tile([0.1, 0.9], (4, 1))
    found = operators.frontier(mdp, π, μ, traces=[ot.ImportanceSampling(lam=1.0)], points=4)
    assert found.points[0].variance.upper == np.inf
    assert np.isfinite([p.variance.upper for p in found.optimum]).all()
    assert "Importance sampling" in str(found)
    assert "over the least" in found._repr_html_()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no TD error varies at Q"),
        ({"noise": -1.0}, "noise must hold variances"),
        ({"noise": 1.0, "start": np.zeros((2, 2))}, "start must hold weights"),
        ({"noise": 1.0, "start": np.ones(3)}, "start must be an array"),
    ],
)
def test_what_has_no_frontier_is_refused(given: dict[str, Any], message: str) -> None:
    mdp, π, μ = mdps.alternating()
    with pytest.raises(ValueError, match=message):
        operators.frontier(mdp, π, μ, **given)


@pytest.mark.parametrize(
    "trace", [ot.QLambda(0.9), ot.TruncatedIS(), ot.AlphaRetrace(mix=0.5), ot.replacing(0.9), ot.replacing(0.9, horizon=1)],
    ids=["breaks the condition", "cap at read-out", "mixture", "custom", "custom, one step"],
)  # fmt: skip
def test_a_rule_that_the_frontier_is_not_about_is_refused(trace: ot.Trace) -> None:
    """Its variance could lie below the least, and the excess would say 1."""
    mdp = mdps.garnet(4, 2, 2, seed=0, gamma=0.9)
    with pytest.raises(ValueError, match="cannot be compared"):
        operators.frontier(mdp, np.tile([0.8, 0.2], (4, 1)), mdps.uniform(mdp), traces=[trace], points=2)


def test_the_picture_has_a_line_for_each_family() -> None:
    pytest.importorskip("matplotlib")
    mdp = mdps.garnet(4, 2, 2, seed=0, gamma=0.9)
    π = np.tile([0.8, 0.2], (4, 1))
    figure = operators.frontier(mdp, π, mdps.uniform(mdp), traces=[ot.Retrace(0.9), ot.RBIS(0.9)], points=3).figure()
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"optimum", "Retrace", "RBIS"}
