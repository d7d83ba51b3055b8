"""Mistakes with a number of their own, which is fitted to what rewards count: a clip at 2 for 1, an ε in μ, a floor on ρ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from offtrace.returns.api import corrections, state_targets
from offtrace.testing.mistakes import Mistake
from offtrace.testing.trials import Row, Setting
from offtrace.traces import Trace, VTrace

GRID, REFINEMENTS = 80, 40


class Family(NamedTuple):
    """A rule and rows that depend on one number."""

    mistake: Mistake
    says: str
    """A sentence with a place for the number."""
    lowest: float
    highest: float
    made: Callable[[Row, float], tuple[Trace, Row]]


def fitted(
    setting: Setting, rows: Sequence[Row], seen: Sequence[np.ndarray], near: float
) -> tuple[Mistake, str] | None:
    """The mistake and a sentence with its number, if some number explains all coefficients; else None."""
    if not isinstance(setting.rule, Trace) or setting.rule.custom or setting.rule.per_step:
        return None
    right = [_coefficients(setting, setting.rule, row) for row in rows]
    if (np.abs(np.stack(seen) - np.stack(right)) > near).sum() < 3:  # one number explains one coefficient always
        return None
    for family in _families(setting, setting.rule, rows):

        def error(x: float, family: Family = family) -> float:
            try:
                coefficients = [_coefficients(setting, *family.made(row, x)) for row in rows]
            except ValueError:  # no such rule
                return np.inf
            apart = [np.abs(a - b) / np.maximum(1.0, np.abs(a)) for a, b in zip(coefficients, seen, strict=True)]
            return float(np.max(apart))

        best = _least(error, family.lowest, family.highest)
        for digits in (1, 2, 3, 6):
            rounded = float(f"{best:.{digits}g}")
            if error(rounded) <= near:
                return family.mistake, family.says.format(f"{rounded:g}")
    return None


def _families(setting: Setting, rule: Trace, rows: Sequence[Row]) -> Iterator[Family]:
    named = [f.name for f in fields(rule) if isinstance(getattr(rule, f.name), float)]
    for name in named:
        highest = 1.0 if name == "lam" else 20.0
        now = f"{getattr(rule, name):g}"
        says = f"These are the coefficients with {name} = {{}}; it should be {now}."
        yield Family("another number", says, 0.01, highest, lambda row, x, n=name: (replace(rule, **{n: x}), row))  # pyright: ignore
    lam = getattr(rule, "lam", None)
    clipped_at_1 = None if lam is None else VTrace(lam, c_bar=1.0, horizon=rule.horizon)
    if clipped_at_1 is not None and all(
        np.allclose(_coefficients(setting, clipped_at_1, row), _coefficients(setting, rule, row)) for row in rows
    ):  # as Retrace, which has no number for it
        says = "The ratio is clipped at {}; it should be clipped at 1."
        yield Family("another number", says, 0.1, 20.0, lambda row, x: (replace(clipped_at_1, c_bar=x), row))
    if setting.on_policy or "rho" not in rule.reads:
        return

    def ratio(
        change: Callable[[np.ndarray, np.ndarray, float], np.ndarray],
    ) -> Callable[[Row, float], tuple[Trace, Row]]:
        def made(row: Row, x: float) -> tuple[Trace, Row]:
            with np.errstate(divide="ignore"):
                log_pi = np.log(change(np.exp(row.log_pi), np.exp(row.log_mu), x)) + row.log_mu
            return rule, replace(row, log_pi=log_pi)

        return made

    for says, low, high, change in (
        ("The ratio is never below {}; it must be, since π = 0 cuts the trace.", 1e-3, 2.0, lambda π, μ, x: np.maximum(π / μ, x)),
        ("The ratio is π/(μ + {}): nothing is to be added to μ.", 1e-4, 1.0, lambda π, μ, x: π / (μ + x)),
        ("The ratio is (π + x)/(μ + x) with x = {}: nothing is to be added.", 1e-4, 1.0, lambda π, μ, x: (π + x) / (μ + x)),
        ("The ratio is ρ to the power of {}.", 0.05, 4.0, lambda π, μ, x: (π / μ) ** x),
        ("The ratio is clipped at {}, which the rule does not do.", 0.1, 4.0, lambda π, μ, x: np.minimum(π / μ, x)),
    ):  # fmt: skip
        yield Family("ratio altered", says, low, high, ratio(change))


def _coefficients(setting: Setting, rule: Trace, row: Row) -> np.ndarray:
    """How much each reward counts on a row of one episode [T, T], by the library's own kernels: one row for each unit reward."""
    T = row.steps

    def tiled(array: np.ndarray) -> np.ndarray:
        return np.tile(array, (T, 1))

    none, no = np.zeros((T, T)), np.zeros((T, T), bool)
    given = {"reward": np.eye(T), "next_value": none, "terminated": no, "truncated": no, "gamma": tiled(row.gamma)}
    given |= {"log_pi": tiled(row.log_pi), "log_mu": tiled(row.log_mu)}
    if setting.values == "state":
        return getattr(state_targets(rule, value=none, **given), setting.quantity).T
    greedy = {"greedy": tiled(row.greedy)} if rule.needs_greedy else {}
    return corrections(rule, q=none, **given, **greedy).T


def _least(error: Callable[[float], float], lowest: float, highest: float) -> float:
    """Where an error is least: on a grid, then by golden sections around its best point."""
    grid = np.geomspace(lowest, highest, GRID)
    best = int(np.argmin([error(float(x)) for x in grid]))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, GRID - 1)])
    part = (5**0.5 - 1) / 2
    for _ in range(REFINEMENTS):
        a, b = high - part * (high - low), low + part * (high - low)
        low, high = (low, b) if error(a) <= error(b) else (a, high)
    return (low + high) / 2
