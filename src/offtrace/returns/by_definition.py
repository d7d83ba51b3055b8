"""The oracle: every return as its definition is printed, slow and obvious. It shares no code with the kernels.

    Δ_k = Σ_{t≥k} (γ_k ··· γ_{t-1}) β(F_{k:t}) δ_t,     target_k = q_k + Δ_k                         (paper, eq. 2)

Products are `decimal` numbers of 40 digits with exponents that no product reaches the end of, and so are ρ = e^{log π − log μ}
and the sums: only a result is rounded to a float, and it is infinite only if the true number exceeds the floats. TD errors are
floats, since those are what a user could work out. The tests hold every kernel to it; read it when you doubt one. Arrays are
[T]; use one row at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache, wraps
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from offtrace import traces as tr

EXACT = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN)
FAINTEST = -708  # a probability or a ratio below e to this power counts as 0 (see `offtrace.trajectory`)
ONE, NOTHING = Decimal(1), Decimal("nan")
Row = Sequence[float] | np.ndarray
"""One number, or one flag, for each step."""
P = ParamSpec("P")
Result = TypeVar("Result")


def exact(function: Callable[P, Result]) -> Callable[P, Result]:
    """Let a function reckon in EXACT."""

    @wraps(function)
    def within(*arguments: P.args, **named: P.kwargs) -> Result:
        with localcontext(EXACT):
            return function(*arguments, **named)

    return within


_decimal = lru_cache(maxsize=65536)(Decimal)
"""A float, exactly. Histories of one trajectory share their numbers, and to create one again takes ten times as long."""


def _decimals(numbers: Iterable[float]) -> list[Decimal]:
    return list(map(_decimal, map(float, numbers)))


def _products(factors: Iterable[Decimal]) -> list[Decimal]:
    """1 and the products of the first one, two, … factors."""
    return list(accumulate(factors, mul, initial=ONE))


def _clipped(ratios: Iterable[Decimal], caps: Iterable[Decimal]) -> list[Decimal]:
    """b_0 = 1, b_i = min(cap_i, b_{i-1} ratio_i)."""
    b = [ONE]
    for ratio, cap in zip(ratios, caps, strict=False):
        b.append(min(cap, b[-1] * ratio))
    return b


@lru_cache(maxsize=4096)
def _power(x: Decimal, κ: Decimal) -> Decimal:
    """x^κ of 40 digits. It takes as long as a hundred products, and histories of one trajectory share their ratios."""
    return x**κ if x else Decimal(0)


def _betas(
    trace: tr.Trace, pi: list[Decimal], mu: list[Decimal], rho: list[Decimal], pair: list[int], held: Row
) -> list[Decimal]:
    """β of the history's first pair, of its first two, and so on."""
    n = len(rho)
    λ = Decimal(lam) if isinstance(lam := getattr(trace, "lam", None), float) else NOTHING
    later = range(1, n)
    match trace:
        case tr.OneStep():
            return [ONE] + [Decimal(0)] * (n - 1)
        case tr.ImportanceSampling():
            return _products(λ * rho[i] for i in later)
        case tr.QLambda():
            return _products([λ] * (n - 1))
        case tr.TreeBackup():
            return _products(λ * pi[i] for i in later)
        case tr.Retrace():
            return _products(λ * min(ONE, rho[i]) for i in later)
        case tr.VTrace():
            return _products(λ * min(Decimal(trace.c_bar), rho[i]) for i in later)
        case tr.WatkinsQ():
            return _products(λ if float(pi[i]) == 1 else Decimal(0) for i in later)  # π of the greedy policy
        case tr.VariableLambda():
            return _products(Decimal(float(held[i])) * rho[i] for i in later)
        case tr.QSigma():
            σ = Decimal(trace.sigma)
            return _products(λ * (σ * rho[i] + (1 - σ) * pi[i]) for i in later)
        case tr.AlphaRetrace() | tr.CTrace():
            α = Decimal(trace.mix)
            return _products(λ * min(ONE, α * rho[i] + 1 - α) for i in later)
        case tr.ABQ(zeta=float(zeta), psi0=float(psi0), psi_max=float(psi_max)):
            ζ, ψ0, ψ_max = Decimal(zeta), Decimal(psi0), Decimal(psi_max)
            ψ = 2 * ζ * ψ0 + max(Decimal(0), 2 * ζ - 1) * (ψ_max - 2 * ψ0)
            return _products(min(ψ * pi[i], pi[i] / max(mu[i], pi[i])) if pi[i] else Decimal(0) for i in later)
        case tr.NonMarkovRetrace():
            return _clipped((λ * rho[i] for i in later), (λ for _ in later))  # λ min(1, b ρ) = min(λ, b λρ)
        case tr.RBIS():
            return _clipped((rho[i] for i in later), _products([λ] * (n - 1))[1:])
        case tr.TruncatedIS(bound=bound):
            d = _decimals(bound if isinstance(bound, Sequence) else [bound])
            decays, x = _products([λ] * (n - 1)), _products(rho[1:])
            return [ONE] + [decays[i] * min(d[min(i, len(d)) - 1], x[i]) for i in later]
        case tr.HistoryBounded():
            return _clipped((rho[i] for i in later), (Decimal(trace.bound) for _ in later))
        case tr.DiscountedBound():
            γ, C = Decimal(trace.gamma), _decimals(held if trace.shape else [trace.bound] * n)
            return _clipped((rho[i] for i in later), (C[i] / γ**i for i in later))
        case tr.FlattenedIS():
            κ, C = Decimal(trace.kappa), Decimal(trace.bound)
            return _clipped((_power(rho[i], κ) for i in later), (C for _ in later))
        case tr.StepTrace():
            carry, β = trace.carry, [ONE]
            for i in later:
                now = tr.Step(float(pi[i]), float(mu[i]), float(rho[i]), trace.lam, i, pair[0], pair[i])
                carry, b = trace.step(np, carry, now)
                β.append(Decimal(float(b)))
            return β
        case tr.HistoryTrace():
            pis, mus, rhos = (np.array(a, float) for a in (pi, mu, rho))
            histories = (tr.History(pis[: i + 1], mus[: i + 1], rhos[: i + 1], np.array(pair[: i + 1])) for i in later)
            return [ONE] + [Decimal(float(trace.beta(history))) for history in histories]
    if trace.custom:
        raise TypeError(f"by_definition does not know {type(trace).__name__}: print its β here")
    return _of_normal_form(trace, pi, mu, rho)


def _of_normal_form(trace: tr.Trace, pi: list[Decimal], mu: list[Decimal], rho: list[Decimal]) -> list[Decimal]:
    """A rule from outside, whose source is its own `factors`: the normal form as `traces.base` prints it.

    x_0 = 1, x_i = ratio_i x_{i-1}, clipped at cap_i if it is recursive; β_i = decay_1 ··· decay_i min(cap_i, x_i).
    """
    x, decayed, β = ONE, ONE, [ONE]
    for i in range(1, len(rho)):
        seen = (float(part[i]) for part in (pi, mu, rho))
        decay, ratio, cap = _decimals(trace.factors(np, *seen, *trace.parameters))
        bounds = _decimals(trace.lag_bound or [math.inf])
        x, decayed = ratio * x if ratio and x else Decimal(0), decay * decayed
        clipped = min(cap, x)
        x = clipped if trace.recursive else x
        β.append(decayed * min(clipped, bounds[min(i, len(bounds)) - 1]))
    return β


def _within_horizon(trace: tr.Trace, β: list[Decimal]) -> list[Decimal]:
    """β is 0 from the horizon on."""
    n = len(β) if trace.horizon is None else min(len(β), trace.horizon)
    return β[:n] + [Decimal(0)] * (len(β) - n)


@exact
def beta(
    trace: tr.Trace,
    pi: Sequence[float],
    mu: Sequence[float],
    rho: Sequence[float],
    pair: Sequence[int],
    held: Row = (),
) -> float:
    """β of a history of t + 1 state-action pairs, the first being the start; `held` is what the rule holds for each step."""
    β = _betas(trace, _decimals(pi), _decimals(mu), _decimals(rho), list(pair), held)
    return float(_within_horizon(trace, β)[-1])


def _held_by(trace: tr.Trace, T: int) -> Row:
    """What the rule holds for each step: the λ's of VariableLambda, the bounds of DiscountedBound."""
    match trace:
        case tr.VariableLambda():
            return trace.lam
        case tr.DiscountedBound() if trace.shape:
            return trace.bound
        case _:
            return [math.nan] * T


@lru_cache(maxsize=4096)
def _e_to(power: Decimal) -> Decimal:
    """e^power, or 0 where that counts as 0. It takes as long as a hundred products; rules are tried on the same trajectory."""
    return Decimal(0) if power < FAINTEST else power.exp()


def _matrix(
    trace: tr.Trace, *, terminated: Row, truncated: Row, log_pi: Row | None = None, log_mu: Row | None = None,
    valid: Row | None = None, pair: Row | None = None, greedy: Row | None = None,
) -> list[list[Decimal]]:  # fmt: skip
    """For each start k, β_{k:k}, β_{k:k+1}, … to the end of its episode; nothing where k is padding."""
    T = len(terminated)
    valid = [True] * T if valid is None else valid
    pair = [-1] * T if pair is None else [int(p) for p in pair]
    logs = [[NOTHING] * T if a is None else _decimals(a) for a in (log_pi, log_mu)]
    pi, mu = ([_e_to(x) if ok and x == x else NOTHING for x, ok in zip(log, valid, strict=True)] for log in logs)
    both = zip(*logs, valid, strict=True)
    rho = [_e_to(x - y) if ok and x == x and y == y else NOTHING for x, y, ok in both]
    if trace.needs_greedy and greedy is not None:
        pi = [Decimal(bool(g)) for g in greedy]
    held = _held_by(trace, T)

    βs = []
    for k in range(T):
        end = k
        while end < T and valid[end]:
            end += 1
            if terminated[end - 1] or truncated[end - 1]:
                break
        here = slice(k, end)
        β = _betas(trace, pi[here], mu[here], rho[here], pair[here], held[here]) if end > k else []
        βs.append(_within_horizon(trace, β))
    return βs


@exact
def coefficients(trace: tr.Trace, **row: Any) -> np.ndarray:
    """β_{k:t} as a [T, T] upper-triangular matrix. The arrays of the row are those of `_matrix`."""
    βs = _matrix(trace, **row)
    B = np.zeros((len(βs), len(βs)))
    for k, β in enumerate(βs):
        B[k, k : k + len(β)] = [float(b) for b in β]
    return B


def td_errors(*, reward: Row, q: Row, next_value: Row, terminated: Row, gamma: float | Row) -> list[float]:
    """δ_t = r_t + γ_t (1 − terminated_t) next_value_t − q_t."""
    T = len(reward)
    γ = [float(g) for g in np.broadcast_to(gamma, T)]
    return [float(reward[t]) + (0.0 if terminated[t] else γ[t] * float(next_value[t])) - float(q[t]) for t in range(T)]


@exact
def corrections(
    trace: tr.Trace, *, reward: Row, q: Row, next_value: Row, terminated: Row, gamma: float | Row, **row: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Δ, and Σ_t |γ ··· γ β δ|, the scale against which an error is to be judged."""
    T = len(reward)
    δ = _decimals(td_errors(reward=reward, q=q, next_value=next_value, terminated=terminated, gamma=gamma))
    γ = _decimals(np.broadcast_to(gamma, T))
    Δ, scale = np.zeros(T), np.zeros(T)
    for k, β in enumerate(_matrix(trace, terminated=terminated, **row)):
        D = _products(γ[k : k + len(β) - 1])
        terms = [D[i] * b * δ[k + i] for i, b in enumerate(β) if b]
        Δ[k], scale[k] = float(sum(terms)), float(sum(map(abs, terms)))
    return Δ, scale


@exact
def weights(
    trace: tr.Trace,
    *,
    level: str,
    log_pi: Row | None = None,
    log_mu: Row | None = None,
    mask: Row | None = None,
    segment: Row | None = None,
    greedy: Row | None = None,
) -> np.ndarray:
    """The weight of each decision of one row, 0 elsewhere. The decisions of each segment are a row of their own.

    A trace starts one step before the row, so that β of the first decision holds that decision's own ratio.
    """
    T = next(len(a) for a in (log_pi, log_mu, mask, greedy) if a is not None)
    decisions = [t for t in range(T) if mask is None or mask[t]]
    logs = [[NOTHING] * T if a is None else _decimals(a) for a in (log_pi, log_mu)]
    pi, mu = ({t: _e_to(log[t]) if log[t] == log[t] else NOTHING for t in decisions} for log in logs)
    rho = {t: _e_to(x - y) if (x := logs[0][t]) == x and (y := logs[1][t]) == y else NOTHING for t in decisions}
    if trace.needs_greedy and greedy is not None:
        pi = {t: Decimal(bool(greedy[t])) for t in decisions}
    held = _held_by(trace, T)

    def betas(of: list[int]) -> list[Decimal]:
        """β after each of these actions, of a trace that starts before the first of them."""
        pairs, λ = [-1] * (len(of) + 1), [math.nan, *(held[t] for t in of)]
        π, μ, ρ = ([NOTHING, *(p[t] for t in of)] for p in (pi, mu, rho))
        return _within_horizon(trace, _betas(trace, π, μ, ρ, pairs, λ))

    out = np.zeros(T)
    for name in sorted({0 if segment is None else segment[t] for t in decisions}):
        row = [t for t in decisions if segment is None or segment[t] == name]
        whole = betas(row)[-1]
        match level:
            case "token":
                weight = [betas([t])[-1] for t in row]
            case "prefix":
                weight = betas(row)[1:]
            case "suffix":
                weight = [betas(row[i + 1 :])[-1] for i in range(len(row))]
            case "sequence":
                weight = [whole] * len(row)
            case _:
                weight = [whole ** (ONE / len(row)) if whole else whole] * len(row)
        out[row] = [float(w) for w in weight]
    return out


def peng(
    lam: float, *, reward: Row, next_value: Row, terminated: Row, truncated: Row, gamma: float | Row,
    valid: Row | None = None,
) -> np.ndarray:  # fmt: skip
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
    n: int, *, reward: Row, next_value: Row, terminated: Row, truncated: Row, gamma: float | Row,
    valid: Row | None = None,
) -> np.ndarray:  # fmt: skip
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


class OnStates(NamedTuple):
    """What `state_targets` returns."""

    target: np.ndarray
    advantage: np.ndarray
    correction: np.ndarray
    scale: np.ndarray
    """Σ_t |γ ··· γ b w δ|, the scale against which an error is to be judged."""


@exact
def state_targets(
    trace: tr.Trace,
    *,
    reward: Row,
    value: Row,
    next_value: Row,
    terminated: Row,
    truncated: Row,
    log_pi: Row,
    log_mu: Row,
    gamma: float | Row,
    valid: Row | None = None,
    pair: Row | None = None,
) -> OnStates:
    """v_k = V_k + Δ_k,  Δ_k = Σ_t (γ_k···γ_{t-1}) b_{k:t-1} w_t δ_t,  w = min(ρ̄, ρ) of the policy that is evaluated.

    b_{k:t-1} is β of a history that begins before a_k, with an action that nobody knows: it has met a_k … a_{t-1}, and stands in
    s_t. advantage_k = w_k (r_k + γ_k [(1−λ) V(s_{k+1}) + λ v_{k+1}] − V_k), v_{k+1} being V(s_{k+1}) at a cut, 0 at an end.
    """
    T = len(reward)
    valid = [True] * T if valid is None else valid
    δ = _decimals(td_errors(reward=reward, q=value, next_value=next_value, terminated=terminated, gamma=gamma))
    r, V, after, γ = (_decimals(a) for a in (reward, value, next_value, np.broadcast_to(gamma, T)))
    log_π, log_μ = _decimals(log_pi), _decimals(log_mu)
    π, μ = ([_e_to(x) if ok else NOTHING for x, ok in zip(log, valid, strict=True)] for log in (log_π, log_μ))
    ρ = [_e_to(x - y) if ok else NOTHING for x, y, ok in zip(log_π, log_μ, valid, strict=True)]
    by_step = isinstance(trace, tr.VariableLambda)
    λ = _decimals(trace.lam) if by_step else [Decimal(float(getattr(trace, "lam", 1.0)))] * T
    ρ_max, α = Decimal(float(getattr(trace, "rho_bar", math.inf))), getattr(trace, "mix", None)
    evaluated = ρ if α is None else [Decimal(α) * x + 1 - Decimal(α) for x in ρ]  # the ratio of the mixture
    w = [min(ρ_max, x) if x == x else NOTHING for x in evaluated]
    v, advantage, Δ, scale = ([Decimal(0)] * T for _ in range(4))
    for k in reversed(range(T)):
        if not valid[k]:
            continue
        end = k + 1
        while end < T and valid[end] and not (terminated[end - 1] or truncated[end - 1]):
            end += 1
        met_π, met_μ, met_ρ = ([NOTHING, *p[k : end - 1]] for p in (π, μ, ρ))
        ids = [-1] * (end - k) if pair is None else [int(p) for p in pair[k:end]]
        b = _within_horizon(trace, _betas(trace, met_π, met_μ, met_ρ, ids, [math.nan, *(map(float, λ[k : end - 1]))]))
        D = _products(γ[k : end - 1])
        terms = [D[i] * b[i] * w[k + i] * δ[k + i] for i in range(end - k) if b[i] != 0 and w[k + i] != 0]
        Δ[k], scale[k] = sum(terms, Decimal(0)), sum(map(abs, terms), Decimal(0))
        v[k] = V[k] + Δ[k]
        cut = truncated[k] or k + 1 == T or not valid[k + 1]
        ahead = Decimal(0) if terminated[k] else after[k] if cut else (1 - λ[k]) * after[k] + λ[k] * v[k + 1]
        advantage[k] = w[k] * (r[k] + γ[k] * ahead - V[k])
    return OnStates(*(np.array(a, float) for a in (v, advantage, Δ, scale)))
