"""Returns by array operations in float64, which PyTorch and JAX spell alike: for gradients, and where a program is traced.

δ and the rule's factors are such operations. Recursions over the steps are each library's own: `Operations`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

from offtrace.arrays import Module, Tensor
from offtrace.traces import Trace
from offtrace.traces.base import INFINITY
from offtrace.trajectory import FLAGS, SMALLEST_LOG


class Operations(ABC):
    """What PyTorch and JAX do not spell alike. Arrays are float64 [N, T]."""

    xp: Module
    math: Module
    """What rules call: there numbers and arrays mix."""
    horizon_has_gradient = True
    """Whether `linear_within` has a gradient with respect to the weights."""

    @abstractmethod
    def linear(self, delta: Tensor, weight: Tensor) -> Tensor:
        """Δ_k = δ_k + weight_k Δ_{k+1}."""

    @abstractmethod
    def linear_within(self, delta: Tensor, weight: Tensor, n: int) -> Tensor:
        """Δ_k = Σ_{t<k+n} (weight_k ··· weight_{t-1}) δ_t."""

    @abstractmethod
    def capped(
        self, delta: Tensor, g: Tensor, step: Tensor, cap: Tensor, lags: list[float] | None, recursive: bool
    ) -> Tensor:
        """Δ_k = Σ_{t≥k} (g_k ··· g_{t-1}) min(cap_t, d_{t-k}, step_k ··· step_{t-1}) δ_t, with a gradient with respect to δ."""

    @abstractmethod
    def custom(self, trace: Trace, x: Rows, delta: Tensor) -> Tensor:
        """Δ of a custom trace."""

    @abstractmethod
    def asarray(self, numbers: object, like: Tensor) -> Tensor:
        """Numbers as a float64 array where `like` is."""

    @abstractmethod
    def constant(self, array: Tensor) -> Tensor:
        """The array without gradient."""

    @abstractmethod
    def take(self, array: Tensor, index: Tensor) -> Tensor:
        """Entries of the last axis at indices."""

    @abstractmethod
    def repeat(
        self, n: int, body: Callable[[int, tuple[Tensor, ...]], tuple[Tensor, ...]], state: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The state after body(0, state), …, body(n − 1, state)."""


class Rows(NamedTuple):
    """A trajectory as float64 [N, T], with zeros in place of all that must not be read."""

    arrays: dict[str, Tensor]
    """The real arrays by name."""
    valid: Tensor
    discount: Tensor
    """γ_t where a trace may pass from t to t+1, else 0."""
    pair: Tensor | None

    def with_earlier_logs(self, xp: Module) -> Rows:
        """The same with the log-probabilities one step later: at each step those of the action before it."""
        earlier = {name: before(xp, self.arrays[name], 0.0) for name in ("log_pi", "log_mu")}
        return self._replace(arrays=self.arrays | earlier)

    def probabilities(self, xp: Module, reads: tuple[str, ...]) -> tuple[Tensor | float, ...]:
        """π, μ, ρ; NaN for what is not read."""
        log = self.arrays
        return (
            e_to(xp, log["log_pi"]) if "pi" in reads else math.nan,
            e_to(xp, log["log_mu"]) if "mu" in reads else math.nan,
            e_to(xp, log["log_pi"] - log["log_mu"]) if "rho" in reads else math.nan,
        )

    def bad(self, xp: Module, trace: Trace) -> Tensor:
        """Where μ = 0, π is infinite, or either is NaN, of those that the trace needs: no such action could have been taken."""
        bad = self.valid & ~self.valid
        if trace.needs_pi:
            bad = bad | ~(self.arrays["log_pi"] < INFINITY)
        if trace.needs_mu:
            bad = bad | ~xp.isfinite(self.arrays["log_mu"])
        return bad


def e_to(xp: Module, logs: Tensor) -> Tensor:
    """e to these powers; what is below the smallest normal number counts as 0."""
    return xp.where(logs < SMALLEST_LOG, 0.0, xp.exp(logs))


def following(xp: Module, array: Tensor, end: float) -> Tensor:
    """What stands one step later; `end` at the row's end."""
    return xp.concatenate([array[:, 1:], xp.full_like(array[:, :1], end)], 1)


def before(xp: Module, array: Tensor, first: float) -> Tensor:
    """What stands one step earlier; `first` at the row's start."""
    return xp.concatenate([xp.full_like(array[:, :1], first), array[:, :-1]], 1)


def has_gradient(do: Operations, trace: Trace) -> bool:
    """Whether there is a gradient with respect to coefficients and ratios. Else they are constants."""
    return trace.per_decision and trace.lag_bound is None and (trace.horizon is None or do.horizon_has_gradient)


def read_rows(do: Operations, trace: Trace, shape: tuple[int, ...], arrays: Mapping[str, Tensor]) -> Rows:
    """The rows of a batch [T] or [B, T], whose real arrays are float64; γ may be an array of no dimension."""
    xp = do.xp
    flat = {name: a.reshape(-1, shape[-1]) if a.ndim else a for name, a in arrays.items()}
    terminated, truncated = flat["terminated"] != 0, flat["truncated"] != 0
    valid = flat["valid"] != 0 if "valid" in flat else terminated | ~terminated
    read = {name: xp.where(valid, a, 0.0) for name, a in flat.items() if name not in (*FLAGS, "pair")}
    if "next_value" in read:
        read["next_value"] = xp.where(terminated, 0.0, read["next_value"])
    if not has_gradient(do, trace):
        read["gamma"] = do.constant(read["gamma"])
    goes_on = valid & following(xp, valid, False) & ~(terminated | truncated)
    return Rows(read, valid, xp.where(goes_on, read["gamma"], 0.0), flat.get("pair"))


def results(
    do: Operations, trace: Trace, shape: tuple[int, ...], arrays: Mapping[str, Tensor], add_q: bool | None
) -> tuple[Tensor, ...]:
    """q + Δ or Δ; without `add_q` target, advantage and correction of state values."""
    x = read_rows(do, trace, shape, arrays)
    q = x.arrays["value" if add_q is None else "q"]
    delta = x.arrays["reward"] + x.arrays["gamma"] * x.arrays["next_value"] - q
    if add_q is None:
        outs = on_states(do, trace, x, delta)
    else:
        out = corrections(do, trace, x, delta)
        outs = (q + out if add_q else out,)
    return tuple(do.xp.where(x.valid, out, 0.0).reshape(shape) for out in outs)


def on_states(do: Operations, trace: Trace, x: Rows, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Target, advantage and correction: Δ_k = Σ_t (γ_k ··· γ_{t-1}) b_{k:t-1} w_t δ_t, w = min(ρ̄, ρ) (`numpy.read_steps`)."""
    xp, log_mu = do.xp, x.arrays["log_mu"]
    ρ = xp.where(xp.isfinite(log_mu), e_to(xp, x.arrays["log_pi"] - log_mu), math.nan)
    weight = trace.delta_ratio(do.math, ρ if has_gradient(do, trace) else do.constant(ρ))
    excess = corrections(do, trace, x, weight * delta, on_states=True)
    target = x.arrays["value"] + excess
    # what v_{k+1} adds to V(s_{k+1})
    ahead = xp.where(x.discount > 0, following(xp, target, 0.0) - x.arrays["next_value"], 0.0)
    ahead = delta + x.discount * parameter(do, trace, trace.advantage_lam, x.valid) * ahead
    return target, weight * xp.where(weight == 0, 0.0, ahead), excess  # not 0 · ∞


def corrections(do: Operations, trace: Trace, x: Rows, delta: Tensor, *, on_states: bool = False) -> Tensor:
    """Δ [N, T]. On state values a trace has met, when it comes to t, the action before t."""
    if trace.custom:
        return do.custom(trace, x.with_earlier_logs(do.xp) if on_states else x, delta)
    xp = do.xp
    decay, ratio, cap = factors(do, trace, x)
    if on_states:
        decay, ratio, cap = (before(xp, f, 1.0) for f in (decay, ratio, cap))
    decay, step = following(xp, decay, 1.0), following(xp, ratio, 1.0)
    acts = (x.discount > 0) | xp.isfinite(decay)  # a factor that does not act may be infinite
    leaves = x.discount * xp.where(acts, decay, 0.0)
    lags = trace.bounds_by_lag(delta.shape[1])
    if trace.per_decision and trace.lag_bound is None:
        # A ratio that no trace passes is not read.
        weight = leaves * xp.where((leaves == 0) & ~xp.isfinite(step), 0.0, step)
        return do.linear(delta, weight) if lags is None else do.linear_within(delta, weight, trace.horizon or 1)
    ends = (leaves == 0) | (step == 0)
    ends = ends | (following(xp, cap, 1.0) == 0) if trace.recursive else ends
    g, step, cap = (do.constant(f) for f in (xp.where(ends, 0.0, leaves), xp.where(ends, 1.0, step), cap))
    return do.capped(delta, g, step, cap, lags, trace.recursive)


def factors(do: Operations, trace: Trace, x: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """decay, ratio and cap, [N, T]. A ratio that is not known is NaN."""
    parameters = [parameter(do, trace, p, x.valid) for p in trace.parameters]
    factors = trace.traced.call(do.math, *x.probabilities(do.xp, trace.reads), *parameters)
    zero = do.xp.zeros_like(x.valid, dtype=do.xp.float64)
    decay, ratio, cap = (zero + f for f in factors)
    # A rule's own xp.where could hide an impossible action. An infinite ratio clips every trace to a recursive cap; without one
    # it is as good as unknown.
    unknown = x.bad(do.xp, trace)
    unknown = unknown if trace.recursive else unknown | (ratio == INFINITY)
    return decay, do.xp.where(unknown, math.nan, ratio), cap


def parameter(do: Operations, trace: Trace, value: Tensor | float, valid: Tensor) -> Tensor | float:
    """A number as it is; what is given for each step as [N, T]."""
    if isinstance(value, float | int) or not value.ndim:
        return value
    if math.prod(value.shape) != math.prod(valid.shape) or value.shape[-1] != valid.shape[-1]:
        raise ValueError(
            f"{type(trace).__name__} holds an array of shape {value.shape}, one number for each step, "
            f"but the trajectory has {valid.shape[0]} rows of {valid.shape[1]} steps"
        )
    return do.xp.where(valid, do.asarray(value, valid).reshape(valid.shape), 0.0)
