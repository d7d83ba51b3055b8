"""The configuration of a run: one frozen dataclass, from which the command line is made, too."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from offtrace.traces import Retrace, Rule

DEFAULT_TRACE = Retrace(lam=0.9)
"""The rule of an agent for which none is given."""

Spelt = dict[str, Any]
"""A configuration, or a run, as JSON has it."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run depends on, except its seeds. Frames are steps of the environment, counted for each seed.

    >>> from offtrace.deep import Config
    >>> config = Config(game="minatar/breakout", frames=60_000)
    >>> config.end  # in whole updates
    60032
    """

    game: str
    """"minatar/breakout", a gymnax environment such as "CartPole-v1", or "gym/" and the id of a Gymnasium environment."""
    trace: Rule = DEFAULT_TRACE
    """The rule that makes the targets."""
    frames: int = 5_000_000
    """How long to train, the warm-up included: rounded up to whole updates, and `end` says to what."""
    gamma: float = 0.99
    """The discount γ."""
    envs: int = 64
    """How many copies of the game are played side by side."""
    every: int = 64
    """Frames between two updates: a multiple of `envs`."""
    batch: int = 32
    """Sequences in an update."""
    length: int = 32
    """Steps in a sequence."""
    burn_in: int = 0
    """Steps at a sequence's beginning that are not learned from."""
    capacity: int = 100_000
    """Frames that the memory holds, shared evenly by the copies of the game."""
    warm_up: int = 5_000
    """Frames before the first update."""
    minibatches: int = 1
    """Above 1 it is DQN(λ): the targets of `batch` sequences are computed together, and learned from in so many pieces."""
    learning_rate: float = 1e-3
    """The step size of Adam."""
    clip: float = 10.0
    """The largest norm that a gradient may have; 0 lets it have any."""
    loss: Literal["huber", "squared"] = "huber"
    """The loss of target − q."""
    double: bool = True
    """Double estimation: π comes from the network of now, its values from the target network."""
    target_every: int = 200
    """Updates between two moves of the target network towards the network."""
    target_rate: float = 1.0
    """How far the target network moves: 1 makes it a copy, less an exponential average."""
    policies: Literal["epsilon", "softmax"] = "epsilon"
    """The policies: ε-greedy with the next three numbers as ε, or softmax with them as temperatures."""
    explore_epsilon: float = 1.0
    """The ε, or the temperature, of the behaviour policy at first."""
    behavior_epsilon: float = 0.1
    """The ε, or the temperature, of the behaviour policy after `explore_frames` frames."""
    target_epsilon: float = 0.05
    """The ε, or the temperature, of the target policy."""
    explore_frames: int = 100_000
    """Frames in which the behaviour policy goes from `explore_epsilon` to `behavior_epsilon`, linearly."""
    priority: float = 0.0
    """Sequences are drawn in proportion to |TD error|^priority of their first step; with 0, uniformly."""
    correction: float = 0.4
    """How much of that preference is taken back in the loss: (N P)^−correction."""
    hidden: tuple[int, ...] = (128,)
    """Units of the hidden layers."""
    sticky: float | None = None
    """The chance that the game repeats the last action. If it is not given it is 0.1 for MinAtar, as published, else 0."""
    limit: int | None = None
    """Steps after which an episode is truncated. If it is not given it is the game's own limit."""

    def __post_init__(self) -> None:
        if not isinstance(self.trace, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"trace must be an offtrace trace such as offtrace.RBIS(lam=0.9), got {self.trace!r}")
        if self.trace.mixture or self.trace.per_step:
            raise TypeError(
                f"{self.trace.title} cannot learn from this memory: it needs μ of all actions, or a λ for each step"
            )
        getattr(
            self.trace, "parameters", ()
        )  # a rule that lacks constants says so here, not in the middle of a program
        for name in ("frames", "envs", "every", "batch", "length", "capacity", "minibatches", "target_every"):
            self._require(name, isinstance(getattr(self, name), int) and getattr(self, name) >= 1, "a whole number ≥ 1")
        for name in ("burn_in", "warm_up", "explore_frames"):
            self._require(name, isinstance(getattr(self, name), int) and getattr(self, name) >= 0, "a whole number ≥ 0")
        policies = ("explore_epsilon", "behavior_epsilon", "target_epsilon")
        for name in ("gamma", "priority", "correction", *(policies if self.policies == "epsilon" else ())):
            self._require(name, 0.0 <= getattr(self, name) <= 1.0, "within [0, 1]")
        self._require("target_rate", 0 < self.target_rate <= 1, "within (0, 1]")
        self._require("learning_rate", self.learning_rate > 0, "above 0")
        self._require("clip", self.clip >= 0, "at least 0")
        self._require("loss", self.loss in ("huber", "squared"), '"huber" or "squared"')
        self._require("policies", self.policies in ("epsilon", "softmax"), '"epsilon" or "softmax"')
        if self.policies == "softmax":
            for name in policies:
                self._require(name, getattr(self, name) > 0, "above 0: it is the temperature of a softmax policy")
        self._require("sticky", self.sticky is None or 0 <= self.sticky < 1, "within [0, 1)")
        self._require("limit", self.limit is None or self.limit >= 1, "at least 1")
        self._require("every", self.every % self.envs == 0, f"a multiple of envs = {self.envs}, which step together")
        self._require(
            "minibatches",
            (self.batch * self.length) % self.minibatches == 0,
            f"a divisor of batch × length = {self.batch * self.length}",
        )
        if self.frames <= self.begin:
            raise ValueError(
                f"frames = {self.frames} leave nothing to learn: the first update comes after {self.begin:,} frames "
                f"(warm_up = {self.warm_up}): take more frames, or a smaller warm_up"
            )
        if self.slots < self.window + 1:
            raise ValueError(
                f"the memory is too small: capacity = {self.capacity} frames for envs = {self.envs} leave {self.slots} steps "
                f"for each, but a sequence takes burn_in + length = {self.burn_in + self.length}, the observation "
                f"after it, and the step that is being written: take capacity ≥ {self.envs * (self.window + 1)}, a "
                f"shorter length, or fewer envs"
            )

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"{name} must be {what}, got {getattr(self, name)!r}")

    @property
    def slots(self) -> int:
        """Steps that the memory holds of each copy of the game."""
        return self.capacity // self.envs

    @property
    def window(self) -> int:
        """Observations in a sequence: one more than steps, since the last one's next observation is needed."""
        return self.burn_in + self.length + 1

    @property
    def round(self) -> int:
        """Frames between two draws from the memory."""
        return self.every * self.minibatches

    @property
    def begin(self) -> int:
        """Frames before the first update: `warm_up`, or as many as a sequence takes, in whole steps of all copies of the game."""
        return -(-max(self.warm_up, self.envs * self.window) // self.envs) * self.envs

    @property
    def end(self) -> int:
        """Frames after which training ends: the first number of at least `frames` at which an update has just been made."""
        return self.begin + -(-max(0, self.frames - self.begin) // self.round) * self.round

    def spelt(self) -> Spelt:
        """Return the fields as JSON has them."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "trace": repr(self.trace), "hidden": list(self.hidden)}
