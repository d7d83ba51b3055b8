"""What losses read: arrays of one kind and shape, which of their steps are decisions, and means over these.

Arrays are [T] or [B, T]; what is known of every action has a last axis of actions more. A step is a decision where `valid` or
`mask` is true, where it is given, and `skip` is not. Elsewhere nothing is read, NaN may stand there, and no gradient comes from
there. float16 and bfloat16 are computed with in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, cast

import numpy as np

from offtrace.arrays import Array, is_number
from offtrace.policy.bad_values import FLAGS, look, refuse_bad
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.backend import Backend


class Loss(NamedTuple, Generic[Array]):
    """A loss and what it was made of, for those who build their own."""

    loss: Array
    """One number, to be differentiated: a mean over decisions, unless the loss says otherwise. Without a decision it is 0."""
    terms: dict[str, Array]
    """The summands of each decision by name, in the shape of the arrays, with gradients; 0 where there is no decision."""
    arrays: dict[str, Array]
    """What the terms were made of, such as targets, advantages and weights, without gradients."""
    decisions: Array
    """The number of decisions."""

    @property
    def means(self) -> dict[str, Array]:
        """The mean of each term over decisions, for loggers, without gradients; 0 where there is no decision."""
        do: Backend[Any] = backend_of({"decisions": self.decisions})
        totals = {name: do.constant(_total(term)) for name, term in self.terms.items()}
        return {name: total / at_least_1(do, self.decisions) for name, total in totals.items()}


def _total(term: Any) -> Any:
    """The sum of a term in any form."""
    if isinstance(term, list):
        return sum(row.sum() for row in cast("list[Any]", term))
    return (term.values() if getattr(term, "is_nested", False) else term).sum()


def at_least_1(do: Backend[Array], count: Array) -> Array:
    """A number to divide by, so that a sum over nothing is 0 and not NaN."""
    return do.xp.clip(count, 1, None)


class Steps(Generic[Array]):
    """Arrays that agree, read at decisions only."""

    def __init__(
        self,
        given: Mapping[str, Array | float | None],
        *,
        beside: Mapping[str, Array | float | None] | None = None,
        over_actions: tuple[str, ...] = (),
        check: bool | None = None,
    ) -> None:
        """Arrays that a loss reads itself; `beside` are those that only targets or weights read, and check."""
        there = {name: array for name, array in given.items() if array is not None}
        self.do: Backend[Array] = backend_of({**there, **(beside or {})})
        self.xp = self.do.xp
        there = {name: self.do.array(name, array) for name, array in there.items()}
        self.over_actions = over_actions
        self.shape = self._agree(there)
        self.decision = self._decisions(there)
        self.looks = self.do.looks(check, {**there, **(beside or {})})
        if self.looks:
            look(self.do.all_as_numpy(there), self.do.as_numpy(self.decision), over_actions)
        self._given = {name: self._wide(array) for name, array in there.items() if name not in FLAGS}

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def read(self, name: str) -> Array:
        """An array, with its gradient, and 0 where there is no decision."""
        array = self._given[name]
        decision = self.decision[..., None] if array.ndim > len(self.shape) else self.decision
        return self.xp.where(decision, array, 0 if name == "action" else 0.0)

    def constant(self, name: str) -> Array:
        """An array without its gradient, and 0 where there is no decision."""
        return self.do.constant(self.read(name))

    def plain(self, array: object) -> Any:
        """An array without gradient, of at least float32, for what reads it by itself. None and numbers stay."""
        if array is None or is_number(array):
            return array
        return self._wide(self.do.constant(self.do.array("array", array)))

    def of_rows(self, name: str, given: object) -> Array:
        """An array of all steps, or one number for each row of [B, T]; without gradient, and 0 where there is no decision."""
        array = self.do.constant(self._wide(self.do.array(name, given)))
        self._check_dtype(name, array)
        rows = len(self.shape) == 2 and tuple(array.shape) == self.shape[:1]
        if not rows and tuple(array.shape) != self.shape:
            either = f"{self.shape}, or {self.shape[:1]}, one for each row" if len(self.shape) == 2 else f"{self.shape}"
            raise ValueError(f"{name} has shape {tuple(array.shape)}: it must be {either}")
        if rows:
            array = self.xp.broadcast_to(array[:, None], self.shape)
        if self.looks:
            refuse_bad(name, self.do.as_numpy(array), self.do.as_numpy(self.decision), logarithm=False)
        return self.xp.where(self.decision, array, 0.0)

    def at_action(self, array: Array) -> Array:
        """What stands at the action taken, of an array over actions."""
        return self.do.take(array, self.read("action")[..., None])[..., 0]

    def ratio(self, log_pi: Array | float, log_mu: Array) -> Array:
        """π/μ without gradient; NaN where μ is 0, since such an action is not taken."""
        never = log_mu == -np.inf
        return self.do.constant(self.xp.where(never, np.nan, self.xp.exp(log_pi - self.xp.where(never, 0.0, log_mu))))

    def at_most(self, array: Array, bound: float) -> Array:
        """The array, or the bound where it is less; NaN stays."""
        return self.xp.where(array > bound, bound, array)

    def expected(self, pi: Array, values: Array) -> Array:
        """Σ_a π(a|s) times the value of a."""
        return self.xp.sum(pi * values, -1)

    def times_log(self, factor: Any, log: Array) -> Array:
        """The product of a factor and a logarithm: 0 where the factor is, also if the logarithm is −∞."""
        nothing = factor == 0
        return factor * self.xp.where(nothing, 0.0, log)

    def loss(
        self, terms: Mapping[str, Any], costs: Mapping[str, float], *, over: Array | None = None, **arrays: Array
    ) -> Loss[Array]:
        """The mean over decisions, or over as many as `over` says, of Σ cost · term; a term without a cost has cost 1."""
        terms = {name: self.xp.where(self.decision, term, 0.0) for name, term in terms.items()}
        count: Any = self.decision.sum()
        each: Any = sum(costs.get(name, 1.0) * term for name, term in terms.items())
        constants = {name: self.do.constant(array) for name, array in arrays.items()}
        return Loss(each.sum() / at_least_1(self.do, count if over is None else over), terms, constants, count)

    def _wide(self, array: Array) -> Array:
        half = self.do.letter(array.dtype) not in "biu" and array.dtype.itemsize < 4  # bfloat16 has no letter in NumPy
        return self.do.cast(array, self.xp.float32) if half else array

    def _agree(self, there: Mapping[str, Array]) -> tuple[int, ...]:
        """The common shape, without the axis of actions."""
        first = next(iter(there))
        shape, actions = tuple(there[first].shape), None
        if first in self.over_actions:
            shape = shape[:-1]
        if not shape or 0 in tuple(there[first].shape):
            more = ", and then actions" if first in self.over_actions else ""
            raise ValueError(
                f"{first} has shape {tuple(there[first].shape)}: arrays must be [T] or [B, T]{more}, not empty"
            )
        for name, array in there.items():
            own_shape = tuple(array.shape)
            if name in self.over_actions:
                actions = own_shape[-1] if actions is None else actions
                wanted = (*shape, actions)
            else:
                wanted = shape
            if own_shape != wanted:
                raise ValueError(
                    f"{name} has shape {own_shape} but {first} has shape {tuple(there[first].shape)}: it must be {wanted}; "
                    "nothing is broadcast"
                )
            if self.do.has_devices and array.device != there[first].device:
                raise ValueError(f"{name} is on {array.device} but {first} is on {there[first].device}: move it there")
            self._check_dtype(name, array)
        return shape

    def _check_dtype(self, name: str, array: Array) -> None:
        letter = self.do.letter(array.dtype)
        if name in ("valid", "skip") and letter not in "biu":
            raise TypeError(f"{name} must be boolean or 0/1 integers, got {array.dtype}: convert it, e.g. {name} > 0.5")
        if name == "action" and letter not in "iu":
            raise TypeError(f"action must hold integers, got {array.dtype}: it holds the numbers of the actions taken")
        if name not in (*FLAGS, "action") and array.dtype not in self.do.reals:
            raise TypeError(
                f"{name} must be of a floating dtype, got {array.dtype}: "
                f"convert it, e.g. {self.do.converting(name, 'float32')}"
            )

    def _decisions(self, there: Mapping[str, Array]) -> Array:
        live: Any = None
        for name in filter(there.__contains__, FLAGS):
            flag: Any = there[name]
            as_boolean = flag if self.do.letter(flag.dtype) == "b" else flag != 0
            acts = ~as_boolean if name == "skip" else as_boolean
            live = acts if live is None else live & acts
        if live is None:
            like: Any = next(a for name, a in there.items() if name not in self.over_actions)
            return self.xp.ones_like(like, dtype=bool)
        return live
