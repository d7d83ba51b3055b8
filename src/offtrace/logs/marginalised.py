"""Marginalised importance sampling for tables: steps are weighted by the density of their state, not by a product of ratios.

With n(s) logged steps in s and d_0 the first states, the occupancy x of π, Σ_t γ^t P(s_t = s), solves

    x(s') = d_0(s') + γ Σ_{i: s'_i = s'} x(s_i) ρ_i / n(s_i)          over logged steps i that did not terminate

so that w(s) = x(s) E / n(s) estimates d_π / d_μ (Liu et al. 2018; Xie, Ma & Wang 2019; here stationary, and with one table), and

    V̂ = (1/E) Σ_i w(s_i) ρ_i r_i

There is a ratio for one step, and none for a whole episode: the variance does not grow with the length of episodes. In exchange
states must be Markov. The same number is Σ_s d_0(s) v(s), v the fixed point of v(s) = mean of ρ_i (r_i + γ v(s'_i)) over
the steps in s. So the pull of an episode on V̂ is known: an episode contributes

    v(s_0) + Σ_{i in e} w(s_i) (ρ_i (r_i + γ v(s'_i)) − v(s_i))

If μ is n(s, a) / n(s) this is the direct method. A state that is only reached where an episode was cut has no steps: what π does
from there is taken for worth 0, and a check says how much that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from offtrace._shared.number_text import number, percent
from offtrace.logs.checks import MUCH, Check, Checking, Estimated, in_range, markov, rests_on
from offtrace.logs.linear_systems import solve
from offtrace.logs.registry import LACKING, MU, TABLE

if TYPE_CHECKING:
    from offtrace.logs.evidence import Evidence

LARGEST = 1e9
"""Steps in a state, on average: more of them are those of a walk without an end, which rounding keeps finite."""


@dataclass(frozen=True, eq=False)
class Densities:
    """Density ratios of states, from logs of a table."""

    occupancy: NDArray[np.float64]
    """x(s) = Σ_t γ^t P(s_t = s) under π [S]; where nothing was logged, what arrives there."""
    ratio: NDArray[np.float64]
    """w(s) [S], 0 where nothing was logged."""
    step_ratio: NDArray[np.float64]
    """ρ_i = π(a_i|s_i) / μ(a_i|s_i) of each step [N]."""
    values: NDArray[np.float64]
    """v(s) [S], 0 where nothing was logged."""
    lost: float
    """How much of π's way, discounted, arrives in states in which nothing was logged."""
    settled: bool
    """Whether both systems were solved, by an occupancy."""


def densities(evidence: Evidence) -> Densities:
    """Solve for the occupancy of π and for v."""
    logs, gamma, starts = evidence.logs, evidence.gamma, evidence.starts
    if logs.log_mu is None:
        raise ValueError(LACKING[MU])
    if not logs.tabular:
        raise ValueError(LACKING[TABLE])
    S, visits = logs.states, np.bincount(logs.state, minlength=logs.states)
    with np.errstate(over="ignore"):
        rho = np.exp(evidence.log_pi - logs.log_mu)
    share = rho / visits[logs.state]
    on = ~logs.terminated
    pairs = logs.state[on], logs.next_state[on]
    onward = csr_array(
        (gamma * share[on], pairs), shape=(S, S)
    )  # sums steps of the same pair: sweeps over pairs, not steps
    first = np.bincount(starts.state, starts.weight, S)
    occupancy, _, reached = solve(lambda x: x - onward.T @ x, first)
    reward = np.bincount(logs.state, share * logs.reward, S)
    values, _, solved = solve(lambda v: v - onward @ v, reward)
    ratio = np.where(visits > 0, occupancy * logs.episodes / np.maximum(visits, 1), 0.0)
    lost = float(np.clip(occupancy[visits == 0].sum(), 0.0, None))
    # Where the walk has an occupancy it is a sum of what is not negative; a solution that is not so is no occupancy.
    settled = reached and solved and bool((np.abs(occupancy) < LARGEST).all() and occupancy.min() > -1e-6)
    return Densities(occupancy, ratio, rho, values, lost if lost > 1e-9 else 0.0, settled)


def marginalised(evidence: Evidence) -> tuple[float, NDArray[np.float64]]:
    """V̂ by density ratios, and what each episode contributes [E]; NaN where there is no fixed point."""
    logs, starts, d = evidence.logs, evidence.starts, evidence.densities
    if not d.settled:
        return float("nan"), np.full(logs.episodes, np.nan)
    v_next = np.zeros(len(logs))
    on = ~logs.terminated
    v_next[on] = d.values[logs.next_state[on]]
    weight = d.ratio[logs.state]
    value = float((weight * d.step_ratio) @ logs.reward) / logs.episodes
    error = weight * (d.step_ratio * (logs.reward + evidence.gamma * v_next) - d.values[logs.state])
    pull = logs.by_episode(error)
    return value, starts.contributions(d.values[starts.state]) + pull


def settled(evidence: Evidence, estimated: Estimated) -> Check | None:
    """Whether there is an occupancy: not where π goes on for ever and γ = 1."""
    if not np.isnan(estimated.value):
        return None
    words = "the occupancy of the target policy was not found, so that it has no value and no interval; try a γ below 1"
    return Check("settled", float("nan"), words, True)


def mean_ratio(evidence: Evidence, estimated: Estimated) -> Check | None:
    """Σ_i w(s_i) ρ_i / Σ_i w(s_i), the mean of ρ over the states of π, which should be 1; None where no step weighs anything."""
    if np.isnan(estimated.value):
        return None
    d = evidence.densities
    weight, ratio = d.ratio[evidence.logs.state], d.step_ratio
    if not weight.sum() > 0:
        return None
    mean = float(weight @ ratio / weight.sum())
    by_episode = evidence.logs.by_episode(weight * (ratio - mean))
    off = abs(mean - 1) > max(3 * float(np.sqrt((by_episode**2).sum()) / weight.sum()), 0.02) or not 0.5 < mean < 2
    words = f"its ratios of actions have the mean {number(mean)}"
    if off:
        words += (
            ", and should have 1: actions that the target policy takes are missing, or μ is not what it was said to be"
        )
    return Check("mean weight", mean, words, off)


def lost(evidence: Evidence, estimated: Estimated) -> Check | None:
    """How much of π's way arrives where nothing was logged."""
    share = 0.0 if np.isnan(estimated.value) else evidence.densities.lost
    if not share:
        return None
    words = f"{percent(share)} of the target's way, discounted, leads to states in which nothing was logged: taken for worth 0"
    return Check("support", share, words, share > MUCH)


CHECKS: tuple[Checking, ...] = (settled, mean_ratio, lost, markov, rests_on, in_range)
