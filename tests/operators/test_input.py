"""Bad input is refused with a word on what to do; intervals print what is known and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace import operators
from offtrace.mdps import MDP, garnet, random_policy
from offtrace.operators import Divergent, Interval, Operator
from operators.brute import tiny

MDP_, PI, MU = tiny(0, 0.9)
OPERATORS: Any = operators  # calls that a type checker would refuse, too
HISTORY = ot.HistoryTrace(lambda history: 1.0)


def swept(family: Any) -> operators.Tradeoff:
    """A trade-off of one family at one λ."""
    return operators.tradeoff(MDP_, PI, MU, PI, lams=(0.5,), families=[family], bounds=(), tolerance=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": np.ones((2, 3)) / 3}, r"target must be an array \[S, A\] = \[2, 2\]"),
        ({"behavior": np.full((2, 2), 0.4)}, "behavior in state 0 is .* sums to 0.8"),
        ({"target": np.array([[1.5, -0.5], [0.5, 0.5]])}, "target in state 0 is .*must not be negative"),
        ({"target": np.full((2, 2), np.nan)}, "target in state 0 is .*nan"),
        ({"tolerance": 0.0}, "tolerance must be above 0"),
        ({"budget": -1.0}, "budget"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"target": PI, "behavior": MU} | change
    with pytest.raises(ValueError, match=message):
        Operator(ot.Retrace(), MDP_, **given)


def test_not_a_trace() -> None:
    with pytest.raises(TypeError, match="beside the operator"):
        Operator(ot.PengQ(), MDP_, target=PI, behavior=MU)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="not a trace"):
        Operator("retrace", MDP_, target=PI, behavior=MU)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="needs lam for each pair"):
        Operator(ot.VariableLambda(lam=np.ones(7)), MDP_, target=PI, behavior=MU)
    op = Operator(ot.VariableLambda(lam=np.full((2, 2), 0.7)), MDP_, target=PI, behavior=MU)
    np.testing.assert_allclose(op.C, Operator(ot.ImportanceSampling(lam=0.7), MDP_, target=PI, behavior=MU).C)
    with pytest.raises(ValueError, match="Q must be an array"):
        op.apply(np.zeros(4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: OPERATORS.Operator(MDP_, ot.Retrace(), target=PI, behavior=MU),
            "the trace comes first.*Operator\\(trace, mdp",
        ),
        (lambda: OPERATORS.certify(MDP_, ot.Retrace(), PI, MU), "the trace comes first"),
        (lambda: OPERATORS.falsify(MDP_), "trace must be an offtrace trace"),
        (lambda: OPERATORS.falsify(ot.PengQ()), "Peng's Q.* has a target, but no coefficients β"),
        (lambda: OPERATORS.falsify(HISTORY), "whole history is too slow.*StepTrace"),
        (lambda: swept(ot.StepTrace), r"give the trace itself, StepTrace\(…\)"),
        (lambda: swept(HISTORY), "custom has no number to sweep: tradeoff varies λ"),
        (lambda: swept(ot.StepTrace(lambda xp, c, now: (c, c))), "does not use now.lam"),
        (lambda: swept(ot.replacing), "families must hold classes of rules.*or traces"),
        (lambda: swept("retrace"), "families must hold classes of rules"),
        (lambda: OPERATORS.tradeoff(MDP_, PI, MU, PI, families=ot.Retrace), "families must be a list"),
        (
            lambda: OPERATORS.control_iterates(MDP_, ot.Retrace(), behavior=MU, q0=PI),
            "the trace comes first.*control_iterates",
        ),
        (lambda: OPERATORS.uncorrected(MDP_, ot.PengQ(), PI, MU), "uncorrected\\(trace, mdp, target, behavior\\)"),
        (lambda: OPERATORS.uncorrected(ot.Retrace(), MDP_, PI, MU), "needs an uncorrected return"),
    ],
)
def test_a_call_in_the_old_order_or_with_the_old_names_says_what_to_write(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_missing_support_is_warned_of() -> None:
    mu = np.array([[0.5, 0.5], [1.0, 0.0]])
    pi = np.full((2, 2), 0.5)
    with pytest.warns(UserWarning, match="first at state 1, action 1"):
        op = Operator(ot.ImportanceSampling(), MDP_, target=pi, behavior=mu)
    assert op.contraction.lower > 0.1  # no longer 0


def test_undiscounted() -> None:
    P = np.zeros((2, 2, 2))
    P[0, 0], P[0, 1] = [0.0, 1.0], [1.0, 0.0]
    mdp = MDP(P, [[1.0, 1.0], [0.0, 0.0]], 1.0, terminal=[False, True])
    half = np.full((2, 2), 0.5)
    for trace in (ot.Retrace(lam=0.9), ot.NonMarkovRetrace(lam=0.9), ot.TruncatedIS(lam=0.9)):
        op = Operator(trace, mdp, target=np.array([[0.6, 0.4], [0.5, 0.5]]), behavior=half)
        fixed = mdp.q(np.array([[0.6, 0.4], [0.5, 0.5]]))
        np.testing.assert_allclose(op.apply(fixed), fixed, atol=1e-9)
    stay = np.array([[0.0, 1.0], [0.5, 0.5]])
    with pytest.raises(ValueError, match="gamma = 1 needs episodes that end: under the behavior"):
        Operator(ot.Retrace(), mdp, target=stay, behavior=stay)


class Doubling(ot.Trace):
    """β_t = 2^t: there is no operator at γ = 0.9."""

    @staticmethod
    def factors(xp: Any, pi: Any, mu: Any, rho: Any) -> Any:
        return 1.0, 2.0, float("inf")


def test_divergent_sums_and_bad_coefficients() -> None:
    with pytest.raises(Divergent, match="infinite mean"):
        _ = Operator(Doubling(), MDP_, target=PI, behavior=MU).C
    with pytest.raises(ValueError, match="must be finite and at least 0"):
        _ = Operator(ot.StepTrace(lambda xp, carry, now: (carry, carry * -1.0)), MDP_, target=PI, behavior=MU).C


def test_a_tolerance_that_is_missed_is_said() -> None:
    mdp = garnet(20, 3, 3, seed=0, gamma=0.99)
    rng = np.random.default_rng(0)
    op = Operator(ot.TruncatedIS(), mdp, target=random_policy(mdp, rng), behavior=random_policy(mdp, rng), budget=1e-3)
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


def test_an_interval_is_in_order() -> None:
    with pytest.raises(ValueError, match="lower ≤ upper"):
        Interval(1.0, 0.0)
