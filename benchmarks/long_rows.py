"""The exact moments of weighted policy gradients on long rows: those with the same context and weight are counted together.

The contexts are the states of an automaton. Every ratio π/μ is u, 1/u or 1, so that a product of ratios is u^j with an integer
j, and a row is at one of few nodes (s, j). For each node the recursion carries the moments of what a row has gathered so far,

    E[R^k],  E[R^k G],  E[R^k ‖G‖²],      G = Σ_t w_t A_t ∇log π(a_t|s_t),  R the return,  k = 0, 1, 2

all of which follow from those one step before. `tests/policy/test_exact_gradients.py` holds it to rows listed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offtrace.policy import GradientMoments


@dataclass(frozen=True, eq=False)
class Automaton:
    """Contexts s, tokens a, and the context that follows: all tables are [S, A]."""

    following: np.ndarray
    exponent: np.ndarray
    """j: the ratio π/μ is u^j, j = −1, 0 or 1."""
    mu: np.ndarray
    reward: np.ndarray
    parameter: np.ndarray
    """To which parameters the context's logits belong, [S]: each such class has A."""
    u: float
    start: int = 0

    @property
    def pi(self) -> np.ndarray:
        """π = u^j μ."""
        return self.mu * self.u**self.exponent

    @property
    def score(self) -> np.ndarray:
        """∇log π(a|s) by the logits of all classes, [S, A, F]."""
        S, A = self.mu.shape
        found = np.zeros((S, A, int(self.parameter.max()) + 1, A))
        found[np.arange(S), :, self.parameter] = np.eye(A) - self.pi[:, None]
        return found.reshape(S, A, -1)

    def action_values(self, steps: int, policy: np.ndarray) -> np.ndarray:
        """Q of a policy with rows of so many tokens, [T, S, A]; the reward of a row is a mean over its tokens."""
        found, value = np.zeros((steps, *self.mu.shape)), np.zeros(len(self.mu))
        for t in reversed(range(steps)):
            found[t] = self.reward / steps + value[self.following]
            value = (policy * found[t]).sum(axis=1)
        return found


def forgetting(u: float, *, rare: float) -> Automaton:
    """Four tokens, and a context that is one of two modes, which only the two rare tokens set.

    One token in 1/rare sets the mode, so that this is how long a row remembers. In each mode another common token is right, and
    the second mode is worth more. π takes the right tokens and the one that sets the second mode more often than μ.
    """
    exponent = np.array([[1, -1, -1, 1], [-1, 1, -1, 1]])
    share = np.array([1 - rare, 1 - rare, rare, rare])
    mu = np.where(exponent > 0, 1 / (1 + u), u / (1 + u)) * share
    reward = np.array([[0.5, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    return Automaton(np.array([[0, 0, 0, 1], [1, 1, 0, 1]]), exponent, mu, reward, np.arange(2), u)


def remembering(u: float, steps: int) -> Automaton:
    """Two tokens, and a context that is the score so far: j of the whole past. The logits belong to five ranges of the score.

    What is right changes with the range, and π is in other ranges than μ the longer the rows are.
    """
    score = np.arange(-steps, steps + 1)
    exponent = np.tile([[1, -1]], (len(score), 1))
    following = np.clip(np.arange(len(score))[:, None] + exponent, 0, 2 * steps)
    width = np.sqrt(steps)
    parameter = np.digitize(score / width, [-1.0, -0.3, 0.3, 1.0])
    mu = np.tile([[1 / (1 + u), u / (1 + u)]], (len(score), 1))
    reward = np.where((parameter[:, None] % 2) == np.arange(2), 1.0, 0.0)
    return Automaton(following, exponent, mu, reward, parameter, u, start=steps)


def true_gradient(automaton: Automaton, steps: int) -> np.ndarray:
    """∇J, [F]."""
    a = automaton
    q, d = a.action_values(steps, a.pi), np.eye(len(a.mu))[a.start]
    found = np.zeros(a.score.shape[-1])
    for t in range(steps):
        found += np.einsum("s,sa,sa,saf->f", d, a.pi, q[t], a.score)
        d = np.bincount(a.following.ravel(), (d[:, None] * a.pi).ravel(), minlength=len(d))
    return found


def long_moments(
    automaton: Automaton, steps: int, kappa: float, bound: float, level: str = "prefix", *, returns: bool = False
) -> GradientMoments:
    """The moments of ρ^κ with a bound: recursive for a prefix, at the end for a sequence.

    The advantages are Q^π − V^π, or returns less their mean.
    """
    a = automaton
    S, A = a.mu.shape
    q = a.action_values(steps, a.pi)
    advantage = np.ones_like(q) if returns else q - (a.pi * q).sum(axis=2, keepdims=True)
    half = 0 if level == "token" else steps
    j = np.arange(-half, half + 1)
    top = _top(kappa, bound, np.log(a.u), half) if level in ("prefix", "past") else None
    F, powers, score = a.score.shape[-1], 3 if returns else 1, a.score
    X = np.zeros((S, powers, F + 2, len(j)))  # E[R^k ·] of 1, G and ‖G‖²
    X[a.start, 0, 0, half] = 1.0
    for t in range(steps):
        new = np.zeros_like(X)
        for s in np.flatnonzero(X[:, 0, 0].any(axis=1)):
            for b in range(A):
                moved = _rewarded(X[s], a.reward[s, b] / steps) * a.mu[s, b]
                by, unit = int(a.exponent[s, b]), np.log(a.u)
                if level == "past":  # by the past, and the token's own ratio whole
                    moved = _gathered(moved, np.exp(unit * (kappa * j + by)) * advantage[t, s, b], score[s, b])
                if half:
                    moved = _shifted(moved, by, top)
                if level != "past":
                    w = _weight(level, kappa, bound, unit * (j if level == "prefix" else by))
                    moved = _gathered(moved, w * advantage[t, s, b], score[s, b])
                new[a.following[s, b]] += moved
        X = new
    end = _weight("token", kappa, bound, np.log(a.u) * j) if level == "sequence" else np.ones(len(j))
    sums = X.sum(axis=0)
    first, second = sums[:, 1:-1] @ end, sums[:, -1] @ end**2
    if not returns:
        mean, square = first[0], second[0]
    else:
        base = float((a.mu[a.start] * a.action_values(steps, a.mu)[0, a.start]).sum())
        mean, square = first[1] - base * first[0], second[2] - 2 * base * second[1] + base**2 * second[0]
    return GradientMoments(mean, max(0.0, float(square - mean @ mean)), true_gradient(a, steps))


def _top(kappa: float, bound: float, unit: float, half: int) -> int | None:
    """The index of the largest j that the bound allows, which must be a power of u^κ; None where it allows all."""
    if bound == np.inf or kappa == 0.0:
        return None
    found = np.log(bound) / (kappa * unit)
    if abs(found - round(found)) > 1e-9:
        raise ValueError(f"the bound {bound} is no power of u^κ = {np.exp(kappa * unit):g}")
    return min(2 * half, half + round(found))


def _weight(level: str, kappa: float, bound: float, log_ratio: np.ndarray) -> np.ndarray:
    if level == "sequence":
        return np.ones(1)
    found = np.exp(kappa * log_ratio)
    return found if level == "prefix" else np.minimum(bound, found)


def _shifted(moved: np.ndarray, by: int, top: int | None) -> np.ndarray:
    """The moments at j, taken to min(top, j + by). The row's ends hold nothing, since no row is longer than its half."""
    out = np.roll(moved, by, axis=-1)
    if top is not None and by > 0 and top + 1 < out.shape[-1]:
        out[..., top] += out[..., top + 1]
        out[..., top + 1] = 0.0
    return out


def _rewarded(x: np.ndarray, reward: float) -> np.ndarray:
    """From E[R^k ·] to E[(R + r)^k ·]."""
    if len(x) == 1:
        return x
    return np.stack([x[0], x[1] + reward * x[0], x[2] + 2 * reward * x[1] + reward**2 * x[0]])


def _gathered(x: np.ndarray, c: np.ndarray, score: np.ndarray) -> np.ndarray:
    """From the moments with G to those with G + c · score."""
    one, g = x[:, :1], x[:, 1:-1]
    square = x[:, -1] + 2 * c * np.einsum("f,kfj->kj", score, g) + c**2 * (score @ score) * x[:, 0]
    return np.concatenate([one, g + c * score[:, None] * one, square[:, None]], axis=1)
