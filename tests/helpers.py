"""All rules, and the trajectories that break careless code. A new rule is tested the moment it is listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest

import offtrace as ot
from offtrace.returns import by_definition


def _whole_history(history: ot.History) -> float:
    """A rule that no recursion of one number computes: the geometric mean of the last ratio and the smallest one."""
    return float(min(1.0, history.rho[1:].min() * history.rho[-1]) ** 0.5)


def _clipped(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    """Everything a step may see, in one rule."""
    carry = xp.minimum(2.0, carry * now.rho)
    return carry, now.lam * carry * xp.where(now.lag < 3, now.pi, now.mu)


BUILT_IN: list[ot.Trace] = [
    *(example for rule in ot.rules() if issubclass(rule, ot.Trace) for example in rule.examples()),
    ot.Retrace(lam=0.9, horizon=1),
    ot.Retrace(lam=0.9, horizon=3),
    ot.NonMarkovRetrace(lam=0.9, horizon=4),
    ot.TruncatedIS(bound=1.5, horizon=2),
    ot.ImportanceSampling(horizon=10_000),
]
"""All listed rules, and a few horizons."""
CUSTOM: list[ot.Trace] = [
    ot.replacing(lam=0.9),
    ot.count_dependent(lam=0.9),
    ot.StepTrace(_clipped, lam=0.8, reads=("pi", "mu", "rho"), horizon=6, title="clipped"),
    ot.HistoryTrace(_whole_history, title="whole history"),
]
TRACES = [*BUILT_IN, *CUSTOM]


def whole(values: Iterable[Any]) -> list[Any]:
    """Parameters that only `make test-all` tries."""
    return [pytest.param(value, marks=pytest.mark.whole) for value in values]


def two_of_each(traces: Iterable[Any]) -> list[Any]:
    """The first two traces of each kind of kernel; the others only in `make test-all`. `test_symbols` holds the lines of all."""
    chosen, others = list[Any](), list[Any]()
    count = Counter[tuple[bool, ...]]()
    for trace in traces:
        kind = kernel_of(trace)
        count[kind] += 1
        (chosen if count[kind] <= 2 else others).append(trace)
    return [*chosen, *whole(others)]


def kernel_of(trace: Any) -> tuple[bool, ...]:
    """What decides which kernel computes a trace."""
    if trace.uncorrected or trace.custom:
        return trace.uncorrected, trace.custom
    return trace.per_decision, trace.recursive, trace.horizon is not None, trace.lag_bound is not None


def name_of(trace: Any) -> str:
    """A readable id for a parametrised test."""
    if isinstance(trace, ot.StepTrace | ot.HistoryTrace):
        return trace.title
    return repr(trace)


def _tensor(array: Any) -> Any:
    return pytest.importorskip("torch").from_numpy(np.array(array))


def _jax_array(array: Any) -> Any:
    return pytest.importorskip("jax").numpy.asarray(array)


KINDS: dict[str, Any] = {"numpy": np.array, "torch": _tensor, "jax": _jax_array}
"""From a NumPy array to each kind of array."""


LOG_RATIOS = st.one_of(
    st.floats(-3, 3),
    st.sampled_from([0.0, -np.inf, np.log(1e10), np.log(1e-10), 69.0, -69.0]),
)


@st.composite
def trajectories(
    draw: Any, dtype: Any = np.float64, batch: bool | None = None, max_steps: int = 12, extreme: bool = True
) -> dict[str, Any]:
    """Arguments for `targets`: ρ = 0, ratios of 10^±30, T = 1, ends anywhere, padding at either end, γ with zeros.

    Where nothing may be read (padding; `next_value` after an end) there is NaN, so that reading it shows. After a truncation the
    next episode's values are large, so that leaking shows.
    """
    B = draw(st.integers(1, 6)) if draw(st.booleans()) and batch is not False else 1
    T = draw(st.integers(1, max_steps))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)  # Hypothesis draws what decides, NumPy fills in the rest
    ends = draw(st.sampled_from([0.0, 0.2, 1.0]))
    terminated = rng.random((B, T)) < ends * 0.6
    truncated = (rng.random((B, T)) < ends * 0.6) | (ends == 1.0)  # 1: every step is an end
    values: dict[str, Any] = {name: rng.normal(size=(B, T)) * 3 for name in ("reward", "q", "next_value")}
    episode = np.cumsum(np.roll(terminated | truncated, 1, axis=1), axis=1) - (terminated | truncated)[:, -1:]
    values["q"] = values["q"] * 1e3 ** (episode % 3)
    log_mu = np.log(rng.uniform(0.05, 1.0, (B, T)))
    log_pi = np.log(rng.uniform(0.01, 1.0, (B, T)))
    if extreme:
        ratios = draw(st.lists(LOG_RATIOS, min_size=1, max_size=8))
        picked = rng.random((B, T)) < draw(st.sampled_from([0.0, 0.3, 1.0]))
        log_ratio = np.where(picked, rng.choice(ratios, (B, T)), np.minimum(0, log_pi) - log_mu)
        log_mu = np.minimum(log_mu, log_mu - np.maximum(log_ratio + log_mu, 0))  # keeps π ≤ 1 when ρ is huge
        log_pi = np.minimum(log_ratio + log_mu, 0.0)
    values["next_value"][terminated] = np.nan
    given = {"terminated": terminated, "truncated": truncated, "pair": rng.integers(0, 3, (B, T))}
    given["greedy"] = rng.random((B, T)) < 0.8
    gamma: Any = draw(st.sampled_from([0.0, 0.9, 0.99, 1.0]))
    if draw(st.booleans()):
        gamma = rng.choice([0.0, 0.5, 0.99, 1.0], (B, T))
    values |= {"log_pi": log_pi, "log_mu": log_mu}
    padding = draw(st.sampled_from(["none", "none", "start", "end", "anywhere", "all"]))
    if padding != "none":
        steps, length = np.arange(T), rng.integers(0, T + 1, (B, 1))
        valid = {
            "start": steps >= length,
            "end": steps < length,
            "anywhere": rng.random((B, T)) < 0.7,
            "all": np.zeros((B, T), bool),
        }[padding]
        given["valid"] = valid
        for name in values:
            values[name][~valid] = np.nan
        if isinstance(gamma, np.ndarray):
            gamma[~valid] = np.nan
    if isinstance(gamma, np.ndarray):
        gamma = gamma.astype(dtype)
    made = {name: array.astype(dtype) for name, array in values.items()} | given | {"gamma": gamma}
    if B == 1 and draw(st.booleans()):
        made = {name: array[0] if isinstance(array, np.ndarray) else array for name, array in made.items()}
    if B > 1 and T == 1:
        made["time_major"] = False  # several rows of one step must be said to be that
    return made


def rows(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The trajectories of a batch, one by one."""
    if given["reward"].ndim == 1:
        return [given]
    return [
        {n: array[b] if isinstance(array, np.ndarray) else array for n, array in given.items() if n != "time_major"}
        for b in range(len(given["reward"]))
    ]


def correct_by_definition(trace: Any, given: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Δ and its scale for a whole batch, in float64, in the batch's shape."""
    found = [by_definition.corrections(_row_of(trace, b), **row) for b, row in enumerate(rows(given))]
    shape = given["reward"].shape
    return tuple(np.array([f[i] for f in found]).reshape(shape) for i in (0, 1))  # pyright: ignore[reportReturnType]


def _row_of(trace: Any, b: int) -> Any:
    """A VariableLambda that was made for a batch, cut to one row."""
    if isinstance(trace, ot.VariableLambda) and trace.lam.ndim == 2:
        return ot.VariableLambda(lam=trace.lam[b], horizon=trace.horizon)
    return trace


TOLERANCE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 2e-6}


def assert_close(found: np.ndarray, wanted: np.ndarray, scale: np.ndarray, dtype: Any, what: str = "") -> None:
    """|found − wanted| ≤ tolerance · Σ|γβδ|: relative to what was summed, since the sum itself may cancel."""
    assert found.dtype == dtype
    assert found.shape == wanted.shape
    fits = scale < np.finfo(dtype).max  # beyond it importance sampling overflows, as it must
    error = np.abs(np.where(fits, found, 0.0).astype(float) - np.where(fits, wanted, 0.0))
    bound = TOLERANCE[np.dtype(dtype)] * scale + 1e-300
    assert (error <= bound).all(), f"{what}: error {np.max(error / bound):.3g} times what is allowed"
