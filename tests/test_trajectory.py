"""Bad input: one clear error that names the argument, the first offending index, the value, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import CUSTOM, name_of


def made(dtype: Any = np.float64, shape: tuple[int, ...] = (3, 5)) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {name: rng.normal(size=shape).astype(dtype) for name in ("reward", "q", "next_value")}
    given |= {name: -rng.random(shape).astype(dtype) for name in ("log_pi", "log_mu")}
    return given | {"terminated": rng.random(shape) < 0.2, "truncated": rng.random(shape) < 0.2, "gamma": 0.9}


def broken(name: str, value: Any, at: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    given = made() | {"terminated": np.zeros((3, 5), bool)}
    given[name] = np.broadcast_to(given[name], (3, 5)).copy()
    given[name][at] = value
    return given


VALUES = [
    (ot.Retrace(), broken("reward", np.nan), r"reward must be finite: got nan at index \[1, 2\]"),
    (ot.Retrace(), broken("reward", np.inf), r"reward must be finite: got inf at index \[1, 2\]"),
    (ot.Retrace(), broken("q", np.nan), r"q must be finite: got nan at index \[1, 2\]"),
    (ot.Retrace(), broken("next_value", -np.inf), r"next_value must be finite: got -inf at index \[1, 2\]"),
    (ot.Retrace(), broken("gamma", 1.5), r"gamma must lie in \[0, 1\]: got 1.5 at index \[1, 2\]"),
    (ot.Retrace(), broken("gamma", np.nan), r"gamma must lie in \[0, 1\]: got nan"),
    (ot.Retrace(), broken("log_pi", np.nan), r"log_pi must be finite or -inf: got nan at index \[1, 2\]"),
    (ot.Retrace(), broken("log_pi", np.inf), "log_pi must be finite or -inf: got inf"),
    (ot.Retrace(), broken("log_mu", -np.inf), r"log_mu is -inf: got -inf at index \[1, 2\]; μ = 0 on an action"),
    (ot.Retrace(), broken("log_mu", np.inf), r"log_mu must be finite: got inf at index \[1, 2\]"),
    (ot.Retrace(), broken("log_mu", np.nan), "log_mu must be finite: got nan"),
    (ot.Retrace(), broken("log_pi", 1e6), "too large to be represented"),
    (
        ot.TreeBackup(),
        broken("log_pi", 0.1),
        r"log_pi is above 0: got 0.1 at index \[1, 2\]; this rule uses the probability",
    ),
    (ot.QSigma(), broken("log_pi", 0.1), "log_pi is above 0"),
    (ot.ABQ(0.5, 1.0, 2.0), broken("log_mu", 0.1), "log_mu is above 0"),
    (ot.ABQ(0.5, 1.0, 2.0), broken("log_mu", -np.inf), "log_mu is -inf"),
    (CUSTOM[2], broken("log_mu", 0.1), "log_mu is above 0"),
    (ot.PengQ(), broken("reward", np.nan), r"reward must be finite: got nan at index \[1, 2\]"),
    (ot.NStep(), broken("next_value", np.nan), "next_value must be finite"),
]


@pytest.mark.parametrize(("trace", "given", "message"), VALUES, ids=[m for _, _, m in VALUES])
def test_bad_values_are_named(trace: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ot.targets(trace, **given)


@pytest.mark.parametrize("trace", [CUSTOM[3], ot.NonMarkovRetrace(), ot.TruncatedIS()], ids=name_of)
def test_every_path_looks(trace: ot.Trace) -> None:
    for name, value in (("reward", np.nan), ("log_mu", -np.inf), ("log_mu", np.inf), ("log_pi", np.nan)):
        with pytest.raises(ValueError, match=rf"{name}.*at index \[1, 2\]"):
            ot.targets(trace, **broken(name, value))


def test_the_first_one_is_named_and_one_row_has_one_index() -> None:
    given = broken("reward", np.nan)
    given["reward"][0, 4] = np.nan
    with pytest.raises(ValueError, match=r"index \[0, 4\]"):
        ot.targets(ot.Retrace(), **given)
    row = {name: array[0] if isinstance(array, np.ndarray) else array for name, array in given.items()}
    with pytest.raises(ValueError, match=r"index \[4\]"):
        ot.targets(ot.Retrace(), **row)


SHAPES = [
    ({"q": np.zeros((3, 4))}, ValueError, r"q has shape \(3, 4\) but reward has shape \(3, 5\)"),
    ({"terminated": np.zeros(5, bool)}, ValueError, r"terminated has shape \(5,\).*nothing is broadcast"),
    ({"gamma": np.full(5, 0.9)}, ValueError, r"gamma has shape \(5,\)"),
    ({"valid": np.ones((3, 1), bool)}, ValueError, r"valid has shape \(3, 1\)"),
    (
        {"reward": np.zeros((3, 5), int)},
        TypeError,
        r"reward must be float16, float32 or float64, got int64: convert it",
    ),
    ({"q": np.zeros((3, 5), np.float32)}, TypeError, "q is float32 but the real arrays before it are float64"),
    ({"q": np.zeros((3, 5), np.float16)}, TypeError, "q is float16 but the real arrays before it are float64"),
    ({"q": "abc"}, TypeError, "q is not an array of numbers, got str"),
    ({"q": [[object()]]}, TypeError, "q is not an array of numbers"),
    ({"terminated": np.zeros((3, 5))}, TypeError, "terminated must be boolean or 0/1 integers, got float64"),
    ({"truncated": np.full((3, 5), 2)}, ValueError, r"truncated must hold 0 or 1, got 2 at index \[0, 0\]"),
    ({"terminated": None}, TypeError, "terminated is missing"),
    ({"log_mu": None}, TypeError, r"log_mu is missing: Retrace needs log μ.*Tree Backup and Q\(λ\) need no μ"),
    ({"log_pi": None}, TypeError, "log_pi is missing: Retrace needs log π"),
    ({"q": None}, TypeError, "q is missing"),
    ({"reward": None}, TypeError, "reward is missing: Retrace needs it"),
    ({"next_value": None}, TypeError, "next_value is missing"),
    ({"q": np.ma.masked_array(np.zeros((3, 5)))}, TypeError, "q is a masked array"),
    ({"gamma": 1.1}, ValueError, r"gamma must lie in \[0, 1\], got 1.1"),
    ({"gamma": float("nan")}, ValueError, "gamma must lie in"),
    ({"gamma": "x"}, TypeError, "gamma must be a number"),
]


@pytest.mark.parametrize(("change", "kind", "message"), SHAPES, ids=[m for _, _, m in SHAPES])
def test_shapes_and_dtypes_are_checked(change: dict[str, Any], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        ot.targets(ot.Retrace(), **(made() | change))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)])
def test_an_empty_batch_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="the batch is empty"):
        ot.targets(ot.Retrace(), **made(shape=shape))


def test_three_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"arrays must be \[T\] or \[B, T\]"):
        ot.targets(ot.Retrace(), **made(shape=(2, 3, 4)))


def test_what_is_not_a_trace_is_refused() -> None:
    with pytest.raises(TypeError, match=r"trace must be an offtrace trace.*got 'retrace'; offtrace.trace\(name\)"):
        ot.targets("retrace", **made())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="not of the operator's form"):
        ot.coefficients(ot.NStep(), terminated=[False], truncated=[False])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="one trajectory"):
        ot.coefficients(ot.QLambda(), terminated=np.zeros((2, 2), bool), truncated=np.zeros((2, 2), bool))
    with pytest.raises(TypeError, match="pair is missing"):
        ot.targets(ot.replacing(), **made())
    with pytest.raises(TypeError, match="pair must be of an integer dtype"):
        ot.targets(ot.replacing(), **made(), pair=np.zeros((3, 5)))


def test_a_custom_trace_that_misbehaves_is_refused() -> None:
    with pytest.raises(ValueError, match="'custom' returned a β that is negative"):
        ot.targets(ot.HistoryTrace(lambda history: -1.0), **made())
    with pytest.raises(ValueError, match="'minus' returned a β that is negative"):
        ot.targets(ot.StepTrace(lambda xp, carry, now: (carry, -carry), title="minus"), **made())
    with pytest.raises(TypeError, match="does not compile"):
        ot.targets(ot.StepTrace(lambda xp, carry, now: (str(carry), 1.0)), **made())


def test_not_read_means_not_needed() -> None:
    """Q(λ) needs no probabilities, Peng no q; log π = −inf is legal; densities above 1 are fine for ratios."""
    given = made()
    logs = ("log_pi", "log_mu")
    bare = {name: array for name, array in given.items() if name not in logs}
    expected = ot.targets(ot.QLambda(0.9), **bare)
    np.testing.assert_array_equal(ot.targets(ot.QLambda(0.9), **(given | {"log_mu": np.full(1, np.nan)})), expected)
    without_q: dict[str, Any] = bare | {"q": None}
    without_mu: dict[str, Any] = given | {"log_mu": None}
    assert np.isfinite(ot.targets(ot.PengQ(0.9), **without_q)).all()
    assert np.isfinite(ot.targets(ot.TreeBackup(0.9), **without_mu)).all()
    assert np.isfinite(ot.targets(ot.Retrace(), **broken("log_pi", -np.inf))).all()
    dense = given | {"log_pi": given["log_pi"] + 5, "log_mu": given["log_mu"] + 5}
    np.testing.assert_allclose(ot.targets(ot.RBIS(0.9), **dense), ot.targets(ot.RBIS(0.9), **given))


def test_terminated_wins_over_truncated() -> None:
    given = made()
    both = given | {"truncated": given["truncated"] | given["terminated"]}
    np.testing.assert_array_equal(ot.targets(ot.Retrace(), **both), ot.targets(ot.Retrace(), **given))


@pytest.mark.parametrize("trace", [ot.Retrace(0.9), ot.NonMarkovRetrace(0.9), ot.PengQ(0.9), CUSTOM[0]], ids=name_of)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inputs_are_untouched_and_any_layout_works(trace: Any, dtype: Any) -> None:
    given = made(dtype) | {"pair": np.arange(15).reshape(3, 5) % 4}
    kept = {name: np.copy(array) for name, array in given.items()}
    wanted = ot.targets(trace, **given)
    for name, array in given.items():
        np.testing.assert_array_equal(array, kept[name])
    layouts = {
        "Fortran": np.asfortranarray,
        "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        "reversed": lambda a: a[::-1].copy()[::-1],
        "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
        "list": lambda a: a.tolist() if a.dtype != np.float32 else a,
        "integers": lambda a: a.astype(np.uint8) if a.dtype == bool else a,
    }
    for change in layouts.values():
        changed = {name: change(array) if isinstance(array, np.ndarray) else array for name, array in given.items()}
        np.testing.assert_array_equal(ot.targets(trace, **changed), wanted)
    for array in given.values():
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    found = ot.targets(trace, **given)
    np.testing.assert_array_equal(found, wanted)
    assert found.flags.writeable
    assert found.dtype == dtype


def test_variable_lambda_must_fit() -> None:
    with pytest.raises(
        ValueError, match=r"array of shape \(4,\), one number for each step, but the trajectory has 3 rows of 5"
    ):
        ot.targets(ot.VariableLambda(np.ones(4)), **made())


def test_action_values() -> None:
    rng = np.random.default_rng(0)
    q, next_q = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4))
    pi, next_pi, mu = (rng.dirichlet(np.ones(4), (2, 3)) for _ in range(3))
    next_pi[0, 0] = [0.0, 1.0, 0.0, 0.0]
    next_q[0, 0, 0] = -np.inf  # a masked action
    next_q[1, 2] = np.nan  # past a terminal state
    action = rng.integers(0, 4, (2, 3))
    found = ot.from_action_values(q, next_q, pi, next_pi, action, mu=mu)
    for b in range(2):
        for t in range(3):
            a = action[b, t]
            assert found["q"][b, t] == q[b, t, a]
            assert found["log_pi"][b, t] == np.log(pi[b, t, a])
            assert found["log_mu"][b, t] == np.log(mu[b, t, a])
    assert found["next_value"][0, 0] == next_q[0, 0, 1]
    padded = action.copy()
    padded[0, 1] = -1
    valid = padded >= 0
    again = ot.from_action_values(q, next_q, pi, next_pi, padded, mu=mu, valid=valid)
    np.testing.assert_array_equal(again["q"][valid], found["q"][valid])
    assert np.isnan(found["next_value"][1, 2])
    np.testing.assert_allclose(found["next_value"][1, 1], next_pi[1, 1] @ next_q[1, 1])
    end = np.zeros((2, 3), bool)
    end[1, 2] = True
    made = ot.targets(ot.Retrace(), reward=np.zeros((2, 3)), terminated=end, truncated=~end & False, gamma=0.9, **found)
    assert np.isfinite(made).all()
    for change, message in (
        ({"pi": pi * 2}, r"pi must hold probabilities that sum to 1"),
        ({"action": action + 4}, r"action must lie in \[0, 4\), got"),
        ({"action": action[0]}, "action must hold integers of shape"),
        ({"next_q": next_q[:, :2]}, "next_q has shape"),
    ):
        arguments = {"q": q, "next_q": next_q, "pi": pi, "next_pi": next_pi, "action": action} | change
        with pytest.raises(ValueError, match=message):
            ot.from_action_values(**arguments)


def test_the_index_is_that_of_the_value_that_is_read() -> None:
    """NaN in padding comes first, and is not what is wrong."""
    given = broken("reward", np.nan)
    given["reward"][0, 1] = given["q"][0, 2] = np.nan
    valid = np.ones((3, 5), bool)
    valid[0, 1] = valid[0, 2] = False
    with pytest.raises(ValueError, match=r"reward must be finite: got nan at index \[1, 2\]"):
        ot.targets(ot.Retrace(), **given, valid=valid)


def test_a_bad_value_in_any_thread_is_seen() -> None:
    given = made(shape=(400, 2000))
    for row in (0, 150, 399):
        changed = given | {"reward": given["reward"].copy()}
        changed["reward"][row, 7] = np.inf
        for trace in (ot.Retrace(), ot.NonMarkovRetrace()):
            with pytest.raises(ValueError, match=rf"reward must be finite: got inf at index \[{row}, 7\]"):
                ot.targets(trace, **changed)


def test_a_log_probability_may_exceed_zero_by_a_rounding_error_only() -> None:
    assert np.isfinite(ot.targets(ot.TreeBackup(), **broken("log_pi", 1e-7))).all()
    with pytest.raises(ValueError, match="log_pi is above 0"):
        ot.targets(ot.TreeBackup(), **broken("log_pi", 1e-5))


def test_v_trace_calls_things_by_their_names() -> None:
    given = broken("q", np.nan)
    given["value"] = given.pop("q")
    with pytest.raises(ValueError, match=r"value must be finite: got nan at index \[1, 2\]"):
        ot.state_targets(**given)
    with pytest.raises(TypeError, match="reward is missing: V-trace needs it"):
        ot.state_targets(**(given | {"reward": None}))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="rho_bar must lie in"):
        ot.state_targets(**given, rho_bar=-1.0)


def test_lambda_by_step_may_be_nan_at_padding_only() -> None:
    given, lam, valid = made(), np.full((3, 5), 0.5), np.ones((3, 5), bool)
    lam[1, 4], valid[1, 4] = np.nan, False
    assert np.isfinite(ot.targets(ot.VariableLambda(lam), **given, valid=valid)).all()
    with pytest.raises(ValueError, match=r"holds NaN for step \[1, 4\]"):
        ot.targets(ot.VariableLambda(lam), **given)
    with pytest.raises(ValueError, match="one number for each step"):
        ot.coefficients(
            ot.VariableLambda([0.5]),
            terminated=np.zeros(7, bool),
            truncated=np.zeros(7, bool),
            log_pi=np.zeros(7),
            log_mu=np.zeros(7),
        )
