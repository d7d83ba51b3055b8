"""Problems with a known truth, none of them in the gallery, for the benchmark of `logs.evaluate` (`logs_headline.py`).

A problem simulates many episodes at a time: what is hidden, what is observed of it, what the two policies do. All problems here
were looked at while the headline was designed; those of `logs_held_out.py` were run once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offtrace.logs import Logs

Array = NDArray[np.float64]
Rng = np.random.Generator
Step = tuple[Array, Any, Any]
"""What a step leads to: hidden numbers, rewards, whether it ends."""


@dataclass(frozen=True)
class Problem:
    """A process with hidden numbers h [n, k]; both policies see observations (and the logger may see h)."""

    name: str
    actions: int
    gamma: float
    horizon: int
    """Steps after which an episode ends."""
    reset: Callable[[Rng, int], Array]
    step: Callable[[Array, NDArray[np.int64], Rng], Step]
    """h, actions, generator → next h, rewards, whether the task ended."""
    observe: Callable[[Array], NDArray]
    """h → ids [n] or features [n, d]."""
    behavior: Callable[[Array], Array]
    """h → probabilities [n, A]."""
    target: Callable[[NDArray], Array]
    """Observations → probabilities [n, A]."""
    states: int = 0
    """How many ids; 0 for features."""
    cut: bool = False
    """Whether the horizon is a limit of the log, beyond which values count."""
    known: bool = True
    """Whether μ is logged."""
    kind: str = ""
    """What is hard about it."""
    value: float | None = None
    """V(π) where it is known exactly; None: by simulation."""
    per_user: int = 1
    """How many episodes in a row belong to one user."""


def simulate(problem: Problem, episodes: int, seed: int) -> Logs:
    """Logs of the behaviour policy."""
    rng = np.random.default_rng(seed)
    h = problem.reset(rng, episodes)
    alive, parts = np.arange(episodes), []
    for t in range(problem.horizon):
        mu = problem.behavior(h)
        action = _draw(mu, rng)
        following, reward, over = problem.step(h, action, rng)
        last = t == problem.horizon - 1
        ended = over | (last and not problem.cut)
        parts.append((alive, np.full(len(alive), t), problem.observe(h), problem.observe(following), action, reward,
                      ended, ~ended & last, mu[np.arange(len(action)), action]))  # fmt: skip
        h, alive = following[~over], alive[~over]
        if not len(alive):
            break
    episode, age, state, next_state, action, reward, terminated, truncated, mu = map(
        np.concatenate, zip(*parts, strict=True)
    )
    order = np.lexsort((age, episode))
    starts = np.append(np.flatnonzero(age[order] == 0), len(order))
    return Logs(
        starts=starts, state=state[order], next_state=next_state[order], action=action[order], reward=reward[order],
        terminated=terminated[order], truncated=truncated[order], log_mu=np.log(mu[order]) if problem.known else None,
        states=problem.states, actions=problem.actions,
    )  # fmt: skip


def true_value(problem: Problem, episodes: int = 400_000, seed: int = 12345) -> tuple[float, float]:
    """V(π), and its standard error: 0 if it is known, else from simulation of π."""
    if problem.value is not None:
        return problem.value, 0.0
    rng, sums = np.random.default_rng(seed), []
    steps = problem.horizon
    if problem.cut:
        steps = int(np.ceil(np.log(1e-5) / np.log(problem.gamma)))
    for _ in range(4):
        n = max(1, int(episodes / 4 * min(1.0, 60 / steps)))
        h, total, alive, discount = problem.reset(rng, n), np.zeros(n), np.arange(n), 1.0
        for _ in range(steps):
            h, reward, over = problem.step(h, _draw(problem.target(problem.observe(h)), rng), rng)
            total[alive] += discount * reward
            discount *= problem.gamma
            h, alive = h[~over], alive[~over]
            if not len(alive):
                break
        sums.append(total)
    x = np.concatenate(sums)
    return float(x.mean()), float(x.std() / np.sqrt(len(x)))


def _draw(p: Array, rng: Rng) -> NDArray[np.int64]:
    return (rng.random((len(p), 1)) > p.cumsum(axis=1)[:, :-1]).sum(axis=1)


def choose(best: NDArray[np.int64], actions: int, epsilon: float) -> Array:
    p = np.full((len(best), actions), epsilon / actions)
    p[np.arange(len(best)), best] += 1 - epsilon
    return p


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def never(n: int) -> NDArray[np.bool_]:
    return np.zeros(n, bool)


def _table_process(name: str, S: int, A: int, seed: int, *, gamma: float, horizon: int, branches: int = 3, end: float = 0.0,
                   noise: float = 0.5, sharp: float = 1.0, apart: float = 1.0, **more: object) -> Problem:  # fmt: skip
    """A random table: a few next states for each pair, rewards of states and pairs, softmax policies of different taste."""
    rng = np.random.default_rng(seed)
    following = rng.integers(0, S, (S, A, branches))
    chance = rng.dirichlet(np.ones(branches), (S, A))
    mean = rng.normal(size=(S, 1)) + 0.7 * rng.normal(size=(S, A))
    taste = rng.normal(size=(S, A))
    mu, pi = softmax(sharp * taste), softmax(sharp * taste + apart * (mean - mean.mean(axis=1, keepdims=True)))
    ending = np.where(rng.random(S) < 0.3, end, 0.0)
    moves, v = np.zeros((S, S)), np.zeros(S)
    np.add.at(moves, (np.arange(S)[:, None, None], following), pi[:, :, None] * chance * (1 - ending)[:, None, None])
    for _ in range(20_000 if more.get("cut") else horizon):
        v = (pi * mean).sum(axis=1) + gamma * moves @ v

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        s = h[:, 0].astype(int)
        j = _draw(chance[s, a], rng)
        reward = mean[s, a] + noise * rng.normal(size=len(s))
        return following[s, a, j][:, None].astype(float), reward, rng.random(len(s)) < ending[s]

    def ids(h: Array) -> NDArray[np.int64]:
        return h[:, 0].astype(np.int64)

    given = {
        "states": S,
        "observe": ids,
        "behavior": lambda h: mu[ids(h)],
        "target": lambda s: pi[s],
        "value": float(v[: min(S, 5)].mean()),
        **more,
    }
    return Problem(
        name, A, gamma, horizon, lambda rng, n: rng.integers(0, min(S, 5), (n, 1)).astype(float), step, **given
    )


# --- of the first round ------------------------------------------------------------------------


def _bakery() -> Problem:
    """Stock 0 … 6, bake 0 … 3; demand grows through the twelve hours, which are not in the state; leftovers are lost."""

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        stock = np.minimum(h[:, 0] + a, 6)
        sold = np.minimum(rng.poisson(0.6 + 0.25 * h[:, 1]), stock)
        last = h[:, 1] >= 11
        reward = 2.0 * sold - 0.6 * a - np.where(last, 0.5 * (stock - sold), 0.0)
        return np.column_stack([stock - sold, h[:, 1] + 1]), reward, last

    return Problem(
        "bakery", 4, 1.0, 12, lambda rng, n: np.column_stack([rng.integers(0, 3, n), np.zeros(n)]).astype(float), step,
        lambda h: h[:, 0].astype(np.int64), lambda h: np.tile([0.3, 0.3, 0.2, 0.2], (len(h), 1)),
        lambda s: choose(np.clip(3 - s, 0, 3), 4, 0.1), states=7, kind="time matters and is not in the state",
    )  # fmt: skip


def _shelf(skew: float = 1.0, name: str = "shelf of 40") -> Problem:
    """One step: 4 kinds of customers, 40 articles, few buy."""
    rng = np.random.default_rng(5)
    buys = 0.02 + 0.25 * rng.beta(0.6, 4, (4, 40))
    mu = softmax(skew * rng.normal(size=(4, 40)))
    pi = softmax(12 * buys / buys.std() * 0.12 + 0.3 * rng.normal(size=(4, 40)))

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        return h, (rng.random(len(h)) < buys[h[:, 0].astype(int), a]) * 1.0, np.ones(len(h), bool)

    return Problem(
        name, 40, 1.0, 1, lambda rng, n: rng.choice(4, (n, 1), p=[0.4, 0.3, 0.2, 0.1]).astype(float), step,
        lambda h: h[:, 0].astype(np.int64), lambda h: mu[h[:, 0].astype(int)], lambda s: pi[s], states=4,
        kind="one step, many actions, few rewards",
    )  # fmt: skip


def _server() -> Problem:
    """A queue with features: its length, the load, speed 0 … 2; rewards by waiting and energy; a limit of 40 steps."""

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        load = np.clip(0.9 * h[:, 1] + 0.1 * 1.2 + 0.15 * rng.normal(size=len(h)), 0.2, 2.5)
        queue = np.maximum(h[:, 0] + rng.poisson(load) - rng.poisson(0.5 + 0.8 * a), 0)
        queue = np.minimum(queue, 30)
        return np.column_stack([queue, load]), -0.1 * queue - 0.25 * a**2, never(len(h))

    def features(h: Array) -> Array:
        return np.column_stack([h[:, 0] / 10, h[:, 1]])

    return Problem(
        "server", 3, 0.95, 40, lambda rng, n: np.column_stack([rng.poisson(2, n), rng.uniform(0.8, 1.6, n)]).astype(float),
        step, features, lambda h: np.tile([0.3, 0.4, 0.3], (len(h), 1)),
        lambda x: softmax(np.column_stack([1 - 4 * x[:, 0], 0.5 * np.ones(len(x)), 4 * x[:, 0] - 1])), cut=True,
        kind="features, a limit of the log",
    )  # fmt: skip


def _lake() -> Problem:
    """A 5 × 5 lake with holes, slippery; reward 1 at the goal."""
    holes, goal = {6, 13, 16}, 24
    moves = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
    best = np.where(np.arange(25) % 5 == 4, 1, 0)

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        s = h[:, 0].astype(int)
        d = moves[(a + rng.choice(3, len(s), p=[0.1, 0.8, 0.1]) - 1) % 4]
        y, x = np.clip(s // 5 + d[:, 0], 0, 4), np.clip(s % 5 + d[:, 1], 0, 4)
        s = 5 * y + x
        return s[:, None].astype(float), (s == goal) * 1.0, (s == goal) | np.isin(s, list(holes))

    return Problem(
        "lake", 4, 0.97, 80, lambda rng, n: np.zeros((n, 1)), step, lambda h: h[:, 0].astype(np.int64),
        lambda h: choose(best[h[:, 0].astype(int)], 4, 0.7), lambda s: choose(best[s], 4, 0.2), states=25,
        kind="a rare reward at the end",
    )  # fmt: skip


def _mood() -> Problem:
    """A hidden mood of two values that persists; the observation says the mood in 70 %; rewards follow it."""

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        mood = np.where(rng.random(len(h)) < 0.1 + 0.25 * (a == 1), 1 - h[:, 0], h[:, 0])
        seen = np.where(rng.random(len(h)) < 0.7, mood, 1 - mood)
        return np.column_stack([mood, seen]), mood + 0.3 * (a == 0) + 0.3 * rng.normal(size=len(h)), never(len(h))

    def reset(rng: Rng, n: int) -> Array:
        mood = rng.integers(0, 2, n)
        return np.column_stack([mood, np.where(rng.random(n) < 0.7, mood, 1 - mood)]).astype(float)

    return Problem(
        "mood", 2, 1.0, 10, reset, step, lambda h: h[:, 1].astype(np.int64), lambda h: np.full((len(h), 2), 0.5),
        lambda s: choose(1 - s, 2, 0.4), states=2, kind="states hide something",
    )  # fmt: skip


def _claims() -> Problem:
    """A table whose rewards have a heavy tail (a lognormal claim)."""
    base = _table_process("claims", 12, 3, 3, gamma=0.95, horizon=20, end=0.15, apart=0.6)

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        following, reward, over = base.step(h, a, rng)
        claim = np.where(rng.random(len(h)) < 0.05 + 0.02 * a, rng.lognormal(1.0, 1.3, len(h)), 0.0)
        return following, reward + 1 - claim, over

    return Problem(**{**vars(base), "step": step, "value": None, "kind": "heavy-tailed rewards"})


FIRST: tuple[Problem, ...] = (
    _bakery(),
    _shelf(),
    _server(),
    _lake(),
    _mood(),
    _claims(),
    _table_process("mill", 30, 4, 11, gamma=0.95, horizon=25, end=0.1, kind="a table like many others"),
    _table_process("river", 60, 3, 17, gamma=0.98, horizon=60, cut=True, apart=1.5, kind="long, far from the logs"),
)


# --- held out in the first round, and looked at since ------------------------------------------------------------------


def _forge() -> Problem:
    """Wear in [0, 1] and heat; keep, cool or repair; failures are likelier when worn, and costs bend (no linear value)."""

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        wear = np.where(a == 2, 0.05, np.clip(h[:, 0] + (0.06 + 0.05 * h[:, 1]) * rng.random(len(h)), 0, 1))
        heat = np.clip(np.where(a == 1, 0.5, 0.95) * h[:, 1] + 0.15 * rng.random(len(h)), 0, 1)
        broken = rng.random(len(h)) < 0.25 * wear**3
        reward = np.where(a == 0, 1.0, np.where(a == 1, 0.7, -0.5)) * (1 - 0.3 * heat) - 5.0 * broken
        return np.column_stack([wear, heat]), reward, broken

    return Problem(
        "forge", 3, 0.97, 60, lambda rng, n: rng.random((n, 2)) * 0.4, step, lambda h: h.copy(),
        lambda h: np.tile([0.6, 0.2, 0.2], (len(h), 1)),
        lambda x: choose(np.where(x[:, 0] > 0.6, 2, np.where(x[:, 1] > 0.6, 1, 0)), 3, 0.1), cut=True,
        kind="features whose value bends",
    )  # fmt: skip


def _fares() -> Problem:
    """Seats 0 … 8, three prices, fifteen days to departure: what is left is worth nothing; time is not in the state."""

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        wants = rng.binomial(2, np.clip(0.55 - 0.2 * a + 0.02 * h[:, 1], 0, 1))
        sold = np.minimum(wants, h[:, 0])
        left = h[:, 0] - sold
        return np.column_stack([left, h[:, 1] + 1]), sold * (1.0 + 0.8 * a), (h[:, 1] >= 14) | (left == 0)

    return Problem(
        "fares", 3, 1.0, 15, lambda rng, n: np.column_stack([rng.integers(5, 9, n), np.zeros(n)]).astype(float), step,
        lambda h: h[:, 0].astype(np.int64), lambda h: np.tile([0.5, 0.3, 0.2], (len(h), 1)),
        lambda s: choose(np.where(s > 5, 1, 2), 3, 0.15), states=9, kind="time matters and is not in the state",
    )  # fmt: skip


def _tutor() -> Problem:
    """Skill with features (noisy score, effort), 4 exercises; scores say skill with noise: features hide something."""

    def reset(rng: Rng, n: int) -> Array:
        skill = rng.normal(size=n)
        return np.column_stack([skill, skill + 0.7 * rng.normal(size=n), rng.random(n)])

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        fit = np.exp(-((h[:, 0] - (a - 1.5)) ** 2))
        skill = h[:, 0] + 0.25 * fit - 0.05
        seen = skill + 0.7 * rng.normal(size=len(h))
        effort = np.clip(h[:, 2] + 0.1 * rng.normal(size=len(h)), 0, 1)
        return np.column_stack([skill, seen, effort]), fit + 0.2 * effort, never(len(h))

    return Problem(
        "tutor", 4, 1.0, 8, reset, step, lambda h: h[:, 1:].copy(), lambda h: np.full((len(h), 4), 0.25),
        lambda x: choose(np.clip(np.round(x[:, 0] + 1.5), 0, 3).astype(int), 4, 0.3), kind="features that hide something",
    )  # fmt: skip


def _dull() -> Problem:
    """Logging that takes one action in 94 of 100."""
    rng = np.random.default_rng(8)
    base = _table_process("dull logging", 8, 3, 8, gamma=0.9, horizon=15, end=0.1)
    mu = np.full((8, 3), 0.03)
    mu[np.arange(8), rng.integers(0, 3, 8)] = 0.94
    pi = 0.6 * mu + 0.4 * softmax(rng.normal(size=(8, 3)))
    return Problem(**{
        **vars(base), "behavior": lambda h: mu[h[:, 0].astype(int)], "target": lambda s: pi[s], "value": None,
        "kind": "very skewed logging",
    })  # fmt: skip


def _marathon() -> Problem:
    """Episodes of 600 steps on a table."""
    return _table_process("marathon", 15, 3, 21, gamma=0.99, horizon=600, cut=True, apart=0.5, kind="600 steps")


def _unlogged() -> Problem:
    """μ is not logged, and is estimated."""
    base = _table_process("unknown logger", 10, 3, 33, gamma=0.95, horizon=12, apart=1.0)
    return Problem(**{**vars(base), "known": False, "kind": "μ estimated from the logs"})


def _offers() -> Problem:
    """One step with features and 6 offers: a linear payoff with interactions."""
    rng = np.random.default_rng(77)
    theta = rng.normal(size=(6, 5))

    def step(h: Array, a: NDArray[np.int64], rng: Rng) -> Step:
        return h, np.sin((h * theta[a]).sum(axis=1)) + 0.5 * rng.normal(size=len(h)), np.ones(len(h), bool)

    return Problem(
        "offers", 6, 1.0, 1, lambda rng, n: rng.normal(size=(n, 5)), step, lambda h: h.copy(),
        lambda h: softmax(0.5 * h @ theta.T), lambda x: softmax(-0.7 * x @ theta.T), kind="one step with features",
    )  # fmt: skip


SECOND: tuple[Problem, ...] = (
    _forge(),
    _fares(),
    _tutor(),
    _dull(),
    _marathon(),
    _unlogged(),
    _offers(),
    _table_process("warehouse", 150, 5, 41, gamma=0.95, horizon=30, end=0.08, kind="a large table, few visits"),
)

DEVELOPED = FIRST + SECOND
