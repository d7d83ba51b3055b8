"""What every run has, whatever agent learns: the base of the configurations in `config`. Nothing here needs JAX."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

from offtrace.traces import Retrace, Rule, Trace

DEFAULT_TRACE = Retrace(lam=0.9)
"""The rule of an agent for which none is given, unless its own default is another."""

Spelt = dict[str, Any]
"""A configuration, or a run, as JSON has it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the configurations of all agents have in common. Frames are steps of the environment, counted for each seed.

    >>> from offtrace.deep import PQN, Settings
    >>> issubclass(PQN, Settings), PQN(game="CartPole-v1").agent
    (True, 'pqn')
    """

    agent: ClassVar[str] = ""
    """The name of the agent, as `--agent` and the declaration of a study take it."""
    home: ClassVar[str] = ""
    """The module of `offtrace.deep` and the class that learns, as "pqn:PQNAgent": imported when it is needed."""
    title: ClassVar[str] = ""
    """What the agent is, in a few words."""
    learns_online: ClassVar[bool] = False
    """Whether it learns with eligibility traces, step by step, so that the rule must have a β that can be fed so."""
    keeps_mu: ClassVar[bool] = False
    """Whether it keeps μ of all actions, as a rule that evaluates a mixture of π and μ needs it."""

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
    learning_rate: float = 1e-3
    """The step size of Adam."""
    hidden: tuple[int, ...] = (128,)
    """Units of the hidden layers."""
    sticky: float | None = None
    """The chance that the game repeats the last action. If it is not given it is 0.1 for MinAtar, as published, else 0."""
    limit: int | None = None
    """Steps after which an episode is truncated. If it is not given it is the game's own limit."""

    def __post_init__(self) -> None:
        if not isinstance(self.trace, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"trace must be an offtrace trace such as offtrace.RBIS(lam=0.9), got {self.trace!r}")
        if why := self.refusal(type(self.trace)):
            raise TypeError(f"{self.trace.title} cannot be learned with by the agent {self.agent!r}: {why}")
        getattr(
            self.trace, "parameters", ()
        )  # a rule that lacks constants says so here, not in the middle of a program
        self.require_whole(1, "frames", "envs")
        self.require_share("gamma")
        self.require("learning_rate", self.learning_rate > 0, "above 0")
        self.require("sticky", self.sticky is None or 0 <= self.sticky < 1, "within [0, 1)")
        self.require("limit", self.limit is None or self.limit >= 1, "at least 1")

    @classmethod
    def refusal(cls, rule: type[Rule]) -> str | None:
        """Say why this agent cannot learn with a rule; None if it can."""
        if rule.mixture and not cls.keeps_mu:
            return "it needs μ of all actions, and that is not kept"
        if rule.per_step:
            return "it holds a number for each step of one trajectory"
        if cls.learns_online and not (issubclass(rule, Trace) and rule.form == "normal"):
            return "step by step, a rule needs a β in normal form"
        return None

    def require(self, name: str, holds: bool, what: str) -> None:
        """Raise unless this holds of a field."""
        if not holds:
            raise ValueError(f"{name} must be {what}, got {getattr(self, name)!r}")

    def require_whole(self, least: int, *names: str) -> None:
        """Raise unless these fields are whole numbers of at least `least`."""
        for name in names:
            value = getattr(self, name)
            self.require(name, isinstance(value, int) and value >= least, f"a whole number ≥ {least}")

    def require_share(self, *names: str) -> None:
        """Raise unless these fields lie in [0, 1]."""
        for name in names:
            self.require(name, 0.0 <= getattr(self, name) <= 1.0, "within [0, 1]")

    def require_something_to_learn(self) -> None:
        """Raise if training would end before its first update."""
        if self.frames <= self.begin:
            raise ValueError(
                f"frames = {self.frames} leave nothing to learn: the first update comes after {self.begin:,} frames "
                f"(warm_up = {getattr(self, 'warm_up', 0)}): take more frames, or a smaller warm_up"
            )

    def for_programs(self) -> Self:
        """Return the configuration as programs know it: when training ends, and the trace, are arguments of theirs.

        Another end compiles nothing again, and another rule `advance` alone.
        """
        return replace(self, trace=DEFAULT_TRACE, frames=self.begin + 1)

    @property
    def memory_slots(self) -> int | None:
        """Steps that a replay memory holds of each copy of the game; None where there is no such memory."""
        return None

    @property
    def round(self) -> int:
        """Frames between two updates."""
        return self.envs

    @property
    def begin(self) -> int:
        """Frames before the first round."""
        return 0

    @property
    def end(self) -> int:
        """Frames after which training ends: the first number of at least `frames` at which an update has just been made."""
        return self.begin + -(-max(0, self.frames - self.begin) // self.round) * self.round

    @property
    def cures(self) -> str:
        """What to try if the loss is no longer finite."""
        return f"a smaller learning_rate (it is {self.learning_rate:g})"

    def spelt(self) -> Spelt:
        """Return the name of the agent and the fields, as JSON has them."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"agent": self.agent, **values, "trace": repr(self.trace), "hidden": list(self.hidden)}


@dataclass(frozen=True, kw_only=True)
class ActsByValues(Settings):
    """What agents have that act by the values of their network: the behaviour and the target policy."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole(0, "explore_frames")
        numbers = ("explore_epsilon", "behavior_epsilon", "target_epsilon")
        self.require("policies", self.policies in ("epsilon", "softmax"), '"epsilon" or "softmax"')
        if self.policies == "epsilon":
            self.require_share(*numbers)
        for name in numbers if self.policies == "softmax" else ():
            self.require(name, getattr(self, name) > 0, "above 0: it is the temperature of a softmax policy")
