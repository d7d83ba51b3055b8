"""The spectral radius: every matrix in the box, nonnegative ones, ones known only by products, and of M itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace.mdps import bifurcation, epsilon_greedy, garnet, random_policy
from offtrace.operators import Operator
from offtrace.operators import operator as operator_module
from offtrace.operators.spectral_radius import by_ratios, perron, spectral_radius


def largest(A: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvals(A)).max())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-8, 1e-4]), st.booleans())
def test_spectral_radius_contains_every_matrix_in_the_box(seed: int, size: float, defective: bool) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    A = np.triu(rng.integers(-1, 2, (n, n)).astype(float)) if defective else rng.normal(size=(n, n))
    R = size * rng.random((n, n))
    found = spectral_radius(A, R)
    for _ in range(5):
        true = np.abs(np.linalg.eigvals(A + R * rng.uniform(-1, 1, (n, n)))).max()
        if not (defective and size == 0):
            assert found.lower - 1e-9 <= true <= found.upper + 1e-9
    if not defective and size == 0:
        assert found.width < 1e-6


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-10, 1e-3]), st.floats(0.05, 1.0))
def test_nonnegative_matrices(seed: int, size: float, density: float) -> None:
    """Sparse ones too, reducible and defective: ratios close on every class, and the box's ends bound it."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    A = rng.random((n, n)) * (rng.random((n, n)) < density)
    R = np.minimum(size * rng.random((n, n)), A)  # 0 stays 0
    found = spectral_radius(A, R, nonnegative=True)
    for Z in (A - R, A, A + R):
        assert (
            found.lower - 1e-7 <= largest(Z) <= found.upper + 1e-7
        )  # eigvals itself is off by as much where defective
    assert found.width <= 1e-12 + 20 * n * size


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 1.0))
def test_matrices_known_only_by_products(seed: int, density: float) -> None:
    """Rows that fade away under powers (transient states) must not raise the lower bound."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    Z = rng.random((n, n)) * (rng.random((n, n)) < density) * 10.0 ** rng.integers(-4, 1, (n, 1))

    def times(V: np.ndarray, gap: float) -> tuple[np.ndarray, np.ndarray]:
        return Z @ V * (1 - 1e-13) - 0.4 * gap, Z @ V * (1 + 1e-13) + 0.4 * gap

    found = by_ratios(times, n, 1e-6)
    exact = spectral_radius(Z, np.zeros_like(Z), nonnegative=True)
    assert found.lower - 1e-12 <= exact.lower
    assert exact.upper <= found.upper + 1e-12


def test_perron_closes() -> None:
    B = np.random.default_rng(0).random((40, 40)) ** 20  # entries over many orders of magnitude
    found = perron(B)
    assert largest(B) == pytest.approx(found.midpoint, rel=1e-12)
    assert found.width < 1e-11 * found.upper


def test_a_rotated_jordan_block() -> None:
    """Too few eigenvectors, signs mixed: eigenvalues move by the fourth root of the error, and powers bound that."""
    J = 0.5 * np.eye(4) - np.diag(np.ones(3), 1)
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    found = spectral_radius(Q @ J @ Q.T, np.full((4, 4), 1e-12))
    assert 0.5 in found
    assert found.width < 0.1


@pytest.mark.parametrize(
    "trace", [ot.NonMarkovRetrace(0.9), ot.RBIS(1.0), ot.Retrace(0.9), ot.TruncatedIS(), ot.QLambda(0.5)]
)
@pytest.mark.parametrize("name", ["bifurcation", "garnet"])
def test_of_operators(trace: Any, name: str) -> None:
    """On Bifurcation 1 RBIS(1) has nearly a defective 0: what the error of C allows is small, where ‖Z‖ is 0.6."""
    mdp = bifurcation(1) if name == "bifurcation" else garnet(8, 2, 2, seed=1, gamma=0.9)
    rng = np.random.default_rng(0)
    if name == "bifurcation":
        pi, mu = (epsilon_greedy(mdp.optimal_q(), ε) for ε in (0.1, 0.5))
    else:
        pi, mu = random_policy(mdp, rng), random_policy(mdp, rng)
    op = Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-5)
    radius, guess = op.spectral_radius, largest(op.Z)
    nearly_nilpotent = name == "bifurcation" and isinstance(trace, ot.RBIS)
    assert radius.width <= (5e-3 if nearly_nilpotent else 1e-5)
    assert abs(radius.midpoint - guess) <= (5e-3 if nearly_nilpotent else 1e-5)


def test_of_large_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a dense Z, products alone close the interval where Z ≥ 0, and ‖Z‖ bounds it elsewhere."""
    mdp = garnet(20, 2, 3, seed=1, gamma=0.95)
    rng = np.random.default_rng(0)
    pi, mu = random_policy(mdp, rng), random_policy(mdp, rng)
    wanted = largest(Operator(ot.Retrace(0.9), mdp, target=pi, behavior=mu).Z)
    monkeypatch.setattr(operator_module.closed_form, "DENSE", 20)
    op = Operator(ot.Retrace(0.9), mdp, target=pi, behavior=mu)
    assert wanted in op.spectral_radius
    assert op.spectral_radius.width <= 1e-6
