"""The kernel for a cap at read-out against direct sums, and Truncated IS against its definition."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace.returns import by_definition
from offtrace.returns.numpy import gradients
from offtrace.returns.numpy.every_pair import NO_LAGS


def correction(delta, g, ratio, cap) -> np.ndarray:
    """Δ of one row by the kernel."""
    delta, g, ratio, cap = (np.array(a, np.float64)[None] for a in (delta, g, ratio, cap))
    return gradients.correct(delta, g, ratio, cap, NO_LAGS, False)[0]


def plain(delta, g, ratio, cap, starts=None) -> tuple[np.ndarray, np.ndarray]:
    """Δ_k = Σ_{t≥k} D min(cap_t, x) δ_t and Σ |…| in forty decimals, with no limit on the size of a product."""
    T = len(delta)
    Δ, scale = [], []
    with localcontext() as context:
        context.prec = 40
        δ, γ, ρ, c = ([Decimal(float(a)) for a in values] for values in (delta, g, ratio, cap))
        for k in range(T) if starts is None else starts:
            total, size, D, x = δ[k], abs(δ[k]), Decimal(1), Decimal(1)
            for t in range(k + 1, T):
                D, x = D * γ[t - 1], x * ρ[t]
                if D == 0 or x == 0:
                    break
                term = D * min(c[t], x) * δ[t]
                total, size = total + term, size + abs(term)
            Δ.append(float(total))
            scale.append(float(size))
    return np.array(Δ), np.array(scale)


def in_rows(delta, g, ratio, cap) -> tuple[np.ndarray, np.ndarray]:
    """The same for long rows, in floating point, start by start, each up to where its discount is 0."""
    T = len(delta)
    Δ, scale, ends = np.zeros(T), np.zeros(T), np.append(np.flatnonzero(g[:-1] == 0.0), T - 1)
    for k in range(T):
        end = ends[np.searchsorted(ends, k)] + 1
        weight = np.cumprod(np.append(1.0, g[k : end - 1]))
        x = np.cumprod(ratio[k + 1 : end])
        terms = weight * np.append(1.0, np.minimum(cap[k + 1 : end], x)) * delta[k:end]
        Δ[k], scale[k] = terms.sum(), np.abs(terms).sum()
    return Δ, scale


def assert_near(found: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> None:
    representable = scale < 1e290
    error = np.abs(found[representable] - expected[representable])
    allowed = (1e-12 * scale + 1e-270)[representable]
    assert np.all(error <= allowed), (np.flatnonzero(~(error <= allowed))[:5], np.max(error / allowed))


RATIOS = {
    "one": [1.0],
    "halves and doubles": [0.5, 2.0],
    "nearly one": [1.0, 1.0 - 2**-53, 1.0 + 2**-52],
    "thirds": [1 / 3, 3.0, 1.0],
    "ends": [0.0, 1.0, 2.0, 0.5],
    "far": [1e-30, 1e30],
    "falling far": [1e-30, 1e-30, 1e30, 1.0],
    "rising far": [1e30, 1e30, 1e-30, 0.0],
    "extreme": [1e-308, 5e-324, 1e300, 1.7e308, 1.0],
    "small": [0.9, 0.1],
    "large": [1.1, 10.0],
}
CAPS = [[1.0], [0.5], [2.0], [np.inf], [0.0], [1.0, 0.5, 3.0], [0.0, 1.0, np.inf], [1e-300, 1.0, 1e30], [5e-324, 1.0]]
DECAYS = [[1.0], [0.99], [0.9, 1.0], [0.0, 1.0, 1.0, 1.0], [0.0], [1e-12], [1e-200, 1.0], [0.5]]
ERRORS = [[1.0], [0.0], [0.0, 0.0, 1.0], [1.0, -1.0], [1e-8, 1e8, -1.0]]


@st.composite
def nasty_rows(draw):
    T = draw(st.sampled_from([1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 150, 200, 290]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    noise = draw(st.booleans())
    delta, g, cap = (rng.choice(draw(st.sampled_from(pool)), T) for pool in (ERRORS, DECAYS, CAPS))
    ratio = rng.choice(RATIOS[draw(st.sampled_from(sorted(RATIOS)))], T)
    if noise:
        delta = delta * rng.normal(size=T)
        ratio = np.minimum(ratio, 1e305) * np.exp(rng.normal(0, draw(st.sampled_from([1e-9, 0.1, 1.0])), T))
    ratio[draw(st.integers(0, T - 1)) :: 97] *= draw(st.sampled_from([0.0, 1.0]))
    g[-1] = 0.0
    return delta, g, ratio, cap


@settings(max_examples=60, deadline=None)
@given(nasty_rows())
def test_the_kernel_is_the_direct_sum(row):
    expected, scale = plain(*row)
    assert_near(correction(*row), expected, scale)


@pytest.mark.parametrize("T", [1000, 2500])
@pytest.mark.parametrize(("drift", "sigma"), [(0, 0.3), (-0.5, 1.0), (0.01, 0.1), (0, 0.001), (-0.02, 0.2), (0, 0)])
@pytest.mark.parametrize("g", [1.0, 0.95])
def test_long_rows(T, drift, sigma, g):
    rng = np.random.default_rng(T)
    ratio = np.exp(rng.normal(drift, sigma, T))
    discount = np.where(rng.random(T) < 1 / 700, 0.0, g)
    discount[-1] = 0.0
    for cap in (np.ones(T), np.full(T, 0.7), np.exp(rng.normal(0, 1, T))):
        row = rng.normal(size=T), discount, ratio, cap
        expected, scale = in_rows(*row)
        assert_near(correction(*row), expected, scale)


def test_products_beyond_the_range_of_a_number_come_back():
    """x climbs to 2^10000 and falls to 2^-10000: starts on either slope meet the cap again on the other."""
    turns = np.array([2.0, 0.5, 2.0]).repeat([10_000, 20_000, 10_000])
    rng = np.random.default_rng(5)
    T = len(turns)
    row = rng.normal(size=T), np.append(np.ones(T - 1), 0.0), turns, np.full(T, 3.0)
    starts = [0, 1, 5_000, 9_998, 9_999, 10_000, 15_000, 20_000, 29_999, 30_000, T - 2, T - 1]
    expected, scale = plain(*row, starts)
    assert_near(correction(*row)[starts], expected, scale)


def test_rows_of_a_block_are_independent():
    rng = np.random.default_rng(3)
    T = 700
    easy = rng.normal(size=T), np.full(T, 0.9), np.exp(rng.normal(-0.5, 1.0, T)), np.ones(T)
    hard = rng.normal(size=T), np.ones(T), np.exp(rng.normal(0.0, 0.5, T)), np.ones(T)
    delta, g, ratio, cap = (np.stack([a, b, a, b]) for a, b in zip(easy, hard, strict=True))
    g[:, -1] = 0.0
    out = gradients.correct(delta, g, ratio, cap, NO_LAGS, False)
    for i, row in enumerate(zip(delta, g, ratio, cap, strict=True)):
        expected, scale = in_rows(*row)
        assert_near(out[i], expected, scale)


@pytest.mark.parametrize("bound", [0.0, 0.5, 1.0, 2.0, 1e6])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_truncated_is_by_definition(bound, lam):
    rng = np.random.default_rng(11)
    T = 150
    log_pi = np.where(rng.random(T) < 0.02, -np.inf, rng.normal(-1.0, 0.5, T))
    row = {
        "reward": rng.normal(size=T),
        "q": rng.normal(size=T),
        "next_value": rng.normal(size=T),
        "terminated": rng.random(T) < 0.02,
        "truncated": rng.random(T) < 0.02,
        "log_pi": log_pi,
        "log_mu": rng.normal(-1.0, 0.5, T),
        "gamma": 1.0,
        "valid": rng.random(T) < 0.98,
    }
    trace = ot.TruncatedIS(bound=bound, lam=lam)
    expected, scale = by_definition.corrections(trace, **row)
    assert np.all(np.abs(ot.corrections(trace, **row) - expected) <= 1e-12 * scale)
