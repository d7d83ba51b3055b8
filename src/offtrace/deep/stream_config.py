"""The configurations of agents that learn in a stream."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

from offtrace.deep.settings import ActsByValues, Settings
from offtrace.traces import Retrace, Rule, WatkinsQ

OF_STREAMS = WatkinsQ(lam=0.8)
"""The rule of streams of action values as published."""
OF_ACTORS = Retrace(lam=0.8)
"""That of an actor may be any with this λ, since its ρ is 1."""


@dataclass(frozen=True, kw_only=True)
class Streaming(Settings):
    """What agents have that learn in a stream: from every step once, as it comes, with eligibility traces of gradients."""

    learns_online: ClassVar = True

    trace: Rule = OF_STREAMS
    """The rule that makes the eligibility traces."""
    envs: int = 1
    """How many copies of the game are played side by side: one, since a stream is one."""
    learning_rate: float = 1.0
    """The largest step size: ObGD takes it, or less."""
    sparsity: float = 0.9
    """The share of the weights into each unit that begin at 0."""
    normalize: bool = True
    """Observations and rewards are normalised by their running moments."""
    groups: int = 128
    """Gradients that are kept apart where the rule has a cap or a horizon: each takes as much memory as the network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("envs", self.envs == 1, "1: a stream is one copy of the game; several seeds run side by side")
        self.require_whole(1, "groups")
        self.require("sparsity", 0 <= self.sparsity < 1, "within [0, 1)")

    def for_programs(self) -> Self:
        """Leave the kind of the rule, on which depends what is kept, and take out its λ, which is an argument of programs."""
        has_lam = "lam" in (f.name for f in fields(self.trace))
        return replace(self, trace=replace(self.trace, lam=0.9) if has_lam else self.trace, frames=1)


@dataclass(frozen=True, kw_only=True)
class StreamingValues(Streaming, ActsByValues):
    """What agents have that learn action values in a stream."""

    behavior_epsilon: float = 0.01
    """The ε, or the temperature, of the behaviour policy after `explore_frames` frames."""
    target_epsilon: float = 0.0
    """The ε, or the temperature, of the target policy."""


@dataclass(frozen=True, kw_only=True)
class StreamQ(StreamingValues):
    """Stream Q(λ) (Elsayed et al. 2024), with any rule that has a β: the trajectory-aware ones are exact, too.

    >>> from offtrace.deep import StreamQ
    >>> StreamQ(game="CartPole-v1").trace.title
    "Watkins' Q(λ)"
    """

    agent: ClassVar = "stream-q"
    home: ClassVar = "streaming:StreamQAgent"
    title: ClassVar = "Stream Q(λ): learns from each step as it comes, with eligibility traces of gradients and ObGD"

    overshooting: float = 2.0
    """κ of ObGD: the larger, the smaller the steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("overshooting", self.overshooting > 0, "above 0")


@dataclass(frozen=True, kw_only=True)
class StreamAC(Streaming):
    """Stream AC(λ) (Elsayed et al. 2024): an actor and a critic of state values. It acts by its own policy, so that ρ = 1.

    >>> from offtrace.deep import StreamAC
    >>> StreamAC(game="CartPole-v1").entropy_cost
    0.01
    """

    agent: ClassVar = "stream-ac"
    home: ClassVar = "streaming:StreamACAgent"
    title: ClassVar = "Stream AC(λ): an actor and a critic that learn from each step as it comes"

    trace: Rule = OF_ACTORS
    """The rule that makes the eligibility traces."""
    overshooting: float = 2.0
    """κ of ObGD: the larger, the smaller the steps."""
    actor_overshooting: float = 3.0
    """κ of the actor's ObGD."""
    entropy_cost: float = 0.01
    """τ: how much the actor's entropy counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("overshooting", "actor_overshooting"):
            self.require(name, getattr(self, name) > 0, "above 0")
        self.require("entropy_cost", self.entropy_cost >= 0, "at least 0")


@dataclass(frozen=True, kw_only=True)
class QRC(StreamingValues):
    """QRC(λ) (Elelimy et al. 2025): gradient TD in a stream. A second network h estimates δ, and corrects the gradient.

    >>> from offtrace.deep import QRC
    >>> QRC(game="CartPole-v1").regularization
    1.0
    """

    agent: ClassVar = "qrc"
    home: ClassVar = "qrc:QRCAgent"
    title: ClassVar = "QRC(λ): gradient TD in a stream, with a second network and traces of its values and gradients"

    learning_rate: float = 1e-3
    """The step size of Adam for the network of values."""
    h_rate: float = 1.0
    """The step size of the second network h, as a multiple of `learning_rate`."""
    regularization: float = 1.0
    """How strongly the weights of h are drawn to 0; with 0 it is QC(λ)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("h_rate", self.h_rate > 0, "above 0")
        self.require("regularization", self.regularization >= 0, "at least 0")
