"""Policies from action values, and the check that all other layers rely on."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from offtrace import mdps

ONE = mdps.random_walk(1)  # two states, two actions
values = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=st.integers(-3, 3))


@settings(deadline=None)
@given(values, st.floats(0, 1), st.floats(1e-3, 1e3))
def test_policies_from_values_are_policies_and_split_ties(q: np.ndarray, epsilon: float, temperature: float) -> None:
    best = q == q.max(axis=1, keepdims=True)
    greedy, soft = mdps.greedy(q), mdps.softmax(q, temperature)
    np.testing.assert_array_equal(greedy, best / best.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(mdps.epsilon_greedy(q, epsilon), (1 - epsilon) * greedy + epsilon / q.shape[1])
    np.testing.assert_array_equal(mdps.epsilon_greedy(q, 0.0), greedy)
    np.testing.assert_allclose(soft.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.log(mdps.softmax(q)[:, :1] / mdps.softmax(q)), q[:, :1] - q, atol=1e-12)
    np.testing.assert_allclose(mdps.softmax(q, 1e-3), greedy, atol=1e-12)
    np.testing.assert_allclose(mdps.mixture(greedy, soft, epsilon), epsilon * greedy + (1 - epsilon) * soft)


def test_ties_are_relative_to_the_size_of_the_values() -> None:
    np.testing.assert_array_equal(mdps.greedy([[0.3, 0.1 + 0.2]]), [[0.5, 0.5]])
    np.testing.assert_array_equal(mdps.greedy([[1e-20, 2e-20]]), [[0.0, 1.0]])
    np.testing.assert_array_equal(mdps.greedy([[0.3, 0.1 + 0.2]], tolerance=0.0), [[0.0, 1.0]])


@settings(deadline=None)
@given(st.integers(0, 100), st.sampled_from([0.01, 1.0, 100.0]))
def test_random_policies_are_policies(seed: int, concentration: float) -> None:
    pi = mdps.random_policy(ONE, np.random.default_rng(seed), concentration)
    assert mdps.check_policy(pi, ONE) is pi
    np.testing.assert_array_equal(pi, mdps.random_policy(ONE, seed, concentration))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mdps.check_policy([[0.5, 0.5], [0.5, 0.6]], ONE), ValueError, "policy in state 1 is .* sums to 1.1"),
        (lambda: mdps.check_policy([[1.5, -0.5], [1, 0]], ONE), ValueError, "policy in state 0"),
        (lambda: mdps.check_policy([[1, 0], [np.nan, 1]], ONE), ValueError, "policy in state 1"),
        (lambda: mdps.check_policy([[1, 0]], ONE, "mu"), ValueError, r"mu has shape \(1, 2\).*\[S, A\] = \(2, 2\)"),
        (lambda: mdps.check_policy("greedy", ONE), TypeError, "policy is not an array of numbers"),
        (lambda: mdps.greedy([1.0, 2.0]), ValueError, r"q has shape \(2,\)"),
        (lambda: mdps.greedy([[1.0, np.nan]]), ValueError, "q in state 0"),
        (lambda: mdps.greedy([[1.0]], tolerance=-1), ValueError, "tolerance must not be negative"),
        (lambda: mdps.epsilon_greedy([[1.0]], 1.5), ValueError, r"epsilon must be one number in \[0, 1\]"),
        (lambda: mdps.epsilon_greedy([[1.0]], np.zeros(2)), ValueError, "epsilon must be one number"),  # pyright: ignore[reportArgumentType]
        (lambda: mdps.one_state_two_actions(target=(0.5, 0.6)), ValueError, "target in state 0 is .* sums to 1.1"),
        (lambda: mdps.switch_or_stay(stay=2.0), ValueError, "stay is a probability"),
        (lambda: mdps.softmax([[1.0]], 0.0), ValueError, "temperature must be positive"),
        (lambda: mdps.mixture([[1.0]], [[0.5, 0.5]], 0.5), ValueError, r"both must be \[S, A\]"),
        (lambda: mdps.mixture([[1.0, 1.0]], [[0.5, 0.5]], 0.5), ValueError, "target in state 0"),
        (lambda: mdps.random_policy(ONE, np.random.default_rng(0), 0.0), ValueError, "concentration must be positive"),
        (lambda: mdps.random_policy(ONE, 0.5), TypeError, "seed must be an integer"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_policies_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
