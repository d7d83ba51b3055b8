"""Do the states of a log hide something? A test of the Markov property, for states that are ids.

Take any function V of states. Where states are Markov,

    y_t = r_t + γ V(s_{t+1})

has a mean that (s_t, a_t) decides: nothing that came before step t changes it, whatever policy acted. So let e_t be y_t less the
mean of y over all steps with the same (s, a), and z_t some numbers of the past, also less their means over these steps. Then

    g = Σ_t z_t e_t,     C = Σ_t z_t z_tᵀ e_t² n/(n − 1),     gᵀ C⁻¹ g ~ χ² with as many degrees of freedom as C has rank

since z_t e_t has the mean 0 given all that came before; n is the number of steps with the same (s, a), whose mean takes away
some of e_t². V is the mean return that followed each state, in every other episode for the test of those between, and the other
way round. The numbers of the past are those of `PAST`.

A table of Q has no other way to notice: it may be right about μ, and wrong about π.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc  # pyright: ignore

from offtrace.logs.container import Logs, take
from offtrace.returns import corrections
from offtrace.traces import QLambda

LEVEL = 0.02
"""How often the test may fail by chance, where states hide nothing."""
STEPS = 1 << 20
"""Steps of a log on which it is tested: those of longer ones, of episodes spread evenly over it."""
PAST = (
    "that the episode has just begun",
    "how long it has run",
    "the state before",
    "the first state",
    "how the last step turned out",
    "how all steps so far turned out",
)
"""What is looked at of the past, in words; states by their V, steps by their e."""


@dataclass(frozen=True)
class HiddenStates:
    """What the test found."""

    chance: float
    """How often what was found comes by chance where states hide nothing; 1 where there was nothing to look at."""
    most: str = ""
    """The part of the past that tells most, in words."""

    @property
    def significant(self) -> bool:
        """Whether the states seem to hide something."""
        return self.chance < LEVEL

    @property
    def words(self) -> str:
        """What was found, in words."""
        if not self.significant:
            return "what came before tells no more about what follows than state and action do"
        often = f"1 of {1 / self.chance:,.0f}" if self.chance > 1e-6 else "less than 1 of a million"
        return (
            "the states seem to hide something: beyond state and action, what came before tells what follows, most of all "
            f"{self.most} (by chance in {often} logs)"
        )


def hidden_states(logs: Logs, gamma: float, *, timed: bool = False) -> HiddenStates | None:
    """Test whether the states of a log are Markov; None where they or the actions are no ids.

    `timed`: the number of the step is a part of the state.
    """
    if not logs.tabular or logs.continuous:
        return None
    if len(logs) > STEPS:
        logs = take(logs, np.arange(0, logs.episodes, -(-len(logs) // STEPS)))
    half = np.arange(logs.episodes) % 2
    parts = [
        _moments(take(logs, np.flatnonzero(half == i)), take(logs, np.flatnonzero(half != i)), gamma, timed)
        for i in (0, 1)
    ]
    return _tested(*map(np.concatenate, zip(*parts, strict=True)))


def _moments(logs: Logs, others: Logs, gamma: float, timed: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """z_t e_t of each step [N, k], and n / (n − 1) [N], n the steps of its pair.

    V is that of other episodes: one that knew these would seem to know what follows in them.
    """
    V = _mean_returns(others, gamma)
    pairs = logs.pairs
    if timed:
        pairs = pairs * (int(logs.age.max()) + 1) + logs.age
    _, pair, n = np.unique(pairs, return_inverse=True, return_counts=True)

    def less_mean(x: NDArray[np.float64]) -> NDArray[np.float64]:
        less = x - (np.bincount(pair, x) / n)[pair]
        return np.where(np.abs(less) > 1e-9 * np.abs(x).max(), less, 0.0)  # else it is rounding

    on = ~logs.terminated
    y = logs.reward.astype(np.float64)
    y[on] += gamma * V[logs.next_state[on]]
    e = less_mean(y)
    moments = np.column_stack([less_mean(x) * e for x in _past(logs, V[logs.state], e)])
    return moments, (n / np.maximum(n - 1, 1))[pair]


def _mean_returns(logs: Logs, gamma: float) -> NDArray[np.float64]:
    """The mean return that followed each state [S], up to where episodes end or were cut; 0 where nothing did."""
    visits, nothing = np.bincount(logs.state, minlength=logs.states), np.zeros(len(logs))
    returns = corrections(
        QLambda(lam=1.0), reward=logs.reward, q=nothing, next_value=nothing, terminated=logs.terminated,
        truncated=logs.truncated, gamma=gamma,
    )  # fmt: skip
    return np.bincount(logs.state, returns, logs.states) / np.maximum(visits, 1)


def _past(logs: Logs, v: NDArray[np.float64], e: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """The numbers of `PAST` at each step, each [N]."""
    first = logs.of_steps(logs.first_steps)
    age = logs.age
    begins = age == 0
    before = np.append(0.0, np.cumsum(e)[:-1])
    so_far = (before - before[first]) / np.sqrt(np.maximum(age, 1))
    last = np.where(begins, 0.0, np.append(0.0, e[:-1]))
    return begins.astype(np.float64), np.log1p(age), np.where(begins, v, np.append(0.0, v[:-1])), v[first], last, so_far


def _tested(moments: NDArray[np.float64], lost: NDArray[np.float64]) -> HiddenStates:
    """The test of Σ_t z_t e_t = 0, for z_t e_t [N, k] whose squares are too small by factors [N], since means were taken off."""
    size = np.sqrt((moments**2).sum(axis=0))
    informative = size > 0  # else state and action already say it
    if not informative.any():
        return HiddenStates(1.0)
    scaled = moments[:, informative] / size[informative]
    g, C = scaled.sum(axis=0), (lost[:, None] * scaled).T @ scaled
    values, vectors = np.linalg.eigh(C)
    kept = values > 1e-8 * values[-1]
    statistic = float(((vectors[:, kept].T @ g) ** 2 / values[kept]).sum())
    most = np.flatnonzero(informative)[int(np.argmax(np.abs(g)))]
    return HiddenStates(float(chdtrc(np.count_nonzero(kept), statistic)), PAST[most])
