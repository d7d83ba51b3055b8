"""What a trace is: a rule for the coefficient β of a trajectory's past, as three elementwise arrays.

For a trace that starts at step k (the normal form):

    x_{k:k} = 1,   x_{k:t} = ratio_t · x_{k:t-1}          (a *recursive* trace then clips it: x = min(cap_t, x))
    β_{k:k} = 1,   β_{k:t} = (decay_{k+1} ··· decay_t) · min(cap_t, x_{k:t})

A rule states `decay`, `ratio` and `cap` from the probabilities of the actions taken, in operators and the functions of
`symbols` only; every backend, the streaming traces and the exact operators use those same lines.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from numbers import Integral, Real
from types import FunctionType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import ArrayLike

from offtrace.traces import pytrees, symbols
from offtrace.trajectory import first_index, spell

INFINITY = float("inf")

Numbers: TypeAlias = Any
"""A number, or an array of whatever backend is at work: operators and the functions of `Math` act on it elementwise."""
Math: TypeAlias = Any
"""What `xp` stands for: `where`, `minimum`, `maximum`, `abs`, `sqrt`, `exp`, `log` of a backend."""
ThreeFactors: TypeAlias = tuple[Numbers, Numbers, Numbers]
"""decay, ratio and cap."""
Range: TypeAlias = Sequence[np.ndarray] | np.ndarray
"""The smallest and the largest probability of each pair, (low, high), as arrays that broadcast."""


class Factors(NamedTuple):
    """The normal form of a rule on a batch: numbers, or arrays of the batch's shape.

    >>> import numpy as np, offtrace as ot
    >>> ot.Retrace(lam=0.5).normal_form(np, 0.5, 1.0, 0.5)._fields
    ('decay', 'ratio', 'cap')
    """

    decay: Numbers
    ratio: Numbers
    cap: Numbers


class UncorrectedReturn(NamedTuple):
    """G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}], which bootstraps from v alone at step k + n − 1 (None: no limit)."""

    lam: float
    n: int | None


class StepForm(NamedTuple):
    """A custom trace that is stated by a `step(xp, carry, now) → (carry, β)`."""

    carry: float | tuple[float, ...]
    """What it carries when a trace starts."""
    lam: float
    traced: symbols.Traced
    """The step as expressions, from which each backend prints its own."""

    @property
    def carries(self) -> tuple[float, ...]:
        """The carry as a tuple, also where it is one number."""
        return self.carry if isinstance(self.carry, tuple) else (self.carry,)


class Sweep(NamedTuple):
    """A number of a rule that goes from 0 to 1.

    >>> import offtrace as ot
    >>> ot.Retrace.sweep
    Sweep(parameter='lam', symbol='λ')
    """

    parameter: str
    """Its name in the constructor."""
    symbol: str
    """The letter by which it is printed."""


LAMBDA = Sweep("lam", "λ")


@dataclass(frozen=True)
class Rule:
    """Anything that `targets` accepts, with what one may ask of it before using it."""

    title: ClassVar[str] = ""
    """The name to print."""
    formula: ClassVar[str] = ""
    """β_t, or the return, as tables print it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names under which `offtrace.trace` finds it."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Which of "pi", "mu", "rho" the rule looks at. "rho" alone accepts densities; "pi" and "mu" are probabilities."""
    uncorrected: ClassVar[bool] = False
    """Whether it is a return beside the operator: it bootstraps from `next_value` alone, reads no q, and has no β."""
    mixture: ClassVar[bool] = False
    """Whether it may evaluate a mixture of π and μ (`Trace.target_share`): then `next_value` must be the mixture's."""
    per_step: ClassVar[bool] = False
    """Whether it holds numbers for each step of one trajectory (`Trace.shape`)."""
    needs_greedy: ClassVar[bool] = False
    """Whether the π that the rule reads is that of the greedy policy: 1 where the action taken is greedy in Q, else 0."""
    proven: ClassVar[str] = ""
    """What is proven of it beside `recursive_condition`, in a few words."""
    citation: ClassVar[str] = ""
    """How to cite the rule: authors (year), work; several are separated by a semicolon."""
    look: ClassVar[int | None] = None
    """Its place in reports, and the number of its colour, dash and marker (`figures.LOOKS`). None: what the others leave."""
    sweep: ClassVar[Sweep | None] = LAMBDA
    """What `operators.tradeoff` varies, where the rule has such a number. None: the rule is left out there."""

    @cached_property
    def hashable(self) -> bool:
        """Whether it holds no arrays, but numbers, names and functions: then what was made for an equal rule serves this one."""
        return all(_has_hash(getattr(self, f.name)) for f in fields(self))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Instances that between them show all that the rule can do, its limits too: the tests try them on every backend."""
        if "lam" in (f.name for f in fields(cls)):
            given: list[dict[str, float]] = [{"lam": lam} for lam in (0.0, 0.7, 1.0)]
            return tuple(cls(**numbers) for numbers in given)
        return (cls(),)

    @classmethod
    def typical(cls) -> tuple[Self, ...]:
        """Instances that stand for the rule where one or two do, as in the audit and in benchmarks."""
        return (cls(),)

    def __new__(cls, *arguments: object, **named: object) -> Self:
        annotated = {} if "__dataclass_fields__" in cls.__dict__ else inspect.get_annotations(cls)
        if own := [name for name, kind in annotated.items() if "ClassVar" not in str(kind)]:
            raise TypeError(
                f"{cls.__name__} declares {', '.join(own)} but is no dataclass: write @dataclass(frozen=True) above the class"
            )
        if "jax" in sys.modules:
            pytrees.register(cls)
        return super().__new__(cls)

    @property
    def uncorrected_return(self) -> UncorrectedReturn | None:
        """The return of a rule that is `uncorrected`; None for a rule for β."""
        return None

    @property
    def needs_pi(self) -> bool:
        """Whether `log_pi` must be given."""
        return "pi" in self.reads or "rho" in self.reads

    @property
    def needs_mu(self) -> bool:
        """Whether `log_mu` must be given."""
        return "mu" in self.reads or "rho" in self.reads


@dataclass(frozen=True)
class Trace(Rule):
    """A rule for β. Subclasses in normal form define `factors`; nothing else is needed."""

    horizon: int | None = field(default=None, kw_only=True, metadata=pytrees.STATIC)
    """β is 0 from this lag on; None means no limit."""

    form: ClassVar[Literal["normal", "step", "history"]] = "normal"
    """How the rule is stated: by `factors`, or, for a custom trace, by a `step` or by a `beta` of the whole history."""
    adaptive: ClassVar[bool] = False
    """Whether `offtrace.adapt` moves a number of it."""
    recursive: ClassVar[bool] = False
    """Whether x itself is clipped at the cap, so that a clipped trace continues from the cap."""
    per_decision: ClassVar[bool] = True
    """Whether β factors into one coefficient per decision (a Markov trace): then no cap acts, and none is looked at."""
    recursive_condition: ClassVar[bool | None] = None
    """Whether β_t ≤ β_{t-1} ρ_t for every history, which makes evaluation a contraction. None: not known."""

    def __post_init__(self) -> None:
        if self.horizon is not None:
            self._set("horizon", whole("horizon", self.horizon))
        if "lam" in (f.name for f in fields(self)):
            self._set("lam", number("lam", getattr(self, "lam"), 0.0, 1.0))  # noqa: B009
        if type(self).factors is not Trace.factors:
            if type(self).__module__.partition(".")[0] != __name__.partition(".")[0]:
                self._check_factors()  # those of the package have their tests
            _ = self.traced

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_factors(self) -> None:
        """Try a rule from outside at a few probabilities. What hides from all of them is not found out."""
        name = type(self).__name__
        if not isinstance(inspect.getattr_static(type(self), "factors"), staticmethod):
            raise TypeError(f"{name}.factors must be a @staticmethod: factors(xp, pi, mu, rho, *parameters)")
        _ = self.traced
        for pi, mu in ((0.1, 0.1), (0.1, 0.9), (0.9, 0.1), (1.0, 1.0)):
            seen = {"pi": pi, "mu": mu, "rho": pi / mu}
            factors = self.traced.call(
                np, *(x if p in self.reads else np.nan for p, x in seen.items()), *self.parameters
            )
            if len(factors) != 3 or np.isnan(np.sum(np.broadcast_arrays(*factors)[:2])) or np.any(np.isnan(factors[2])):
                raise TypeError(
                    f"{name}.factors gives {factors} at π = {pi}, μ = {mu}: it must give decay, ratio and cap, "
                    f"and what it uses must stand in `reads`, which is {self.reads}"
                )
            if any(np.any(np.less(part, 0)) for part in factors):
                raise ValueError(f"{name}.factors gives {factors} at π = {pi}, μ = {mu}: none may be negative")
            if self.per_decision and (self.recursive or np.any(np.less(factors[2], INFINITY))):
                raise TypeError(f"{name} has a cap, so it is not per-decision: set per_decision = False")

    @property
    def traced(self) -> symbols.Traced:
        """`factors` as expressions, from which each backend prints its own. A rule that some backend cannot run raises."""
        return symbols.factors(type(self).factors, self._parameters, f"{type(self).__name__}.factors")

    @property
    def _parameters(self) -> int:
        """How many numbers `factors` takes after ρ. Its signature says so, without asking for them, unless it has *parameters."""
        code = type(self).factors.__code__
        return len(self.parameters) if code.co_flags & inspect.CO_VARARGS else code.co_argcount - 4

    @property
    def lag_bound(self) -> tuple[float, ...] | None:
        """A bound on x for lags 1, 2, …, the last one holding for all later lags; None where the rule has none."""
        return None

    def bounds_by_lag(self, T: int) -> list[float] | None:
        """The bounds on x at lags 1 … n after which a trace ends, on rows of T steps; None where nothing acts by lag."""
        return bounds_by_lag(self.horizon, self.lag_bound, T)

    @property
    def step_form(self) -> StepForm | None:
        """What a custom trace of the form "step" is stated by; None for all others."""
        return None

    @property
    def history_form(self) -> Callable[..., float] | None:
        """The β of a whole `History` by which a custom trace of the form "history" is stated; None for all others."""
        return None

    @property
    def custom(self) -> bool:
        """Whether it is a custom trace, without a normal form."""
        return self.form != "normal"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the trajectories that the rule holds numbers for, one for each step; None where it holds none."""
        return None

    def mapped(self, function: Callable[[Numbers], Numbers]) -> Self:
        """The same rule, with what it holds for each step (`shape`) taken through a function, as a cut or a reshaping."""
        return self

    @property
    def promised_bound(self) -> float | None:
        """What a custom trace promises β to be at most."""
        return None

    @property
    def target_share(self) -> float:
        """The policy that the rule evaluates is target_share · π + (1 − target_share) · μ: π itself, but for a few rules."""
        return 1.0

    def evaluated(self, target: Numbers, behavior: Numbers) -> Numbers:
        """The policy whose values are the rule's fixed point, of tables or of probabilities: it is the policy in δ."""
        share = self.target_share
        return target if share == 1.0 else share * target + (1.0 - share) * behavior

    @property
    def delta_bound(self) -> Numbers:
        """What bounds the ratio that δ carries on state values: ∞, but for V-trace, whose fixed point is another one for it."""
        return INFINITY

    def delta_ratio(self, xp: Math, rho: Numbers) -> Numbers:
        """What δ is multiplied by on state values: min(ρ̄, ρ) of the policy that the rule evaluates, elementwise."""
        share = self.target_share
        return xp.minimum(share * rho + (1.0 - share) if self.mixture else rho, self.delta_bound)

    @property
    def advantage_lam(self) -> Numbers:
        """λ, a number or one for each step: how much of the next target an advantage takes. 1 where the rule has no λ."""
        return getattr(self, "lam", 1.0)

    def for_policies(self, target: Range, behavior: Range) -> Self:
        """The same rule with the constants that depend on the policies, where it has such and they were left open.

        `target` and `behavior` are the smallest and the largest probability of each pair, (low, high), as arrays that
        broadcast; those of a fixed policy are equal.
        """
        return self

    def moved(self, measured_rate: Numbers, xp: Math = np) -> Self:
        """The rule after one step of `offtrace.adapt`, where it is `adaptive`; in compiled programs, `xp` is that of JAX."""
        raise TypeError(f"{self.title} holds no number that offtrace.adapt moves")

    @property
    def largest(self) -> float:
        """An upper bound of β, and of x where another start enters with 1: ∞ where none is plain from the rule's own lines.

        It is plain where decay and cap do not depend on the step: decay ≤ 1 and a constant cap.
        """
        nan = float("nan")
        decay, ratio, cap = self.factors(np, nan, nan, nan, *self.parameters)
        lags = self.lag_bound
        if np.ndim(decay) or np.ndim(cap) or not decay <= 1.0:
            return INFINITY
        if self.per_decision and np.ndim(ratio) == 0 and ratio <= 1.0:
            return 1.0
        bound = cap if lags is None else min(cap, max(lags))
        return max(1.0, float(bound)) if bound >= 0.0 else INFINITY

    @property
    def parameters(self) -> tuple[Numbers, ...]:
        """The numbers that `factors` takes after ρ, in its order (an array [T] or [B, T] where one changes with the step)."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.name != "horizon")

    @staticmethod
    def factors(*arguments: Numbers, **named: Numbers) -> ThreeFactors:
        """`factors(xp, pi, mu, rho, *parameters)` → decay, ratio, cap, elementwise. What it does not read is meaningless."""
        raise TypeError("this trace has no normal form: define `factors`, or derive from StepTrace")

    @cached_property
    def constant_cap(self) -> float | None:
        """The cap, where it is the same at every step of every trajectory; else None."""
        if any(np.ndim(p) for p in self.parameters):
            return None
        some = np.array([0.25, 0.5])
        with np.errstate(all="ignore"):
            cap = self.factors(np, some, some, some, *self.parameters)[2]
        return None if np.ndim(cap) else float(cap)

    def normal_form(self, xp: Math, pi: Numbers, mu: Numbers, rho: Numbers) -> Factors:
        """The factors of this very trace."""
        return Factors(*self.traced.call(xp, pi, mu, rho, *self.parameters))


def _has_hash(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_has_hash, cast("tuple[object, ...]", value)))
    return value is None or isinstance(value, float | int | str | FunctionType)


def bounds_by_lag(horizon: int | None, lag_bound: tuple[float, ...] | None, T: int) -> list[float] | None:
    """`Trace.bounds_by_lag`, in plain Python, since torch.compile does not follow NumPy."""
    reach = T if horizon is None else min(T, horizon)
    if lag_bound is None:
        return None if reach == T else [INFINITY] * (reach - 1) or [0.0]
    if lag_bound[-1] == 0:  # after the last bound above 0 nothing is left
        reach = min(reach, 2 + max((i for i, bound in enumerate(lag_bound) if bound > 0), default=-1))
    given = list(lag_bound[: reach - 1])
    return given + [lag_bound[-1]] * (reach - 1 - len(given)) or [0.0]


def number(name: str, value: object, low: float, high: float) -> Numbers:
    """The value as a float, which must lie in [low, high]. What only stands for a number, as under JAX, is let through."""
    if type(value) is not float:  # torch.compile does not follow the rest
        value = _as_number(name, value)
        if not isinstance(value, Real):
            return value
    value = float(value)
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}")
    return value


def for_each_step(name: str, values: ArrayLike, high: float) -> np.ndarray:
    """Numbers in [0, high], one for each step of a trajectory, as an array that is not changed any more."""
    array = np.array(values, np.float64)
    bad = (array < 0) | (array > high)  # NaN may stand where the trajectory is padding
    if not array.ndim or bad.any():
        what = f"{array[at := first_index(bad)]} at index {spell(at)}" if array.ndim else f"{values!r}, one number"
        raise ValueError(f"{name} must hold a number in [0, {high:g}] for each step, got {what}")
    array.flags.writeable = False
    return array


def option(name: str, value: Any, low: float, high: float) -> Numbers:
    """As `number`, of an option: an array without axes, of any kind, gives its number; only what JAX traces is let through."""
    shape = tuple(getattr(value, "shape", ()))
    if shape:
        raise TypeError(f"{name} must be one number, got an array of shape {shape}")
    try:
        value = value.item() if hasattr(value, "item") else value
    except TypeError:
        return value
    return number(name, value, low, high)


def _from_numpy(value: object) -> TypeGuard[np.ndarray | np.generic]:
    return isinstance(value, np.ndarray | np.generic)


def _as_number(name: str, value: Numbers) -> Numbers:
    """The value out of a NumPy scalar or an array without axes; strings, arrays and the like are refused."""
    if _from_numpy(value) and np.ndim(value) == 0:
        value = value.item()
    if (
        isinstance(value, bool | str | np.ndarray)
        or value is None
        or (np.iterable(value) and not hasattr(value, "dtype"))
    ):
        raise TypeError(f"{name} must be one number, got {value!r}")
    return value


def whole(name: str, value: object) -> int:
    """The value as an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)
