"""The NumPy backend: a trace and a checked trajectory → corrections, by blocks of rows (`passes`), or by `custom` in O(T²).

Other backends come here with the memory of arrays that lie on the host: `correct`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from offtrace.arrays import NumPyKind
from offtrace.returns.backend import Backend
from offtrace.returns.inputs import agreed_rule, bounded, decisions, needed, needed_on_states
from offtrace.returns.mixtures import Mixture
from offtrace.returns.numpy import custom, every_pair, gradients, mixtures, passes
from offtrace.returns.numpy import weights as weights_of_rows
from offtrace.returns.numpy.normal_form import lag_caps, normal_form
from offtrace.returns.numpy.read_steps import goes_on, probabilities, td_errors
from offtrace.returns.weights.decisions import Criterion, Weighing, agreed
from offtrace.traces import Rule, Trace
from offtrace.trajectory import Trajectory, agree, laid_out, warn_if_positive


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
        rule, found = agreed_rule(self, trace, arrays)
        return correct(rule, laid_out(found, bounded(rule)), add_q=add_q)[0]

    def correct_states(
        self, trace: Trace, arrays: Mapping[str, object], *, differentiable: bool, check: bool | None
    ) -> tuple[np.ndarray, ...]:
        """Target, advantage and correction of state values."""
        return correct(trace, laid_out(agree(self, needed_on_states(self, trace, arrays)), bounded(trace)))

    def coefficients(self, trace: Trace, arrays: Mapping[str, object]) -> np.ndarray:
        """β_{k:t} of one trajectory [T] as [T, T]."""
        x = self.trajectory(trace, {**arrays, "gamma": 1.0})
        if len(x.shape) != 1:
            raise ValueError(f"coefficients takes one trajectory [T], got shape {x.shape}: pass one row")
        return coefficients(trace, x)

    def mixed(self, x: Mixture) -> np.ndarray:
        """By the compiled loop, in float64."""
        return mixtures.mixed(x)

    def weights(self, trace: Trace, arrays: Mapping[str, object], how: Weighing, *, check: bool | None) -> np.ndarray:
        """The weight of each decision, in the wider dtype of the log-probabilities."""
        if how.process_group is not None:
            raise TypeError("process_group is one of torch.distributed: it goes with tensors")
        given = decisions(self, trace, arrays)
        dtype = np.result_type(*given.dtypes) if given.dtypes else np.dtype(np.float64)
        with np.errstate(over="ignore"):  # of a dtype with less range than the weights
            return weights_of_rows.weigh(trace, given, how).astype(dtype, copy=False)

    def reject(
        self, criteria: tuple[Criterion, ...], arrays: Mapping[str, object], *, check: bool | None
    ) -> np.ndarray:
        """Whether each decision is kept."""
        return weights_of_rows.keep(criteria, agreed(self, self.storable, arrays))

    def as_numpy(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array

    def looks(self, check: bool | None, arrays: Mapping[str, object]) -> bool:
        """Return True: on NumPy arrays values are always looked at."""
        return True

    def take(self, array: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The entries of the last axis at indices [..., 1]."""
        return np.take_along_axis(array, index, -1)

    def placed(self, values: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
        """Values [N] at these places of a flat array of zeros."""
        out = np.zeros(size, values.dtype)
        out[at] = values
        return out

    def summed(self, values: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
        """Sums of the values [N] that go to the same place of a flat array."""
        return np.bincount(at, values, size)

    def largest(self, values: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
        """The largest of the values [N] that go to the same place of a flat array."""
        out = np.full(size, -np.inf)
        np.maximum.at(out, at, values)
        return out

    def cast(self, array: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        """The array in another dtype."""
        return array.astype(dtype, copy=False)

    def constant(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array


BACKEND = NumPyBackend()


def correct(trace: Trace, x: Trajectory, *, add_q: bool | None = None) -> tuple[np.ndarray, ...]:
    """q + Δ or Δ; without `add_q` target, advantage and correction of state values. Invalid steps hold anything."""
    warn_if_positive(x)
    kernel = custom if trace.custom else passes
    out = kernel.correct_states(trace, x) if add_q is None else (kernel.correct(trace, x, add_q=add_q),)
    return tuple(map(x.restore, out))


def look(trace: Trace, x: Trajectory) -> None:
    """Raise an error that names the first bad value, if there is one."""
    td_errors(x)
    probabilities(x, ("rho", *trace.reads) if x.q_called == "value" else trace.reads)


def coefficients(trace: Trace, x: Trajectory) -> np.ndarray:
    """β_{k:t} [T, T] of a trajectory of one row."""
    T, passes = x.terminated.shape[1], goes_on(x)[0].astype(float)
    valid = np.ones(T, bool) if x.valid is None else x.valid[0]
    if trace.custom:
        β = np.diag(valid.astype(float))
        custom.sweep(trace, x, np.zeros((1, T)), passes[None], matrix=β)
    else:
        decay, ratio, cap = (factor[0] for factor in normal_form(trace, x))
        lags = lag_caps(trace, T)
        passes[:-1] *= decay[1:]
        β = gradients.weights(passes, ratio, cap, every_pair.NO_LAGS if lags is None else lags, trace.recursive)
        β[~valid] = 0.0
    with np.errstate(over="ignore"):  # of float32, by importance sampling
        return β.astype(x.given_back or x.dtype, copy=False)
