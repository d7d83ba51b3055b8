"""The operator M of a trace on a finite MDP, held in one's hands.

    (M Q)(s,a) = Q(s,a) + E_μ[Σ_t γ^t β_t δ_t],       M Q = Q + C (T_π Q − Q),       M Q − Q^π = Z (Q − Q^π)

    K_t(x, y) = E_μ[β_t 1{(s_t,a_t) = y} given (s_0,a_0) = x],    C = Σ_t γ^t K_t,    Z = I − C (I − γP_π)

(paper, eq. 2 and Lemma 1). Where β_t ≤ β_{t-1}ρ_t, Z ≥ 0 and ‖Z‖_∞ = max Ze with Ze = e − Cu, u = (I − γP_π)e; without
termination that is γe − (1−γ)S. So the modulus needs one vector there, and all of C elsewhere.
"""

from __future__ import annotations

import math
import time
from functools import cached_property
from numbers import Integral
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from offtrace.mdps.mdp import MDP
from offtrace.mdps.randomness import Seed
from offtrace.mdps.sparse_matrices import SparseMatrix, identity_minus, row_lengths
from offtrace.operators import spectral_radius
from offtrace.operators.interval import Interval
from offtrace.operators.setting import EPS, Setting, finite_values, setting
from offtrace.operators.solve import closed_form
from offtrace.operators.solve.custom_chain import custom_solution
from offtrace.operators.solve.solutions import Chain, ClosedForm, Solution
from offtrace.operators.variance import TemporalDifferences, second_moment_radius, variance
from offtrace.traces import Trace

LARGEST_SQUARED = 1e150  # beyond it a square, times what an episode sums, is not below the largest float


class Magnitude(NamedTuple):
    """E_μ[Σ_t γ^tβ_t] by start: the paper's measure of an update's size."""

    mean: Interval
    """Over all pairs, or states, that are not terminal, each counted once."""
    largest: Interval
    """The value at the pair where it is largest."""


class Operator:
    """M for one trace, one MDP, a target policy π and a behaviour policy μ, both [S, A].

    Results are computed when asked for, once, and to `tolerance`; `budget` is the number of seconds each may take. A result that
    missed the tolerance is still a bound: its interval is wide, and `reached` is False.

    >>> import numpy as np, offtrace as ot
    >>> from offtrace.mdps import MDP
    >>> mdp = MDP(np.full((2, 2, 2), 0.5), np.eye(2), gamma=0.9)
    >>> π, μ = np.array([[0.9, 0.1], [0.1, 0.9]]), np.full((2, 2), 0.5)
    >>> op = Operator(ot.Retrace(), mdp, target=π, behavior=μ)
    >>> print(op.method, op.contraction)
    closed form 0.7826086956...
    """

    def __init__(
        self,
        trace: Trace,
        mdp: MDP,
        *,
        target: ArrayLike,
        behavior: ArrayLike,
        tolerance: float = 1e-6,
        budget: float = 60.0,
        seed: Seed = 0,
    ) -> None:
        if not tolerance > 0:
            raise ValueError(f"tolerance must be above 0, got {tolerance!r}")
        if not budget > 0:
            raise ValueError(f"budget must be a number of seconds above 0, got {budget!r}")
        self.setting = setting(trace, mdp, target, behavior)
        self.mdp, self.trace = mdp, self.setting.trace
        self.tolerance, self.budget = float(tolerance), float(budget)
        self._seed = seed

    @cached_property
    def solution(self) -> Solution:
        """The way in which C is computed: closed form, chain, bounds or Monte Carlo."""
        if not self.setting.normal:
            return custom_solution(self.setting, self._deadline(), self._seed)
        return ClosedForm(self.setting) if self.setting.per_decision else Chain(self.setting)

    @property
    def method(self) -> str:
        """ "closed form", "exact chain", "bounds" or "Monte Carlo"."""
        return self.solution.method

    @property
    def certain(self) -> bool:
        """Whether the intervals are guaranteed, given what the trace declares; if not, `assumption` says what they rest on."""
        return self.solution.certain

    @property
    def assumption(self) -> str:
        """What the results rest on, beside arithmetic; empty where it is nothing."""
        return self.solution.assumption

    def _deadline(self) -> float:
        return time.monotonic() + self.budget

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what M acts on: [S, A]."""
        return self.setting.pi.shape

    @property
    def histories(self) -> Setting:
        """Where histories of the trace are grown."""
        return self.setting

    @cached_property
    def _I_minus_γP(self) -> SparseMatrix:
        s = self.setting
        return identity_minus(s.gamma * s.onto_pairs(s.evaluated))

    @property
    def _loss(self) -> np.ndarray:
        """(I − γP_π)e."""
        return self.setting.loss

    @cached_property
    def _C(self) -> tuple[np.ndarray, np.ndarray]:
        n = math.prod(self.shape)
        if n > closed_form.DENSE:
            raise ValueError(
                f"C would be a dense matrix of {n} × {n}: above {closed_form.DENSE} rows use `contraction`, `apply` or "
                "`magnitude`"
            )
        return self._C_within(self.tolerance, self._deadline())

    def _C_within(self, tolerance: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        gap = 0.9 * tolerance / (1 + self.setting.gamma)
        lower, upper = self.solution.times(np.eye(math.prod(self.shape)), gap, deadline)
        return 0.5 * lower + 0.5 * upper, 0.5 * (upper - lower)

    @property
    def C(self) -> np.ndarray:
        """Σ_t γ^t K_t, [S·A, S·A], known to ± `C_error`."""
        return self._C[0]

    @property
    def C_error(self) -> np.ndarray:
        """A bound on |C − truth|, entry by entry."""
        return self._C[1]

    @cached_property
    def _Z(self) -> tuple[np.ndarray, np.ndarray]:
        return self._Z_of(*self._C)

    def _Z_of(self, C: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        D = self._I_minus_γP
        Z = np.eye(len(C)) - C @ D
        size = abs(D)
        return Z, error @ size + 4 * EPS * (np.eye(len(C)) + C @ size)

    @property
    def Z(self) -> np.ndarray:
        """I − C(I − γP_π), [S·A, S·A], known to ± `Z_error`."""
        return self._Z[0]

    @property
    def Z_error(self) -> np.ndarray:
        """A bound on |Z − truth|, entry by entry."""
        return self._Z[1]

    def bellman(self, Q: ArrayLike) -> np.ndarray:
        """T_π Q = R + γ P_π Q, [S, A], for the policy of δ (α-Retrace: the mixture)."""
        s, q = self.setting, self._checked(Q)
        return np.asarray(self.mdp.R) + s.gamma * (s.P @ (s.evaluated * q).sum(axis=1)).reshape(q.shape)

    def apply(self, Q: ArrayLike) -> np.ndarray:
        """M Q = Q + C(T_π Q − Q), [S, A]. At terminal states the value is 0."""
        q = self._checked(Q)
        d = (self.bellman(q) - q).ravel()
        if q.size <= closed_form.DENSE:
            return q + (self.C @ d).reshape(q.shape)
        lower, upper = self.solution.times(
            np.stack([np.maximum(d, 0), np.maximum(-d, 0)], axis=1), self.tolerance, self._deadline()
        )
        both = 0.5 * (lower + upper)
        return q + (both[:, 0] - both[:, 1]).reshape(q.shape)

    def iterate(self, Q: ArrayLike, n: int = 1) -> np.ndarray:
        """M applied n times."""
        if isinstance(n, bool) or not isinstance(n, Integral) or n < 0:
            raise ValueError(f"n must be a whole number of applications, 0 or more, got {n!r}")
        q = self._checked(Q)
        for i in range(int(n)):
            with np.errstate(over="ignore", invalid="ignore"):  # told below
                q = self.apply(q)
            if not np.isfinite(q).all():
                raise OverflowError(
                    f"the iterates leave the range of floats after {i + 1} of {n} applications: M diverges here"
                )
        return q

    def _checked(self, Q: ArrayLike) -> np.ndarray:
        name, axes = ("Q", "[S, A]") if len(self.shape) == 2 else ("V", "[S]")
        return finite_values(name, Q, self.shape, axes)

    @cached_property
    def rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of Σ_y |Z(x, y)| for each start pair x, [S·A]."""
        if self.setting.recursive_condition and "_C" not in self.__dict__:
            low, high = self.solution.times(self._loss[:, None], 0.9 * self.tolerance, self._deadline())
            rounding = 8 * EPS * (1 + high)
            lower, upper = np.clip(1 - high - rounding, 0, None)[:, 0], np.clip(1 - low + rounding, 0, None)[:, 0]
            return np.where(self._live, lower, 0.0), np.where(self._live, upper, 0.0)
        Z, error = self._Z
        size = np.abs(Z)
        return np.clip(size - error, 0, None).sum(axis=1), (size + error).sum(axis=1)

    @cached_property
    def contraction(self) -> Interval:
        """‖Z‖_∞ = max_x Σ_y |Z(x, y)|: the factor by which an application of M shrinks the largest error, at worst."""
        lower, upper = self.rates
        return Interval(float(lower.max(initial=0.0)), float(upper.max(initial=0.0)))

    @property
    def one_step(self) -> Interval:
        """The contraction of the one-step operator on the same MDP."""
        rate = float((1 - self._loss)[self._live].max(initial=0.0))
        return Interval(rate, rate)

    @cached_property
    def spectral_radius(self) -> Interval:
        """The largest |eigenvalue| of Z: iterating M converges if and only if it is below 1."""
        nonnegative, n, enough = self.setting.recursive_condition, math.prod(self.shape), self.tolerance
        radius, deadline = Interval(0.0, self.contraction.upper), self._deadline()
        if nonnegative and radius.width > enough:
            radius = radius.intersection(
                spectral_radius.by_ratios(lambda V, gap: self._Z_times(V, gap, deadline), n, enough)
            )
        if n <= closed_form.DENSE // 2 and radius.width > enough:
            radius = radius.intersection(spectral_radius.spectral_radius(*self._Z, nonnegative=nonnegative))
            if enough < radius.width < 100 * enough and self.method == "bounds":
                finer = self._Z_of(*self._C_within(0.5 * enough**2 / radius.width, deadline))
                radius = radius.intersection(spectral_radius.spectral_radius(*finer, nonnegative=nonnegative))
        return radius

    def _Z_times(self, V: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of ZV = V − C(I − γP_π)V for V ≥ 0, [S·A, Y]."""
        if time.monotonic() > deadline:
            raise TimeoutError
        D, Y = self._I_minus_γP, V.shape[1]
        d = D @ V
        low, high = self.solution.times(np.concatenate([np.maximum(d, 0), np.maximum(-d, 0)], axis=1), gap, deadline)
        terms = 8 + int(row_lengths(D).max(initial=1))
        longest = closed_form.length(self.setting, self.setting.evaluated)
        rounding = terms * EPS * (V.max() * (1 + 2 * longest) + high[:, :Y] + high[:, Y:])
        return V - high[:, :Y] + low[:, Y:] - rounding, V - low[:, :Y] + high[:, Y:] + rounding

    @property
    def reached(self) -> bool:
        """Whether the contraction is known to the tolerance that was asked for."""
        return self.contraction.width <= self.tolerance

    def mean_coefficients(self, n: int, per_pair: bool = False) -> np.ndarray:
        """E_μ[β_t] for t = 0 … n − 1, [n]: the mean over pairs that are not terminal; by start pair, [S·A, n], if asked.

        Midway between `mean_coefficient_bounds`.
        """
        lower, upper = self.mean_coefficient_bounds(n, per_pair)
        return 0.5 * lower + 0.5 * upper

    def mean_coefficient_bounds(self, n: int, per_pair: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Arrays that contain E_μ[β_t] between them, at most `tolerance` apart if `budget` allows (Monte Carlo: four errors)."""
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n!r}")
        lower, upper = self.solution.mean_coefficients(n, self.tolerance, self._deadline())
        return (lower, upper) if per_pair else (lower[self._live].mean(axis=0), upper[self._live].mean(axis=0))

    @property
    def _live(self) -> np.ndarray:
        return np.repeat(~np.asarray(self.mdp.terminal, dtype=bool), self.setting.A)

    @cached_property
    def magnitude(self) -> Magnitude:
        """E_μ[Σ_t γ^tβ_t] over the start pairs."""
        low, high = self.solution.times(np.ones((math.prod(self.shape), 1)), self.tolerance, self._deadline())
        low, high = low[self._live, 0], high[self._live, 0]
        return Magnitude(Interval(low.mean(), high.mean()), Interval(low.max(), high.max()))

    def variance(self, Q: ArrayLike) -> np.ndarray:
        """The variance of the sampled correction Δ for given Q, [S, A]: np.inf where it has no second moment.

        Midway between `variance_bounds`.
        """
        lower, upper = self.variance_bounds(Q)
        return 0.5 * lower + 0.5 * upper

    def variance_bounds(self, Q: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Arrays that contain the variance between them, at most `tolerance` · max(1, E[Δ²]) apart if `budget` allows.

        Rounding alone separates them for the closed form and the exact chain; for Monte Carlo they are four standard errors
        to either side, and no guarantee.
        """
        values = self._checked(Q)
        if np.abs(values).max(initial=0.0) > LARGEST_SQUARED:
            raise ValueError(
                f"values up to {np.abs(values).max():.3g} were given, whose squares exceed the largest float: "
                "scale rewards and values"
            )
        low, high = variance(self, self.solution, TemporalDifferences(self.setting, values))
        return tuple(np.where(self._live, v, 0.0).reshape(self.shape) for v in (low, high))  # pyright: ignore[reportReturnType]

    @property
    def second_moment_radius(self) -> float:
        """The spectral radius of γ²P_{c²μ}, c = β_t/β_{t-1}, for per-decision traces: at 1 or above, variances are infinite.

        0 with a horizon. For a trace whose β is bounded, that of γ²P_{d²μ}, d its decay: it is at most γ².
        """
        return second_moment_radius(self.setting)

    def __repr__(self) -> str:
        return f"Operator({self.trace!r}, {self.mdp!r}, method={self.method!r})"
