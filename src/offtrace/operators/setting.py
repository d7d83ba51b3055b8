"""An MDP, two policies and a trace, checked, and as the arrays that every method of this package works on.

Pairs z = (s, a) are numbered s·A + a. A terminal state has no steps: nothing is carried into it, and Q there is never read
(it counts as 0), so transitions into it are left out of P.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from offtrace.mdps.exact_values import reaches
from offtrace.mdps.mdp import MDP
from offtrace.mdps.sparse_matrices import SparseMatrix
from offtrace.traces import OneStep, Rule, Trace
from offtrace.trajectory import distributions, first_index, spell

EPS = float(np.finfo(float).eps)


def finite_values(name: str, given: ArrayLike, shape: tuple[int, ...], axes: str = "") -> np.ndarray:
    """Values that an operator is applied to, in float64; an error where the shape is another or a value is not finite."""
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.shape != shape:
        raise ValueError(
            f"{name} must be an array {axes + ' = ' if axes else ''}{list(shape)}, got shape {list(array.shape)}"
        )
    q = array.astype(float, copy=False)
    if (bad := ~np.isfinite(q)).any():
        at = first_index(bad)
        raise ValueError(f"{name} must be finite, got {q[at]} at index {spell(at)}")
    return q


@dataclass(frozen=True, eq=False)
class Setting:
    """What M consists of. Arrays over pairs are [S, A]; where μ = 0 they hold nothing of meaning."""

    trace: Trace
    mdp: MDP
    pi: np.ndarray
    mu: np.ndarray
    evaluated: np.ndarray
    """The policy in δ: π, or α-Retrace's mixture απ + (1−α)μ."""
    P: SparseMatrix
    """[S·A, S], without transitions into terminal states."""
    gamma: float
    rho: np.ndarray
    decay: np.ndarray
    ratio: np.ndarray
    cap: np.ndarray
    """INFINITY where no cap acts; NaN in all three for traces without a normal form."""
    before_actions: bool = False
    """Whether traces start in a state, before its action, and not at a pair: then bounds are by state, and of H(s, 1)."""
    ids: np.ndarray | None = None
    """What custom traces see as the id of each pair; None: its number. On transitions, the state that each leads to."""
    places: Sequence[tuple[int, int] | None] | None = None
    """On transitions, the state and the action of each; None where it has none, as a start."""

    @property
    def seen_ids(self) -> np.ndarray:
        """The ids of pairs that custom traces see."""
        return np.arange(self.pairs) if self.ids is None else self.ids

    def path(self, pairs: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Pairs by their numbers as (state, action), as they are printed."""
        if self.places is None:
            return tuple((z // self.A, z % self.A) for z in pairs)
        return tuple(place for z in pairs if (place := self.places[z]) is not None)

    @property
    def S(self) -> int:
        """How many states."""
        return self.pi.shape[0]

    @property
    def A(self) -> int:
        """How many actions."""
        return self.pi.shape[1]

    @property
    def pairs(self) -> int:
        """The number of pairs, S·A."""
        return self.pi.size

    @property
    def normal(self) -> bool:
        """Whether the trace is in normal form."""
        return not self.trace.custom

    @property
    def lags(self) -> tuple[float, ...]:
        """Bounds on x at lags 1, 2, …, the last for all later ones; empty where there are none."""
        return self.trace.lag_bound or ()

    @property
    def declared_bound(self) -> float | None:
        """What a custom trace promises β to be at most."""
        return self.trace.promised_bound

    @property
    def last_bound(self) -> float:
        """The bound that holds for all later lags."""
        return self.lags[-1] if self.lags else np.inf

    @property
    def per_decision(self) -> bool:
        """Whether β is a product of one coefficient per decision on this MDP, perhaps up to a horizon: no cap acts."""
        capped = np.isfinite(self.cap[self.mu > 0]).any()
        return self.normal and not self.lags and (self.trace.per_decision or not capped)

    @property
    def horizon(self) -> int | None:
        """The lag from which on β is 0: the trace's own horizon, or where its bounds by lag, or all its decays, end in 0."""
        ends = [n for n in (self.trace.horizon,) if n is not None]
        if self.normal:
            took = self.mu > 0
            if not ((self.decay > 0) & (self.ratio > 0) & (self.cap > 0))[took].any():
                ends.append(1)
            if self.lags and self.lags[-1] == 0:
                ends.append(max((lag for lag, d in enumerate(self.lags, 1) if d > 0), default=0) + 1)
        return min(ends, default=None)

    @property
    def target_rho(self) -> np.ndarray:
        """The ratio of δ's policy to μ: ρ, but for α-Retrace, where it is the mixture's."""
        return np.where(self.mu > 0, self.evaluated / np.where(self.mu > 0, self.mu, 1.0), 0.0)

    @property
    def one_step_condition(self) -> bool:
        """decay·ratio ≤ ρ wherever μ > 0. It makes β_t ≤ ∏ρ, and the recursive condition where no cap acts at read-out."""
        took = self.mu > 0
        return self.normal and bool((self.decay * self.ratio <= self.target_rho * (1 + 8 * EPS))[took].all())

    @property
    def recursive_condition(self) -> bool:
        """Whether β_t ≤ β_{t-1}ρ_t is plain from the normal form alone (it may also hold where this is False)."""
        if self.horizon == 1:
            return True
        return self.one_step_condition and not self.lags and (self.per_decision or self.trace.recursive)

    @property
    def squared(self) -> Setting:
        """The setting in which E Σ γ^tβ_t of a trace is the E Σ γ^{2t}β_t² of this one."""
        return replace(self, decay=self.decay**2, ratio=self.ratio**2, cap=self.cap**2, gamma=self.gamma**2)

    def onto_pairs(self, policy: np.ndarray) -> SparseMatrix:
        """P[z, s'] · policy[s', a']: [S·A, S·A]. `policy` may be any weight of the next action."""
        return sparse.csr_array(self.P @ self._by_state(policy))

    def onto_states(self, policy: np.ndarray) -> SparseMatrix:
        """Σ_a policy[s, a] · P[(s, a), s']: [S, S]. `policy` may be any weight of the action."""
        return sparse.csr_array(self._by_state(policy) @ self.P)

    def _by_state(self, policy: np.ndarray) -> SparseMatrix:
        """[S, S·A]: policy[s, a] in row s and the column of (s, a)."""
        index = np.arange(self.pairs)
        return sparse.csr_array((np.ravel(policy), (index // self.A, index)), shape=(self.S, self.pairs))

    @property
    def loss(self) -> np.ndarray:
        """u = (I − γP_π)e: what a step loses to the discount and to termination, [S·A]."""
        return 1.0 - self.gamma * np.asarray(self.P.sum(axis=1)).ravel()


def setting(trace: Trace, mdp: MDP, target: ArrayLike, behavior: ArrayLike) -> Setting:
    """Check and prepare; raises where something does not fit, warns where μ misses what π does."""
    if isinstance(trace, MDP):
        raise TypeError("the trace comes first, then the MDP: Operator(trace, mdp, target=…, behavior=…)")
    if not isinstance(trace, Trace):
        what = "it is a return beside the operator" if isinstance(trace, Rule) else "it is not a trace"
        raise TypeError(f"an Operator needs a trace such as offtrace.Retrace(), got {trace!r}: {what}")
    shape = (mdp.S, mdp.A)
    pi, mu = _policy("target", target, shape, mdp), _policy("behavior", behavior, shape, mdp)
    if trace.shape not in (None, shape):
        raise ValueError(f"on an MDP, {trace.title} needs lam for each pair, {list(shape)}, got {list(trace.shape)}")
    live = ~np.asarray(mdp.terminal, dtype=bool)
    trace = trace.for_policies(*(np.broadcast_to(p[live], (2, *p[live].shape)) for p in (pi, mu)))
    if trace.needs_greedy and ((pi > 0) & (pi < 1) & live[:, None]).any():
        raise ValueError(
            f"{trace.title} is defined by the greedy action, which a soft target does not tell: give a greedy policy, one action "
            "with probability 1 in each state"
        )
    missed = live[:, None] & (mu == 0) & (pi > 0)
    if missed.any():
        s, a = (int(i) for i in np.argwhere(missed)[0])
        warnings.warn(
            f"behavior = 0 where target > 0 at {int(missed.sum())} pairs, first at state {s}, action {a} "
            f"(target = {pi[s, a]:.3g}): "
            "these actions are never seen, so importance sampling does not correct for them and its rate is not 0",
            stacklevel=3,
        )
    P = sparse.csr_array(mdp.P, copy=True)
    P = sparse.csr_array(P @ sparse.diags_array(live.astype(float)))
    P.eliminate_zeros()
    mu, pi = np.where(live[:, None], mu, 0.0), np.where(live[:, None], pi, 0.0)
    took = mu > 0
    rho = np.where(took, pi / np.where(took, mu, 1.0), 0.0)
    factors = [np.full(shape, np.nan)] * 3
    if not trace.custom:
        form = trace.normal_form(np, pi, np.where(took, mu, 1.0), rho)
        factors = [np.where(took, np.broadcast_to(np.asarray(f, dtype=float), shape), 0.0) for f in form]
        for name, factor in zip(("decay", "ratio", "cap"), factors, strict=True):
            if not (factor >= 0).all():
                s, a = (int(i) for i in np.argwhere(~(factor >= 0))[0])
                raise ValueError(
                    f"{name} of {trace.title} must be at least 0, got {factor[s, a]} at state {s}, action {a}"
                )
    gamma = float(mdp.gamma)
    evaluated = trace.evaluated(pi, mu)
    decay, ratio, cap = factors
    result = Setting(trace, mdp, pi, mu, evaluated, P, gamma, rho, decay, ratio, cap)
    if gamma == 1:
        for name, policy in (("the behavior", mu), ("the target", evaluated)):
            _require_termination(result, name, policy, live)
    return result


def checked(mdp: MDP, target: ArrayLike, behavior: ArrayLike) -> Setting:
    """The same for two policies alone, where no trace plays a part."""
    return setting(OneStep(), mdp, target, behavior)


def named(trace: Rule) -> str:
    """The title and the parameters: "Retrace(lam=0.9)"; of a custom trace its title."""
    if isinstance(trace, Trace) and trace.custom:
        return trace.title
    values = {f.name: getattr(trace, f.name) for f in fields(trace)}
    given = ", ".join(f"{name}={value!r}" for name, value in values.items() if (name, value) != ("horizon", None))
    return f"{trace.title}({given})" if given else trace.title


def _policy(name: str, policy: ArrayLike, shape: tuple[int, int], mdp: MDP) -> np.ndarray:
    policy = np.array(policy, dtype=float)
    if policy.shape != shape:
        raise ValueError(f"{name} must be an array [S, A] = {list(shape)}, got shape {list(policy.shape)}")
    live = ~np.asarray(mdp.terminal, dtype=bool)
    return distributions(np.where(live[:, None], policy, 1.0 / mdp.A), name)  # nobody reads the rows of terminal states


def _require_termination(setting: Setting, name: str, policy: np.ndarray, live: np.ndarray) -> None:
    """γ = 1: from every state the episode must be able to end under the policy."""
    step = setting.onto_states(policy)
    step.eliminate_zeros()
    ends = reaches(step, (np.asarray(step.sum(axis=1)).ravel() < 1 - 1e-12) | ~live)
    if not ends.all():
        s = int(np.flatnonzero(~ends)[0])
        raise ValueError(
            f"gamma = 1 needs episodes that end: under {name} no terminal state is reached from state {s}. "
            "Use gamma < 1, or make some state terminal"
        )
