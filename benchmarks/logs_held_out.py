"""Held-out problems for the benchmark of `logs.evaluate` (`logs_headline.py`): run once, after everything was decided."""

from __future__ import annotations

import numpy as np
from logs_problems import Array, Problem, Rng, Step, choose, never, softmax
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def _call_centre() -> Problem:
    """Callers wait, agents tire; route to the front desk, to experts, or call people back; half an hour a step, a shift of 16."""

    def step(h: Array, a: Ints, rng: Rng) -> Step:
        waiting, tired, hour = h[:, 0], h[:, 1], h[:, 2]
        calls = rng.poisson(3 + 2 * np.sin(np.pi * hour / 16))
        solved = rng.poisson(np.choose(a, [3.5, 4.5, 2.5]) * (1 - 0.5 * tired))
        waiting = np.clip(waiting + calls - solved, 0, 25)
        tired = np.clip(tired + np.choose(a, [0.02, 0.08, -0.06]) + 0.03 * rng.normal(size=len(h)), 0, 1)
        reward = -0.3 * waiting - np.choose(a, [0.0, 1.0, 0.3]) + 0.2 * solved
        return np.column_stack([waiting, tired, hour + 1]), reward, hour >= 15

    return Problem(
        "call centre", 3, 1.0, 16,
        lambda rng, n: np.column_stack([rng.poisson(3, n), 0.3 * rng.random(n), np.zeros(n)]).astype(float), step,
        lambda h: np.column_stack([h[:, 0] / 10, h[:, 1], h[:, 2] / 16]),
        lambda h: softmax(np.column_stack([0.3 + 0 * h[:, 0], 0.1 * h[:, 0] - 0.3, h[:, 1]])),
        lambda x: softmax(np.column_stack([0.5 + 0 * x[:, 0], 3 * x[:, 0] - 1 - x[:, 1], 2.5 * x[:, 1] - x[:, 0]])),
        kind="features, a shift of fixed length",
    )  # fmt: skip


def _bids() -> Problem:
    """Ten auctions with a budget: four bids; few wins convert, and what they bring is lognormal."""

    def step(h: Array, a: Ints, rng: Rng) -> Step:
        budget, interest, left = h[:, 0], h[:, 1], h[:, 2]
        bid = np.choose(a, [0.0, 0.5, 1.0, 1.6])
        price = rng.gamma(2.0, 0.4 + 0.2 * interest)
        won = (bid > price) & (budget >= price)
        sale = (rng.random(len(h)) < 0.08 + 0.25 * interest) * rng.lognormal(0.6, 0.9, len(h))
        paid = np.where(won, price, 0.0)
        return (
            np.column_stack([budget - paid, rng.beta(1.5, 3, len(h)), left - 1]),
            np.where(won, sale, 0.0) - paid,
            left <= 1,
        )

    return Problem(
        "bids", 4, 1.0, 10, lambda rng, n: np.column_stack([np.full(n, 5.0), rng.beta(1.5, 3, n), np.full(n, 10.0)]), step,
        lambda h: np.column_stack([h[:, 0] / 5, h[:, 1]]), lambda h: np.tile([0.25, 0.3, 0.25, 0.2], (len(h), 1)),
        lambda x: choose(np.clip(np.round(4 * x[:, 1]), 0, 3).astype(int), 4, 0.3), kind="features, skewed rewards",
    )  # fmt: skip


def _therapy() -> Problem:
    """A patient of hidden severity and habit comes twelve times; a noisy score is seen; remind, raise the dose, or leave it."""

    def reset(rng: Rng, n: int) -> Array:
        severity = rng.gamma(3.0, 0.5, n)
        return np.column_stack(
            [severity, rng.random(n), severity + 0.5 * rng.normal(size=n), (rng.random(n) < 0.7).astype(np.float64)]
        )

    def step(h: Array, a: Ints, rng: Rng) -> Step:
        severity, habit = h[:, 0], h[:, 1]
        habit = np.clip(habit + np.where(a == 1, 0.12, -0.03) - np.where(a == 2, 0.05, 0.0), 0, 1)
        takes = (rng.random(len(h)) < 0.25 + 0.7 * habit).astype(np.float64)
        severity = np.maximum(severity + 0.1 * rng.normal(size=len(h)) + 0.08 - takes * np.where(a == 2, 0.45, 0.22), 0)
        reward = -0.5 * severity - np.choose(a, [0.0, 0.05, 0.25])
        return (
            np.column_stack([severity, habit, severity + 0.5 * rng.normal(size=len(h)), takes]),
            reward,
            never(len(h)),
        )

    return Problem(
        "therapy", 3, 1.0, 12, reset, step, lambda h: h[:, 2:].copy(),
        lambda h: softmax(np.column_stack([0.4 - 0.2 * h[:, 2], 0.3 - 0.5 * h[:, 3], 0.3 * h[:, 2] - 0.5])),
        lambda x: softmax(np.column_stack([0.6 - 0.6 * x[:, 0], 1.0 - 1.5 * x[:, 1], 0.5 * x[:, 0] - 0.5 + 0.3 * x[:, 1]])),
        kind="features that hide severity and habit",
    )  # fmt: skip


def _thermostat() -> Problem:
    """Heat off, low or high every quarter of an hour, while the weather drifts; a log of twelve hours."""

    def step(h: Array, a: Ints, rng: Rng) -> Step:
        inside, outside = h[:, 0], h[:, 1]
        outside = 5 + 0.95 * (outside - 5) + 0.8 * rng.normal(size=len(h))
        inside = inside + 0.05 * (outside - inside) + np.choose(a, [0.0, 0.7, 1.6]) + 0.1 * rng.normal(size=len(h))
        reward = -0.05 * (inside - 20.5) ** 2 - np.choose(a, [0.0, 0.15, 0.4])
        return np.column_stack([inside, outside]), reward, never(len(h))

    return Problem(
        "thermostat", 3, 0.95, 48, lambda rng, n: np.column_stack([rng.normal(19, 1.5, n), rng.normal(5, 2.5, n)]), step,
        lambda h: h.copy(),
        lambda h: softmax(np.column_stack([0.4 * (h[:, 0] - 20.5), 0.3 + 0 * h[:, 0], -0.3 * (h[:, 0] - 20.5)])),
        lambda x: softmax(np.column_stack([0.9 * (x[:, 0] - 20.5), 0.6 + 0 * x[:, 0], -0.7 * (x[:, 0] - 20.5)])), cut=True,
        kind="features, costs are squares, a limit of the log",
    )  # fmt: skip


def _sessions() -> Problem:
    """Five articles in each visit of four pages; users come five times, and their taste is not in the log."""
    rng = np.random.default_rng(101)
    likes = rng.beta(1.5, 4, (4, 5))
    mu, pi = softmax(0.8 * rng.normal(size=(4, 5))), softmax(5 * likes + 0.5 * rng.normal(size=(4, 5)))

    def reset(rng: Rng, n: int) -> Array:
        users = -(-n // 5)
        user = np.column_stack([rng.integers(0, 4, users).astype(np.float64), rng.normal(0, 0.8, users)])
        return np.repeat(user, 5, axis=0)[:n]

    def step(h: Array, a: Ints, rng: Rng) -> Step:
        p = likes[h[:, 0].astype(int), a]
        p = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + h[:, 1])))
        return h, (rng.random(len(h)) < p) * 1.0, rng.random(len(h)) < 0.2

    return Problem(
        "sessions", 5, 1.0, 4, reset, step, lambda h: h[:, 0].astype(np.int64), lambda h: mu[h[:, 0].astype(int)],
        lambda s: pi[s], states=4, per_user=5, kind="ids, repeated users whose taste is hidden",
    )  # fmt: skip


def _season() -> Problem:
    """Stock 0 … 5 and the month: 72 ids; order 0 … 3; demand has a season; a year, that begins in any month."""

    def step(h: Array, a: Ints, rng: Rng) -> Step:
        stock, month, left = h[:, 0], h[:, 1], h[:, 2]
        stock = np.minimum(stock + a, 5)
        sold = np.minimum(rng.poisson(1.5 + 1.2 * np.cos(2 * np.pi * (month - 11) / 12)), stock)
        reward = 3.0 * sold - 1.2 * a - 0.3 * (stock - sold)
        return np.column_stack([stock - sold, (month + 1) % 12, left - 1]), reward, left <= 1

    def orders(s: Ints) -> Ints:
        busy = np.cos(2 * np.pi * (s // 6 - 11) / 12) > 0
        return np.clip(np.where(busy, 4, 2) - s % 6, 0, 3)

    return Problem(
        "season", 4, 0.99, 12,
        lambda rng, n: np.column_stack([rng.integers(0, 6, n), rng.integers(0, 12, n), np.full(n, 12)]).astype(float), step,
        lambda h: (6 * h[:, 1] + h[:, 0]).astype(np.int64), lambda h: np.tile([0.3, 0.3, 0.25, 0.15], (len(h), 1)),
        lambda s: choose(orders(s), 4, 0.2), states=72, kind="ids with the month, a year of fixed length",
    )  # fmt: skip


def _dungeon() -> Problem:
    """A 4 × 4 dungeon with a key: fetch it, then reach the door; 1 for that, nothing else; monsters end the game."""
    moves = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])

    def step(h: Array, a: Ints, rng: Rng) -> Step:
        y, x, key = h[:, 0], h[:, 1], h[:, 2]
        slips = rng.random(len(h)) < 0.15
        d = moves[np.where(slips, rng.integers(0, 4, len(h)), a)]
        y, x = np.clip(y + d[:, 0], 0, 3), np.clip(x + d[:, 1], 0, 3)
        key = np.maximum(key, (y == 0) & (x == 3))
        out = (key == 1) & (y == 3) & (x == 0)
        return np.column_stack([y, x, key]), out * 1.0, out | (rng.random(len(h)) < 0.01) | ((y == 2) & (x == 2))

    def way(s: Ints) -> Ints:
        y, x, key = s % 16 // 4, s % 4, s // 16
        return np.where(key == 0, np.where(x < 3, 0, 3), np.where(x > 0, 2, 1)) + 0 * y

    return Problem(
        "dungeon", 4, 0.98, 100, lambda rng, n: np.tile([1.0, 0.0, 0.0], (n, 1)), step,
        lambda h: (16 * h[:, 2] + 4 * h[:, 0] + h[:, 1]).astype(np.int64),
        lambda h: choose(way((16 * h[:, 2] + 4 * h[:, 0] + h[:, 1]).astype(np.int64)), 4, 0.6),
        lambda s: choose(way(s), 4, 0.25), states=32, kind="ids, one sparse reward at the end",
    )  # fmt: skip


def _loans() -> Problem:
    """One step: 8 kinds of applicants, small, middle or large loan; most pay back, a few cost a lot."""
    rng = np.random.default_rng(303)
    risk = 0.01 + 0.06 * rng.random(8)
    mu = softmax(0.6 * rng.normal(size=(8, 3)))
    pi = softmax(np.column_stack([np.zeros(8), 1.5 - 30 * risk, 3.0 - 70 * risk]))

    def step(h: Array, a: Ints, rng: Rng) -> Step:
        lost = rng.random(len(h)) < risk[h[:, 0].astype(int)] * (1 + 0.3 * a)
        size = np.choose(a, [1.0, 2.0, 4.0])
        return h, np.where(lost, -5.0 * size * rng.random(len(h)), 0.4 * size), np.ones(len(h), bool)

    return Problem(
        "loans", 3, 1.0, 1, lambda rng, n: rng.integers(0, 8, (n, 1)).astype(float), step, lambda h: h[:, 0].astype(np.int64),
        lambda h: mu[h[:, 0].astype(int)], lambda s: pi[s], states=8, kind="one step, rare losses",
    )  # fmt: skip


HELD_OUT: tuple[Problem, ...] = (
    _call_centre(), _bids(), _therapy(), _thermostat(), _sessions(), _season(), _dungeon(), _loans(),
)  # fmt: skip
