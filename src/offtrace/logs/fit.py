"""Fitted iteration of the sampled operator M, with any trace: Q_{i+1} is the fit of q_k + Δ_k(Q_i) over all logged steps k.

Where Q is linear in its parameters θ (a table, features), one sweep is affine:

    θ_{i+1} = θ_i + N⁻¹(b − Aθ_i),     N = Σ_k φ_k φ_kᵀ,     b − Aθ = Σ_k φ_k Δ_k(θ)
    A = Σ_k φ_k Σ_t γ^{t−k} β_{k:t} (φ_t − γφ'_t)ᵀ

Its fixed point, Aθ = b, is found by GMRES on N⁻¹A, each product with which is a sweep: far fewer sweeps than the iteration takes,
and a fixed point also where the iteration diverges. How much each episode moves the answer (`Fit.influence`) takes one more such
solution, with Aᵀ: that is what makes a bootstrap cheap. A itself is formed only where there are few features.

Any regressor of scikit-learn's interface (boosted trees, a network) is fitted anew in every sweep, to the features and the action
as columns of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from offtrace.logs.bases import Linear, Table, feature_matrix
from offtrace.logs.container import Logs
from offtrace.logs.linear_systems import inverse_of, solve
from offtrace.logs.operator import Sampled

FEW = 1000  # features for which A is formed


@dataclass(frozen=True)
class Features:
    """Q = φ·θ by least squares: φ(s) with a θ for each action, or φ(s, a).

    >>> Features(np.eye(5)[:, :3]).of_states.shape  # three features of five states
    (5, 3)
    """

    of_states: object = None
    """φ(s): a callable, states → [n, d], or a table [S, d]; None takes the states themselves. A constant is added."""
    of_pairs: Callable[[np.ndarray, np.ndarray], object] | None = None
    """φ(s, a): states, actions → [n, p], in place of `of_states`; nothing is added."""
    ridge: float = 0.0
    """α of the ridge: so many observations more, that say 0, of each feature on its own scale."""


@dataclass(frozen=True)
class Regressor:
    """Q by any regressor with scikit-learn's `fit` and `predict`.

    >>> from sklearn.tree import DecisionTreeRegressor
    >>> Regressor(lambda: DecisionTreeRegressor(random_state=0), of_states=np.eye(5)).sweeps
    200
    """

    make: Callable[[], Any]
    """Makes an unfitted regressor; called in every sweep."""
    of_states: object = None
    """φ(s) as in `Features`."""
    sweeps: int = 200
    """The largest number of sweeps."""
    tolerance: float = 1e-3
    """Sweeps end when V(π), extrapolated, has less than this share of itself still to go."""


Model = Features | Regressor | None
"""A model of Q; None is a table."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Q of π as the sampled operator has it, linear in θ."""

    basis: Table | Linear
    theta: np.ndarray
    sweeps: int
    """The number of sweeps that were made."""
    converged: bool
    inverse: np.ndarray | None = None
    """A⁻¹ where A was formed."""

    @property
    def sampled(self) -> Sampled:
        """The operator whose fixed point it is."""
        return self.basis.sampled

    def q(self, states: np.ndarray) -> np.ndarray:
        """Q(s, ·) [n, A]."""
        return self.basis.q(self.theta, states)

    def at(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Q(s, a) [n] of actions [n], or [n, k] where they are real numbers."""
        return self.basis.at(self.theta, states, actions)

    def values(self, states: np.ndarray) -> np.ndarray:
        """Σ_a π(a|s) Q(s, a) [n]."""
        return self.basis.values(self.theta, states)

    @cached_property
    def at_steps(self) -> tuple[np.ndarray, np.ndarray]:
        """q [N] and v [N] at the logged steps."""
        parts = list(self.basis.sampled.each(lambda p: self.basis.read(self.theta, p), self.basis.piece))
        return np.concatenate([q for q, _ in parts]), np.concatenate([v for _, v in parts])

    def influence(self, gradient: np.ndarray) -> np.ndarray:
        """How much each episode moves a quantity with this gradient g in θ [E]: g·A⁻¹ Σ_{k in e} φ_k Δ_k.

        That is the derivative by its weight. In a table it is rather what the quantity loses without the episode (`Table.pull`).
        The mean over episodes is 0. NaN where A has no inverse, so that there is no such thing.
        """
        basis = self.basis
        if self.inverse is not None:
            c = gradient @ self.inverse
        else:
            c = pull_of(basis, partial(_total, basis), gradient)
        if c is None or not self.converged:
            return np.full(basis.sampled.logs.episodes, np.nan)
        moves = basis.sampled.each(lambda piece: moved(basis, piece, c, self.theta), basis.piece)
        influence = np.concatenate(list(moves))
        return influence - influence.mean()


@dataclass(frozen=True, eq=False)
class Regressed:
    """Q of π by a regressor."""

    sampled: Sampled
    model: Any
    """The regressor of the last sweep."""
    features: Callable[[np.ndarray], np.ndarray]
    sweeps: int
    converged: bool
    at_steps: tuple[np.ndarray, np.ndarray]
    """q [N] and v [N] at the logged steps."""

    def q(self, states: np.ndarray) -> np.ndarray:
        """Q(s, ·) [n, A]."""
        x, A = self.features(states), self.sampled.logs.actions
        return np.column_stack([self.model.predict(with_action(x, np.full(len(x), a), A)) for a in range(A)])

    def at(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Q(s, a) [n] of actions [n], or [n, k] where they are real numbers."""
        return np.asarray(self.model.predict(with_action(self.features(states), actions, self.sampled.logs.actions)))

    def values(self, states: np.ndarray) -> np.ndarray:
        """Σ_a π(a|s) Q(s, a) [n]."""
        return _expected(self.model, self.features(states), self.sampled.policy.choices(states))


def fit(sampled: Sampled, model: Model = None) -> Fit | Regressed:
    """Q of π: the fixed point of the sampled operator in the model (None: a table)."""
    if isinstance(model, Regressor):
        return _regressed(sampled, model)
    if model is None:
        basis: Table | Linear = Table(sampled)
    else:
        basis = linear_basis(sampled, model)
    constant = sweep(basis, np.zeros(basis.size))
    if isinstance(basis, Linear) and basis.size <= FEW:
        matrix = _total(basis, np.zeros(()), formed) + basis.penalty
        inverse = inverse_of(matrix)
        theta = inverse @ constant
        return Fit(basis, theta, 2, is_solution(matrix, theta, constant), inverse)
    theta, sweeps, converged = fixed_point(basis, partial(_total, basis), constant)
    return Fit(basis, theta, sweeps + 1, converged)


def linear_basis(sampled: Sampled, model: Features, of_all: tuple[np.ndarray, np.ndarray] | None = None) -> Linear:
    """Q in these features; `of_all` are their moments, where these logs are a part of more."""
    of_states = None if model.of_pairs else states_to_features(model.of_states, sampled.logs)
    return Linear(sampled, of_states, model.of_pairs, model.ridge, of_all)


def sweep(basis: Table | Linear, theta: np.ndarray) -> np.ndarray:
    """What one sweep adds to θ: N⁻¹ Σ_k φ_k Δ_k(θ)."""
    return basis.mean(_total(basis, np.zeros(basis.size), asked, theta, True))


# --- sums over pieces of the logs, in memory here and over files in `sweeping` ------------------------------------------

Total = Callable[..., np.ndarray]
"""`total(start, work, *given)` is start + Σ over all pieces of `work(basis, piece, *given)`."""


def _total(basis: Table | Linear, start: np.ndarray, work: Callable[..., np.ndarray], *given: object) -> np.ndarray:
    """The `Total` of logs in memory."""
    return np.asarray(sum(basis.sampled.each(lambda piece: work(basis, piece, *given), basis.piece), start))


def fixed_point(basis: Table | Linear, total: Total, constant: np.ndarray) -> tuple[np.ndarray, int, bool]:
    """θ with Aθ = b by GMRES, from N⁻¹b; how many sweeps that took; and whether it was reached."""
    zero = np.zeros(basis.size)
    return solve(lambda θ: basis.free(θ) - basis.mean(total(zero, asked, θ, False)), constant)


def pull_of(basis: Table | Linear, total: Total, gradient: np.ndarray) -> np.ndarray | None:
    """c with c·Σ φ_k Δ_k how much steps move a quantity with this gradient in θ; None where A has no inverse."""
    solution, _, solved = solve(lambda u: total(basis.free(u), transposed, basis.mean(u)), gradient)
    return basis.mean(solution) if solved else None


def is_solution(matrix: np.ndarray, theta: np.ndarray, constant: np.ndarray) -> bool:
    """Whether Aθ = b, but for rounding."""
    return bool(np.linalg.norm(matrix @ theta - constant) <= 1e-6 * np.linalg.norm(constant))


def asked(basis: Table | Linear, piece: slice, theta: np.ndarray, rewards: bool) -> np.ndarray:
    """Σ_k φ_k Δ_k(θ); without rewards, its linear part −Aθ."""
    q, v = basis.read(theta, piece)
    reward = basis.sampled.logs.reward[piece] if rewards else np.zeros(len(q))
    return basis.spread(piece, basis.sampled.corrections(piece, q, v, reward), None)


def transposed(basis: Table | Linear, piece: slice, c: np.ndarray) -> np.ndarray:
    """Aᵀc."""
    sampled = basis.sampled
    y = sampled.transposed(piece, basis.read(c, piece)[0])
    return basis.spread(piece, y, -sampled.gamma * np.where(sampled.logs.terminated[piece], 0.0, y))


def formed(basis: Linear, piece: slice) -> np.ndarray:
    """A [p, p]: Σ_t z_t (φ_t − γφ'_t)ᵀ, with the eligibility z_t = Σ_{k≤t} γ^{t−k} β_{k:t} φ_k."""
    now, following = basis.features_at(piece)
    return basis.sampled.transposed(piece, now).T @ (now - basis.sampled.gamma * following)


def moved(basis: Table | Linear, piece: slice, c: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """c·Σ φ_k Δ_k(θ) over the steps of each episode."""
    sampled = basis.sampled
    starts, reward = sampled.logs.starts, sampled.logs.reward
    q, v = basis.read(theta, piece)
    delta = sampled.corrections(piece, q, v, reward[piece])
    inside = (starts >= piece.start) & (starts < piece.stop)
    return np.add.reduceat(basis.pull(c, theta, piece, delta), starts[inside] - piece.start)


# --- regressors ---------------------------------------------------------------------------------------------------------


def _regressed(sampled: Sampled, regressor: Regressor) -> Regressed:
    logs = sampled.logs
    features = _features_of(regressor.of_states, logs)
    inputs = with_action(features(logs.state), logs.action, logs.actions)
    on = np.flatnonzero(~logs.terminated)  # after an end the next state may be anything
    following = features(logs.next_state[on]) if len(on) else np.empty((0, 0))
    following_pi = sampled.next_choices(slice(0, len(logs)))[on]
    first = features(logs.state[logs.first_steps])
    first_pi = sampled.policy.choices(logs.state[logs.first_steps])
    q, v = np.zeros(len(logs)), np.zeros(len(logs))
    model: Any = None
    values: list[float] = [0.0]
    settled = False
    while not settled and len(values) <= regressor.sweeps:
        parts = sampled.each(lambda p, q=q, v=v: q[p] + sampled.corrections(p, q[p], v[p], logs.reward[p]))
        model = regressor.make().fit(inputs, np.concatenate(list(parts)))
        q = np.asarray(model.predict(inputs), float)
        if len(on):  # regressors take no empty arrays
            v[on] = _expected(model, following, following_pi)
        values.append(float(_expected(model, first, first_pi).mean()))
        if not np.isfinite(values[-1]):
            raise FloatingPointError(
                f"fitted iteration diverged in sweep {len(values) - 1}: a smaller λ, a trace with the recursive condition "
                "(trace.recursive_condition) or a regressor that extrapolates less may help"
            )
        settled = _settled(values, regressor.tolerance)
    return Regressed(sampled, model, features, len(values) - 1, settled, (q, v))


def _settled(values: list[float], tolerance: float) -> bool:
    """Whether a geometric series through the last three values has at most `tolerance` of itself still to go."""
    if len(values) < 4:
        return False
    before, last = values[-2] - values[-3], values[-1] - values[-2]
    if last == 0.0:
        return True
    rate = abs(last / before) if before else np.inf
    return rate < 1 and abs(last) * rate / (1 - rate) <= tolerance * abs(values[-1])


def _expected(model: Any, x: np.ndarray, pi: np.ndarray) -> np.ndarray:
    """Σ_a π(a|s) Q(s, a) [n], for π [n, A] or for actions [n, m, k]."""
    if pi.ndim == 3:
        return sum(np.asarray(model.predict(with_action(x, pi[:, j], 0))) for j in range(pi.shape[1])) / pi.shape[1]
    A = pi.shape[1]
    return np.asarray(sum(pi[:, a] * model.predict(with_action(x, np.full(len(x), a), A)) for a in range(A)))


def with_action(x: np.ndarray, action: np.ndarray, actions: int) -> np.ndarray:
    """Features and the action, an id as columns of 0 and 1; no actions: they are real numbers, and stand as they are."""
    return np.column_stack([x, np.eye(actions)[action] if actions else action])


def states_to_features(given: object, logs: Logs) -> Callable[[np.ndarray], object] | None:
    """φ(s) as a callable, or None where the states are features."""
    if given is None and logs.tabular:
        raise ValueError(
            "the states of these logs are ids: say what their features are, with Features(φ) or Regressor(make, of_states=φ), "
            "φ a table [S, d] or a callable"
        )
    if given is None or callable(given):
        return given
    table = feature_matrix(given, logs.states, "features of states as a table")
    return lambda states: table[states]


def _features_of(given: object, logs: Logs) -> Callable[[np.ndarray], np.ndarray]:
    phi = states_to_features(given, logs)
    return lambda states: feature_matrix(states if phi is None else phi(states), len(states), "features of s")
