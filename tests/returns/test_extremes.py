"""Products of ratios that leave the range of floats and come back: every kernel against an oracle without such a range."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offtrace as ot
from helpers import assert_close, name_of
from offtrace.returns import by_definition
from offtrace.returns.numpy import passes

torch = pytest.importorskip("torch")
quick = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])

DECADES = float(np.log(1e30))
TRACES: list[ot.Trace] = [
    ot.ImportanceSampling(),
    ot.ImportanceSampling(lam=0.5),
    ot.QLambda(lam=0.9),
    ot.TreeBackup(lam=0.9),
    ot.Retrace(lam=0.9),
    ot.QSigma(sigma=0.3, lam=0.9),
    ot.AlphaRetrace(mix=0.4, lam=0.9),
    ot.CTrace(mix=0.6, rate=0.8),
    ot.ABQ(zeta=0.9, psi0=0.9, psi_max=3.0),
    ot.NonMarkovRetrace(),
    ot.NonMarkovRetrace(lam=0.9),
    ot.RBIS(),
    ot.RBIS(lam=0.9),
    ot.RBIS(lam=1e-3),
    ot.TruncatedIS(),
    ot.TruncatedIS(bound=2.5, lam=0.5),
    ot.TruncatedIS(bound=1e-200),
    ot.TruncatedIS(bound=1e200, lam=0.5),
    ot.TruncatedIS(bound=np.inf, lam=0.5),
    ot.TruncatedIS(bound=(2.0, 1.0)),
    ot.TruncatedIS(bound=(0.5, 1e100, 3.0), lam=0.9),
    ot.HistoryBounded(bound=0.8),
    ot.HistoryBounded(bound=3.0),
    ot.HistoryBounded(bound=1e200),
]


def row(log_ratios: Any, **changes: Any) -> dict[str, Any]:
    """One trajectory with these ratios, a reward of 1 at its last step and none before."""
    T = len(log_ratios)
    no, zero, log_mu = np.zeros(T, bool), np.zeros(T), -np.maximum(0.0, np.asarray(log_ratios, float))
    reward = np.append(np.zeros(T - 1), 1.0)
    logs = {"log_pi": log_ratios + log_mu, "log_mu": log_mu}
    flags = {"terminated": no, "truncated": no}
    return {"reward": reward, "q": zero, "next_value": zero, "gamma": 1.0, **flags, **logs, **changes}


def as_tensors(given: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(np.array(a)) if isinstance(a, np.ndarray) else a for name, a in given.items()}


def ways(trace: ot.Trace, given: dict[str, Any]) -> dict[str, np.ndarray]:
    """Δ by each kernel that can be asked for it, on NumPy and on PyTorch."""
    tensors = as_tensors(given)
    found = {
        "numpy": ot.corrections(trace, **given),
        "torch": ot.corrections(trace, **tensors).numpy(),
        "torch, differentiable": ot.corrections(trace, **tensors, differentiable=True).numpy(),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "_cached_plan", passes._cached_plan.__wrapped__)
        patch.setattr(passes, "FEW_STEPS", 0)
        found["long"] = ot.corrections(trace, **given)
        patch.setattr(passes, "FEW_STEPS", 1 << 30)
        found["short"] = ot.corrections(trace, **given)
    return found


def assert_right(trace: ot.Trace, given: dict[str, Any]) -> None:
    wanted, scale = by_definition.corrections(trace, **given)
    for name, found in ways(trace, given).items():
        try:
            assert_close(found, wanted, scale, np.float64)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


DOWN_AND_UP = [0.0, *[-DECADES] * 11, *[DECADES] * 11]
UP_AND_DOWN = [0.0, *[DECADES] * 11, *[-DECADES] * 12]
SLOPES = [0.0] * 201 + [-8.0] * 120 + [8.0] * 120
STEEP = [0.0] * 20 + [-16.0] * 60 + [16.0] * 60


@pytest.mark.parametrize("before", [0, 60])
def test_a_product_that_falls_below_the_floats_comes_back(before: int) -> None:
    given = row(np.array([0.0] * before + DOWN_AND_UP))
    for found in ways(ot.TruncatedIS(), given).values():
        np.testing.assert_allclose(found[: before + 1], 1.0, rtol=1e-12)
    for trace in (ot.ImportanceSampling(), ot.NonMarkovRetrace(), ot.RBIS(), ot.HistoryBounded(2.0)):
        np.testing.assert_allclose(ot.corrections(trace, **given)[0], 1.0, rtol=1e-12)


def test_a_product_that_rises_above_the_floats_comes_back() -> None:
    for trace in (ot.TruncatedIS(), ot.ImportanceSampling()):
        for found in ways(trace, row(np.array(UP_AND_DOWN))).values():
            np.testing.assert_allclose(found[0], 1e-30, rtol=1e-12)


@pytest.mark.parametrize(
    "trace",
    [
        ot.TruncatedIS(),
        ot.TruncatedIS(horizon=300),
        ot.TruncatedIS(bound=(2.0, 1.0)),
        ot.ImportanceSampling(),
        ot.ImportanceSampling(horizon=300),
        ot.NonMarkovRetrace(horizon=300),
    ],
    ids=name_of,
)
def test_a_horizon_or_a_bound_that_does_not_act_changes_nothing(trace: ot.Trace) -> None:
    for name, found in ways(trace, row(np.array(SLOPES))).items():
        np.testing.assert_allclose(found[200], 1.0, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("trace", [t for t in TRACES if t.needs_mu], ids=name_of)
@pytest.mark.parametrize("log_ratios", [DOWN_AND_UP, UP_AND_DOWN, STEEP], ids=["down", "up", "slopes"])
def test_coefficients_of_any_size(trace: ot.Trace, log_ratios: list[float]) -> None:
    given = {n: a for n, a in row(np.array(log_ratios)).items() if n in ("terminated", "truncated", "log_pi", "log_mu")}
    wanted = by_definition.coefficients(trace, **given)
    np.testing.assert_allclose(ot.coefficients(trace, **given), wanted, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(ot.coefficients(trace, **as_tensors(given)).numpy(), wanted, rtol=1e-12, atol=1e-300)
    largest = ot.diagnose(trace, **given, gamma=1.0).pooled.largest
    np.testing.assert_allclose(largest, wanted.max(), rtol=1e-12)


LENGTHS = (2, 31, 60, 64, 65, 130, 260)
"""On both sides of what the kernels do at once."""


@st.composite
def extreme_rows(draw: Any, lengths: Any = LENGTHS) -> dict[str, Any]:
    """Log ratios of a standard deviation of 1, 8, 60 or 300, none beyond ±700, in slopes and at random; few δ or many.

    They lie on a grid of 2^-20, so that log π − log μ is exact: a rounded one is another ratio, by 10⁻¹³ where it is large.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    T = draw(st.sampled_from(lengths))
    sd = draw(st.sampled_from([1.0, 8.0, 60.0, 300.0]))
    log_ratios = rng.normal(size=T) * sd
    if draw(st.booleans()):
        log_ratios = np.abs(log_ratios) * np.repeat(rng.choice([-1, 1], T), rng.integers(1, 90, T))[:T]
    log_ratios = np.clip(np.round(log_ratios * 2**20) / 2**20, -700, 700)
    given = row(log_ratios, gamma=draw(st.sampled_from([1.0, 0.99, 0.5])))
    if draw(st.booleans()):
        given["reward"] = rng.normal(size=T)
    given["terminated"] = rng.random(T) < draw(st.sampled_from([0.0, 0.0, 0.01]))
    given["log_pi"] = np.where(rng.random(T) < draw(st.sampled_from([0.0, 0.0, 0.01])), -np.inf, given["log_pi"])
    return given


@pytest.mark.parametrize("trace", TRACES, ids=name_of)
@quick
@given(given=extreme_rows())
def test_every_kernel_is_the_definition(trace: ot.Trace, given: dict[str, Any]) -> None:
    assert_right(trace, given)


@pytest.mark.parametrize(
    "trace",
    [
        ot.Retrace(horizon=40),
        ot.ImportanceSampling(horizon=250),
        ot.TruncatedIS(horizon=250),
        ot.RBIS(0.9, horizon=250),
    ],
    ids=name_of,
)
@quick
@given(given=extreme_rows())
def test_with_a_horizon(trace: ot.Trace, given: dict[str, Any]) -> None:
    assert_right(trace, given)


@quick
@given(given=extreme_rows(), seed=st.integers(0, 99))
def test_variable_lambda(given: dict[str, Any], seed: int) -> None:
    lam = np.random.default_rng(seed).choice([0.5, 1.0, 1.0], given["reward"].shape)
    assert_right(ot.VariableLambda(lam=lam), given)


class Capped(ot.Trace):
    """A recursive rule of a user's own whose cap changes with the step, and is none at some."""

    title = "capped here and there"
    reads = ("pi", "rho")
    per_decision = False
    recursive = True

    @staticmethod
    def factors(xp: Any, pi: Any, mu: Any, rho: Any) -> Any:
        return 0.9, rho, xp.where(pi < 1e-100, np.inf, 1.0 + pi)


@quick
@given(given=extreme_rows())
def test_a_cap_that_changes_with_the_step(given: dict[str, Any]) -> None:
    cap = np.where(np.exp(given["log_pi"]) < 1e-100, np.inf, 1.0 + np.exp(given["log_pi"]))
    found = ot.corrections(Capped(), **given)
    rho, g = np.exp(given["log_pi"] - given["log_mu"]), 0.9 * given["gamma"]
    with localcontext(by_definition.EXACT):
        for k in (0, len(rho) // 2):
            x, D, total, scale = Decimal(1), Decimal(1), Decimal(given["reward"][k]), Decimal(abs(given["reward"][k]))
            for t in range(k + 1, len(rho)):
                if given["terminated"][t - 1]:
                    break
                D *= Decimal(g)
                x = min(Decimal(cap[t]), x * (Decimal(given["log_pi"][t]) - Decimal(given["log_mu"][t])).exp())
                total += D * x * Decimal(given["reward"][t])
                scale += abs(D * x * Decimal(given["reward"][t]))
            assert abs(Decimal(float(found[k])) - total) <= Decimal("1e-12") * scale + Decimal("1e-300")


@pytest.mark.parametrize("trace", [t for t in TRACES if t.needs_mu], ids=name_of)
@quick
@given(given=extreme_rows(LENGTHS[:-1]))  # the transpose of a row does all steps alike
def test_gradients_by_the_reward_are_the_coefficients(trace: ot.Trace, given: dict[str, Any]) -> None:
    """∂Δ_k/∂r_t = D_{k:t} β_{k:t}, so that the gradient of Σ Δ_k is the sum of a column."""
    tensors = as_tensors(given)
    reward = tensors["reward"].requires_grad_()
    ot.corrections(trace, **{**tensors, "reward": reward}, differentiable=True).sum().backward()
    unit = {**given, "reward": np.zeros_like(given["reward"])}
    flags = {n: given[n] for n in ("terminated", "truncated", "log_pi", "log_mu")}
    T = len(unit["reward"])
    D = float(given["gamma"]) ** np.maximum(0, np.arange(T)[None] - np.arange(T)[:, None])
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = (D * by_definition.coefficients(trace, **flags)).sum(axis=0)
    fits = wanted < 1e290
    assert reward.grad is not None
    np.testing.assert_allclose(reward.grad.numpy()[fits], wanted[fits], rtol=1e-11)


@pytest.mark.parametrize("lam", [5e-324, 1e-310, 1e-200, 1e-20])
def test_rbis_with_the_smallest_lambdas(lam: float) -> None:
    """ρ/λ is beyond the floats: β is min(λ^t, ···) all the same, and what is below 10⁻³⁰⁰ does not show."""
    rng = np.random.default_rng(4)
    given = row(rng.normal(size=90).round(3), gamma=0.9)
    given["reward"] = rng.normal(size=90)
    given["terminated"] = rng.random(90) < 0.1
    for trace in (ot.RBIS(lam=lam), ot.RBIS(lam=lam, horizon=20)):
        assert_right(trace, given)
        flags = {n: given[n] for n in ("terminated", "truncated", "log_pi", "log_mu")}
        wanted = by_definition.coefficients(trace, **flags)
        np.testing.assert_allclose(ot.coefficients(trace, **flags), wanted, rtol=1e-12, atol=1e-300)


def test_v_trace_without_bounds() -> None:
    """With c_bar = ρ_bar = ∞ V-trace is importance sampling, and its products have no bound either."""
    for log_ratios in (DOWN_AND_UP, UP_AND_DOWN, SLOPES):
        given = row(np.array(log_ratios))
        given["value"] = given.pop("q")
        wanted = by_definition.state_targets(ot.VTrace(rho_bar=np.inf, c_bar=np.inf), **given).target
        fits = np.abs(wanted) < 1e290
        for arrays in (given, as_tensors(given)):
            found = np.asarray(ot.state_targets(**arrays, rho_bar=np.inf, c_bar=np.inf).target)
            np.testing.assert_allclose(found[fits], wanted[fits], rtol=1e-12, atol=1e-300)


def test_a_discount_times_a_ratio_that_is_no_float_goes_on() -> None:
    """γ_0 ρ_1 = 10^-330 is 0 in floats, but the trace comes back to its cap at the next step."""
    given = row(np.log([1.0, 1e-170, 1e200]), gamma=np.array([1e-160, 1.0, 1.0]))
    capped = {ot.NonMarkovRetrace(): 1.0, ot.RBIS(): 1.0, ot.TruncatedIS(): 1.0}
    for trace, cap in (capped | {ot.HistoryBounded(bound): bound for bound in (0.5, 2.0)}).items():
        for found in ways(trace, given).values():
            np.testing.assert_allclose(found[0], cap * 1e-160, rtol=1e-12)


def test_a_ratio_that_is_too_small_counts_as_zero() -> None:
    """Below e^-708 a number has fewer digits than others. Every kernel takes it for 0, and cuts there."""
    for log_ratio in (-708.5, -740.0, -800.0):
        given = row(np.array([0.0, log_ratio, 700.0]))
        for trace in (ot.ImportanceSampling(), ot.TruncatedIS(), ot.RBIS(), ot.TreeBackup()):
            for found in ways(trace, given).values():
                assert found[0] == 0.0
            flags = {n: given[n] for n in ("terminated", "truncated", "log_pi", "log_mu")}
            assert ot.coefficients(trace, **flags)[0, 1] == 0.0


@pytest.mark.parametrize("trace", [t for t in TRACES if t.needs_mu], ids=name_of)
@quick
@given(
    given=extreme_rows(LENGTHS[:-1])
)  # a stream does all steps alike, and in 130 products leave the range and come back
def test_a_stream_is_right_or_says_that_it_is_not(trace: ot.Trace, given: dict[str, Any]) -> None:
    flags = {n: given[n] for n in ("terminated", "truncated", "log_pi", "log_mu")}
    B = by_definition.coefficients(trace, **flags)
    T = len(B)
    stream = ot.Stream(trace, T)
    for t in range(T):
        step = {n: a[t] for n, a in given.items() if isinstance(a, np.ndarray)}
        try:
            stream.step(t, **{**step, "reward": 1.0}, gamma=given["gamma"])
        except (OverflowError, ValueError):  # an update, or a β, that is not finite
            return
        D, β = float(given["gamma"]) ** np.arange(t, -1, -1), B[: t + 1, t]
        known = np.isfinite(β)  # a β beyond the floats may be a finite γ^t β, which the oracle's matrix does not tell
        wanted = (D * β)[known]
        assert (np.abs(stream.z[: t + 1][known] - wanted) <= 1e-11 * wanted + 1e-180).all()


@dataclass(frozen=True)
class SquaredRatio(ot.Trace):
    """A rule from outside whose ratio may exceed the floats."""

    lam: float = 1.0
    reads: ClassVar[tuple[str, ...]] = ("rho",)

    @staticmethod
    def factors(xp: Any, pi: Any, mu: Any, rho: Any, lam: Any) -> Any:
        return lam * rho, rho * rho, np.inf


@pytest.mark.parametrize("horizon", [None, 3])
@pytest.mark.parametrize(
    "end", [{"terminated": [1, 0, 0, 0]}, {"truncated": [1, 0, 0, 0]}, {"gamma": np.array([0.0, 1, 1, 1])}]
)
def test_a_factor_that_does_not_act_may_be_infinite(end: dict[str, Any], horizon: int | None) -> None:
    zero, none = np.zeros(4), np.zeros(4, int)
    x = {"reward": np.ones(4), "q": zero, "next_value": zero, "terminated": none, "truncated": none, "gamma": 1.0}
    x |= {name: np.asarray(array) for name, array in end.items()}
    x |= {"log_pi": np.array([0, 400.0, 0, 0]), "log_mu": zero}
    x["gamma"] = np.broadcast_to(x["gamma"], 4).astype(float).copy()
    for arrays in (x, as_tensors(x)):
        np.testing.assert_array_equal(ot.targets(SquaredRatio(horizon=horizon), **arrays), [1, 3, 2, 1])
    with_gradient = ot.targets(SquaredRatio(horizon=horizon), **as_tensors(x), differentiable=True)
    np.testing.assert_array_equal(with_gradient, [1, 3, 2, 1])


@pytest.mark.parametrize(
    "rule", [ot.TruncatedIS(bound=1e3), ot.ImportanceSampling(horizon=4), ot.TruncatedIS(bound=(1.0, 2.0))]
)
@pytest.mark.parametrize("before", [0, 100])
def test_a_product_with_an_error_leaves_the_floats_on_the_way_only(rule: ot.Trace, before: int) -> None:
    given = row(np.array([0.0] * before + [0.0, 100.0, -282.0, 500.0, 0.0]), reward=np.zeros(before + 5))
    given["reward"][before + 2] = 1e250
    given["log_pi"], given["log_mu"] = given["log_pi"] - given["log_mu"], np.zeros(before + 5)
    assert_right(rule, given)


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_a_sum_that_overflows_on_the_way_only_is_finite(rows: int) -> None:
    zero, none = np.zeros((rows, 4)), np.zeros((rows, 4), bool)
    x = {
        "reward": np.add(zero, [1, 0, 1.5e308, 1.5e308]),
        "q": zero,
        "next_value": zero,
        "truncated": none,
        "gamma": 1.0,
    }
    x |= {"terminated": none | [True, False, False, False], "log_pi": zero + np.log([1, 1, 0.25, 1.0]), "log_mu": zero}
    np.testing.assert_allclose(ot.targets(ot.Retrace(), **x)[:, 1], 7.5e307)


def test_a_custom_step_warns_of_nothing() -> None:
    given = row(np.zeros(5), reward=np.full(5, 1e-200), gamma=1e-200)
    with np.errstate(all="raise"):
        found = ot.corrections(ot.StepTrace(lambda xp, c, now: (c, 1e-200), title="tiny", horizon=3), **given)
    np.testing.assert_array_equal(found, 1e-200)
