"""The arrays of a block of steps → TD errors, discounts and probabilities in float64; and results back into arrays.

    δ_t = r_t + γ_t (1 − terminated_t) next_value_t − value_t        (0 at invalid steps)
    passed_t = γ_t, or 0 where no trace continues from t to t+1: at an end, at padding and at the row's end

On state values

    Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) b_{k:t-1} w_t δ_t,      w = min(ρ̄, ρ) of the policy that the rule evaluates

where b_{k:t-1} is β of a trace that starts one step before k. An advantage is w_k (δ_k + γ_k λ ahead), where ahead is what
v_{k+1} adds to V(s_{k+1}). next_value is that at the true next state, so it is never the next episode's.

Rows follow each other in memory, so a block is a range of flat indices: some rows, or a stretch of one. What is summed is
float64, whatever comes in: a float32 δ that cancels would lose what the sum needs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.arrays import BOOL, FLOATS
from offtrace.returns.numpy.compiling import kernel, part
from offtrace.trajectory import LARGEST_LOG, SMALLEST_LOG, TOLERANCE, Trajectory, explain_bad_value

NOTHING = {dtype: np.empty((0, 0), dtype) for dtype in (BOOL, *FLOATS)}
"""Arrays without elements: what is not given."""
NO_NUMBERS = np.empty(0)


class Steps(NamedTuple):
    """The arrays of a call, [B, T] each; an array without elements is one that is not given or not read."""

    reward: np.ndarray
    value: np.ndarray
    """q, or V where state values are meant."""
    next_value: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    gamma: float
    gammas: np.ndarray
    """γ by step, in place of `gamma`."""
    log_pi: np.ndarray
    log_mu: np.ndarray
    valid: np.ndarray


@kernel
def read(at, n, T, steps, reads, delta, passed, pi, mu, rho):
    """Read n steps from flat index `at` on into float64 arrays [n]; returns whether a value is bad.

    `reads` says whether π, μ and ρ are read.
    """
    reward, value = part_of(steps.reward, at, n), part_of(steps.value, at, n)
    next_value, gammas = part_of(steps.next_value, at, n), part_of(steps.gammas, at, n)
    terminated, truncated = part_of(steps.terminated, at, n), part_of(steps.truncated, at, n)
    log_pi, log_mu = part_of(steps.log_pi, at, n), part_of(steps.log_mu, at, n)
    if steps.valid.size:
        valid, next_is_valid = part_of(steps.valid, at, n), part_of(steps.valid, at + 1, n)
        truncated = truncated | ~valid
        truncated[: len(next_is_valid)] |= ~next_is_valid
        reward, value = where_valid(valid, reward), where_valid(valid, value)
        next_value, gammas = where_valid(valid, next_value), where_valid(valid, gammas)
        log_pi, log_mu = where_valid(valid, log_pi), where_valid(valid, log_mu)
    bad, by_step = False, len(gammas) > 0
    # Short loops of one kind each: these vectorise, one long loop would not.
    for t in range(n):
        γ = np.float64(gammas[t]) if by_step else steps.gamma
        passed[t] = 0.0 if terminated[t] | truncated[t] else γ
        bad |= not (0.0 <= γ <= 1.0)
    for t in range(n):
        γ = np.float64(gammas[t]) if by_step else steps.gamma
        ahead = 0.0 if terminated[t] else np.float64(next_value[t])
        delta[t] = np.float64(reward[t]) + γ * ahead - np.float64(value[t])
    for t in range(n):
        bad |= not abs(delta[t]) < np.inf
    for t in range(T - 1 - at % T, n, T):
        passed[t] = 0.0
    return bad | fill_probabilities(n, log_pi, log_mu, reads, pi, mu, rho)


@part
def part_of(array, at, n):
    """The n elements from flat index `at` on, fewer where the array ends."""
    return array.ravel()[at : at + n]


@part
def where_valid(valid, array):
    """A copy with 0 at invalid steps; an array without elements stays so."""
    out = np.zeros_like(array)
    for t in range(len(array)):
        out[t] = array[t] if valid[t] else out[t]
    return out


@kernel
def fill_probabilities(n, log_pi, log_mu, reads, pi, mu, rho):
    """Fill what is read of π, μ and ρ of the actions taken; returns whether a log-probability is bad."""
    bad = False
    reads_pi, reads_mu, reads_rho = reads
    if reads_rho:
        for t in range(n):
            log_μ = np.float64(log_mu[t])
            log_ρ = np.float64(log_pi[t]) - log_μ
            rho[t] = exp(log_ρ)
            bad |= not ((log_ρ < LARGEST_LOG) & (log_μ < np.inf))
    if reads_pi:
        for t in range(n):
            log_π = np.float64(log_pi[t])
            pi[t] = exp(log_π)
            bad |= not log_π <= TOLERANCE
    if reads_mu:
        for t in range(n):
            log_μ = np.float64(log_mu[t])
            mu[t] = exp(log_μ)
            bad |= not ((log_μ <= TOLERANCE) & (log_μ > -np.inf))
    return bad


@kernel
def write(at, n, correction, value, out):
    """Write the corrections of n steps, with the values added if there are any; returns whether all are finite."""
    into, q = part_of(out, at, n), part_of(value, at, n)
    adds = len(q) > 0
    for t in range(n):
        into[t] = np.float64(q[t]) + correction[t] if adds else correction[t]
    return are_finite(into)


@kernel
def write_states(at, n, delta, weight, x, value, next_value, target, advantage, correction):
    """Write the results of n steps from flat index `at` on; x has one number more, that of the step after the last.

    Returns whether all are finite.
    """
    v, then = part_of(value, at, n), part_of(next_value, at, n)
    goal, gain, change = part_of(target, at, n), part_of(advantage, at, n), part_of(correction, at, n)
    for t in range(n):
        change[t] = x[t]
        goal[t] = np.float64(v[t]) + x[t]
    v, later = part_of(value, at + 1, n), x[1:]
    for t in range(len(v)):
        ahead = np.float64(v[t]) + later[t] - np.float64(then[t])
        gain[t] = delta[t] + (weight[t] * ahead if weight[t] > 0.0 else 0.0)
    if len(v) < n:  # the batch ends here, and no trace continues
        gain[n - 1] = delta[n - 1]
    return are_finite(goal) & are_finite(gain) & are_finite(change)


@part
def are_finite(array):
    """Whether no number is infinite or NaN."""
    fine = True
    for t in range(len(array)):
        fine &= abs(array[t]) < np.inf
    return fine


def steps_of(x: Trajectory) -> Steps:
    """The arrays of a trajectory as the kernels take them."""
    nothing, no_flags = NOTHING[x.dtype], NOTHING[BOOL]
    gamma, gammas = (1.0, x.gamma) if isinstance(x.gamma, np.ndarray) else (x.gamma, nothing)
    return Steps(
        x.read("reward"), x.read("q"), x.read("next_value"), x.terminated, x.truncated, gamma, gammas,
        nothing if x.log_pi is None else x.log_pi, nothing if x.log_mu is None else x.log_mu,
        no_flags if x.valid is None else x.valid,
    )  # fmt: skip


def td_errors(x: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """δ and passed, [B, T] each; an error where a value is bad."""
    steps = steps_of(x)
    B, T = x.terminated.shape
    delta, passed = np.empty(B * T), np.empty(B * T)
    if read(0, B * T, T, steps, (False, False, False), delta, passed, NO_NUMBERS, NO_NUMBERS, NO_NUMBERS):
        explain_bad_value(x)
    return delta.reshape(B, T), passed.reshape(B, T)


def probabilities(x: Trajectory, reads: tuple[str, ...]) -> dict[str, np.ndarray]:
    """π, μ and ρ of the actions taken, by name, of those that are read: [B, T], 1 at invalid steps. An error where one is bad."""
    shape, valid = x.terminated.shape, np.True_ if x.valid is None else x.valid
    logs = (0.0 if log is None else np.where(valid, log, 0.0) for log in (x.log_pi, x.log_mu))
    flat = (np.array(np.broadcast_to(log, shape), np.float64).reshape(-1) for log in logs)
    is_read = tuple(name in reads for name in ("pi", "mu", "rho"))
    into = [np.empty(shape) if read else NO_NUMBERS for read in is_read]
    if fill_probabilities(x.terminated.size, *flat, is_read, *(array.reshape(-1) for array in into)):
        explain_bad_value(x)
    return {name: array for name, read, array in zip(("pi", "mu", "rho"), is_read, into, strict=True) if read}


def goes_on(x: Trajectory) -> np.ndarray:
    """Whether a trace may pass from t to t+1, bool [B, T]: not at an end, at padding or at the row's end."""
    goes_on = ~(x.terminated | x.truncated)
    goes_on[:, -1] = False
    if x.valid is not None:
        goes_on &= x.valid
        goes_on[:, :-1] &= x.valid[:, 1:]
    return goes_on


LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
ROUNDED = 1.5 * 2.0**52
"""What is added to it is rounded to an integer, which is then in the lowest bits."""
C2, C3, C4, C5, C6 = (
    0.5000000000000011,
    0.16666666666666413,
    0.04166666666653015,
    0.008333333333494465,
    0.0013888888943631803,
)
C7, C8, C9 = 0.00019841269506578428, 2.4801493097261263e-05, 2.7557586370338387e-06
C10, C11 = 2.763024893189953e-07, 2.5000063549257597e-08


@part
def exp(x):
    """e^x to about a unit in the last place for x ≤ LARGEST_LOG; 0 below SMALLEST_LOG, where it is less than 10⁻³⁰⁷.

    The C library's is a call for each element, which no loop vectorises. x = n ln 2 + r, |r| ≤ ½ ln 2; for e^r the polynomial
    1 + r + r² (C2 + C3 r + …) whose largest relative error there is the least, 4e-18; n is added in the exponent's bits.
    """
    shifted = x * LOG2_E + ROUNDED
    n = shifted - ROUNDED
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = C11 * r + C10
    p = p * r + C9
    p = p * r + C8
    p = p * r + C7
    p = p * r + C6
    p = p * r + C5
    p = p * r + C4
    p = p * r + C3
    p = p * r + C2
    p = p * (r * r) + r + 1.0
    bits = np.int64(np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52))
    return 0.0 if x < SMALLEST_LOG else bits.view(np.float64)
