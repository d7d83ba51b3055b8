"""Eligibility traces fed step by step: the paper's Algorithm 1, exact, with δ as `offtrace.trajectory` has it.

    z_t = Σ_{k≤t} (γ_k ··· γ_{t-1}) β_{k:t} ∇q_k,      update_t = δ_t z_t,      k from the start of the episode

∇q_k is one-hot for a table, and the gradient of q(s_k, a_k) for a linear function. Summed over t, the updates are
Σ_k Δ_k ∇q_k, with the Δ of `corrections`. `returns.streaming.eligibility_vector` says how z is kept.

On state values the start's own action acts, one step later, and δ carries a ratio, ρ̄ = min(ρ̄, ρ) of the policy that is evaluated:

    z_t = Σ_{k≤t} (γ_k ··· γ_{t-1}) b_{k:t-1} ∇v_k,      update_t = ρ̄_t δ_t z_t

Summed over t, the updates are Σ_k Δ_k ∇v_k, with the Δ of `state_targets`, its `correction`.

The returns that have no operator (Peng's Q(λ), n-step) bootstrap from v = `next_value` alone. With z_t = Σ_k (γ_k ··· γ_{t-1})
λ^{t-k} ∇q_k, k among the last n steps,

    update_t = δ_t ∇q_t + δ'_t (z_t − ∇q_t),      δ'_t = r_t + γ_t v_{t+1} − v_t,      v_t the `next_value` of the step before

Summed over t, the updates are Σ_k (G_k − q_k) ∇q_k.
"""

from __future__ import annotations

import math
from typing import Literal, SupportsFloat, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from offtrace.returns.inputs import log_pi_of_greedy
from offtrace.returns.numpy import backend as numpy_backend
from offtrace.returns.streaming.eligibility_vector import Now, keeper
from offtrace.returns.transforms import Transform, as_transform
from offtrace.traces import Rule, Trace
from offtrace.traces.trace_argument import as_rule, eligibility_of
from offtrace.trajectory import LARGEST_LOG, SMALLEST_LOG, TOLERANCE


class Stream:
    """An eligibility trace for any `trace`, over a table or a weight vector of `size` numbers.

    An unfinished episode is kept between calls. A λ given as an array (VariableLambda) is [T] and is read at the number
    of the step, counted from 0 when the stream is created, through all episodes.

    With `values="state"` it is a trace of state values: `step` takes `value` instead of q, both log-probabilities, and where
    the state is, or the gradient of its value. With a `transform` h, q, value and next_value are h of returns, δ is one of
    returns, and gradients are those of h⁻¹(q).

    >>> import offtrace as ot
    >>> stream = Stream(ot.NonMarkovRetrace(lam=0.9), size=2)
    >>> same = dict(q=0.0, next_value=0.0, terminated=False, truncated=False, gamma=0.5, log_pi=-1.0,
    ...             log_mu=-1.0)
    >>> stream.step(0, reward=1.0, **same)
    array([1., 0.])
    >>> stream.step(1, reward=2.0, **same)
    array([0.9, 2. ])
    >>> stream = Stream(ot.VTrace(lam=0.9), size=2, values="state")
    >>> twice = dict(value=0.0, next_value=0.0, terminated=False, truncated=False, gamma=0.5,
    ...              log_pi=-1.0, log_mu=-2.0)
    >>> stream.step(0, reward=1.0, **twice), stream.step(1, reward=2.0, **twice)
    (array([1., 0.]), array([0.9, 2. ]))
    """

    def __init__(
        self,
        trace: Rule,
        size: int,
        *,
        values: Literal["action", "state"] = "action",
        transform: Transform | None = None,
    ) -> None:
        if values not in ("action", "state"):
            raise ValueError(f'values must be "action" or "state", got {values!r}')
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"size must be an integer of at least 1, got {size!r}")
        form = as_rule(trace).uncorrected_return
        if form is not None and values == "state":
            raise TypeError(
                f"{trace.title} has no ratios: on state values its return is that of offtrace.targets, without q"
            )
        self.trace, self.size = eligibility_of(trace), int(size)
        self._transform = None if transform is None else as_transform(transform)
        self.count = 0
        """How many steps the stream has taken."""
        self.delta = 0.0
        """δ of the last step."""
        self.ratio = 1.0
        """What δ of the last step was multiplied by: 1 on action values."""
        self._on_states = values == "state"
        self._met: Now | None = None  # on state values, the step before
        self._uncorrected = form is not None
        self._before = 0.0  # `next_value` of the step before, where the episode continues
        self._length = _length(self.trace)
        self._tabular: bool | None = None  # known from the first step on
        self._discount = 0.0  # from the last step to the next; 0 where no trace continues
        self._kept = keeper(self.trace, self.size, on_states=self._on_states)

    @property
    def z(self) -> np.ndarray:
        """z_t of the last step, float64 [size], also where that step ended the episode."""
        return np.array(self._kept.z)

    def reset(self) -> None:
        """Empty the trace, where an episode is left without an end. The count of steps continues."""
        self._discount = 0.0
        self._kept.clear()

    def step(
        self,
        where: ArrayLike,
        *,
        reward: SupportsFloat,
        q: SupportsFloat | None = None,
        value: SupportsFloat | None = None,
        next_value: SupportsFloat,
        terminated: object,
        truncated: object,
        gamma: SupportsFloat,
        log_pi: SupportsFloat | None = None,
        log_mu: SupportsFloat | None = None,
        pair: object = None,
        greedy: object = None,
    ) -> np.ndarray:
        """Take step t and return δ_t z_t, float64 [size]: times a step size, it is added to the table or the weights.

        `where` is the id of (s_t, a_t) in the table, or the gradient of q(s_t, a_t), [size]. The others are those of
        `targets` at one step: next_value is not read where terminated, log_pi and log_mu only where the rule needs it,
        `pair` (in a table: `where`, if not given) only by custom traces that ask for it, `greedy` only by Watkins' Q(λ).
        On state values `where` is the id of s_t or the gradient of v(s_t), and the others are those of `state_targets`.
        """
        name, other = ("value", q) if self._on_states else ("q", value)
        if other is not None or (self._on_states and greedy is not None):
            odd = "greedy" if other is None else "q" if self._on_states else "value"
            raise TypeError(
                f"{odd} has no part in a stream of {'state' if self._on_states else 'action'} values: give {name}"
            )
        terminated, truncated = _flag("terminated", terminated), _flag("truncated", truncated)
        γ = _number("gamma", gamma)
        if not 0.0 <= γ <= 1.0:
            raise ValueError(f"gamma must lie in [0, 1], got {γ}")
        v = 0.0 if terminated else self._as_return("next_value", next_value)
        here = self._as_return(name, value if self._on_states else q)
        δ = _number("reward", reward) + γ * v - here
        if not math.isfinite(δ):
            raise ValueError(f"the TD error is {δ}, though every input is finite: look for values of extreme size")
        now, ratio = self._see(where, pair, log_pi, log_mu, greedy)
        met = self._meets(now) if self._on_states else now

        with np.errstate(all="ignore"):  # overflow is noticed below
            if self._discount == 0.0:
                self._kept.clear()
            else:
                self._kept.advance(self._discount, met)
            self._kept.enter(met)
            update = ratio * δ * self._kept.z
            if self._uncorrected and self._discount > 0.0:
                update = update + (here - self._before) * self._older(now)
        self._before = v
        self._discount = 0.0 if terminated or truncated else γ
        self.delta, self.ratio, self.count, self._met = δ, ratio, self.count + 1, now
        if not np.isfinite(update).all():
            raise OverflowError(f"the update is not finite (δ is {δ:g}): a product of ratios overflowed; call reset()")
        return update

    def _as_return(self, name: str, value: SupportsFloat | None) -> float:
        """A value as a return."""
        number = _number(name, value)
        return number if self._transform is None else float(self._transform.inverse(np, np.float64(number)))

    def _older(self, now: Now) -> np.ndarray:
        """z without the start of this step."""
        z = self.z
        if isinstance(now.where, int):
            z[now.where] -= 1.0
        else:
            z -= now.where
        return z

    def _meets(self, now: Now) -> Now:
        """The step as a trace of state values meets it: in this state, after the action of the step before."""
        before = self._met
        if self._discount == 0.0 or before is None:
            return now._replace(pi=math.nan, mu=math.nan, rho=math.nan)
        return now._replace(pi=before.pi, mu=before.mu, rho=before.rho, number=before.number)

    def _see(
        self,
        where: ArrayLike,
        pair: object,
        log_pi: SupportsFloat | None,
        log_mu: SupportsFloat | None,
        greedy: object,
    ) -> tuple[Now, float]:
        """The step as the rule sees it, and what δ is multiplied by."""
        reads, title, always = self.trace.reads, self.trace.title, self._on_states
        if self._length is not None and self.count >= self._length:
            raise ValueError(f"{title} holds numbers for {self._length} steps: there is none for step {self.count}")
        where = _place(where, self.size)
        tabular = isinstance(where, int)
        if self._tabular not in (None, tabular):
            raise TypeError("where must be an id at every step of a stream, or a gradient at every step")
        if self.trace.needs_greedy:
            flag = None if greedy is None else np.array(_flag("greedy", greedy))
            one = {"log_pi": log_pi, "greedy": flag, "terminated": np.array(False)}
            log_pi = log_pi_of_greedy(numpy_backend.BACKEND, self.trace, one)
        log_π = _log_probability("log_pi", log_pi, title, "pi" in reads) if self.trace.needs_pi or always else math.nan
        log_μ = _log_probability("log_mu", log_mu, title, "mu" in reads) if self.trace.needs_mu or always else math.nan
        if ("rho" in reads or always) and log_π - log_μ >= LARGEST_LOG:
            raise ValueError(f"the ratio is too large to be represented: log_pi is {log_π} and log_mu is {log_μ}")
        if "pair" not in reads:
            seen_pair = -1
        elif pair is None and isinstance(where, int):
            seen_pair = where
        elif not _is_id(pair):
            raise TypeError(f"pair must be an integer id of (s_t, a_t), which {title} needs, got {pair!r}")
        else:
            seen_pair = int(pair)
        self._tabular = tabular
        logs = {"pi": log_π, "mu": log_μ, "rho": log_π - log_μ}
        seen = {name: _e_to(log) if name in reads else math.nan for name, log in logs.items()}
        ratio = float(self.trace.delta_ratio(np, _e_to(log_π - log_μ))) if always else 1.0
        return Now(where, seen_pair, **seen, number=self.count), ratio


def _is_id(pair: object) -> TypeGuard[int | np.integer]:
    return isinstance(pair, int | np.integer) and not isinstance(pair, bool)


def _e_to(log: float) -> float:
    return 0.0 if log < SMALLEST_LOG else math.exp(log)


def _length(trace: Trace) -> int | None:
    """How many steps the rule's arrays reach; None where it has none."""
    parameters = () if trace.custom else trace.parameters
    shapes = [np.shape(p) for p in parameters if np.ndim(p)]
    for shape in shapes:
        if len(shape) != 1:
            raise ValueError(f"{trace.title} holds an array of shape {shape}: a stream takes [T], one for each step")
    return min((shape[0] for shape in shapes), default=None)


def _place(where: ArrayLike, size: int) -> int | np.ndarray:
    """The id as an int, or the gradient in float64."""
    array = np.asarray(where)
    if array.ndim == 0 and array.dtype.kind in "iu":
        if not 0 <= array < size:
            raise ValueError(f"where must be an id in [0, {size}), got {where!r}")
        return int(array)
    if array.shape != (size,) or array.dtype.kind != "f":
        raise TypeError(f"where must be an integer id or a gradient of {size} floats, got {array.dtype} {array.shape}")
    if not np.isfinite(array).all():
        at = int(np.argmin(np.isfinite(array)))
        raise ValueError(f"where must be finite, got {array[at]} at index [{at}]")
    return array.astype(np.float64, copy=False)


def _number(name: str, value: SupportsFloat | None, *, finite: bool = True) -> float:
    if value is None or isinstance(value, str) or getattr(value, "ndim", 0):
        raise TypeError(f"{name} must be one number, got {value!r}: a stream takes a step at a time")
    value = float(value)
    if finite and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return value


def _log_probability(name: str, value: SupportsFloat | None, title: str, probability: bool) -> float:
    if value is None:
        raise TypeError(f"{name} is missing: {title} needs it for the action taken")
    value = _number(name, value, finite=False)
    if name == "log_mu" and value == -math.inf:
        raise ValueError("log_mu is -inf: μ = 0 on an action that was taken is impossible: log μ as it was when acting")
    if not value < math.inf:
        raise ValueError(f"{name} must be finite{' or -inf' * (name == 'log_pi')}, got {value}")
    if probability and value > TOLERANCE:
        raise ValueError(f"{name} is above 0, got {value}: {title} uses the probability itself, not a density")
    return value


def _flag(name: str, value: object) -> bool:
    if isinstance(value, float | np.floating | str) or getattr(value, "ndim", 0) or value not in (0, 1):
        raise TypeError(f"{name} must be a boolean, 0 or 1, got {value!r}")
    return bool(value)
