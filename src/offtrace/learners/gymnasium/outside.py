"""The environments of one learner, and what they do when the compiled loop calls them back."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector.utils import iterate
from numba import types
from numba.core.typing.templates import Signature

from offtrace.learners.core import gymnasium_loop
from offtrace.learners.core.gymnasium_loop import Box
from offtrace.learners.core.record_arrays import Floats
from offtrace.learners.environments import Environment
from offtrace.learners.gymnasium.source import DISABLED, SAME_STEP, Single, Vector
from offtrace.learners.policies import Probabilities

LIVING, LOOKING = 0, 1
"""Streams of seeds: for the environments of a learner, and for that of its evaluation episodes."""


class _Call(types.WrapperAddressProtocol):
    """A Python function of one integer, as a compiled loop takes it."""

    def __init__(self, function: Callable[[int], int]) -> None:
        self.kept = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(function)

    def __wrapper_address__(self) -> int:
        return ctypes.cast(self.kept, ctypes.c_void_p).value or 0

    def signature(self) -> Signature:
        return types.int64(types.int64)


class Outside:
    """The environments of one learner, and what they do when the loop asks them."""

    def __init__(
        self, where: Environment, box: Box, seed: int, functions: tuple[Probabilities | None, Probabilities | None]
    ) -> None:
        assert where.coder is not None
        self.functions = functions
        self.source, self.seen, self.box, self.seed = where.source, where.coder, box, seed
        self.tiled, self.last = self.seen.sizes is None, where.lanes
        self.first_action = int(cast(Discrete, self.source.action).start)
        self.env: Single | Vector | None = None
        self.looker: Single | None = None
        self.error: BaseException | None = None
        vector = self.source.mode is not None
        box.resets[0] = self.source.mode in (None, DISABLED)
        box.start[:] = -1
        self.kinds = {
            gymnasium_loop.NEW: self._new,
            gymnasium_loop.BEGIN: self._begin_lanes if vector else self._begin,
            gymnasium_loop.STEP: self._step_lanes if vector else self._step,
            gymnasium_loop.LOOK_BEGIN: self._look_begin,
            gymnasium_loop.LOOK_STEP: self._look_step,
        }
        self.call = _Call(self._turn)

    def _turn(self, kind: int) -> int:
        try:
            self.kinds[kind]()
        except BaseException as error:  # raised again when the loop has come back
            self.error = error
            return -1
        return 0

    def _seeds(self, stream: int, n: int) -> list[int]:
        """Seeds of environments: another learner's, even of the next seed, have nothing in common with them."""
        return [int(s) for s in np.random.SeedSequence([self.seed, stream]).generate_state(n)]

    @property
    def _one(self) -> Single:
        return cast("Single", self.env)

    @property
    def _many(self) -> Vector:
        return cast("Vector", self.env)

    def _new(self) -> None:
        self.env = self.source.make()
        seeds = self._seeds(LIVING, self.last)
        if self.source.mode is None:
            observation, _ = self._one.reset(seed=seeds[0])
            self._begins(0, observation)
            return
        several = hasattr(self._many.unwrapped, "env_fns")  # other vector environments take one seed
        observations, _ = self._many.reset(seed=seeds if several else seeds[0])  # pyright: ignore[reportArgumentType]
        for j, observation in enumerate(self._each(observations)):
            self._begins(j, observation)

    def close(self) -> None:
        """Close all environments."""
        for env in (self.env, self.looker):
            if env is not None:
                env.close()
        self.env = self.looker = None

    def _begins(self, j: int, observation: object) -> None:
        if self.tiled:
            self.box.x_start[j], self.box.start[j] = np.ravel(np.asarray(observation)), 0
            self._ask(observation, self.box.p_start[j])
        else:
            self.box.start[j] = self.seen.number(observation)

    def _ask(self, observation: object, p: Floats) -> None:
        """The probabilities of policies that are functions of observations."""
        for i, function in enumerate(self.functions):
            if function is not None:
                p[i] = function(np.asarray(observation))

    def _leads_to(self, j: int, observation: object, reward: float, terminated: bool, truncated: bool) -> None:
        box, reward = self.box, float(reward)
        if not math.isfinite(reward):
            raise ValueError(f"{self.source.name} gave a reward that is not finite: {reward}")
        box.reward[j] = reward
        ends = gymnasium_loop.TRUNCATED if truncated else gymnasium_loop.GOES_ON
        box.ended[j] = gymnasium_loop.TERMINATED if terminated else ends
        if self.tiled:
            x = np.asarray(observation)
            box.x[j] = x if x.ndim == 1 else np.ravel(x)
            self._ask(observation, box.p[j])
        else:
            box.state[j] = self.seen.number(observation)

    def _begin(self) -> None:
        observation, _ = self._one.reset()
        self._begins(0, observation)

    def _step(self) -> None:
        observation, reward, terminated, truncated, _ = self._one.step(int(self.box.action[0]) + self.first_action)
        self._leads_to(0, observation, float(reward), terminated, truncated)

    def _look_begin(self) -> None:
        seed = None
        if self.looker is None:
            self.looker, seed = self.source.make_single(), self._seeds(LOOKING, 1)[0]
        observation, _ = self.looker.reset(seed=seed)
        self._begins(self.last, observation)

    def _look_step(self) -> None:
        assert self.looker is not None
        action = int(self.box.action[self.last]) + self.first_action
        observation, reward, terminated, truncated, _ = self.looker.step(action)
        self._leads_to(self.last, observation, float(reward), terminated, truncated)

    def _each(self, observations: object) -> list[object]:
        """The observation of each copy."""
        return list(iterate(self._many.observation_space, observations))

    def _begin_lanes(self) -> None:
        waiting = self.box.action[: self.last] < 0
        observations, _ = self._many.reset(options={"reset_mask": waiting})
        each = self._each(observations)
        for j in np.flatnonzero(waiting).tolist():
            self._begins(j, each[j])

    def _step_lanes(self) -> None:
        action = self.box.action[: self.last]
        given = (np.maximum(action, 0) + self.first_action).astype(self._many.action_space.dtype)
        observations, reward, terminated, truncated, info = self._many.step(given)
        each = self._each(observations)
        for j in range(self.last):
            if action[j] < 0:  # this copy did not step but began anew
                self._begins(j, each[j])
                continue
            observation = each[j]
            if self.source.mode == SAME_STEP and (terminated[j] or truncated[j]):
                self._begins(j, observation)
                observation = self._last(info)[j]
            self._leads_to(j, observation, float(reward[j]), bool(terminated[j]), bool(truncated[j]))

    def _last(self, info: Mapping[str, list[object]]) -> list[object]:
        """The last observations of episodes, where copies begin anew in the same step."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise ValueError(f"{self.source.name} does not tell the last observation of an episode (final_obs)")
        return final
