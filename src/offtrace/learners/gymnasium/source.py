"""Where environments come from: an id, an environment, a vector environment, or a function that makes one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from offtrace._shared.extras import install

try:
    import gymnasium
    from gymnasium import Space
    from gymnasium.vector import VectorEnv
except ImportError:
    raise ImportError(f"env is not an MDP, and other environments need Gymnasium: {install('gymnasium')}") from None

Single: TypeAlias = gymnasium.Env[Any, Any]
Vector: TypeAlias = VectorEnv[Any, Any, Any]
Given: TypeAlias = str | Single | Vector | Callable[[], Single | Vector]

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
"""How the copies of a vector environment begin anew, as `AutoresetMode` says it."""
OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs")
"""What `gymnasium.make_vec` takes and `gymnasium.make` does not."""


@dataclass(frozen=True, eq=False)
class Source:
    """Where environments come from, and what is known of them all."""

    given: Given = field(repr=False)
    name: str
    """What tells it from other environments; it does not change from process to process."""
    space: Space[object]
    """The space of one observation."""
    action: Space[object]
    lanes: int
    mode: str | None
    """How the copies of a vector environment begin anew; None if it is no vector environment."""

    @classmethod
    def of(cls, given: Given) -> Source:
        """Look at what was given; where it is a way to make environments, one is made for that."""
        made = given if isinstance(given, gymnasium.Env | VectorEnv) else _made(given)
        try:
            if isinstance(made, VectorEnv):
                mode = made.metadata.get("autoreset_mode", NEXT_STEP)
                mode = getattr(mode, "value", mode)
                if mode not in (NEXT_STEP, SAME_STEP, DISABLED):
                    raise ValueError(f"{made} has the autoreset mode {mode!r}, which is not known")
                spaces = made.single_observation_space, made.single_action_space
                return cls(given, _name(made), *spaces, made.num_envs, mode)
            return cls(given, _name(made), made.observation_space, made.action_space, 1, None)
        finally:
            if made is not given:
                made.close()

    def make(self) -> Single | Vector:
        """Make another environment like the one that was given."""
        return _made(self.given)

    def make_single(self) -> Single:
        """One for evaluation episodes: a single one, if it is a vector environment."""
        many = self.make()
        if not isinstance(many, VectorEnv):
            return many
        try:
            functions: list[Callable[[], Single]] | None = getattr(many.unwrapped, "env_fns", None)
            if functions:
                return functions[0]()
            if many.spec is None:
                raise ValueError(f"{many} does not tell how to make one of its copies, so that it cannot be evaluated")
            own = {k: v for k, v in many.spec.kwargs.items() if k not in OF_VECTORS}
            return gymnasium.make(many.spec.id, **own)
        finally:
            many.close()


def _name(env: Single | Vector) -> str:
    spec = env.spec
    return str(env) if spec is None else f"{env} {spec.id} {spec.kwargs}"


def _made(given: Given) -> Single | Vector:
    if isinstance(given, str):
        return gymnasium.make(given)
    if isinstance(given, gymnasium.Env | VectorEnv):
        try:
            return copy.deepcopy(given)
        except Exception as error:
            if given.spec is not None and not isinstance(given, VectorEnv):
                return gymnasium.make(given.spec)
            raise TypeError(f"{given} cannot be copied ({error}): give a function that makes it") from error
    made = given()
    if not isinstance(cast(object, made), gymnasium.Env | VectorEnv):
        raise TypeError(f"{given!r} was to make a Gymnasium environment, but made a {type(made).__name__}")
    return made
