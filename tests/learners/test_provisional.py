"""PTD(λ) and PQ(λ): what their paper promises, with values of fixed weights. `test_follow` holds the methods to it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from learners import methods_by_definition as plain

X = np.random.default_rng(4).normal(size=(5, 3))


def parts(steps: plain.Steps, θ: np.ndarray, on_states: bool) -> tuple[np.ndarray, ...]:
    """Of one episode with fixed weights: φ_t, θ·φ_t, Σ_a π(a|s_t) θ·φ(s_t, a) (on states θ·φ_t), what δ_t adds to r_t, ρ_t."""
    φs = plain.of_pairs(X, steps.target.shape[1])
    s, a, after = steps.state, steps.action, steps.next_state
    ρ = np.array([steps.ratio(t) for t in range(len(s))])
    if on_states:
        return X[s], X[s] @ θ, X[s] @ θ, np.where(steps.terminated, 0.0, X[after] @ θ), ρ
    mean = np.einsum("sa,sad->sd", steps.target, φs) @ θ
    return φs[s, a], φs[s, a] @ θ, mean[s], np.where(steps.terminated, 0.0, mean[after]), ρ


def backward(steps: plain.Steps, θ: np.ndarray, λ: float, on_states: bool) -> np.ndarray:
    """[T, d]: Σ of the updates until each step, for α = 1, all values being those of θ."""
    φ, q, mean, after, ρ = parts(steps, θ, on_states)
    γ, e, u, total, found = steps.gamma, np.zeros_like(θ), np.zeros_like(θ), np.zeros_like(θ), []
    for t in range(len(q)):
        δ, bar, c = steps.reward[t] + γ * after[t] - q[t], steps.reward[t] + after[t] - q[t], q[t] - mean[t]
        e = ρ[t] * (γ * λ * e + φ[t]) if on_states else γ * λ * ρ[t] * e + φ[t]
        older = 0 * e if on_states else e - φ[t]
        total = total + δ * e + c * older + (ρ[t] - 1) * u
        u = γ * λ * (ρ[t] * u + bar * e + c * older)
        found.append(total)
    return np.array(found)


def forward(steps: plain.Steps, θ: np.ndarray, λ: float, on_states: bool, t: int) -> np.ndarray:
    """[d]: Σ_{k<t} w_k Δ_{k,t} φ_k, by the definition in `methods.own_traces`. t steps have been seen."""
    φ, q, _, after, ρ = parts(steps, θ, on_states)
    γ = np.where(steps.terminated, 0.0, steps.gamma)  # the probability to go on
    total = np.zeros_like(θ)
    for k in range(t):
        Δ, C, collected = 0.0, 1.0, 0.0
        for i in range(k + 1, t + 1):  # the return that ends at i has met the rewards k … i − 1
            if i - 1 > k:
                C *= steps.gamma * λ * ρ[i - 1]
            collected += steps.reward[i - 1]
            g = γ[i - 1]
            whole, bootstrapped = collected - q[k], collected + after[i - 1] - q[k]
            stays = g if i == t else g * (1 - λ)
            Δ += C * ((1 - g) * whole + stays * bootstrapped)
        total += (ρ[k] if on_states else 1.0) * Δ * φ[k]
    return total


def episode(seed: int, ends: bool = True) -> plain.Steps:
    steps = plain.made(T=9, seed=seed)
    last = np.arange(9) == 8
    state = np.append(steps.state[:1], steps.next_state[:-1])
    rng = np.random.default_rng(seed)
    action = np.array([rng.choice(3, p=steps.behavior[s]) for s in state])
    return steps._replace(state=state, action=action, terminated=last & ends, truncated=0 * last > 0)


@pytest.mark.parametrize("on_states", [True, False], ids=["PTD", "PQ"])
@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_the_forward_view_holds_at_every_step(lam: float, on_states: bool) -> None:
    for seed in range(4):
        steps = episode(seed)
        θ = np.random.default_rng(seed).normal(size=3 if on_states else 9)
        found = backward(steps, θ, lam, on_states)
        for t in range(1, 10):
            np.testing.assert_allclose(found[t - 1], forward(steps, θ, lam, on_states, t), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("on_states", [True, False], ids=["PTD", "PQ"])
def test_monte_carlo_at_lambda_one(on_states: bool) -> None:
    """At the end of an episode, λ = γ = 1: each start has moved by the error of its whole weighted return."""
    for seed in range(4):
        steps = episode(seed)._replace(gamma=1.0)
        θ = np.random.default_rng(seed).normal(size=3 if on_states else 9)
        φ, q, _, _, ρ = parts(steps, θ, on_states)
        found = backward(steps, θ, 1.0, on_states)[-1]
        wanted = np.zeros_like(θ)
        for k in range(9):
            weight = np.prod(ρ[k if on_states else k + 1 :])
            wanted += weight * (steps.reward[k:].sum() - q[k]) * φ[k]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("on_states", [True, False], ids=["PTD", "PQ"])
def test_in_expectation_it_is_importance_sampling(on_states: bool) -> None:
    """Over all actions of four steps, which say where one goes: the mean update is that of the trace ∏ λρ."""
    steps, λ = plain.made(S=5, A=3, seed=1), 0.7
    θ = np.random.default_rng(0).normal(size=3 if on_states else 9)
    mean = np.zeros((2, len(θ)))
    for actions in product(range(3), repeat=4):
        state, p = [2], 1.0
        for a in actions:
            p *= steps.behavior[state[-1], a]
            state.append((2 * state[-1] + a + 1) % 5)
        lived = steps._replace(
            state=np.array(state[:-1]), action=np.array(actions), next_state=np.array(state[1:]),
            reward=np.sin(np.array(state[1:]) + np.array(actions)), terminated=np.zeros(4, bool), truncated=np.zeros(4, bool),
        )  # fmt: skip
        φ, q, _, after, ρ = parts(lived, θ, on_states)
        z = total = np.zeros_like(θ)
        for t in range(4):
            δ = lived.reward[t] + steps.gamma * after[t] - q[t]
            z = ρ[t] * (steps.gamma * λ * z + φ[t]) if on_states else steps.gamma * λ * ρ[t] * z + φ[t]
            total = total + δ * z
        mean += p * np.stack([backward(lived, θ, λ, on_states)[-1], total])
    np.testing.assert_allclose(mean[0], mean[1], rtol=1e-9, atol=1e-12)
