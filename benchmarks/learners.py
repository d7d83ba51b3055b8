"""Learners: trials of protocol "daley2023" a second on one core, the published sweep, and cost a step as episodes grow.

The peers are below: the same experiment as anybody would write it, in NumPy (`scripted`) and for Numba (`plain`), with one
array entry for each visit of the episode. They do the same number of steps from their own random numbers.

    .venv/bin/python benchmarks/run.py learners
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.sparse as sp
from listed_rules import trajectory_aware
from numba import njit
from timing import emit

import offtrace as ot
from offtrace.learners import bifurcation_auc, evaluate
from offtrace.mdps import MDP, bifurcation

PYTHON = 0.27  # seconds of CPU that one trial takes independent Python code
RULES = {
    "Retrace": (ot.Retrace, 0, 0.9),
    "Non-Markov Retrace": (ot.NonMarkovRetrace, 1, 0.9),
    "RBIS": (ot.RBIS, 2, 0.9),
    "Truncated IS": (ot.TruncatedIS, 3, 0.7),
}
"""The rule, its number in the peers, which print these four themselves, and α."""


@njit(cache=True)
def greedy_action(q, epsilon):
    best, ties = q.max(), 0
    for x in q:
        ties += x == best
    if np.random.random() < epsilon:
        return np.random.randint(len(q))
    nth = np.random.randint(ties)
    for a in range(len(q)):
        if q[a] == best:
            if nth == 0:
                return a
            nth -= 1
    return 0


@njit(cache=True)
def greedy_probability(q, a, epsilon):
    best, ties = q.max(), 0
    for x in q:
        ties += x == best
    return epsilon / len(q) + ((1 - epsilon) / ties if q[a] == best else 0.0)


@njit(cache=True)
def plain(to, reward, end, start, gamma, rule, lam, alpha, steps, explore, trials):
    S, A = reward.shape
    total = 0.0
    states, actions, x, w = np.empty(steps, np.int64), np.empty(steps, np.int64), np.empty(steps), np.empty(steps)
    for trial in range(trials):
        np.random.seed(trial)
        Q = np.random.normal(0.0, 0.01, (S, A))
        s, n, episode, look = start, 0, 0, -1
        for _ in range(steps):
            μ = 1.0 if episode < explore else 0.2
            a = greedy_action(Q[s], μ)
            after = to[s, a]
            ρ = greedy_probability(Q[s], a, 0.1) / greedy_probability(Q[s], a, μ)
            v = 0.0
            if after != end:
                for b in range(A):
                    v += greedy_probability(Q[after], b, 0.1) * Q[after, b]
            δ = reward[s, a] + gamma * v - Q[s, a]
            for k in range(n):
                w[k] *= gamma
                if rule == 0:
                    x[k] *= lam * min(1.0, ρ)
                elif rule == 1:
                    x[k] = lam * min(1.0, x[k] * ρ)
                elif rule == 2:
                    x[k], w[k] = min(1.0, x[k] * ρ / lam), w[k] * lam
                else:
                    x[k], w[k] = x[k] * ρ, w[k] * lam
            states[n], actions[n], x[n], w[n] = s, a, 1.0, 1.0
            n += 1
            for k in range(n):
                Q[states[k], actions[k]] += alpha * δ * w[k] * min(1.0, x[k])
            s = after
            if s == end:
                s, n = start, 0
                episode += 1
                look = start if look < 0 else look
                gain = 1.0
                for _ in range(51):
                    b = greedy_action(Q[look], 0.05)
                    total += gain * reward[look, b]
                    look = to[look, b]
                    gain *= gamma
                    if look == end:
                        look = -1
                        break
    return total


def scripted(to, reward, end, start, gamma, rule, lam, alpha, steps, explore, seed):
    """One trial in NumPy: the return that its evaluation episodes add up to."""
    rng = np.random.default_rng(seed)
    Q = rng.normal(0.0, 0.01, reward.shape)
    A = reward.shape[1]

    def policy(q: np.ndarray, epsilon: float) -> np.ndarray:
        best = q == q.max()
        return epsilon / A + (1 - epsilon) * best / best.sum()

    total, s, episode, look = 0.0, start, 0, None
    visits, x, w = np.empty(0, np.int64), np.empty(0), np.empty(0)
    for _ in range(steps):
        behavior = policy(Q[s], 1.0 if episode < explore else 0.2)
        a = rng.choice(A, p=behavior)
        after, ρ = to[s, a], policy(Q[s], 0.1)[a] / behavior[a]
        v = 0.0 if after == end else policy(Q[after], 0.1) @ Q[after]
        δ = reward[s, a] + gamma * v - Q[s, a]
        w = w * gamma
        if rule == 0:
            x = x * lam * min(1.0, ρ)
        elif rule == 1:
            x = lam * np.minimum(1.0, x * ρ)
        elif rule == 2:
            x, w = np.minimum(1.0, x * ρ / lam), w * lam
        else:
            x, w = x * ρ, w * lam
        visits, x, w = np.append(visits, s * A + a), np.append(x, 1.0), np.append(w, 1.0)
        np.add.at(Q.reshape(-1), visits, alpha * δ * w * np.minimum(1.0, x))
        s = after
        if s == end:
            s, episode = start, episode + 1
            visits, x, w = visits[:0], x[:0], w[:0]
            look, gain = start if look is None else look, 1.0
            for _ in range(51):
                b = rng.choice(A, p=policy(Q[look], 0.05))
                total += gain * reward[look, b]
                look = to[look, b]
                gain *= gamma
                if look == end:
                    look = None
                    break
    return total


def trials(seconds: float) -> None:
    mdp = bifurcation(1)
    to = np.asarray(mdp.P.argmax(axis=1)).reshape(mdp.S, mdp.A)[:-1]
    table = (to.astype(np.int64), np.array(mdp.R[:-1]), mdp.S - 1, int(np.argmax(mdp.start)), mdp.gamma)
    lam = 0.9
    for name, (rule, number, alpha) in RULES.items():
        ours, theirs, spent = [], [], 0.0
        for repetition in range(100):
            if repetition > 5 and spent > seconds:
                break
            n = 500 if repetition else 2  # the first compiles
            start = time.process_time()
            bifurcation_auc(1, rule(lam=lam), alpha=alpha, seeds=n, seed=repetition * n, threads=1, progress=False)
            middle = time.process_time()
            plain(*table, number, lam, alpha, 3000, 5, n)
            stop = time.process_time()
            if repetition:
                ours.append((middle - start) / n)
                theirs.append((stop - middle) / n)
                spent += stop - start
        start = time.process_time()
        for seed in range(3):
            scripted(*table, number, lam, alpha, 3000, 5, seed)
        python = (time.process_time() - start) / 3
        emit(
            "trials",
            rule=name,
            python_us=python * 1e6,
            to_python=python / np.median(ours),
            ours_us=np.median(ours) * 1e6,
            plain_us=np.median(theirs) * 1e6,
            ratio=np.median(np.array(theirs) / np.array(ours)),
            in_python_time=PYTHON / np.median(ours),
        )


def sweep(seeds: int) -> None:
    """4 traces × 11 λ × 5 α, on all cores. With `seeds` below 2,000 the time is scaled up, and says so."""
    start, n = time.perf_counter(), 0
    for rule, *_ in RULES.values():
        for lam in np.linspace(0, 1, 11):
            for alpha in (0.1, 0.3, 0.5, 0.7, 0.9):
                n += len(bifurcation_auc(1, rule(lam=float(lam)), alpha=alpha, seeds=seeds, progress=False))
    seconds = time.perf_counter() - start
    emit("sweep", trials=n, seconds=seconds, whole=seconds * 440_000 / n)


def corridor(states: int) -> MDP:
    """A line of states, left and right, too long to come to its end."""
    index = np.arange(states)
    into = np.stack([np.maximum(index - 1, 0), np.minimum(index + 1, states - 1)], axis=1).ravel()
    P = sp.csr_array((np.ones(2 * states), into, np.arange(2 * states + 1)), shape=(2 * states, states))
    R = np.zeros((states, 2))
    R[::50] = 1.0
    return MDP(P, R, 0.99, np.eye(states)[states // 2], terminal=np.zeros(states, bool))


def growth() -> None:
    mdp = corridor(10_001)
    pi, mu = np.tile([0.45, 0.55], (mdp.S, 1)), np.full((mdp.S, 2), 0.5)
    for rule in (ot.Retrace(0.9), *(rule for rule in trajectory_aware(0.9) if rule.recursive)):
        for length in (1_000, 10_000, 100_000, 1_000_000):
            taken = []
            for repetition in range(4):
                start = time.process_time()
                evaluate(
                    rule, mdp, target=pi, behavior=mu, alpha=0.1, steps=1_000_000, limit=length, seed=repetition, points=1,
                    truth=np.zeros((mdp.S, 2)), certify=False, threads=1, progress=False,
                )  # fmt: skip
                taken.append((time.process_time() - start) / 1e6)
            emit("episodes", rule=rule.title, length=length, ns=min(taken[1:]) * 1e9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=200)
    options = parser.parse_args()
    trials(options.seconds)
    growth()
    sweep(options.seeds)
