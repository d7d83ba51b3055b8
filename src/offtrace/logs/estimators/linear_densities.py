"""Marginalised importance sampling with linear features: the density ratio w(s) = φ(s)·θ of states, in closed form.

For every function f of the state, the flow into states under π balances:

    E_{d_0}[f(s_0)] = (1/E) Σ_i w(s_i) (f(s_i) − γ ρ_i f(s'_i))      w = d_π / d_μ, over logged steps i; f(s') = 0 after an end

Asked for f = each feature, this is one linear system for θ: minimax weight learning with linear classes (Liu et al. 2018; Uehara,
Huang & Jiang 2020). (The same for weights of pairs (s, a), as DualDICE has them, is the direct method.) With one-hot features it
is the table of `marginalised`. V̂ and what each episode contributes are as there,

    V̂ = (1/E) Σ_i w(s_i) ρ_i r_i,      v(s_0) + Σ_{i in e} w(s_i) (ρ_i (r_i + γ v(s'_i)) − v(s_i))

with v(s) = φ(s)·η, the fixed point of the transposed system (off-policy LSTD). V̂ is right if the features hold w, and also if
they hold v. Nothing keeps w above 0: how much of it is negative says whether the features hold it. And if they hold enough,
further ones change nothing: the estimate is compared with that of 32 random features more.

φ is that of the model of Q, with a constant: `Features(φ)`, the states themselves ("linear"), or random Fourier features, which
models of pairs (s, a) get too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offtrace._shared.number_text import interval, number, percent
from offtrace.logs.container import Logs
from offtrace.logs.estimators.estimator_checks import Check, Checking, Estimated, in_range, rests_on
from offtrace.logs.estimators.fitted_iteration import states_to_features
from offtrace.logs.estimators.learned_features import Learned, fourier
from offtrace.logs.estimators.linear_bases import feature_matrix, root_of
from offtrace.logs.estimators.marginalised import mean_of_ratios, settled
from offtrace.logs.estimators.registry import FEATURES, LACKING, MU, Evidence

FURTHER = 32
"""Random features with which the estimate is compared."""
WORST = 1e8
"""The largest condition number of the system."""
NEGATIVE = 0.1
"""The share of negative weights from which on the features do not hold the density ratio."""


@dataclass(frozen=True, eq=False)
class LinearDensities:
    """Density ratios of states, linear in features."""

    ratio: NDArray[np.float64]
    """w(s_i) of each step [N]."""
    step_ratio: NDArray[np.float64]
    """ρ_i [N]."""
    values: NDArray[np.float64]
    """v(s_i) [N]."""
    next_values: NDArray[np.float64]
    """v(s'_i) [N]; 0 after an end."""
    first_values: NDArray[np.float64]
    """v at the first states, as `Starts` has them."""
    of_behavior: float
    """V̂(μ) by the same features, with every ρ = 1, over the logs' own first states."""
    condition: float
    """The condition number of the system, in features that are orthonormal over the logged steps."""

    @property
    def settled(self) -> bool:
        """Whether the system has a solution that rounding does not make."""
        return self.condition < WORST

    @property
    def negative(self) -> float:
        """The share of negative weights, Σ_{w_i < 0} |w_i| ρ_i / Σ_i |w_i| ρ_i."""
        size = np.abs(self.ratio) * self.step_ratio
        return float(size[self.ratio < 0].sum() / size.sum()) if size.sum() > 0 else 0.0


def has_features(model: object, tabular: bool) -> bool:
    """Whether the model, or the default where it has features of pairs, says what the features of states are."""
    return not tabular or getattr(model, "of_states", None) is not None


def linear_densities(evidence: Evidence, *, further: bool = False) -> LinearDensities:
    """Solve for θ and η, where it is asked for with further features."""
    logs, gamma, starts, sampled = evidence.logs, evidence.gamma, evidence.starts, evidence.sampled
    if logs.log_mu is None:
        raise ValueError(LACKING[MU])
    if not has_features(evidence.model, logs.tabular):
        raise ValueError(LACKING[FEATURES])
    given = _features(evidence, further)
    with np.errstate(over="ignore"):
        rho = np.exp(np.concatenate(list(sampled.each(sampled.log_pi))) - logs.log_mu)
    piece = max(1, min(1 << 16, (1 << 22) // given(logs.state[:1]).shape[1]))

    def gram(p: slice) -> np.ndarray:
        x = given(logs.state[p])
        return x.T @ x

    root = root_of(np.asarray(sum(sampled.each(gram, piece))))

    def at(p: slice) -> tuple[np.ndarray, np.ndarray]:
        """φ_i and φ'_i [n, p]."""
        now, on = given(logs.state[p]) @ root, np.flatnonzero(~logs.terminated[p])
        after = np.zeros_like(now)
        if len(on):
            after[on] = given(logs.next_state[p][on]) @ root
        return now, after

    def sums(p: slice) -> np.ndarray:
        """Σ φ_i (φ_i − γ ρ_i φ'_i)ᵀ and Σ φ_i ρ_i r_i, for ρ and for ρ = 1 [2, p, p + 1]."""
        now, after = at(p)
        both = (np.column_stack([now - gamma * r * after, r * logs.reward[p, None]]) for r in (rho[p, None], 1.0))
        return np.stack([now.T @ each for each in both])

    system, on_policy = np.asarray(sum(sampled.each(sums, piece)))
    first, own = given(starts.state) @ root, given(logs.state[logs.starts[:-1]]) @ root
    condition = _condition(system[:, :-1])
    nothing, nan = np.full(len(logs), np.nan), float("nan")
    if not condition < WORST:
        return LinearDensities(nothing, rho, nothing, nothing, np.full(len(first), nan), nan, condition)
    theta = np.linalg.solve(system[:, :-1].T, logs.episodes * (starts.weight @ first))
    eta = np.linalg.solve(system[:, :-1], system[:, -1])
    of_behavior = nan
    if _condition(on_policy[:, :-1]) < WORST:
        of_behavior = float((own @ np.linalg.solve(on_policy[:, :-1], on_policy[:, -1])).mean())
    read = [(now @ theta, now @ eta, after @ eta) for now, after in sampled.each(at, piece)]
    ratio, values, next_values = (np.concatenate(each) for each in zip(*read, strict=True))
    return LinearDensities(ratio, rho, values, next_values, first @ eta, of_behavior, condition)


def _features(evidence: Evidence, further: bool) -> Callable[[np.ndarray], np.ndarray]:
    """(1, φ(s)): states → [n, p]; with `further`, random functions of the state after them."""
    model, logs = evidence.model, evidence.logs
    if isinstance(model, Learned) and model.of_states is not None:
        found = model.features(logs, evidence.gamma)[0]
    elif (of_states := getattr(model, "of_states", None)) is not None or getattr(model, "of_pairs", True) is None:
        found = states_to_features(of_states, logs)
    else:
        found = fourier(evidence.direct.seed).features(logs, evidence.gamma)[0]
    more = _random_functions(logs, evidence.direct.seed) if further else None

    def phi(states: np.ndarray) -> np.ndarray:
        x = feature_matrix(states if found is None else found(states), len(states), "features of s")
        return np.column_stack([np.ones(len(x)), x] if more is None else [np.ones(len(x)), x, more(states)])

    return phi


def _random_functions(logs: Logs, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Of ids random signs, of features random Fourier features, others than those of the default model."""
    if logs.tabular:
        signs = np.random.default_rng(seed + 1).choice([-1.0, 1.0], (logs.states, FURTHER))
        return lambda states: signs[states]
    made = fourier(seed + 1).features(logs, 0.0)[0]
    assert made is not None
    return lambda states: made(states)[:, -FURTHER:]


def _condition(matrix: np.ndarray) -> float:
    if not np.isfinite(matrix).all():
        return float("inf")
    values = np.linalg.svd(matrix, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def linear_marginalised(evidence: Evidence) -> tuple[float, NDArray[np.float64]]:
    """V̂ by linear density ratios, and what each episode contributes [E]; NaN where the system has no solution."""
    return _estimate(evidence, evidence.linear_densities)


def _estimate(evidence: Evidence, d: LinearDensities) -> tuple[float, NDArray[np.float64]]:
    logs = evidence.logs
    if not d.settled:
        return float("nan"), np.full(logs.episodes, np.nan)
    value = float((d.ratio * d.step_ratio) @ logs.reward) / logs.episodes
    error = d.ratio * (d.step_ratio * (logs.reward + evidence.gamma * d.next_values) - d.values)
    return value, evidence.starts.contributions(d.first_values) + np.add.reduceat(error, logs.starts[:-1])


# --- what can go wrong ------------------------------------------------------------------------------------------------


def conditioning(evidence: Evidence, found: Estimated) -> Check | None:
    """How much the system amplifies errors."""
    d = evidence.linear_densities
    if not d.settled:
        return None  # which is told as not settled
    return Check("conditioning", d.condition, f"its system has the condition number {number(d.condition)}", False)


def negative(evidence: Evidence, found: Estimated) -> Check | None:
    """How much of the weights is negative, which no density ratio is."""
    d = evidence.linear_densities
    if not d.settled:
        return None
    failed = d.negative > NEGATIVE
    words = f"{percent(d.negative)} of its weights are negative"
    if failed:
        words += ", and no density ratio is: its features do not hold that, and it is right only where they hold V"
    return Check("negative", d.negative, words, failed)


def mean_ratio(evidence: Evidence, found: Estimated) -> Check | None:
    """The mean of ρ over the states of π, which should be 1."""
    d = evidence.linear_densities
    return mean_of_ratios(d.ratio, d.step_ratio, evidence.logs.starts) if d.settled else None


def finds_behavior(evidence: Evidence, found: Estimated) -> Check | None:
    """V̂(μ) by the same features, against what was observed."""
    value, seen = evidence.linear_densities.of_behavior, evidence.observed
    if np.isnan(value):
        return None
    words = f"it finds V(μ) = {number(value)}; observed were {number(seen.estimate)} {interval(seen.low, seen.high)}"
    return Check("V(μ)", value, words, seen.missed_by(value))


def richer(evidence: Evidence, found: Estimated) -> Check | None:
    """Whether further features change the estimate: by more than its interval has, and more than chance."""
    if not evidence.linear_densities.settled or not found.low <= found.high:
        return None
    value, x = _estimate(evidence, linear_densities(evidence, further=True))
    if np.isnan(value):
        return None
    error = float((x - found.contributions).std() / np.sqrt(len(x)))
    moved = abs(value - found.value)
    failed = moved > max((found.high - found.low) / 2, 4 * error)
    words = f"with {FURTHER} random features more it would be {number(value)}"
    if failed:
        words += ": its features hold neither the density ratio nor V, and it has no interval"
    return Check("features", value, words, failed, no_interval=failed)


CHECKS: tuple[Checking, ...] = (
    settled,
    conditioning,
    negative,
    mean_ratio,
    finds_behavior,
    richer,
    rests_on,
    in_range,
)
