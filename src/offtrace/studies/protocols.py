"""How each task is run: the keys of its protocol, with their meaning and their limits."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from pydantic import BeforeValidator, create_model

from offtrace.deep.config import Config
from offtrace.studies.fields import Declared, kind, listed, number, one_of, whole
from offtrace.studies.policies import declared_policy
from offtrace.traces import Rule

Policy = Annotated[Any, BeforeValidator(declared_policy)]


class Learning(Declared):
    """Common to all tasks that learn."""

    steps: Annotated[int, whole(1)]
    """How long a learner learns."""
    limit: Annotated[int, whole(0)] = 0
    """Episodes are truncated after so many steps; 0: never."""
    q0: Annotated[float, number(-1e300, 1e300)] = 0.0
    """The first value of every Q(s, a)."""
    spread: Annotated[float, number()] = 0.0
    """The standard deviation of the noise in Q to begin with."""
    update: Annotated[str, one_of("online", "offline", "replay")] = "online"
    """When Q changes: at each step, at the end of an episode, or from a buffer."""
    capacity: Annotated[int, whole(1)] = 10_000
    """Steps that the buffer holds. This and the next three are used with update = "replay"."""
    every: Annotated[int, whole(1)] = 1
    """Steps between two draws from the buffer."""
    batch: Annotated[int, whole(1)] = 1
    """The number of sequences in a draw."""
    length: Annotated[int, whole(1)] = 32
    """Steps in a sequence, at most."""

    @property
    def cost(self) -> float:
        """How much work a learner is, roughly."""
        return self.steps * (1.0 + self.batch * self.length / self.every if self.update == "replay" else 1.0)


class Control(Learning):
    """Learn towards Q*, all policies ε-greedy in the current Q."""

    behavior: Annotated[float, number(0, 1)] = 0.2
    """ε of the behaviour policy."""
    target: Annotated[float, number(0, 1)] = 0.1
    """ε of the target policy."""
    evaluation: Annotated[float, number(0, 1)] = 0.05
    """ε of the evaluation episodes, one of which follows each training episode."""
    explore: Annotated[int, whole(0)] = 0
    """For so many episodes at first the behaviour is uniform."""
    evaluation_limit: Annotated[int, whole(1)] = 1000
    """Steps in an evaluation episode, at most."""
    window: Annotated[int, whole(1)] = 100
    """Over how many evaluation episodes the learning curve is averaged."""


class Evaluation(Learning):
    """Learn Q^π from what μ does."""

    behavior: Policy
    """μ."""
    target: Policy
    """π."""


class Replay(Learning):
    """Learn Q^π of the current policy from what the policy of `age` updates ago did."""

    updates: Annotated[int, whole(1)] = 50
    """How many updates made the current policy."""
    rate: Annotated[float, number(0, 1, above=True)] = 0.1
    """The step size of an update, Q + rate (T* Q − Q)."""
    temperature: Annotated[float, number(above=True)] = 0.1
    """The temperature of the softmax policies."""


class Map(Declared):
    """Compute the operator."""

    behavior: Policy = "random"
    """μ; a random one without a seed is drawn for each seed."""
    target: Policy = "random"
    """π; likewise."""
    tolerance: Annotated[float, number(above=True)] = 1e-3
    """How far apart the bounds of the contraction may be."""

    @property
    def cost(self) -> float:
        """How much work an operator is, roughly."""
        return 1.0


class DeepBase(Declared):
    """Train a deep agent. The keys are those of `deep.Config`, which also checks them together."""

    @property
    def cost(self) -> float:
        """How much work a run is, roughly: a step that is learned from costs about three that are played."""
        p: Any = self
        return p.frames * (1.0 + 3.0 * p.batch * (p.burn_in + p.length) / p.every)

    def config(self, game: str, trace: Rule, age: int) -> Config:
        """The configuration of a run: the age of the data is as many frames as the memory holds."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return Config(game=game, trace=trace, capacity=age, **values)


def like(default: object) -> Any:
    """The type of a field whose default this is: for 1 an integer, for 1.0 a number, for "a" a text, …"""
    if isinstance(default, tuple):
        return Annotated[tuple[Annotated[int, whole(1)], ...], listed("integers")]
    if default is None:
        return Annotated[int | float | None, kind("a number", int, float, type(None))]
    kinds = {
        bool: kind("true or false", bool),
        int: kind("an integer", int),
        float: kind("a number", int, float),
        str: kind("a text", str),
    }
    return Annotated[type(default), kinds[type(default)]]


# Written out, so that a new key of Config does not change what a declared study is.
DEEP = (
    *("frames", "gamma", "envs", "every", "batch", "length", "burn_in", "warm_up", "minibatches"),
    *("learning_rate", "clip", "loss", "double", "target_every", "policies", "explore_epsilon", "behavior_epsilon"),
    *("target_epsilon", "explore_frames", "priority", "correction", "hidden", "sticky", "limit"),
)
_defaults: dict[str, Any] = {f.name: (like(f.default), f.default) for f in fields(Config) if f.name in DEEP}
Deep = create_model("Deep", __base__=DeepBase, __module__=__name__, **_defaults)
