"""The NumPy backend: a trace and a checked trajectory → corrections, by a plan (`call_plans`), or for a custom trace in O(T²).

Other backends come here with the memory of arrays that lie on the host: `attempt`, `weights`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from offtrace.arrays import BOOL, FLOATS, NumPyKind
from offtrace.returns.backend import Backend, UsualCall
from offtrace.returns.needed_arrays import bounded, decisions, needed, needed_on_states
from offtrace.returns.numpy import (
    call_plans,
    custom_traces,
    every_pair,
    given_factors,
    rejected_rows,
    state_rows,
    uncorrected_returns,
    weight_rows,
)
from offtrace.returns.numpy.normal_form import lag_caps, normal_form, parameter
from offtrace.returns.numpy.planned_passes import corrected, corrected_states
from offtrace.returns.numpy.scratch_rows import NOT_BY_STEP, by_step
from offtrace.returns.numpy.whole_arrays import goes_on
from offtrace.returns.weight_arrays import Criterion, Decisions, Weighing, agreed
from offtrace.traces import Rule, Trace
from offtrace.traces.trace_argument import as_trace
from offtrace.trajectory import (
    Trajectory,
    agree,
    explain_bad_value,
    laid_out,
    warn_if_infinite,
    warn_of_positive_logs,
)


class NumPyBackend(NumPyKind, Backend[np.ndarray]):
    """NumPy arrays, and lists. Every value is looked at, since that is free here."""

    word, converter, differentiates = "NumPy array", "np.asarray", False
    xp, storable = np, tuple(map(np.dtype, (np.float16, np.float32, np.float64)))

    def trajectory(self, trace: Rule, arrays: Mapping[str, object]) -> Trajectory:
        """The arrays that the rule reads, checked."""
        return laid_out(agree(self, needed(self, trace, arrays)), bounded(trace))

    def correct(
        self, trace: Rule, arrays: Mapping[str, object], *, add_q: bool, differentiable: bool, check: bool | None
    ) -> np.ndarray:
        """q + Δ, or Δ."""
        x = self.trajectory(trace, arrays)
        out = attempt(trace, x, add_q=add_q)
        return explain_bad_value(x) if out is None else x.restore(out)

    def usual(self, call: UsualCall[np.ndarray]) -> np.ndarray | None:
        """q + Δ, or Δ, of a usual call; else None."""
        trace, add_q, _, reward, q, next_value, terminated, truncated, gamma, log_pi, log_mu, valid = call
        if not _are_plain((reward, q, next_value, log_pi, log_mu), (terminated, truncated, valid)):
            return None
        if not isinstance(trace, Rule) or not trace.hashable:
            return None
        shape, dtype = reward.shape, reward.dtype
        plan = call_plans.usual_plan(trace, shape[1])
        if plan is None or (log_pi is None and plan.needs_pi) or (log_mu is None and plan.needs_mu):
            return None
        nothing = NOT_BY_STEP[dtype]
        log_pi, log_mu = log_pi if plan.needs_pi else nothing, log_mu if plan.needs_mu else nothing
        is_read = NOT_BY_STEP[BOOL] if valid is None else valid
        read = reward, q, next_value, terminated, truncated, gamma, nothing, log_pi, log_mu, is_read
        out = corrected(plan, read, np.empty(shape, dtype), add_q)
        if out is None:
            return None
        if valid is not None:
            out[~valid] = 0.0
        if plan.needs_pi and plan.needs_mu:
            _look_at_logs(log_pi, log_mu, valid)
        warn_if_infinite(out)
        return out

    def coefficients(self, trace: Trace, arrays: Mapping[str, object]) -> np.ndarray:
        """β_{k:t} of one trajectory [T] as [T, T]."""
        x = self.trajectory(trace, {**arrays, "gamma": 1.0})
        if len(x.shape) != 1:
            raise ValueError(f"coefficients takes one trajectory [T], got shape {x.shape}: pass one row")
        return weights(trace, x)

    def correct_states(
        self, trace: Trace, arrays: Mapping[str, object], *, differentiable: bool, check: bool | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Target, advantage and correction of state values."""
        x = laid_out(agree(self, needed_on_states(self, trace, arrays)), bounded(trace))
        made = attempt_on_states(trace, x)
        return explain_bad_value(x) if made is None else restored_states(x, made)

    def usual_states(
        self,
        trace: Trace | None,
        lam: float | None,
        rho_bar: float | None,
        c_bar: float | None,
        reward: np.ndarray,
        value: np.ndarray,
        next_value: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        gamma: float,
        log_pi: np.ndarray,
        log_mu: np.ndarray,
        valid: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Target, advantage and correction of a usual call; else None."""
        if value is None or next_value is None or log_pi is None or log_mu is None:
            return None
        if not _are_plain((reward, value, next_value, log_pi, log_mu), (terminated, truncated, valid)):
            return None
        if not all(n is None or type(n) in (float, int) for n in (lam, rho_bar, c_bar)):
            return None
        if trace is not None and not (isinstance(trace, Rule) and trace.hashable):  # pyright: ignore[reportUnnecessaryIsInstance]
            return None
        shape, dtype = reward.shape, reward.dtype
        plan = call_plans.usual_state_plan(trace, lam, rho_bar, c_bar, shape[1])
        if plan is None:
            return None
        nothing, is_read = NOT_BY_STEP[dtype], NOT_BY_STEP[BOOL] if valid is None else valid
        read = reward, value, next_value, terminated, truncated, gamma, nothing, log_pi, log_mu, is_read
        made = corrected_states(plan, read, shape, dtype)
        if made is None:
            return None
        if valid is not None:
            for out in made:
                out[~valid] = 0.0
        _look_at_logs(log_pi, log_mu, valid)
        warn_if_infinite(made[0])
        return made

    def weights(self, trace: Trace, arrays: Mapping[str, object], how: Weighing, *, check: bool | None) -> np.ndarray:
        """The weight of each decision, in the wider dtype of the log-probabilities."""
        if how.process_group is not None:
            raise TypeError("process_group is one of torch.distributed: it goes with tensors")
        given = decisions(self, trace, arrays)
        dtype = np.result_type(*given.dtypes) if given.dtypes else np.dtype(np.float64)
        with np.errstate(over="ignore"):  # of a dtype with less range than the weights
            return weigh(trace, given, how).astype(dtype, copy=False)

    def reject(
        self, criteria: tuple[Criterion, ...], arrays: Mapping[str, object], *, check: bool | None
    ) -> np.ndarray:
        """Whether each decision is kept."""
        return rejected_rows.keep(criteria, agreed(self, self.storable, arrays))

    def as_numpy(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array

    def looks(self, check: bool | None, arrays: Mapping[str, object]) -> bool:
        """Return True: on NumPy arrays values are always looked at."""
        return True

    def take(self, array: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The entries of the last axis at indices [..., 1]."""
        return np.take_along_axis(array, index, -1)

    def cast(self, array: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        """The array in another dtype."""
        return array.astype(dtype, copy=False)

    def constant(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array


BACKEND = NumPyBackend()


def _are_plain(reals: tuple[object, ...], flags: tuple[object, ...]) -> bool:
    """Whether arrays are all as compiled kernels take them: of one shape [B, T], in one piece, of one dtype or booleans.

    The first of each is there; None in the place of another means that it was not given.
    """
    first = reals[0]
    if type(first) is not np.ndarray or first.dtype not in FLOATS or first.ndim != 2:
        return False
    shape, dtype = first.shape, first.dtype
    if 0 in shape or (shape[1] == 1 and shape[0] > 1):  # [N, 1] may be N steps
        return False
    for array in reals:
        if array is not None and not (
            type(array) is np.ndarray and array.dtype is dtype and array.shape == shape and array.flags.carray
        ):
            return False
    for array in flags:
        if array is not None and not (
            type(array) is np.ndarray and array.dtype is BOOL and array.shape == shape and array.flags.carray
        ):
            return False
    return flags[0] is not None and flags[1] is not None


def attempt(trace: Rule, x: Trajectory, *, add_q: bool) -> np.ndarray | None:
    """q + Δ, or Δ, [B, T]; None where a value is bad, which `explain_bad_value` then names. Invalid steps hold anything."""
    _look_at_logs(x.log_pi, x.log_mu, x.valid)
    uncorrected = trace.uncorrected_return
    if uncorrected is not None:
        out = uncorrected_returns.of(uncorrected, x)
        return out if add_q or out is None else out - x.read("q")
    trace = as_trace(trace)
    if not trace.custom:
        return _by_compiled_pass(trace, x, add_q=add_q)
    out = custom_traces.correct(trace, x)
    return x.read("q") + out if add_q and out is not None else out


def _look_at_logs(log_pi: np.ndarray | None, log_mu: np.ndarray | None, valid: np.ndarray | None) -> None:
    if log_pi is not None and log_mu is not None and log_pi.item(0) > 0.0 < log_mu.item(0):
        warn_of_positive_logs(log_pi, log_mu, valid)


def _by_compiled_pass(trace: Trace, x: Trajectory, *, add_q: bool) -> np.ndarray | None:
    B, T = x.terminated.shape
    gamma, gammas, valid = by_step(x)
    nothing = NOT_BY_STEP[x.dtype]
    log_pi, log_mu = nothing if x.log_pi is None else x.log_pi, nothing if x.log_mu is None else x.log_mu
    read = x.reward, x.q, x.next_value, x.terminated, x.truncated, gamma, gammas, log_pi, log_mu, valid
    return corrected(call_plans.plan_of(trace, B, T, x.valid), read, np.empty((B, T), x.dtype), add_q)


def attempt_on_states(trace: Trace, x: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """What `state_targets` gives, [B, T] each; None where a value is bad, which `explain_bad_value` then names."""
    _look_at_logs(x.log_pi, x.log_mu, x.valid)
    if trace.custom:
        return state_rows.of_custom(trace, x)
    B, T = x.terminated.shape
    gamma, gammas, valid = by_step(x)
    read = x.reward, x.q, x.next_value, x.terminated, x.truncated, gamma, gammas, x.log_pi, x.log_mu, valid
    lam = parameter(trace, trace.advantage_lam, (B, T), x.valid)
    plan = call_plans.state_plan(call_plans.plan_of(trace, B, T, x.valid), trace, lam)
    return corrected_states(plan, read, (B, T), x.dtype)


def restored_states(x: Trajectory, made: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three results in the shape and dtype that came in."""
    target, advantage, correction = map(x.restore, made)
    return target, advantage, correction


def weights(trace: Trace, x: Trajectory) -> np.ndarray:
    """β_{k:t} [T, T] of a trajectory of one row."""
    T, passes = x.terminated.shape[1], goes_on(x)[0].astype(float)
    valid = np.ones(T, bool) if x.valid is None else x.valid[0]
    if trace.custom:
        made = np.diag(valid.astype(float))
        if custom_traces.sweep(trace, x, np.zeros((1, T)), passes[None], matrix=made) is None:
            explain_bad_value(x)
    else:
        decay, ratio, cap = (factor[0] for factor in normal_form(trace, x))
        lags = lag_caps(trace, T)
        passes[:-1] *= decay[1:]
        made = given_factors.weights(passes, ratio, cap, every_pair.NO_LAGS if lags is None else lags, trace.recursive)
        made[~valid] = 0.0
    with np.errstate(over="ignore"):  # of float32, by importance sampling
        return made.astype(x.given_back or x.dtype, copy=False)


def weigh(
    trace: Trace, given: Decisions[np.ndarray], how: Weighing, merge: weight_rows.Merge | None = None
) -> np.ndarray:
    """The weights of decisions on the host, in float64; `merge` puts together what several processes have to be normalised by."""
    x = weight_rows.trajectory(given, bounded(trace))
    _look_at_logs(x.log_pi, x.log_mu, x.valid)
    lags = lag_caps(trace, x.terminated.shape[1] + 1)
    made = weight_rows.weigh(
        lambda rows: normal_form(trace, rows),
        x,
        every_pair.NO_LAGS if lags is None else lags,
        trace.recursive,
        how,
        whole=trace.per_step,
        group=given.group,
        merge=merge,
    )
    return made.reshape(given.shape)
