"""Methods whose λ depends on what came before a start, against their equations, their bounds, and what they promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from learners import methods_by_definition as plain
from offtrace.learners import BoundedTD, HistoryTD, follow, method

X = np.random.default_rng(3).normal(size=(5, 3)) * [[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1]]


def run(learner: Any, steps: plain.Steps, X: np.ndarray | None = X, **more: Any) -> np.ndarray:
    return follow(learner, features=X, marks=np.arange(1, len(steps.state) + 1), **steps._asdict(), **more)


def by_equations(
    steps: plain.Steps, X: np.ndarray, alpha: float, eta: float, rate: Any
) -> tuple[np.ndarray, np.ndarray]:
    """w after each step, and ‖λγρe‖ of each; λ = rate(t, e)."""
    w, v = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    e, found, sizes = np.zeros(X.shape[1]), [], []
    for t in range(len(steps.state)):
        x = X[steps.state[t]]
        after = np.zeros_like(x) if steps.terminated[t] else X[steps.next_state[t]]
        e = x.copy() if steps.begins(t) else e + x
        δ, ρ, γ = steps.reward[t] + steps.gamma * w @ after - w @ x, steps.ratio(t), steps.gamma
        λ = rate(t, e)
        change = alpha * (ρ * δ * e - γ * ρ * (1 - λ) * (e @ v) * after)
        v = v + eta * alpha * (ρ * δ * e - (x @ v) * x)
        w, e = w + change, λ * γ * ρ * e
        found.append(w)
        sizes.append(np.linalg.norm(e))
    return np.array(found), np.array(sizes)


@pytest.mark.parametrize("eta", [0.0, 0.5])
@pytest.mark.parametrize(("bound", "lam"), [(0.7, 1.0), (2.0, 0.9), (0.0, 1.0)])
def test_bounded_traces(bound: float, lam: float, eta: float) -> None:
    steps = plain.made(seed=1)

    def rate(t: int, e: np.ndarray) -> float:
        size = steps.gamma * steps.ratio(t) * np.linalg.norm(e)
        return float(min(lam, bound / size)) if size else lam

    wanted, sizes = by_equations(steps, X, 0.05, eta, rate)
    assert sizes.max() <= bound + 1e-12
    found = run(BoundedTD(bound=bound, lam=lam, eta=eta, alpha=0.05), steps)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


def test_limits_are_methods_that_are_known() -> None:
    """A bound that never acts is TD(λ) or GTD(λ); a bound of 0 is TD(0)."""
    steps = plain.made(seed=2)
    for eta, name in ((0.0, "td"), (0.5, "gtd")):
        given: dict[str, Any] = {"eta": eta} if eta else {}
        for bound, lam, same in ((1e9, 0.8, 0.8), (0.0, 0.8, 0.0)):
            found = run(BoundedTD(bound=bound, lam=lam, eta=eta, alpha=0.05), steps)
            wanted = run(method(name, lam=same, alpha=0.05, **given), steps)
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


@dataclass(frozen=True)
class AfterThreeSteps(HistoryTD):
    """A λ that counts the steps of the episode, and halves at each visit to state 0 before."""

    scalars: ClassVar = ("steps", "visits")

    @staticmethod
    def rate(t: Any, norm: float, m: Any) -> float:
        m.scalars[0] += 1.0
        if t.state == 0:
            m.scalars[1] += 1.0
        return 0.0 if m.scalars[0] < 3.0 else 0.5 ** m.scalars[1]


@dataclass(frozen=True)
class TooLarge(HistoryTD):
    """No λ."""

    @staticmethod
    def rate(t: Any, norm: float, m: Any) -> float:
        return 1.5


def test_a_function_of_the_user_s() -> None:
    steps = plain.made(seed=4)
    seen = np.zeros(2)

    def rate(t: int, e: np.ndarray) -> float:
        if steps.begins(t):
            seen[:] = 0
        seen[0] += 1
        seen[1] += steps.state[t] == 0
        return 0.0 if seen[0] < 3 else 0.5 ** seen[1]

    wanted, _ = by_equations(steps, X, 0.05, 0.5, rate)
    np.testing.assert_allclose(run(AfterThreeSteps(eta=0.5, alpha=0.05), steps), wanted, rtol=1e-9, atol=1e-11)
    assert np.isnan(run(TooLarge(alpha=0.05), steps)[-1]).any()
    with pytest.raises(TypeError, match="abstract"):
        HistoryTD()  # pyright: ignore[reportAbstractUsage]
