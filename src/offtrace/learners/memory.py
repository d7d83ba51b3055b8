"""What compiled loops are told, what they keep from step to step, and what comes of it: arrays and records.

A *lane* is one copy of the environment: an MDP has one, a vector environment several, which share the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtrace.learners.acting import Levels
from offtrace.learners.arrays import Floats, Integers, Records, Slots, record, slots

ONLINE, OFFLINE, REPLAY = 0, 1, 2

PROGRESS = record(
    seed=np.int64,  # which seed of the block is learning
    begun=np.int64,  # whether it has begun
    step=np.int64,  # steps taken, in all lanes together
    episode=np.int64,  # episodes finished, in all lanes together
    mark=np.int64,  # the next point of the curve
    evaluation_state=np.int64,  # where an evaluation episode continues; −1: a new one begins
    evaluations=np.int64,  # evaluation episodes of all seeds so far
    returns=np.float64,  # the sum of the returns since the last point of the curve
    finished=np.float64,  # how many episodes that sum has
)
"""How far the learner is: it is shared by all lanes."""

LANE = record(
    state=np.int64,  # where the lane is; −1: a new episode begins
    age=np.int64,  # steps of this episode
    step=np.int64,  # steps taken by all lanes when its action was chosen
    episode=np.int64,  # how many episodes had finished when it began
    head=np.int64,  # where the ring of the buffer continues
    filled=np.int64,  # how many steps the ring holds
    since=np.int64,  # steps since sequences were drawn from it
    chosen=np.int64,  # the next action, where it is known already; −1: it is still to be chosen
    discount=np.float64,  # γ, but 0 at the first step of an episode
    gain=np.float64,  # γ^age
    total=np.float64,  # the episode's return so far
    alpha=np.float64,  # the step size
    pi=np.float64,  # π(a|s) of the action taken
    value=np.float64,  # q(s, a), or v(s)
    bootstrap=np.float64,  # what the step before bootstrapped from
    π_before=np.float64,  # π(a|s) of the action before, which the rule meets now on state values
    μ_before=np.float64,
    pair_before=np.int64,
    greedy=np.float64,  # 1 if the action maximised q(s, ·)
)
"""One copy of the environment."""

STEP = record(
    state=np.int64,
    action=np.int64,
    next_state=np.int64,
    terminated=np.int64,
    truncated=np.int64,
    reward=np.float64,
    mu=np.float64,  # μ(a|s) when the step was taken
)
"""One step: that which a lane is taking, one in the buffer, or one of a given trajectory."""


class World(NamedTuple):
    """The MDP. P, start are cumulated over each row; an empty `of_entry` means rewards R(s, a)."""

    P: Floats
    indptr: Integers
    to: Integers
    start: Floats
    ends: NDArray[np.bool_]
    R: Floats
    of_entry: Floats
    recorded: Records | None
    """Records STEP of a given trajectory, which is then followed in the place of the MDP; else None."""


class Features(NamedTuple):
    """q(s, a) = Σ_j value[s, j] θ[tile[s, j] · A + a]; on state values v(s) = Σ_j value[s, j] θ[tile[s, j]]."""

    A: int
    tile: Integers
    value: Floats
    states: bool = False
    """Whether θ are weights of state values."""

    @property
    def per_tile(self) -> int:
        """How many weights a tile has: one for each action, or one in all."""
        return 1 if self.states else self.A

    @property
    def is_table(self) -> bool:
        """Whether there is one weight for each state, or for each pair."""
        S, k = self.tile.shape
        return k == 1 and np.array_equal(self.tile[:, 0], np.arange(S)) and bool((self.value == 1.0).all())


class Settings(NamedTuple):
    """What to do, and for how long."""

    update: int
    steps: int
    """0: no end."""
    episodes: int
    """0: no end."""
    limit: int
    """The longest episode; 0: none."""
    gamma: float
    alpha: Levels
    """The schedule of α."""
    by_visits: bool
    """Whether the step size is α / N(s, a)."""
    first: Floats
    """[size]: the first θ."""
    spread: float
    """The standard deviation of the noise that is added to it."""
    marks: Integers
    """When the curve has its points, in steps or, if the end is in episodes, in those."""
    truth: Floats
    """[S, A], or [S, 1] of state values; empty if it is not known."""
    judged: Integers
    """The states over which the error is taken."""
    evaluate_every: int
    """There is an evaluation episode after each so many episodes; 0: never."""
    evaluation_limit: int
    every: int
    """Sequences are drawn each so many steps."""
    batch: int
    length: int


class Own(NamedTuple):
    """What a method with a step of its own keeps in a lane."""

    step: object
    """The compiled `Method.step`."""
    transition: Records
    """[1]: a record TRANSITION."""
    traces: Floats
    """[n, size]: see `Method.traces`."""
    used: Slots
    """The weights for which `traces` may not be 0."""
    scalars: Floats
    """[n]: see `Method.scalars`."""
    numbers: Floats
    """See `Method.numbers`."""


class Memory(NamedTuple):
    """A learner, as one lane sees it. What stands above `lane` is shared by all lanes."""

    progress: Records
    """[1]: a record PROGRESS."""
    streams: NDArray[np.uint64]
    """[2]: random numbers."""
    θ: Floats
    """[size]: the weights."""
    further: Floats
    """[n, size]: see `Method.further`."""
    sizes: Floats
    """[size]: 1 / N, if step sizes are by visits; else empty."""
    N: Floats
    """[size]: visits, if step sizes are by them; else empty."""
    q: Floats
    """[A]: room for q(s, ·)."""
    q_next: Floats
    """[A]: room for q(s', ·)."""
    weights: Integers
    """[k]: room for the weights of (s, a)."""
    lane: Records
    """[1]: a record LANE."""
    now: Records
    """[1]: a record STEP, that which the lane is taking."""
    changed: Floats
    """[size]: what learning changes: θ itself, or what an episode (offline) or a sequence (replay) adds up to."""
    summed: Slots
    """The weights for which such a sum may not be 0."""


def memories(size: int, A: int, k: int, *, lanes: int, further: int, settings: Settings) -> list[Memory]:
    """The memory of a learner that has not begun, as each lane sees it."""
    visits, summed = size if settings.by_visits else 0, settings.update != ONLINE
    θ = np.zeros(size)
    shared = {
        "progress": np.zeros(1, PROGRESS),
        "streams": np.zeros(2, np.uint64),
        "θ": θ,
        "further": np.zeros((further, size)),
        "sizes": np.ones(visits),
        "N": np.zeros(visits),
        "q": np.zeros(A),
        "q_next": np.zeros(A),
        "weights": np.zeros(k, np.int64),
    }
    return [
        Memory(
            **shared,
            lane=np.zeros(1, LANE),
            now=np.zeros(1, STEP),
            changed=np.zeros(size) if summed else θ,
            summed=slots(size if summed else 0, size if summed else 0),
        )
        for _ in range(lanes)
    ]


class Out(NamedTuple):
    """What comes of a block of seeds."""

    seeds: NDArray[np.uint64]
    """[n]."""
    θ: Floats
    """[n, size]: NaN where a learner diverged."""
    steps: Integers
    """[n]: how many steps each took."""
    episodes: Integers
    """[n]: how many episodes each finished."""
    largest: Floats
    """[n]: the largest |reward| that each has seen."""
    error: Floats
    """[n, points]: the root mean square of Q − truth."""
    returns: Floats
    """[n, points]: mean return of the training episodes that ended since the last point; NaN where none did."""
    at: Integers
    """[n, points]: the steps taken until then."""
    evaluation_step: Integers
    """[room]: when the evaluation episodes of all seeds, one after another, took place."""
    evaluation_return: Floats
    """[room]: their returns."""
    evaluation_stop: Integers
    """[n]: where those of each seed end."""
    snapshots: Floats
    """[n, points, size]: θ at the points of the curve, where they are asked for; NaN where a learner diverged before."""

    def with_more_evaluations(self) -> Out:
        """The same with twice the room for evaluation episodes."""
        step, gain = (np.concatenate([a, np.zeros_like(a)]) for a in (self.evaluation_step, self.evaluation_return))
        return self._replace(evaluation_step=step, evaluation_return=gain)


def room_for(
    seeds: NDArray[np.uint64], size: int, settings: Settings, lanes: int = 1, *, snapshots: bool = False
) -> Out:
    """Room for what will come of these seeds."""
    n, points = len(seeds), len(settings.marks)
    evaluations = max(1024 if settings.evaluate_every else 0, lanes)
    return Out(
        seeds=seeds.astype(np.uint64),
        θ=np.zeros((n, size)),
        steps=np.zeros(n, np.int64),
        episodes=np.zeros(n, np.int64),
        largest=np.zeros(n),
        error=np.full((n, points), np.nan),
        returns=np.full((n, points), np.nan),
        at=np.zeros((n, points), np.int64),
        evaluation_step=np.zeros(evaluations, np.int64),
        evaluation_return=np.zeros(evaluations),
        evaluation_stop=np.zeros(n, np.int64),
        snapshots=np.full((n, points, size) if snapshots else (n, 0, 0), np.nan),
    )
