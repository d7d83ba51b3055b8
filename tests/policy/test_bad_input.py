"""Each mistake is one error that says what was received and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import KINDS
from offtrace import policy

B, T, A = 2, 3, 2


def given(**others: Any) -> dict[str, Any]:
    """What ACER takes."""
    log, no = np.full((B, T, A), np.log(0.5)), np.zeros((B, T), bool)
    made: dict[str, Any] = {
        "reward": np.zeros((B, T)),
        "q": np.zeros((B, T, A)),
        "next_value": np.zeros((B, T)),
        "gamma": 0.9,
    }
    made |= {"terminated": no, "truncated": no, "log_pi": log, "log_mu": log, "action": np.zeros((B, T), int)}
    return made | others


def changed(array: np.ndarray, to: Any) -> np.ndarray:
    array = array.astype(np.result_type(array, np.asarray(to)))
    array[1, 2] = to
    return array


LOG = np.full((B, T, A), np.log(0.5))
ONE = np.full((B, T), np.log(0.5))
MISTAKES: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"q": np.zeros((B, T))},
        ValueError,
        r"q has shape \(2, 3\) but log_pi has shape \(2, 3, 2\): it must be \(2, 3, 2\)",
    ),
    ({"action": np.zeros((B, T))}, TypeError, "action must hold integers, got float64"),
    ({"action": np.full((B, T), 2)}, ValueError, r"action must lie in \[0, 2\), got 2 at index \[0, 0\]"),
    (
        {"log_pi": changed(LOG, [1.0, 2.0])},
        ValueError,
        r"log_pi .* sum to 10.1073 at index \[1, 2\]: if these are logits, pass",
    ),
    ({"log_mu": changed(LOG, [-np.inf, 0.0])}, ValueError, r"log_mu is −inf at index \[1, 2\]: that action was taken"),
    ({"q": changed(LOG, np.nan)}, ValueError, r"q must be finite, got nan at index \[1, 2, 0\]"),
    ({"valid": np.zeros((B, T))}, TypeError, "valid must be boolean or 0/1 integers, got float64"),
    ({"skip": np.full((B, T), 2)}, ValueError, "skip must hold 0 or 1, got 2"),
    ({"bound": -1.0}, ValueError, r"bound must lie in \[0, inf\]"),
    ({"value_cost": -1.0}, ValueError, "value_cost must lie"),
    ({"reward": np.zeros((B, 1))}, ValueError, "reward"),
]


@pytest.mark.parametrize(("mistake", "kind", "message"), MISTAKES)
def test_critics(mistake: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        policy.acer(ot.Retrace(), **given(**mistake))


def test_reactor_takes_probabilities() -> None:
    with pytest.raises(ValueError, match=r"log_mu must not exceed 0, got 0.5 at index \[0, 0\]"):
        policy.reactor(ot.QLambda(), **given(log_mu=np.full((B, T), 0.5)))
    with pytest.raises(ValueError, match=r"log_mu has shape .* it must be \(2, 3\)"):
        policy.reactor(ot.QLambda(), **given())


ROLLOUT: dict[str, Any] = {"log_pi": ONE, "log_prox": ONE, "advantage": np.ones((B, T))}


@pytest.mark.parametrize(
    ("mistake", "kind", "message"),
    [
        (
            {"advantage": np.ones(T)},
            ValueError,
            r"advantage has shape \(3,\): it must be \(2, 3\), or \(2,\), one for each row",
        ),
        ({"advantage": np.ones((B, T), int)}, TypeError, "advantage must be of a floating dtype, got int64"),
        ({"advantage": changed(ONE, np.inf)}, ValueError, r"advantage must be finite, got inf at index \[1, 2\]"),
        ({"log_prox": changed(ONE, -np.inf)}, ValueError, r"log_prox is −inf at index \[1, 2\]"),
        ({"clip": 1.5}, ValueError, r"clip must lie in \[0, 1\]"),
        ({"clip": (0.1, 0.2, 0.3)}, ValueError, r"clip must be one number or \(low, high\)"),
        ({"clip": "0.2"}, TypeError, r"clip must be one number, got '0.2'"),
        ({"clip": [0.1, np.ones(2)]}, TypeError, r"clip must be one number, got an array of shape \(2,\)"),
        ({"dual": 0.9}, ValueError, "dual must be above 1, got 0.9"),
        ({"weight": ONE, "log_mu": ONE}, TypeError, "weight and log_mu are both given"),
        ({"trace": ot.Retrace()}, TypeError, "trace is given without log_mu"),
        ({"log_mu": ONE, "level": "tokens"}, ValueError, "did you mean 'token'"),
        ({"log_mu": ONE, "segment": np.array([[1, 0, 0], [0, 0, 0]])}, ValueError, "segment"),
    ],
)
def test_surrogates(mistake: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        policy.clipped(**{**ROLLOUT, **mistake})


def test_own_ratios() -> None:
    rollout = {"log_pi": ONE, "log_mu": ONE, "advantage": np.ones(B)}
    for wrong, message in (
        ({"own": -1.0}, r"own must lie in \[0, inf\]"),
        ({"own": 2.0, "level": "token"}, "own is given beside level='token'"),
        ({"own": 2.0, "normalize": "batch"}, "own is given beside normalize"),
    ):
        with pytest.raises(ValueError, match=message):
            policy.weighted(ot.Retrace(), **rollout, **wrong)  # pyright: ignore[reportArgumentType]


def test_groups() -> None:
    for reward, group, kind, message in (
        ([1.0, 2.0, 3.0], [0, 0, 4], ValueError, r"group 4 has one rollout, at index \[2\].* draw at least two"),
        ([1.0, np.nan], [0, 0], ValueError, r"reward must be finite, got nan at index \[1\]"),
        ([1, 2], [0, 0], TypeError, r"reward must be of a floating dtype, got int64: .* reward.astype\(np.float32\)"),
        ([1.0, 2.0], [0.0, 0.0], TypeError, "group must hold integer ids, got float64"),
        ([[1.0, 2.0]], [[0, 0]], ValueError, r"both must be \[B\]"),
    ):
        with pytest.raises(kind, match=message):
            policy.group_advantages(np.array(reward), np.array(group))
    with pytest.raises(ValueError, match=r"eps must lie in \[0, inf\], got -1.0"):
        policy.group_advantages(np.zeros(2), np.zeros(2, int), eps=-1.0)
    with pytest.raises(ValueError, match=r"alone = 'zeros' is not known; did you mean 'zero'"):
        policy.group_advantages(np.zeros(2), np.zeros(2, int), alone="zeros")


@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_that_is_an_array_is_checked_as_a_number_is(kind: str) -> None:
    rollout = {name: KINDS[kind](array) for name, array in ROLLOUT.items()}
    bad, good = (tuple(KINDS[kind](np.array(x)) for x in pair) for pair in ((-5.0, 0.2), (0.2, 0.28)))
    with pytest.raises(ValueError, match=r"clip must lie in \[0, 1\], got -5.0"):
        policy.clipped(**rollout, clip=bad)
    losses = [
        float(policy.clipped(**rollout, clip=clip).loss)
        for clip in (good, [0.2, 0.28], (0.2, 0.28), np.array([0.2, 0.28]))
    ]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


def test_the_mean_is_known() -> None:
    rollout = {"log_pi": ONE, "log_mu": ONE, "advantage": np.ones(B)}
    with pytest.raises(ValueError, match="mean = 'token mean' is not known; did you mean 'token-mean'"):
        policy.weighted(ot.Retrace(), **rollout, mean="token mean")


def test_kinds_of_arrays_do_not_mix() -> None:
    import torch

    advantage: Any = np.ones(2)
    with pytest.raises(
        TypeError, match=r"advantage is a ndarray but log_pi is a tensor: .* torch.as_tensor\(advantage\)"
    ):
        policy.clipped(log_pi=torch.zeros(2), log_prox=torch.zeros(2), advantage=advantage)


def test_a_cost_of_an_entropy_that_is_not_there() -> None:
    no, log = np.zeros(2, bool), np.log([0.5, 0.5])
    row: dict[str, Any] = {name: np.zeros(2) for name in ("reward", "value", "next_value")}
    with pytest.raises(TypeError, match="entropy_cost is given without entropy"):
        policy.vtrace(**row, terminated=no, truncated=no, log_pi=log, log_mu=log, gamma=0.9, entropy_cost=0.1)
