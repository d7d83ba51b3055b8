"""The oracle: every return as its definition is printed, slow and obvious. It shares no code with the kernels.

    Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) β(F_{k:t}) δ_t,     target_k = q_k + Δ_k                         (paper, eq. 2)

β is recomputed from the whole history for every pair (k, t), so a trajectory costs O(T³). The tests hold every kernel to it;
read it when you doubt one. Arrays are [T]; use one row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from offtrace import traces as tr


def beta(
    trace: tr.Trace,
    pi: Sequence[float],
    mu: Sequence[float],
    rho: Sequence[float],
    pair: Sequence[int],
    lam_t: Any = None,
) -> float:
    """β of a history of t + 1 state-action pairs, the first being the start; `lam_t` are the λ's of VariableLambda."""
    t = len(rho) - 1
    if t == 0:
        return 1.0
    if trace.horizon is not None and t >= trace.horizon:
        return 0.0
    past = range(1, t + 1)
    lam: Any = getattr(trace, "lam", None)
    match trace:
        case tr.OneStep():
            return 0.0
        case tr.ImportanceSampling():
            return math.prod(lam * rho[i] for i in past)
        case tr.QLambda():
            return lam**t
        case tr.TreeBackup():
            return math.prod(lam * pi[i] for i in past)
        case tr.Retrace():
            return math.prod(lam * min(1.0, rho[i]) for i in past)
        case tr.WatkinsQ():
            return lam**t if all(pi[i] == 1 for i in past) else 0.0  # π of the greedy policy
        case tr.VariableLambda():
            return math.prod(lam_t[i] * rho[i] for i in past)
        case tr.QSigma():
            return math.prod(lam * (trace.sigma * rho[i] + (1 - trace.sigma) * pi[i]) for i in past)
        case tr.AlphaRetrace() | tr.CTrace():
            return math.prod(lam * min(1.0, trace.mix * rho[i] + 1 - trace.mix) for i in past)
        case tr.ABQ(zeta=zeta, psi0=float(psi0), psi_max=float(psi_max)):
            psi = 2 * zeta * psi0 + max(0, 2 * zeta - 1) * (psi_max - 2 * psi0)
            return math.prod(min(psi, 1 / max(mu[i], pi[i])) * pi[i] for i in past)
        case tr.NonMarkovRetrace():
            b = 1.0
            for i in past:
                b = lam * min(1.0, b * rho[i])
            return b
        case tr.RBIS():
            b = 1.0
            for i in past:
                b = min(lam**i, b * rho[i])
            return b
        case tr.TruncatedIS(bound=bound):
            d = bound[min(t, len(bound)) - 1] if isinstance(bound, tuple) else bound
            return lam**t * min(float(d), math.prod(rho[1:]))  # pyright: ignore[reportArgumentType]
        case tr.HistoryBounded():
            b = 1.0
            for i in past:
                b = min(trace.bound, b * rho[i])
            return b
        case tr.StepTrace():
            carry, b = trace.carry, 1.0
            for i in past:
                now = tr.Step(pi[i], mu[i], rho[i], lam, i, pair[0], pair[i])
                carry, b = trace.step(np, carry, now)
            return float(b)
        case tr.HistoryTrace():
            return trace.beta(tr.History(np.array(pi), np.array(mu), np.array(rho), np.array(pair)))
    raise TypeError(f"by_definition does not know {type(trace).__name__}: print its β here")


def coefficients(
    trace: tr.Trace,
    *,
    terminated: Any,
    truncated: Any,
    log_pi: Any = None,
    log_mu: Any = None,
    valid: Any = None,
    pair: Any = None,
    greedy: Any = None,
) -> np.ndarray:
    """β_{k:t} as a [T, T] upper-triangular matrix."""
    T = len(terminated)
    valid = [True] * T if valid is None else valid
    pair = [-1] * T if pair is None else [int(p) for p in pair]
    nothing = [math.nan] * T
    pi = nothing if log_pi is None else [math.exp(x) if ok else math.nan for x, ok in zip(log_pi, valid, strict=True)]
    mu = nothing if log_mu is None else [math.exp(x) if ok else math.nan for x, ok in zip(log_mu, valid, strict=True)]
    rho = nothing
    if log_pi is not None and log_mu is not None:
        both = zip(log_pi, log_mu, valid, strict=True)
        rho = [math.exp(float(x) - float(y)) if ok else math.nan for x, y, ok in both]
    if trace.needs_greedy and greedy is not None:
        pi = [1.0 if g else 0.0 for g in greedy]
    lam_t = trace.lam if isinstance(trace, tr.VariableLambda) else nothing

    B = np.zeros((T, T))
    for k in range(T):
        for t in range(k, T):
            if not valid[t]:
                break
            past = slice(k, t + 1)
            B[k, t] = beta(trace, pi[past], mu[past], rho[past], pair[past], lam_t[past])
            if terminated[t] or truncated[t]:
                break
    return B


def td_errors(*, reward: Any, q: Any, next_value: Any, terminated: Any, gamma: Any) -> list[float]:
    """δ_t = r_t + γ_t (1 − terminated_t) next_value_t − q_t."""
    T = len(reward)
    γ = [float(g) for g in np.broadcast_to(gamma, T)]
    return [float(reward[t]) + (0.0 if terminated[t] else γ[t] * float(next_value[t])) - float(q[t]) for t in range(T)]


def corrections(
    trace: Any,
    *,
    reward: Any,
    q: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    gamma: Any,
    log_pi: Any = None,
    log_mu: Any = None,
    valid: Any = None,
    pair: Any = None,
    greedy: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Δ, and beside it Σ_t |γ ··· γ β δ|, the scale against which an error is to be judged."""
    T = len(reward)
    δ = td_errors(reward=reward, q=q, next_value=next_value, terminated=terminated, gamma=gamma)
    γ = [float(g) for g in np.broadcast_to(gamma, T)]
    logs = {"log_pi": log_pi, "log_mu": log_mu}
    B = coefficients(trace, terminated=terminated, truncated=truncated, valid=valid, pair=pair, greedy=greedy, **logs)
    Δ, scale = np.zeros(T), np.zeros(T)
    for k in range(T):
        terms = [math.prod(γ[k:t]) * B[k, t] * δ[t] for t in range(k, T) if B[k, t] != 0]
        Δ[k], scale[k] = math.fsum(terms), math.fsum(map(abs, terms))
    return Δ, scale


def peng(
    lam: float, *, reward: Any, next_value: Any, terminated: Any, truncated: Any, gamma: Any, valid: Any = None
) -> np.ndarray:
    """G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}], with G_{k+1} = v_{k+1} where the episode is cut, and 0 where it terminated."""
    T = len(reward)
    γ, valid = np.broadcast_to(gamma, T), [True] * T if valid is None else valid
    G = np.zeros(T)
    for k in reversed(range(T)):
        if not valid[k]:
            continue
        if terminated[k]:
            G[k] = reward[k]
        elif truncated[k] or k + 1 == T or not valid[k + 1]:
            G[k] = reward[k] + γ[k] * next_value[k]
        else:
            G[k] = reward[k] + γ[k] * ((1 - lam) * next_value[k] + lam * G[k + 1])
    return G


def n_step(
    n: int, *, reward: Any, next_value: Any, terminated: Any, truncated: Any, gamma: Any, valid: Any = None
) -> np.ndarray:
    """G_k = Σ_{i<n} γ^i r_{k+i} + γ^n v_{k+n}, stopping earlier where the episode does."""
    T = len(reward)
    γ, valid = np.broadcast_to(gamma, T), [True] * T if valid is None else valid
    G = np.zeros(T)
    for k in range(T):
        if not valid[k]:
            continue
        weight = 1.0
        for t in range(k, k + n):
            G[k] += weight * reward[t]
            weight *= γ[t]
            if terminated[t]:
                break
            if truncated[t] or t + 1 == T or not valid[t + 1] or t + 1 == k + n:
                G[k] += weight * next_value[t]
                break
    return G


def state_targets(
    *,
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    log_pi: Any,
    log_mu: Any,
    gamma: Any,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    valid: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """V-trace (Espeholt et al. 2018, eq. 1): v_k = V_k + Σ_t (γ_k···γ_{t-1})(c_k···c_{t-1}) ρ̄_t δ_t, and the advantage.

    advantage_k = ρ̄_k (r_k + γ_k [(1−λ) V(s_{k+1}) + λ v_{k+1}] − V_k), where v_{k+1} is V(s_{k+1}) at a cut, 0 at an end.
    """
    T = len(reward)
    γ, valid = np.broadcast_to(gamma, T), [True] * T if valid is None else valid
    δ = td_errors(reward=reward, q=value, next_value=next_value, terminated=terminated, gamma=gamma)
    ρ = [math.exp(float(x) - float(y)) if ok else 0.0 for x, y, ok in zip(log_pi, log_mu, valid, strict=True)]
    target, advantage = np.zeros(T), np.zeros(T)
    for k in reversed(range(T)):
        if not valid[k]:
            continue
        target[k] = value[k]
        for t in range(k, T):
            if not valid[t]:
                break
            weight = math.prod(γ[k:t]) * math.prod(lam * min(c_bar, ρ[i]) for i in range(k, t))
            target[k] += weight * min(rho_bar, ρ[t]) * δ[t]
            if terminated[t] or truncated[t]:
                break
        cut = truncated[k] or k + 1 == T or not valid[k + 1]
        ahead = 0.0 if terminated[k] else next_value[k] if cut else (1 - lam) * next_value[k] + lam * target[k + 1]
        advantage[k] = min(rho_bar, ρ[k]) * (reward[k] + γ[k] * ahead - value[k])
    return target, advantage
