"""What the paper says of Algorithm 1, which learns step by step, each as a computation.

    δ_t = r_t + γ Σ_a' π(a'|s_{t+1}) Q(s_{t+1}, a') − Q(s_t, a_t)
    for k = 0, …, t:    Q(s_k, a_k) ← Q(s_k, a_k) + α_t γ^{t-k} β(F_{k:t}) δ_t

Each pair is updated as often as it is visited. So with small step sizes Q follows dQ/dt = D(Z − I)(Q − Q^π), where the diagonal
matrix D holds the shares of the visits. Iterating M converges if all eigenvalues of Z lie within the unit circle. Learning
online does if those of D(Z − I) have negative real parts, which is another condition: ‖Z‖ < 1 implies both, and a spectral
radius below 1 implies the first alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

import offtrace.traces as ot
from offtrace.mdps import MDP, alternating, garnet, one_state_two_actions, random_policy
from offtrace.operators.auditing.claims.common import Found, claim, coefficient, histories, sizes_of
from offtrace.operators.operator import Operator


def expected_value(pi: np.ndarray, q: np.ndarray) -> float:
    """Σ_a π(a|s) Q(s, a), which the δ of Algorithm 1 prints without π."""
    return float(pi @ q)


def algorithm_1(
    mdp: MDP,
    pi: np.ndarray,
    visited: Sequence[int],
    betas: Callable[[int], ArrayLike],
    Q: np.ndarray,
    alpha: Callable[[int], float],
    held: bool = False,
) -> np.ndarray:
    """Q [S, A] after these pairs, of which the last only tells where the one before it led.

    `betas(t)` are β_{t:t}, β_{t-1:t}, …; those that are left out are 0. `held` keeps the Q of every δ as it was at the
    beginning: the updates of an episode are added up, as offline.
    """
    before, Q, pairs = Q, Q.copy(), np.asarray(visited)
    for t, (z, after) in enumerate(pairwise(visited)):
        seen, s = before if held else Q, after // mdp.A
        δ = mdp.R.ravel()[z] + mdp.gamma * expected_value(pi[s], seen[s]) - seen.ravel()[z]
        β = np.asarray(betas(t))
        lags = np.arange(len(β))
        np.add.at(Q.ravel(), pairs[t - lags], alpha(t) * mdp.gamma**lags * β * δ)
    return Q


@claim("Algorithm 1 makes the updates of M, with δ = r + γ Σ_a' Q(s', a') − Q(s, a) as printed", "Algorithm 1")
def _printed_delta() -> Found:
    γ, α, n = 0.9, 0.1, 2
    printed = np.eye(n) + α * (γ * np.ones((n, n)) - np.eye(n))
    meant = np.eye(n) + α * (γ * np.full((n, n), 1 / n) - np.eye(n))
    radii = [float(np.abs(np.linalg.eigvals(A)).max()) for A in (printed, meant)]
    numbers = f"one-step, α = {α}, expected update: radius {radii[0]:.4g} as printed, {radii[1]:.4g} with π(a'|s')"
    return Found(radii[0] > 1, numbers, "one_state_two_actions(gamma=0.9): a misprint for the δ of Section 2.1")


@claim("Algorithm 1 makes the updates of M, with the δ of Section 2.1, also where pairs are met again", "Algorithm 1")
def _mended_delta() -> Found:
    mdp, rng, steps = garnet(2, 2, 2, seed=0, gamma=0.9), np.random.default_rng(6), 4
    pi, mu = (0.98 * random_policy(mdp, rng) + 0.01 for _ in range(2))
    Q, walk = rng.normal(size=(mdp.S, mdp.A)), mdp.P_pi(mu).toarray()
    traces, sizes, tried = (ot.Retrace(), ot.NonMarkovRetrace(0.9), ot.TruncatedIS(1.0)), (1.0, 0.1, 0.01), 0
    apart = np.zeros(len(sizes))  # by step size; the first one with Q held
    for trace in traces:
        cut = [
            Operator(replace(trace, horizon=n), mdp, target=pi, behavior=mu).apply(Q) - Q for n in range(1, steps + 1)
        ]
        for x in range(mdp.pairs):
            # A visit to y at step k sees steps − k lags: it should change Q(y) by α(MQ − Q)(y), M with that horizon.
            meant = sum(np.linalg.matrix_power(walk, k)[x] * cut[steps - k - 1].ravel() for k in range(steps))
            change = np.zeros((len(sizes), mdp.pairs))  # E[ΔQ]/α
            for past, chance in histories(mdp, mu, x, steps):
                β = [[coefficient(trace, pi, mu, past[k : t + 1]) for k in range(t, -1, -1)] for t in range(steps)]
                for i, α in enumerate(sizes):
                    new = algorithm_1(mdp, pi, past, β.__getitem__, Q, lambda t, α=α: α, held=i == 0)
                    change[i] += chance * (new - Q).ravel() / α
                tried += 1
            apart = np.maximum(apart, np.abs(change - meant).max(axis=1))
    numbers = (
        f"all {tried:,} trajectories of {steps} steps: E[ΔQ] and α Σ E[visits] (MQ − Q) differ by {apart[0]:.0e} α. Read with Q "
        f"held through an episode, as the paper expects, it holds; where Q moves meanwhile the mean is off by {apart[1]:.2g} α "
        f"at α = {sizes[1]:g}, {apart[2]:.2g} α at {sizes[2]:g}"
    )
    return Found(apart[0] > 1e-6, numbers, f"garnet(2, 2, 2, seed=0) × {len(traces)} traces, all histories")


class Masked(NamedTuple):
    """An example whose β is ∏ρ or 0, by lag and last pair: K_t = P_π^t diag(keep[t]), and β ≤ ∏ρ holds by construction."""

    said: str
    mdp: MDP
    pi: np.ndarray
    mu: np.ndarray
    keep: np.ndarray
    """[lags, S·A] of 0 and 1; keep[0] = 1, and the last row is that of all later lags."""

    @property
    def Z(self) -> np.ndarray:
        """I − Σ γ^tK_t (I − γP_π)."""
        one, γP = np.eye(self.mdp.pairs), self.mdp.gamma * self.mdp.P_pi(self.pi).toarray()
        *first, later = (np.linalg.matrix_power(γP, t) for t in range(len(self.keep)))
        C = sum(power * kept for power, kept in zip(first, self.keep[:-1], strict=True))
        return one - (C + later @ np.linalg.inv(one - γP) * self.keep[-1]) @ (one - γP)

    @property
    def growth(self) -> float:
        """The largest real part of the eigenvalues of D(Z − I), D the shares of visits."""
        step = self.mdp.P_pi(self.mu).toarray()
        shares = np.linalg.matrix_power(0.5 * (step + np.eye(len(step))), 2**20)[0]  # half a step: no period
        return float(np.linalg.eigvals(shares[:, None] * (self.Z - np.eye(len(step)))).real.max())

    def learned(self, steps: int, seed: int) -> float:
        """‖Q‖ after so many steps of Algorithm 1, from a Q_0 of norm 1, with α_t = (t + 1)^-0.6."""
        rng = np.random.default_rng(seed)
        lived = self.mdp.rollout(self.mu, steps=steps + 1, seed=rng)
        visited = lived["state"] * self.mdp.A + lived["action"]
        L = np.cumsum(np.log(self.pi / self.mu).ravel()[visited])

        def betas(t: int) -> np.ndarray:
            lags = np.arange(t + 1)
            return np.exp(L[t] - L[t - lags]) * self.keep[np.minimum(lags, len(self.keep) - 1), visited[t]]

        Q = rng.normal(size=self.pi.shape)
        learned = algorithm_1(
            self.mdp, self.pi, visited.tolist(), betas, Q / np.abs(Q).max(), lambda t: (t + 1) ** -0.6
        )
        return float(np.abs(learned).max())


def skipping() -> Masked:
    """`alternating` with β = (1, ρ₁, 0, ρ₁ρ₂ρ₃, 0, …): no step size makes M converge."""
    keep = np.ones((5, 4))
    keep[[2, 4]] = 0.0
    return Masked("β = (1, ρ₁, 0, ρ₁ρ₂ρ₃, 0, …), alternating", *alternating(), keep)


def after_the_first_action() -> Masked:
    """One state; β = ∏ρ after the first action, else 0: M converges, and its norm is above 1."""
    keep = np.array([[1.0, 1.0], [1.0, 0.0]])
    example = one_state_two_actions(target=(0.2, 0.8), behavior=(0.15, 0.85), gamma=0.9)
    return Masked("β_t = ∏ρ where a_t is the first action, else 0, one state", *example, keep)


EXAMPLES = (skipping, after_the_first_action)


@claim("as M converges where β_t ≤ ∏ρ, Algorithm 1 online does not diverge under annealed step sizes", "Section 4.2")
def _annealed() -> Found:
    said, diverged, steps, seeds = [], [], (300, 3000), range(5)
    for example in (make() for make in EXAMPLES):
        (norm, radius), least = sizes_of(example.Z), [min(example.learned(n, seed) for seed in seeds) for n in steps]
        diverged.append(example.growth > 0 and least[1] > 100 * max(1.0, least[0]))
        said.append(
            f"{example.said}: ‖Z‖ = {norm:.4g}, spectral radius {radius:.4g}, D(Z − I) up to {example.growth:+.3g}; "
            f"smallest ‖Q‖ of {len(seeds)} runs {least[0]:.0e} after {steps[0]} steps, {least[1]:.0e} after {steps[1]}"
        )
    numbers = (
        f"off-policy, α_t = (t+1)^-0.6, so Σ α = ∞ and Σ α² < ∞; ‖Q_0‖ = 1. {'. '.join(said)}. D are the shares of visits: a "
        "real part of D(Z − I) above 0 is growth, even where the radius is below 1 and iterating M converges"
    )
    examples = "alternating(); one_state_two_actions(target=(.2, .8), behavior=(.15, .85), gamma=.9)"
    return Found(any(diverged), numbers, examples)
