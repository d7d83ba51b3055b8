"""The MDPs that decide what is true of the paper (DESIGN.md, section 5): each returns (mdp, pi, mu) and what else it takes.

C = Σ γ^t K_t and Z = I − C(I − γP_π), with K_t(x, y) = E_μ[β_t 1{(s_t, a_t) = y} | x]. Nothing here is computed or
claimed; `offtrace.operators` computes. None of these MDPs ever ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offtrace.mdps.mdp import MDP
from offtrace.mdps.policy_tables import check_policy, greedy


def alternating(
    gamma: float = 0.9,
    target: Sequence[float] | np.ndarray = (0.75, 0.25),
    behavior: Sequence[float] | np.ndarray = (0.5, 0.5),
) -> tuple[MDP, np.ndarray, np.ndarray]:
    """Two states that alternate, whatever is done: refutes Theorem 1's condition β_t ≤ ∏ρ, off-policy, and Lemma 2 with it.

    With β = (1, 0, ρ₁ρ₂, 0, …), a Truncated IS with bounds (0, ∞, 0) by lag, Z = γP − γ²P² + γ³P³ for P = P_π. It has
    the eigenvalue −(γ + γ² + γ³), −2.439 at γ = 0.9, and its norm is 2.439 too: M diverges. With
    β = (1, ρ₁, 0, ρ₁ρ₂ρ₃, 0, …), bounds (∞, 0, ∞, 0), Z = γ²P² − γ³P³ + γ⁴P⁴ has +(γ² + γ³ + γ⁴), 2.195, which no step size
    cures. `target` and `behavior` are the policies in either state, and any two will do; with
    `target=(1,), behavior=(1,)` there is one action, on-policy. Rewards are 0, so Q is its own error.

    >>> import offtrace as ot
    >>> from offtrace.operators import Operator
    >>> mdp, target, behavior = alternating()
    >>> trace = ot.TruncatedIS(bound=(0.0, ot.INFINITY, 0.0))
    >>> Operator(trace, mdp, target=target, behavior=behavior).spectral_radius > 1
    True
    """
    P = np.zeros((2, np.size(target), 2))
    P[0, :, 1] = P[1, :, 0] = 1.0
    mdp = MDP(P, np.zeros(P.shape[:2]), gamma, terminal=np.zeros(2, bool))
    return (
        mdp,
        check_policy(np.array([target, target]), mdp, "target"),
        check_policy(np.array([behavior, behavior]), mdp, "behavior"),
    )


def one_state_two_actions(
    target: Sequence[float] | np.ndarray = (0.5, 0.5),
    behavior: Sequence[float] | np.ndarray = (0.5, 0.5),
    gamma: float = 2 / 3,
    reward: Sequence[float] | np.ndarray = (0.0, 0.0),
) -> tuple[MDP, np.ndarray, np.ndarray]:
    """One state with two actions that stay in it: where ‖Z‖ can reach 1 or more while the spectral radius stays below 1.

    As it stands, Counterexample 5.8 of Daley et al. 2023: π = μ = ½; for t ≥ 1, β_t = 1 if a_t is action 0 and 0 if it is
    action 1; γ = 2/3. Then ‖Z‖ = 1, so M is not a contraction, though its spectral radius is 1/3 and it converges. With
    `target=(0.6, 0.4), gamma=0.94` it is their Counterexample 5.7, Truncated IS with the bound 1: ‖Z‖ = 1.140, radius 0.269.
    With `target=(1/3, 2/3), behavior=(2/3, 1/3), gamma=0.9` the running minimum of ∏ρ, the largest β that keeps
    β_t ≤ ∏ρ and never grows, has ‖Z‖ = 1.480 and the radius 0.646.

    >>> mdp, target, behavior = one_state_two_actions()
    >>> mdp.S, mdp.A, target.tolist()
    (1, 2, [[0.5, 0.5]])
    """
    mdp = MDP(np.ones((1, 2, 1)), np.asarray(reward, dtype=np.float64)[None, :], gamma, terminal=np.zeros(1, bool))
    return mdp, check_policy(np.array([target]), mdp, "target"), check_policy(np.array([behavior]), mdp, "behavior")


def lemma_2(gamma: float = 0.9) -> tuple[MDP, np.ndarray, np.ndarray, np.ndarray]:
    """(mdp, π_k, μ, π*): one state, two actions. Refutes Lemma 2 as Theorem 2 uses it, with π* in place of π_k.

    Importance sampling towards π_k, which takes action 1, while π* takes action 0: ‖I − C(I − γP_π*)‖ = 2γ/(1 − γ), 18 at
    γ = 0.9, and not γ. μ = ½ covers both; any other that does gives the same.

    >>> mdp, target, behavior, optimal = lemma_2()
    >>> target.tolist(), optimal.tolist()
    ([[0.0, 1.0]], [[1.0, 0.0]])
    """
    mdp, target, behavior = one_state_two_actions(target=(0.0, 1.0), gamma=gamma, reward=(0.0, -1.0))
    return mdp, target, behavior, np.array([[1.0, 0.0]])


def switch_or_stay(gamma: float = 0.9, stay: float = 0.9) -> tuple[MDP, np.ndarray, np.ndarray, np.ndarray]:
    """(mdp, π_0, μ, Q_0): two states, reward 0 to switch and −1 to stay. Refutes Theorem 2, control from any Q_0.

    Action 0 leads to state 1 and action 1 to state 0; μ stays with probability `stay`; π_k is greedy in Q_k. Retrace(1)
    from Q_0 = [[0, −2], [0, −2]] ends in a cycle of period two, [[−81, −199], [−109, −171]]/28 and its mirror, while
    Q* = [[0, −1], [−1, 0]]: although Retrace satisfies β_t ≤ β_{t-1}ρ_t, and at step size 1. From a pessimistic Q_0, or with a
    step size of 0.6, it converges.

    >>> import offtrace as ot
    >>> from offtrace.operators import control_iterates
    >>> mdp, _, behavior, q0 = switch_or_stay()
    >>> control_iterates(ot.Retrace(), mdp, behavior=behavior, q0=q0).period
    2
    """
    if not 0.0 <= stay <= 1.0:
        raise ValueError(f"stay is a probability and must lie in [0, 1], got {stay!r}")
    mdp = _two_states(gamma, switch=0.0, stay=-1.0)
    q0 = np.array([[0.0, -2.0], [0.0, -2.0]])
    return mdp, greedy(q0), _staying(stay), q0


def powers_of_two(gamma: float = 0.98) -> tuple[MDP, np.ndarray, np.ndarray]:
    """Three states, two actions, ratios that are powers of two. Refutes that Truncated IS with one bound d = 1 converges.

    (s0, a0) → s2, (s0, a1) → s1, (s1, a0) → s2, (s1, a1) → s0, s2 → s0; ρ = [[8, ½], [¼, 2], [8, ⅛]]. All products of ratios
    are powers of two, so β_t = min(1, ∏ρ) takes few values and Z is known exactly: ‖Z‖ = 1.97844, its spectral radius is
    1.0137615, with the eigenvalue −1.0137615, so that a step size below 1 cures it. `offtrace.operators.falsify` found its like.

    >>> mdp, target, behavior = powers_of_two()
    >>> (target / behavior).tolist()
    [[8.0, 0.5], [0.25, 2.0], [8.0, 0.125]]
    """
    P = np.eye(3)[[2, 1, 2, 0, 0, 0]].reshape(3, 2, 3)
    mu = np.array([[1 / 15, 14 / 15], [4 / 7, 3 / 7], [1 / 9, 8 / 9]])
    pi = mu * 2.0 ** np.array([[3, -1], [-2, 1], [3, -3]])
    return MDP(P, np.zeros((3, 2)), gamma, terminal=np.zeros(3, bool)), pi, mu


def baird_star(gamma: float = 0.99) -> tuple[MDP, np.ndarray, np.ndarray, np.ndarray]:
    """Baird's star with seven states: π always goes to the last one, μ mostly to one of the six others. All rewards are 0.

    Action 0 leads to one of the first six states, each as likely as the others, action 1 to the last; μ takes action 0 with
    probability 6/7. Values are linear, 2w_i + w_8 in the first six states and w_7 + 2w_8 in the last: off-policy TD(0) diverges
    though V^π = 0 can be held exactly. Sutton and Barto (2018), section 11.2, after Baird (1995). Returns mdp, π, μ and
    features [7, 8].

    >>> mdp, target, behavior, features = baird_star()
    >>> features[0].tolist(), features[6].tolist()
    ([2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0])
    """
    P = np.zeros((7, 2, 7))
    P[:, 0, :6], P[:, 1, 6] = 1 / 6, 1.0
    X = np.hstack([2.0 * np.eye(7), np.ones((7, 1))])
    X[6, 6:] = 1.0, 2.0
    pi, mu = np.tile([0.0, 1.0], (7, 1)), np.tile([6 / 7, 1 / 7], (7, 1))
    return MDP(P, np.zeros((7, 2)), gamma, terminal=np.zeros(7, bool)), pi, mu, X


def w_to_2w(gamma: float = 0.99) -> tuple[MDP, np.ndarray, np.ndarray, np.ndarray]:
    """Two states with the values w and 2w: π always goes to the second, μ to either of them with ½. All rewards are 0.

    Off-policy TD(0) diverges for γ above 5/6. After Tsitsiklis and Van Roy (1997); Sutton, Mahmood, White (2016). Returns mdp, π,
    μ and features [2, 1].

    >>> mdp, target, behavior, features = w_to_2w()
    >>> features.tolist()
    [[1.0], [2.0]]
    """
    P = np.zeros((2, 2, 2))
    P[:, 0, 0] = P[:, 1, 1] = 1.0
    pi, mu = np.tile([0.0, 1.0], (2, 1)), np.full((2, 2), 0.5)
    return MDP(P, np.zeros((2, 2)), gamma, terminal=np.zeros(2, bool)), pi, mu, np.array([[1.0], [2.0]])


def q_lambda_tight(gamma: float = 0.9, distance: float = 2.0) -> tuple[MDP, np.ndarray, np.ndarray]:
    """Two states; π switches, μ stays with probability distance/2. Here Q(λ)'s bound is an equality for every λ.

    ‖Z‖ = γ(1 − λ + λε)/(1 − λγ) with ε = max_s ‖π − μ‖₁ = distance in [0, 2] (Harutyunyan et al. 2016, in the form of DESIGN.md
    section 5): Z = (I − λγP_μ)⁻¹ γ(P_π − λP_μ), and with a deterministic π all rows that lead to one state have the
    same signs, so that nothing cancels. At distance 2 the spectral radius equals it too: the eigenvector is +1, −1 for
    switching and staying in state 0, and −1, +1 in state 1. So Q(λ) diverges there as soon as γ(1 + λ) > 1 − λγ.

    >>> import offtrace as ot
    >>> from offtrace.operators import Operator
    >>> mdp, target, behavior = q_lambda_tight(gamma=0.5, distance=1.0)
    >>> op = Operator(ot.QLambda(lam=0.5), mdp, target=target, behavior=behavior)
    >>> round(op.contraction.midpoint, 9)  # ½ (1 − ½ + ½·1) / (1 − ¼)
    0.666666667
    """
    if not 0.0 <= distance <= 2.0:
        raise ValueError(f"distance is ‖π − μ‖₁ and must lie in [0, 2], got {distance!r}")
    return _two_states(gamma, switch=0.0, stay=0.0), _staying(0.0), _staying(distance / 2.0)


def _two_states(gamma: float, switch: float, stay: float) -> MDP:
    """Action 0 leads to state 1, action 1 to state 0, from either state; rewards for switching and staying."""
    P = np.zeros((2, 2, 2))
    P[:, 0, 1] = P[:, 1, 0] = 1.0
    return MDP(P, [[switch, stay], [stay, switch]], gamma, terminal=np.zeros(2, bool))


def _staying(probability: float) -> np.ndarray:
    """The policy of `_two_states` that stays with this probability."""
    p = probability
    return np.array([[1.0 - p, p], [p, 1.0 - p]])
