"""Learners in Gymnasium environments, which is an extra: a Python loop steps the environment, the compiled loop learns.

Each copy of a vector environment is a *lane*, with its own eligibility vector and episode; all lanes share θ. In a
round every lane that is in an episode acts, the environment steps once, and the lanes learn one after another. A lane whose
episode has ended waits until the environment says where a new one begins: nothing is learned from that. Every learner has its
own environments, seeded from its seed, and one for evaluation episodes, so evaluating a learner does not change it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from offtrace._shared.extras import install
from offtrace.learners.arrays import Floats, Integers
from offtrace.learners.environments import Environment, table_or_rows
from offtrace.learners.features import NONE, Features, TileCoding, Tiles
from offtrace.learners.loop import ACT, EVALUATE, LEARN
from offtrace.learners.run import Job, Learner
from offtrace.learners.state import World

try:
    import gymnasium
    from gymnasium import Space, spaces
    from gymnasium.vector import VectorEnv
    from gymnasium.vector.utils import iterate
except ImportError:
    raise ImportError(f"env is not an MDP, and other environments need Gymnasium: {install('gymnasium')}") from None

Single: TypeAlias = gymnasium.Env[Any, Any]
Vector: TypeAlias = VectorEnv[Any, Any, Any]
Given: TypeAlias = str | Single | Vector | Callable[[], Single | Vector]

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
"""How the copies of a vector environment start again, as `AutoresetMode` says it."""
OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs")
"""What `gymnasium.make_vec` takes and `gymnasium.make` does not."""
MOST = 1_000_000
"""A table has so many states at most."""
LEARNING_SEEDS, EVALUATION_SEEDS = 0, 1
"""Streams of seeds: for the environments of a learner, and for that of its evaluation episodes."""


@dataclass(frozen=True, eq=False)
class Source:
    """Where environments come from, and what is known of them all."""

    given: Given = field(repr=False)
    name: str
    space: Space[object]
    """The space of one observation."""
    action: Space[object]
    lanes: int = 1
    mode: str | None = None
    """How the copies of a vector environment start again; None if it is no vector environment."""

    @classmethod
    def of(cls, given: Given) -> Source:
        """Look at what was given; if it creates environments, one is created to look at."""
        env = given if isinstance(given, gymnasium.Env | VectorEnv) else _new(given)
        try:
            if not isinstance(env, VectorEnv):
                return cls(given, str(env), env.observation_space, env.action_space)
            mode = env.metadata.get("autoreset_mode", NEXT_STEP)
            mode = getattr(mode, "value", mode)
            if mode not in (NEXT_STEP, SAME_STEP, DISABLED):
                raise ValueError(f"{env} has the autoreset mode {mode!r}, which is not known")
            return cls(given, str(env), env.single_observation_space, env.single_action_space, env.num_envs, mode)
        finally:
            if env is not given:
                env.close()

    def make(self) -> Single | Vector:
        """Make another environment like the one that was given."""
        return _new(self.given)

    def make_single(self) -> Single:
        """One for evaluation episodes: a single one, if it is a vector environment."""
        many = self.make()
        if not isinstance(many, VectorEnv):
            return many
        try:
            functions = getattr(many.unwrapped, "env_fns", None)
            if isinstance(functions, list | tuple):  # `make_vec` leaves a generator that is used up
                return cast("list[Callable[[], Single]]", functions)[0]()
            if many.spec is None:
                raise ValueError(f"{many} does not tell how to make one of its copies, so that it cannot be evaluated")
            own = {k: v for k, v in many.spec.kwargs.items() if k not in OF_VECTORS}
            return gymnasium.make(many.spec.id, **own)
        finally:
            many.close()


def _new(given: Given) -> Single | Vector:
    if isinstance(given, str):
        return gymnasium.make(given)
    if isinstance(given, gymnasium.Env | VectorEnv):
        try:
            return copy.deepcopy(given)
        except Exception as error:
            if given.spec is not None and not isinstance(given, VectorEnv):
                return gymnasium.make(given.spec)
            raise TypeError(f"{given} cannot be copied ({error}): give a function that makes it") from error
    env = given()
    if not isinstance(cast(object, env), gymnasium.Env | VectorEnv):
        raise TypeError(f"{given!r} was to make a Gymnasium environment, but made a {type(env).__name__}")
    return env


def _sizes(space: Space[object]) -> list[tuple[int, int]] | None:
    """(size, start) of each integer in an observation, in order; None if it holds anything else."""
    if isinstance(space, spaces.Discrete):
        return [(int(space.n), int(space.start))]
    if isinstance(space, spaces.MultiDiscrete):
        return [(int(n), int(s)) for n, s in zip(space.nvec.ravel(), space.start.ravel(), strict=True)]
    if isinstance(space, spaces.MultiBinary):
        return [(2, 0)] * int(np.prod(space.shape))
    if not isinstance(space, spaces.Tuple | spaces.Dict):
        return None
    parts = [_sizes(part) for part in (space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)]
    return None if None in parts else [pair for part in parts for pair in part or ()]


def _integers(observation: object) -> list[int]:
    """The integers of an observation, in the order of `_sizes`."""
    if isinstance(observation, tuple | dict):
        parts = observation.values() if isinstance(observation, dict) else observation
        return [i for part in parts for i in _integers(part)]
    return [int(i) for i in np.ravel(np.asarray(observation))]


class Observations:
    """How observations become numbers of states, or tiles, if there are some."""

    def __init__(self, space: Space[object], tiles: Tiles) -> None:
        self.space, self.tiles = space, tiles
        self.sizes = None if len(tiles.low) else _sizes(space)

    def number(self, observation: object) -> int:
        """The number of the state."""
        assert self.sizes is not None
        state = 0
        for i, (n, start) in zip(_integers(observation), self.sizes, strict=True):
            if not 0 <= i - start < n:
                raise ValueError(f"an observation here is in {self.space}, got {observation!r}")
            state = state * n + i - start
        return state

    def row(self, features: Features, observation: ArrayLike) -> tuple[Integers, Floats | float]:
        """The active weights of an observation, and the features there."""
        if self.sizes is None:
            return self.tiles.rows(observation), self.tiles.value
        state = self.number(observation)
        return features.tile[state], features.value[state]


def environment(
    env: Given, gamma: float | None, features: ArrayLike | TileCoding | None, states: bool = False
) -> Environment:
    """Check a Gymnasium environment: an id, an environment, a vector environment, or a function that makes one."""
    if not isinstance(env, str | gymnasium.Env | VectorEnv) and not callable(env):
        raise TypeError(
            "env must be an MDP, the id of a Gymnasium environment, an environment, a vector environment or a function "
            f"that makes one, got {type(env).__name__}"
        )
    if gamma is None:
        raise ValueError("gamma is missing: a Gymnasium environment has no discount; give one, as gamma=0.99")
    if isinstance(gamma, bool) or not isinstance(gamma, int | float | np.number) or not 0 < gamma <= 1:
        raise ValueError(f"gamma must lie in (0, 1], got {gamma!r}")
    source = Source.of(env)
    name, action, space = source.name, source.action, source.space
    if not isinstance(action, spaces.Discrete):
        raise TypeError(
            f"the actions of {name} are {action}: learners need Discrete actions. Continuous ones would have to be put "
            "into classes first, as gymnasium.wrappers.TransformAction can"
        )
    A, tiles = int(action.n), NONE
    if isinstance(space, spaces.Box):
        if not isinstance(features, TileCoding):
            raise TypeError(
                f"the observations of {name} are {space}: give features=TileCoding(…), or use an environment with Discrete ones"
            )
        tiles = features.over(space.low, space.high)
        rows = Features(A, np.zeros((0, tiles.tilings), np.int64), np.zeros((0, tiles.tilings)), states)
        size = tiles.size * rows.per_tile
    else:
        sizes = _sizes(space)
        if sizes is None:
            raise ValueError(
                f"the observations of {name} are {space}: learners take Discrete, MultiDiscrete, MultiBinary, Tuple or Dict "
                "of these, and Box with features=TileCoding(…)"
            )
        S = math.prod(n for n, _ in sizes)
        if S > MOST:
            raise ValueError(f"the observations of {name}, {space}, have {S:.3g} values: too many for a table")
        rows, size = table_or_rows(features, S, A, states)
    return Environment(None, source, float(gamma), rows, Observations(space, tiles), size, source.lanes)


class GymLearner(Learner):
    """One seed in a Gymnasium environment. Environments are created when it begins, and closed when it is done."""

    def __init__(self, job: Job, seed: int) -> None:
        super().__init__(job, World(None, None, None), seed, job.where.lanes)
        source, trace = job.where.source, job.method.trace
        if trace.form == "history" and self.lane_count > 1:
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
        self.rows = rows = Rows(self.job, self.lane_count, self.capacity)
        behavior, target = rows.tables
        self.task = self.task._replace(tile=rows.tile, value=rows.value, behavior=behavior, target=target)
        super().begin()
        self.environments = Environments(self.job.where, self.seed)
        self.starts: list[object] = self.environments.new()
        """Where the next episode of each lane begins, while it is known."""

    def take_steps(self, budget: int) -> None:
        """One round, whatever the budget: each lane acts, and learns from what follows."""
        environments = self.environments
        if environments.needs_resets:
            waiting = [
                bool(m.lane[0].begins) and start is None for m, start in zip(self.lanes, self.starts, strict=True)
            ]
            if any(waiting):
                for j, observation in environments.reset(waiting):
                    self.starts[j] = observation
        actions = [self._act(j) for j in range(self.lane_count)]
        for j, observation, reward, ends, start in environments.step(actions):
            if start is not None:
                self.starts[j] = copy.copy(start)  # environments may write into the same array
            if actions[j] >= 0:
                self._learn(j, observation, reward, ends)
                if self.now("done"):
                    self.add_sums([i for i in range(self.lane_count) if i != j])
                    environments.close()
                    return

    def _act(self, j: int) -> int:
        """The action of a lane; −1 while it waits for an episode."""
        at = self.lanes[j].lane[0]
        if at.begins:
            if self.starts[j] is None:
                return -1
            at.state, self.starts[j] = self.rows.number(j, self.starts[j]), None
        return self.run(j, ACT, 1)

    def _learn(self, j: int, observation: object, reward: float, ends: tuple[bool, bool]) -> None:
        numbers, (lane, buffer, _, _) = self.job.numbers, self.lanes[j]
        at: Any = lane[0]
        step: Any = buffer[at.head]
        step.next_state, step.reward = self.rows.number(j, observation), reward
        step.terminated = ends[0]
        step.truncated = not ends[0] and (ends[1] or at.age + 1 == numbers["limit"])
        self.run(j, LEARN, 1)
        every = numbers["evaluate_every"]
        if at.begins and every and self.now("episode") % every == 0:
            self.curve.evaluations[self.now("evaluations")] = self.steps, self._evaluate()
            self.progress["evaluations"] += 1

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
        self.coder, self.name, features = job.where.coder, job.where.source.name, job.where.features
        self.tile, self.value = features.tile, features.value
        self.functions, self.tables = zip(
            *((policy.function, policy.table) for policy in job.policies[:2]), strict=True
        )
        self.used = [0] * (lanes + 1)
        """How many observations of each lane were coded."""
        self.each = 2 * capacity + 4  # a step brings at most two: where it led, and where an episode begins
        if self.coder.sizes is None:
            n, k = (lanes + 1) * self.each, self.tile.shape[1]
            self.tile, self.value = np.zeros((n, k), np.int64), np.full((n, k), self.coder.tiles.value)
            self.tables = [
                t if f is None else np.zeros((n, features.A)) for f, t in zip(self.functions, self.tables, strict=True)
            ]

    def number(self, j: int, observation: object) -> int:
        """The number of an observation of lane j."""
        if self.coder.sizes is not None:
            return self.coder.number(observation)
        x = np.asarray(observation, dtype=np.float64).ravel()
        if np.isnan(x).any():
            raise ValueError(f"{self.name} gave an observation that is not a number: {x}")
        row = j * self.each + self.used[j] % self.each
        self.used[j] += 1
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
        self.first_action = int(cast(spaces.Discrete, self.source.action).start)
        self.env: Any = None
        self.evaluation: Single | None = None

    def _seeds(self, stream: int, n: int) -> list[int]:
        """Seeds of environments: another learner's, even of the next seed, have nothing in common with them."""
        return [int(s) for s in np.random.SeedSequence([self.seed, stream]).generate_state(n)]

    def new(self) -> list[object]:
        """Make the environments, and return where each lane begins."""
        self.env = self.source.make()
        seeds = self._seeds(LEARNING_SEEDS, self.lanes)
        several = hasattr(self.env.unwrapped, "env_fns")  # other vector environments take one seed
        return self._each(self.env.reset(seed=seeds if self.is_vector and several else seeds[0])[0])

    def reset(self, waiting: list[bool]) -> list[tuple[int, object]]:
        """Let lanes begin an episode: their numbers, and where they begin."""
        options = {"options": {"reset_mask": np.array(waiting)}} if self.is_vector else {}
        each = self._each(self.env.reset(**options)[0])
        return [(j, each[j]) for j, waits in enumerate(waiting) if waits]

    def step(self, actions: list[int]) -> list[tuple[int, Any, float, tuple[bool, bool], Any]]:
        """Of each lane: its number, the observation, the reward, whether it has terminated or been truncated; and where its
        next episode begins, if that is told now. A lane whose action was −1 has started again.
        """
        if not self.is_vector:
            observation, reward, terminated, truncated, _ = self.env.step(actions[0] + self.first_action)
            return [(0, observation, self._finite(reward), (terminated, truncated), None)]
        given = (np.maximum(actions, 0) + self.first_action).astype(self.env.action_space.dtype)
        observations, reward, terminated, truncated, info = self.env.step(given)
        each, steps = self._each(observations), []
        for j, action in enumerate(actions):
            ends, observation, start = (bool(terminated[j]), bool(truncated[j])), each[j], None
            if action < 0:
                start = observation
            elif self.source.mode == SAME_STEP and any(ends):
                start, final = observation, info.get("final_obs", info.get("final_observation"))
                if final is None:
                    raise ValueError(f"{self.source.name} does not tell the last observation of an episode (final_obs)")
                observation = final[j]
            steps.append((j, observation, self._finite(reward[j]) if action >= 0 else 0.0, ends, start))
        return steps

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
        """The observation of each lane."""
        return list(iterate(self.env.observation_space, observations)) if self.is_vector else [observations]

    def _finite(self, reward: Any) -> float:
        if not math.isfinite(reward):
            raise ValueError(f"{self.source.name} gave a reward that is not finite: {float(reward)}")
        return float(reward)
