"""The gallery against hand-made values, breadth-first search, and closed forms of what each counterexample refutes."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace import mdps
from offtrace.mdps.gallery import BIFURCATIONS
from offtrace.operators import Operator


def radius(Z: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvals(Z)).max())


def norm(Z: np.ndarray) -> float:
    return float(np.abs(Z).sum(axis=1).max())


# Gridworlds


@pytest.mark.parametrize(("number", "cells"), [(1, 14), (2, 34), (3, 31), (4, 43)])
def test_bifurcation_has_its_cells_and_the_values_of_distances(number: int, cells: int) -> None:
    layout, mdp = BIFURCATIONS[number], mdps.bifurcation(number)
    assert (mdp.S, mdp.A, int(mdp.terminal.sum()), mdp.P.nnz) == (cells + 1, 4, 1, 4 * cells)
    assert mdp.state_names is not None
    assert mdp.action_names == ("up", "down", "left", "right")
    goals = [(i, j) for i, row in enumerate(layout) for j, mark in enumerate(row) if mark == "G"]
    distance, queue = dict.fromkeys(goals, 0), deque(goals)
    while queue:
        i, j = queue.popleft()
        for near in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if near in mdp.state_names and near not in distance:
                distance[near] = distance[i, j] + 1
                queue.append(near)
    expected = [0.9 ** distance[cell] for cell in mdp.state_names[:-1]]
    np.testing.assert_allclose(mdp.optimal_q().max(axis=1), [*expected, 0.0], rtol=1e-12)
    start = mdp.state_names[int(np.argmax(mdp.start))]
    assert layout[start[0]][start[1]] == "S"
    assert mdp.start.max() == 1


def test_bifurcation_1_by_hand() -> None:
    """From the lower left, 6 steps to the goal along the bottom; 10 over the top."""
    mdp = mdps.bifurcation(1)
    assert mdp.state_names is not None
    q = dict(zip(mdp.state_names, mdp.optimal_q(), strict=True))
    assert q[4, 0].max() == pytest.approx(0.9**6)
    np.testing.assert_allclose(q[2, 4], 1.0)  # in the goal any action ends with reward 1
    np.testing.assert_allclose(q[4, 2], [0.9**6, 0.9**5, 0.9**6, 0.9**4])  # up, down (stays), left, right
    step = dict(zip(mdp.state_names, mdp.dense_P.argmax(axis=2), strict=True))
    names = mdp.state_names
    assert [names[s] for s in step[4, 2]] == [(3, 2), (4, 2), (4, 1), (4, 3)]
    assert [names[s] for s in step[0, 2]] == [(0, 2), (1, 2), (0, 2), (0, 3)]


def test_cliff_walks_along_the_edge() -> None:
    mdp = mdps.cliff()
    assert (mdp.S, int(mdp.terminal.sum())) == (38, 1)
    best = mdp.optimal_q()
    assert mdp.start @ best.max(axis=1) == pytest.approx(-13)  # Sutton & Barto: 13 steps on the optimal path
    assert mdp.action_names is not None
    start = int(np.argmax(mdp.start))
    assert mdp.R[start].tolist() == [-1, -1, -1, -100]
    with pytest.raises(ValueError, match="two rows and two columns"):
        mdps.cliff(1, 5)
    with pytest.raises(ValueError, match="there is no Bifurcation 5"):
        mdps.bifurcation(5)


# Random walk and Garnet


@pytest.mark.parametrize(("states", "left"), [(19, -1.0), (5, 0.0), (1, 0.0)])
def test_random_walk_has_its_known_values(states: int, left: float) -> None:
    mdp, known = mdps.random_walk(states, left), mdps.random_walk_values(states, left)
    np.testing.assert_allclose(mdp.q(mdps.uniform(mdp)).mean(axis=1), known, atol=1e-13)
    assert mdp.start[states // 2] == 1
    if states == 5:
        np.testing.assert_allclose(known[:5] * 6, [1, 2, 3, 4, 5])  # Sutton & Barto, Example 6.2


def test_garnet_has_its_shape_and_its_seed() -> None:
    mdp = mdps.garnet(30, 3, 4, seed=7, terminal=2)
    assert (mdp.S, mdp.A, mdp.terminal.nonzero()[0].tolist()) == (30, 3, [28, 29])
    np.testing.assert_array_equal(np.diff(mdp.P.indptr), np.repeat([4, 0], [28 * 3, 2 * 3]))
    assert mdp == mdps.garnet(30, 3, 4, seed=7, terminal=2)
    assert mdp != mdps.garnet(30, 3, 4, seed=8, terminal=2)
    assert not mdps.garnet(1, 1, 1, seed=0).terminal.any()
    for wrong in ((3, 2, 4, 0), (0, 1, 1, 0), (3, 0, 1, 0)):
        with pytest.raises(ValueError, match="branching at most states"):
            mdps.garnet(*wrong)
    with pytest.raises(ValueError, match=r"terminal must lie in \[0, 2\]"):
        mdps.garnet(3, 1, 1, 0, terminal=3)


# What the counterexamples refute


@pytest.mark.parametrize(("beta", "eigenvalue"), [((1, 0, 1), -2.439), ((1, 1, 0, 1), 2.1951)])
def test_alternating_refutes_theorem_1(beta: tuple[int, ...], eigenvalue: float) -> None:
    """β_t is 0 or ∏ρ, so E_μ[β_t …] is 0 or P_π^t: off-policy as it stands, and with one action on-policy."""
    for off_policy, (mdp, pi, mu) in (
        (True, mdps.alternating()),
        (False, mdps.alternating(target=(1.0,), behavior=(1.0,))),
    ):
        P, one = mdp.P_pi(pi).toarray(), np.eye(mdp.pairs)
        C = sum(b * 0.9**t * np.linalg.matrix_power(P, t) for t, b in enumerate(beta))
        Z = one - C @ (one - 0.9 * P)
        assert np.isclose(np.linalg.eigvals(Z), eigenvalue).any()
        assert norm(Z) == pytest.approx(abs(eigenvalue))
        assert radius(Z) == pytest.approx(abs(eigenvalue))
        assert (np.abs(pi - mu).max() > 0) == off_policy


def test_alternating_checks_its_policies() -> None:
    with pytest.raises(ValueError, match=r"behavior has shape \(2, 3\)"):
        mdps.alternating(behavior=(0.2, 0.3, 0.5))
    with pytest.raises(ValueError, match="target in state 0 is"):
        mdps.alternating(target=(0.5, 0.6))


def test_one_state_has_norm_1_and_radius_one_third() -> None:
    mdp, pi, mu = mdps.one_state_two_actions()
    P = mdp.P_pi(mu).toarray()
    K, keep = np.eye(2), np.diag([1.0, 0.0])  # β_t depends on a_t alone: K_t = P^t with action 1 cut off at its end
    C = K + sum(mdp.gamma**t * np.linalg.matrix_power(P, t) @ keep for t in range(1, 120))
    Z = np.eye(2) - C @ (np.eye(2) - mdp.gamma * mdp.P_pi(pi).toarray())
    assert norm(Z) == pytest.approx(1.0)
    assert radius(Z) == pytest.approx(1 / 3)


def test_powers_of_two_refutes_truncated_is() -> None:
    """C = Σ γ^t E[min(1, ∏ρ)] on the chain of (pair, exponent of ∏ρ). Exponents beyond ±64 stop there: the chance to come back
    is below 2^-63.
    """
    mdp, pi, mu = mdps.powers_of_two()
    np.testing.assert_allclose([pi.sum(axis=1), mu.sum(axis=1)], 1.0, rtol=1e-15)
    ratio = (pi / mu).round(12)
    np.testing.assert_array_equal(ratio, [[8, 0.5], [0.25, 2], [8, 0.125]])
    exponent, step, gamma = np.log2(ratio).astype(int).ravel(), mdp.P_pi(mu).toarray(), mdp.gamma
    exponents = np.arange(-64, 65)
    shifts = np.array([np.eye(129)[np.clip(exponents + k, -64, 64) + 64] for k in exponent])
    chain = np.einsum("zy,ykl->zkyl", step, shifts).reshape(6 * 129, 6 * 129)
    beta = np.kron(np.eye(6), np.minimum(1.0, 2.0**exponents)[:, None])  # of each (pair, exponent), at its pair
    C = np.linalg.solve(np.eye(6 * 129) - gamma * chain, beta)[64::129]  # from exponent 0
    Z = np.eye(6) - C @ (np.eye(6) - gamma * mdp.P_pi(pi).toarray())
    assert radius(Z) == pytest.approx(1.0137615214, abs=1e-9)
    assert np.linalg.eigvals(Z).real.min() == pytest.approx(-radius(Z))
    found = Operator(ot.TruncatedIS(bound=1.0, lam=1.0), mdp, target=pi, behavior=mu, tolerance=1e-8).spectral_radius
    assert radius(Z) in found
    assert found.width < 1e-4


def test_lemma_2_fails_with_another_policy() -> None:
    mdp, pi, mu, best = mdps.lemma_2()
    C = np.linalg.inv(np.eye(2) - 0.9 * mdp.P_pi(pi).toarray())  # importance sampling: K_t = P_π^t
    assert norm(np.eye(2) - C @ (np.eye(2) - 0.9 * mdp.P_pi(best).toarray())) == pytest.approx(18)
    np.testing.assert_array_equal(mdps.greedy(mdp.optimal_q()), best)
    assert (mu > 0).all()


def test_switch_or_stay_ends_in_a_cycle() -> None:
    mdp, pi, mu, q = mdps.switch_or_stay()
    np.testing.assert_allclose(mdp.optimal_q(), [[0, -1], [-1, 0]], atol=1e-12)
    np.testing.assert_array_equal(pi, mdps.greedy(q))

    def iterate(q: Any, step: float) -> Any:
        pi = mdps.greedy(q)
        kept = mdp.dense_P.reshape(4, 2) @ np.kron(np.eye(2), np.ones(2)) * np.minimum(pi, mu).ravel()
        delta = mdp.R.ravel() + mdp.gamma * mdp.P_pi(pi) @ q.ravel() - q.ravel()
        return q + step * np.linalg.solve(np.eye(4) - mdp.gamma * kept, delta).reshape(2, 2)

    cured = q
    for _ in range(400):
        q, cured = iterate(q, 1.0), iterate(cured, 0.6)
    cycle = [np.array([[-81, -199], [-109, -171]]) / 28, np.array([[-171, -109], [-199, -81]]) / 28]
    found = [np.allclose(q, one) for one in cycle]
    assert sum(found) == 1
    np.testing.assert_allclose(iterate(q, 1.0), cycle[found.index(False)])
    np.testing.assert_allclose(cured, mdp.optimal_q(), atol=1e-8)


@pytest.mark.parametrize("distance", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0])
def test_the_bound_of_q_lambda_is_tight(distance: float, lam: float) -> None:
    mdp, pi, mu = mdps.q_lambda_tight(distance=distance)
    assert np.abs(pi - mu).sum(axis=1).max() == pytest.approx(distance)
    P_pi, P_mu, gamma = mdp.P_pi(pi).toarray(), mdp.P_pi(mu).toarray(), mdp.gamma
    Z = np.eye(4) - np.linalg.inv(np.eye(4) - lam * gamma * P_mu) @ (np.eye(4) - gamma * P_pi)
    bound = gamma * (1 - lam + lam * distance) / (1 - lam * gamma)
    assert norm(Z) == pytest.approx(bound)
    if distance == 2.0:
        assert radius(Z) == pytest.approx(bound)
    with pytest.raises(ValueError, match="distance"):
        mdps.q_lambda_tight(distance=2.1)
