"""What a learning method is: the trace whose eligibility vector it uses, what it keeps, and one step.

The loop acts, keeps the eligibility vector e_t of the trace (z_t in the paper), and computes

    action values    δ_t = r_t + γ Σ_a π(a|s_{t+1}) q(s_{t+1}, a) − q(s_t, a_t)        e_t = Σ_k γ^{t-k} β_{k:t} φ(s_k, a_k)
    state values     δ_t = r_t + γ v(s_{t+1}) − v(s_t)                                 e_t = Σ_k γ^{t-k} b_{k:t-1} φ(s_k)

with b as in `state_targets`: on state values δ_t e_t is to be multiplied by ρ_t, and what the literature calls z_t is ρ_t e_t. A
method says what then happens to the weights. Vectors that a method keeps are dense arrays; e_t and the features φ are nearly
all 0, and come as `Sparse`. With `dot` and `add` for these, and `decay`, `inner` and `plus` for the method's own traces, a step
reads like its equations.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from offtrace.learners.arrays import Floats, Integers, inline_fma, record
from offtrace.learners.eligibility import TINY, Sparse
from offtrace.learners.policies import Schedule, checked, positive_schedule
from offtrace.traces import ImportanceSampling, Trace

StepSize = float | Schedule | Literal["1/N"]
"""A number, a schedule, or "1/N": one over the visits."""
Values = Literal["action", "state"]


class Transition(Protocol):
    """One step of the environment, and what the learner computed from it: one record TRANSITION."""

    state: int
    action: int
    next_state: int
    terminated: int
    reward: float
    delta: float
    """δ, with the values before this step."""
    gamma: float
    discount: float
    """γ, but 0 at the first step of an episode."""
    alpha: float
    pi: float
    """π(a|s); the greedy policy's, where the trace reads that."""
    mu: float
    """μ(a|s)."""
    rho: float
    """π(a|s) / μ(a|s)."""
    ratio: float
    """On state values what δ carries: ρ, or what the trace makes of it (`Trace.delta_ratio`). 1 on action values."""
    value: float
    """q(s, a), or v(s)."""
    next_value: float
    """What δ bootstraps from: 0 where the episode has terminated."""
    expected: float
    """Σ_a π(a|s) q(s, a), for methods that say `expects`."""


_DTYPES = {"int": np.int64, "float": np.float64}
TRANSITION = record(**{name: _DTYPES[str(kind)] for name, kind in Transition.__annotations__.items()})


class Store(NamedTuple):
    """What a learner keeps, for its step to change in place."""

    θ: Floats
    """[size]: the weights."""
    further: Floats
    """[n, size]: see `Method.further`."""
    traces: Floats
    """[n, size]: see `Method.traces`."""
    active: Integers
    """The weights for which `traces` may not be 0. Those of φ are among them."""
    scalars: Floats
    """[n]: see `Method.scalars`."""
    numbers: Floats
    """`Method.numbers`."""


class Vectors(NamedTuple):
    """The vectors of one step."""

    e: Sparse
    """The eligibility vector of the trace, this step's start included."""
    on: Sparse
    """The eligibility after decay. On state values γ times what remains of e after the action of this step: the next e is this
    plus the next φ. On action values Σ_a' μ(a'|s') c(s', a') φ(s', a'), c the trace's coefficient, for methods that say
    `passes_on`."""
    φ: Sparse
    """The features of (s, a), or of s."""
    φ_next: Sparse
    """Σ_a' π(a'|s') φ(s', a'), or φ(s'); empty where the episode has terminated."""


@inline_fma
def dot(w: Floats, x: Sparse) -> float:
    """w · x."""
    total = 0.0
    for i in range(len(x.weights)):
        total += w[np.uintp(x.weights[i])] * x.numbers[i]
    return total


@inline_fma
def add(w: Floats, c: float, x: Sparse) -> None:
    """w ← w + c x."""
    for i in range(len(x.weights)):
        w[np.uintp(x.weights[i])] += c * x.numbers[i]


@inline_fma
def decay(z: Floats, c: float, active: Integers) -> None:
    """z ← c z, for a trace of the method."""
    for i in range(len(active)):
        w = np.uintp(active[i])
        new = c * z[w]
        z[w] = new if abs(new) > TINY else 0.0


@inline_fma
def inner(w: Floats, z: Floats, active: Integers) -> float:
    """w · z, for a trace of the method."""
    total = 0.0
    for i in range(len(active)):
        total += w[np.uintp(active[i])] * z[np.uintp(active[i])]
    return total


@inline_fma
def plus(w: Floats, c: float, z: Floats, active: Integers) -> None:
    """w ← w + c z, for a trace of the method."""
    for i in range(len(active)):
        w[np.uintp(active[i])] += c * z[np.uintp(active[i])]


def number(default: float, **limits: float) -> Any:
    """A parameter of a method that is one number within `limits`, as `policies.checked` takes them."""
    return field(default=default, metadata={"low": 0.0, **limits})


@dataclass(frozen=True)
class Method(ABC):
    """A learning method: `evaluate`, `control` and `follow` take one, the first two wherever they take a trace.

    A subclass is a frozen dataclass of its parameters. It states `name` or `title`, `trace` and `step`, and, where it has them,
    `further`, `traces`, `scalars` and `numbers`. `step` is compiled by Numba: it may use numbers, arrays and the functions of
    this module.

    >>> import offtrace as ot
    >>> from offtrace.learners import GQ
    >>> GQ(0.9).further  # what it stores besides the weights
    ('w',)
    """

    alpha: StepSize | None = field(default=None, kw_only=True)
    """The step size: a number, a schedule, or "1/N". None: that of the call."""

    values: ClassVar[Values] = "action"
    """Whether it learns q(s, a) or v(s)."""
    further: ClassVar[tuple[str, ...]] = ()
    """The names of the weights that it stores besides θ, as many as θ has. They are 0 at first, and last as long as θ does."""
    traces: ClassVar[tuple[str, ...]] = ()
    """The names of vectors, of the size of θ, that are 0 again when an episode begins. Only features φ may enter them."""
    scalars: ClassVar[tuple[str, ...]] = ()
    """The names of numbers that are 0 again when an episode begins."""
    step_reads: ClassVar[tuple[str, ...]] = ()
    """The names of the parameters that `step` is given as `numbers`."""
    uses_trace: ClassVar[bool] = True
    """Whether `step` reads the eligibility vector e of `trace`."""
    sampled: ClassVar[bool] = False
    """Whether δ bootstraps from q(s', a') of the next action taken, as Sarsa does. φ_next are then its features."""
    expects: ClassVar[bool] = False
    """Whether `step` reads `t.expected`."""
    passes_on: ClassVar[bool] = False
    """Whether `step` reads `x.on` on action values. The trace must have one coefficient for each decision."""
    on_policy: ClassVar[bool] = False
    """Whether it learns about the policy that acts: then no other target may be given."""
    in_loop: ClassVar[bool] = False
    """Whether the compiled loop has this step in itself: then it is fast, and learns offline, from replay and by visits too."""
    uncorrected: ClassVar[bool] = False
    """Whether it is one of the returns that have no operator: see `UncorrectedLearner`."""

    name: ClassVar[str] = ""
    """How tables print it, such as "GTD(λ)", and a name under which `learners.method` finds it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names under which `learners.method` finds it."""
    equation: ClassVar[str] = ""
    """What a step does, in one line."""
    citation: ClassVar[str] = ""
    """Authors (year), work; several are separated by a semicolon."""
    proven: ClassVar[str] = ""
    """What is proven of it, in a few words."""
    needs: ClassVar[str] = ""
    """What it needs besides a trajectory, in a few words."""
    call: ClassVar[str] = ""
    """One line that makes it, as tables print it; "" for its first alias with typical numbers."""

    def __post_init__(self) -> None:
        if self.alpha is not None and self.alpha != "1/N":
            positive_schedule(self.alpha)
        for f in fields(self):
            if f.metadata:
                object.__setattr__(self, f.name, checked(f.name, getattr(self, f.name), **f.metadata))

    @property
    def title(self) -> str:
        """Its name in a report: the name with the numbers of its letters, or else the name of the class."""
        title = self.name or type(self).__name__
        for letter, parameter in (("λ", "lam"), ("ζ", "zeta"), ("β", "beta")):
            title = title.replace(letter, f"{{{parameter}:g}}")
        return title.format(**{name: getattr(self, name) for name in self.parameters()})

    @property
    @abstractmethod
    def trace(self) -> Trace:
        """The trace whose eligibility vector it uses, or that stands for it where its own traces do the work."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """The parameters that `step` is given, in this order: those that `step_reads` names."""
        return tuple(float(getattr(self, name)) for name in self.step_reads)

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """Change what `m` holds, in place: one step of the environment is `t`, and its vectors are `x`.

        A method without a `step` does that of Algorithm 1, θ ← θ + α ρ̄ δ e, where ρ̄ is 1 on action values.
        """
        add(m.θ, t.alpha * t.ratio * t.delta, x.e)

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> Self:
        """The same with the constants that depend on the policies, where it has such: see `Trace.for_policies`."""
        return self

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """The names of what its constructor takes."""
        return tuple(f.name for f in fields(cls))


@dataclass(frozen=True)
class RuleMethod(Method):
    """A method that goes with one rule, which takes what the method and the rule both have as parameters."""

    rule: ClassVar[Callable[..., Trace]] = ImportanceSampling
    """The trace that the method uses, or the one that it has in expectation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.trace  # checks its parameters

    @property
    def trace(self) -> Trace:
        """The rule with the parameters of this method."""
        rule: Any = type(self).rule
        return rule(**{f.name: getattr(self, f.name) for f in fields(rule) if f.name in self.parameters()})


@dataclass(frozen=True)
class LambdaMethod(RuleMethod):
    """The same with one λ."""

    lam: float = 1.0

    step_reads: ClassVar[tuple[str, ...]] = ("lam",)


M = TypeVar("M", bound=type[Method])
listed: dict[str, type[Method]] = {}
"""All methods by their names and aliases."""


def key(name: str) -> str:
    """One spelling for all: "V-trace(λ)", "v trace λ" and "Vtraceλ" are the same.

    >>> key("V-trace(λ)")
    'vtraceλ'
    """
    return re.sub(r"[^a-z0-9α-ω]", "", name.lower())


def register_method(cls: M) -> M:
    """List a method: `method` finds it by its `name`, its class name and its aliases. Use it above `@dataclass`.

    A name that another method has is refused. The same class, imported again, replaces the old one.

    >>> from offtrace.learners import GQ, register_method
    >>> register_method(GQ) is GQ
    True
    """
    if not cls.name:
        raise TypeError(f"{cls.__name__} needs a `name`, by which it is looked up and printed")
    names = [key(name) for name in (cls.__name__, cls.name, *cls.aliases)]
    for name in names:
        other = listed.get(name, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"the name {name!r} of {cls.__name__} belongs to {other.__name__} already: choose another")
    listed.update(dict.fromkeys(names, cls))
    return cls


def unregister_method(cls: type[Method]) -> None:
    """Take a method from the list again, for instance after a test.

    >>> from offtrace.learners import GQ, register_method, unregister_method
    >>> unregister_method(GQ)
    >>> _ = register_method(GQ)
    """
    for name in [name for name, other in listed.items() if other is cls]:
        del listed[name]


def listed_methods() -> list[type[Method]]:
    """All listed methods, in the order in which they were listed. The traces by themselves are not among them.

    >>> from offtrace.learners import listed_methods
    >>> [m.name for m in listed_methods() if m.on_policy and m.values == "state"]
    ['True online TD(λ)']
    """
    return list(dict.fromkeys(listed.values()))
