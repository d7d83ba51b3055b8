"""One learner in a Gymnasium environment: a Python loop steps the environment, the compiled loop chooses actions and learns.

Each copy of a vector environment is a *lane*, with an eligibility vector and an episode of its own; all lanes share θ. In a
round every lane that is in an episode acts, the environment steps once, and the lanes learn one after another. A lane whose
episode has ended waits until the environment says where a new one begins: nothing is learned from that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector.utils import iterate

from offtrace.learners.environments import Environment
from offtrace.learners.gymnasium_source import DISABLED, NEXT_STEP, SAME_STEP, Single
from offtrace.learners.loop import ACT, EVALUATE, LEARN
from offtrace.learners.run import Job, Learner, add_sums_of
from offtrace.learners.state import REPLAY, World

LEARNING_SEEDS, EVALUATION_SEEDS = 0, 1
"""Streams of seeds: for the environments of a learner, and for that of its evaluation episodes."""


class GymLearner(Learner):
    """One seed in a Gymnasium environment. Environments are made when it begins, and closed when it is done."""

    def __init__(self, job: Job, seed: int) -> None:
        source, trace, lanes = job.where.source, job.method.trace, job.where.lanes
        super().__init__(job, World(None, None, None), job.task, seed, lanes)
        if trace.form == "history" and lanes > 1:
            raise ValueError(
                f"{trace.title} is a Python function, which takes no vector environments: write it as a StepTrace"
            )
        if job.where.shape is None and "pair" in trace.reads:
            raise ValueError(
                f"{trace.title} asks for pairs of state and action, which have no numbers with tile coding"
            )
        if job.numbers["limit"] and source.mode in (NEXT_STEP, SAME_STEP):
            raise ValueError(
                f"limit cannot end episodes in {source.name}, which begins anew by itself: give the environment a limit "
                "(max_episode_steps), or AutoresetMode.DISABLED"
            )

    def begin(self) -> None:
        """Make the environments, and the arrays of a learner that has not taken a step."""
        job, lanes = self.job, self.lane_count
        self.rows = Rows(job, lanes, max(1, job.capacity // lanes) if job.numbers["update"] == REPLAY else 1)
        tables = dict(zip(("behavior", "target"), self.rows.tables, strict=True))
        self.task = self.task._replace(tile=self.rows.tile, value=self.rows.value, **tables)
        super().begin()
        self.environments = Environments(job.where, self.seed)
        self.starts: list[object] = [None] * lanes
        """Where the next episode of each lane begins, while it is known."""
        for j, observation in enumerate(self.environments.new()):
            self._set_start(j, observation)

    def advance(self, budget: int) -> bool:
        """Continue for so many steps; whether it is done."""
        if not self.begun:
            self.begin()
        until = self.steps + budget
        while self.result is None and self.steps < until:
            if self._round():
                self.finish()
                self.environments.close()
        return self.result is not None

    def _set_start(self, j: int, observation: object) -> None:
        """An episode of a lane begins here. Environments may write the next observation into the same array."""
        self.starts[j] = np.array(observation) if isinstance(observation, np.ndarray) else observation

    def _round(self) -> bool:
        """Each lane acts, and learns from what follows; whether the learner is done."""
        environments = self.environments
        if environments.needs_resets:
            waiting = [
                bool(m.lane[0].begins) and start is None for m, start in zip(self.lanes, self.starts, strict=True)
            ]
            if any(waiting):
                for j, observation in environments.reset(waiting):
                    self._set_start(j, observation)
        actions = [self._act(j) for j in range(self.lane_count)]
        for j, observation, reward, ends, start in environments.step(actions):
            if start is not None:
                self._set_start(j, start)
            if actions[j] >= 0 and self._learn(j, observation, reward, ends):
                return True
        return False

    def _act(self, j: int) -> int:
        """The action of a lane; −1 while it waits for an episode."""
        at = self.lanes[j].lane[0]
        if at.begins:
            if self.starts[j] is None:
                return -1
            at.state, self.starts[j] = self.rows.number(j, self.starts[j]), None
        return self.run(j, ACT, 1)

    def _learn(self, j: int, observation: object, reward: float, ends: tuple[bool, bool]) -> bool:
        """Whether the learner is done."""
        numbers, (lane, buffer, _, _) = self.job.numbers, self.lanes[j]
        at: Any = lane[0]
        step: Any = buffer[at.head]
        step.next_state, step.reward = self.rows.number(j, observation), reward
        step.terminated = ends[0]
        step.truncated = not ends[0] and (ends[1] or at.age + 1 == numbers["limit"])
        self.run(j, LEARN, 1)
        every, evaluations, done = numbers["evaluate_every"], self.now("evaluations"), bool(self.now("done"))
        if at.begins and every and self.now("episode") % every == 0:
            self.curve.evaluations[evaluations] = self.steps, self._evaluate()
            self.progress["evaluations"] = evaluations + 1
        for i in range(self.lane_count if done else 0):
            if i != j:
                add_sums_of(self, i)
        return done

    def _evaluate(self) -> float:
        """The return of an evaluation episode, as `loop.evaluation_episode` computes it."""
        numbers, progress, last, total, gain = self.job.numbers, self.progress, self.lane_count, 0.0, 1.0
        if self.now("evaluation_state") < 0:
            progress["evaluation_state"] = self.rows.number(last, self.environments.begin_evaluation())
        for _ in range(int(numbers["evaluation_limit"])):
            observation, reward, ended = self.environments.step_evaluation(self.run(0, EVALUATE, 1))
            total += gain * reward
            gain *= numbers["gamma"]
            progress["evaluation_state"] = -1 if ended else self.rows.number(last, observation)
            if ended:
                break
        return total


class Rows:
    """The numbers of observations: those of states, or of rows of features that are filled as observations come.

    So are the rows of policies that are functions of observations. The rows of each lane, and of evaluation episodes, are a
    ring that is as long as its buffer remembers.
    """

    def __init__(self, job: Job, lanes: int, capacity: int) -> None:
        assert job.where.coder is not None
        self.coder, self.functions, self.name = job.where.coder, job.functions, job.where.source.name
        self.tile, self.value = job.where.features.tile, job.where.features.value
        self.tables = [policy.table for policy in job.policies[:2]]
        self.tiled = self.coder.sizes is None
        self.used = [0] * (lanes + 1)
        """How many observations of each lane were coded."""
        self.each = 2 * capacity + 4  # a step brings at most two: where it led, and where an episode begins
        if self.tiled:
            shape = (lanes + 1) * self.each, self.tile.shape[1]
            self.tile, self.value = np.zeros(shape, np.int64), np.full(shape, self.coder.tiles.value)
            for i, function in enumerate(self.functions):
                if function is not None:
                    self.tables[i] = np.zeros((shape[0], job.where.features.A))

    def number(self, j: int, observation: object) -> int:
        """The number of an observation of lane j."""
        if not self.tiled:
            return self.coder.number(observation)
        x = np.asarray(observation, dtype=np.float64).ravel()
        row = j * self.each + self.used[j] % self.each
        self.used[j] += 1
        if np.isnan(x).any():
            raise ValueError(f"{self.name} gave an observation that is not a number: {x}")
        self.coder.tiles.into(x, self.tile[row])
        for table, function in zip(self.tables, self.functions, strict=True):
            if function is not None:
                table[row] = function(np.asarray(observation))
        return row


class Environments:
    """The environments of one learner, seeded from its seed: those it learns in, and one for evaluation episodes."""

    def __init__(self, where: Environment, seed: int) -> None:
        self.source, self.seed, self.lanes = where.source, seed, where.lanes
        self.is_vector = self.source.mode is not None
        self.needs_resets = self.source.mode in (None, DISABLED)
        self.first_action = int(cast(Discrete, self.source.action).start)
        self.env: Any = None
        self.evaluation: Single | None = None

    def _seeds(self, stream: int, n: int) -> list[int]:
        """Seeds of environments: another learner's, even of the next seed, have nothing in common with them."""
        return [int(s) for s in np.random.SeedSequence([self.seed, stream]).generate_state(n)]

    def new(self) -> list[object]:
        """Make the environments, and return where each lane begins."""
        self.env = self.source.make()
        seeds = self._seeds(LEARNING_SEEDS, self.lanes)
        if not self.is_vector:
            return [self.env.reset(seed=seeds[0])[0]]
        several = hasattr(self.env.unwrapped, "env_fns")  # other vector environments take one seed
        return self._each(self.env.reset(seed=seeds if several else seeds[0])[0])

    def reset(self, waiting: list[bool]) -> list[tuple[int, object]]:
        """Let lanes begin an episode: their numbers, and where they begin."""
        if not self.is_vector:
            return [(0, self.env.reset()[0])]
        each = self._each(self.env.reset(options={"reset_mask": np.array(waiting)})[0])
        return [(j, each[j]) for j, waits in enumerate(waiting) if waits]

    def step(self, actions: list[int]) -> list[tuple[int, Any, float, tuple[bool, bool], Any]]:
        """Of each lane: its number, the observation, the reward, whether it has terminated or been truncated; and where its
        next episode begins, if that is told now. A lane whose action was −1 has begun anew.
        """
        if not self.is_vector:
            observation, reward, terminated, truncated, _ = self.env.step(actions[0] + self.first_action)
            return [(0, observation, self._finite(reward), (terminated, truncated), None)]
        given = (np.maximum(actions, 0) + self.first_action).astype(self.env.action_space.dtype)
        observations, reward, terminated, truncated, info = self.env.step(given)
        each, found = self._each(observations), []
        for j, action in enumerate(actions):
            ends, observation, start = (bool(terminated[j]), bool(truncated[j])), each[j], None
            if action < 0:
                start = observation
            elif self.source.mode == SAME_STEP and any(ends):
                start, observation = observation, self._last(info)[j]
            found.append((j, observation, self._finite(reward[j]) if action >= 0 else 0.0, ends, start))
        return found

    def begin_evaluation(self) -> object:
        """Where an evaluation episode begins."""
        seed = None
        if self.evaluation is None:
            self.evaluation, seed = self.source.make_single(), self._seeds(EVALUATION_SEEDS, 1)[0]
        return self.evaluation.reset(seed=seed)[0]

    def step_evaluation(self, action: int) -> tuple[object, float, bool]:
        """The observation, the reward, and whether the episode has ended."""
        assert self.evaluation is not None
        observation, reward, terminated, truncated, _ = self.evaluation.step(action + self.first_action)
        return observation, self._finite(reward), bool(terminated or truncated)

    def close(self) -> None:
        """Close all environments."""
        for env in (self.env, self.evaluation):
            if env is not None:
                env.close()

    def _each(self, observations: object) -> list[object]:
        """The observation of each copy."""
        return list(iterate(self.env.observation_space, observations))

    def _last(self, info: Mapping[str, list[object]]) -> list[object]:
        """The last observations of episodes, where copies begin anew in the same step."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise ValueError(f"{self.source.name} does not tell the last observation of an episode (final_obs)")
        return final

    def _finite(self, reward: Any) -> float:
        if not math.isfinite(reward):
            raise ValueError(f"{self.source.name} gave a reward that is not finite: {float(reward)}")
        return float(reward)
