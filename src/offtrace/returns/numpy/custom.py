"""The direct kernel for custom traces: every start meets every later step of its episode. O(T²).

A trace that is stated by a `step` is computed for all starts together, lag by lag, by NumPy; one that is stated by a Python
function of the history, pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from offtrace.returns.numpy.read_steps import probabilities, td_errors
from offtrace.traces import History, Step, Trace
from offtrace.traces.base import StepForm
from offtrace.trajectory import Trajectory, warn_if_infinite

Beta = Callable[[np.ndarray, int], ArrayLike]
"""β of traces from these starts, which are flat indices, so many steps later."""


def correct(trace: Trace, x: Trajectory, add_q: bool | None) -> tuple[np.ndarray, ...]:
    """q + Δ or Δ; without `add_q` target, advantage and correction of state values. [B, T] each."""
    (delta, discount), q = td_errors(x), x.read("q")
    if add_q is None:
        seen = probabilities(x, ("rho", *trace.reads))
        weight = trace.delta_ratio(np, seen["rho"])
        before = ((0, 0), (1, 0))
        met = {n: np.pad(seen[n][:, :-1], before, constant_values=np.nan) for n in seen if n in trace.reads}
        correction = sweep(trace, x, weight * delta, discount, seen=met)[0]
        target = q.astype(np.float64) + correction
        ahead = np.pad(target[:, 1:], ((0, 0), (0, 1))) - x.read("next_value")
        ahead = discount * trace.advantage_lam * np.where(discount > 0.0, ahead, 0.0)
        advantage = weight * np.where(weight == 0.0, 0.0, delta + ahead)
        outs = target, advantage, correction
    else:
        out = sweep(trace, x, delta, discount)[0]
        outs = (q + out if add_q else out,)
    for out in outs:
        warn_if_infinite(out, x)
    return outs


def sweep(
    trace: Trace,
    x: Trajectory,
    delta: np.ndarray,
    discount: np.ndarray,
    matrix: np.ndarray | None = None,
    seen: dict[str, np.ndarray] | None = None,
) -> tuple[np.ndarray, float]:
    """Δ [B, T] for given δ and discount, and the largest β.

    `matrix` [T, T], if given, takes β_{k:t}, t > k, of the only row. `seen` are the probabilities of the actions that a trace has
    met when it comes to t, if these are not the actions at t: on state values they are those before.
    """
    on_states = seen is not None
    seen = probabilities(x, trace.reads) if seen is None else seen
    flat = {name: array.reshape(-1) for name, array in seen.items()}
    if x.pair is not None:
        flat["pair"] = x.pair.reshape(-1).astype(np.int64)
    if trace.step_form is not None:
        beta = _beta_of_step(trace.step_form, flat, delta.size)
    elif trace.history_form is not None:
        beta = _beta_of_history(trace.history_form, flat, on_states)
    else:
        raise TypeError(f"{trace.title} is no custom trace")
    out, peak = _by_lag(beta, delta, discount, trace.horizon or delta.shape[1], matrix)
    if not 0.0 <= peak < np.inf:
        _refuse(trace, peak)
    return out, max(peak, 1.0)


def _refuse(trace: Trace, beta: float) -> NoReturn:
    """Say what is wrong with a β that is infinite, NaN or negative."""
    if beta == np.inf:
        why = "infinite: a product of its ratios exceeds the largest float. Clip what it carries, or give it a horizon"
    elif beta < 0.0:
        why = "negative, and a coefficient must be 0 or more"
    else:
        why = f"not a number: does it list all that it uses in `reads`, which is {trace.reads}? Or did it multiply ∞ by 0?"
    raise ValueError(f"the custom trace {trace.title!r} returned a β that is {why}")


@np.errstate(all="ignore")
def _by_lag(
    beta: Beta, delta: np.ndarray, discount: np.ndarray, reach: int, matrix: np.ndarray | None
) -> tuple[np.ndarray, float]:
    """Δ, and the largest β or the first that is bad. `start` holds the flat indices of the starts that have not ended."""
    out, peak = delta.copy(), 0.0
    Δ, δ, γ = out.reshape(-1), delta.reshape(-1), discount.reshape(-1)
    start, w = np.arange(len(Δ)), np.ones(len(Δ))
    for lag in range(1, reach):
        w = w * γ[start + lag - 1]  # 0 at the last step of a row
        start, w = start[w != 0.0], w[w != 0.0]
        if not len(start):
            break
        t = start + lag
        β = np.broadcast_to(np.asarray(beta(start, lag), np.float64), len(start))
        bad = ~((β >= 0.0) & (β < np.inf))
        if bad.any():
            return out, float(β[np.argmax(bad)])
        peak = max(peak, float(β.max()))
        Δ[start] += w * β * δ[t]
        if matrix is not None:
            matrix[start, t] = β
    return out, peak


def _beta_of_step(step: StepForm, flat: dict[str, np.ndarray], n: int) -> Beta:
    """β of all live starts at once, with arrays for what differs among them."""
    is_tuple = isinstance(step.carry, tuple)
    carries = [np.full(n, number, np.float64) for number in step.carries]

    def beta(start: np.ndarray, lag: int) -> ArrayLike:
        t, pair = start + lag, flat.get("pair")
        pi, mu, rho = (flat[name][t] if name in flat else np.nan for name in ("pi", "mu", "rho"))
        here, there = (-1, -2) if pair is None else (pair[start], pair[t])
        now = Step(pi, mu, rho, float(step.lam), float(lag), here, there)
        carry = tuple(held[start] for held in carries)
        after, β = step.traced.call(np, carry if is_tuple else carry[0], now)
        for held, number in zip(carries, after if is_tuple else (after,), strict=True):
            held[start] = number
        return β

    return beta


def _beta_of_history(function: Callable[..., float], flat: dict[str, np.ndarray], on_states: bool) -> Beta:
    """β of the history since each live start, by Python."""

    def of_history(begin: int, end: int) -> float:
        read: dict[str, Any] = {name: flat[name][begin:end] if name in flat else None for name in History._fields}
        if on_states:  # no action is the start's own
            read |= {n: np.concatenate([[np.nan], a[1:]]) for n, a in read.items() if a is not None and n != "pair"}
        return float(function(History(**read)))

    return lambda start, lag: [of_history(k, k + lag + 1) for k in start.tolist()]
