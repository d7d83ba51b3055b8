"""`follow`: every method against independent figures, against its equations, and against what the learners do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import TRACES
from learners import methods_by_definition as plain
from offtrace.learners import Method, follow, listed_methods, method

REFERENCE = np.load(Path(__file__).parent.parent / "reference" / "offpolicy_td.npz")
X = np.random.default_rng(3).normal(size=(5, 3)) * [[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1]]

OF_STATES: list[Method] = [
    *(
        method(name, alpha=0.05, lam=lam)
        for name in ("td", "tree backup", "v-trace", "etd", "ptd")
        for lam in (0.0, 0.8)
    ),
    method("v-trace", alpha=0.05, lam=0.9, rho_bar=1.1, c_bar=0.9),
    method("abtd", alpha=0.05, zeta=0.7),
    method("etdlb", alpha=0.05, lam=0.4, beta=0.7),
    method("tdrc", alpha=0.05, lam=0.8, eta=0.5, kappa=0.3),
    *(method(name, alpha=0.05, lam=lam, eta=0.5) for name in ("gtd", "gtd2", "pgtd2", "htd") for lam in (0.3, 1.0)),
]
OF_ACTIONS: list[Method] = [
    method("gq", alpha=0.05, lam=0.6, eta=0.5),
    method("gradient abq", alpha=0.05, zeta=0.6, eta=0.5),
    ot.learners.GradientTrace(ot.Retrace(0.8), eta=0.5, alpha=0.05),
    method("pq", alpha=0.05, lam=0.7),
    method("pq", alpha=0.05, lam=1.0),
    method("expected sarsa", alpha=0.05, lam=0.7),
    method("retrace", alpha=0.05, lam=0.9, values="action"),
    method("peng", alpha=0.05, lam=0.8),
    method("n-step", alpha=0.05, n=1),
    method("n-step", alpha=0.05, n=3),
]
ON_POLICY: list[Method] = [method(n, alpha=0.05, lam=0.8) for n in ("true online td", "sarsa", "true online sarsa")]


def run(learner: Method, steps: plain.Steps, X: np.ndarray = X, **more: Any) -> np.ndarray:
    arrays = steps._asdict() | more
    return follow(learner, features=X, marks=np.arange(1, len(steps.state) + 1), **arrays)


def twin(learner: Method, steps: plain.Steps) -> np.ndarray:
    both = ((p, p) for p in (steps.target, steps.behavior))
    return (plain.of_states if learner.values == "state" else plain.of_actions)(learner.for_policies(*both), X, steps)


@pytest.mark.parametrize("key", [k for k in REFERENCE.files if k.startswith("w:")])
def test_independent_figures(key: str) -> None:
    """tests/reference/offpolicy_td.npz: eleven methods by code that has nothing to do with this library."""
    name, alpha, lam = (part.split("=")[-1] for part in key[2:].split("|"))
    given: dict[str, Any] = {"lam": float(lam)}
    if name == "ABTD":
        given = {"zeta": float(lam), "psi0": 1.0, "psi_max": 2.0}
    if name in ("GTD", "GTD2", "PGTD2", "HTD", "TDRC"):
        given["eta"] = 0.5
    d = {n: REFERENCE[n] for n in ("state", "action", "reward", "next_state", "terminated", "marks")}
    w = follow(
        method(name, alpha=float(alpha), **given), features=REFERENCE["X"], target=REFERENCE["pi"], behavior=REFERENCE["mu"],
        gamma=float(REFERENCE["gamma"]), **d,
    )  # fmt: skip
    np.testing.assert_allclose(w, REFERENCE[key], rtol=0, atol=1e-10)


@pytest.mark.parametrize("learner", [*OF_STATES, *OF_ACTIONS], ids=lambda m: m.title)
def test_equals_its_equations(learner: Method) -> None:
    for seed in (0, 1):
        steps = plain.made(seed=seed)
        np.testing.assert_allclose(run(learner, steps), twin(learner, steps), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("learner", ON_POLICY, ids=lambda m: m.title)
def test_on_policy_methods_equal_their_equations(learner: Method) -> None:
    steps = plain.made(on_policy=True, truncated=learner.values == "state")
    found = run(learner, steps._replace(terminated=np.append(steps.terminated[:-1], True)), target=None)
    wanted = twin(learner, steps._replace(terminated=np.append(steps.terminated[:-1], True)))
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


def test_every_method_is_tried() -> None:
    tried = {type(m) for m in (*OF_STATES, *OF_ACTIONS, *ON_POLICY)}
    elsewhere = {ot.learners.BoundedTD}  # in test_histories
    assert tried | elsewhere >= set(listed_methods())


@pytest.mark.parametrize("trace", [t for t in TRACES if not t.needs_greedy], ids=lambda t: f"{t.title} {t.horizon}")
def test_state_values_with_any_trace(trace: ot.Trace) -> None:
    """A trace by itself, and with the gradient corrections, as far as it does not clip the ratio of δ."""
    steps = plain.made(seed=2)
    found = follow(trace, values="state", alpha=0.05, features=X, marks=range(1, 81), **steps._asdict())
    both = ((p, p) for p in (steps.target, steps.behavior))
    learner = ot.learners.StateTraceLearner(trace, alpha=0.05).for_policies(*both)
    np.testing.assert_allclose(found, plain.of_states(learner, X, steps), rtol=1e-9, atol=1e-11)
    if np.isfinite(trace.delta_bound):
        with pytest.raises(ValueError, match="clips the ratio"):
            method("gtd", trace=trace)
        return
    for name in ("gtd", "htd"):
        learner = method(name, alpha=0.05, eta=0.5, trace=trace)
        np.testing.assert_allclose(run(learner, steps), twin(learner, steps), rtol=1e-8, atol=1e-10)
