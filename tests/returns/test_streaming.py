"""The streaming trace is Algorithm 1: its updates sum to the offline corrections, its z_t is the literal sum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace.returns import by_definition
from offtrace.returns.streaming.stream import Stream

STEPS, PAIRS = 36, 4
LAMBDAS = np.random.default_rng(0).choice([0.0, 0.3, 0.9, 1.0], STEPS, p=[0.05, 0.25, 0.4, 0.3])


def _bounded_average(xp, carry, now):
    """Two numbers of carry, the lag, and a result that is a plain number for some inputs."""
    total, product = carry
    product = xp.minimum(2.0, product * now.rho)
    total = total + product
    return (total, product), now.lam * total / (now.lag + 1.0)


TRACES = [
    ot.OneStep(),
    *(rule(lam=lam) for rule in (ot.ImportanceSampling, ot.QLambda, ot.TreeBackup) for lam in (0.0, 0.7, 1.0)),
    *(
        rule(lam=lam)
        for rule in (ot.Retrace, ot.WatkinsQ, ot.NonMarkovRetrace, ot.RBIS)
        for lam in (0.0, 0.4, 0.9, 1.0)
    ),
    ot.VariableLambda(LAMBDAS),
    ot.VariableLambda(LAMBDAS, horizon=5),
    ot.QSigma(sigma=0.4, lam=0.9),
    ot.AlphaRetrace(mix=0.6, lam=0.9),
    ot.CTrace(mix=0.3, lam=0.95),
    ot.ABQ(zeta=0.7, psi0=1.0, psi_max=2.0),
    *(ot.TruncatedIS(bound=bound, lam=0.9) for bound in (0.0, 0.5, 1.0, 3.0, (0, 1, 0), (2.0, 0.5), (0, 0))),
    *(ot.HistoryBounded(bound=bound) for bound in (0.0, 0.5, 1.0, 2.0, 1e6)),
    ot.Retrace(lam=0.9, horizon=1),
    ot.ImportanceSampling(lam=0.9, horizon=3),
    ot.NonMarkovRetrace(lam=0.9, horizon=4),
    ot.RBIS(lam=0.8, horizon=2),
    ot.HistoryBounded(bound=2.0, horizon=6),
    ot.TruncatedIS(bound=(0.5, 2.0, 0.0), lam=0.9, horizon=3),
    ot.replacing(0.9),
    ot.count_dependent(0.9),
    ot.StepTrace(_bounded_average, carry=(0.0, 1.0), lam=0.9, title="bounded average"),
    ot.StepTrace(lambda xp, carry, now: (carry, 0.5), reads=(), title="a constant"),
    ot.StepTrace(_bounded_average, carry=(0.0, 1.0), lam=0.9, horizon=4, title="bounded average, cut"),
    ot.HistoryTrace(lambda past: min(1.0, float(past.rho[1:].max()))),
    ot.HistoryTrace(lambda past: 0.9 ** np.sum(past.pair == past.pair[0]), reads=("pair",), horizon=5),
]
LISTED = {type(trace) for trace in TRACES}
TRACES += [
    example for rule in ot.rules() if issubclass(rule, ot.Trace) and rule not in LISTED for example in rule.examples()
]


def label(trace: ot.Trace) -> str:
    lam = "" if isinstance(trace, ot.VariableLambda) else getattr(trace, "lam", "")
    return f"{trace.title} {lam} {getattr(trace, 'bound', '')} {trace.horizon or ''}".strip()


def trajectory(rng: np.random.Generator, T: int = STEPS, spread: float = 1.0, zeros: bool = True) -> dict:
    """Several episodes with repeated visits; `spread` is that of log ρ, its products reach e^(spread √T)."""
    log_mu = -rng.uniform(0.05, 2.0, T)
    log_pi = np.minimum(log_mu + spread * rng.normal(size=T), -0.01)
    log_mu = np.where(rng.random(T) < 0.3, log_mu - spread * rng.exponential(size=T), log_mu)
    end = rng.random(T) < 0.06
    next_value = rng.normal(size=T)
    return {
        "pair": rng.integers(PAIRS, size=T),
        "greedy": rng.random(T) < 0.8,
        "reward": rng.normal(size=T),
        "q": rng.normal(size=T),
        "next_value": np.where(end, np.nan, next_value),
        "terminated": end,
        "truncated": rng.random(T) < 0.06,
        "log_pi": np.where(zeros & (rng.random(T) < 0.05), -np.inf, log_pi),
        "log_mu": log_mu,
        "gamma": np.where(zeros & (rng.random(T) < 0.05), 0.0, rng.choice([0.5, 0.9, 1.0], T)),
    }


def only_what_is_read(trace: ot.Trace, x: dict) -> dict:
    unread = {
        "log_pi": not trace.needs_pi or trace.needs_greedy,
        "greedy": not trace.needs_greedy,
        "log_mu": not trace.needs_mu,
        "pair": "pair" not in trace.reads,
    }
    return {name: array for name, array in x.items() if not unread.get(name, False)}


def run(trace: ot.Trace, x: dict, gradients: np.ndarray | None = None, size: int = PAIRS):
    """All updates and all z, [T, size] each, from a table or from the gradients given."""
    stream, updates, zs = Stream(trace, size), [], []
    for t in range(len(x["reward"])):
        now = {name: array[t] for name, array in only_what_is_read(trace, x).items() if name != "pair"}
        if gradients is None:
            updates.append(stream.step(x["pair"][t], **now))
        else:
            updates.append(stream.step(gradients[t], pair=x["pair"][t], **now))
        zs.append(stream.z)
        assert np.array_equal(updates[-1], stream.delta * zs[-1])
    return np.array(updates), np.array(zs)


def algorithm_1(trace: ot.Trace, x: dict, gradients: np.ndarray) -> np.ndarray:
    """z_t = Σ_k (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k, one term after the other."""
    T = len(x["reward"])
    seen = only_what_is_read(trace, x)
    flags = {n: seen[n] for n in ("terminated", "truncated", "log_pi", "log_mu", "pair", "greedy") if n in seen}
    B = by_definition.coefficients(trace, **flags)
    z = np.zeros((T, gradients.shape[1]))
    for t in range(T):
        for k in range(t + 1):
            z[t] += math.prod(x["gamma"][k:t]) * B[k, t] * gradients[k]
    return z


def check_against_definition(trace: ot.Trace, x: dict) -> None:
    one_hot = np.eye(PAIRS)[x["pair"]]
    updates, zs = run(trace, x)
    np.testing.assert_allclose(zs, algorithm_1(trace, x, one_hot), rtol=1e-11, atol=1e-250)
    offline = ot.corrections(trace, **only_what_is_read(trace, x))
    magnitudes = {
        "reward": abs(x["reward"]),
        "q": -abs(x["q"]),
        "next_value": abs(x["next_value"]),
    }  # δ itself may cancel
    scale, _ = by_definition.corrections(trace, **only_what_is_read(trace, x | magnitudes))
    error = np.abs(updates.sum(axis=0) - offline @ one_hot)
    assert np.all(error <= 1e-10 * (scale @ one_hot))


@pytest.mark.parametrize("trace", TRACES, ids=label)
def test_streaming_is_offline_and_algorithm_1(trace):
    for seed, spread in ((0, 0.3), (1, 1.5), (2, 12.0)):  # the last: products of 10^±30
        check_against_definition(trace, trajectory(np.random.default_rng(seed), spread=spread))


@pytest.mark.parametrize("trace", TRACES, ids=label)
def test_a_one_hot_gradient_is_a_table(trace):
    x = trajectory(np.random.default_rng(3))
    by_table, by_gradient = run(trace, x), run(trace, x, gradients=np.eye(PAIRS)[x["pair"]])
    np.testing.assert_allclose(by_table, by_gradient, rtol=1e-13)


@pytest.mark.parametrize("trace", TRACES[::4], ids=label)
def test_dense_gradients(trace):
    rng = np.random.default_rng(4)
    x, gradients = trajectory(rng), rng.normal(size=(STEPS, 3))
    _, zs = run(trace, x, gradients, size=3)
    np.testing.assert_allclose(zs, algorithm_1(trace, x, gradients), rtol=1e-9, atol=1e-12)


NUMBERS = st.floats(-5, 5)
LOG_PI = st.sampled_from([-math.inf, -70.0, -3.0, -1.0, -0.5, 0.0])
LOG_MU = st.sampled_from([-70.0, -3.0, -1.0, -0.5, 0.0])
ONE_STEP = st.tuples(
    st.integers(0, PAIRS - 1),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.booleans(),
    st.booleans(),
    LOG_PI,
    LOG_MU,
    st.floats(0, 1),
    st.booleans(),
)
NAMES = ("pair", "reward", "q", "next_value", "terminated", "truncated", "log_pi", "log_mu", "gamma", "greedy")


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([t for t in TRACES if not isinstance(t, ot.VariableLambda)]),
    st.lists(ONE_STEP, min_size=1, max_size=9),
)
def test_any_short_stream(trace, steps):
    x = dict(zip(NAMES, (np.array(column) for column in zip(*steps, strict=True)), strict=True))
    check_against_definition(trace, x)


LONG = [ot.NonMarkovRetrace(lam=0.95), ot.RBIS(lam=0.9), ot.HistoryBounded(bound=1.0), ot.NonMarkovRetrace(lam=1.0)]


class Counting(list):
    pops = 0

    def pop(self, *at):
        self.pops += 1
        return super().pop(*at)


@pytest.mark.parametrize("trace", LONG, ids=label)
def test_the_stack_pops_no_more_than_two_groups_a_step(trace):
    T = 5000
    rng = np.random.default_rng(5)
    stream = Stream(trace, size=2)
    kept: Any = stream._kept
    kept.groups = groups = Counting()
    for log_rho in 0.5 * rng.normal(size=T):
        stream.step(
            int(rng.integers(2)), reward=1.0, q=0.0, next_value=0.0, terminated=False, truncated=False, gamma=0.99,
            log_pi=log_rho, log_mu=0.0,
        )  # fmt: skip
    assert T / 10 < groups.pops <= 2 * T


def test_an_endless_episode_does_not_gather_groups_for_ever():
    """At ρ = 1 every start of Non-Markov Retrace stays alone, x = λ^n, until it underflows: here after 324 steps."""
    stream, most = Stream(ot.NonMarkovRetrace(lam=0.1), size=1), 0
    for _ in range(3000):
        stream.step(
            0, reward=1.0, q=0.0, next_value=0.0, terminated=False, truncated=False, gamma=1.0, log_pi=0.0, log_mu=0.0
        )  # fmt: skip
        kept: Any = stream._kept
        most = max(most, len(kept.groups))
    assert most <= 2 * 325
    assert stream.z[0] == pytest.approx(1 / 0.9, rel=1e-14)


@pytest.mark.parametrize("trace", [*LONG, ot.HistoryBounded(bound=2.0)], ids=label)
def test_a_huge_ratio_that_is_clipped_costs_no_digits(trace):
    """Old small traces must keep all their digits beside one that was 10^30 before it was clipped."""
    T = 60
    x = trajectory(np.random.default_rng(6), T, spread=0.1, zeros=False)
    x |= {"pair": np.arange(T), "terminated": np.zeros(T, bool), "truncated": np.zeros(T, bool)}
    x["next_value"] = np.zeros(T)
    x["log_mu"] = x["log_pi"] + np.where(np.arange(T) % 7 == 3, -math.log(1e30), math.log(1e30) / 6)
    _, zs = run(trace, x, size=T)
    np.testing.assert_allclose(zs, algorithm_1(trace, x, np.eye(T)), rtol=1e-12, atol=1e-300)


def test_a_truncated_product_may_leave_the_range_of_floats_and_come_back():
    log_rho = np.array([0.0, *[600.0] * 3, *[-600.0] * 3, -1.0])
    stream = Stream(ot.TruncatedIS(bound=1.0), size=len(log_rho))
    for t, log in enumerate(log_rho):
        stream.step(
            t, reward=0.0, q=0.0, next_value=0.0, terminated=False, truncated=False, gamma=1.0, log_pi=log, log_mu=0.0
        )  # fmt: skip
    np.testing.assert_allclose(stream.z[0], math.exp(-1), rtol=1e-12)


PLAIN = {"reward": 1.0, "q": 0.5, "next_value": 2.0, "terminated": False, "truncated": False, "gamma": 0.9}
FULL = PLAIN | {"log_pi": -1.0, "log_mu": -1.0}


def test_ends_of_episodes():
    stream = Stream(ot.QLambda(lam=1.0), size=3)
    stream.step(0, **PLAIN)
    cut = stream.step(1, **PLAIN | {"truncated": True})
    np.testing.assert_allclose(cut, [0.9 * 2.3, 2.3, 0.0])  # a truncated step bootstraps
    np.testing.assert_allclose(stream.z, [0.9, 1.0, 0.0])  # still readable
    end = stream.step(2, **PLAIN | {"terminated": 1, "truncated": 1, "next_value": math.nan})
    np.testing.assert_allclose(end, [0.0, 0.0, 0.5])
    assert stream.delta == 0.5
    stream.step(0, **PLAIN)
    stream.reset()
    assert not stream.z.any()
    np.testing.assert_allclose(stream.step(1, **PLAIN), [0.0, 2.3, 0.0])
    assert stream.count == 5


def test_what_is_returned_is_the_callers():
    for trace in (ot.Retrace(), ot.NonMarkovRetrace(), ot.TruncatedIS()):
        stream, gradient = Stream(trace, size=2), np.array([1.0, 2.0])
        stream.step(gradient, **FULL)
        gradient[:] = stream.z[:] = 7.0
        np.testing.assert_allclose(stream.step(np.zeros(2), **FULL), 0.9 * 2.3 * np.array([1.0, 2.0]))


@pytest.mark.parametrize(
    ("trace", "wrong", "error", "message"),
    [
        (ot.Retrace(), {"where": 3}, ValueError, r"where must be an id in \[0, 3\), got 3"),
        (ot.Retrace(), {"where": -1}, ValueError, r"where .* got -1"),
        (ot.Retrace(), {"where": True}, TypeError, "where .* got bool"),
        (ot.Retrace(), {"where": 1.0}, TypeError, "where must be an integer id or a gradient of 3 floats, got float64"),
        (ot.Retrace(), {"where": np.ones(2)}, TypeError, r"where .* \(2,\)"),
        (ot.Retrace(), {"where": np.array([0.0, np.nan, 1.0])}, ValueError, r"where .* nan at index \[1\]"),
        (ot.Retrace(), {"reward": math.nan}, ValueError, "reward must be finite, got nan"),
        (ot.Retrace(), {"q": np.ones(2)}, TypeError, "q must be one number"),
        (ot.Retrace(), {"next_value": math.inf}, ValueError, "next_value must be finite, got inf"),
        (ot.Retrace(), {"next_value": None}, TypeError, "next_value must be one number, got None"),
        (ot.Retrace(), {"reward": 1.7e308, "q": -1.7e308}, ValueError, "the TD error is inf"),
        (ot.Retrace(), {"gamma": 1.1}, ValueError, r"gamma must lie in \[0, 1\], got 1.1"),
        (ot.Retrace(), {"terminated": 0.0}, TypeError, "terminated must be a boolean"),
        (ot.Retrace(), {"truncated": 2}, TypeError, "truncated must be a boolean, 0 or 1, got 2"),
        (ot.Retrace(), {"truncated": None}, TypeError, "truncated must be a boolean"),
        (ot.Retrace(), {"log_pi": None}, TypeError, "log_pi is missing: Retrace"),
        (ot.Retrace(), {"log_mu": None}, TypeError, "log_mu is missing: Retrace"),
        (ot.Retrace(), {"log_mu": -math.inf}, ValueError, "log_mu is -inf"),
        (ot.Retrace(), {"log_mu": math.nan}, ValueError, "log_mu must be finite, got nan"),
        (ot.Retrace(), {"log_pi": math.inf}, ValueError, "log_pi must be finite or -inf, got inf"),
        (ot.Retrace(), {"log_pi": 10.0, "log_mu": -700.0}, ValueError, "ratio is too large"),
        (ot.TreeBackup(), {"log_pi": 0.5}, ValueError, "log_pi is above 0, got 0.5"),
        (ot.ABQ(0.5, 1.0, 2.0), {"log_mu": 0.5}, ValueError, "log_mu is above 0, got 0.5"),
        (ot.replacing(), {"where": np.ones(3)}, TypeError, "pair must be an integer id .* got None"),
    ],
)
def test_errors_name_the_argument_and_the_value(trace, wrong, error, message):
    stream = Stream(trace, size=3)
    with pytest.raises(error, match=message):
        stream.step(**{"where": 0} | FULL | wrong)
    assert stream.count == 0


def test_densities_are_welcome_where_only_the_ratio_is_read():
    assert np.isfinite(Stream(ot.Retrace(), size=1).step(0, **FULL | {"log_pi": 800.0, "log_mu": 800.0})).all()


def test_what_a_stream_refuses():
    for rule in (ot.PengQ(), ot.NStep()):
        with pytest.raises(TypeError, match="has no ratios"):
            Stream(rule, size=1, values="state")
    with pytest.raises(TypeError, match="must be an offtrace trace"):
        Stream("retrace", size=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="size must be an integer of at least 1, got 0"):
        Stream(ot.Retrace(), size=0)
    with pytest.raises(ValueError, match=r"shape \(2, 3\): a stream takes \[T\]"):
        Stream(ot.VariableLambda(np.ones((2, 3))), size=1)


def test_what_a_stream_refuses_on_its_way():
    stream = Stream(ot.VariableLambda([0.5, 0.5]), size=1)
    for _ in range(2):
        stream.step(0, **FULL)
    with pytest.raises(ValueError, match="holds numbers for 2 steps: there is none for step 2"):
        stream.step(0, **FULL)

    stream = Stream(ot.Retrace(), size=1)
    stream.step(0, **FULL)
    with pytest.raises(TypeError, match="an id at every step"):
        stream.step(np.ones(1), **FULL)

    stream = Stream(ot.StepTrace(lambda xp, carry, now: (carry, -carry), title="minus"), size=1)
    stream.step(0, **FULL)
    with pytest.raises(ValueError, match=r"'minus' gave a β that is negative or not finite: -1\.0"):
        stream.step(0, **FULL)

    stream = Stream(ot.ImportanceSampling(), size=1)
    with pytest.raises(OverflowError, match="a product of ratios overflowed; call reset"):  # noqa: PT012
        for _ in range(4):
            stream.step(0, **FULL | {"log_pi": 300.0, "log_mu": 0.0})


def test_a_custom_trace_whose_product_of_ratios_overflows() -> None:
    """An OverflowError, as that of every other rule, and the stream goes on after it."""
    stream, far = Stream(ot.replacing(), size=2), FULL | {"log_pi": 300.0, "log_mu": 0.0}
    stream.step(0, **far)
    stream.step(1, pair=5, **far)
    stream.step(1, pair=6, **far)
    with pytest.raises(OverflowError, match="a product of ratios overflowed: 'replacing' gave an infinite β"):
        stream.step(1, pair=7, **far)
    np.testing.assert_array_equal(
        np.sign(stream.step(0, **FULL)), np.sign(Stream(ot.OneStep(), size=2).step(0, **FULL))
    )


def test_a_single_ratio_that_is_too_large_is_an_error_of_the_step() -> None:
    with pytest.raises(ValueError, match="the ratio is too large to be represented: log_pi is 800"):
        Stream(ot.ImportanceSampling(), size=1).step(0, **FULL | {"log_pi": 800.0, "log_mu": 0.0})
