"""What every run has, whatever agent learns: the base of the configurations in `config`. Nothing here needs JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

from offtrace.traces import Retrace, Rule, Trace

Check = tuple[Callable[[Any], bool], str]
"""Whether a value is right, and what it must be, in words."""
POSITIVE: Check = (lambda x: isinstance(x, int) and x >= 1, "a whole number ≥ 1")
NATURAL: Check = (lambda x: isinstance(x, int) and x >= 0, "a whole number ≥ 0")
SHARE: Check = (lambda x: 0.0 <= x <= 1.0, "within [0, 1]")
ABOVE_0: Check = (lambda x: x > 0, "above 0")
AT_LEAST_0: Check = (lambda x: x >= 0, "at least 0")


def checks(check: Check, *names: str) -> dict[str, Check]:
    """The same check for several fields."""
    return dict.fromkeys(names, check)


def one_of(*values: str) -> Check:
    """One of these texts."""
    quoted = [f'"{value}"' for value in values]
    return lambda x: x in values, f"{', '.join(quoted[:-1])} or {quoted[-1]}"


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

    checks: ClassVar[dict[str, Check]] = {
        **checks(POSITIVE, "frames", "envs"),
        "gamma": SHARE,
        "learning_rate": ABOVE_0,
        "hidden": (lambda x: all(n >= 1 for n in x), "whole numbers ≥ 1"),
        "sticky": (lambda x: x is None or 0 <= x < 1, "within [0, 1)"),
        "limit": (lambda x: x is None or x >= 1, "at least 1"),
    }
    """What values of fields must be; a subclass adds those of its own fields."""

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
        # A rule that lacks constants says so here, and not in the middle of a program.
        getattr(self.trace, "parameters", ())
        for cls in reversed(type(self).__mro__):
            for name, (holds, what) in vars(cls).get("checks", {}).items():
                self.require(name, holds(getattr(self, name)), what)

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

    def for_programs(self) -> Self:
        """Return the configuration as programs know it: when training ends, and the trace, are arguments of theirs.

        Another end compiles nothing again, and another rule `advance` alone.
        """
        return replace(self, trace=DEFAULT_TRACE, frames=self.begin + 1)

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

    checks: ClassVar = {"explore_frames": NATURAL, "policies": one_of("epsilon", "softmax")}

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
        right = (ABOVE_0[0], "above 0: it is the temperature of a softmax policy")
        for name in ("explore_epsilon", "behavior_epsilon", "target_epsilon"):
            holds, what = SHARE if self.policies == "epsilon" else right
            self.require(name, holds(getattr(self, name)), what)
