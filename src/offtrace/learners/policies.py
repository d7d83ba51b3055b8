"""Policies that change while one learns: ε-greedy and softmax in the current Q, with a schedule of ε or the temperature.

A schedule gives a value for each k = 0, 1, 2, …, counted in episodes or in steps:

    Constant     value                             Linear         from `first` to `last` over `over`, then `last`
    Harmonic     value / (1 + k / half)            Exponential    max(last, value · factor^k)

`EpsilonGreedy(Harmonic(1.0))` has ε_k = 1/(k+1): greedy in the limit, and exploring for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import ClassVar, Self, SupportsFloat, cast

import numpy as np
from numpy.typing import ArrayLike

from offtrace.learners.acting import CONSTANT, EXPONENTIAL, GREEDY, HARMONIC, LINEAR, SOFTMAX, TABLE, CodedPolicy, level
from offtrace.learners.arrays import Floats
from offtrace.trajectory import distributions


def checked(name: str, value: object, low: float = 0.0, high: float = np.inf, *, above: bool = False) -> float:
    """The value as a finite float in [low, high]; `above`: it must not be `low` itself."""
    if isinstance(value, bool | str) or not isinstance(value, SupportsFloat) or np.ndim(value):  # pyright: ignore[reportArgumentType]
        raise TypeError(f"{name} must be one number, got {value!r}")
    number = float(value)
    if not low <= number <= high or (above and number == low) or number == np.inf:
        wanted = f"lie in [{low:g}, {high:g}]" if high < np.inf else f"be {'above' if above else 'at least'} {low:g}"
        raise ValueError(f"{name} must {'be finite' if number == np.inf else wanted}, got {value!r}")
    return number


@dataclass(frozen=True)
class Schedule:
    """A number for each k. `by` says what k counts: "episode" or "step"."""

    form: ClassVar[int]

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name != "by":
                checked(f"{f.name} of {type(self).__name__}", value, **f.metadata)
            elif value not in ("episode", "step"):
                raise ValueError(f'by must be "episode" or "step", got {value!r}')

    @property
    def coded(self) -> CodedPolicy:
        """The schedule as compiled loops read it: its numbers, in the order of its fields."""
        numbers = [float(getattr(self, f.name)) for f in fields(self) if f.name != "by"]
        a, b, c = (numbers[i] if i < len(numbers) else 0.0 for i in range(3))
        return CodedPolicy(TABLE, 0, self.form, a, b, c, getattr(self, "by", "episode") == "step")

    def __call__(self, k: int) -> float:
        """The value at k.

        >>> Harmonic(1.0)(3)
        0.25
        """
        return float(level(self.coded, k, k))


@dataclass(frozen=True)
class Constant(Schedule):
    """The same number at every k.

    >>> Constant(0.1)(1000)
    0.1
    """

    form: ClassVar[int] = CONSTANT
    value: float


@dataclass(frozen=True)
class Linear(Schedule):
    """From `first` down (or up) to `last` over `over` episodes or steps, then `last`.

    >>> schedule = Linear(1.0, 0.0, over=4)
    >>> [schedule(k) for k in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """

    form: ClassVar[int] = LINEAR
    first: float
    last: float
    over: int = field(metadata={"low": 1.0})
    by: str = "episode"


@dataclass(frozen=True)
class Harmonic(Schedule):
    """value / (1 + k / half): half of it at k = `half`. With half = 1 this is value / (k + 1).

    >>> [Harmonic(1.0, half=10.0)(k) for k in (0, 10, 30)]
    [1.0, 0.5, 0.25]
    """

    form: ClassVar[int] = HARMONIC
    value: float
    half: float = field(default=1.0, metadata={"above": True})
    by: str = "episode"


@dataclass(frozen=True)
class Exponential(Schedule):
    """value · factor^k, never below `last`.

    >>> schedule = Exponential(1.0, 0.5, last=0.1)
    >>> [schedule(k) for k in (0, 1, 2, 9)]
    [1.0, 0.5, 0.25, 0.1]
    """

    form: ClassVar[int] = EXPONENTIAL
    value: float
    factor: float = field(metadata={"high": 1.0})
    last: float = 0.0
    by: str = "episode"


def as_schedule(name: str, given: object) -> Schedule:
    """The schedule itself, or a constant one of a number; `name` is for the error.

    >>> as_schedule("epsilon", 0.1)
    Constant(value=0.1)
    """
    if isinstance(given, Schedule):
        return given
    if not isinstance(given, bool) and isinstance(given, Real):
        if not 0 <= float(given) < np.inf:
            raise ValueError(f"{name} must be finite and not negative, got {given!r}")
        return Constant(float(given))
    raise TypeError(f"{name} must be a number or a schedule such as Linear(1.0, 0.1, over=100), got {given!r}")


def positive_schedule(alpha: object) -> Schedule:
    """The schedule of a step size, above 0."""
    schedule = as_schedule("alpha", alpha)
    if not schedule(0) > 0:
        raise ValueError(f"alpha must be above 0, got {alpha!r}")
    return schedule


@dataclass(frozen=True)
class Policy:
    """A policy in the current Q."""

    kind: ClassVar[int]
    parameter: ClassVar[str]
    """The name of the number, or schedule, that it depends on,"""
    largest: ClassVar[float] = np.inf
    """and the most that this may be."""
    explore: int = field(default=0, kw_only=True)
    """How many episodes at first are played by the uniform policy."""

    def exploring(self, episodes: int) -> Self:
        """The same, but uniform in the first `episodes` episodes.

        >>> EpsilonGreedy(0.2).exploring(5)
        EpsilonGreedy(explore=5, epsilon=0.2)
        """
        return replace(self, explore=episodes)

    @property
    def coded(self) -> CodedPolicy:
        """Checked, and as compiled loops read it."""
        explore = cast(object, self.explore)
        if isinstance(explore, bool) or not isinstance(explore, int) or explore < 0:
            raise ValueError(f"explore must be a number of episodes, 0 or more, got {explore!r}")
        given = getattr(self, self.parameter)
        schedule = as_schedule(self.parameter, given)
        levels = [getattr(schedule, f.name) for f in fields(schedule) if f.name in ("value", "first", "last")]
        if not max(levels) <= self.largest:
            raise ValueError(f"{self.parameter} must lie in [0, {self.largest:g}], got {given!r}")
        return schedule.coded._replace(kind=self.kind, explore=self.explore)


@dataclass(frozen=True)
class EpsilonGreedy(Policy):
    """Uniform with probability ε, else greedy in the current Q, ties split evenly (two values tie if they are equal).

    >>> EpsilonGreedy(Harmonic(1.0)).epsilon(3)  # in the fourth episode
    0.25
    """

    kind: ClassVar[int] = GREEDY
    parameter: ClassVar[str] = "epsilon"
    largest: ClassVar[float] = 1.0
    epsilon: float | Schedule


@dataclass(frozen=True)
class Softmax(Policy):
    """π(a|s) ∝ exp(Q(s,a) / temperature); greedy at temperature 0, the limit.

    >>> Softmax(Linear(1.0, 0.0, over=100)).temperature(50)
    0.5
    """

    kind: ClassVar[int] = SOFTMAX
    parameter: ClassVar[str] = "temperature"
    temperature: float | Schedule


Probabilities = Callable[[np.ndarray], ArrayLike]
"""A policy as a function: the probabilities [A] of an observation."""


def coded(name: str, given: object, shape: tuple[int, int] | None, A: int) -> CodedPolicy:
    """A policy in the current Q, or an array [S, A] that stays as it is.

    Where states have no numbers, `shape` is None, and a function of the observation or one array [A] stands for the array.
    """
    if isinstance(given, EpsilonGreedy | Softmax):
        return given.coded
    fixed = Constant(0.0).coded
    if shape is None and (callable(given) or np.ndim(given) == 1):  # pyright: ignore[reportArgumentType]
        return fixed._replace(function=of_observations(name, given, A))
    if given is None or isinstance(given, str) or callable(given):
        raise TypeError(f"{name} must be EpsilonGreedy(…), Softmax(…) or an array [S, A], got {given!r}")
    if shape is None:
        raise TypeError(
            f"{name} cannot be a table here: with features, states have no numbers; use EpsilonGreedy or Softmax, "
            "a function that makes the probabilities [A] of an observation, or one array [A] for all"
        )
    table = np.array(given, dtype=np.float64)
    if table.shape != shape:
        raise ValueError(f"{name} has shape {table.shape}: a policy here is [S, A] = {shape}")
    return fixed._replace(table=distributions(table, name))


def of_observations(name: str, given: object, A: int) -> Probabilities:
    """The policy of an environment whose states have no numbers, as a function of the observation.

    >>> of_observations("behavior", [0.5, 0.5], 2)(np.zeros(4))
    array([0.5, 0.5])
    """
    if not callable(given):
        row = distributions(np.array(given, dtype=np.float64).reshape(1, -1), name)[0]
        if row.shape != (A,):
            raise ValueError(f"{name} must have one probability for each of {A} actions, got {len(row)}")
        return lambda observation: row

    def checked_function(observation: np.ndarray) -> Floats:
        p = np.asarray(given(observation), dtype=np.float64)
        if p.shape != (A,) or not (p >= 0).all() or not abs(p.sum() - 1.0) <= 1e-6:
            raise ValueError(
                f"{name} must give {A} probabilities that sum to 1, got {p!r} for the observation {observation!r}"
            )
        return p / p.sum()

    return checked_function


def extremes(policy: CodedPolicy, A: int) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest probability of each pair, whatever Q and the schedule are: a table's are its own."""
    if policy.kind == TABLE and policy.table.size:
        return policy.table, policy.table
    low, high = 0.0, 1.0  # of a softmax, and of an ε that changes
    if policy.kind == GREEDY and policy.form == CONSTANT:
        ε = policy.a
        low, high = ε / A, 1.0 - ε + ε / A
    return np.array([low]), np.array([high])


GREEDILY = EpsilonGreedy(0.0)
