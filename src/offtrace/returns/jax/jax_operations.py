"""Returns by JAX operations in float64, for what is traced, is not on the CPU, or is not to be looked at.

Each function takes what decides about the program, the numbers of a rule, the real arrays and the other arrays, as
`float64_programs.compute` calls it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_map, tree_unflatten

from offtrace.returns.jax import xla_kernels as kernels
from offtrace.returns.jax.pallas_kernels import capped
from offtrace.returns.numpy.scalar_math import SMALLEST_LOG
from offtrace.traces import Step, Trace
from offtrace.traces.base import StepForm, UncorrectedReturn


class Given(NamedTuple):
    """What decides about the program: everything that is not an array."""

    rule: Any
    """The rule's structure, without its numbers."""
    shape: tuple[int, ...]
    add_q: bool
    single: bool
    """Whether the result will be float32."""


class Rows(NamedTuple):
    """A trajectory as float64 [N, T], with zeros in place of all that must not be read."""

    valid: Any
    reward: Any
    q: Any
    next_value: Any
    log_pi: Any
    log_mu: Any
    gamma: Any
    goes_on: Any
    """Whether a trace may pass from t to t+1."""
    pair: Any

    def probabilities(self, reads: tuple[str, ...]) -> tuple[Any, Any, Any]:
        """π, μ, ρ; NaN for what is not read."""
        logs = {"pi": self.log_pi, "mu": self.log_mu}
        logs["rho"] = self.log_pi - self.log_mu if "rho" in reads else None
        return tuple(_e_to(logs[n]) if n in reads else jnp.nan for n in logs)  # pyright: ignore[reportReturnType]

    def bad(self, trace: Any) -> Any:
        """Where μ = 0, π is infinite, or either is NaN, of those that the trace needs: no such action could have been taken."""
        bad = jnp.zeros_like(self.valid)
        if trace.needs_pi:
            bad = bad | ~(self.log_pi < jnp.inf)
        if trace.needs_mu:
            bad = bad | ~jnp.isfinite(self.log_mu)
        return bad


def _rows(shape: tuple[int, ...], real: dict[str, Any], other: dict[str, Any]) -> Rows:
    flat = {n: a.reshape(-1, shape[-1]) if a.ndim else a for n, a in (real | other).items()}
    terminated, truncated = flat["terminated"] != 0, flat["truncated"] != 0
    valid = flat["valid"] != 0 if "valid" in flat else jnp.ones(terminated.shape, bool)
    read = {n: jnp.where(valid, a, 0.0) for n, a in flat.items() if n in real}
    if "next_value" in read:
        read["next_value"] = jnp.where(terminated, 0.0, read["next_value"])
    later = jnp.pad(valid[:, 1:], ((0, 0), (0, 1)))  # False at the row's end
    names = ("reward", "q", "next_value", "log_pi", "log_mu", "gamma")
    goes_on = ~(terminated | truncated) & valid & later
    return Rows(valid, *(read.get(n) for n in names), goes_on=goes_on, pair=flat.get("pair"))


def result(given: Given, numbers: Any, real: Any, other: Any) -> Any:
    """q + Δ, or Δ."""
    rule = tree_unflatten(given.rule, numbers)
    uncorrected = rule.uncorrected_return
    if uncorrected is not None or not rule.per_decision:
        real["gamma"] = lax.stop_gradient(real["gamma"])  # the rest of its gradient would be missing
    x = _rows(given.shape, real, other)
    discount = jnp.where(x.goes_on, x.gamma, 0.0)
    one_step = x.reward + x.gamma * x.next_value
    if uncorrected is not None:
        out = _uncorrected(uncorrected, x, one_step, discount)
        out = out if given.add_q else out - x.q
    else:
        out = _corrections(rule, x, one_step - x.q, discount, given.single)
        out = x.q + out if given.add_q else out
    return jnp.where(x.valid, out, 0.0).reshape(given.shape)


def _corrections(trace: Trace, x: Rows, delta: Any, discount: Any, single: bool) -> Any:
    """Δ [N, T] by the kernel that fits."""
    N, T = delta.shape
    step_form = trace.step_form
    if step_form is not None:
        return _custom(trace, step_form, x, delta, discount)
    parameters = [_parameter(trace, p, x) for p in trace.parameters]
    factors = trace.traced.call(jnp, *x.probabilities(trace.reads), *parameters)
    decay, ratio, cap = (jnp.broadcast_to(jnp.asarray(f, jnp.float64), (N, T)) for f in factors)
    # A rule's own xp.where could hide an impossible action. An infinite ratio clips every trace to a recursive cap; without one
    # it is as good as unknown.
    ratio = jnp.where(x.bad(trace) | ((ratio == jnp.inf) & (not trace.recursive)), jnp.nan, ratio)
    next_decay, step, next_cap = (_next(f) for f in (decay, ratio, cap))
    lags = trace.bounds_by_lag(T)
    leaves = discount * next_decay
    if trace.per_decision and trace.lag_bound is None:
        weight = leaves * jnp.where(
            (leaves == 0) & jnp.isnan(step), 0.0, step
        )  # a ratio that no trace passes is not read
        if lags is None:
            return kernels.linear(delta, weight)
        return kernels.linear_within(delta, weight, trace.horizon or T)
    ends = (leaves == 0) | (step == 0)
    ends = ends | (next_cap == 0) if trace.recursive else ends
    g, step = jnp.where(ends, 0.0, leaves), jnp.where(ends, 1.0, step)
    g, step, cap = (lax.stop_gradient(f) for f in (g, step, cap))
    if lags is None:
        return capped(delta, g, step, cap, trace.recursive, single)
    return kernels.bounded(delta, g, step, cap, tuple(lags), trace.recursive)


def _e_to(logs: Any) -> Any:
    """e to these powers; what is below the smallest normal number counts as 0."""
    return jnp.where(logs < SMALLEST_LOG, 0.0, jnp.exp(logs))


def _next(factor: Any) -> Any:
    """The factor of step t+1 at t; 1 at the row's end, where it is not used."""
    return jnp.pad(factor[:, 1:], ((0, 0), (0, 1)), constant_values=1)


def _parameter(trace: Trace, value: Any, x: Rows) -> Any:
    """A number as it is; what is given for each step as [N, T]."""
    if not jnp.ndim(value):
        return value
    if value.size != x.valid.size or value.shape[-1] != x.valid.shape[-1]:
        raise ValueError(
            f"{type(trace).__name__} holds an array of shape {value.shape}, one number for each step, "
            f"but the trajectory has {x.valid.shape[0]} rows of {x.valid.shape[1]} steps"
        )
    return jnp.where(x.valid, value.reshape(x.valid.shape), 0.0)


def _custom(trace: Trace, step: StepForm, x: Rows, delta: Any, discount: Any) -> Any:
    """A custom step, for all starts side by side."""
    probabilities = x.probabilities(trace.reads)

    def beta(carry: Any, lag: Any, later: Any) -> tuple[Any, Any]:
        seen = (later(p) if n in trace.reads else p for n, p in zip(("pi", "mu", "rho"), probabilities, strict=True))
        pairs = (-1, -2) if x.pair is None else (x.pair, later(x.pair))
        now = Step(*seen, step.lam, lag.astype(jnp.float64), *pairs)  # pyright: ignore[reportCallIssue]
        carry, β = step.traced.call(jnp, carry, now)
        return tree_map(lambda c: jnp.broadcast_to(jnp.asarray(c, jnp.float64), delta.shape), carry), β

    first = tree_map(lambda c: jnp.broadcast_to(c, delta.shape), step.carry)
    stopped = lax.stop_gradient(jnp.where((discount != 0) & _next(x.bad(trace)), jnp.nan, discount))
    return kernels.by_lag(delta, stopped, trace.horizon or delta.shape[1], first, beta)


def _uncorrected(rule: UncorrectedReturn, x: Rows, one_step: Any, discount: Any) -> Any:
    """G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}]; with a limit n, each lag takes back what was bootstrapped, and adds a step."""
    if rule.n is None:
        a = jnp.where(discount > 0, x.reward + (1.0 - rule.lam) * discount * x.next_value, one_step)
        return kernels.linear(a, rule.lam * discount)
    before = jnp.pad(x.next_value[:, :-1], ((0, 0), (1, 0)))
    gains = one_step - before
    grown = kernels.by_lag(gains, rule.lam * discount, rule.n, (), lambda carry, lag, later: (carry, 1.0))
    return one_step + (grown - gains)


def matrix(given: Given, numbers: Any, real: Any, other: Any) -> Any:
    """β_{k:t} [T, T]."""
    T = given.shape[0]
    real, other = (
        {n: jnp.broadcast_to(a, (T, T)) if a.ndim else a for n, a in arrays.items()} for arrays in (real, other)
    )
    x = _rows((T, T), real, other)
    Δ = _corrections(tree_unflatten(given.rule, numbers), x, jnp.eye(T), jnp.where(x.goes_on, 1.0, 0.0), given.single)
    return jnp.where(x.valid & x.valid.T, Δ, 0.0).T


def v_trace(shape: tuple[int, ...], numbers: Any, real: Any, other: Any) -> Any:
    """v_k − V_k = ρ̄_k δ_k + γ_k c_k (v_{k+1} − V_{k+1}), and the advantage."""
    lam, rho_bar, c_bar = numbers
    x = _rows(shape, {"q" if n == "value" else n: a for n, a in real.items()}, other)
    discount = jnp.where(x.goes_on, x.gamma, 0.0)
    ρ = jnp.where(jnp.isfinite(x.log_mu), _e_to(x.log_pi - x.log_mu), jnp.nan)
    delta = x.reward + x.gamma * x.next_value - x.q
    excess = kernels.linear(jnp.minimum(ρ, rho_bar) * delta, discount * lam * jnp.minimum(ρ, c_bar))
    target = x.q + excess
    ahead = jnp.where(x.goes_on, _next(target) - x.next_value, 0.0)  # what v_{k+1} adds to V(s_{k+1})
    advantage = jnp.minimum(ρ, rho_bar) * (delta + discount * lam * ahead)
    return tuple(jnp.where(x.valid, a, 0.0).reshape(shape) for a in (target, advantage))
