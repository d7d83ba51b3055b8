"""The direct kernel for custom traces: every start, every later step of its episode, one call of the rule each. O(T²)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
from numba import njit

from offtrace._shared.compiled_parts import part_njit
from offtrace.returns.numpy import rule_math
from offtrace.returns.numpy.scalar_math import at
from offtrace.returns.numpy.whole_arrays import probabilities, td_errors
from offtrace.traces import History, Step, Trace, symbols
from offtrace.traces.base import StepForm
from offtrace.trajectory import Trajectory

NO_MATRIX = np.empty((0, 0))


def correct(trace: Trace, x: Trajectory) -> np.ndarray | None:
    """Δ [B, T], or None where a value is bad."""
    made = td_errors(x)
    found = None if made is None else sweep(trace, x, *made)
    return None if found is None else found[0]


def sweep(
    trace: Trace,
    x: Trajectory,
    delta: np.ndarray,
    discount: np.ndarray,
    matrix: np.ndarray = NO_MATRIX,
    seen: dict[str, np.ndarray] | None = None,
) -> tuple[np.ndarray, float] | None:
    """Δ [B, T] for given δ and discount, and the largest β; None where a log-probability is bad.

    `matrix` [T, T], if given, takes β_{k:t}, t > k, of the only row. `seen` are the probabilities of the actions that a trace has
    met when it comes to t, if these are not the actions at t: on state values they are those before.
    """
    on_states = seen is not None
    seen = probabilities(x, trace.reads) if seen is None else seen
    if seen is None:
        return None
    step, beta = trace.step_form, trace.history_form
    out = np.empty(delta.shape)
    rest = delta, discount, trace.horizon or delta.shape[1], matrix, out
    if step is not None:
        text, constants = _without_numbers(step.traced, len(step.carry) if isinstance(step.carry, tuple) else 0)
        peak = _compiled(text)(step.carry, constants, _for_steps(step, seen, x.pair), *rest)
    elif beta is not None:
        peak = _each_pair(
            _of_history(beta, on_states), None, None, seen if x.pair is None else {**seen, "pair": x.pair}, *rest
        )
    else:
        raise TypeError(f"{trace.title} is no custom trace")
    if not 1.0 <= peak < np.inf:
        _refuse(trace, peak)
    return out, peak


def _refuse(trace: Trace, beta: float) -> NoReturn:
    """Say what is wrong with a β that is infinite, NaN or negative."""
    if beta == np.inf:
        why = "infinite: a product of its ratios exceeds the largest float. Clip what it carries, or give it a horizon"
    elif beta < 0.0:
        why = "negative, and a coefficient must be 0 or more"
    else:
        why = f"not a number: does it list all that it uses in `reads`, which is {trace.reads}? Or did it multiply ∞ by 0?"
    raise ValueError(f"the custom trace {trace.title!r} returned a β that is {why}")


def _each_pair(next_beta, first, constants, seen, delta, discount, reach, matrix, out):
    """Every start, every later step: (carry, β) = next_beta(carry, constants, seen, b, k, t).

    It returns the largest β, or the first that is bad: ∞, NaN, or −1 for a negative one.

    It is compiled around a custom step, and runs as it stands around a Python function of the history.
    """
    B, T = delta.shape
    peak = 1.0
    for b in range(B):
        for k in range(T):
            carry, w, total = first, 1.0, delta[b, k]
            for t in range(k + 1, min(T, k + reach)):
                w *= discount[b, t - 1]
                if w == 0.0:
                    break
                carry, β = next_beta(carry, constants, seen, b, k, t)
                if not 0.0 <= β < np.inf:
                    return -1.0 if β < 0.0 else β
                peak = max(peak, β)
                total += w * β * delta[b, t]
                if len(matrix):
                    matrix[k, t] = β
            out[b, k] = total
    return peak


class _Seen(NamedTuple):
    """What a step may look at: arrays [B, T], or one number in the place of what it does not read."""

    pi: np.ndarray | float
    mu: np.ndarray | float
    rho: np.ndarray | float
    lam: float
    start_pair: np.ndarray | int
    pair: np.ndarray | int


def _for_steps(step: StepForm, seen: dict[str, np.ndarray], pair: np.ndarray | None) -> _Seen:
    pi, mu, rho = (seen.get(name, np.nan) for name in ("pi", "mu", "rho"))
    if pair is None:
        return _Seen(pi, mu, rho, float(step.lam), -1, -2)
    ids = pair.astype(np.int64)
    return _Seen(pi, mu, rho, float(step.lam), ids, ids)


@lru_cache(1024)
def _without_numbers(traced: symbols.Traced, carries: int) -> tuple[str, tuple[float, ...]]:
    """The text of a step with names in the place of its constants, and the constants."""
    printer = symbols.NumbersApart(symbols.OF_NOW)
    text = symbols.step_definition(traced.lines, carries, printer, ("xp", "carry", "now", "constants"))
    names = "".join(f"k{i}, " for i in range(len(printer.numbers)))
    return text.replace("    ", f"    {names}= constants\n    ", 1) if names else text, tuple(printer.numbers)


@cache
def _compiled(text: str) -> Callable[..., float]:
    """The kernel around the step of this text. Not kept on disk: it belongs to the user.

    Numba keeps compiled code as long as the process lives, so all are kept here as well: steps that differ in their constants
    only are one.
    """
    inside, options = part_njit(error_model="numpy"), cast("dict[str, Any]", {"no_cfunc_wrapper": True})
    step, each_pair = inside(symbols.function("step", text, {})), inside(_each_pair)

    @inside
    def next_beta(carry, constants, seen, b, k, t):
        now = Step(
            at(seen.pi, b, t), at(seen.mu, b, t), at(seen.rho, b, t), seen.lam, float(t - k),
            at(seen.start_pair, b, k), at(seen.pair, b, t),
        )  # fmt: skip
        return step(rule_math, carry, now, constants)

    @njit(nogil=True, error_model="numpy", **options)
    def kernel(first, constants, seen, delta, discount, reach, matrix, out):
        return each_pair(next_beta, first, constants, seen, delta, discount, reach, matrix, out)

    return kernel


def _of_history(beta: Callable[[History], float], on_states: bool) -> Callable[..., tuple[None, float]]:
    def next_beta(
        carry: None, constants: None, seen: dict[str, np.ndarray], b: int, k: int, t: int
    ) -> tuple[None, float]:
        read = {name: seen[name][b, k : t + 1] if name in seen else None for name in History._fields}
        if on_states:  # no action is the start's own
            read |= {n: np.concatenate([[np.nan], a[1:]]) for n, a in read.items() if a is not None and n != "pair"}
        return None, float(beta(History(**read)))

    return next_beta
