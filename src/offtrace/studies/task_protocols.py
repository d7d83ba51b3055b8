"""How each task is run: the numbers of its protocol, with their meaning and their limits."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from typing import Any, Self

from offtrace.deep.config import Config
from offtrace.studies import declared_policies
from offtrace.studies.declaration_checks import Check, DeclarationError, Table, Toml, like, number, one_of, table, whole
from offtrace.traces import Rule

# ruff: noqa: RUF009 (`key` makes a field)


def key(check: Check[object], default: object = MISSING) -> Any:
    """A key of a protocol, its check and, if it may be left out, its default."""
    return field(metadata={"check": check}) if default is MISSING else field(default=default, metadata={"check": check})


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What the protocols of all tasks have in common."""

    @classmethod
    def made(cls, at: str, given: Toml) -> Self:
        """Make a protocol of a table of the declaration, after checking each key."""
        values = cls.checked(at, given)
        for f in fields(cls):
            if f.default is MISSING and f.name not in values:
                raise DeclarationError(f"{at}.{f.name}", None, "a value: this key is needed")
        return cls(**values)

    def with_changes(self, at: str, given: Toml) -> Self:
        """The same, but for these keys."""
        return replace(self, **self.checked(at, given))

    @classmethod
    def checked(cls, at: str, given: object) -> Table:
        """The keys that are given, each checked."""
        checks = {f.name: f.metadata["check"] for f in fields(cls)}
        return {name: checks[name](f"{at}.{name}", value) for name, value in table(at, given, checks).items()}


@dataclass(frozen=True, kw_only=True)
class Learning(Protocol):
    """Common to all tasks that learn."""

    steps: int = key(whole(1))
    """How long a learner learns."""
    limit: int = key(whole(0), 0)
    """Episodes are truncated after so many steps; 0: never."""
    q0: float = key(number(-1e300, 1e300), 0.0)
    """The first value of every Q(s, a)."""
    spread: float = key(number(), 0.0)
    """The standard deviation of the noise in Q to begin with."""
    update: str = key(one_of("online", "offline", "replay"), "online")
    """When Q changes: at each step, at the end of an episode, or from a buffer."""
    capacity: int = key(whole(1), 10_000)
    """Steps that the buffer holds. This and the next three are used with update = "replay"."""
    every: int = key(whole(1), 1)
    """Steps between two draws from the buffer."""
    batch: int = key(whole(1), 1)
    """The number of sequences in a draw."""
    length: int = key(whole(1), 32)
    """Steps in a sequence, at most."""

    @property
    def cost(self) -> float:
        """How much work a learner is, roughly."""
        return self.steps * (1.0 + self.batch * self.length / self.every if self.update == "replay" else 1.0)


@dataclass(frozen=True, kw_only=True)
class Control(Learning):
    """Learn towards Q*, all policies ε-greedy in the current Q."""

    behavior: float = key(number(0, 1), 0.2)
    """ε of the behaviour policy."""
    target: float = key(number(0, 1), 0.1)
    """ε of the target policy."""
    evaluation: float = key(number(0, 1), 0.05)
    """ε of the evaluation episodes, one of which follows each training episode."""
    explore: int = key(whole(0), 0)
    """For so many episodes at first the behaviour is uniform."""
    evaluation_limit: int = key(whole(1), 1000)
    """Steps in an evaluation episode, at most."""
    window: int = key(whole(1), 100)
    """Over how many evaluation episodes the learning curve is averaged."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Learning):
    """Learn Q^π from what μ does."""

    behavior: declared_policies.Declared = key(declared_policies.declared_policy)
    """μ."""
    target: declared_policies.Declared = key(declared_policies.declared_policy)
    """π."""


@dataclass(frozen=True, kw_only=True)
class Replay(Learning):
    """Learn Q^π of the policy of now from what the policy of `age` updates ago did."""

    updates: int = key(whole(1), 50)
    """How many updates made the policy of now."""
    rate: float = key(number(0, 1, above=True), 0.1)
    """The step size of an update, Q + rate (T* Q − Q)."""
    temperature: float = key(number(above=True), 0.1)
    """The temperature of the softmax policies."""


@dataclass(frozen=True, kw_only=True)
class Map(Protocol):
    """Compute the operator."""

    behavior: declared_policies.Declared = key(declared_policies.declared_policy, "random")
    """μ; a random one without a seed is drawn for each seed."""
    target: declared_policies.Declared = key(declared_policies.declared_policy, "random")
    """π; likewise."""
    tolerance: float = key(number(above=True), 1e-3)
    """How far apart the bounds of the contraction may be."""

    @property
    def cost(self) -> float:
        """How much work an operator is, roughly."""
        return 1.0


class _Deep(Protocol):
    """Train a deep agent. The keys are those of `deep.Config`, which also checks them together."""

    @property
    def cost(self) -> float:
        """How much work a run is, roughly: a step that is learned from costs about three that are played."""
        p: Any = self
        return p.frames * (1.0 + 3.0 * p.batch * (p.burn_in + p.length) / p.every)

    def config(self, game: str, trace: Rule, age: int) -> Config:
        """The configuration of a run: the age of the data is as many frames as the memory holds."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # pyright: ignore[reportArgumentType]
        return Config(game=game, trace=trace, capacity=age, **values)


# Written out, so that a new key of Config does not change what a declared study is.
DEEP = (
    *(
        "frames",
        "gamma",
        "envs",
        "every",
        "batch",
        "length",
        "burn_in",
        "warm_up",
        "minibatches",
        "learning_rate",
        "clip",
    ),
    *("loss", "double", "target_every", "policies", "explore_epsilon", "behavior_epsilon", "target_epsilon"),
    *("explore_frames", "priority"),
    *("correction", "hidden", "sticky", "limit"),
)
Deep = make_dataclass(
    "Deep",
    [(f.name, Any, key(like(f.default), f.default)) for f in fields(Config) if f.name in DEEP],
    bases=(_Deep,),
    namespace={"__module__": __name__},  # where pickle finds it
    frozen=True,
    kw_only=True,
)


PROTOCOLS: dict[str, type[Protocol]] = {
    "control": Control,
    "evaluation": Evaluation,
    "replay": Replay,
    "map": Map,
    "deep": Deep,
}
METRICS: dict[str, tuple[str, ...]] = {
    "control": ("auc", "return", "rms error", "mean rms error"),
    "evaluation": ("rms error", "mean rms error", "weighted rms error"),
    "replay": ("rms error", "mean rms error", "weighted rms error"),
    "map": ("contraction",),
    "deep": ("return", "mean return"),
}
HIGHER_IS_BETTER = ("auc", "return", "mean return")
