"""Bad input is refused with a word on what to do; intervals print what is known and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace.mdps import MDP, garnet, random_policy
from offtrace.operators import Divergent, Interval, Operator
from operators.brute import tiny

MDP_, PI, MU = tiny(0, 0.9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pi": np.ones((2, 3)) / 3}, r"pi must be an array \[S, A\] = \[2, 2\]"),
        ({"mu": np.full((2, 2), 0.4)}, "mu in state 0 is .* sums to 0.8"),
        ({"pi": np.array([[1.5, -0.5], [0.5, 0.5]])}, "pi in state 0 is .*must not be negative"),
        ({"pi": np.full((2, 2), np.nan)}, "pi in state 0 is .*nan"),
        ({"tolerance": 0.0}, "tolerance must be above 0"),
        ({"budget": -1.0}, "budget"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"pi": PI, "mu": MU} | change
    with pytest.raises(ValueError, match=message):
        Operator(MDP_, ot.Retrace(), **given)


def test_not_a_trace() -> None:
    with pytest.raises(TypeError, match="beside the operator"):
        Operator(MDP_, ot.PengQ(), pi=PI, mu=MU)
    with pytest.raises(TypeError, match="not a trace"):
        Operator(MDP_, "retrace", pi=PI, mu=MU)
    with pytest.raises(ValueError, match="needs lam for each pair"):
        Operator(MDP_, ot.VariableLambda(lam=np.ones(7)), pi=PI, mu=MU)
    op = Operator(MDP_, ot.VariableLambda(lam=np.full((2, 2), 0.7)), pi=PI, mu=MU)
    np.testing.assert_allclose(op.C, Operator(MDP_, ot.ImportanceSampling(lam=0.7), pi=PI, mu=MU).C)
    with pytest.raises(ValueError, match="Q must be an array"):
        op.apply(np.zeros(4))


def test_missing_support_is_warned_of() -> None:
    mu = np.array([[0.5, 0.5], [1.0, 0.0]])
    pi = np.full((2, 2), 0.5)
    with pytest.warns(UserWarning, match="first at state 1, action 1"):
        op = Operator(MDP_, ot.ImportanceSampling(), pi=pi, mu=mu)
    assert op.contraction.lower > 0.1  # no longer 0


def test_undiscounted() -> None:
    P = np.zeros((2, 2, 2))
    P[0, 0], P[0, 1] = [0.0, 1.0], [1.0, 0.0]
    mdp = MDP(P, [[1.0, 1.0], [0.0, 0.0]], 1.0, terminal=[False, True])
    half = np.full((2, 2), 0.5)
    for trace in (ot.Retrace(lam=0.9), ot.NonMarkovRetrace(lam=0.9), ot.TruncatedIS(lam=0.9)):
        op = Operator(mdp, trace, pi=np.array([[0.6, 0.4], [0.5, 0.5]]), mu=half)
        fixed = mdp.q(np.array([[0.6, 0.4], [0.5, 0.5]]))
        np.testing.assert_allclose(op.apply(fixed), fixed, atol=1e-9)
    stay = np.array([[0.0, 1.0], [0.5, 0.5]])
    with pytest.raises(ValueError, match="gamma = 1 needs episodes that end: under mu"):
        Operator(mdp, ot.Retrace(), pi=stay, mu=stay)


class Doubling(ot.Trace):
    """β_t = 2^t: there is no operator at γ = 0.9."""

    @staticmethod
    def factors(xp: Any, pi: Any, mu: Any, rho: Any) -> Any:
        return 1.0, 2.0, float("inf")


def test_divergent_sums_and_bad_coefficients() -> None:
    with pytest.raises(Divergent, match="infinite mean"):
        _ = Operator(MDP_, Doubling(), pi=PI, mu=MU).C
    with pytest.raises(ValueError, match="must be finite and at least 0"):
        _ = Operator(MDP_, ot.StepTrace(lambda xp, carry, now: (carry, carry * -1.0)), pi=PI, mu=MU).C


def test_a_tolerance_that_is_missed_is_said() -> None:
    mdp = garnet(20, 3, 3, seed=0, gamma=0.99)
    rng = np.random.default_rng(0)
    op = Operator(mdp, ot.TruncatedIS(), pi=random_policy(mdp, rng), mu=random_policy(mdp, rng), budget=1e-3)
    assert not op.reached
    assert op.contraction.width > op.tolerance
    assert "[" in str(op.contraction)


@settings(max_examples=200)
@given(st.floats(-1e3, 1e3), st.floats(0, 10))
def test_printed_digits_are_known(low: float, width: float) -> None:
    interval = Interval(low, low + width)
    text = str(interval)
    if text.startswith("["):
        ends = [float(x) for x in text.strip("[]").split(",")]
        slack = 1e-3 * max(abs(low), abs(low + width), 1e-12)
        assert ends[0] <= low + slack
        assert ends[1] >= low + width - slack
    else:
        digits = text.split("e")[0].partition(".")[2]
        exponent = int(text.partition("e")[2] or 0)
        unit = 10.0 ** (exponent - len(digits))
        assert abs(float(text) - low) <= 1.01 * unit + 1e-9
        assert abs(float(text) - (low + width)) <= 1.01 * unit + 1e-9


@settings(max_examples=100)
@given(st.floats(-5, 5), st.floats(0, 3), st.floats(-5, 5), st.floats(0, 3), st.floats(0, 1), st.floats(0, 1))
def test_interval_arithmetic_contains(a: float, v: float, b: float, w: float, i: float, j: float) -> None:
    x, y = Interval(a, a + v), Interval(b, b + w)
    p, q = a + i * v, b + j * w
    near = 1e-12
    for found, wanted in ((x + y, p + q), (x - y, p - q), (x * y, p * q), (1 - x, 1 - p), (2 * x, 2 * p)):
        assert found.lower - near <= wanted <= found.upper + near
    with pytest.raises(ValueError, match="lower ≤ upper"):
        Interval(1.0, 0.0)
