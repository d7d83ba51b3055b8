"""The first states over which V(π) is the mean: those of the logged episodes, or others that were given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from offtrace._shared.suggestions import did_you_mean
from offtrace.logs.container import Logs
from offtrace.logs.fit import Fit, Regressed
from offtrace.trajectory import distributions


@dataclass(frozen=True, eq=False)
class Starts:
    """V(π) = Σ_i weight_i V^π(state_i)."""

    state: np.ndarray
    weight: np.ndarray
    own: bool
    """Whether they are those of the episodes: then they are a sample too, and count in the error."""
    episodes: int

    @classmethod
    def of(cls, logs: Logs, initial: object) -> Self:
        """None: the episodes' own; states [m], by their names if they have any, or features [m, d], all alike; or a distribution
        [S] over ids, in floats."""
        E = logs.episodes
        if initial is None:
            return cls(logs.state[logs.first_steps], np.full(E, 1 / E), True, E)
        given = np.asarray(initial)
        if logs.tabular and given.dtype.kind == "f":
            logs.require_order("initial is a distribution [S], which goes by position", "states")
            if given.shape != (logs.states,):
                raise ValueError(
                    f"initial, as a distribution, must have {logs.states} probabilities that sum to one, got shape "
                    f"{given.shape} with sum {given.sum():g}; as states, it must hold integers"
                )
            return cls(
                np.arange(logs.states), distributions(given[None], "initial, as a distribution,", "row")[0], False, E
            )
        if logs.state_names:
            given = _ids(given, logs)
        wanted = 1 if logs.tabular else 2
        fits = given.ndim == wanted and len(given) > 0 and given.dtype.kind in ("iu" if logs.tabular else "fiu")
        if fits and logs.tabular:
            fits = bool(((given >= 0) & (given < logs.states)).all())
        if not fits or (wanted == 2 and given.shape[1:] != logs.state.shape[1:]):
            what = f"ids below {logs.states}" if logs.tabular else f"features [m, {logs.state.shape[1]}]"
            raise ValueError(f"initial must hold states, {what}, got {given.dtype} of shape {given.shape}")
        return cls(given, np.full(len(given), 1 / len(given)), False, E)

    def contributions(self, values: np.ndarray) -> np.ndarray:
        """From V^π at the states, what each episode contributes to V(π) by its own first state [E]."""
        return values if self.own else np.full(self.episodes, self.weight @ values)

    def of_fit(self, fitted: Fit | Regressed) -> tuple[float, np.ndarray]:
        """V(π) of a fit, and what each episode contributes [E]: by its first state, and by its pull on Q̂ where that is known."""
        values = fitted.values(self.state)
        value, by_start = float(self.weight @ values), self.contributions(values)
        if isinstance(fitted, Regressed):
            return value, by_start
        pull = fitted.influence(fitted.basis.spread_values(self.state, self.weight))
        return value, by_start + self.episodes * pull


def _ids(given: np.ndarray, logs: Logs) -> np.ndarray:
    """The ids of states that are given by their names."""
    place = {name: s for s, name in enumerate(logs.state_names)}
    for name in given.ravel().tolist():
        if name not in place:
            names = [str(each) for each in place]
            raise ValueError(
                f"initial must hold states as the logs name them, and has {name!r}{did_you_mean(str(name), names)}: they have "
                f"{logs.order('states')}"
            )
    return np.array([place[name] for name in given.ravel().tolist()], np.int64).reshape(given.shape)
