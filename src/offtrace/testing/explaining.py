"""From rows on which a function is wrong to findings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from offtrace.testing import wrong_coefficients
from offtrace.testing.calling import Estimator
from offtrace.testing.credit import Credit, measured, wanted
from offtrace.testing.findings import Finding, trajectory_of
from offtrace.testing.mistakes import Clue, Mistake, clues
from offtrace.testing.shrinking import smallest
from offtrace.testing.trials import Quantity, Row, Scenario, scale


class Wrong(NamedTuple):
    """A scenario on which the function is wrong."""

    scenario: Scenario
    got: np.ndarray
    wanted: np.ndarray
    off: np.ndarray
    """[B, T], the steps that are wrong."""
    near: float
    """What counts as rounding."""


def explained(
    estimator: Estimator, failure: Wrong, quantity: Quantity, on_policy: bool, *, found: bool
) -> list[tuple[Clue, int]]:
    """What is wrong on the rows of a scenario. Nothing where what was found on simpler ones may well be all."""
    made: list[tuple[Clue, int]] = []
    measured_rows: list[tuple[Row, Credit, Credit]] = []
    wrong_rows = [int(b) for b in np.flatnonzero(failure.off.any(axis=1))]
    for b in wrong_rows:
        row, got, near = failure.scenario.rows[b], failure.got[b], failure.near
        if not np.isfinite(got[row.valid]).all():
            says = "A result is not finite"
            says += ", though π = 0 is legal: it cuts the trace." if not np.isfinite(row.log_pi).all() else "."
            return [(_plain(failure, b, "not a number", says), b)]
        seen, want = measured(estimator, row, quantity), wanted(estimator.rule, row, estimator.values, quantity)
        size = scale(row, estimator.rule, estimator.values, quantity)
        if (np.abs(seen.predicted(row, estimator.values) - got) > near * size)[row.valid].any():
            says = (
                "The result is not linear in rewards and values, which a return is: is something normalised or clipped?"
            )
            return [(_plain(failure, b, "not linear", says), b)]
        made += [(clue, b) for clue in clues(estimator.rule, row, estimator.values, quantity, seen, want, near)]
        measured_rows.append((row, seen, want))
    if not made and not found:
        inside = _inside(estimator, measured_rows, quantity, failure.near, on_policy)
        made += [(clue, wrong_rows[i]) for i, clue in inside]
    if not made and not found:
        b = wrong_rows[0]
        made.append((_plain(failure, b, "unknown", "The result is wrong, and no single number shows why."), b))
    return made


def _plain(failure: Wrong, b: int, mistake: Mistake, says: str) -> Clue:
    """A clue that is about a whole row: its first step that is wrong."""
    t = int(np.argmax(failure.off[b]))
    return Clue(mistake, says, t, "reward", t, float(failure.got[b, t]), float(failure.wanted[b, t]))


def _inside(
    estimator: Estimator, rows: list[tuple[Row, Credit, Credit]], quantity: Quantity, near: float, on_policy: bool
) -> list[tuple[int, Clue]]:
    """A start and a step of its episode, as near as may be, whose reward counts wrongly, with the number of its row."""
    places: list[tuple[int, int, int, int]] = []
    for i, (row, seen, want) in enumerate(rows):
        off = np.abs(seen.reward - want.reward) > near * np.maximum(1.0, np.abs(want.reward))
        for k, t in np.argwhere(off):
            if row.valid[k] and k <= t <= row.last(int(k)):
                places.append((int(t - k), i, int(k), int(t)))
    if not places:
        return []
    named: tuple[Mistake, str] = ("unknown", "A step inside of its episode has a wrong coefficient.")
    if all(row.goes_on[:-1].all() for row, _, _ in rows):  # each is one episode
        of = (estimator.rule, estimator.values, quantity, on_policy, not estimator.by_step)
        seen = [seen.reward for _, seen, _ in rows]
        named = wrong_coefficients.named(wrong_coefficients.Setting(*of), [row for row, _, _ in rows], seen, near)
    _, i, k, t = min(places)
    return [(i, Clue(*named, k, "reward", t, float(rows[i][1].reward[k, t]), float(rows[i][2].reward[k, t])))]


def finding_of(estimator: Estimator, failure: Wrong, clue: Clue, b: int, quantity: Quantity) -> Finding:
    """A clue of row b with the first step that is wrong and the smallest trajectory."""
    called = {"own": "value" if estimator.values == "state" else "q"}.get(clue.number, clue.number)
    explanation = clue.says
    counted = clue.mistake not in ("not a number", "not linear")
    if counted:
        places = f"{called}[{b}, {clue.t}] counts {clue.got:.4g} in {quantity}[{b}, {clue.k}]"
        explanation += f"\n{places}; it should count {clue.wanted:.4g}."
    shown = smallest(estimator, failure.scenario.rows[b], clue, quantity, failure.near) if counted else None
    at = tuple(int(i) for i in np.argwhere(failure.off)[0])
    return Finding(
        clue.mistake,
        explanation,
        quantity,
        failure.scenario.shows,
        (at[0], at[1]),
        float(failure.got[at]),
        float(failure.wanted[at]),
        None if shown is None else trajectory_of(shown, estimator.values, estimator.rule),
        None if shown is None else shown.got,
        None if shown is None else shown.wanted,
    )
