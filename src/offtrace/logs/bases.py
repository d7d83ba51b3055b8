"""Q as a linear function of its parameters θ: a table, or features. Read at the logged steps, and spread back from them.

    q_t = φ(s_t, a_t)·θ,      v_t = Σ_a π(a|s') φ(s', a)·θ = φ'_t·θ         `read`
    Σ_t u_t φ_t + w_t φ'_t                                                    `spread`, its transpose

A table is the case φ(s, a) = the unit vector of the pair (s, a).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.linalg

from offtrace.logs.operator import PIECE, Sampled

DEPENDENT = 1e-10  # features depend on each other where an eigenvalue is below this share of the largest
KEPT = 1 << 25  # numbers: features of this many are kept, those of longer logs are made anew in every sweep
LEVERAGE = 2e10  # multiplications, up to which the share of an episode in the fit at its own steps is computed
LARGEST = 0.9  # of these shares


def over_logged(policy: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """π [S, A] over the actions that were logged in each state; all of them alike where none of π's was, 0 where none was at all.

    >>> over_logged(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[3, 0], [0, 2]]))
    array([[1., 0.],
           [0., 1.]])
    """
    logged = counts > 0
    kept = np.where(logged, policy, 0.0)
    kept = np.where(kept.any(axis=1, keepdims=True), kept, logged)
    total = kept.sum(axis=1, keepdims=True)
    return kept / np.where(total > 0, total, 1.0)


@dataclass(frozen=True, eq=False)
class Table:
    """θ = Q, one number for each pair (s, a).

    Of an action that was never logged in a state nothing is known: it is taken to be worth what the logged ones are worth to π,
    so that V(s) is the mean over those alone, or over all logged ones alike where none of π's was. (To leave it at 0 would
    favour what is not known wherever rewards are negative.) A state in which nothing was logged is worth 0.
    """

    sampled: Sampled
    logged: np.ndarray | None = None
    """How often each pair occurs [S·A], where these logs are a part of more; None: as often as here."""

    @property
    def piece(self) -> int:
        """Steps of a piece: at least as many as the table has entries, which every piece sums up."""
        return max(PIECE, self.size)

    @property
    def size(self) -> int:
        """The number of weights: one for each of the S·A pairs."""
        return self.sampled.logs.states * self.sampled.logs.actions

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each pair occurs [S·A]."""
        if self.logged is not None:
            return self.logged
        return sum(self.sampled.each(lambda p: np.bincount(self._pair(p), minlength=self.size), self.piece))  # pyright: ignore

    @cached_property
    def _pi(self) -> np.ndarray:
        """π over the actions that were logged in each state [S, A]; all of them alike where none of π's was."""
        table = self.sampled.policy.table
        if table is None:
            raise TypeError("a table of values needs states that are ids")
        return over_logged(table, self.counts.reshape(table.shape))

    def _pair(self, piece: slice) -> np.ndarray:
        logs = self.sampled.logs
        return logs.state[piece] * logs.actions + logs.action[piece]

    def read(self, theta: np.ndarray, piece: slice) -> tuple[np.ndarray, np.ndarray]:
        """q [n] and v [n] of a piece."""
        return theta[self._pair(piece)], self.values(theta, self.sampled.logs.next_state[piece])

    def spread(self, piece: slice, u: np.ndarray | None, w: np.ndarray | None) -> np.ndarray:
        """Σ_t u_t φ_t + w_t φ'_t."""
        logs = self.sampled.logs
        total = np.zeros(self.size) if u is None else np.bincount(self._pair(piece), u, self.size)
        if w is not None:
            total += (np.bincount(logs.next_state[piece], w, logs.states)[:, None] * self._pi).ravel()
        return total

    def mean(self, vector: np.ndarray) -> np.ndarray:
        """Each pair's mean of what `spread` has summed; where nothing was, the vector itself is kept."""
        return vector / np.maximum(self.counts, 1)

    def free(self, vector: np.ndarray) -> np.ndarray:
        """The part of the vector that the data say nothing of."""
        return np.where(self.counts == 0, vector, 0.0)

    def pull(self, c: np.ndarray, theta: np.ndarray, piece: slice, delta: np.ndarray) -> np.ndarray:
        """c·φ_k times what step k pulls at its pair [n], as if its episode were left out.

        Without the n_e steps of the episode, the mean over a pair's n steps moves by ΣΔ / (n − n_e), not ΣΔ / n; and V(s) would
        do without a pair that only this episode has. Where pairs have many steps this is cΔ_k; where they have few, it
        keeps intervals honest.
        """
        pair, logs = self._pair(piece), self.sampled.logs
        episode = np.searchsorted(logs.starts, np.arange(piece.start, piece.stop), side="right")
        _, which, times = np.unique(episode * self.size + pair, return_inverse=True, return_counts=True)
        n, of_episode, share = self.counts[pair], times[which], self._pi.ravel()[pair]
        logged, known = self.counts.reshape(self._pi.shape) > 0, theta.reshape(self._pi.shape)
        total, several = (x.sum(axis=1)[logs.state[piece]] for x in (np.where(logged, known, 0.0), logged))
        others = (total - theta[pair]) / np.maximum(several - 1, 1)  # where π has no other: all that were logged, alike
        alone = theta[pair] - np.where(share < 1, self.values(theta, logs.state[piece]), others)
        alone /= np.where(share < 1, 1 - share, 1.0)
        return c[pair] * np.where(n > of_episode, delta * n / np.maximum(n - of_episode, 1), alone)

    def q(self, theta: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Q(s, ·) [n, A]; V(s) for actions that were not logged there."""
        logged = self.counts.reshape(self._pi.shape)[states] > 0
        return np.where(logged, theta.reshape(self._pi.shape)[states], self.values(theta, states)[:, None])

    def at(self, theta: np.ndarray, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Q(s, a) [n]."""
        return self.q(theta, states)[np.arange(len(states)), actions]

    def values(self, theta: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Σ_a π(a|s) Q(s, a) [n]."""
        return (self._pi * theta.reshape(self._pi.shape)).sum(axis=1)[states]

    def spread_values(self, states: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """∂/∂θ of Σ_i weights_i v(states_i)."""
        return (np.bincount(states, weights, len(self._pi))[:, None] * self._pi).ravel()


@dataclass(frozen=True, eq=False)
class Linear:
    """Q = φ(s, a)·θ, fitted by ridge regression, with φ orthonormal over the logged steps: Σ_t φ_t φ_tᵀ = I.

    Directions in which the given features hardly vary (or depend on each other) are left out. The ridge adds the penalty
    α Σ_j v_j θ_j² in the given features, v_j the variance of the j-th one over the logged steps on which its action was taken:
    constants are not penalised, and the unit of a feature does not matter.
    """

    sampled: Sampled
    features: Callable[[np.ndarray], object] | None
    """φ(s): states → [n, d]; θ then has 1 + d numbers for each action. None: the states are features themselves."""
    pairs: Callable[[np.ndarray, np.ndarray], object] | None
    """φ(s, a): states, actions → [n, p], in place of `features`."""
    ridge: float = 0.0
    """α."""
    of_all: tuple[np.ndarray, np.ndarray] | None = None
    """Σ φφᵀ and v, where these logs are a part of more; None: those of these logs."""

    @cached_property
    def piece(self) -> int:
        """Steps of a piece."""
        given = self._given(self.sampled.logs.state[:1], self.sampled.logs.action[:1]).shape[1]
        return max(1, min(PIECE, (1 << 22) // given))

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Σ_t φ_t φ_tᵀ and v of the features as they were given."""
        if self.of_all is not None:
            return self.of_all
        parts = list(self.sampled.each(self.moments, self.piece))
        return gram_and_variance(*(np.asarray(sum(each)) for each in zip(*parts, strict=True)))

    def moments(self, piece: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Σ φφᵀ, Σ φ, and on how many steps each φ_j is not 0, of a piece of the logs."""
        logs = self.sampled.logs
        x = self._given(logs.state[piece], logs.action[piece])
        if self.pairs is not None:
            return x.T @ x, x.sum(axis=0), np.full(x.shape[1], float(len(x)))
        taken = np.bincount(logs.action[piece], minlength=logs.actions).astype(np.float64)
        return x.T @ x, x.sum(axis=0), np.repeat(taken, x.shape[1] // logs.actions)

    @cached_property
    def root(self) -> np.ndarray:
        """R [given, p], so that φ R is orthonormal."""
        return root_of(self._moments[0])

    @cached_property
    def penalty(self) -> np.ndarray:
        """α Rᵀ diag(v) R [p, p]."""
        return self.ridge * (self.root.T * self._moments[1]) @ self.root

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.root.shape[1]

    def _phi(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """φ(s, a) [n, p]."""
        return self._given(states, actions) @ self.root

    def _given(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """φ(s, a) as it was given."""
        if self.pairs is not None:
            return feature_matrix(self.pairs(states, actions), len(states), "features of (s, a)")
        return self._blocks(states, np.eye(self.sampled.logs.actions)[actions])

    def _phi_bar(self, states: np.ndarray, pi: np.ndarray) -> np.ndarray:
        """Σ_a π(a|s) φ(s, a) [n, p], for π [n, A] or for actions [n, m, k]."""
        if pi.ndim == 3:
            given = sum(self._given(states, pi[:, j]) for j in range(pi.shape[1]))
            return np.asarray(given) @ (self.root / pi.shape[1])
        if self.pairs is None:
            return self._blocks(states, pi) @ self.root
        n = len(states)
        return sum(pi[:, [a]] * self._phi(states, np.full(n, a)) for a in range(pi.shape[1]))  # pyright: ignore

    def _blocks(self, states: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """weights ⊗ (1, φ(s)): a block of features for each action."""
        x = feature_matrix(states if self.features is None else self.features(states), len(states), "features of s")
        x = np.column_stack([np.ones(len(x)), x])
        return (weights[:, :, None] * x[:, None, :]).reshape(len(x), -1)

    @cached_property
    def _all(self) -> tuple[np.ndarray, np.ndarray] | None:
        """φ and φ' at all steps; None where there are too many to keep."""
        if self.of_all is not None or len(self.sampled.logs) * self.size > KEPT:
            return None
        parts = list(self.sampled.each(self._made, self.piece))
        return np.concatenate([now for now, _ in parts]), np.concatenate([following for _, following in parts])

    def _made(self, piece: slice) -> tuple[np.ndarray, np.ndarray]:
        logs = self.sampled.logs
        on = ~logs.terminated[piece]  # after an end the next state may be anything
        following = np.zeros((len(on), self.size))
        if on.any():
            following[on] = self._phi_bar(logs.next_state[piece][on], self.sampled.next_choices(piece)[on])
        return self._phi(logs.state[piece], logs.action[piece]), following

    def features_at(self, piece: slice) -> tuple[np.ndarray, np.ndarray]:
        """φ_t and φ'_t [n, p] of a piece."""
        return self._made(piece) if self._all is None else (self._all[0][piece], self._all[1][piece])

    def read(self, theta: np.ndarray, piece: slice) -> tuple[np.ndarray, np.ndarray]:
        """q [n] and v [n] of a piece."""
        now, following = self.features_at(piece)
        return now @ theta, following @ theta

    def spread(self, piece: slice, u: np.ndarray | None, w: np.ndarray | None) -> np.ndarray:
        """Σ_t u_t φ_t + w_t φ'_t."""
        now, following = self.features_at(piece)
        total = np.zeros(self.size)
        if u is not None:
            total += u @ now
        return total if w is None else total + w @ following

    def mean(self, vector: np.ndarray) -> np.ndarray:
        """(Σ φφᵀ)⁻¹ times the vector, which is the vector."""
        return vector

    def free(self, vector: np.ndarray) -> np.ndarray:
        """What the ridge adds to the system: the penalty times the vector."""
        return self.penalty @ vector if self.ridge else np.zeros_like(vector)

    def pull(self, c: np.ndarray, theta: np.ndarray, piece: slice, delta: np.ndarray) -> np.ndarray:
        """c·φ_k times what step k pulls [n], as if its episode were left out: c·φ_k Δ_k / (1 − h_k).

        h_k is the part of the fit at step k that its own episode has, φ_k M Σ_{j in e} φ_j φ_jᵀ M φ_k / φ_k M φ_k, with
        M = (I + penalty)⁻¹: in a table n_e / n. Where that would take too long it is left out.
        """
        now = self.features_at(piece)[0]
        starts = self.sampled.logs.starts
        inside = starts[(starts >= piece.start) & (starts <= piece.stop)] - piece.start
        if float((np.diff(inside).astype(float) ** 2).sum()) * self.size > LEVERAGE:
            return (now @ c) * delta
        hat = now @ np.linalg.inv(np.eye(self.size) + self.penalty) if self.ridge else now
        own = np.empty(len(now))
        for begin, end in pairwise(inside.tolist()):
            own[begin:end] = ((hat[begin:end] @ now[begin:end].T) ** 2).sum(axis=1)
        h = own / np.maximum((hat * now).sum(axis=1), 1e-300)
        return (now @ c) * delta / (1 - np.minimum(h, LARGEST))

    def at(self, theta: np.ndarray, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Q(s, a) [n]."""
        return self._phi(states, actions) @ theta

    def q(self, theta: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Q(s, ·) [n, A]."""
        n, A = len(states), self.sampled.logs.actions
        return np.column_stack([self._phi(states, np.full(n, a)) @ theta for a in range(A)])

    def values(self, theta: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Σ_a π(a|s) Q(s, a) [n]."""
        return self._phi_bar(states, self.sampled.policy.choices(states)) @ theta

    def spread_values(self, states: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """∂/∂θ of Σ_i weights_i v(states_i)."""
        return weights @ self._phi_bar(states, self.sampled.policy.choices(states))


def gram_and_variance(gram: np.ndarray, total: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ φφᵀ, and the variance of each feature where its action was taken; 0 of a constant."""
    n = np.maximum(steps, 1)
    square, mean = np.diag(gram) / n, total / n
    variance = square - mean**2
    return gram, np.where(variance > 1e-9 * square, variance, 0.0)


def root_of(gram: np.ndarray) -> np.ndarray:
    """R [given, p] with Rᵀ gram R = I, from the eigenvectors of the Gram matrix, its diagonal scaled to 1."""
    size = np.sqrt(np.diag(gram))
    scale = np.divide(1.0, size, where=size > 0, out=np.zeros_like(size))
    values, vectors = scipy.linalg.eigh(gram * scale * scale[:, None])
    kept = values > DEPENDENT * values[-1]
    return scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])


def feature_matrix(given: object, n: int, what: str) -> np.ndarray:
    """Features [n, d] in float64; else an error."""
    x = np.asarray(given, dtype=np.float64)
    if x.ndim != 2 or len(x) != n:
        raise ValueError(f"{what} have shape {x.shape} for {n} states: they must be [n, d]")
    if not np.isfinite(x).all():
        raise ValueError(f"{what} are not finite in row {int(np.argmax(~np.isfinite(x).all(axis=1)))} of {n}")
    return x
