"""Equations that the paper's proofs print wrongly, each next to what was meant: the corrected ones hold.

Two more cannot be computed. Part 2 of Theorem 2's proof writes T_πQ for T_{π_k}Q_k, of which neither π nor Q is defined
there. Algorithm 1 writes F_{k:t} = F_t ∖ F_{k-1}, which as sets loses a pair that is met twice: a sequence is meant.
"""

from __future__ import annotations

import numpy as np

import offtrace.traces as ot
from offtrace.operators.auditing.claims.common import Found, battery, claim, enumerated
from offtrace.operators.operator import Operator


@claim("γP_π + γ²P_π + ··· = γ(I + γP_π + ···)P_π, and C − I is at most this", "Lemma 2, proof")
def _powers_in_lemma_2() -> Found:
    apart, above, mended = 0.0, -np.inf, 0.0
    for mdp, pi, mu in battery():
        γ, P, one = mdp.gamma, mdp.P_pi(pi).toarray(), np.eye(mdp.pairs)
        terms = 40 + int(np.log(1e-17) / np.log(γ))
        printed = sum(γ**t for t in range(1, terms)) * P
        meant = sum(γ**t * np.linalg.matrix_power(P, t) for t in range(1, terms))
        right = γ * np.linalg.inv(one - γ * P) @ P
        C = Operator(ot.ImportanceSampling(), mdp, target=pi, behavior=mu).C
        apart, above = max(apart, np.abs(printed - right).max()), max(above, (C - one - printed).max())
        mended = max(mended, np.abs(meant - right).max())
    numbers = (
        f"as printed the two sides differ by up to {apart:.3g}, and C − I of importance sampling exceeds the left one by up "
        f"to {above:.3g}. Read as γP_π + γ²P_π² + ···, which is meant, it holds: difference {mended:.0e}"
    )
    return Found(apart > 1e-6, numbers, f"{len(battery())} random MDPs")


@claim("T_{π_k}Q_k − TQ* = γP_{π_k}Q_k − γ max P_π'Q_k ≤ γP_{π_k}(Q_k − Q*)", "Theorem 2, proof, part 1")
def _best_in_theorem_2() -> Found:
    rng, apart, above, mended, left_over = np.random.default_rng(5), 0.0, -np.inf, 0.0, -np.inf
    for mdp, pi, _ in battery():
        best, Q = mdp.optimal_q(), rng.normal(size=(mdp.S, mdp.A))
        P, onto = mdp.P_pi(pi).toarray(), mdp.dense_P.reshape(mdp.pairs, mdp.S)
        left = mdp.R.ravel() + mdp.gamma * P @ Q.ravel() - best.ravel()  # TQ* = Q*
        printed, meant = (mdp.gamma * (P @ Q.ravel() - onto @ values.max(axis=1)) for values in (Q, best))
        right = mdp.gamma * P @ (Q - best).ravel()
        apart, above = max(apart, np.abs(left - printed).max()), max(above, (printed - right).max())
        mended, left_over = max(mended, np.abs(left - meant).max()), max(left_over, (meant - right).max())
    numbers = (
        f"as printed the equality misses by up to {apart:.3g} and the inequality by {above:.3g}. Read as γP_{{π_k}}Q_k − "
        f"γ max P_π'Q*, which is meant, it holds: {mended:.0e}, and at most {left_over:.0e}"
    )
    return Found(apart > 1e-6, numbers, f"{len(battery())} random MDPs, random Q_k")


@claim("with Markov traces B_t is independent of t, which makes C = Σ γ^tP_{cμ}^t", "Section 4.1")
def _independent_of_t() -> Found:
    mdp, pi, mu = battery()[5]
    step, c = mdp.P_pi(mu).toarray(), np.minimum(1.0, pi / mu).ravel()
    K, cut = enumerated(mdp, ot.Retrace(horizon=3), pi, mu, 3), step * c
    apart = np.abs(K[2] - step @ step * c).max()  # B_1 = diag(c), for B_2 too
    mended = np.abs(K[2] - cut @ cut).max()
    C = np.abs(
        Operator(ot.Retrace(), mdp, target=pi, behavior=mu).C - np.linalg.inv(np.eye(mdp.pairs) - mdp.gamma * cut)
    ).max()
    numbers = (
        f"as printed, with Retrace's B_1 for B_2, E[β_2 1{{(s_2, a_2) = y}}] is wrong by up to {apart:.3g}. Read as c "
        f"independent of t, which is meant, it holds: K_2 = P_{{cμ}}² to {mended:.0e}, C = (I − γP_{{cμ}})⁻¹ to {C:.0e}"
    )
    return Found(apart > 1e-6, numbers, "garnet(3, 2, 3, seed=5)")
