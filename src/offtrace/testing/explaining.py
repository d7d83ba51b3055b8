"""From rows on which a function is wrong to findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from offtrace.testing import wrong_coefficients
from offtrace.testing.calling import Estimator
from offtrace.testing.credit import Credit, measured, wanted
from offtrace.testing.findings import Finding, trajectory_of
from offtrace.testing.mistakes import Clue, Mistake, clues
from offtrace.testing.shrinking import smallest
from offtrace.testing.trials import Quantity, Row, Scenario, Setting, scale

NOT_LINEAR = "The result is not linear in rewards and values, which a return is: is something normalised or clipped?"


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
    by_row: list[tuple[Clue, int]] = []
    measured_rows: list[tuple[Row, Credit, Credit]] = []
    wrong_rows = [int(b) for b in np.flatnonzero(failure.off.any(axis=1))]
    for b in wrong_rows:
        row, got = failure.scenario.rows[b], failure.got[b]
        if not np.isfinite(got[row.valid]).all():
            says = "A result is not finite"
            says += ", though π = 0 is legal: it cuts the trace." if not np.isfinite(row.log_pi).all() else "."
            return [(_plain(failure, b, "not a number", says), b)]
    if mixed := _of_the_batch(estimator, failure, quantity):
        return [(_plain(failure, wrong_rows[0], *mixed), wrong_rows[0])]
    for b in wrong_rows:
        row, got, near = failure.scenario.rows[b], failure.got[b], failure.near
        seen, want = measured(estimator, row, quantity), wanted(estimator.rule, row, estimator.values, quantity)
        size = scale(row, estimator.rule, estimator.values, quantity)
        if (np.abs(seen.predicted(row, estimator.values) - got) > near * size)[row.valid].any():
            return [(_plain(failure, b, "not linear", NOT_LINEAR), b)]
        if lost := _lost_step(row, seen, want, near):
            return [(_plain(failure, b, "step lost", lost), b)]
        by_row += [(clue, b) for clue in clues(estimator.rule, row, estimator.values, quantity, seen, want, near)]
        measured_rows.append((row, seen, want))
    if not by_row and not found:
        inside = _inside(estimator, measured_rows, quantity, failure.near, on_policy)
        by_row += [(clue, wrong_rows[i]) for i, clue in inside]
    if not by_row and not found:
        b = wrong_rows[0]
        by_row.append((_plain(failure, b, "unknown", "The result is wrong, and no single number shows why."), b))
    return by_row


def _of_the_batch(estimator: Estimator, failure: Wrong, quantity: Quantity) -> tuple[Mistake, str] | None:
    """What is wrong if the result is not linear in the batch, or if a row's result depends on its place or on other rows."""
    rows, got = failure.scenario.rows, failure.got
    valid = np.stack([row.valid for row in rows])
    of = (estimator.rule, estimator.values, quantity)
    size = failure.near * np.stack([scale(row, *of) for row in rows])

    def result(rows: Sequence[Row]) -> np.ndarray:
        return estimator(rows)[quantity]

    def differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return valid & ~(np.abs(a - b) <= 2 * size)

    for names in (("reward",), ("own", "next_value")):  # f(0) lies half way from f(x) to f(−x)
        none, turned = (
            result([replace(row, **{name: by * getattr(row, name) for name in names}) for row in rows])
            for by in (0, -1)
        )
        if np.isfinite(turned[valid]).all() and differ(none, (got + turned) / 2).any():
            return "not linear", NOT_LINEAR
    if estimator.layout == "[T]" or len(rows) < 2:
        return None
    B = len(rows)
    for moved in ([B - 1, 0, *range(2, B - 1), 1], [*range(1, B - 1), 0, B - 1]):
        if differ(result([rows[b] for b in moved])[np.argsort(moved)], got).any():
            return "rows mixed up", _place_in_batch(failure, size)
    for b, row in enumerate(rows):
        alone = result([row if i == b else other.with_numbers(estimator.values) for i, other in enumerate(rows)])
        if differ(alone, got)[b].any():
            return "rows mixed up", f"The result of row {b} depends on the numbers of other rows."
    return None


def _place_in_batch(failure: Wrong, size: np.ndarray) -> str:
    """How a result depends on the row's place in the batch."""
    got, want = failure.got, failure.wanted
    wrong = [int(b) for b in np.flatnonzero(failure.off.any(axis=1))]
    for b in wrong:
        for other in range(len(got)):
            if other != b and (np.abs(got[b] - want[other]) <= size[other]).all():
                return f"Rows of the batch change places: row {b} gets the result of row {other}."
    if len(wrong) == 1 and wrong[0] in (0, len(got) - 1):
        return f"Only row {wrong[0]}, the {'last' if wrong[0] else 'first'} one of the batch, is wrong."
    return "What a row returns depends on its place in the batch."


def _lost_step(row: Row, seen: Credit, want: Credit, near: float) -> str | None:
    """Which step's TD error counts nowhere, or whose return is never computed, on a row of one episode."""
    if row.steps < 2 or not row.goes_on[:-1].all():
        return None
    off = np.abs(seen.reward - want.reward) > near
    none = np.abs(seen.reward) <= near
    if none[0].all() and not off[1:].any():
        return "The return of a row's first step is not computed."
    if none[:, -1].all() and not off[:, :-1].any():
        return "The last step of a row counts in no return."
    if none.diagonal().all() and not np.triu(off, 1).any():
        return "The TD error of a return's own step does not count."
    return None


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
        named = wrong_coefficients.named(Setting(*of), [row for row, _, _ in rows], seen, near)
    _, i, k, t = min(places)
    return [(i, Clue(*named, k, "reward", t, float(rows[i][1].reward[k, t]), float(rows[i][2].reward[k, t])))]


def finding_of(estimator: Estimator, failure: Wrong, clue: Clue, b: int, quantity: Quantity) -> Finding:
    """A clue of row b with the first step that is wrong and the smallest trajectory."""
    called = {"own": "value" if estimator.values == "state" else "q"}.get(clue.number, clue.number)
    explanation = clue.says
    counted = clue.mistake not in ("not a number", "not linear", "rows mixed up", "step lost")
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
