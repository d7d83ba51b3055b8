"""The oracle: the paper's Algorithm 1 as it is printed (with π in δ), visit by visit, slow and obvious.

    δ_t = r_t + γ Σ_a' π(a'|s_{t+1}) Q(s_{t+1}, a') − Q(s_t, a_t)
    for every visit k ≤ t of the episode:    Q(s_k, a_k) ← Q(s_k, a_k) + α γ^{t-k} β(F_{k:t}) δ_t

β is recomputed from the whole history for each visit at each step: O(T³) an episode. It draws the same random numbers as the
compiled loop, so both live through the same steps; it shares no line with it. The tests hold the loop to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from offtrace import traces as tr
from offtrace.learners import policies as po
from offtrace.learners.arguments import Replay
from offtrace.learners.arrays import Floats
from offtrace.mdps import MDP
from offtrace.returns.by_definition import beta

MASK = 2**64 - 1


class SplitMix:
    """SplitMix64 (Steele, Lea, Flood 2014), with the integers of Python. Stream 0 is for living, 1 for evaluation."""

    GOLDEN = 0x9E3779B97F4A7C15

    def __init__(self, seed: int, stream: int = 0) -> None:
        self.state = self.mixed(self.mixed(seed + self.GOLDEN) + stream * self.GOLDEN)

    @staticmethod
    def mixed(z: int) -> int:
        """Return z with its bits mixed: the last step of SplitMix64."""
        z &= MASK
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        return z ^ (z >> 31)

    def uniform(self) -> float:
        """Return the next number, uniform in [0, 1)."""
        self.state = (self.state + self.GOLDEN) & MASK
        return (self.mixed(self.state) >> 11) / 2**53

    def normal(self) -> float:
        """Standard normal, by Box and Muller."""
        radius = math.sqrt(-2 * math.log(1 - self.uniform()))
        return radius * math.cos(2 * math.pi * self.uniform())

    def pick(self, p: Sequence[float] | Floats) -> int:
        """An index with probability p[i], by one number; by none where there is no choice."""
        return 0 if len(p) == 1 else inverse(self.uniform(), p)


def inverse(u: float, p: Sequence[float] | Floats) -> int:
    """The first index whose cumulated probability is above u; never one of probability 0."""
    total = 0.0
    for i, x in enumerate(p):
        total += x
        if x > 0 and u < total:
            return i
    return max(i for i, x in enumerate(p) if x > 0)


def level(schedule: po.Schedule | float, episode: int, step: int) -> float:
    """The value of a schedule."""
    k = step if getattr(schedule, "by", "episode") == "step" else episode
    match schedule:
        case po.Constant(value=value):
            return value
        case po.Linear(first=first, last=last, over=over):
            return first + (last - first) * min(1.0, k / over)
        case po.Harmonic(value=value, half=half):
            return value / (1 + k / half)
        case po.Exponential(value=value, factor=factor, last=last):
            return max(last, value * factor**k)
        case _:
            assert not isinstance(schedule, po.Schedule)
            return float(schedule)


def probabilities(policy: po.Policy | ArrayLike, s: int, q: Floats, episode: int, step: int) -> Floats:
    """π(·|s) of a policy or a table, for the values q of this state."""
    if not isinstance(policy, po.Policy):
        return np.asarray(policy)[s]
    if episode < policy.explore:
        return np.full(len(q), 1 / len(q))
    greedy = (q == q.max()) / (q == q.max()).sum()
    if isinstance(policy, po.EpsilonGreedy):
        ε = level(policy.epsilon, episode, step)
        return ε / len(q) + (1 - ε) * greedy
    assert isinstance(policy, po.Softmax)
    temperature = level(policy.temperature, episode, step)
    if temperature == 0:
        return greedy
    p = np.exp((q - q.max()) / temperature)
    return p / p.sum()


def choose(u: float, policy: po.Policy | ArrayLike, s: int, q: Floats, episode: int, step: int) -> int:
    """An action by one number: ε-greedy asks first whether it explores, the others go by cumulated probabilities."""
    if not isinstance(policy, po.EpsilonGreedy) and not (isinstance(policy, po.Policy) and episode < policy.explore):
        return inverse(u, probabilities(policy, s, q, episode, step))
    ε = 1.0
    if isinstance(policy, po.EpsilonGreedy) and episode >= policy.explore:
        ε = level(policy.epsilon, episode, step)
    among = range(len(q)) if u < ε else [a for a in range(len(q)) if q[a] == q.max()]
    return among[int((u / ε if u < ε else (u - ε) / (1 - ε)) * len(among))]


@dataclass
class Visit:
    """One step, as it was when it was taken."""

    s: int
    a: int
    reward: float
    after: int
    terminated: bool
    truncated: bool
    pi: float
    """π(a|s)."""
    greedy: bool
    """Whether a maximised Q(s, ·)."""
    mu: float
    """μ(a|s)."""
    q: float
    """Q(s, a)."""
    next_value: float
    """Σ_a' π(a'|s') Q(s', a') of the policy in δ; 0 where the episode terminated."""


@dataclass
class Lived:
    """The result of one learner's life."""

    Q: Floats
    visits: list[Visit] = field(default_factory=list[Visit])
    """All steps, in the order they were taken."""
    drawn: list[list[Visit]] = field(default_factory=list[list[Visit]])
    """The sequences that were drawn from the buffer, with π, q and next_value of that moment."""
    before: list[Floats] = field(default_factory=list[Floats])
    """Q before each of these sequences."""


def learn(
    trace: tr.Trace,
    mdp: MDP,
    *,
    behavior: po.Policy | ArrayLike,
    target: po.Policy | ArrayLike,
    alpha: po.Schedule | float | Literal["1/N"],
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    update: str = "online",
    replay: Replay | None = None,
    q0: float | Floats = 0.0,
    spread: float = 0.0,
    limit: int | None = None,
) -> Lived:
    """Evaluation and control alike: `behavior` and `target` are tables or policies in the current Q."""
    S, A, γ = mdp.S, mdp.A, mdp.gamma
    draws = SplitMix(seed)
    Q = np.zeros((S, A)) + q0
    for s in range(S):
        for a in range(A):
            Q[s, a] += spread * draws.normal() if spread else 0.0
    N = np.zeros((S, A))
    lived, waiting = Lived(Q), np.zeros((S, A))
    history: list[Visit] = []
    episode, s = 0, draws.pick(mdp.start)

    def next_value(after: int, at: tuple[int, int]) -> float:
        both = (probabilities(policy, after, Q[after], *at) for policy in (target, behavior))
        return float(trace.evaluated(*both) @ Q[after])

    def update_of(history: list[Visit]) -> Floats:
        """[S, A]: what the last step of a history changes, without the step size."""
        now, change = history[-1], np.zeros((S, A))
        δ = now.reward + γ * now.next_value - now.q
        for k, visit in enumerate(history):
            change[visit.s, visit.a] += γ ** (len(history) - 1 - k) * _beta(trace, history[k:], A) * δ
        return change

    def size(at: tuple[int, int]) -> float | Floats:
        return 1 / np.maximum(N, 1) if alpha == "1/N" else level(alpha, *at)

    for t in range(steps or 10**9):
        at = episode, t
        a = choose(draws.uniform(), behavior, s, Q[s], *at)
        after, reward = _next(mdp, s, a, draws)
        terminated = bool(mdp.terminal[after])
        truncated = not terminated and len(history) + 1 == limit
        π, μ = (float(probabilities(policy, s, Q[s], *at)[a]) for policy in (target, behavior))
        v = 0.0 if terminated else next_value(after, at)
        best = bool(Q[s, a] == Q[s].max())
        history.append(Visit(s, a, reward, after, terminated, truncated, π, best, μ, float(Q[s, a]), v))
        lived.visits.append(history[-1])
        if update != "replay":
            N[s, a] += 1
            waiting += update_of(history)
        elif replay is not None and (t + 1) % replay.every == 0:
            buffer = lived.visits[-replay.capacity :]
            for _ in range(replay.batch):
                sequence: list[Visit] = []
                first = int(draws.uniform() * len(buffer))
                lived.before.append(Q.copy())
                for old in buffer[first : first + replay.length]:
                    π = float(probabilities(target, old.s, Q[old.s], *at)[old.a])
                    v = 0.0 if old.terminated else next_value(old.after, at)
                    ends = (old.terminated, old.truncated)
                    q, best = float(Q[old.s, old.a]), bool(Q[old.s, old.a] == Q[old.s].max())
                    sequence.append(Visit(old.s, old.a, old.reward, old.after, *ends, π, best, old.mu, q, v))
                    N[old.s, old.a] += 1
                    waiting += update_of(sequence)
                    if any(ends):
                        break
                np.add(Q, size(at) * waiting, out=Q)
                waiting[:] = 0.0
                lived.drawn.append(sequence)
        ended, last = terminated or truncated, t + 1 == steps or episode + (terminated or truncated) == episodes
        if update == "online" or (update == "offline" and (ended or last)):
            np.add(Q, size(at) * waiting, out=Q)
            waiting[:] = 0.0
        if ended:
            episode, history = episode + 1, []
        if last:
            break
        s = draws.pick(mdp.start) if ended else after
    return lived


def _next(mdp: MDP, s: int, a: int, draws: SplitMix) -> tuple[int, float]:
    """s' and r, from the row of the pair."""
    row = range(mdp.P.indptr[s * mdp.A + a], mdp.P.indptr[s * mdp.A + a + 1])
    j = row[draws.pick(mdp.P.data[row.start : row.stop])]
    reward = mdp.R[s, a] if mdp.transition_rewards is None else mdp.transition_rewards[j]
    return int(mdp.P.indices[j]), float(reward)


def _beta(trace: tr.Trace, history: list[Visit], A: int) -> float:
    """β of a history, from nothing but the history."""
    π, μ = [float(v.greedy) if trace.needs_greedy else v.pi for v in history], [v.mu for v in history]
    pairs = [v.s * A + v.a for v in history]
    λ = [getattr(trace, "lam")[v.s, v.a] for v in history] if trace.shape else ()  # noqa: B009
    return beta(trace, π, μ, [p / m for p, m in zip(π, μ, strict=True)], pairs, λ)
