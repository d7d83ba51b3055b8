"""Theorem 2's sequence: the cycle that refutes it, what cures it, and what is measured on the way."""

import numpy as np
import pytest

import offtrace as ot
from offtrace.mdps import MDP, garnet, one_state_two_actions, random_walk, switch_or_stay, uniform
from offtrace.operators.control_iterates import (
    always_greedy,
    control_iterates,
    epsilon,
    fading_into_greedy,
    greedy_in_the_limit,
)

CYCLE = np.array([[-81.0, -199.0], [-109.0, -171.0]]) / 28


def test_theorem_2_ends_in_a_cycle():
    mdp, _, mu, Q0 = switch_or_stay()
    run = control_iterates(ot.Retrace(), mdp, behavior=mu, q0=Q0)
    assert run.period == 2
    assert not run.converged
    np.testing.assert_allclose(run.optimal, [[0, -1], [-1, 0]], atol=1e-12)
    in_order = sorted(run.cycle, key=lambda Q: -Q[0, 0])
    np.testing.assert_allclose(in_order[0], CYCLE, atol=1e-8)
    np.testing.assert_allclose(in_order[1], CYCLE[::-1, ::-1], atol=1e-8)
    assert (run.epsilons == 0).all()
    assert len(run.violations) == 400
    assert "cycle of period 2" in str(run)
    assert "first at k = 0" in str(run)


def test_a_pessimistic_start_converges():
    mdp, _, mu, _ = switch_or_stay()
    run = control_iterates(ot.Retrace(), mdp, behavior=mu, q0=np.full((2, 2), -10.0))
    assert run.converged
    assert run.period == 1
    assert not len(run.violations)


def test_a_step_size_converges():
    mdp, _, mu, Q0 = switch_or_stay()
    run = control_iterates(ot.Retrace(), mdp, behavior=mu, q0=Q0, alpha=0.6)
    assert run.converged
    assert "converges to Q*" in str(run)


def test_a_detour_defeats_a_pessimistic_start():
    """Greedy from k = 3 on, but not increasingly greedy before: the same cycle, although T_{π_0}Q_0 ≥ Q_0."""
    mdp, _, mu, _ = switch_or_stay()
    first = np.array([[1.0, 0.0], [1.0, 0.0]])
    run = control_iterates(
        ot.Retrace(),
        mdp,
        target=lambda k, Q: always_greedy(k, Q) if k > 2 else first if k < 2 else 1.0 - first,
        behavior=mu,
        q0=np.full((2, 2), -10.0),
    )
    assert run.period == 2
    np.testing.assert_allclose(max(run.cycle, key=lambda Q: Q[0, 0]), CYCLE, atol=1e-8)


def test_creeping_is_no_cycle():
    """One state: value iteration towards Q* = 10^6 takes steps of 10^-4, a hundred away from it."""
    mdp = MDP(np.ones((1, 1, 1)), np.ones((1, 1)), 1 - 1e-6, terminal=np.zeros(1, bool))
    one = np.ones((1, 1))
    run = control_iterates(ot.OneStep(), mdp, behavior=one, q0=(1e6 - 100) * one, n=50)
    assert not run.converged
    assert run.period is None
    assert "in no cycle" in str(run)


@pytest.mark.parametrize("seed", range(4))
def test_value_iteration_obeys_the_bound(seed):
    """One-step with a greedy target is value iteration: the bound is Banach's, and it converges from anywhere."""
    mdp = garnet(5, 3, 2, seed=seed, gamma=0.8)
    Q0 = np.random.default_rng(seed).normal(size=(5, 3)) * 10
    run = control_iterates(ot.OneStep(), mdp, behavior=uniform(mdp), q0=Q0, n=200)
    assert run.converged
    assert not len(run.violations)
    np.testing.assert_allclose(run.Q[1], mdp.R + 0.8 * mdp.dense_P @ Q0.max(axis=1), atol=1e-12)


@pytest.mark.parametrize("schedule", [greedy_in_the_limit(), fading_into_greedy(np.full((2, 2), 0.5))])
def test_epsilon_vanishes_for_policies_greedy_in_the_limit(schedule):
    mdp, _, mu, _ = switch_or_stay()
    run = control_iterates(ot.Retrace(), mdp, target=schedule, behavior=mu, q0=np.full((2, 2), -10.0), n=300)
    assert run.epsilons[-1] < 0.01
    assert run.errors[-1] < 0.05
    assert not len(run.violations)


def test_epsilon_by_hand():
    mdp, _, _ = one_state_two_actions(gamma=0.9)
    assert epsilon(mdp, np.array([[0.0, 1.0]]), np.array([[1.0, -1.0]])) == pytest.approx(1.8)
    assert epsilon(mdp, np.array([[1.0, 0.0]]), np.array([[1.0, -1.0]])) == 0.0
    assert epsilon(mdp, np.array([[0.5, 0.5]]), np.zeros((1, 2))) == 0.0


def test_terminal_states_stay_at_zero():
    made = random_walk()
    mdp: MDP = made[0] if isinstance(made, tuple) else made
    mdp = MDP(mdp.P, mdp.R, 0.9, start=mdp.start, terminal=mdp.terminal)
    run = control_iterates(ot.Retrace(), mdp, behavior=uniform(mdp), q0=np.ones((mdp.S, mdp.A)), n=300)
    assert (run.Q[:, mdp.terminal] == 0).all()
    assert run.converged


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n must be"),
        ({"alpha": 0.0}, "alpha"),
        ({"q0": np.zeros(3)}, "q0 must be"),
        ({"behavior": 0.5}, "behavior must be"),
    ],
)
def test_bad_input(wrong, message):
    mdp, _, mu, Q0 = switch_or_stay()
    with pytest.raises(ValueError, match=message):
        control_iterates(ot.Retrace(), mdp, **{"behavior": mu, "q0": Q0, **wrong})
