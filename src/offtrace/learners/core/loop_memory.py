"""What the compiled loop keeps from step to step, and what comes of it.

Everything that changes stands in arrays and records between calls, so that a run can be cut anywhere, saved and gone on with.
A *lane* is one copy of the environment: an MDP has one, a vector environment several, which share the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtrace.learners.core.acting import NOW
from offtrace.learners.core.loop_settings import ONLINE, REPLAY, Settings
from offtrace.learners.core.record_arrays import Floats, Integers, Records, record

PROGRESS = record(
    seed=np.int64,  # which seed of the block is learning
    begun=np.int64,  # whether it has begun
    step=np.int64,  # steps taken, in all lanes together
    episode=np.int64,  # episodes finished, in all lanes together
    mark=np.int64,  # the next point of the curve
    look_state=np.int64,  # where an evaluation episode goes on; −1: a new one begins
    looks=np.int64,  # evaluation episodes of all seeds so far
    returns=np.float64,  # the sum of the returns since the last point of the curve
    finished=np.float64,  # how many episodes that sum has
)
"""How far the learner is: it is shared by all lanes."""

LANE = record(
    state=np.int64,  # where the lane is; −1: a new episode begins
    action=np.int64,  # what it did there
    age=np.int64,  # steps of this episode
    touched=np.int64,  # how many weights `Memory.touched` lists
    head=np.int64,  # where the ring of the buffer goes on
    filled=np.int64,  # how many steps the ring holds
    since=np.int64,  # steps since sequences were drawn from it
    chosen=np.int64,  # the next action, where it is known already; −1: it is still to be chosen
    tidy=np.int64,  # how many weights may be listed before those that no vector uses are looked for
    discount=np.float64,  # γ, but 0 at the first step of an episode
    gain=np.float64,  # γ^age
    total=np.float64,  # the episode's return so far
    alpha=np.float64,  # the step size
    pi=np.float64,  # π(a|s) of the action taken
    mu=np.float64,  # μ(a|s)
    value=np.float64,  # q(s, a), or v(s)
    ahead=np.float64,  # what the step before bootstrapped from
    greedy=np.float64,  # 1 if the action maximised q(s, ·)
)
"""One copy of the environment, and the step it is taking."""

STEP = record(
    state=np.int64,
    action=np.int64,
    next_state=np.int64,
    terminated=np.int64,
    truncated=np.int64,
    reward=np.float64,
    mu=np.float64,  # μ(a|s) when the step was taken
)
"""One step in the buffer."""

TRANSITION = record(
    state=np.int64,
    action=np.int64,
    next_state=np.int64,
    terminated=np.int64,
    reward=np.float64,
    delta=np.float64,  # δ = r + γ Σ_a' π(a'|s') q(s', a') − q(s, a)
    gamma=np.float64,
    discount=np.float64,  # γ, but 0 at the first step of an episode
    alpha=np.float64,
    pi=np.float64,  # π(a|s)
    mu=np.float64,  # μ(a|s)
    rho=np.float64,  # π(a|s) / μ(a|s)
    ratio=np.float64,  # what δ is multiplied by on state values; 1 on action values
    value=np.float64,  # q(s, a), or v(s)
    next_value=np.float64,  # what δ bootstraps from; 0 where the episode has terminated
    expected=np.float64,  # Σ_a π(a|s) q(s, a), where the method asks for it
)
"""One step, as `Method.step` is told it."""


class Memory(NamedTuple):
    """One learner. What lanes do not share has a first axis of lanes; compiled functions see one lane: see `as_seen`."""

    progress: Records
    """One record PROGRESS, shared."""
    lane: Records
    """A record LANE for each lane."""
    transition: Records
    """One record TRANSITION: room for what a method's own step is told."""
    streams: NDArray[np.uint64]
    """[2]: random numbers."""
    θ: Floats
    """[size]: the weights."""
    further: Floats
    """[n, size]: further weights of the method: see `Method.further`."""
    traces: Floats
    """[lanes, n, size]: vectors of the method that begin anew with each episode, 0 but for the weights in `touched`."""
    scalars: Floats
    """[lanes, n]: numbers of the method that begin anew with each episode."""
    U: Floats
    """[lanes, size]: what an episode has added up (offline, replay)."""
    touched: Integers
    """[lanes, size]: the weights for which U or `traces` may not be 0, in the order of their first visit."""
    is_touched: NDArray[np.bool_]
    """[lanes, size]: whether a weight is among those."""
    sizes: Floats
    """[size]: 1 / N, if step sizes are by visits; else empty."""
    N: Floats
    """[size]: visits."""
    behavior: Records
    """A record NOW for each lane: the behaviour at this moment."""
    target: Records
    """The same of the target."""
    looking: Records
    """The same of the policy of evaluation episodes."""
    q: Floats
    """[2, A]: room for the values of s and s'."""
    weights: Integers
    """[k]: room for the weights of (s, a)."""
    ahead: Integers
    """[k · A]: room for the weights of all pairs of s'."""
    ahead_numbers: Floats
    """[k · A]: room for their numbers in Σ_a' π(a'|s') ∇q(s', a')."""
    ahead_on: Floats
    """[k · A]: room for their numbers in Σ_a' μ(a'|s') c(s', a') ∇q(s', a')."""
    copied: Integers
    """[2]: how many numbers the copies of the eligibility vector have: see `Kept.copied_weights`."""
    buffer: Records
    """[lanes, capacity]: a ring of records STEP."""


def memory(
    size: int,
    A: int,
    k: int,
    *,
    lanes: int,
    kept: tuple[int, int, int],
    by_visits: bool,
    update: int,
    capacity: int,
) -> Memory:
    """The memory of a learner that has not begun. `kept` says how many vectors last, how many vectors and how many numbers
    begin anew with each episode.
    """
    further, traces, scalars = kept
    some = 0 if update == ONLINE else size
    listed = size if traces else some
    ring = capacity if update == REPLAY else 0
    visits = size if by_visits else 0
    return Memory(
        progress=np.zeros(1, PROGRESS),
        lane=np.zeros(lanes, LANE),
        transition=np.zeros(1, TRANSITION),
        streams=np.zeros(2, np.uint64),
        θ=np.zeros(size),
        further=np.zeros((further, size)),
        traces=np.zeros((lanes, traces, size)),
        scalars=np.zeros((lanes, scalars)),
        U=np.zeros((lanes, some)),
        touched=np.zeros((lanes, listed), np.int64),
        is_touched=np.zeros((lanes, listed), np.bool_),
        sizes=np.ones(visits),
        N=np.zeros(visits),
        behavior=np.zeros(lanes, NOW),
        target=np.zeros(lanes, NOW),
        looking=np.zeros(lanes, NOW),
        q=np.zeros((2, A)),
        weights=np.zeros(k, np.int64),
        ahead=np.zeros(k * A, np.int64),
        ahead_numbers=np.zeros(k * A),
        ahead_on=np.zeros(k * A),
        copied=np.zeros(2, np.int64),
        buffer=np.zeros((lanes, ring), STEP),
    )


def as_seen(ms: Memory, j: int) -> Memory:
    """The memory as lane j sees it."""
    return Memory(
        ms.progress[0, ...],
        ms.lane[j, ...],
        ms.transition[0, ...],
        ms.streams,
        ms.θ,
        ms.further,
        ms.traces[j],
        ms.scalars[j],
        ms.U[j],
        ms.touched[j],
        ms.is_touched[j],
        ms.sizes,
        ms.N,
        ms.behavior[j, ...],
        ms.target[j, ...],
        ms.looking[j, ...],
        ms.q,
        ms.weights,
        ms.ahead,
        ms.ahead_numbers,
        ms.ahead_on,
        ms.copied,
        ms.buffer[j],
    )


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
    look_step: Integers
    """[room]: when the evaluation episodes of all seeds, one after another, took place."""
    look_return: Floats
    """[room]: their returns."""
    look_stop: Integers
    """[n]: where those of each seed end."""
    snapshots: Floats
    """[n, points, size]: θ at the points of the curve, where they are asked for; NaN where a learner diverged before."""

    def with_more_looks(self) -> Out:
        """The same with twice the room for evaluation episodes."""
        more = (np.concatenate([a, np.zeros_like(a)]) for a in (self.look_step, self.look_return))
        return self._replace(**dict(zip(("look_step", "look_return"), more, strict=True)))


def room_for(
    seeds: NDArray[np.uint64], size: int, settings: Settings, lanes: int = 1, *, snapshots: bool = False
) -> Out:
    """Room for what will come of these seeds."""
    n, points = len(seeds), len(settings.marks)
    looks = max(1024 if settings.look_every else 0, lanes)
    return Out(
        seeds=seeds.astype(np.uint64),
        θ=np.zeros((n, size)),
        steps=np.zeros(n, np.int64),
        episodes=np.zeros(n, np.int64),
        largest=np.zeros(n),
        error=np.full((n, points), np.nan),
        returns=np.full((n, points), np.nan),
        at=np.zeros((n, points), np.int64),
        look_step=np.zeros(looks, np.int64),
        look_return=np.zeros(looks),
        look_stop=np.zeros(n, np.int64),
        snapshots=np.full((n, points, size) if snapshots else (n, 0, 0), np.nan),
    )
