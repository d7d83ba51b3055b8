"""The seam of learning methods: what a method states is all that is needed of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import offtrace as ot
from offtrace.learners import GQ, EpsilonGreedy, Method, TraceLearner, control, evaluate
from offtrace.learners.methods.base import TRANSITION, Sparse, Store, Vectors, add, dot
from offtrace.mdps import garnet


@dataclass(frozen=True)
class ByPointer(TraceLearner):
    """Algorithm 1, its step called by the loop as that of any other method."""

    in_loop: ClassVar[bool] = False


@dataclass(frozen=True)
class OldStep(ByPointer):
    """With the arguments of an earlier version."""

    @staticmethod
    def step(t: Any, θ: Any, further: Any, *more: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        add(θ, t.alpha, further)


@dataclass(frozen=True)
class TDC(Method):
    """GQ(0) with other words, in a file of its own: the features, two sets of further weights, of which one counts steps."""

    eta: float
    further: ClassVar[tuple[str, ...]] = ("counts", "v")

    @property
    def title(self) -> str:
        return f"TDC({self.eta})"

    @property
    def trace(self) -> ot.Trace:
        return ot.OneStep()

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.eta,)

    @staticmethod
    def step(t: Any, m: Any, x: Any) -> None:
        counts, v, α_v = m.further[0], m.further[1], m.numbers[0] * t.alpha
        v_φ = dot(v, x.φ)
        add(counts, 1.0, x.φ)
        add(m.θ, t.alpha * t.delta, x.φ)
        add(m.θ, -t.alpha * t.gamma * v_φ, x.φ_next)
        add(v, α_v * (t.delta - v_φ), x.φ)


def problem() -> tuple[Any, dict[str, Any]]:
    mdp, rng = garnet(6, 2, 3, gamma=0.9, seed=2, terminal=1), np.random.default_rng(1)
    run = {
        "target": rng.dirichlet([2.0, 2.0], 6),
        "behavior": rng.dirichlet([8.0, 8.0], 6),
        "features": rng.normal(size=(6, 3)),
    }
    return mdp, {**run, "alpha": 0.02, "steps": 2000, "limit": 30, "certify": False, "seeds": 2}


def test_a_step_by_pointer_is_the_step_in_the_loop() -> None:
    mdp, run = problem()
    for trace in (ot.Retrace(0.8), ot.TreeBackup(0.9), ot.OneStep(), ot.RBIS(0.9), ot.TruncatedIS(1.0, 0.9)):
        inside, outside = (evaluate(method(trace), mdp, **run).weights for method in (TraceLearner, ByPointer))
        np.testing.assert_allclose(outside, inside, rtol=0, atol=1e-12)


def test_a_method_from_outside() -> None:
    """All of it: further weights start at 0 for every seed, and what they hold is used."""
    mdp, run = problem()
    found = evaluate(TDC(0.5), mdp, **run)
    wanted = evaluate(GQ(0.0, alpha_w=0.01), mdp, **run)
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=0, atol=1e-12)
    assert str(found).startswith("TDC(0.5): 2 learners")
    assert found.method == TDC(0.5)
    assert found.trace == ot.OneStep()


def test_a_step_is_python_too() -> None:
    θ, w, none = np.arange(4.0), np.ones((1, 4)), np.zeros((0, 4))
    e, φ = Sparse(np.array([1, 3, 1]), np.array([0.5, 2.0, 0.5])), Sparse(np.array([2]), np.array([1.0]))
    t = np.zeros(1, TRANSITION)[0]
    t.alpha, t.delta, t.gamma = 0.1, 2.0, 0.5
    store = Store(θ, w, none, np.zeros(0, np.int64), np.zeros(0), np.array([0.5, 0.01, 0.0]))
    GQ.step(t, store, Vectors(e=e, on=φ, φ=φ, φ_next=φ))
    np.testing.assert_allclose(θ, [0.0, 1.2, 2.0 - 0.1 * 0.5 * 0.5 * 3.0, 3.4])
    np.testing.assert_allclose(w[0], [1.0, 1.02, 0.99, 1.04])


def test_gq_of_a_table_is_that_of_its_features() -> None:
    """A table is the features of one state each, also where the policies look at the values of s'."""
    mdp = garnet(6, 3, 3, gamma=0.9, seed=2, terminal=1)
    run: dict[str, Any] = {"behavior": EpsilonGreedy(0.5), "target": EpsilonGreedy(0.1), "alpha": 0.05, "steps": 3000}
    table, rows = (control(GQ(0.5, alpha_w=0.05), mdp, **run, features=x).Q for x in (None, np.eye(mdp.S)))
    np.testing.assert_allclose(table, rows, rtol=0, atol=1e-12)


def test_what_a_method_with_a_step_of_its_own_refuses() -> None:
    mdp, run = problem()
    with pytest.raises(TypeError, match=r"OldStep\.step takes t, θ, further: it must take \(t, m, x\)"):
        evaluate(OldStep(ot.RBIS(0.9)), mdp, **run)
    with pytest.raises(ValueError, match="ByPointer learns online"):
        evaluate(ByPointer(ot.Retrace(0.9)), mdp, update="offline", **run)
