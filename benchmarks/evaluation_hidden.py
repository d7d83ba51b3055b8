"""How often `logs.evaluate` notices that states hide something, and how often its headline then holds the true value.

    .venv/bin/python benchmarks/evaluation_hidden.py --repetitions 60 --seed 20000

Three logs whose states hide something, which the test of `offtrace.logs.markov_test` was not made with (CartPole's
position and angle in boxes, without speeds; a Garnet seen in groups of three states; the rows of FrozenLake), and three whose
states are Markov. Of those in which the headline passes its checks it prints how many intervals hold the truth, and their width.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from evidence import finite

import offtrace as ot
from offtrace import mdps
from offtrace.logs import Logs, evaluate

HIGH, WIDE = np.array([-0.1, -0.03, 0.0, 0.03, 0.1]), np.array([-0.5, 0.5])
"""Where boxes of CartPole's angle, and of its position, end."""
BOXES = (len(HIGH) + 1) * (len(WIDE) + 1)


@dataclass(frozen=True)
class Task:
    """Logs by seed, a target policy, and its value."""

    logs: Callable[[int], Logs]
    target: np.ndarray
    gamma: float
    truth: float


def seen(mdp: mdps.MDP, observed: np.ndarray, mu: np.ndarray, pi: np.ndarray, episodes: int) -> Task:
    """A finite MDP of which the log has `observed` [S]; π and μ depend on that."""
    return Task(
        lambda seed: finite.logged(mdp, observed, mu, episodes, seed), pi, mdp.gamma, finite.value(mdp, observed, pi)
    )


def pushes(epsilon: float) -> np.ndarray:
    """The policy that pushes to the side on which the pole leans, ε uniform: [boxes, 2]."""
    right = (1 - epsilon) * (np.arange(BOXES) // (len(WIDE) + 1) >= 3) + epsilon / 2
    return np.column_stack([1 - right, right])


def boxes(x: np.ndarray) -> np.ndarray:
    return np.searchsorted(HIGH, x[:, 2]) * (len(WIDE) + 1) + np.searchsorted(WIDE, x[:, 0])


def moved(x: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One step of CartPole for each row of x [n, 4], and whether the episode is over."""
    _, speed, angle, turning = x.T
    cosine, sine = np.cos(angle), np.sin(angle)
    push = (np.where(action == 1, 10.0, -10.0) + 0.05 * turning**2 * sine) / 1.1
    bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    after = x + 0.02 * np.column_stack([speed, push - 0.05 * bend * cosine / 1.1, turning, bend])
    return after, (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > np.pi / 15)


def cart_pole(epsilon: float, episodes: int, seed: int, limit: int = 700) -> Logs:
    """Logs of CartPole in boxes."""
    rng, policy = np.random.default_rng(seed), pushes(epsilon)
    x, running, rows = rng.uniform(-0.05, 0.05, (episodes, 4)), np.arange(episodes), []
    for t in range(limit):
        state = boxes(x)
        action = (rng.random(len(x)) < policy[state, 1]).astype(int)
        x, over = moved(x, action)
        rows.append((running, np.full(len(x), t), state, action, boxes(x), over))
        x, running = x[~over], running[~over]
        if not len(x):
            break
    episode, age, state, action, after, over = (np.concatenate(each) for each in zip(*rows, strict=True))
    order = np.lexsort((age, episode))
    age, state, action, after, over = (each[order] for each in (age, state, action, after, over))
    starts = np.append(np.flatnonzero(age == 0), len(age))
    last = np.isin(np.arange(len(age)), starts[1:] - 1)
    return Logs(
        starts=starts, state=state, next_state=after, action=action, reward=np.ones(len(age)), terminated=over,
        truncated=last & ~over, log_mu=np.log(policy[state, action]), states=BOXES, actions=2,
    )  # fmt: skip


def tasks() -> dict[str, Callable[[], Task]]:
    """By name, made when asked for."""

    def poles() -> Task:
        many = cart_pole(0.5, 20_000, 1)
        age = np.arange(len(many)) - np.repeat(many.starts[:-1], np.diff(many.starts))
        return Task(lambda seed: cart_pole(0.7, 200, seed, 500), pushes(0.5), 0.98, float((0.98**age).sum() / 20_000))

    def groups() -> Task:
        mdp, pi = (
            mdps.garnet(30, 3, 3, seed=7, gamma=0.9, terminal=2),
            np.random.default_rng(5).dirichlet([3, 3, 3], 10),
        )
        return seen(mdp, np.arange(30) // 3, np.full((10, 3), 1 / 3), pi, 200)

    def lake(name: str, gamma: float, *, rows: bool) -> Task:
        mdp = mdps.from_gymnasium(name, gamma=gamma)
        if rows:
            observed = np.minimum(np.arange(mdp.S) // 4, 4 if mdp.S > 16 else 3)
            k = int(observed.max()) + 1
            return seen(mdp, observed, np.full((k, 4), 0.25), np.tile([0.1, 0.35, 0.35, 0.2], (k, 1)), 300)
        best = mdp.optimal_q()
        mu, pi = (mdps.epsilon_greedy(best, epsilon) for epsilon in (0.5, 0.35))
        return seen(mdp, np.arange(mdp.S), mu, pi, 300)

    def garnet() -> Task:
        mdp = mdps.garnet(60, 4, 5, seed=3, gamma=0.95, terminal=4)
        pi = mdps.random_policy(mdp, np.random.default_rng(1), 3.0)
        return seen(mdp, np.arange(mdp.S), mdps.uniform(mdp), pi, 100)

    def cliff() -> Task:
        mdp = mdps.from_gymnasium("CliffWalking-v1", gamma=0.95)
        mu, pi = (mdps.epsilon_greedy(mdp.optimal_q(), epsilon) for epsilon in (0.3, 0.1))
        return seen(mdp, np.arange(mdp.S), mu, pi, 300)

    return {
        "CartPole in boxes": poles,
        "Garnet in groups": groups,
        "rows of FrozenLake": lambda: lake("FrozenLake-v1", 0.95, rows=True),
        "FrozenLake8x8 (Markov)": lambda: lake("FrozenLake8x8-v1", 0.97, rows=False),
        "Garnet, 60 states (Markov)": garnet,
        "CliffWalking (Markov)": cliff,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--seed", type=int, default=20_000, help="of the first log")
    given = parser.parse_args()
    for name, make in tasks().items():
        task = make()
        noticed, passed, held, widths = 0, 0, 0, []
        for seed in range(given.seed, given.seed + given.repetitions):
            result = evaluate(
                task.logs(seed), task.target, trace=ot.RBIS(lam=0.95), gamma=task.gamma, resamples=400, seed=seed
            )
            row = result.headline
            noticed += any(check.kind == "hidden" for check in result["fitted"].failed)
            if not row.failed:
                passed += 1
                held += bool(row.low <= task.truth <= row.high)
                widths.append(row.high - row.low)
        width = f"{np.median(widths):.3g}" if widths else "–"
        print(
            f"{name:<28} noticed {noticed:>3}   passed {passed:>3}, of which held {held:>3}   width {width}", flush=True
        )


if __name__ == "__main__":
    main()
