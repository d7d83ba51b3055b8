"""The NumPy backend: a trace and a checked trajectory → corrections, by blocks of rows (`passes`), or by `custom` in O(T²).

Other backends come here with the memory of arrays that lie on the host: `attempt`, `weights`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from offtrace.arrays import NumPyKind
from offtrace.returns.backend import Backend
from offtrace.returns.inputs import bounded, decisions, needed, needed_on_states
from offtrace.returns.numpy import custom, every_pair, gradients, passes, rejected_rows, uncorrected_returns
from offtrace.returns.numpy import weights as weights_of_rows
from offtrace.returns.numpy.normal_form import lag_caps, normal_form
from offtrace.returns.numpy.read_steps import goes_on
from offtrace.returns.weights.decisions import Criterion, Decisions, Weighing, agreed
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
        states = attempt_on_states(trace, x)
        return explain_bad_value(x) if states is None else restored_states(x, states)

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


def attempt(trace: Rule, x: Trajectory, *, add_q: bool) -> np.ndarray | None:
    """q + Δ, or Δ, [B, T]; None where a value is bad, which `explain_bad_value` then names. Invalid steps hold anything."""
    _look_at_logs(x.log_pi, x.log_mu, x.valid)
    uncorrected = trace.uncorrected_return
    if uncorrected is not None:
        out = uncorrected_returns.of(uncorrected, x)
        out = out if add_q or out is None else out - x.read("q")
    elif as_trace(trace).custom:
        out = custom.correct(as_trace(trace), x)
        out = x.read("q") + out if add_q and out is not None else out
    else:
        return passes.correct(as_trace(trace), x, add_q=add_q)
    if out is not None:
        warn_if_infinite(out, x)
    return out


def _look_at_logs(log_pi: np.ndarray | None, log_mu: np.ndarray | None, valid: np.ndarray | None) -> None:
    if log_pi is not None and log_mu is not None and log_pi.item(0) > 0.0 < log_mu.item(0):
        warn_of_positive_logs(log_pi, log_mu, valid)


def attempt_on_states(trace: Trace, x: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """What `state_targets` gives, [B, T] each; None where a value is bad, which `explain_bad_value` then names."""
    _look_at_logs(x.log_pi, x.log_mu, x.valid)
    if not trace.custom:
        return passes.correct_states(trace, x)
    states = custom.correct_states(trace, x)
    for out in states or ():
        warn_if_infinite(out, x)
    return states


def restored_states(x: Trajectory, states: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three results in the shape and dtype that came in."""
    target, advantage, correction = map(x.restore, states)
    return target, advantage, correction


def weights(trace: Trace, x: Trajectory) -> np.ndarray:
    """β_{k:t} [T, T] of a trajectory of one row."""
    T, passes = x.terminated.shape[1], goes_on(x)[0].astype(float)
    valid = np.ones(T, bool) if x.valid is None else x.valid[0]
    if trace.custom:
        β = np.diag(valid.astype(float))
        if custom.sweep(trace, x, np.zeros((1, T)), passes[None], matrix=β) is None:
            explain_bad_value(x)
    else:
        decay, ratio, cap = (factor[0] for factor in normal_form(trace, x))
        lags = lag_caps(trace, T)
        passes[:-1] *= decay[1:]
        β = gradients.weights(passes, ratio, cap, every_pair.NO_LAGS if lags is None else lags, trace.recursive)
        β[~valid] = 0.0
    with np.errstate(over="ignore"):  # of float32, by importance sampling
        return β.astype(x.given_back or x.dtype, copy=False)


def weigh(
    trace: Trace, given: Decisions[np.ndarray], how: Weighing, merge: weights_of_rows.Merge | None = None
) -> np.ndarray:
    """The weights of decisions on the host, in float64; `merge` puts together what several processes have to be normalised by."""
    x = weights_of_rows.trajectory(given, bounded(trace))
    _look_at_logs(x.log_pi, x.log_mu, x.valid)
    lags = lag_caps(trace, x.terminated.shape[1] + 1)
    out = weights_of_rows.weigh(
        lambda rows: normal_form(trace, rows),
        x,
        every_pair.NO_LAGS if lags is None else lags,
        trace.recursive,
        how,
        whole=trace.per_step,
        group=given.group,
        merge=merge,
    )
    return out.reshape(given.shape)
