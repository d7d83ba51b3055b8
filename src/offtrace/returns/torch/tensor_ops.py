"""Returns by tensor operations, which PyTorch can follow: for a gradient, under torch.compile and inside vmap.

δ and the rule's factors are tensor operations in float64, and only the recursion is an operator of ours (`operators`).
"""

from __future__ import annotations

from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from offtrace.returns.numpy import backend as numpy_backend
from offtrace.returns.torch.operators import capped, linear
from offtrace.traces import Rule, Trace
from offtrace.traces.base import INFINITY, UncorrectedReturn, bounds_by_lag
from offtrace.traces.trace_argument import as_trace
from offtrace.trajectory import SMALLEST_LOG, Agreed


def seen_by_torch(*tensors: object) -> bool:
    """Whether the call is being traced by torch.compile, or tensors are mapped by torch.func and have no memory to look at."""
    if torch.compiler.is_compiling():
        return True
    try:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                tensor.data_ptr()
    except RuntimeError:
        return True
    return False


Number = Tensor | float


class TensorMath:
    """The `xp` that rules see: numbers and tensors mix, as they do not in torch itself."""

    @staticmethod
    def where(condition: Tensor | bool, a: Number, b: Number) -> Number:
        """A where the condition holds, else b."""
        if not isinstance(condition, Tensor):
            return a if condition else b
        # Two numbers would make a float32 tensor.
        a = a if isinstance(a, Tensor) else torch.full_like(condition, a, dtype=torch.float64)
        return torch.where(condition, a, b)

    @staticmethod
    def minimum(a: Number, b: Number) -> Number:
        """The smaller one."""
        if isinstance(a, Tensor):
            return torch.minimum(a, b) if isinstance(b, Tensor) else a.clamp(max=b)
        return b.clamp(max=a) if isinstance(b, Tensor) else min(a, b)

    @staticmethod
    def maximum(a: Number, b: Number) -> Number:
        """The larger one."""
        if isinstance(a, Tensor):
            return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp(min=b)
        return b.clamp(min=a) if isinstance(b, Tensor) else max(a, b)

    @staticmethod
    def abs(x: Number) -> Number:
        """|x|."""
        return abs(x)

    @staticmethod
    def sqrt(x: Number) -> Number:
        """√x; numbers as NumPy takes them, where math raises."""
        return x.sqrt() if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64).sqrt().item()

    @staticmethod
    def exp(x: Number) -> Number:
        """e^x."""
        return x.exp() if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64).exp().item()

    @staticmethod
    def log(x: Number) -> Number:
        """log x."""
        return x.log() if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64).log().item()


class Rows(NamedTuple):
    """A trajectory as float64 [N, T], with zeros in place of all that must not be read."""

    given: dict[str, Tensor]
    """The arrays as they came, [N, T]."""
    valid: Tensor
    reward: Tensor
    q: Tensor | None
    """Q(s_t, a_t), or V(s_t); None where the rule reads none."""
    next_value: Tensor
    gamma: Tensor | float
    discount: Tensor
    """γ_t where a trace may go on from t to t+1, else 0."""

    def log(self, name: str) -> Tensor:
        """A log-probability, with 0 at padding."""
        return torch.where(self.valid, self.given[name], 0.0).double()

    def preceding_logs(self) -> dict[str, Tensor]:
        """The log-probabilities one step later, by name: at each step those of the action before it."""
        return {name: _preceding(self.log(name), 0.0) for name in ("log_pi", "log_mu")}


def _rows(found: Agreed[Tensor]) -> Rows:
    T = found.shape[-1]
    x = {name: array.reshape(-1, T) for name, array in found.arrays.items()}
    valid = x["valid"].bool() if "valid" in x else torch.ones_like(x["reward"], dtype=torch.bool)
    terminated, truncated = x["terminated"].bool(), x["truncated"].bool()

    def real(array: Tensor, read: Tensor = valid) -> Tensor:
        return torch.where(read, array, 0.0).double()

    gamma = found.gamma
    if isinstance(gamma, Tensor) and gamma.ndim:
        gamma = real(gamma.reshape(-1, T))
    discount = (valid & _following(valid) & ~terminated & ~truncated).double() * gamma
    q = x["value"] if "value" in x else x.get("q")
    next_value = real(x["next_value"], valid & ~terminated)
    return Rows(x, valid, real(x["reward"]), None if q is None else real(q), next_value, gamma, discount)


def in_tensors(trace: Rule, found: Agreed[Tensor], *, add_q: bool) -> Tensor:
    """q + Δ, or Δ, by tensor operations and our two operators."""
    x = _rows(found)
    one_step = x.reward + x.gamma * x.next_value
    out = _uncorrected(trace.uncorrected_return, x, one_step) if trace.uncorrected_return is not None else None
    if out is None:
        assert x.q is not None, "a rule for β reads q"
        out = _correction(as_trace(trace), x, one_step - x.q)
    if add_q != trace.uncorrected and x.q is not None:
        out = out + x.q if add_q else out - x.q
    return torch.where(x.valid, out, 0.0).to(found.dtype).reshape(found.shape)


def _uncorrected(rule: UncorrectedReturn, x: Rows, one_step: Tensor) -> Tensor:
    """G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}]."""
    if rule.n is None:
        now = 1.0 - rule.lam * (x.discount > 0).double()
        return linear(x.reward + now * x.gamma * x.next_value, rule.lam * x.discount)
    # It is q + Δ of Q(λ) with horizon n, if q_t is the value that step t − 1 bootstraps from.
    passed = torch.where(x.discount > 0, x.next_value, 0.0)
    known = torch.cat([torch.zeros_like(passed[:, :1]), passed[:, :-1]], 1)
    bounds = bounds_by_lag(rule.n, None, one_step.shape[1])
    return known + _swept(one_step - known, rule.lam * x.discount, 1.0, INFINITY, bounds)


def _correction(trace: Trace, x: Rows, delta: Tensor, *, on_states: bool = False) -> Tensor:
    """Δ, float64 [N, T]. On state values a trace has met, when it comes to t, the action before t and not the one at t."""
    if trace.custom:
        return _custom(trace, x, delta, on_states=on_states)
    decay, ratio, cap = factors(trace, x)
    if on_states:
        decay, ratio, cap = (_preceding(f) for f in (decay, ratio, cap))
    lags = trace.bounds_by_lag(delta.shape[1])
    decay = _following(decay)
    if isinstance(decay, Tensor):  # a factor that does not act may be infinite
        decay = torch.where((x.discount != 0) | decay.isfinite(), decay, 0.0)
    g = x.discount * decay
    if trace.per_decision and lags is None:
        return linear(delta, g * _where(g != 0, _following(ratio), 0.0))
    return _swept(delta, g, _where(g.roll(1, 1) != 0, ratio, 1.0), cap, lags, trace.recursive)


def _where(passed: Tensor, ratio: Number, otherwise: float) -> Number:
    """A ratio that no trace passes is not read: it may be NaN. (The last g is 0, so that none passes into the row.)"""
    return torch.where(passed, ratio, otherwise) if isinstance(ratio, Tensor) else ratio


def _custom(trace: Trace, x: Rows, delta: Tensor, *, on_states: bool) -> Tensor:
    """Δ of a custom trace, whose β are constants and come from the host: Δ_k = Σ_t D_{k:t} β_{k:t} δ_t, D = γ_k ··· γ_{t-1}."""
    if seen_by_torch(delta, *x.given.values()):
        raise TypeError(
            f"{trace.title!r} is a custom trace: it does not go through torch.compile or vmap; "
            "call it outside, or write it in normal form"
        )
    logs = x.preceding_logs() if on_states else {}
    given = {name: in_double(array).cpu().numpy() for name, array in (x.given | logs).items()}
    names = ("terminated", "truncated", "log_pi", "log_mu", "valid", "pair")
    rows = ({n: given[n][b] if n in given else None for n in names} for b in range(len(delta)))
    β = torch.from_numpy(np.stack([numpy_backend.BACKEND.coefficients(trace, row) for row in rows])).to(delta.device)
    later = torch.ones_like(β[0], dtype=torch.bool).triu(1)  # t > k
    weight = β * torch.where(later, x.discount.detach().roll(1, 1)[:, None], 1.0).cumprod(-1)
    return torch.where(weight == 0, 0.0, weight * delta[:, None]).sum(-1)  # 0 · NaN, unchecked, must not spread


def in_double(array: Tensor) -> Tensor:
    """Real numbers in float64, so that the host rounds once; flags and ids as they are."""
    return array.detach().double() if array.is_floating_point() else array


def _swept(
    delta: Tensor, g: Tensor, ratio: Number, cap: Number, lags: list[float] | None, recursive: bool = False
) -> Tensor:
    """Δ where a cap or a bound by lag acts; g, ratio and cap are constants."""
    ratio, cap = (f if isinstance(f, Tensor) else torch.full_like(delta, f) for f in (ratio, cap))
    bounds = torch.tensor(lags or [], dtype=torch.float64, device=delta.device)
    return capped(delta, g.detach(), ratio.detach(), cap.detach(), bounds, recursive, False)


def factors(trace: Trace, x: Rows) -> tuple[Number, Number, Number]:
    """decay, ratio and cap: numbers, or float64 tensors [B, T]. ratio is NaN where it is infinite or not known."""
    pi = _e_to(x.log("log_pi")) if "pi" in trace.reads else None
    mu = _e_to(x.log("log_mu")) if "mu" in trace.reads else None
    rho = _e_to(x.log("log_pi") - x.log("log_mu")) if "rho" in trace.reads else None
    parameters = [_parameter(trace, p, x.valid) for p in trace.parameters]
    decay, ratio, cap = trace.traced.call(TensorMath, pi, mu, rho, *parameters)
    if not trace.needs_pi:
        return decay, ratio, cap
    # μ = 0, π infinite, or either NaN: no such action could have been taken. A rule's own xp.where could hide it.
    known = x.log("log_pi") < INFINITY
    if trace.needs_mu:
        known = known & x.log("log_mu").isfinite()
    if not trace.recursive:  # an infinite ratio clips traces to a recursive cap; without one it is as good as unknown
        known = known & torch.as_tensor(ratio < INFINITY)
    return decay, TensorMath.where(known, ratio, torch.nan), cap


def _e_to(logs: Tensor) -> Tensor:
    """e to these powers; what is below the smallest normal number counts as 0."""
    return torch.where(logs < SMALLEST_LOG, 0.0, logs.exp())


def _parameter(trace: Trace, value: np.ndarray | float, valid: Tensor) -> Number:
    """A number as it is; a NumPy array, one number for each step, as a tensor."""
    if not isinstance(value, np.ndarray):
        return value
    if value.shape not in (tuple(valid.shape), tuple(valid.shape[1:]) if valid.shape[0] == 1 else ()):
        raise ValueError(
            f"{type(trace).__name__} holds an array of shape {value.shape}, one number for each step, "
            f"but the trajectory has {valid.shape[0]} rows of {valid.shape[1]} steps"
        )
    return torch.where(valid, torch.tensor(value, device=valid.device).reshape(valid.shape), 0.0)


@overload
def _following(array: Tensor) -> Tensor: ...
@overload
def _following(array: Number) -> Number: ...
def _following(array: Number) -> Number:
    """What stands one step later; 0 after the last. A number is the same everywhere."""
    if not isinstance(array, Tensor):
        return array
    return torch.cat([array[:, 1:], torch.zeros_like(array[:, :1])], 1)


@overload
def _preceding(array: Tensor, first: float = 1.0) -> Tensor: ...
@overload
def _preceding(array: Number, first: float = 1.0) -> Number: ...
def _preceding(array: Number, first: float = 1.0) -> Number:
    """What stands one step earlier; `first` before the first. A number is the same everywhere."""
    if not isinstance(array, Tensor):
        return array
    return torch.cat([torch.full_like(array[:, :1], first), array[:, :-1]], 1)


def ratio_of(x: Rows) -> Tensor:
    """π/μ; NaN where μ is 0 or not known."""
    log_mu = x.log("log_mu")
    return torch.where(log_mu.isfinite(), _e_to(x.log("log_pi") - log_mu), torch.nan)


def on_states(trace: Trace, found: Agreed[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Target, advantage and correction: Δ_k = Σ_t (γ_k ··· γ_{t-1}) b_{k:t-1} w_t δ_t, w = min(ρ̄, ρ) (`numpy.read_steps`)."""
    x = _rows(found)
    assert x.q is not None, "it was given as value"
    weight = trace.delta_ratio(TensorMath, ratio_of(x))
    if not trace.per_decision or trace.bounds_by_lag(found.shape[-1]) is not None:
        weight = weight.detach()  # the rest of the gradient would be missing
    delta = x.reward + x.gamma * x.next_value - x.q
    excess = _correction(trace, x, weight * delta, on_states=True)
    target = x.q + excess
    ahead = torch.where(x.discount > 0, _following(target) - x.next_value, 0.0)  # what v_{k+1} adds to V(s_{k+1})
    λ = _parameter(trace, trace.advantage_lam, x.valid)
    advantage = weight * torch.where(weight == 0, 0.0, delta + x.discount * λ * ahead)  # not 0 · ∞
    target, advantage, excess = (
        torch.where(x.valid, made, 0.0).to(found.dtype).reshape(found.shape) for made in (target, advantage, excess)
    )
    return target, advantage, excess
