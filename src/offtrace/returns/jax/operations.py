"""Returns by JAX operations in float64, for what is traced, is not on the CPU, or is not to be looked at.

Each function takes what decides about the program, the numbers of a rule, the real arrays and the other arrays, as
`float64_programs.compute` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import tree_map, tree_unflatten

from offtrace.returns.jax import by_lag, kernels
from offtrace.returns.jax.float64_programs import Numbers
from offtrace.traces import Rule, Step, Trace
from offtrace.traces.base import StepForm, UncorrectedReturn
from offtrace.traces.trace_argument import as_trace
from offtrace.trajectory import SMALLEST_LOG


class Given(NamedTuple):
    """What decides about the program: everything that is not an array."""

    rule: Hashable
    """The rule's structure, without its numbers."""
    shape: tuple[int, ...]
    add_q: bool
    single: bool
    """Whether the result will be float32, or of half precision."""


class Rows(NamedTuple):
    """A trajectory as float64 [N, T], with zeros in place of all that must not be read."""

    arrays: dict[str, Array]
    """The real arrays by name."""
    gamma: Array
    """γ, for each step or for all."""
    valid: Array
    goes_on: Array
    """Whether a trace may pass from t to t+1."""
    pair: Array | None

    @property
    def discount(self) -> Array:
        """γ_t where a trace may pass from t to t+1, else 0."""
        return jnp.where(self.goes_on, self.gamma, 0.0)

    def with_earlier_logs(self) -> Rows:
        """The same with the log-probabilities one step later: at each step those of the action before it."""
        earlier = {name: _before(self.arrays[name], 0.0) for name in ("log_pi", "log_mu")}
        return self._replace(arrays=self.arrays | earlier)

    def probabilities(self, reads: tuple[str, ...]) -> tuple[Array | float, Array | float, Array | float]:
        """π, μ, ρ; NaN for what is not read."""
        log = self.arrays
        return (
            _e_to(log["log_pi"]) if "pi" in reads else jnp.nan,
            _e_to(log["log_mu"]) if "mu" in reads else jnp.nan,
            _e_to(log["log_pi"] - log["log_mu"]) if "rho" in reads else jnp.nan,
        )

    def bad(self, trace: Trace) -> Array:
        """Where μ = 0, π is infinite, or either is NaN, of those that the trace needs: no such action could have been taken."""
        bad = jnp.zeros_like(self.valid)
        if trace.needs_pi:
            bad = bad | ~(self.arrays["log_pi"] < jnp.inf)
        if trace.needs_mu:
            bad = bad | ~jnp.isfinite(self.arrays["log_mu"])
        return bad


def _rows(shape: tuple[int, ...], real: dict[str, Array], other: dict[str, Array]) -> Rows:
    flat = {n: a.reshape(-1, shape[-1]) if a.ndim else a for n, a in (real | other).items()}
    terminated, truncated = flat["terminated"] != 0, flat["truncated"] != 0
    valid = flat["valid"] != 0 if "valid" in flat else jnp.ones(terminated.shape, bool)
    read = {n: jnp.where(valid, a, 0.0) for n, a in flat.items() if n in real}
    if "next_value" in read:
        read["next_value"] = jnp.where(terminated, 0.0, read["next_value"])
    later = jnp.pad(valid[:, 1:], ((0, 0), (0, 1)))  # False at the row's end
    goes_on = ~(terminated | truncated) & valid & later
    return Rows(read, read["gamma"], valid, goes_on, flat.get("pair"))


def result(given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """q + Δ, or Δ."""
    rule: Rule = tree_unflatten(given.rule, numbers)
    uncorrected = rule.uncorrected_return
    if uncorrected is not None or not as_trace(rule).per_decision:
        real["gamma"] = lax.stop_gradient(real["gamma"])  # the rest of its gradient would be missing
    x = _rows(given.shape, real, other)
    one_step = x.arrays["reward"] + x.gamma * x.arrays["next_value"]
    if uncorrected is not None:
        out = _uncorrected(uncorrected, x, one_step)
        out = out if given.add_q else out - x.arrays["q"]
    else:
        q = x.arrays["q"]
        out = _corrections(as_trace(rule), x, one_step - q, x.discount, given.single)
        out = q + out if given.add_q else out
    return jnp.where(x.valid, out, 0.0).reshape(given.shape)


def _corrections(
    trace: Trace, x: Rows, delta: Array, discount: Array, single: bool, *, on_states: bool = False
) -> Array:
    """Δ [N, T] by the kernel that fits. On state values a trace has met, when it comes to t, the action before t."""
    T = delta.shape[1]
    step_form = trace.step_form
    if step_form is not None:
        return _custom(trace, step_form, x.with_earlier_logs() if on_states else x, delta, discount)
    decay, ratio, cap = factors(trace, x)
    if on_states:
        decay, ratio, cap = (_before(f, 1.0) for f in (decay, ratio, cap))
    next_decay, step, next_cap = (_next(f) for f in (decay, ratio, cap))
    lags = trace.bounds_by_lag(T)
    acts = (discount > 0) | jnp.isfinite(next_decay)  # a factor that does not act may be infinite
    leaves = discount * jnp.where(acts, next_decay, 0.0)
    if trace.per_decision and trace.lag_bound is None:
        weight = leaves * jnp.where(
            (leaves == 0) & ~jnp.isfinite(step), 0.0, step
        )  # a ratio that no trace passes is not read
        if lags is None:
            return kernels.linear(delta, weight)
        return by_lag.linear_within(delta, weight, trace.horizon or T)
    ends = (leaves == 0) | (step == 0)
    ends = ends | (next_cap == 0) if trace.recursive else ends
    g, step = jnp.where(ends, 0.0, leaves), jnp.where(ends, 1.0, step)
    g, step, cap = (lax.stop_gradient(f) for f in (g, step, cap))
    return by_lag.capped(delta, g, step, cap, None if lags is None else tuple(lags), trace.recursive, single)


def factors(trace: Trace, x: Rows) -> tuple[Array, Array, Array]:
    """decay, ratio and cap, [N, T]. A ratio that is not known is NaN."""
    parameters = [_parameter(trace, p, x) for p in trace.parameters]
    made = trace.traced.call(jnp, *x.probabilities(trace.reads), *parameters)
    decay, ratio, cap = (jnp.broadcast_to(jnp.asarray(f, jnp.float64), x.valid.shape) for f in made)
    # A rule's own xp.where could hide an impossible action. An infinite ratio clips every trace to a recursive cap; without one
    # it is as good as unknown.
    return decay, jnp.where(x.bad(trace) | ((ratio == jnp.inf) & (not trace.recursive)), jnp.nan, ratio), cap


def _e_to(logs: Array) -> Array:
    """e to these powers; what is below the smallest normal number counts as 0."""
    return jnp.where(logs < SMALLEST_LOG, 0.0, jnp.exp(logs))


def _next(factor: Array) -> Array:
    """The factor of step t+1 at t; 1 at the row's end, where it is not used."""
    return jnp.pad(factor[:, 1:], ((0, 0), (0, 1)), constant_values=1)


def _before(factor: Array, first: float) -> Array:
    """The factor of step t−1 at t; `first` at the row's start."""
    return jnp.pad(factor[:, :-1], ((0, 0), (1, 0)), constant_values=first)


def _parameter(trace: Trace, value: Array | np.ndarray | float, x: Rows) -> Array | float:
    """A number as it is; what is given for each step as [N, T]."""
    if isinstance(value, float | int) or not value.ndim:
        return value  # pyright: ignore[reportReturnType]
    if value.size != x.valid.size or value.shape[-1] != x.valid.shape[-1]:
        raise ValueError(
            f"{type(trace).__name__} holds an array of shape {value.shape}, one number for each step, "
            f"but the trajectory has {x.valid.shape[0]} rows of {x.valid.shape[1]} steps"
        )
    return jnp.where(x.valid, value.reshape(x.valid.shape), 0.0)


def _custom(trace: Trace, step: StepForm, x: Rows, delta: Array, discount: Array) -> Array:
    """A custom step, for all starts side by side."""
    probabilities = x.probabilities(trace.reads)

    def beta(carry: Array, lag: Array, later: Callable[[Array], Array]) -> tuple[Array, Array]:
        pi, mu, rho = (p if isinstance(p, float | int) else later(p) for p in probabilities)
        start, pair = (-1, -2) if x.pair is None else (x.pair, later(x.pair))
        now = Step(pi, mu, rho, step.lam, lag.astype(jnp.float64), start, pair)
        carry, β = step.traced.call(jnp, carry, now)
        return tree_map(lambda c: jnp.broadcast_to(jnp.asarray(c, jnp.float64), delta.shape), carry), β

    first = tree_map(
        lambda c: c * jnp.ones_like(delta), step.carry
    )  # it varies over the axes of a shard_map, as δ does
    stopped = lax.stop_gradient(jnp.where((discount != 0) & _next(x.bad(trace)), jnp.nan, discount))
    return by_lag.by_lag(delta, stopped, trace.horizon or delta.shape[1], first, beta)


def _uncorrected(rule: UncorrectedReturn, x: Rows, one_step: Array) -> Array:
    """G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}]; with a limit n, each lag takes back what was bootstrapped, and adds a step."""
    discount, next_value = x.discount, x.arrays["next_value"]
    if rule.n is None:
        a = jnp.where(discount > 0, x.arrays["reward"] + (1.0 - rule.lam) * discount * next_value, one_step)
        return kernels.linear(a, rule.lam * discount)
    before = jnp.pad(next_value[:, :-1], ((0, 0), (1, 0)))
    gains = one_step - before
    grown: Array = by_lag.linear_within(gains, rule.lam * discount, rule.n)
    return one_step + (grown - gains)


def matrix(given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """β_{k:t} [T, T]."""
    T = given.shape[0]
    real, other = (
        {n: jnp.broadcast_to(a, (T, T)) if a.ndim else a for n, a in arrays.items()} for arrays in (real, other)
    )
    x = _rows((T, T), real, other)
    Δ = _corrections(tree_unflatten(given.rule, numbers), x, jnp.eye(T), jnp.where(x.goes_on, 1.0, 0.0), given.single)
    return jnp.where(x.valid & x.valid.T, Δ, 0.0).T


def on_states(
    given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]
) -> tuple[Array, Array, Array]:
    """Target, advantage and correction: Δ_k = Σ_t (γ_k ··· γ_{t-1}) b_{k:t-1} w_t δ_t, w = min(ρ̄, ρ) (`numpy.read_steps`)."""
    trace: Trace = tree_unflatten(given.rule, numbers)
    if not trace.per_decision:
        real["gamma"] = lax.stop_gradient(real["gamma"])  # the rest of its gradient would be missing
    x = _rows(given.shape, real, other)
    value, next_value, log_mu, discount = x.arrays["value"], x.arrays["next_value"], x.arrays["log_mu"], x.discount
    ρ = jnp.where(jnp.isfinite(log_mu), _e_to(x.arrays["log_pi"] - log_mu), jnp.nan)
    weight = trace.delta_ratio(jnp, ρ if trace.per_decision else lax.stop_gradient(ρ))
    delta = x.arrays["reward"] + x.gamma * next_value - value
    excess = _corrections(trace, x, weight * delta, discount, given.single, on_states=True)
    target = value + excess
    ahead = jnp.where(x.goes_on, _next(target) - next_value, 0.0)  # what v_{k+1} adds to V(s_{k+1})
    ahead = delta + discount * _parameter(trace, trace.advantage_lam, x) * ahead
    advantage = weight * jnp.where(weight == 0, 0.0, ahead)  # not 0 · ∞
    target, advantage, excess = (jnp.where(x.valid, a, 0.0).reshape(given.shape) for a in (target, advantage, excess))
    return target, advantage, excess
