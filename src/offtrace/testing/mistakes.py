"""From what a function credits to the mistake that it looks like.

A return is Σ_t C[k, t] δ_t, with q_k or V_k added to a target. So the credit of rewards is C itself, and that of values follows
from C. A wrong C inside an episode is a matter of ratios, λ and γ (`wrong_coefficients`); a credit of values that does not follow
from the function's own C is a matter of bootstrapping; any credit beyond an end is a leak.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from offtrace.testing.credit import Credit
from offtrace.testing.trials import Input, Quantity, Row, Values
from offtrace.traces import Rule

Mistake = Literal[
    "boundary leak",
    "ratio off by one",
    "bootstrap counted twice",
    "lambda misplaced",
    "truncation taken for termination",
    "padding taken for an end",
    "padding read",
    "termination bootstrapped",
    "row's end not bootstrapped",
    "value of another step",
    "reward of another step",
    "step lost",
    "later values missing",
    "target and correction mixed up",
    "ratio missing",
    "ratio upside down",
    "ratio altered",
    "discount misplaced",
    "trace not started at 1",
    "wrong horizon",
    "another number",
    "another rule",
    "rows mixed up",
    "not linear",
    "not a number",
    "unknown",
]
"""The mistakes that are told apart."""


class Clue(NamedTuple):
    """One number that counts in one return as it must not."""

    mistake: Mistake
    says: str
    """What the mistake is, in a sentence."""
    k: int
    """The step whose return is wrong."""
    number: Input
    t: int
    """The step whose reward or value counts wrongly in it."""
    got: float
    wanted: float


def clues(
    rule: Rule, row: Row, values: Values, quantity: Quantity, seen: Credit, right: Credit, near: float
) -> list[Clue]:
    """All that is wrong on one row but for the coefficients inside episodes, nearest steps first. `near` is the tolerance."""
    moved = list(_moved_rewards(row, seen, right, near)) or list(_moved_values(rule, row, values, quantity, seen, near))
    if moved:
        return moved
    beyond = list(_beyond_ends(row, seen, right, near))
    all_clues = beyond + list(_discounts(rule, row, values, quantity, seen, near))
    if len(all_clues) == len(beyond):
        all_clues += _bootstraps(rule, row, seen, near, {clue.k for clue in beyond})
    if not all_clues:
        all_clues = list(_inner_values(rule, row, values, quantity, seen, near))
    return sorted(all_clues, key=lambda clue: abs(clue.t - clue.k))


def _pairs(row: Row) -> Iterator[tuple[int, int]]:
    """Every return k with every step t of its episode from k on."""
    for k in np.flatnonzero(row.valid):
        for t in range(int(k), row.last(int(k)) + 1):
            yield int(k), t


def _beyond_ends(row: Row, seen: Credit, right: Credit, near: float) -> Iterator[Clue]:
    """Credit where there must be none: beyond the end of k's episode, or from padding."""
    rewards: tuple[Input, np.ndarray, np.ndarray] = ("reward", seen.reward, right.reward)
    for name, got, want in (*_named_values(seen, (right.own, right.next_value)), rewards):
        for k in map(int, np.flatnonzero(row.valid)):
            for t in range(row.steps):
                if k <= t <= row.last(k) or abs(got[k, t] - want[k, t]) <= near:
                    continue
                numbers = (k, name, t, float(got[k, t]), float(want[k, t]))
                ended = bool((row.terminated | row.truncated)[row.last(k) : t].any())
                if t < k:
                    yield Clue("unknown", "A return reads what came before its own step.", *numbers)
                elif not row.valid[t]:
                    yield Clue("padding read", "Numbers at padding count; they are no steps.", *numbers)
                elif ended:
                    what = "Credit passes over the end of an episode into the next one of the row."
                    if name == "own" and t == row.last(k) + 1 and got[k, t] > 0:
                        what = "A step that ends its episode bootstraps from the first value of the next episode."
                    yield Clue("boundary leak", what, *numbers)
                else:
                    yield Clue("padding read", "Credit passes over padding.", *numbers)


def _bootstraps(rule: Rule, row: Row, seen: Credit, near: float, leaking: set[int]) -> Iterator[Clue]:
    """Bootstraps at the last steps of episodes, compared with the credit that the function gives to the reward there."""
    for k, t in _pairs(row):
        if t != row.last(k):
            continue
        credit, got = float(seen.reward[k, t]), float(seen.next_value[k, t])
        want = 0.0 if row.terminated[t] else credit * float(row.gamma[t])
        if abs(got - want) <= near * max(1.0, abs(want)) or _reads_next_episode(row, seen, k, leaking, near):
            continue
        numbers = (k, "next_value", t, got, want)
        if row.terminated[t]:
            yield Clue("termination bootstrapped", "A terminated step bootstraps; nothing follows it.", *numbers)
        elif abs(got) <= near:
            yield Clue(*_lost(row, t), *numbers)
        elif abs(got - want * row.gamma[t]) <= near * abs(want):
            yield Clue("discount misplaced", "The value after the last step is discounted twice.", *numbers)
        elif abs(got - credit) <= near * abs(want):
            yield Clue("discount misplaced", "The value after the last step is not discounted.", *numbers)
        elif got > want > 0:
            yield Clue("bootstrap counted twice", "The value after the last step counts more than once.", *numbers)
        else:
            yield Clue("unknown", "The value after the last step has a wrong weight.", *numbers)


def _discounts(rule: Rule, row: Row, values: Values, quantity: Quantity, seen: Credit, near: float) -> Iterator[Clue]:
    """Bootstraps that are all discounted by another γ than that of their step, compared with the credit of the rewards there."""
    inner, γ = _inner(row), row.gamma
    tried = {"twice": γ, "not at all": 1.0 / γ}
    if (γ != γ[0]).any():
        tried["by γ of the step after"] = np.append(γ[1:], np.nan) / γ  # NaN: not known
        tried["by γ of the step before"] = np.append(np.nan, γ[:-1]) / γ

    def differences(factor: np.ndarray) -> list[tuple[Input, np.ndarray, np.ndarray, np.ndarray]]:
        both = _named_values(seen, _following(rule, row, values, quantity, seen.reward, factor))
        return [
            (n, got, want, inner & (np.abs(got - want) > near * np.maximum(1.0, abs(want)))) for n, got, want in both
        ]

    wrong = differences(np.ones(row.steps))
    places = np.stack([off for *_, off in wrong])
    for name, factor in tried.items():
        left = np.stack([off for *_, off in differences(factor)])  # comparisons with NaN are false
        explained = places & np.isfinite(factor)
        if explained.any() and not left.any():
            for which, got, want, off in wrong:
                for k, t in np.argwhere(off):
                    says = f"The value after a step is discounted {name}."
                    yield Clue("discount misplaced", says, int(k), which, int(t), float(got[k, t]), float(want[k, t]))
            return


def _reads_next_episode(row: Row, seen: Credit, k: int, leaking: set[int], near: float) -> bool:
    """Whether a value of the next episode stands in the place of the bootstrap that is missed: that is one mistake, not two."""
    beyond = row.last(k) + 1
    return k in leaking and float((seen.own + seen.next_value)[k, beyond:].sum()) >= -near


def _lost(row: Row, t: int) -> tuple[Mistake, str]:
    """What it is called where an episode's last step does not bootstrap though it should."""
    if row.truncated[t]:
        says = "A truncated step must bootstrap from its next_value, as if the episode went on."
        return "truncation taken for termination", says
    if t + 1 < row.steps:
        says = "The last step before padding must bootstrap from its next_value: padding is not the end of the task."
        return "padding taken for an end", says
    return (
        "row's end not bootstrapped",
        "The last step of a row must bootstrap from its next_value: its episode goes on.",
    )


def _inner_values(
    rule: Rule, row: Row, values: Values, quantity: Quantity, seen: Credit, near: float
) -> Iterator[Clue]:
    """Values inside of episodes that do not count as the function's own coefficients say."""
    own, after = _following(rule, row, values, quantity, seen.reward)
    inner = _inner(row)
    for name, got, want in _named_values(seen, (own, after)):
        off = inner & (np.abs(got - want) > near * np.maximum(1.0, np.abs(want)))
        if not off.any():
            continue
        mistake, says = _named(name, got, want, off, inner, near)
        for k, t in np.argwhere(off):
            yield Clue(mistake, says, int(k), name, int(t), float(got[k, t]), float(want[k, t]))


def _moved_values(
    rule: Rule, row: Row, values: Values, quantity: Quantity, seen: Credit, near: float
) -> Iterator[Clue]:
    """Values that count in the place of those of the step before or after, on a row of one episode; but for the row's edges."""
    if not row.goes_on[:-1].all():
        return
    of_values = _following(rule, row, values, quantity, seen.reward)
    for name, got, want in _named_values(seen, of_values):
        for by, word in ((1, "late"), (-1, "early")):
            moved = np.roll(want, by, axis=1)
            at = np.triu(np.abs(moved) > near)
            at[:, [0, -1]] = False
            off = at & (np.abs(got - want) > near * np.maximum(1.0, np.abs(want)))
            if off.any() and (np.abs(got - moved)[at] <= near * np.maximum(1.0, np.abs(moved[at]))).all():
                for k, t in np.argwhere(off):
                    says = f"The value is taken one step too {word}."
                    yield Clue("value of another step", says, int(k), name, int(t), float(got[k, t]), float(want[k, t]))


def _moved_rewards(row: Row, seen: Credit, right: Credit, near: float) -> Iterator[Clue]:
    """Rewards that count in the place of those of the step before or after, on a row of one episode whose values are right."""
    if not row.goes_on[:-1].all() or np.abs(np.stack(seen[1:3]) - np.stack(right[1:3])).max() > near:
        return
    off = np.abs(seen.reward - right.reward) > near
    for by, word in ((1, "early"), (-1, "late")):
        moved = np.roll(right.reward, by, axis=1)
        inside = slice(1, None) if by == 1 else slice(None, -1)
        if off.any() and (np.abs(seen.reward - moved)[:, inside] <= near).all():
            for k, t in np.argwhere(off):
                says = f"The reward is that of another step: it counts one step too {word}."
                numbers = (float(seen.reward[k, t]), float(right.reward[k, t]))
                yield Clue("reward of another step", says, int(k), "reward", int(t), *numbers)
            return


def _named_values(
    seen: Credit, want: tuple[np.ndarray, np.ndarray]
) -> tuple[tuple[Input, np.ndarray, np.ndarray], tuple[Input, np.ndarray, np.ndarray]]:
    """The two kinds of values, each with what is seen of it and what it should be."""
    return ("own", seen.own, want[0]), ("next_value", seen.next_value, want[1])


def _inner(row: Row) -> np.ndarray:
    """[T, T], whether t is a step of k's episode from k on."""
    is_pair = np.zeros((row.steps, row.steps), bool)
    is_pair[tuple(zip(*_pairs(row), strict=True))] = True
    return is_pair


def _named(
    name: Input, got: np.ndarray, want: np.ndarray, off: np.ndarray, inner: np.ndarray, near: float
) -> tuple[Mistake, str]:
    """The mistake by which the values that are `off` count so."""
    T = len(got)
    diagonal, later = np.eye(T, dtype=bool) & inner, np.triu(inner, 1)
    if name == "own" and (off == diagonal).all():
        if np.allclose((got - want)[diagonal], -1.0, atol=near):
            return (
                "target and correction mixed up",
                "What comes back is the correction: q or V of the step is not added.",
            )
        if np.allclose((got - want)[diagonal], 1.0, atol=near):
            return "target and correction mixed up", "What comes back is the target: q or V of the step is added."
    if name == "own" and later.any() and (np.abs(got[later]) <= near).all():
        return "later values missing", "The q of later steps does not count: δ lacks its − q, as in Peng's Q(λ)."
    return "unknown", "A value has a wrong weight."


def _following(
    rule: Rule, row: Row, values: Values, quantity: Quantity, C: np.ndarray, factor: float | np.ndarray = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """The credit of `own` and of `next_value` that follows from that of rewards; bootstraps are multiplied by `factor`."""
    goes_on = row.goes_on
    ahead = row.gamma * ~row.terminated * C  # of the value after step t, by δ_t
    own = np.eye(row.steps) * (quantity == "target")
    before = np.append(False, goes_on[:-1])  # step t − 1 is of the same episode
    if rule.uncorrected:
        own = -np.eye(row.steps) * (quantity == "correction")
        after = ahead - np.where(goes_on, np.roll(C, -1, axis=1), 0.0)
    else:
        own = own - C
        after = ahead
    after = after * factor
    if values == "state":
        own = own + np.where(before, np.roll(after, 1, axis=1), 0.0)
        after = np.where(goes_on, 0.0, after)
    return np.triu(own), np.triu(after)
