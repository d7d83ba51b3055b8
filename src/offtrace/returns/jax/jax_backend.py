"""JAX arrays in, JAX arrays out: inside jit, vmap and grad, on any device.

Arrays that are on the CPU, and are not being traced, go through the compiled kernels of the NumPy backend, which check every
value in passing. Everything else is JAX operations (`jax_kernels`), in float64 whatever comes in: in float32 a product of ratios
loses its range within three steps. Float64 is switched on here for the operations of this file only, and so their gradient is
written here as well: JAX would transpose them outside, where it is off. This file is imported when the first JAX array arrives.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten

from offtrace.returns.jax import xla_kernels as kernels
from offtrace.returns.jax.pallas_kernels import capped
from offtrace.returns.jax.xla_kernels import in_float64
from offtrace.returns.numpy.numpy_backend import lag_caps
from offtrace.returns.numpy.scalar_math import SMALLEST_LOG
from offtrace.returns.numpy.whole_arrays import probabilities, td_errors
from offtrace.traces import Rule, Step, Trace, pytrees
from offtrace.traces.arguments import as_trace
from offtrace.traces.base import StepForm, UncorrectedReturn
from offtrace.trajectory import FLAGS, FLOATS

pytrees.register_all(Rule)


class Given(NamedTuple):
    """What decides about the program: everything that is not an array."""

    rule: Any
    """The rule's structure, without its numbers."""
    shape: tuple[int, ...]
    add_q: bool
    single: bool
    """Whether the result will be float32."""


def run(trace: Rule, *, add_q: bool, differentiable: bool, check: bool | None, **arrays: Any) -> Any:
    """q + Δ, or Δ. The arrays are [T] or [B, T]."""
    from offtrace.returns.api import checked, needed, on_host

    if not trace.uncorrected and as_trace(trace).form == "history":
        raise TypeError(f"{trace.title!r} is a HistoryTrace, a Python function of NumPy arrays: JAX needs a StepTrace")
    pytrees.register(type(trace))  # it may have been made before jax was imported
    arrays = needed(trace, **arrays)
    shape, dtype = agree(arrays)
    traced, on_cpu = where_from(trace, arrays)
    looking = looks(check, traced, on_cpu)
    if looking and on_cpu:
        return jnp.asarray(on_host(trace, add_q=add_q, **as_numpy(arrays)))
    if looking:
        x = checked(trace, **as_numpy(arrays))
        td_errors(x, without_q=x.q is None)
        probabilities(x, trace.reads)
    numbers, rule = tree_flatten(trace)
    T = shape[-1]
    if not traced and not any(map(np.ndim, numbers)):
        arrays, shape = in_bucket(arrays, shape)
    given = Given(rule, shape, add_q, dtype == np.float32)
    return compute(_result, given, numbers, arrays, dtype, differentiable)[..., :T]


def agree(arrays: dict[str, Any]) -> tuple[tuple[int, ...], Any]:
    """The one shape of all arrays and the one dtype of the real ones, at no cost that grows: tracers have both."""
    first, shape, dtype = "", (), None
    for name, array in arrays.items():
        if name == "gamma" and not np.ndim(array):
            if isinstance(array, float | int) and not 0.0 <= array <= 1.0:
                raise ValueError(f"gamma must lie in [0, 1], got {array!r}")
            continue
        if array is None and name not in FLAGS[:2]:
            continue
        if not isinstance(array, jax.Array | np.ndarray):
            raise TypeError(f"{name} must be a JAX array, got {type(array).__name__}")
        if not first:
            first, shape = name, tuple(array.shape)
        elif tuple(array.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)} but {first} has shape {shape}: all arrays must be [T] or all [B, T], "
                "batch first, time last; nothing is broadcast"
            )
        kind = np.dtype(array.dtype).kind
        if name in FLAGS or name == "pair":
            if kind not in ("iu" if name == "pair" else "biu"):
                raise TypeError(f"{name} must be boolean or of an integer dtype, got {array.dtype}: convert it")
        elif array.dtype not in FLOATS:
            raise TypeError(f"{name} must be float32 or float64, got {array.dtype}: convert it")
        elif dtype is not None and array.dtype != dtype:
            raise TypeError(f"{name} is {array.dtype} but the real arrays before it are {dtype}: give all in one dtype")
        else:
            dtype = np.dtype(array.dtype)
    if len(shape) not in (1, 2):
        raise ValueError(f"{first} has shape {shape}: arrays must be [T] or [B, T], batch first, time last")
    if 0 in shape:
        raise ValueError(f"the batch is empty: {first} has shape {shape}; there must be at least one row and one step")
    return shape, dtype or np.dtype(jnp.result_type(float))


def where_from(*trees: Any) -> tuple[bool, bool]:
    """Whether anything is being traced, and, if not, whether everything is on the CPU."""
    leaves = tree_leaves(trees)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return True, False
    devices = {device.platform for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()}
    return False, devices <= {"cpu"}


def looks(check: bool | None, traced: bool, on_cpu: bool) -> bool:
    """Whether values are to be looked at: on the CPU unless check=False, on a GPU only with check=True, as that waits for it."""
    if check and traced:
        raise ValueError(
            "check=True must look at values, which there are none of inside jit, vmap and grad: leave it out"
        )
    return bool(check) or (check is None and on_cpu and not traced)


def in_bucket(arrays: dict[str, Any], shape: tuple[int, ...]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The arrays with padding up to the next 2ⁿ or 3·2ⁿ steps, and their shape: so a new T is rarely a new program."""
    T = shape[-1]
    half = 1 << max(3, (T - 1).bit_length() - 1)
    length = next(n for n in (half, half * 3 // 2, half * 2) if n >= T)
    if length == T:
        return arrays, shape
    there = {name: a for name, a in arrays.items() if np.ndim(a)}
    return {**arrays, **_padded(there, length - T)}, (*shape[:-1], length)


@partial(jax.jit, static_argnums=1)
def _padded(arrays: dict[str, Any], more: int) -> dict[str, Any]:
    arrays = {"valid": jnp.ones(arrays["terminated"].shape, bool), **arrays}
    return tree_map(lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, more)]), arrays)


def as_numpy(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays as NumPy arrays: their own memory, where they are on the CPU."""
    return {name: np.asarray(a) if isinstance(a, jax.Array) else a for name, a in arrays.items()}


def compute(function: Any, given: Any, numbers: Any, arrays: dict[str, Any], dtype: Any, differentiable: bool) -> Any:
    """function(given, numbers, real arrays, other arrays), which works in float64, with results in `dtype`."""
    # vmap outside of jit may hold a float64 of NumPy's in what it calls a float32. A copy, made before float64 is on, is one.
    numbers, arrays = tree_map(lambda a: jnp.array(a) if isinstance(a, Tracer) else a, (numbers, arrays))
    other = {n: a for n, a in arrays.items() if a is not None and n in (*FLAGS, "pair")}
    real = {n: a for n, a in arrays.items() if a is not None and n not in other}
    leaves, tree = tree_flatten((numbers, real))
    if not differentiable:
        leaves = [lax.stop_gradient(a) if isinstance(a, jax.Array) else a for a in leaves]
    # What is not JAX's has no gradient, and comes as float64. What JAX holds keeps the precision that it has.
    variables = {i: a for i, a in enumerate(leaves) if isinstance(a, jax.Array)}
    with in_float64():
        constants = {i: jnp.asarray(a, jnp.float64) for i, a in enumerate(leaves) if i not in variables}
        return _program((function, given, tree, dtype), variables, (constants, other))


def _run(program: Any, variables: Any, fixed: Any) -> Any:
    function, given, tree, dtype = program
    constants, other = fixed
    with in_float64():
        leaves = variables | constants
        real = [lax.convert_element_type(leaves[i], jnp.float64) for i in range(len(leaves))]
        out = function(given, *tree_unflatten(tree, real), other)
        return tree_map(lambda a: lax.convert_element_type(a, dtype), out)


def _pull(program: Any, variables: Any, fixed: Any, gradient: Any) -> Any:
    with in_float64():
        return jax.vjp(lambda v: _run(program, v, fixed), variables)[1](gradient)[0]


def _mappable(function: Any) -> Any:
    """The function, mapped by vmap as Python and in float64, even where vmap finds it within an already jitted function."""
    found = custom_vmap(function)

    @found.def_vmap
    def rule(size: int, mapped: Any, *arguments: Any) -> Any:
        axes = tuple(tree_map(lambda is_mapped: 0 if is_mapped else None, mapped))
        with in_float64():
            out = _mappable(jax.vmap(function, in_axes=axes, axis_size=size))(*arguments)
        return out, tree_map(lambda _: True, out)

    return found


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient(program: Any, variables: Any, fixed: Any) -> Any:
    return _mappable(partial(_run, program))(variables, fixed)


def _forward(program: Any, variables: Any, fixed: Any) -> Any:
    return _mappable(partial(_run, program))(variables, fixed), (variables, fixed)


def _backward(program: Any, seen: Any, gradient: Any) -> Any:
    return _mappable(partial(_pull, program))(*seen, gradient), None


_with_gradient.defvjp(_forward, _backward)
_program: Any = jax.jit(_with_gradient, static_argnums=0)


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


def _result(given: Given, numbers: Any, real: Any, other: Any) -> Any:
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
    lags = lag_caps(trace, T)
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
    return kernels.bounded(delta, g, step, cap, tuple(map(float, lags)), trace.recursive)


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


def coefficients(trace: Trace, **arrays: Any) -> Any:
    """β_{k:t} as [T, T], in the dtype of the log-probabilities: Δ of row t, whose δ is 1 at t and 0 elsewhere, is β_{·:t}."""
    from offtrace.returns import api

    pytrees.register(type(trace))
    arrays = {"gamma": 1.0, **api.needed(trace, **arrays)}
    shape, dtype = agree(arrays)
    if len(shape) != 1:
        raise ValueError(f"coefficients takes one trajectory [T], got shape {shape}: pass one row")
    if not where_from(trace, arrays)[0]:
        del arrays["gamma"]
        return jnp.asarray(api.coefficients(trace, **as_numpy(arrays)), dtype)
    numbers, rule = tree_flatten(trace)
    return compute(_matrix, Given(rule, shape, False, dtype == np.float32), numbers, arrays, dtype, False)


def _matrix(given: Given, numbers: Any, real: Any, other: Any) -> Any:
    T = given.shape[0]
    real, other = (
        {n: jnp.broadcast_to(a, (T, T)) if a.ndim else a for n, a in arrays.items()} for arrays in (real, other)
    )
    x = _rows((T, T), real, other)
    Δ = _corrections(tree_unflatten(given.rule, numbers), x, jnp.eye(T), jnp.where(x.goes_on, 1.0, 0.0), given.single)
    return jnp.where(x.valid & x.valid.T, Δ, 0.0).T


def state_targets(lam: Any, rho_bar: Any, c_bar: Any, *, differentiable: bool, **arrays: Any) -> tuple[Any, Any]:
    """V-trace's target and advantage."""
    from offtrace.returns import state_values

    shape, dtype = agree(arrays)
    numbers = lam, rho_bar, c_bar
    traced, on_cpu = where_from(numbers, arrays)
    if traced:
        return compute(_v_trace, shape, numbers, arrays, dtype, differentiable)
    if not on_cpu:
        T = shape[-1]
        arrays, shape = in_bucket(arrays, shape)
        target, advantage = compute(_v_trace, shape, numbers, arrays, dtype, differentiable)
        return target[..., :T], advantage[..., :T]
    numbers = {"lam": float(lam), "rho_bar": float(rho_bar), "c_bar": float(c_bar)}
    target, advantage = state_values.state_targets(**as_numpy(arrays), **numbers, time_major=False)  # pyright: ignore
    return jnp.asarray(target), jnp.asarray(advantage)


def _v_trace(shape: tuple[int, ...], numbers: Any, real: Any, other: Any) -> Any:
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
