"""Every learning method as its equations stand, with dense vectors, one step after another: slow and obvious.

It shares no line with the compiled loop, nor with the methods' steps. `of_states` and `of_actions` give the weights.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import offtrace as ot
from offtrace.learners import Method

Number: TypeAlias = Any
"""A number or an array: what NumPy says of sums and products of them, pyright would look up for ten seconds."""


class Steps(NamedTuple):
    """A trajectory, its policies [S, A] and its discount."""

    state: Number
    action: Number
    reward: Number
    next_state: Number
    terminated: Number
    truncated: Number
    target: Number
    behavior: Number
    gamma: float

    def ratio(self, t: int) -> float:
        """ρ_t."""
        s, a = self.state[t], self.action[t]
        return float(self.target[s, a] / self.behavior[s, a])

    def begins(self, t: int) -> bool:
        """Whether an episode begins with step t."""
        return t == 0 or bool(self.terminated[t - 1] or self.truncated[t - 1])


def made(
    S: int = 5, A: int = 3, T: int = 80, seed: int = 0, *, on_policy: bool = False, truncated: bool = True
) -> Steps:
    """Nasty steps: π with zeros, ratios of all sizes, ends of both kinds, some of them twice in a row."""
    rng = np.random.default_rng(seed)
    μ = 0.1 / A + 0.9 * rng.dirichlet(np.full(A, 0.7), S)
    π = rng.dirichlet(np.full(A, 0.7), S)
    π[1] = np.eye(A)[0]
    π = μ if on_policy else π
    state, action, reward, after, ends, cut = [], [], [], [], [], []
    s = int(rng.integers(S))
    for t in range(T):
        a, n = int(rng.choice(A, p=μ[s])), int(rng.integers(S))
        terminated = rng.random() < 0.1 or t in (20, 21)
        cuts = truncated and not terminated and rng.random() < 0.08
        for to, x in zip(
            (state, action, reward, after, ends, cut), (s, a, rng.normal(), n, terminated, cuts), strict=True
        ):
            to.append(x)
        s = int(rng.integers(S)) if terminated or cuts else n
    arrays = [np.array(x) for x in (state, action, reward, after, ends, cut)]
    return Steps(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5], π, μ, 0.9)


def eligibility(trace: ot.Trace, X: np.ndarray, steps: Steps) -> list[tuple[Number, Number, float]]:
    """Of a trace on state values: e_t, what goes on of it to step t + 1, and ρ̄_t. By `Stream`."""
    stream, found = ot.Stream(trace, X.shape[1], values="state"), []
    for t, (s, a) in enumerate(zip(steps.state, steps.action, strict=True)):
        numbers: dict[str, Any] = {
            "reward": 0.0, "value": 0.0, "next_value": 0.0, "gamma": steps.gamma, "pair": int(s),
            "log_pi": np.log(np.maximum(steps.target[s, a], 1e-300)) if steps.target[s, a] else -np.inf,
            "log_mu": np.log(steps.behavior[s, a]),
        }  # fmt: skip
        after = copy.deepcopy(stream)
        after.step(X[s], **numbers, terminated=False, truncated=False)
        after.step(
            np.zeros(X.shape[1]), **{**numbers, "pair": int(steps.next_state[t])}, terminated=False, truncated=False
        )
        stream.step(X[s], **numbers, terminated=bool(steps.terminated[t]), truncated=bool(steps.truncated[t]))
        found.append((stream.z, after.z, stream.ratio))
    return found


def zeros(*shape: int) -> Number:
    """An array of them."""
    return np.zeros(shape)


def of_states(method: Method, X: Number, steps: Steps) -> np.ndarray:
    """[T, d]: the weights of a method on state values after each step."""
    p: Any = method
    γ, α, d, kind = steps.gamma, p.alpha, X.shape[1], type(method).__name__
    w, v, z, z_b, u = zeros(5, d)
    all_w: list[Number] = []
    F, ρ_before, V_old = 0.0, 0.0, 0.0
    e = eligibility(method.trace, X, steps)
    for t in range(len(steps.state)):
        x, ρ = X[steps.state[t]], steps.ratio(t)
        x_next = 0 * x if steps.terminated[t] else X[steps.next_state[t]]
        δ = steps.reward[t] + γ * w @ x_next - w @ x
        if steps.begins(t):
            z, z_b, u, F, ρ_before, V_old = 0 * z, 0 * z, 0 * z, 0.0, 0.0, 0.0
        if kind in ("GTD", "GTD2", "PGTD2", "TDRC", "HTD"):
            η, λ, κ = p.eta, getattr(method.trace, "lam", 1.0), getattr(p, "kappa", 0.0)
            z = e[t][2] * e[t][0]

            def g(v: Number, z: Number = z, on: Number = e[t][1]) -> float:
                return γ * float(z @ v) - float(on @ v)

            z_b = γ * λ * z_b + x
            if kind == "HTD":
                dw = δ * z + (x - γ * x_next) * ((z - z_b) @ v)
                dv = δ * z - (x - γ * x_next) * (v @ z_b)
            elif kind in ("GTD", "TDRC"):
                dw, dv = δ * z - g(v) * x_next, δ * z - (x @ v) * x - κ * v
            else:
                dw, dv = (x @ v) * x - g(v) * x_next, δ * z - (x @ v) * x
            if kind == "PGTD2":
                w_half, v_half = w + α * dw, v + η * α * dv
                δ_half = steps.reward[t] + γ * w_half @ x_next - w_half @ x
                dw, dv = (x @ v_half) * x - g(v_half) * x_next, δ_half * z - (x @ v_half) * x
            w, v = w + α * dw, v + η * α * dv
        elif kind in ("ETD", "ETDLB"):
            F = getattr(p, "beta", γ) * ρ_before * F + 1
            z = ρ * (γ * p.lam * z + (p.lam + (1 - p.lam) * F) * x)
            w, ρ_before = w + α * δ * z, ρ
        elif kind == "TrueOnlineTD":
            V, V_next = w @ x, w @ x_next
            z = γ * p.lam * z + (1 - α * γ * p.lam * z @ x) * x
            w = w + α * (δ + V - V_old) * z - α * (V - V_old) * x
            V_old = V_next
        elif kind == "PTD":
            z = ρ * (γ * p.lam * z + α * x)
            bar = steps.reward[t] + w @ x_next - w @ x
            w = w + δ * z + (ρ - 1) * u
            u = γ * p.lam * (ρ * u + bar * z)
        else:  # a trace by itself
            w = w + α * e[t][2] * δ * e[t][0]
        all_w.append(w)
    return np.array(all_w)


def of_pairs(X: np.ndarray, A: int) -> np.ndarray:
    """[S, A, d·A]: the features of a state in the place of the action."""
    S, d = X.shape
    φ = np.zeros((S, A, d, A))
    for a in range(A):
        φ[:, a, :, a] = X
    return φ.reshape(S, A, d * A)


def coefficient(trace: ot.Trace, π: Any, μ: Any) -> float:
    """decay · ratio of a per-decision trace."""
    decay, ratio, _ = trace.normal_form(np, π, μ, π / μ)
    return float(decay * ratio)


class Kept(NamedTuple):
    """What a step on action values leaves to the next one; `starts` are the steps of the episode and their features."""

    θ: Number
    w: Number
    z: Number
    u: Number
    Q_old: Number = 0.0
    v_before: Number = 0.0
    starts: tuple[tuple[int, Number], ...] = ()


def of_actions(method: Method, X: np.ndarray, steps: Steps) -> np.ndarray:
    """[T, d, A]: the weights of a method on action values after each step."""
    φs = of_pairs(X, steps.target.shape[1])
    nothing = np.zeros(φs.shape[-1])
    kept, all_θ = Kept(nothing, nothing, nothing, nothing), []
    for t in range(len(steps.state)):
        if steps.begins(t):
            kept = Kept(kept.θ, kept.w, nothing, nothing, v_before=kept.v_before)
        kept = step_of_actions(method, φs, steps, t, kept)
        all_θ.append(kept.θ)
    return np.array(all_θ).reshape(len(all_θ), *X.shape[1:], steps.target.shape[1])


def step_of_actions(method: Method, φs: Number, steps: Steps, t: int, kept: Kept) -> Kept:
    """One step by the method's equations."""
    p: Any = method
    π, μ, γ, α, kind = steps.target, steps.behavior, steps.gamma, p.alpha, type(method).__name__
    θ, w, z, u, Q_old, v_before, starts = kept
    s, a, after = steps.state[t], steps.action[t], steps.next_state[t]
    φ, ρ, r, ends = φs[s, a], steps.ratio(t), steps.reward[t], bool(steps.terminated[t])
    φ_next = 0 * φ if ends else π[after] @ φs[after]
    if kind in ("Sarsa", "TrueOnlineSarsa"):
        φ_next = 0 * φ if ends or t + 1 == len(steps.state) else φs[after, steps.action[t + 1]]
    δ = r + γ * θ @ φ_next - θ @ φ
    if kind in ("TraceLearner", "ExpectedSarsa"):
        z = γ * coefficient(method.trace, π[s, a], μ[s, a]) * z + φ
        θ = θ + α * δ * z
    elif kind == "Sarsa":
        z = γ * p.lam * z + φ
        θ = θ + α * δ * z
    elif kind == "TrueOnlineSarsa":
        Q, Q_next = θ @ φ, θ @ φ_next
        z = γ * p.lam * z + (1 - α * γ * p.lam * z @ φ) * φ
        θ = θ + α * (δ + Q - Q_old) * z - α * (Q - Q_old) * φ
        Q_old = Q_next
    elif kind == "PQ":
        z = γ * p.lam * ρ * z + α * φ
        bar, c = r + θ @ φ_next - θ @ φ, θ @ φ - π[s] @ φs[s] @ θ
        change = δ * z + c * (z - α * φ) + (ρ - 1) * u
        u = γ * p.lam * (ρ * u + bar * z + c * (z - α * φ))
        θ = θ + change
    elif kind == "GQ":
        z = φ + γ * p.lam * ρ * z
        size = p.alpha_w if p.eta is None else p.eta * α
        θ, w = θ + α * (δ * z - γ * (1 - p.lam) * (w @ z) * φ_next), w + size * (δ * z - (w @ φ) * φ)
    elif kind in ("GradientTrace", "GradientABQ"):
        z = φ + γ * coefficient(method.trace, π[s, a], μ[s, a]) * z
        on = sum(
            μ[after, b] * coefficient(method.trace, π[after, b], μ[after, b]) * φs[after, b] for b in range(len(π[0]))
        )
        on = 0 * φ if ends else on
        θ, w = θ + α * (δ * z - γ * (w @ z) * (φ_next - on)), w + p.eta * α * (δ * z - (w @ φ) * φ)
    else:  # an uncorrected return, start by start
        form = p.of.uncorrected_return
        v = θ @ φ_next
        starts = (*starts, (t, φ))
        for k, φ_k in starts:
            if form.n is None or t - k < form.n:
                error = δ if k == t else r + γ * v - v_before
                θ = θ + α * (γ * form.lam) ** (t - k) * error * φ_k
        v_before = v
    return Kept(θ, w, z, u, Q_old, v_before, starts)
