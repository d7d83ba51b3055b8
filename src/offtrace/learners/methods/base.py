"""What a learning method is: the trace whose eligibility vector it uses, what it keeps for each weight, and one step.

The loop acts, keeps the eligibility vector e_t of the trace (z_t in the paper), and computes

    δ_t = r_t + γ Σ_a π(a|s_{t+1}) q(s_{t+1}, a) − q(s_t, a_t)

A method says what then happens to the weights. Vectors with one number for each weight are dense arrays; e_t and the features
φ are nearly all 0, and come as `Sparse`. `dot` and `add` are all that most methods need, so that a step reads like its
equations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np

from offtrace.learners.core.compiling import both
from offtrace.learners.core.records import Floats, Integers
from offtrace.traces import Trace


class Sparse(NamedTuple):
    """A vector with one number for each weight, nearly all of them 0. A weight that is named twice has the sum."""

    weights: Integers
    numbers: Floats


class Transition(Protocol):
    """One step of the environment, and what the learner made of it: the fields of `core.memory.TRANSITION`."""

    state: int
    action: int
    next_state: int
    terminated: int
    reward: float
    delta: float
    """δ, with the q before this step."""
    gamma: float
    discount: float
    """γ, but 0 at the first step of an episode."""
    alpha: float
    pi: float
    """π(a|s); the greedy policy's, where the trace reads that."""
    mu: float
    """μ(a|s)."""


@both
def dot(w: Floats, x: Sparse) -> float:
    """w · x."""
    total = 0.0
    for i in range(len(x.weights)):
        total += w[np.uintp(x.weights[i])] * x.numbers[i]
    return total


@both
def add(w: Floats, c: float, x: Sparse) -> None:
    """w ← w + c x."""
    for i in range(len(x.weights)):
        w[np.uintp(x.weights[i])] += c * x.numbers[i]


@dataclass(frozen=True)
class Method(ABC):
    """A learning method: `evaluate` and `control` take one wherever they take a trace.

    A subclass is a frozen dataclass of its parameters. It states `title`, `trace` and `step`, and, where it has them,
    `further` and `numbers`. `step` is compiled by Numba: it may use numbers, arrays, `dot` and `add`.

    >>> import offtrace as ot
    >>> from offtrace.learners import GQ
    >>> GQ(ot.Retrace(lam=0.9)).further  # what it keeps beside the weights
    ('w',)
    """

    further: ClassVar[tuple[str, ...]] = ()
    """The names of the weights that it keeps beside θ, as many as θ has. They are 0 at first, and last as long as θ does."""
    in_loop: ClassVar[bool] = False
    """Whether the compiled loop has this step in itself: then it is fast, and learns offline, from replay and by visits too."""
    follows_operator: ClassVar[bool] = False
    """Whether it does in expectation what the trace's operator does, so that `certify` tells where it converges."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name in a report."""

    @property
    @abstractmethod
    def trace(self) -> Trace:
        """The trace whose eligibility vector it uses."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """The parameters that `step` is given, in this order."""
        return ()

    @staticmethod
    @abstractmethod
    def step(t: Transition, θ: Floats, further: Floats, numbers: Floats, e: Sparse, φ: Sparse, φ_next: Sparse) -> None:
        """Change θ [size] and `further` [n, size] in place.

        φ are the features of (s, a), and `φ_next` = Σ_a' π(a'|s') φ(s', a'), empty where the episode has terminated.
        """

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> Self:
        """The same with the constants that depend on the policies, where it has such: see `Trace.for_policies`."""
        return self
