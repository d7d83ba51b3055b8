"""What a trace is: a rule for the coefficient β of a trajectory's past, as three elementwise arrays.

For a trace that starts at step k (the normal form):

    x_{k:k} = 1,   x_{k:t} = ratio_t · x_{k:t-1}          (a *recursive* trace then clips it: x = min(cap_t, x))
    β_{k:k} = 1,   β_{k:t} = (decay_{k+1} ··· decay_t) · min(cap_t, x_{k:t})

A rule states `decay`, `ratio` and `cap` from the probabilities of the actions taken, in operators and
`xp.where / minimum / maximum` only; every backend, the streaming traces and the exact operators use those same lines.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

INFINITY = float("inf")


class Factors(NamedTuple):
    """The normal form of a rule on a batch: numbers, or arrays of the batch's shape."""

    decay: Any
    ratio: Any
    cap: Any


@dataclass(frozen=True)
class Rule:
    """Anything that `targets` accepts, with what one may ask of it before using it."""

    title: ClassVar[str] = ""
    """The name to print."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names under which `offtrace.trace` finds it."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Which of "pi", "mu", "rho" the rule looks at. "rho" alone accepts densities; "pi" and "mu" are probabilities."""
    citation: ClassVar[str] = ""
    """How to cite the rule."""

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

    horizon: int | None = field(default=None, kw_only=True)
    """β is 0 from this lag on; None means no limit."""

    recursive: ClassVar[bool] = False
    """Whether x itself is clipped at the cap, so that a clipped trace goes on from the cap."""
    per_decision: ClassVar[bool] = True
    """Whether β factors into one coefficient per decision (a Markov trace): then no cap acts, and none is looked at."""
    recursive_condition: ClassVar[bool | None] = None
    """Whether β_t ≤ β_{t-1} ρ_t for every history, which makes evaluation a contraction. None: not known."""

    def __post_init__(self) -> None:
        if self.horizon is not None and (not isinstance(self.horizon, int) or self.horizon < 1):
            raise ValueError(f"horizon must be None or an integer of at least 1, got {self.horizon!r}")
        lam = getattr(self, "lam", None)
        if isinstance(lam, Real):
            require_between("lam", lam, 0.0, 1.0)
        if self.per_decision and type(self) not in _registered and self._has_cap():
            raise TypeError(f"{type(self).__name__} has a cap, so it is not per-decision: set per_decision = False")

    def _has_cap(self) -> bool:
        """Whether a cap shows at one of a few probabilities. A rule that hides it from all of them is not found out."""
        if self.recursive:
            return True
        if type(self).factors is Trace.factors or not all(isinstance(p, Real | np.ndarray) for p in self.parameters):
            return False
        caps = [self.factors(np, pi, mu, pi / mu, *self.parameters)[2] for pi in (0.1, 0.9) for mu in (0.1, 0.9)]
        return bool(np.min(caps) < INFINITY)

    @property
    def lag_bound(self) -> tuple[float, ...] | None:
        """A bound on x for lags 1, 2, …, the last one holding for all later lags; None where the rule has none."""
        return None

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The numbers that `factors` takes after ρ, in its order (an array [T] or [B, T] where one changes with the step)."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.name != "horizon")

    @staticmethod
    def factors(*arguments: Any, **named: Any) -> Any:
        """`factors(xp, pi, mu, rho, *parameters)` → decay, ratio, cap, elementwise. What it does not read is meaningless."""
        raise TypeError("this trace has no normal form: define `factors`, or derive from StepTrace")

    def normal_form(self, xp: Any, pi: Any, mu: Any, rho: Any) -> Factors:
        """The factors of this very trace."""
        return Factors(*self.factors(xp, pi, mu, rho, *self.parameters))


def require_between(name: str, value: Any, low: float, high: float) -> None:
    """Raise unless low ≤ value ≤ high (NaN is refused too)."""
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}")


R = TypeVar("R", bound=type[Rule])

_rules: dict[str, type[Rule]] = {}
_registered: set[type[Rule]] = set()


def _key(name: str) -> str:
    """One spelling for all: "Non-Markov Retrace", "non_markov_retrace" and "NonMarkovRetrace" are the same."""
    return re.sub(r"[^a-z0-9λσα]", "", name.lower())


def register(cls: R) -> R:
    """Let `trace` find the class by its name, its title and its aliases."""
    for name in (cls.__name__, cls.title, *cls.aliases):
        _rules[_key(name)] = cls
    _registered.add(cls)
    return cls


def rules() -> list[type[Rule]]:
    """All registered rules, in the order of their definition."""
    return list(dict.fromkeys(_rules.values()))


def trace(name: str, **parameters: Any) -> Any:
    """Find a rule by its name or an alias, and make it.

    >>> trace("non-markov retrace", lam=0.9)
    NonMarkovRetrace(horizon=None, lam=0.9)
    >>> trace("recursive retrace").lam
    1.0
    """
    cls = _rules.get(_key(name))
    if cls is None:
        near = difflib.get_close_matches(_key(name), _rules, n=1, cutoff=0.5)
        hint = f"; did you mean {_rules[near[0]].title!r}?" if near else "."
        known = ", ".join(sorted(rule.title for rule in rules()))
        raise ValueError(f"there is no trace named {name!r}{hint} Known: {known}")
    allowed = [f.name for f in fields(cls)]
    for given in parameters:
        if given not in allowed:
            near = difflib.get_close_matches(given, allowed, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"{cls.__name__} has no parameter {given!r}{hint} It takes: {', '.join(allowed)}")
    return cls(**parameters)
