"""Theorem 2's sequence, run: Q_{k+1} = M_k Q_k, where M_k belongs to a target policy π_k and a behaviour policy μ_k.

With T Q = R + γ max_π' P_π' Q, and ε_k the smallest number such that T_{π_k} Q_k ≥ T Q_k − ε_k ‖Q_k‖ e, the paper states

    ‖Q_{k+1} − Q*‖ ≤ γ ‖Q_k − Q*‖ + ε_k/(1−γ) ‖Q_k‖

for any Q_0, any μ_k and policies that become greedy in the limit (ε_k → 0). Each step here is exact, up to the operator's
tolerance; whether the bound holds is measured, not assumed. Nothing is sampled: this is not a learner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from offtrace.mdps import MDP, epsilon_greedy, greedy, mixture
from offtrace.operators.operator import Operator
from offtrace.operators.setting import finite_values
from offtrace.traces import Trace

Policy = Callable[[int, np.ndarray], np.ndarray]
"""(k, Q_k) → a policy [S, A]."""


def always_greedy(k: int, Q: np.ndarray) -> np.ndarray:
    """π_k is greedy in Q_k.

    >>> always_greedy(0, np.array([[0.0, 1.0]]))
    array([[0., 1.]])
    """
    return greedy(Q)


def greedy_in_the_limit(epsilon: Callable[[int], float] = lambda k: 1.0 / (k + 1)) -> Policy:
    """π_k is ε-greedy in Q_k, with ε a function of k that goes to 0.

    >>> greedy_in_the_limit()(3, np.array([[0.0, 1.0]]))
    array([[0.125, 0.875]])
    """
    return lambda k, Q: epsilon_greedy(Q, epsilon(k))


def fading_into_greedy(policy: ArrayLike, weight: Callable[[int], float] = lambda k: 1.0 / (k + 1)) -> Policy:
    """π_k = weight(k) · policy + (1 − weight(k)) · greedy: greedy in the limit, and not increasingly greedy on the way.

    >>> fading_into_greedy([[1.0, 0.0]])(3, np.array([[0.0, 1.0]]))
    array([[0.25, 0.75]])
    """
    return lambda k, Q: mixture(policy, greedy(Q), weight(k))


@dataclass(frozen=True, eq=False)
class ControlRun:
    """What the sequence did in n steps. Q* is that of the MDP."""

    Q: np.ndarray
    """Q_0 … Q_n, [n+1, S, A]."""
    optimal: np.ndarray
    """Q*, [S, A]."""
    errors: np.ndarray
    """‖Q_k − Q*‖, [n+1]."""
    epsilons: np.ndarray
    """ε_k, [n]."""
    bounds: np.ndarray
    """The paper's bound on ‖Q_{k+1} − Q*‖, [n]; for a step size α, (1−α)‖Q_k − Q*‖ + α · that bound."""
    period: int | None
    """The period of the cycle that the last iterates are in: 1 is a fixed point; None where there is none (yet)."""
    slack: float
    """What two equal numbers may differ by here."""

    @property
    def cycle(self) -> np.ndarray:
        """The iterates of the cycle, oldest first, [period, S, A]; empty where there is none."""
        return self.Q[len(self.Q) - (self.period or 0) :]

    @property
    def converged(self) -> bool:
        """Whether the last iterate is Q*."""
        return bool(self.errors[-1] <= 1e3 * self.slack)

    @property
    def violations(self) -> np.ndarray:
        """The steps k at which the paper's bound does not hold."""
        return np.flatnonzero(~(self.errors[1:] <= self.bounds + self.slack))

    def __str__(self) -> str:
        if self.converged:
            end = "converges to Q*"
        elif self.period is None:
            end = "is not at Q*, and in no cycle"
        else:
            end = f"ends in a cycle of period {self.period}" if self.period > 1 else "stands still away from Q*"
        broken, last = self.violations, len(self.epsilons)
        where = (
            f"broken at {len(broken)} of {last} steps, first at k = {broken[0]}"
            if len(broken)
            else "holds at every step"
        )
        return "\n".join(
            [
                f"the sequence {end}",
                f"  ‖Q_k − Q*‖        {self.errors[0]:.4g} at k = 0, {self.errors[-1]:.4g} at k = {last}",
                f"  ε_k               {self.epsilons[0]:.4g} at k = 0, {self.epsilons[-1]:.4g} at k = {last - 1}",
                f"  Theorem 2's bound {where}",
            ]
        )


def control_iterates(
    trace: Trace,
    mdp: MDP,
    *,
    target: Policy | ArrayLike = always_greedy,
    behavior: Policy | ArrayLike,
    q0: ArrayLike,
    n: int = 400,
    alpha: float = 1.0,
    tolerance: float = 1e-9,
) -> ControlRun:
    """Run Q_{k+1} = Q_k + α (M_k Q_k − Q_k) for n steps; policies are functions (k, Q) → [S, A], or arrays.

    >>> import offtrace as ot
    >>> from offtrace.mdps import switch_or_stay
    >>> mdp, _, mu, q0 = switch_or_stay()
    >>> control_iterates(ot.Retrace(), mdp, behavior=mu, q0=q0).period
    2
    """
    if isinstance(trace, MDP):
        raise TypeError("the trace comes first, then the MDP: control_iterates(trace, mdp, behavior=…, q0=…)")
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n!r}")
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must lie in (0, 1], got {alpha!r}")
    if not mdp.gamma < 1:
        raise ValueError("control_iterates needs gamma < 1: the bound divides by 1 − γ")
    π_k, μ_k = _policy("target", target), _policy("behavior", behavior)
    q = finite_values("q0", q0, (mdp.S, mdp.A), "[S, A]").copy()
    q[mdp.terminal] = 0.0
    operators: dict[bytes, Operator] = {}
    optimal, γ = mdp.optimal_q(), mdp.gamma
    path = [q]
    epsilons: list[float] = []
    bounds: list[float] = []
    for k in range(n):
        pi, mu = np.asarray(π_k(k, q), dtype=float), np.asarray(μ_k(k, q), dtype=float)
        key = pi.tobytes() + mu.tobytes()
        if key not in operators:
            if len(operators) >= 64:
                operators.clear()
            operators[key] = Operator(trace, mdp, target=pi, behavior=mu, tolerance=tolerance)
        ε, error = epsilon(mdp, pi, q), np.abs(q - optimal).max()
        epsilons.append(ε)
        bounds.append((1 - alpha) * error + alpha * (γ * error + ε / (1 - γ) * np.abs(q).max()))
        q = q + alpha * (operators[key].apply(q) - q)
        q[mdp.terminal] = 0.0
        path.append(q)
        if not np.abs(q).max() < 1e100:
            break
    whole = np.array(path)
    slack = 10 * tolerance * max(1.0, float(np.abs(optimal).max()), float(np.abs(whole[-1]).max()))
    errors = np.abs(whole - optimal).max(axis=(1, 2))
    return ControlRun(whole, optimal, errors, np.array(epsilons), np.array(bounds), _period(whole, 1e-4 * slack), slack)


def epsilon(mdp: MDP, pi: np.ndarray, Q: np.ndarray) -> float:
    """The smallest ε ≥ 0 with T_π Q ≥ T Q − ε‖Q‖e. The paper says it is at most 1; it can be 2γ."""
    size = float(np.abs(Q).max())
    if size == 0.0:
        return 0.0
    gap = np.where(mdp.terminal, 0.0, Q.max(axis=1) - (pi * Q).sum(axis=1))
    return max(0.0, float((mdp.gamma * (mdp.P @ gap)).max()) / size)


def _policy(name: str, given: Policy | ArrayLike) -> Policy:
    if callable(given):
        return given
    fixed = np.array(given, dtype=float)
    if fixed.ndim != 2:
        raise ValueError(f"{name} must be a function (k, Q) → [S, A] or an array [S, A], got {given!r}")
    return lambda k, Q: fixed


def _period(path: np.ndarray, slack: float) -> int | None:
    """The smallest p such that the last p iterates equal the p before them; at most a quarter of the run is looked at.

    `slack` is near rounding: a sequence that only creeps towards something is in no cycle.
    """
    if not np.isfinite(path[-1]).all():
        return None
    for p in range(1, max(2, len(path) // 4)):
        if len(path) > 2 * p and np.abs(path[-p:] - path[-2 * p : -p]).max() <= slack:
            return p
    return None
