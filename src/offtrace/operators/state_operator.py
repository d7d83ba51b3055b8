"""The operator of a trace on state values.

    (M V)(s) = V(s) + E_μ[Σ_t γ^t b_{t-1} w_t δ_t given s_0 = s],     δ_t = r_t + γV(s_{t+1}) − V(s_t),     M V − V* = Z (V − V*)

    K_t(s, s') = E_μ[b_{t-1} 1{s_t = s'} given s_0 = s],    C = Σ_t γ^t K_t,    Z = I − C (D_w − γP_w)

b_{t-1} is β of a trace that starts before a_0 and has met a_0 … a_{t-1}. w = min(ρ̄, ρ) is ρ itself but for V-trace,
D_w = diag Σ_a μw and P_w(s, s') = Σ_a μ w P(s'|s, a). Where w = ρ and μ takes all that π takes, D_w = I, P_w = P_π, and V* = V^π
whatever the trace; else V* is the value of the policy that is proportional to μw, which is V-trace's π_ρ̄. Where
b_t ≤ b_{t-1} w_t, Z ≥ 0 and ‖Z‖_∞ = max Ze, as on pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse  # pyright: ignore[reportMissingTypeStubs]

from offtrace.mdps.mdp import MDP
from offtrace.mdps.randomness import Seed
from offtrace.mdps.sparse_matrices import SparseMatrix, solved
from offtrace.operators.operator import Operator
from offtrace.operators.setting import EPS, Setting
from offtrace.operators.solve.custom_chain import custom_solution
from offtrace.operators.solve.solutions import Chain, ClosedForm, Solution
from offtrace.operators.variance import TemporalDifferences, second_moment_radius, variance
from offtrace.traces import Trace


class StateOperator(Operator):
    """M on state values [S], for one trace, one MDP, a target policy π and a behaviour policy μ, both [S, A].

    All that an `Operator` has is here as well, over states instead of pairs: C, Z, contraction, spectral radius, apply,
    magnitude, variance. For variances, and for custom traces, each transition of the MDP becomes a state: these are for MDPs of
    up to a few hundred transitions.

    >>> import numpy as np, offtrace as ot
    >>> from offtrace.mdps import MDP
    >>> mdp = MDP(np.full((2, 2, 2), 0.5), np.eye(2), gamma=0.9)
    >>> π, μ = np.array([[0.9, 0.1], [0.1, 0.9]]), np.full((2, 2), 0.5)
    >>> op = StateOperator(ot.VTrace(rho_bar=float("inf")), mdp, target=π, behavior=μ)
    >>> print(op.contraction, op.fixed_point)
    0.7826086956... [9. 9.]
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
        super().__init__(trace, mdp, target=target, behavior=behavior, tolerance=tolerance, budget=budget, seed=seed)
        s = self.setting
        self.setting: Setting = replace(s, evaluated=s.mu * np.asarray(s.trace.delta_ratio(np, s.rho)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what M acts on: [S]."""
        return (self.setting.S,)

    @cached_property
    def _transitions(self) -> Transitions:
        return transitions(self.setting)

    @property
    def histories(self) -> Setting:
        """Where histories of the trace are grown: on transitions."""
        return self._transitions.setting

    @cached_property
    def _inner(self) -> Solution:
        """Where C is known from: the closed form, the chain of pairs, or, for a custom trace, what is known on transitions."""
        if self.setting.per_decision:
            return ClosedForm(self.setting, on_states=True)
        if self.setting.normal:
            return Chain(replace(self.setting, before_actions=True))
        return custom_solution(self._transitions.setting, self._deadline(), self._seed)

    @cached_property
    def solution(self) -> Solution:
        """The way in which C is computed: closed form, chain, bounds or Monte Carlo."""
        if self.setting.per_decision:
            return self._inner
        if self.setting.normal:
            return _BeforeActions(self._inner)
        return _FromStarts(self._inner, self._transitions)

    @cached_property
    def _weight(self) -> np.ndarray:
        """Σ_a μw, [S]; 1 at terminal states, whose value is 0 and stays so."""
        return np.where(self._live, self.setting.evaluated.sum(axis=1), 1.0)

    @cached_property
    def _I_minus_γP(self) -> SparseMatrix:
        s = self.setting
        return sparse.csr_array(sparse.diags_array(self._weight) - s.gamma * s.onto_states(s.evaluated))

    @property
    def _loss(self) -> np.ndarray:
        return self._I_minus_γP @ np.ones(self.setting.S)

    @property
    def _live(self) -> np.ndarray:
        return ~np.asarray(self.mdp.terminal, dtype=bool)

    @property
    def mean_reward(self) -> np.ndarray:
        """E_μ[wr], [S]."""
        return (self.setting.evaluated * np.asarray(self.mdp.R)).sum(axis=1)

    @cached_property
    def fixed_point(self) -> np.ndarray:
        """V*, [S]: V^π, or the value of the policy proportional to μw. 0 at terminal states."""
        if not (self._weight > 0).all():
            s = int(np.argmin(self._weight))
            raise ValueError(
                f"behavior never takes an action of target in state {s}: every value is a fixed point there"
            )
        return solved(self._I_minus_γP, self.mean_reward)

    def bellman(self, Q: ArrayLike) -> np.ndarray:
        """V + E_μ[wδ], [S]: T_πV, where w = ρ and μ takes all that π takes."""
        V = np.where(self._live, self._checked(Q), 0.0)
        return np.where(self._live, V + self.mean_reward - self._I_minus_γP @ V, 0.0)

    def variance_bounds(self, Q: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Arrays [S] that contain the variance of Δ between them, as those of `Operator` do."""
        δ = self._transitions.differences(self.setting, self._checked(Q))
        low, high = variance(self, self._inner, δ)
        low, high = (np.where(self._live, v[: self.setting.S], 0.0) for v in (low, high))
        return low, high

    @property
    def second_moment_radius(self) -> float:
        """`Operator.second_moment_radius`, on transitions."""
        return second_moment_radius(self._transitions.setting)


class _Known:
    """What is known of C, by another solution."""

    def __init__(self, solution: Solution) -> None:
        self.solution, self.setting = solution, solution.setting
        self.certain, self.assumption = solution.certain, solution.assumption

    @property
    def method(self) -> str:
        """The way in which the underlying solution is computed."""
        return self.solution.method


class _BeforeActions(_Known):
    """C m = m + H(·, 1) for M = γPm: what a trace reads after its first action, by the chain of pairs."""

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """lower ≤ C·M ≤ upper for M ≥ 0, [S, Y]."""
        lower, upper = self.solution.times(self.setting.gamma * (self.setting.P @ M), gap, deadline)
        slack = 4 * EPS * M
        return np.maximum(M - slack + lower, 0.0), M + slack + upper

    def mean_coefficients(self, n: int, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """lower ≤ E[β_t] ≤ upper, [S, n]: those of the chain, which are by state."""
        return self.solution.mean_coefficients(n, gap, deadline)


class _FromStarts(_Known):
    """C on states, from what is known of the traces that go from each start over transitions."""

    def __init__(self, solution: Solution, nodes: Transitions) -> None:
        super().__init__(solution)
        self.nodes, self.starts = nodes, int((nodes.entry < 0).sum())

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """What is read on a transition is that of the state it leads to."""
        lower, upper = self.solution.times(M[self.nodes.state], gap, deadline)
        return lower[: self.starts], upper[: self.starts]

    def mean_coefficients(self, n: int, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """lower ≤ E[β_t] ≤ upper for traces from each start, [S, n]."""
        lower, upper = self.solution.mean_coefficients(n, gap, deadline)
        return lower[: self.starts], upper[: self.starts]


@dataclass(frozen=True, eq=False)
class Transitions:
    """State values as action values: an MDP whose states are the transitions of another one, with one action in each.

    On state values a trace that comes to s_t has met the actions a_0 … a_{t-1}, and δ_t carries the ratio of a_t. Let the states
    be the starts s and the transitions (s, a, s'). After each follow all transitions out of s', with probability
    μ(a'|s') P(s''|s', a'). A trace from a start s comes at time t to the transition (s_{t-1}, a_{t-1}, s_t): there decay, ratio
    and cap are those of a_{t-1}, what is read stands for s_t, and what is gained on the way to the next transition, ρ_t δ_t, is a
    number of that transition. So all that holds for traces on the pairs of this MDP, its chains, bounds and moments, holds for
    traces of state values on the first one.

    The first S states are the starts, in their order; the others the transitions that μ can make.
    """

    setting: Setting
    """The same trace on the MDP of transitions. P lacks μ, which `mu` holds, as everywhere in a Setting."""
    entry: np.ndarray
    """Which entry of the first MDP's P each transition is; −1 for starts."""
    pair: np.ndarray
    """Its pair s·A + a; for a start, of its first action."""
    state: np.ndarray
    """The state that it leads to; a start itself."""

    def differences(self, original: Setting, V: np.ndarray) -> TemporalDifferences:
        """w δ, w = min(ρ̄, ρ), by transition, with its moments."""
        P, mdp = sparse.csr_array(original.mdp.P), original.mdp
        entry, at = self.entry[original.S :], self.pair[original.S :]
        rewards = mdp.transition_rewards
        reward = np.asarray(mdp.R).ravel()[at] if rewards is None else rewards[entry]
        after = np.where(mdp.terminal, 0.0, V)[P.indices[entry]]
        weight, before = original.target_rho.ravel()[at], V[at // original.A]
        gain, size = np.zeros(len(self.entry)), np.zeros(len(self.entry))
        gain[original.S :] = weight * (reward + original.gamma * after - before)
        size[original.S :] = weight * (np.abs(reward) + original.gamma * np.abs(after) + np.abs(before))
        return TemporalDifferences.of_gains(self.setting, gain, float(size.max(initial=0.0)))


def transitions(original: Setting) -> Transitions:
    """The MDP of transitions, for a setting whose `evaluated` is the weight that δ carries: μ min(ρ̄, ρ)."""
    s, P = original, sparse.csr_array(original.mdp.P)
    every = np.repeat(np.arange(s.pairs), np.diff(P.indptr))
    entry = np.flatnonzero(s.mu.ravel()[every] > 0)
    n = s.S + len(entry)
    pair = np.concatenate([np.arange(s.S) * s.A, every[entry]])
    state = np.concatenate([np.arange(s.S), P.indices[entry]])
    terminal = np.asarray(s.mdp.terminal, dtype=bool)[state]
    # From a node all transitions out of its state follow: they stand side by side, in the order of P's entries.
    out_of = every[entry] // s.A
    first, count = np.searchsorted(out_of, state), np.bincount(out_of, minlength=s.S)[state]
    indptr: np.ndarray = np.concatenate([[0], np.cumsum(count)])
    before: np.ndarray = np.repeat(indptr[:-1] - first, count)
    follows = np.arange(len(before)) - before
    chance, to = P.data[entry[follows]], follows + s.S
    weighed = sparse.csr_array((chance * s.mu.ravel()[pair[to]], to, indptr), shape=(n, n))
    mdp = MDP(weighed, np.zeros((n, 1)), s.gamma, terminal=terminal)
    unweighed = sparse.csr_array((np.where(terminal[to], 0.0, chance), to, indptr), shape=(n, n), copy=True)
    unweighed.eliminate_zeros()
    met = np.arange(n) >= s.S  # a start has no action

    def of_pairs(array: np.ndarray) -> np.ndarray:
        return np.where(met, array.ravel()[pair], 0.0)[:, None]

    named = ("pi", "mu", "evaluated", "rho", "decay", "ratio", "cap")
    arrays = {name: of_pairs(getattr(s, name)) for name in named}
    places = [(int(z) // s.A, int(z) % s.A) if at else None for z, at in zip(pair, met, strict=True)]
    changed = replace(s, mdp=mdp, P=unweighed, ids=state, places=places, **arrays)
    return Transitions(changed, np.concatenate([np.full(s.S, -1), entry]), pair, state)
