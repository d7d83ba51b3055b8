"""What the compiled loop is told, and does not change: the MDP, features, the plan of a method, and for how long to learn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtrace.learners.core.acting import Levels
from offtrace.learners.core.called import Called
from offtrace.learners.core.record_arrays import Floats, Integers, Records

ONLINE, OFFLINE, REPLAY = 0, 1, 2


class World(NamedTuple):
    """The MDP. P, start are cumulated over each row; an empty `of_entry` means rewards R(s, a)."""

    P: Floats
    indptr: Integers
    to: Integers
    start: Floats
    ends: NDArray[np.bool_]
    R: Floats
    of_entry: Floats
    recorded: Records
    """Records STEP of a given trajectory, which is then followed step by step; empty: the learner lives in the MDP."""


class Features(NamedTuple):
    """q(s, a) = Σ_j value[s, j] θ[tile[s, j] · A + a]; on state values v(s) = Σ_j value[s, j] θ[tile[s, j]]."""

    A: int
    table: bool
    """Whether tile[s] is s and value[s] is 1, so that θ holds q(s, ·) as it stands."""
    tile: Integers
    value: Floats
    states: bool = False
    """Whether θ are weights of state values. `table` is then False, also where there is a weight for each state."""

    @property
    def per_tile(self) -> int:
        """How many weights a tile has: one for each action, or one in all."""
        return 1 if self.states else self.A


class Plan(NamedTuple):
    """The trace, and whether the method has a step of its own."""

    way: int
    """How the eligibility vector is kept: LINEAR, GROUPS or VISITS."""
    custom: bool
    recursive: bool
    share: float
    """The policy of δ is share·π + (1 − share)·μ: see `Trace.target_share`."""
    greedy: bool
    """Whether the rule reads π of the greedy policy: see `Rule.needs_greedy`."""
    reach: int
    """The horizon."""
    forget: float
    """A start that has less weight than this, of discounts and decays, is dropped."""
    log_forget: tuple[float, float]
    lags: Floats
    parameters: Floats
    """[1, n], or [pairs, n] where they differ from pair to pair."""
    lam: float
    """λ of a custom step."""
    first: Floats
    """What the rule keeps of a new start."""
    history: bool
    """Whether what it keeps of a start is π and μ there."""
    plain: bool
    """Whether all is as in Algorithm 1: action values, the mean over π in δ, corrections, and no step of the method's own."""
    bound: float
    """On state values δ carries min(bound, ρ): see `Trace.delta_bound`."""
    uncorrected: bool
    """Whether later steps bootstrap from v(s') alone, without their q: see `UncorrectedLearner`."""
    sampled: bool
    """Whether δ has the value of the next action taken, not the mean over all: see `Method.sampled`."""
    own_step: bool
    """Whether the method changes the weights by a step of its own: see `Method.step`."""
    traces: int
    """How many vectors it keeps through an episode: see `Method.traces`."""
    expects: bool
    """Whether that step is told Σ_a π(a|s) q(s, a): see `Method.expects`."""
    passes_on: bool
    """Whether that step is told what goes on, on action values: see `Method.passes_on`."""
    numbers: Floats
    """What that step is given: see `Method.numbers`."""
    enter_groups: Called
    """What keeps groups of starts, and is never called where `way` is not GROUPS: see `eligibility.groups_of_starts`."""
    advance_groups: Called


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
    look_every: int
    """There is an evaluation episode after each so many episodes; 0: never."""
    look_limit: int
    every: int
    """Sequences are drawn each so many steps."""
    batch: int
    length: int
