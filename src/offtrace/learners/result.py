"""What a learner leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offtrace._shared import notebook
from offtrace.learners.arrays import Floats, Integers
from offtrace.learners.environments import Environment
from offtrace.learners.features import Features
from offtrace.learners.methods.base import Method
from offtrace.traces import Trace

if TYPE_CHECKING:  # Gymnasium is an extra
    from offtrace.learners.gymnasium import Observations

BEYOND = 1e6
"""A learner has diverged when its Q is so many times larger than any return of the rewards that it saw could be."""


def beyond(
    θ: Floats, largest: Floats, steps: Integers, where: Environment, first: Floats, noise: float
) -> NDArray[np.bool_]:
    """[n]: which of the learners with weights θ [n, size] have diverged, after so many steps with rewards of |r| ≤ `largest`.

    They began with the weights `first`, with noise of this standard deviation.

    A Q that averages returns, and began at Q_0, stays within

        |Q| ≤ max |Q_0| + max |r| · min(1 / (1 − γ), steps)

    and noise or a bad step size may take it out of there for a while. Beyond BEYOND times this it is an estimate of nothing,
    whether or not it would have become infinite in the end.
    """
    reach = np.minimum(steps, 1.0 / (1.0 - where.gamma) if where.gamma < 1.0 else np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        began = _magnitude(first[None], where)[0] + 10.0 * noise
        return ~(_magnitude(θ, where) <= BEYOND * (began + largest * reach))


def _magnitude(θ: Floats, where: Environment) -> Floats:
    """[n]: max |Q| over all pairs; where states have no numbers, what it is at most. Not finite where a weight is not."""
    if where.coder is not None and where.shape is None:
        return np.abs(θ).max(axis=1) * where.features.tile.shape[1] * where.tiles.value
    if where.features.is_table:
        return np.abs(θ).max(axis=1)
    each = θ.reshape(len(θ), -1, where.features.per_tile)
    return np.array([np.abs(np.einsum("sk,ska->sa", where.features.value, q[where.features.tile])).max() for q in each])


@dataclass(frozen=True, eq=False)
class Curve:
    """How learning went, at points that are even in steps (or in episodes, if the run was counted in those)."""

    steps: Integers
    """[points] or [seeds, points]: steps taken until then."""
    error: Floats
    """The root mean square of Q − truth over all pairs; NaN where the truth is not known, ∞ where a learner diverged."""
    returns: Floats
    """The mean discounted return of the training episodes that ended since the last point; NaN where none did."""


@dataclass(frozen=True, eq=False)
class Learned:
    """A result. With `seeds=n` arrays have a first axis of n; without, none."""

    method: Method
    """What learned: a `TraceLearner`, if a trace was given."""
    weights: Floats
    """θ [tiles, A], or [tiles] of state values; for a table this is Q [S, A] or V [S]. NaN where a learner diverged."""
    features: Features
    """Where θ is read: `q` does it."""
    coder: Observations | None
    """What turns observations into states or tiles; None for an MDP, whose states are numbers."""
    seeds: NDArray[np.uint64]
    """The seed of each learner."""
    steps: Integers
    """How many steps each took."""
    episodes: Integers
    """How many episodes each finished."""
    curve: Curve
    evaluations: tuple[tuple[Integers, Floats], ...]
    """For each learner: after how many steps its evaluation episodes took place, and their discounted returns."""
    wall: float
    """Seconds that the runs took."""

    @property
    def trace(self) -> Trace:
        """The trace whose eligibility vector the method used."""
        return self.method.trace

    def _repr_html_(self) -> str:
        """The learner in a notebook: what it did, and its curve, the mean over seeds."""
        steps, error, returns = (np.atleast_2d(a) for a in (self.curve.steps, self.curve.error, self.curve.returns))
        rows = [
            ("seeds", len(error)),
            ("steps", f"{np.sum(self.steps):,}"),
            ("episodes", f"{np.sum(self.episodes):,}"),
            ("seconds", f"{self.wall:.1f}"),
        ]
        name, mean = "error", error.mean(axis=0)
        if not np.isfinite(error).any():
            known = np.isfinite(returns)
            counts = known.sum(axis=0)
            name, mean = "return", np.where(known, returns, 0.0).sum(axis=0) / np.where(counts > 0, counts, np.nan)
        name += ", mean over seeds" * (len(error) > 1)
        curves = notebook.curves(steps.mean(axis=0), {name: mean}, "steps", name)
        return notebook.table(self.method.title, rows) + curves

    @property
    def Q(self) -> Floats:
        """[S, A], or [seeds, S, A]; of a table, or of an MDP with features."""
        self._require(states=False)
        return self._of_all_states("q")

    @property
    def V(self) -> Floats:
        """[S], or [seeds, S]: the state values of a table, or of an MDP with features."""
        self._require(states=True)
        return self._of_all_states("v")[..., 0]

    def q(self, observation: ArrayLike) -> Floats:
        """The values of all actions at an observation of the environment, or in a state of the MDP: [A] or [seeds, A]."""
        self._require(states=False)
        return self._at(observation)

    def v(self, observation: ArrayLike) -> Floats:
        """The state value at an observation of the environment, or in a state of the MDP: a number, or [seeds]."""
        self._require(states=True)
        return self._at(observation)[..., 0]

    def _require(self, states: bool) -> None:
        if self.features.states != states:
            kind, Q, q = ("state", "V", "v") if self.features.states else ("action", "Q", "q")
            raise TypeError(
                f"{self.method.title} has learned {kind} values: use result.{Q} and result.{q}(observation)"
            )

    @property
    def _each(self) -> Floats:
        """θ [seeds, tiles, A], or [seeds, tiles, 1]; without the axis of seeds where there is none."""
        return self.weights[..., None] if self.features.states else self.weights

    def _of_all_states(self, name: str) -> Floats:
        if not len(self.features.tile):
            raise TypeError(f"states of this environment have no numbers: use result.{name}(observation)")
        return np.einsum("sk,...ska->...sa", self.features.value, self._each[..., self.features.tile, :])

    def _at(self, observation: ArrayLike) -> Floats:
        if self.coder is None:
            state = int(np.asarray(observation))
            tile, value = self.features.tile[state], self.features.value[state]
        else:
            tile, value = self.coder.row(self.features, observation)
        return np.sum(self._each[..., tile, :] * np.broadcast_to(value, len(tile))[:, None], axis=-2)

    @property
    def diverged(self) -> np.bool_ | NDArray[np.bool_]:
        """Which learners diverged: at the end their Q was not finite, or BEYOND times larger than the rewards seen allow."""
        return np.isnan(self._each).any(axis=(-2, -1))

    def __str__(self) -> str:
        n = self.seeds.size
        who = "1 learner" if n == 1 else f"{n} learners"
        lines = [f"{self.method.title}: {who}, {int(np.sum(self.steps)):,} steps in {self.wall:.2f} s"]
        last = np.atleast_2d(self.curve.error)[:, -1:].ravel()
        ends = np.array([r[-100:].mean() for _, r in self.evaluations if len(r) and np.isfinite(r[-100:]).all()])
        for name, each in (("RMS error at the end", last[np.isfinite(last)]), ("evaluation, last 100", ends)):
            if each.size:
                lines.append(f"  {name}   {each.mean():.4g}" + ("" if n == 1 else f" ± {spread(each):.2g}"))
        if np.any(self.diverged):
            lines.append(f"  diverged               {int(np.sum(self.diverged))} of {n}")
        return "\n".join(lines)


def spread(x: Floats) -> float:
    """Half of a 95% interval of the mean, by the normal approximation."""
    with np.errstate(over="ignore"):  # of learners on their way to infinity
        return float(1.96 * np.std(x, ddof=1) / np.sqrt(x.size)) if x.size > 1 else float("nan")
