"""What a compiled loop reads and what it changes: named tuples of arrays, and records of numbers.

A *lane* is one copy of the environment: an MDP has one, a vector environment several, which share the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.learners.arrays import Floats, Integers, Records, Slots, record

ONLINE, OFFLINE, REPLAY = range(3)
BEHAVIOR, TARGET, EVALUATION, STEP_SIZE = range(4)
"""The places in `Task.schedules`."""

SETTINGS = record(
    update=np.int64,  # ONLINE, OFFLINE or REPLAY
    steps=np.int64,  # 0: no end
    episodes=np.int64,  # 0: no end
    limit=np.int64,  # the longest episode; 0: none
    gamma=np.float64,
    by_visits=np.int64,  # whether the step size is α / N(s, a)
    evaluate_every=np.int64,  # an evaluation episode follows each so many episodes; 0: never
    evaluation_limit=np.int64,
    every=np.int64,  # replay: sequences are drawn each so many steps,
    batch=np.int64,  # so many
    length=np.int64,  # of so many steps at most
    on_states=np.int64,  # whether state values are learned
    per_decision=np.int64,  # whether the eligibility vector itself is stored
    grouped=np.int64,  # whether groups of starts are
    recursive=np.int64,  # whether the rule clips what it multiplies
    horizon=np.int64,
    forget=np.float64,  # a start that has less weight than this, of discounts and decays, is dropped
    log_forget_w=np.float64,  # the same for groups: logarithms of that weight,
    log_forget_x=np.float64,  # and of the weight times the product of ratios
    lam=np.float64,  # λ of a custom step
    share=np.float64,  # the policy of δ is share·π + (1 − share)·μ: see `Trace.target_share`
    bound=np.float64,  # on state values δ carries min(bound, ρ): see `Trace.delta_bound`
    greedy=np.int64,  # whether the rule reads π of the greedy policy: see `Rule.needs_greedy`
    history=np.int64,  # whether a start carries its own π and μ
    custom=np.int64,  # whether the rule is a custom step
    uncorrected=np.int64,  # see `Method.uncorrected`
    sampled=np.int64,  # see `Method.sampled`
    expects=np.int64,  # see `Method.expects`
    passes_on=np.int64,  # see `Method.passes_on`
)

PROGRESS = record(
    budget=np.int64,  # steps to take before the loop returns
    done=np.int64,  # whether the learner is done
    bad=np.int64,  # whether a custom step gave no coefficient
    step=np.int64,  # steps taken, in all lanes together
    episode=np.int64,  # episodes finished, in all lanes together
    mark=np.int64,  # the next point of the curve
    evaluation_state=np.int64,  # where an evaluation episode continues; −1: a new one begins
    evaluations=np.int64,  # evaluation episodes so far
    returns=np.float64,  # the sum of the returns since the last point of the curve
    finished=np.float64,  # the number of episodes in that sum
    largest=np.float64,  # the largest |reward|
)
"""How far the learner is: all lanes share it."""

LANE = record(
    state=np.int64,  # the current state
    begins=np.int64,  # whether an episode begins there, or is still to begin
    age=np.int64,  # steps of this episode
    step=np.int64,  # steps taken by all lanes when its action was chosen
    episode=np.int64,  # episodes finished when it began
    head=np.int64,  # where the next step goes in the buffer
    filled=np.int64,  # how many steps the buffer holds
    since=np.int64,  # steps since sequences were drawn from it
    chosen=np.int64,  # the next action, where it is known already; −1: it is still to be chosen
    discount=np.float64,  # γ, but 0 at the first step of an episode
    gain=np.float64,  # γ^age
    total=np.float64,  # the episode's return so far
    alpha=np.float64,  # the step size
    pi=np.float64,  # π(a|s) of the action taken
    greedy=np.float64,  # 1 if that action maximised q(s, ·)
    value=np.float64,  # q(s, a), or v(s)
    bootstrap=np.float64,  # what the previous step bootstrapped from
    previous_pi=np.float64,  # π, μ and the pair of the previous action, which the rule reads on state values
    previous_mu=np.float64,
    previous_pair=np.int64,
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
"""One step, in a buffer or of a given trajectory."""

ENTRY = record(
    cumulated=np.float64,  # the sum of the probabilities of this row so far
    to=np.int64,  # the next state,
    ends=np.int64,  # whether it is terminal,
    reward=np.float64,  # and the reward on the way there
)
"""One entry of an MDP's P."""


class World(NamedTuple):
    """An MDP as a list of entries, or a given trajectory. For Gymnasium's environments both are None."""

    entries: Records | None
    """Records ENTRY."""
    rows: Integers | None
    """[S·A + 2]: entries rows[i] … rows[i+1] − 1 are those of the pair i; the last row is the distribution of starts."""
    recorded: Records | None
    """Records STEP of a given trajectory, which is then followed."""


class Task(NamedTuple):
    """What a loop reads and does not change."""

    settings: Records
    """[1]: a record SETTINGS."""
    tile: Integers
    """[S, k]: q(s, a) = Σ_j value[s, j] θ[tile[s, j] · A + a]; on state values v(s) = Σ_j value[s, j] θ[tile[s, j]]."""
    value: Floats
    schedules: Records
    """[4]: records POLICY of the behaviour, the target, the policy of evaluation episodes, and the step size: see BEHAVIOR."""
    behavior: Floats
    """[S, A]: the policy, if it is a table; else empty."""
    target: Floats
    evaluation: Floats
    parameters: Floats
    """[1, n] of the rule, or [pairs, n] where they differ from pair to pair."""
    lags: Floats
    """Bounds of β by lag; empty if there are none."""


class Curve(NamedTuple):
    """What is recorded on the way."""

    marks: Integers
    """[points]: when, in steps or, if the end is in episodes, in those."""
    points: Floats
    """[points, 3]: the root mean square of Q − truth, the mean return of the episodes since the last point, and the steps."""
    snapshots: Floats
    """[points, size]: θ at each point; empty if that is not wanted."""
    truth: Floats
    """[S, A], or [S, 1] of state values; empty if it is not known."""
    judged: Integers
    """The states over which the error is taken."""
    evaluations: Floats
    """[room, 2]: the step of each evaluation episode, and its return."""


class Memory(NamedTuple):
    """A learner: all lanes share it."""

    progress: Records
    """[1]: a record PROGRESS."""
    streams: np.ndarray
    """[2]: random numbers."""
    θ: Floats
    """[size]: the weights."""
    further: Floats
    """[n, size]: see `Method.further`."""
    N: Floats
    """[size]: visits, if step sizes are by them; else empty."""
    q: Floats
    """[A]: workspace for q(s, ·)."""
    q_next: Floats
    """[A]: workspace for q(s', ·)."""
    active: Integers
    """[k]: workspace for the weights of (s, a)."""
    carry: Floats
    """[c]: what a custom step carries from a new start."""


class Lane(NamedTuple):
    """What each lane has for itself, besides its eligibility vector."""

    lane: Records
    """[1]: a record LANE."""
    buffer: Records
    """[capacity]: records STEP. Without replay it has one, the step that the lane is taking."""
    sums: Floats
    """[size]: what learning changes: θ itself, or the sums over an episode (offline) or a sequence (replay)."""
    summed: Slots
    """The weights for which such a sum may not be 0."""
