"""What `sweep` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from offtrace._shared import notebook
from offtrace._shared.number_text import counted


@dataclass(frozen=True, eq=False, kw_only=True)
class Swept:
    """What `sweep` found."""

    value: float
    """V(π), the mean over the first states of the episodes."""
    low: float = float("nan")
    """The lower end of its interval; NaN where there is none."""
    high: float = float("nan")
    confidence: float | None = None
    """How often the interval should cover V(π) over logs like these; None where none was asked for."""
    standard_error: float = float("nan")
    observed: float
    """V(μ): the mean discounted return of the episodes, which were not chosen by π."""
    observed_error: float
    """Its standard error."""
    table: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    """`Q` and `counts`; None where states are features."""
    unlogged: float = 0.0
    """The share of π's probability, over the logged states, on actions that were never logged there: what they are worth is
    a guess, of which the interval says nothing."""
    steps: int
    episodes: int
    sweeps: int
    """How often all files were read."""
    converged: bool
    """Whether Q is the fixed point; False where only so many sweeps were asked for, or it was not found."""
    q: Callable[[np.ndarray], np.ndarray] = field(repr=False)
    """Q(s, ·) [n, A] of states, ids or features."""
    values: Callable[[np.ndarray], np.ndarray] = field(repr=False)
    """Σ_a π(a|s) Q(s, a) [n]."""

    @property
    def Q(self) -> np.ndarray:
        """[S, A] of a table; V(s) for actions that were never logged in a state, 0 where nothing was."""
        return self._tables()[0]

    @property
    def counts(self) -> np.ndarray:
        """[S, A] of a table: how often each pair was logged."""
        return self._tables()[1]

    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        if self.table is None:
            raise TypeError("Q is not a table here, but a function of features: ask q(states) or values(states)")
        return self.table

    @property
    def _interval(self) -> str:
        if self.confidence is None:
            return ""
        return f" [{self.low:.6g}, {self.high:.6g}]" if np.isfinite(self.low) else ", without an interval"

    def __str__(self) -> str:
        kind = "the fixed point" if self.converged else "not the fixed point"
        guess = (
            f"; {100 * self.unlogged:.2g} % of π is on actions that were never logged there" if self.unlogged else ""
        )
        return (
            f"V(π) = {self.value:.6g}{self._interval} ({kind}, {counted(self.sweeps, 'sweep')}); "
            f"V(μ) = {self.observed:.6g} ± {self.observed_error:.2g} as logged; {self.steps:,} steps, {self.episodes:,} episodes"
            + guess
        )

    def _repr_html_(self) -> str:
        return notebook.words(str(self))
