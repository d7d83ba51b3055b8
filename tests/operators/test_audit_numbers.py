"""The numbers of the audit's counterexamples, each derived again in a few lines that share nothing with what they check."""

from __future__ import annotations

import numpy as np
import pytest

import offtrace as ot
from learners import by_definition
from offtrace.mdps import MDP, alternating, garnet, one_state_two_actions, q_lambda_tight, random_policy
from offtrace.operators import Operator
from offtrace.operators.auditing.claims import algorithms, common, online, policy_evaluation, proofs
from operators.brute import C_by_enumeration, variance_by_enumeration


def norm_and_radius(Z: np.ndarray) -> tuple[float, float]:
    return float(np.abs(Z).sum(axis=1).max()), float(np.abs(np.linalg.eigvals(Z)).max())


@pytest.mark.parametrize(
    ("trace", "eigenvalue"),
    [(common.SECOND_LAG, -(0.9 + 0.81 + 0.729)), (common.ALL_BUT_SECOND, 0.81 + 0.729 + 0.6561)],
)
def test_theorem_1_is_refuted_off_policy(trace: ot.Trace, eigenvalue: float) -> None:
    mdp, pi, mu = alternating()
    assert np.abs(pi - mu).max() == 0.25
    C = C_by_enumeration(trace, mdp, pi, mu, depth=6)
    P = np.array([[0, 0, 3, 1], [0, 0, 3, 1], [3, 1, 0, 0], [3, 1, 0, 0]]) / 4
    Z = np.eye(4) - C @ (np.eye(4) - 0.9 * P)
    assert np.isclose(np.linalg.eigvals(Z), eigenvalue).any()
    assert norm_and_radius(Z) == pytest.approx((abs(eigenvalue), abs(eigenvalue)))
    op = Operator(trace, mdp, target=pi, behavior=mu)
    np.testing.assert_allclose(op.Z, Z, atol=1e-12)


def test_any_two_policies_will_do() -> None:
    for pi, mu in (((1.0,), (1.0,)), ((0.1, 0.9), (0.6, 0.4)), ((0.2, 0.3, 0.5), (0.5, 0.25, 0.25))):
        mdp, π, μ = alternating(target=pi, behavior=mu)
        op = Operator(common.SECOND_LAG, mdp, target=π, behavior=μ)
        assert 2.439 in op.spectral_radius
        assert 2.439 in op.contraction


def test_q_lambda_is_among_the_examples_and_diverges() -> None:
    """Z = (I − γP_μ)⁻¹γ(P_π − P_μ) at λ = 1; π switches and μ stays."""
    _, pi, mu = q_lambda_tight()
    to = np.array([1, 0, 1, 0])  # where each pair leads
    P = [
        np.array([[p[s, a] if to[z] == s else 0.0 for s in (0, 1) for a in (0, 1)] for z in range(4)]) for p in (pi, mu)
    ]
    Z = np.linalg.solve(np.eye(4) - 0.9 * P[1], 0.9 * (P[0] - P[1]))
    assert norm_and_radius(Z) == pytest.approx((18.0, 18.0))


def test_the_recency_heuristic() -> None:
    """Masses over (last action, log₂ ∏ρ, log₂ of its running minimum); the radius is √7 − 2."""
    γ, μ, up, far = 0.9, (2 / 3, 1 / 3), (-1, 1), 160
    mass, c = {(0, 0): 1.0}, np.zeros(2)
    for t in range(1, far):
        new: dict[tuple[int, int], float] = {}
        for (x, m), p in mass.items():
            for a in (0, 1):
                at = (x + up[a], min(m, x + up[a]))
                c[a] += γ**t * p * μ[a] * 2.0 ** at[1]
                new[at] = new.get(at, 0.0) + p * μ[a]
        mass = new
    row = γ * (1 + c.sum()) * np.array([1 / 3, 2 / 3]) - c
    Z = np.array([row, row])
    assert norm_and_radius(Z) == pytest.approx((1.4797408, np.sqrt(7) - 2), abs=1e-6)
    mdp, pi, mu = one_state_two_actions(target=(1 / 3, 2 / 3), behavior=μ, gamma=γ)
    op = Operator(policy_evaluation.RUNNING_MINIMUM, mdp, target=pi, behavior=mu)  # horizon 100
    np.testing.assert_allclose(op.Z, Z, atol=2e-4)


def test_what_the_successor_calls_divergence() -> None:
    """n of the first t − 1 actions are the first one, binomial; all rows of Z are γ(1 + S)π − c."""
    γ, π, μ = 0.94, np.array([0.6, 0.4]), np.array([0.5, 0.5])
    ρ, c, p = π / μ, np.zeros(2), np.ones(1)  # of n = 0, …, t − 1
    for t in range(1, 600):
        n = np.arange(t)
        before = ρ[0] ** n * ρ[1] ** (t - 1 - n)
        c += γ**t * μ * (p @ np.minimum(1.0, before[:, None] * ρ))
        p = 0.5 * np.append(p, 0.0) + 0.5 * np.append(0.0, p)
    row = γ * (1 + c.sum()) * π - c
    assert norm_and_radius(np.array([row, row])) == pytest.approx((1.140135, 0.268875), abs=1e-6)
    c = np.array([2 * 0.5, 0.0])  # 5.8: Σ (2/3)^t = 2, half of it after the first action
    row = 2 / 3 * (1 + c.sum()) * np.array([0.5, 0.5]) - c
    assert norm_and_radius(np.array([row, row])) == pytest.approx((1.0, 1 / 3))


@pytest.mark.parametrize("t", [1, 2, 5, 20])
def test_variance_of_a_term(t: int) -> None:
    """δ_t = 1 after the first action, else 0; E[β_t²] is a product over the steps."""
    expected = 0.81**t * ((0.81 / 0.1 + 0.01 / 0.9) ** (t - 1) * 0.81 / 0.1 - 0.9**2)
    assert algorithms.variance_of_truncated_is(*[0.0] * (t - 1), 9.0**t) == pytest.approx(expected)


def test_variance_of_the_sum() -> None:
    mdp, pi, mu = one_state_two_actions(target=(0.9, 0.1), behavior=(0.1, 0.9), gamma=0.9, reward=(1.0, 0.0))
    expected = variance_by_enumeration(ot.ImportanceSampling(), mdp, pi, mu, np.zeros((1, 2)), depth=6)
    assert algorithms.variance_of_truncated_is(*(9.0**t for t in range(1, 6))) == pytest.approx(expected.max())


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("trace", [ot.NonMarkovRetrace(0.9), ot.TruncatedIS(bound=(0.5, 2.0)), ot.RBIS(0.8)])
def test_algorithm_1_is_that_of_the_learners(trace: ot.Trace, held: bool) -> None:
    """The learners' oracle lives 25 steps without an end; the audit's Algorithm 1 goes over the same pairs."""
    mdp, rng = garnet(3, 2, 2, seed=1, gamma=0.9), np.random.default_rng(0)
    pi, mu = random_policy(mdp, rng), 0.9 * random_policy(mdp, rng) + 0.05
    q0 = rng.normal(size=(3, 2))
    lived = by_definition.learn(
        trace, mdp, behavior=mu, target=pi, alpha=0.1, steps=25, q0=q0, update="offline" if held else "online"
    )
    visited = [v.s * 2 + v.a for v in lived.visits]
    visited.append(lived.visits[-1].after * 2)

    def betas(t: int) -> list[float]:
        return [common.coefficient(trace, pi, mu, visited[k : t + 1]) for k in range(t, -1, -1)]

    found = online.algorithm_1(mdp, pi, visited, betas, q0, lambda t: 0.1, held)
    np.testing.assert_allclose(found, lived.Q, rtol=1e-12, atol=1e-14)


def test_algorithm_1_adds_up_to_m() -> None:
    """One state, all paths of two steps: the start gets r_0 + … with β_1 = min(1, ρ_1), and a second visit a one-step update."""
    mdp, pi, mu = one_state_two_actions(target=(0.7, 0.3), behavior=(0.4, 0.6), gamma=0.5, reward=(1.0, -2.0))
    Q, r = np.array([[0.3, -0.4]]), np.array([1.0, -2.0])
    δ = r + 0.5 * (0.7 * 0.3 - 0.3 * 0.4) - Q[0]
    β = np.minimum(1.0, pi / mu)[0]
    for x in (0, 1):
        expected, found = np.zeros(2), np.zeros(2)
        expected[x] += δ[x] + 0.5 * (mu[0] * β * δ).sum()
        expected += mu[0] * δ
        for a in (0, 1):
            weights = ([1.0], [1.0, β[a]])
            new = online.algorithm_1(mdp, pi, [x, a, 0], weights.__getitem__, Q, lambda t: 1.0, held=True)
            found += mu[0, a] * (new - Q)[0]
        np.testing.assert_allclose(found, expected)


def test_online_diverges_while_m_converges() -> None:
    """Algorithm 1 in plain loops, and its mean path by hand: Z = e·row, and D(I − Z) has trace 1 − μ·row < 0."""
    γ, π, μ = 0.9, np.array([0.2, 0.8]), np.array([0.15, 0.85])
    S = π[0] * γ / (1 - γ)  # E_μ[∏ρ 1{first action}] = π(first)
    row = γ * (1 + S) * π - np.array([S, 0.0])
    example = online.after_the_first_action()
    np.testing.assert_allclose(example.Z, [row, row], atol=1e-12)
    norm, radius = norm_and_radius(example.Z)
    assert norm == pytest.approx(3.312)
    assert radius == pytest.approx(γ - (1 - γ) * S)
    assert radius == pytest.approx(0.72)  # so iterating M converges
    assert μ @ row > 1  # the trace of D(I − Z) is negative: some direction grows
    assert example.growth == pytest.approx(0.438, abs=5e-4)
    np.testing.assert_allclose(
        example.growth, np.linalg.eigvals(np.diag(μ) @ (np.array([row, row]) - np.eye(2))).real.max()
    )

    def after_first(xp, carry, now):
        return carry * now.rho, xp.where(now.pair == 0, carry * now.rho, 0.0)

    trace = ot.StepTrace(after_first, reads=("rho", "pair"), horizon=20)
    mdp, pi, mu = one_state_two_actions(target=π, behavior=μ, gamma=γ)
    cut = example._replace(keep=np.vstack([[1.0, 1.0], *[[1.0, 0.0]] * 19, [0.0, 0.0]]))  # after lag 19
    np.testing.assert_allclose(Operator(trace, mdp, target=pi, behavior=mu).Z, cut.Z, atol=1e-9)

    rng, Q, past = np.random.default_rng(123), np.array([1.0, -0.5]), []
    for t in range(3000):
        a = int(rng.random() > μ[0])
        past = [*past, a][-300:]  # γ^300 is 2e-14
        δ, product = γ * π @ Q - Q[a], 1.0
        for lag, start in enumerate(reversed(past)):
            Q[start] += (t + 1) ** -0.6 * γ**lag * (1.0 if lag == 0 else product * (a == 0)) * δ
            product *= (π / μ)[start]
    assert np.abs(Q).max() > 1e3


def test_the_skipping_example_online() -> None:
    """All four pairs are visited equally often: D(Z − I) has (2.195 − 1)/4."""
    assert online.skipping().growth == pytest.approx((0.81 + 0.729 + 0.6561 - 1) / 4)
    P = np.array([[0, 0, 3, 1], [0, 0, 3, 1], [3, 1, 0, 0], [3, 1, 0, 0]]) / 4
    Z = 0.81 * P @ P - 0.729 * P @ P @ P + 0.6561 * P @ P @ P @ P
    np.testing.assert_allclose(online.skipping().Z, Z, atol=1e-12)


def test_misprints_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pair that comes back every second step, γ = ½: Σ γ^tP = P, while γ(I + γP + ···)P has the entries ⅓ and ⅔."""
    mdp, pi, mu = alternating(0.5, target=(1.0,), behavior=(1.0,))
    monkeypatch.setattr(proofs, "battery", lambda: [(mdp, pi, mu)])
    (powers,) = [c for c in common.claims_of(proofs) if c.where == "Lemma 2, proof"]
    found = powers.decide().numbers
    assert "differ by up to 0.333" in found
    assert "exceeds the left one by up to 0.333" in found

    # One state, reward 1 for ever, γ = ½: Q* = 2, and the printed middle term is 0 whatever Q_k is.
    one = MDP(np.ones((1, 1, 1)), np.ones((1, 1)), 0.5, terminal=np.zeros(1, bool))
    monkeypatch.setattr(proofs, "battery", lambda: [(one, np.ones((1, 1)), np.ones((1, 1)))])
    (best,) = [c for c in common.claims_of(proofs) if c.where == "Theorem 2, proof, part 1"]
    Q = np.random.default_rng(5).normal()
    assert (
        f"misses by up to {abs(0.5 * (Q - 2)):.3g} and the inequality by {-0.5 * (Q - 2):.3g}" in best.decide().numbers
    )

    # One state, μ = (½, ½), c = (½, 1): E[c_1c_2 1{a_2 = y}] = ¾ μc, and not μc.
    made = one_state_two_actions(target=(0.25, 0.75), gamma=0.5)
    monkeypatch.setattr(proofs, "battery", lambda: [made] * 6)
    (markov,) = [c for c in common.claims_of(proofs) if c.where == "Section 4.1"]
    assert "wrong by up to 0.125" in markov.decide().numbers
