"""Rows of policies: one tolerance decides everywhere what is a distribution, and what is close to one is made one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace import mdps
from offtrace.learners.policies import coded
from offtrace.logs import Logs, read
from offtrace.logs.policies import as_policy
from offtrace.logs.starts import Starts
from offtrace.operators import Operator
from offtrace.studies.policies import declared_policy
from offtrace.trajectory import ROW_TOLERANCE, distributions

MDP = mdps.random_walk(3, gamma=0.9)


def logs() -> Logs:
    """Two states, two actions, one step each."""
    steps = {"observations": [0, 1], "actions": [0], "rewards": [1.0], "terminations": [True], "truncations": [False]}
    other = {"observations": [1, 0], "actions": [1], "rewards": [0.0], "terminations": [True], "truncations": [False]}
    return read([steps, other])


def table(row: list[float], S: int = MDP.S) -> np.ndarray:
    return np.tile(np.array(row), (S, 1))


def through_action_values(row: list[float]) -> Any:
    pi, q = table(row, 2), np.zeros((2, 2))
    return ot.from_action_values(q=q, next_q=q, pi=pi, next_pi=pi, action=np.array([0, 1]))


ENTRIES: dict[str, Callable[[list[float]], Any]] = {
    "mdps.check_policy": lambda row: mdps.check_policy(table(row), MDP),
    "mdps.mixture": lambda row: mdps.mixture(table(row), table([0.5, 0.5]), 0.5),
    "MDP.q": lambda row: MDP.q(table(row)),
    "Operator": lambda row: Operator(ot.Retrace(), MDP, target=table(row), behavior=table([0.5, 0.5])),
    "learners": lambda row: coded("pi", table(row), (MDP.S, 2), 2),
    "evaluation, a table": lambda row: as_policy(table(row, 2), logs()),
    "evaluation, a function": lambda row: as_policy(lambda states: table(row, len(states)), logs()),
    "evaluation, the start": lambda row: Starts.of(logs(), np.array(row)),
    "studies": lambda row: declared_policy(row),
    "from_action_values": through_action_values,
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_one_tolerance(entry: str, sign: int) -> None:
    def row(off: float) -> list[float]:
        return [0.25, 0.75 + sign * off]

    ENTRIES[entry](row(0.9 * ROW_TOLERANCE))
    with pytest.raises((ValueError, TypeError), match="sum"):
        ENTRIES[entry](row(1.1 * ROW_TOLERANCE))
    with pytest.raises((ValueError, TypeError)):
        ENTRIES[entry]([1.0 + 1e-7, -1e-7])


@pytest.mark.parametrize("A", [2, 18, 1000, 32_000])
def test_a_softmax_in_float32_is_a_distribution(A: int) -> None:
    for scale in (0.1, 1.0, 5.0, 20.0):
        logits = np.float32(scale) * np.random.default_rng(0).standard_normal((4, A), np.float32)
        above = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows = distributions(above / above.sum(axis=1, keepdims=True), "pi")
        assert rows.dtype == np.float64
        assert np.abs(rows.sum(axis=1) - 1).max() <= A * np.finfo(np.float64).eps


def test_rows_that_sum_to_one_stay_as_they_are() -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(7), size=100)
    assert distributions(rows, "pi") is rows
    assert np.array_equal(distributions(rows.tolist(), "pi"), rows)


def test_what_is_computed_is_that_of_the_distribution() -> None:
    """Guaranteed bounds rest on rows that sum to one: a row that is off must not carry its error into them."""
    exact, off = table([0.25, 0.75]), table([0.25, 0.75]) * (1 + 9e-6)
    np.testing.assert_allclose(MDP.q(off), MDP.q(exact), rtol=1e-13)
    wanted, found = (
        Operator(ot.Retrace(), MDP, target=pi, behavior=table([0.5, 0.5])).contraction for pi in (exact, off)
    )
    assert found.lower == pytest.approx(wanted.lower, rel=1e-12)
    assert coded("pi", off, (MDP.S, 2), 2).table.sum(axis=1) == pytest.approx(1.0, abs=1e-15)
    assert as_policy(table([0.25, 0.75], 2) * (1 + 9e-6), logs()).probabilities(np.array([0])).sum() == pytest.approx(
        1.0, abs=1e-15
    )


def test_the_error_names_the_row() -> None:
    with pytest.raises(ValueError, match=r"pi in state 1 is \[0\.5, 0\.6\], which sums to 1\.1.*within 1e-05.*divide"):
        distributions([[0.5, 0.5], [0.5, 0.6]], "pi")
    with pytest.raises(ValueError, match=r"pi in state 0 is .* nan"):
        distributions([[np.nan, 0.5]], "pi")
