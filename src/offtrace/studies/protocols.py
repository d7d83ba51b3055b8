"""How each task is run: the keys of its protocol, with their meaning and their limits."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, create_model, field_validator

from offtrace._shared.type_guards import is_list
from offtrace.deep.config import Config
from offtrace.studies.fields import Above0, AtLeast0, Count, Declared, Natural, Number, Share
from offtrace.studies.policies import declared_policy

Policy = Annotated[Any, BeforeValidator(declared_policy)]


class Learning(Declared):
    """Common to all tasks that learn."""

    steps: Count
    """How long a learner learns."""
    limit: Natural = 0
    """Episodes are truncated after so many steps; 0: never."""
    q0: Number = 0.0
    """The first value of every Q(s, a)."""
    spread: AtLeast0 = 0.0
    """The standard deviation of the noise in Q to begin with."""
    update: Literal["online", "offline", "replay"] = "online"
    """When Q changes: at each step, at the end of an episode, or from a buffer."""
    capacity: Count = 10_000
    """Steps that the buffer holds. This and the next three are used with update = "replay"."""
    every: Count = 1
    """Steps between two draws from the buffer."""
    batch: Count = 1
    """The number of sequences in a draw."""
    length: Count = 32
    """Steps in a sequence, at most."""

    @property
    def cost(self) -> float:
        """How much work a learner is, roughly."""
        return self.steps * (1.0 + self.batch * self.length / self.every if self.update == "replay" else 1.0)


class Control(Learning):
    """Learn towards Q*, all policies ε-greedy in the current Q."""

    behavior: Share = 0.2
    """ε of the behaviour policy."""
    target: Share = 0.1
    """ε of the target policy."""
    evaluation: Share = 0.05
    """ε of the evaluation episodes, one of which follows each training episode."""
    explore: Natural = 0
    """For so many episodes at first the behaviour is uniform."""
    evaluation_limit: Count = 1000
    """Steps in an evaluation episode, at most."""
    window: Count = 100
    """Over how many evaluation episodes the learning curve is averaged."""


class Evaluation(Learning):
    """Learn Q^π from what μ does."""

    behavior: Policy
    """μ."""
    target: Policy
    """π."""


class Replay(Learning):
    """Learn Q^π of the current policy from what the policy of `age` updates ago did."""

    updates: Count = 50
    """How many updates led to the current policy."""
    rate: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.1
    """The step size of an update, Q + rate (T* Q − Q)."""
    temperature: Above0 = 0.1
    """The temperature of the softmax policies."""


class Map(Declared):
    """Compute the operator."""

    behavior: Policy = "random"
    """μ; a random one without a seed is drawn for each seed."""
    target: Policy = "random"
    """π; likewise."""
    tolerance: Above0 = 1e-3
    """How far apart the bounds of the contraction may be."""

    @property
    def cost(self) -> float:
        """How much work an operator is, roughly."""
        return 1.0


class DeepBase(Declared):
    """Train a deep agent. The keys are those of `deep.Config`, which also checks them together."""

    model_config = ConfigDict(strict=True)

    @field_validator("hidden", mode="before", check_fields=False)
    @classmethod
    def _as_tuple(cls, given: object) -> object:
        return tuple(given) if is_list(given) else given

    @property
    def cost(self) -> float:
        """How much work a run is, roughly: a step that is learned from costs about three that are played."""
        p: Any = self
        return p.frames * (1.0 + 3.0 * p.batch * (p.burn_in + p.length) / p.every)


# Written out, so that a new key of Config does not change what a declared study is.
DEEP = (
    *("frames", "gamma", "envs", "every", "batch", "length", "burn_in", "warm_up", "minibatches"),
    *("learning_rate", "clip", "loss", "double", "target_every", "policies", "explore_epsilon", "behavior_epsilon"),
    *("target_epsilon", "explore_frames", "priority", "correction", "hidden", "sticky", "limit"),
)
_hints = get_type_hints(Config)
_fields: dict[str, Any] = {f.name: (_hints[f.name], f.default) for f in fields(Config) if f.name in DEEP}
Deep = create_model("Deep", __base__=DeepBase, __module__=__name__, **_fields)
