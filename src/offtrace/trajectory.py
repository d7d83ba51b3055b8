"""The trajectory contract: what the arrays mean, and the checks that hold everyone to it.

Arrays are [T] or [B, T], batch first, time last; `returns.inputs` turns other layouts into these. At step t of a row the action
a_t ~ μ was taken in s_t, and reward[t] and s_{t+1} were seen:

    reward            r_t
    q                 Q(s_t, a_t)
    next_value        Σ_a π(a|s_{t+1}) Q(s_{t+1}, a), at the true next observation; not read where terminated
    terminated        the task ended after step t: nothing is bootstrapped
    truncated         a limit ended the episode after step t: it still bootstraps. Terminated wins over truncated
    log_pi, log_mu    log π(a_t|s_t), log μ(a_t|s_t); given only where the rule uses them
    gamma             a number, or [B, T]: γ_t discounts from t to t+1
    valid             optional; False marks padding, where nothing is read and outputs are 0
    skip              optional; True marks a step that is no decision: credit passes over it (`returns.inputs`)
    greedy            optional; whether a_t maximises Q(s_t, ·), for rules that cut where it does not
    pair              optional; an integer id of (s_t, a_t), for custom traces that ask for it

No trace crosses a terminated, truncated or invalid step. A row may hold several episodes; its end bootstraps.
A probability or a ratio π/μ below e^-708, the smallest number with all its digits, counts as 0; a ratio of e^709 or more is an
error. Products of ratios have no such limits: they may leave the range of floats and come back.
Shapes, dtypes and flags are checked here, for every kind of array, at no cost that grows with T (`agree`). Values are checked
inside the compiled pass that reads them anyway (`returns.numpy.read_steps`); only when that pass has seen a bad one does
`explain_bad_value` look for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from offtrace.arrays import BOOL, FLOATS, Array, ArrayKind, Other, is_number, one_discount

REQUIRED = ("terminated", "truncated")
FLAGS = (*REQUIRED, "valid")
LARGEST_LOG = 709.0  # e to this power is near the largest float
SMALLEST_LOG = -708.0  # and to this one, near the smallest with all its digits: below it e^x counts as 0
RISE, RANGE = 64, 900
"""Powers of two, on every backend. Plain float64 holds the products of ratios of a row if none of them ever rises by more than
RISE, since what has underflowed then stays negligible; or if all lie between −RANGE and RANGE. All other rows are computed with
big products, f · 2ⁿ with n as an integer: one module `big_float` for each backend."""
HIGH_CAP = 2.0**100  # a cap above it does not keep a discounted product small
TOLERANCE = 1e-6  # a log-probability may exceed 0 by this much before it is refused
ROW_TOLERANCE = 1e-5
"""How far the probabilities of a policy's row may be from summing to one, summed in float64: one number for every row of π or μ.

It serves float32 too: a softmax in float32 is off by up to 5e-7 with 1,000 actions and 3e-6 with 32,000 (measured on PyTorch, JAX
and NumPy). It is still small enough to refuse a row that lacks an action of probability 0.0001. What is off by less is divided
by its sum where a table is kept in float64 (`distributions`), so that nothing rests on the size of this number.
"""


class BadValueError(ValueError):
    """An error that names a value by its index, `at`: in arrays [T] or [B, T], until the layout that came in is known."""

    def __init__(self, text: str, at: tuple[int, ...]) -> None:
        super().__init__(text.replace("{index}", spell(at)))
        self.text, self.at = text, at

    def in_row(self, first: int) -> BadValueError:
        """The same error, where the arrays in which it was found begin with this row of the batch."""
        return BadValueError(self.text, (*(row + first for row in self.at[:-1]), self.at[-1]))

    def with_index(self, at: tuple[int, ...]) -> ValueError:
        """The error that users see, with the index in the layout that they know."""
        return ValueError(self.text.replace("{index}", spell(at)))


class Agreed(NamedTuple, Generic[Array]):
    """Arrays that agree with each other, by name; what was not given is left out."""

    arrays: dict[str, Array]
    gamma: Array | float
    """One discount for all steps, or an array of the batch's shape."""
    shape: tuple[int, ...]
    dtype: Any
    """That of the result, to which the real arrays are promoted (`agree`); None where there are none."""

    def mapped(self, function: Callable[[Array], Other], dtype: object) -> Agreed[Other]:
        """The same of another kind, each array taken through a function."""
        arrays = {name: function(array) for name, array in self.arrays.items()}
        gamma = self.gamma if isinstance(self.gamma, float | int) else function(self.gamma)
        return Agreed(arrays, gamma, tuple(self.shape), dtype)


def agree(kind: ArrayKind[Array], given: Mapping[str, Any]) -> Agreed[Array]:
    """Hold arrays of any kind to the contract: names, shapes, dtypes and devices, which traced arrays have as well.

    All must agree in shape; nothing is broadcast. None means not given. Real arrays are of one dtype, or of float32 and half
    precision, float16 or bfloat16. Each is then read as it is, and the result has the dtype to which they are promoted: their
    own if it is one, else float32. float64 beside another is an error, since most often one of them was meant to be otherwise.
    One pass, which looks at no value, since a call on a small batch should not spend its time here.
    """
    ready: dict[str, Array] = {}
    first, shape, dtype, device, gamma = "", (), None, None, None
    for name, value in given.items():
        if value is None:
            if name in REQUIRED:
                raise TypeError(f"{name} is missing: pass an array of shape [T] or [B, T]")
            if name == "gamma":
                raise TypeError(
                    "gamma is missing: pass the discount, a number in [0, 1] or an array of the batch's shape"
                )
            continue
        if name == "gamma" and is_number(value):
            gamma = kind.discount(value)
            continue
        array = kind.array(name, value)
        if not first:
            first, shape = name, array.shape
            _check_shape(name, shape)
            device = array.device if kind.has_devices else None
        elif array.shape != shape:
            refuse_all_actions(name, array.shape, shape)
            raise ValueError(
                f"{name} has shape {tuple(array.shape)} but {first} has shape {tuple(shape)}: all arrays must be [T] or all "
                "[B, T], batch first, time last; nothing is broadcast"
            )
        elif kind.has_devices and array.device != device:
            raise ValueError(f"{name} is on {array.device} but {first} is on {device}: move it there")
        if name in FLAGS:
            if kind.letter(array.dtype) not in "biu":
                raise TypeError(
                    f"{name} must be boolean or 0/1 integers, got {array.dtype}: convert it, e.g. {name} > 0.5"
                )
        elif name == "pair":
            if kind.letter(array.dtype) not in "iu":
                raise TypeError(f"pair must be of an integer dtype, got {array.dtype}: it holds ids of (s_t, a_t)")
        elif array.dtype is not dtype:
            dtype = _promoted(kind, name, array.dtype, dtype)
        ready[name] = array
    return Agreed(ready, ready.pop("gamma") if gamma is None else gamma, shape, dtype)


def refuse_all_actions(name: str, shape: Sequence[int], wanted: Sequence[int]) -> None:
    """Refuse log-probabilities of all actions, [B, T, A], where those of the actions taken, [B, T], are read."""
    if name in ("log_pi", "log_mu") and len(shape) == len(wanted) + 1 and tuple(shape[:-1]) == tuple(wanted):
        raise ValueError(
            f"{name} has shape {tuple(shape)}, as if it were of all {shape[-1]} actions; it must be that of the action taken at "
            f"each step, {tuple(wanted)}: take it with take_along_axis or gather, or use from_action_values"
        )


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) not in (1, 2):
        raise ValueError(f"{name} has shape {tuple(shape)}: arrays must be [T] or [B, T], batch first, time last")
    if 0 in shape:
        raise ValueError(
            f"the batch is empty: {name} has shape {tuple(shape)}; there must be at least one row and one step"
        )


def _promoted(kind: ArrayKind[Array], name: str, dtype: object, before: object) -> object:
    """The dtype of a result from arrays of this dtype and of that of the real arrays before it; in native byte order."""
    native = kind.native(dtype)
    if native not in kind.reals:
        raise TypeError(
            f"{name} must be {kind.reals_called}, got {dtype}: convert it, e.g. {kind.converting(name, 'float32')}"
        )
    if before is None or native == before:
        return native
    if kind.double in (native, before):
        raise TypeError(
            f"{name} is {dtype} but the real arrays before it are {before}: give all in one dtype, "
            f"e.g. {kind.converting(name, before)}"
        )
    return kind.single


@dataclass(slots=True, eq=False)
class Trajectory:
    """Checked NumPy arrays, all [B, T] and C-contiguous. What the rule does not need is None."""

    shape: tuple[int, ...]
    """The shape that came in: [T] or [B, T]."""
    dtype: np.dtype[np.float32] | np.dtype[np.float64]
    """Of the real arrays."""
    terminated: np.ndarray
    truncated: np.ndarray
    gamma: float | np.ndarray
    reward: np.ndarray | None = None
    q: np.ndarray | None = None
    next_value: np.ndarray | None = None
    log_pi: np.ndarray | None = None
    log_mu: np.ndarray | None = None
    valid: np.ndarray | None = None
    pair: np.ndarray | None = None
    bounded: tuple[str, ...] = ()
    """The log-probabilities that must not exceed 0, because the rule uses the probability itself."""
    q_called: str = "q"
    """What the user calls q: V-trace has a `value` in its place."""
    given_back: np.dtype[np.generic] | None = None
    """The dtype of results, where it is not that of the real arrays: half precision."""

    def index(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """An index of [B, T] as one of the arrays that came in."""
        return at if len(self.shape) == 2 else at[1:]

    def rows(self, first: int, stop: int) -> Trajectory:
        """Some rows; `shape` stays that of the batch."""
        arrays = {f.name: a[first:stop] for f in fields(self) if isinstance(a := getattr(self, f.name), np.ndarray)}
        return replace(self, **arrays)

    def read(self, name: str) -> np.ndarray:
        """An array that the rule needs, and so is there."""
        array = getattr(self, name)
        if array is None:
            raise TypeError(f"{self.q_called if name == 'q' else name} is missing")
        return array

    def restore(self, out: np.ndarray) -> np.ndarray:
        """A [B, T] result in the shape and dtype that came in, 0 at invalid steps."""
        if self.valid is not None:
            out[~self.valid] = 0.0
        wanted = self.given_back or self.dtype
        if out.dtype is not wanted:
            with np.errstate(
                over="ignore", under="ignore"
            ):  # a float32 result may overflow where importance sampling does
                out = out.astype(wanted, copy=False)
            warn_if_infinite(out, self)
        return out.reshape(self.shape)


def warn_if_infinite(out: np.ndarray, x: Trajectory) -> None:
    """Warn if a result [B, T] is not finite, which finite inputs lead to where a sum or a product exceeds the largest float."""
    finite = np.isfinite(out) | (False if x.valid is None else ~x.valid)
    if not finite.all():
        at = first_index(~finite)
        warnings.warn(
            f"the result at index {spell(x.index(at))} is {out[at]}, though every input is finite: a sum or a product of ratios "
            f"exceeds the largest {out.dtype}. Scale rewards and values, or use a trace that clips its ratios",
            RuntimeWarning,
            stacklevel=5,
        )


_told: set[str] = set()
"""The warnings that were given: each comes once in a process."""


def warn_if_positive(x: Trajectory) -> None:
    """Warn once if both log-probabilities are above 0 at every step, as only densities of continuous actions can be."""
    if (
        x.log_pi is None
        or x.log_mu is None
        or not x.log_pi.item(0) > 0.0 < x.log_mu.item(0)
        or "positive logs" in _told
    ):
        return
    read = np.ones(x.log_pi.shape, bool) if x.valid is None else x.valid
    log_pi, log_mu = x.log_pi[read], x.log_mu[read]
    if read.any() and (log_pi > TOLERANCE).all() and (log_mu > TOLERANCE).all():
        _told.add("positive logs")
        warnings.warn(
            f"log_pi and log_mu are above 0 at every step (the first are {log_pi[0]:g} and {log_mu[0]:g}), which "
            "logarithms of probabilities never are. If these are probabilities or logits, pass their logarithms, as log_softmax "
            "gives them. If they are densities of continuous actions, all is well; this is said once",
            stacklevel=5,
        )


def laid_out(agreed: Agreed[np.ndarray], bounded: tuple[str, ...] = (), *, look: bool = True) -> Trajectory:
    """The trajectory of NumPy arrays that agree: rows of native numbers as the compiled kernels take them, flags as booleans.

    Half precision becomes float32, in which its every number is. Unless it is to `look`, a flag that is neither 0 nor 1 counts as
    True.
    """
    shape, ready = agreed.shape, {}
    is_batch = len(shape) == 2
    result = FLOATS[1] if agreed.dtype is None else np.dtype(agreed.dtype)
    dtype = result if result in FLOATS else FLOATS[0]
    if is_number(agreed.gamma):
        ready["gamma"] = one_discount(agreed.gamma)
        given = agreed.arrays
    else:
        given = {**agreed.arrays, "gamma": np.asarray(agreed.gamma)}
    for name, array in given.items():
        if array.dtype is not BOOL and name in FLAGS:
            array = as_booleans(name, array) if look else array != 0
        elif array.dtype is not dtype and name not in FLAGS and name != "pair":
            array = array.astype(dtype, copy=False)
        if not array.flags.carray or not array.dtype.isnative:  # carray: contiguous, aligned, writeable
            # Read-only arrays are another type to Numba, so they are copied as well.
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        ready["q" if name == "value" else name] = array if is_batch else array.reshape(1, -1)
    called = "value" if "value" in agreed.arrays else "q"
    given_back = None if result is dtype else result
    return Trajectory(shape=shape, dtype=dtype, bounded=bounded, q_called=called, given_back=given_back, **ready)


def as_booleans(name: str, array: np.ndarray) -> np.ndarray:
    """Flags as booleans; an error where one is neither 0 nor 1."""
    bad = (array != 0) & (array != 1)
    if bad.any():
        at = first_index(bad)
        raise BadValueError(f"{name} must hold 0 or 1, got {array[at]} at index {{index}}", at)
    return array.astype(np.bool_)


def first_index(bad: np.ndarray) -> tuple[int, ...]:
    """The index of the first True."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))


def spell(at: tuple[int, ...]) -> str:
    """An index as the user would write it."""
    return f"[{', '.join(map(str, at))}]"


def explain_bad_value(
    trajectory: Trajectory, delta_ratio: Callable[[np.ndarray], np.ndarray] | None = None
) -> NoReturn:
    """Find the first value that breaks the contract and raise an error that names it. The slow path: only on failure.

    `delta_ratio` gives what δ is multiplied by on state values, from ρ.
    """
    read = np.ones(trajectory.terminated.shape, bool) if trajectory.valid is None else trajectory.valid
    where_read = {"next_value": read & ~trajectory.terminated}
    for name in ("reward", "next_value", "q", "gamma", "log_pi", "log_mu"):
        array = getattr(trajectory, name)
        if not isinstance(array, np.ndarray):
            continue
        for bad, wrong, remedy in _violations(name, array, trajectory.bounded):
            bad &= where_read.get(name, read)
            if bad.any():
                at = first_index(bad)
                name = trajectory.q_called if name == "q" else name
                raise BadValueError(
                    f"{name} {wrong}: got {array[at]} at index {{index}}; {remedy}", trajectory.index(at)
                )
    _explain_overflow(trajectory, read, delta_ratio)


def _explain_overflow(
    x: Trajectory, read: np.ndarray, delta_ratio: Callable[[np.ndarray], np.ndarray] | None
) -> NoReturn:
    """Raise an error that names the ratio, or the TD error, that is too large though every input is finite."""
    log_ratio = np.zeros(read.shape)
    with np.errstate(all="ignore"):
        if x.log_pi is not None and x.log_mu is not None:
            log_ratio = np.where(read, x.log_pi.astype(float) - x.log_mu, 0.0)
            if (bad := log_ratio >= LARGEST_LOG).any():
                at = first_index(bad)
                raise BadValueError(
                    f"log_pi - log_mu is {log_ratio[at]:g} at index {{index}} ({x.log_pi[at]:g} and {x.log_mu[at]:g}): "
                    f"a ratio of e^{LARGEST_LOG:g} or more is too large to be represented. Both must be log-probabilities "
                    "of the action taken; look for logits, or for a behaviour policy that is not the one that acted",
                    x.index(at),
                )
        if x.reward is not None and x.next_value is not None:
            γ = np.broadcast_to(x.gamma, read.shape)
            ahead = np.where(x.terminated, 0.0, γ * x.next_value.astype(float))
            delta = x.reward + ahead - (0.0 if x.q is None else x.q)
            if (bad := read & ~np.isfinite(delta)).any():
                at = first_index(bad)
                own = "" if x.q is None else f", {x.q_called} {x.q[at]:g}"
                raise BadValueError(
                    f"the TD error at index {{index}} is too large to be represented: reward is {x.reward[at]:g}, next_value "
                    f"{x.next_value[at]:g}{own}. Scale rewards and values",
                    x.index(at),
                )
            if delta_ratio is not None:
                weight = delta_ratio(np.exp(log_ratio))
                if (bad := read & ~np.isfinite(weight * delta)).any():
                    at = first_index(bad)
                    raise BadValueError(
                        f"the TD error at index {{index}} times its ratio is too large to be represented: they are "
                        f"{delta[at]:g} and {weight[at]:g}. Scale rewards and values, or bound the ratio, as V-trace does",
                        x.index(at),
                    )
    raise ValueError(
        "a sum is too large to be represented, though every input is finite: look for rewards, values or ratios of extreme size"
    )


def _violations(name: str, array: np.ndarray, bounded: tuple[str, ...]) -> list[tuple[np.ndarray, str, str]]:
    """(where, what is wrong, what to do) for one array."""
    if name == "gamma":
        return [(~((array >= 0) & (array <= 1)), "must lie in [0, 1]", "a discount outside it has no meaning here")]
    if name == "log_mu":
        violations = [
            (
                np.isneginf(array),
                "is -inf",
                "μ = 0 on an action that was taken is impossible: log μ as it was when acting",
            ),
            (~np.isfinite(array), "must be finite", "recompute it from the behaviour policy, or mark the step invalid"),
        ]
    elif name == "log_pi":
        violations = [
            (
                ~(array < np.inf),
                "must be finite or -inf",
                "recompute it from the target policy, or mark the step invalid",
            )
        ]
    else:
        return [(~np.isfinite(array), "must be finite", "mend it, or mark the step as padding with valid=False")]
    if name in bounded:
        violations.append(
            (
                array > TOLERANCE,
                "is above 0",
                "this rule uses the probability itself: pass log-probabilities, not densities",
            )
        )
    return violations


def distributions(rows: ArrayLike, name: str, where: str = "state", first: int = 0) -> np.ndarray:
    """Rows of probabilities [n, A] as float64 that sum to one, C-contiguous; else an error that names the first bad row.

    A row that is off by no more than float64 rounds stays as it is. One that is off by up to ROW_TOLERANCE, as those of networks
    are that compute in float32, is divided by its sum. `first` is the number of the first row.
    """
    array = np.ascontiguousarray(rows, dtype=np.float64)
    total = array.sum(axis=1)
    off = np.abs(total - 1.0)
    bad = ~((array >= 0).all(axis=1) & (off <= ROW_TOLERANCE))
    if bad.any():
        n = int(np.argmax(bad))
        raise ValueError(
            f"{name} in {where} {first + n} is {array[n].tolist()}, which sums to {total[n]:.9g}: probabilities must not be "
            f"negative and must sum to one within {ROW_TOLERANCE:g}. If they are only rounded, divide each row by its sum"
        )
    rounded = off > array.shape[1] * np.finfo(np.float64).eps
    if rounded.any():
        array = np.where(rounded[:, None], array / total[:, None], array)
    return array
