"""What a call reads: the layout of its arrays, the steps that are skipped, and which arrays a rule needs.

Layouts are [T], [B, T], [T, B] with time first, and [B, T, 1] as torchrl has it: all become [T] or [B, T], by views. [N, 1] is N
steps of one environment, with time first, or N rows of one step: it is refused until `time_major` says which. Steps that are
no decisions, such as a tool's output between two turns, are taken out of their rows, and put back after. What a rule does
not read is dropped, and what is missing is an error. Only functions that NumPy, PyTorch and JAX spell alike are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from offtrace.arrays import Array, Module, is_number
from offtrace.returns.backend import Backend
from offtrace.returns.weights.decisions import Decisions, agreed
from offtrace.traces import Rule, Trace
from offtrace.traces.trace_argument import as_trace, eligibility_of
from offtrace.trajectory import FLAGS, TOLERANCE, Agreed, BadValueError, agree, as_booleans

if TYPE_CHECKING:
    import jax
    import torch


class Layout(NamedTuple):
    """How the arrays came in: the first one's name, their shape, and whether time stands first."""

    first: str
    shape: tuple[int, ...]
    time_major: bool

    @property
    def is_batch_first(self) -> bool:
        """Whether nothing is to be turned: [T] or [B, T]."""
        return not self.time_major and len(self.shape) != 3

    def into(self, rule: Rule, arrays: dict[str, Any]) -> tuple[Rule, dict[str, Any]]:
        """The rule and the arrays as [T] or [B, T]; nothing is broadcast."""
        if self.is_batch_first:
            return rule, arrays
        if rule.per_step and len(as_trace(rule).shape or ()) >= 2:
            rule = as_trace(rule).mapped(self._turned)
        turned: dict[str, Any] = {}
        for name, array in arrays.items():
            if array is None or (name == "gamma" and is_number(array)):
                turned[name] = array
                continue
            if (shape := _shape(array)) != self.shape:
                raise ValueError(
                    f"{name} has shape {shape} but {self.first} has shape {self.shape}: nothing is broadcast"
                )
            turned[name] = self._turned(array if hasattr(array, "swapaxes") else np.asarray(array))
        return rule, turned

    def _turned(self, array: np.ndarray | torch.Tensor | jax.Array) -> np.ndarray | torch.Tensor | jax.Array:
        """An array of this layout as [B, T]. A last dimension of 1 may have been left out."""
        if tuple(array.shape) == self.shape:
            array = array.reshape(self.shape[:2])
        return array.swapaxes(0, 1) if self.time_major else array

    def index_given(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """An index of [T] or [B, T] as one of the arrays that came in."""
        at = at[::-1] if self.time_major else at
        return (*at, 0) if len(self.shape) == 3 else at

    def restored(self, out: Array) -> Array:
        """A result [B, T] in this layout, which is another one."""
        return (out.swapaxes(0, 1) if self.time_major else out).reshape(self.shape)


def layout_of(arrays: Mapping[str, object], time_major: bool | None) -> Layout:
    """The layout of what was given, by its first array."""
    first = "reward" if "reward" in arrays else "terminated"
    shape = _shape(arrays[first])
    if len(shape) == 3 and shape[2] != 1:
        raise ValueError(
            f"{first} has shape {shape}: arrays must be [T] or [B, T], or [B, T, 1] with a last dimension of 1"
        )
    if time_major is None and len(shape) in (2, 3) and shape[1] == 1 and shape[0] > 1:
        raise ValueError(
            f"{first} has shape {shape}, which is {shape[0]} steps of one environment or {shape[0]} rows of one step: "
            "pass time_major=True for the steps, time_major=False for the rows, or the steps as flat arrays [T]"
        )
    if time_major and len(shape) < 2:
        raise ValueError(
            f"{first} has shape {shape}, but time_major=True is for [T, B] or [T, B, 1]: one row needs none"
        )
    return Layout(first, shape, bool(time_major))


def _shape(array: object) -> tuple[int, ...]:
    return tuple(array.shape if hasattr(array, "shape") else np.shape(array))  # pyright: ignore


class SkipsRemoved(Generic[Array]):
    """The rows of a batch, [T] or [B, T], without the steps that are skipped: these are moved to the row's end, as padding.

    The others close up, so that every rule, kernel and kind of array passes over skipped steps, and lags count decisions only. An
    end at a skipped step is that of the decision before it. Padding stays an end, also where it is marked to be skipped.
    """

    def __init__(self, backend: Backend[Array], skip: object, arrays: Mapping[str, object]) -> None:
        self.backend = backend
        xp, flags = backend.xp, backend.array("skip", skip)
        check_skip(backend, flags, arrays)
        valid = arrays.get("valid")
        valid = None if valid is None else backend.array("valid", valid) != 0
        self.skip = (flags != 0) if valid is None else (flags != 0) & valid
        self.valid = ~self.skip if valid is None else valid & ~self.skip
        place = xp.cumsum(self.skip | ~self.skip, -1)
        self.order = xp.argsort(xp.where(self.skip, place + flags.shape[-1], place), -1)
        self.back = xp.argsort(self.order, -1)

    def into(self, rule: Rule, arrays: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
        """The rule and the arrays without what is skipped."""
        without: dict[str, Any] = {}
        for name, value in arrays.items():
            if value is None or (name == "gamma" and is_number(value)):
                without[name] = value
            elif name in ("terminated", "truncated"):
                flags = self.backend.array(name, value)
                check_flags(self.backend, name, flags)
                without[name] = self._ends(flags)
            else:
                without[name] = self.backend.take(self.backend.array(name, value), self.order)
        return self._rule(rule), without | {"valid": self.backend.take(self.valid, self.order)}

    def _ends(self, flags: Array) -> Array:
        """The flags of decisions, each with those of the skipped steps between it and the next decision."""
        xp, take = self.backend.xp, self.backend.take
        skipped = xp.cumsum((flags != 0) & self.skip, -1)
        before, total = take(skipped, self.order), skipped[..., -1:]
        last = take(self.skip, self.order)
        after = xp.where(_ahead(xp, last, last[..., -1:] | True), total, _ahead(xp, before, total))
        return (take(flags, self.order) != 0) | (after > before)

    def _rule(self, rule: Rule) -> Rule:
        """The rule, with what it holds for each step ordered as the arrays are."""
        if not rule.per_step:
            return rule
        order: Any = self.backend.as_parameter("order", self.order)
        if isinstance(order, np.ndarray):
            return as_trace(rule).mapped(lambda held: np.take_along_axis(held, order.reshape(np.shape(held)), -1))
        return as_trace(rule).mapped(lambda held: self.backend.take(self.backend.xp.asarray(held), order))

    def index_given(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """An index of the rows without skipped steps as one of those with them."""
        return (*at[:-1], int(self.backend.as_numpy(self.order)[at]))

    def restored(self, out: Array) -> Array:
        """A result with 0 at the steps that were skipped."""
        return self.backend.take(out, self.back)


def _ahead(xp: Module, array: Array, end: Array) -> Array:
    """What stands one step later; `end` after the last."""
    return xp.concatenate([array[..., 1:], end], -1)


def check_skip(backend: Backend[Array], skip: Array, arrays: Mapping[str, object]) -> None:
    """An error where skip is not of the arrays' shape, or holds something else than flags."""
    if backend.letter(skip.dtype) not in "biu":
        raise TypeError(f"skip must be boolean or 0/1 integers, got {skip.dtype}: convert it, e.g. skip > 0.5")
    for name, value in arrays.items():
        if value is None or (name == "gamma" and is_number(value)):
            continue
        shape = tuple(backend.array(name, value).shape)
        if shape != tuple(skip.shape):
            raise ValueError(f"skip has shape {tuple(skip.shape)} but {name} has shape {shape}: nothing is broadcast")
    check_flags(backend, "skip", skip)


def check_flags(backend: Backend[Array], name: str, flags: Array) -> None:
    """An error where integers are neither 0 nor 1, if values are looked at."""
    if backend.letter(flags.dtype) in "iu" and backend.looks(None, {name: flags}):
        as_booleans(name, backend.as_numpy(flags))


def needed(backend: Backend[Array], trace: Rule, arrays: Mapping[str, object]) -> dict[str, object]:
    """The arrays that the rule reads, of the kind that came in; None instead of the others."""
    read = {name: array for name, array in arrays.items() if name != "greedy"}
    reads = trace.reads
    if trace.needs_greedy:
        read["log_pi"] = log_pi_of_greedy(backend, trace, arrays)
    elif not trace.needs_pi:
        read["log_pi"] = None
    elif arrays.get("log_pi") is None:
        raise TypeError(f"log_pi is missing: {trace.title} needs log π(a_t|s_t) of the actions taken")
    if not trace.needs_mu:
        read["log_mu"] = None
    elif arrays.get("log_mu") is None:
        raise TypeError(
            f"log_mu is missing: {trace.title} needs log μ(a_t|s_t) of the actions taken; Tree Backup and Q(λ) need no μ"
        )
    if "pair" not in reads:
        read["pair"] = None
    elif arrays.get("pair") is None:
        raise TypeError(f"pair is missing: {trace.title} needs ids of (s_t, a_t)")
    for name in ("reward", "next_value") if trace.uncorrected else ("reward", "next_value", "q"):
        if name in read and read[name] is None:
            raise TypeError(f"{name} is missing: {trace.title} needs it for every step")
    return read


def agreed_rule(backend: Backend[Array], rule: Rule, arrays: Mapping[str, object]) -> tuple[Trace, Agreed[Array]]:
    """The rule for β, and the arrays that it reads, which agree. With a `value` instead of q they are those of states.

    An uncorrected return is q + Δ of Q(λ), where q_t is the value that step t − 1 bootstraps from.
    """
    if "value" in arrays:
        return as_trace(rule), agree(backend, needed_on_states(backend, as_trace(rule), arrays))
    read = agree(backend, needed(backend, rule, arrays))
    if not rule.uncorrected:
        return as_trace(rule), read
    given = {name: read.arrays[name] for name in ("next_value", *FLAGS) if name in read.arrays}
    return eligibility_of(rule), read._replace(arrays=read.arrays | backend.at_once(_bootstrapped, given))


def _bootstrapped(
    backend: Backend[Array], next_value: Array, terminated: Array, truncated: Array, valid: Array | None = None
) -> dict[str, Array]:
    """As q the value at s_t that the step before bootstraps from, if an episode continues there; else 0."""
    xp, ends = backend.xp, (terminated != 0) | (truncated != 0)
    ends = ends if valid is None else ends | (valid == 0)
    zero = xp.zeros_like(next_value)
    return {"q": xp.concatenate([zero[..., :1], xp.where(ends, zero, next_value)[..., :-1]], -1)}


def needed_on_states(backend: Backend[Array], trace: Trace, arrays: Mapping[str, object]) -> dict[str, object]:
    """The arrays of `state_targets`. δ carries a ratio there: both log-probabilities are read, whatever the rule reads."""
    for name in ("reward", "value", "next_value"):
        if arrays.get(name) is None:
            raise TypeError(f"{name} is missing: {trace.title} needs it for every step")
    for name, policy in (("log_pi", "π"), ("log_mu", "μ")):
        if arrays.get(name) is None:
            raise TypeError(
                f"{name} is missing: on state values every TD error carries π/μ of its action, so {trace.title} needs "
                f"log {policy}(a_t|s_t); where you learn on-policy, give the same array as log_pi and as log_mu"
            )
    read = needed(backend, trace, arrays)
    return read | {name: arrays[name] for name in ("log_pi", "log_mu") if read[name] is None}


def bounded(trace: Rule) -> tuple[str, ...]:
    """The log-probabilities that must not exceed 0, because the rule uses the probability itself."""
    return tuple(f"log_{p}" for p in ("pi", "mu") if p in trace.reads)


def decisions(backend: Backend[Array], trace: Rule, arrays: Mapping[str, object]) -> Decisions[Array]:
    """The arrays of `weights` that the rule reads, checked but for their values."""
    given = agreed(backend, arrays)
    read = needed(backend, trace, {**arrays, "valid": given.mask, "terminated": arrays.get("greedy")})
    log_pi, log_mu = (None if read[name] is None else backend.array(name, read[name]) for name in ("log_pi", "log_mu"))
    return given._replace(log_pi=log_pi, log_mu=log_mu)


REMEDY = (
    "pass greedy=…, whether the action taken maximises Q, e.g. greedy=(q_of_all.argmax(-1) == action), "
    "or log_pi of a greedy policy, 0 or -inf"
)


def log_pi_of_greedy(backend: Backend[Array], trace: Rule, arrays: Mapping[str, Any]) -> Array:
    """log π(a_t|s_t) of the greedy policy, of the arrays' own kind: from `greedy`, or log_pi itself if it is 0 or −inf.

    A soft log_pi is an error; where no error can be raised, as under jit, it becomes NaN.
    """
    log_pi, greedy, valid = arrays.get("log_pi"), arrays.get("greedy"), arrays.get("valid")
    if greedy is not None:
        reward = arrays.get("reward")
        return _from_flags(backend, greedy, like=arrays["terminated"] if reward is None else reward)
    if log_pi is None:
        raise TypeError(f"greedy is missing: {trace.title} cuts where the action taken is not greedy; {REMEDY}")
    xp = backend.xp
    log_pi = xp.asarray(log_pi)
    soft = (log_pi < -TOLERANCE) & (log_pi > -np.inf)
    if valid is not None:
        soft = soft & (xp.asarray(valid) != 0)
    if backend.looks(None, {"log_pi": log_pi}) and bool(soft.any()):
        at = tuple(int(i) for i in np.argwhere(backend.as_numpy(soft))[0])
        raise BadValueError(
            f"log_pi is of a soft policy: got {float(log_pi[at])} at index {{index}}, but {trace.title} cuts where the "
            f"action taken is not greedy, which a soft policy does not tell: {REMEDY}",
            at,
        )
    return xp.where(soft, np.nan, log_pi)


def _from_flags(backend: Backend[Array], greedy: Array, like: Array) -> Array:
    """0 where greedy, else −inf, in the dtype of `like` if that is real."""
    xp = backend.xp
    greedy, like = xp.asarray(greedy), xp.asarray(like)
    if tuple(greedy.shape) != tuple(like.shape):
        raise ValueError(
            f"greedy has shape {tuple(greedy.shape)} but the trajectory has {tuple(like.shape)}: nothing is broadcast"
        )
    if "float" in str(greedy.dtype):
        raise TypeError(f"greedy must be boolean or 0/1 integers, got {greedy.dtype}")
    check_flags(backend, "greedy", greedy)
    zero = xp.zeros_like(like) if "float" in str(like.dtype) else like * 0.0
    return xp.where(greedy != 0, zero, -np.inf)
