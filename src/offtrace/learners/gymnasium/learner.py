"""One learner in a Gymnasium environment: a Python loop steps the environment, compiled functions choose actions and learn.

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
from numpy.typing import NDArray

from offtrace.learners.acting import at_present, choose
from offtrace.learners.compiling import borrowed, compiled
from offtrace.learners.environments import Environment
from offtrace.learners.gymnasium.source import DISABLED, NEXT_STEP, SAME_STEP, Single
from offtrace.learners.learning import action_values, state_value
from offtrace.learners.loop import BAD, GO_ON, OVER, choose_action, observe
from offtrace.learners.memory import REPLAY, Features, room_for
from offtrace.learners.progress import begin, begin_lane, finish
from offtrace.learners.random import EVALUATION, uniform
from offtrace.learners.run import Job, Learner

LEARNING_SEEDS, EVALUATION_SEEDS = 0, 1
"""Streams of seeds: for the environments of a learner, and for that of its evaluation episodes."""


def start(task, m, e, out, seed, ends):
    """Begin a learner in a lane, or keep what came of it."""
    if ends:
        finish(task.settings, m, out)
    else:
        begin(task.settings, m, seed)
        begin_lane(m, e)


def act(task, m, place):
    """Choose an action: see `loop.choose_action`."""
    task, m = borrowed((task, m))
    return choose_action(task, m, place)


def evaluate(task, m, s):
    """Choose an action of an evaluation episode."""
    progress, policy = m.progress[0], task.policies.evaluation
    action_values(m.θ, task.features, s, m.q)
    π = at_present(policy, progress.episode - 1, progress.step)
    return choose(uniform(m.streams, EVALUATION), π, policy.table, s, m.q)


def update(task, factors, custom, m, e, buffer, own, out, shared):
    """Learn from a step. `shared`: other lanes may have learned since the action was chosen."""
    task, m, e, out = borrowed((task, m, e, out))
    if shared:
        now, lane = m.now[0], m.lane[0]
        action_values(m.θ, task.features, now.state, m.q)
        lane.value = state_value(m.θ, task.features, now.state) if task.features.states else m.q[now.action]
    return observe(task, factors, custom, m, e, buffer, own, out)


class GymLearner:
    """One seed in a Gymnasium environment. Nothing is made before it begins, and nothing but the result is kept after it."""

    def __init__(self, job: Job, seeds: NDArray[np.uint64]) -> None:
        assert len(seeds) == 1
        self.job, self.lanes = job, job.where.source.lanes
        self.done = False
        self.live: Live | None = None
        self.out = room_for(seeds, job.where.size, job.settings, self.lanes)
        source, trace = job.where.source, job.method.trace
        if trace.form == "history" and self.lanes > 1:
            raise ValueError(
                f"{trace.title} is a Python function, which takes no vector environments: write it as a StepTrace"
            )
        if job.where.shape is None and "pair" in trace.reads:
            raise ValueError(
                f"{trace.title} asks for pairs of state and action, which have no numbers with tile coding"
            )
        if job.settings.limit and source.mode in (NEXT_STEP, SAME_STEP):
            raise ValueError(
                f"limit cannot end episodes in {source.name}, which begins anew by itself: give the environment a limit "
                "(max_episode_steps), or AutoresetMode.DISABLED"
            )

    def advance(self, budget: int) -> bool:
        """Continue for so many steps; whether it is done."""
        if self.live is None and not self.done:
            self.live = Live(self)
        while not self.done and budget > 0:
            assert self.live is not None
            taken, self.done = self.live.round()
            budget -= taken
        if self.done and self.live is not None:
            self.live.environments.close()
            self.live = None
        return self.done

    @property
    def steps(self) -> int:
        """Taken so far, in all copies of the environment."""
        return int(self.out.steps.sum()) + (self.live.learner.steps if self.live else 0)

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return self.live.learner.progress if self.live else float(self.done)


class Live:
    """What lasts while the learner of a `GymLearner` is learning: its environments, and what it keeps."""

    def __init__(self, unit: GymLearner) -> None:
        self.unit, job = unit, unit.job
        where, settings, lanes = job.where, job.settings, unit.lanes
        capacity = max(1, job.capacity // lanes) if settings.update == REPLAY else 1
        self.seen = Seen(job, lanes, capacity)
        policies = job.policies._replace(behavior=self.seen.policies[0], target=self.seen.policies[1])
        self.learner = Learner(job._replace(policies=policies), self.seen.features, lanes, capacity)
        seed = int(unit.out.seeds[0])
        self.environments = Environments(where, seed)
        self.starts: list[object] = [None] * lanes
        """Where the next episode of each lane begins, while it is known."""
        for m, e in zip(self.learner.lanes, self.learner.eligibility, strict=True):
            compiled(start)(self.learner.task, m, e, unit.out, seed, False)
        for j, observation in enumerate(self.environments.new()):
            self._starts(j, observation)

    def _starts(self, j: int, observation: object) -> None:
        """An episode of a lane begins here. Environments may write the next observation into the same array."""
        self.starts[j] = np.array(observation) if isinstance(observation, np.ndarray) else observation

    def round(self) -> tuple[int, bool]:
        """Each lane acts, and learns from what follows: how many steps that were, and whether the learner is done."""
        learner, environments, lanes = self.learner, self.environments, self.learner.lanes
        if environments.needs_resets:
            waiting = [m.lane[0].state < 0 and start is None for m, start in zip(lanes, self.starts, strict=True)]
            if any(waiting):
                for j, observation in environments.reset(waiting):
                    self._starts(j, observation)
        learner.grow()
        if lanes[0].progress[0].evaluations + len(lanes) > len(self.unit.out.evaluation_step):
            self.unit.out = self.unit.out.with_more_evaluations()
        actions = [self._act(j) for j in range(len(lanes))]
        for j, observation, reward, ends, start in environments.step(actions):
            if start is not None:
                self._starts(j, start)
            if actions[j] >= 0 and self._learn(j, observation, reward, ends):
                return sum(action >= 0 for action in actions), True
        return sum(action >= 0 for action in actions), False

    def _act(self, j: int) -> int:
        """The action of a lane; −1 while it waits for an episode."""
        m = self.learner.lanes[j]
        place = int(m.lane[0].state)
        if place < 0:
            if self.starts[j] is None:
                return -1
            place, self.starts[j] = -1 - self.seen.number(j, self.starts[j]), None
        return compiled(act)(self.learner.task, m, place)

    def _learn(self, j: int, observation: object, reward: float, ends: tuple[bool, bool]) -> bool:
        """Whether the learner is done."""
        learner, settings, out, m = self.learner, self.unit.job.settings, self.unit.out, self.learner.lanes[j]
        now, progress = m.now[0], m.progress[0]
        now.next_state, now.reward = self.seen.number(j, observation), reward
        now.terminated = ends[0]
        now.truncated = not ends[0] and (ends[1] or m.lane[0].age + 1 == settings.limit)
        status = compiled(update)(
            learner.task, *learner.functions, m, learner.eligibility[j], learner.buffers[j], learner.own[j], out,
            len(learner.lanes) > 1,
        )  # fmt: skip
        if status == BAD:
            learner.refuse()
        every = settings.evaluate_every
        if status != GO_ON and m.lane[0].state < 0 and every and progress.episode % every == 0:
            out.evaluation_step[progress.evaluations] = progress.step
            out.evaluation_return[progress.evaluations] = self._evaluate()
            progress.evaluations += 1
        if status == OVER:
            learner.add_sums_of_other_lanes(j)
            compiled(start)(self.learner.task, m, learner.eligibility[j], out, 0, True)
        return status == OVER

    def _evaluate(self) -> float:
        """The return of an evaluation episode, as `loop.evaluation` does it."""
        m, settings, last = self.learner.lanes[0], self.unit.job.settings, len(self.learner.lanes)
        s, total, gain = int(m.progress[0].evaluation_state), 0.0, 1.0
        if s < 0:
            s = self.seen.number(last, self.environments.begin_evaluation())
        for _ in range(settings.evaluation_limit):
            action = compiled(evaluate)(self.learner.task, m, s)
            observation, reward, ended = self.environments.step_evaluation(action)
            total += gain * reward
            gain *= settings.gamma
            if ended:
                s = -1
                break
            s = self.seen.number(last, observation)
        m.progress[0].evaluation_state = s
        return total


class Seen:
    """The numbers of observations: those of states, or of rows of features that are filled as observations come.

    So are the rows of policies that are functions of observations. The rows of each lane, and of evaluation episodes, are a
    ring that is as long as its buffer remembers.
    """

    def __init__(self, job: Job, lanes: int, capacity: int) -> None:
        assert job.where.coder is not None
        self.coder, self.functions, self.name = job.where.coder, job.functions, job.where.source.name
        self.features: Features = job.where.features
        self.policies = job.policies.behavior, job.policies.target
        self.tiled = self.coder.sizes is None
        self.made = [0] * (lanes + 1)
        """How many observations each lane has made."""
        self.each = (
            2 * capacity + 4
        )  # a step brings two observations at most: where it led, and where an episode begins
        if self.tiled:
            shape = (lanes + 1) * self.each, self.features.tile.shape[1]
            value = np.full(shape, self.coder.tiles.value)
            self.features = self.features._replace(tile=np.zeros(shape, np.int64), value=value)
            self.policies = tuple(
                policy if function is None else policy._replace(table=np.zeros((shape[0], self.features.A)))
                for policy, function in zip(self.policies, self.functions, strict=True)
            )

    def number(self, j: int, observation: object) -> int:
        """The number of an observation of lane j."""
        if not self.tiled:
            return self.coder.number(observation)
        x = np.asarray(observation, dtype=np.float64).ravel()
        row = j * self.each + self.made[j] % self.each
        self.made[j] += 1
        if np.isnan(x).any():
            raise ValueError(f"{self.name} gave an observation that is not a number: {x}")
        self.coder.tiles.into(x, self.features.tile[row])
        for policy, function in zip(self.policies, self.functions, strict=True):
            if function is not None:
                policy.table[row] = function(np.asarray(observation))
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
