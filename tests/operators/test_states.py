"""The operator on state values is the mean and the variance of what `state_targets` gives, by enumeration of all trajectories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace.mdps import MDP
from offtrace.operators import StateOperator, certify, clipped_policy, v_trace
from operators.brute import tiny

N = 4
"""How many steps are enumerated: the horizon of the traces."""


def trajectories(mdp: MDP, pi: np.ndarray, mu: np.ndarray, start: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Every trajectory of N steps from a state, with its probability, as a batch; what follows an end is padding."""
    rewards = mdp.transition_rewards
    entry = {(int(z), int(s)): i for i, (z, s) in enumerate(zip(*mdp.P.nonzero(), strict=True))}
    found: list[tuple[float, list[tuple[int, int, int]]]] = []

    def grow(p: float, s: int, path: list[tuple[int, int, int]]) -> None:
        if len(path) == N or mdp.terminal[s]:
            found.append((p, path))
            return
        for a in range(mdp.A):
            for t in range(mdp.S):
                if mu[s, a] * mdp.dense_P[s, a, t] > 0:
                    grow(p * mu[s, a] * mdp.dense_P[s, a, t], t, [*path, (s, a, t)])

    grow(1.0, start, [])
    made = {n: np.zeros((len(found), N)) for n in ("reward", "log_pi", "log_mu")}
    s, t = np.zeros((2, len(found), N), int)
    valid = np.zeros((len(found), N), bool)
    for i, (_, path) in enumerate(found):
        for k, (now, a, after) in enumerate(path):
            s[i, k], t[i, k], valid[i, k] = now, after, True
            z = now * mdp.A + a
            made["reward"][i, k] = mdp.R[now, a] if rewards is None else rewards[entry[z, after]]
            with np.errstate(divide="ignore"):
                made["log_pi"][i, k], made["log_mu"][i, k] = np.log(pi[now, a]), np.log(mu[now, a])
    flags = {"terminated": mdp.terminal[t] & valid, "truncated": np.zeros(valid.shape, bool), "valid": valid}
    probability = np.array([p for p, _ in found])
    return probability, {**made, **flags, "pair": s, "states": (s, t), "gamma": mdp.gamma}


def moments(trace: ot.Trace, mdp: MDP, pi: np.ndarray, mu: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E[Δ] and Var[Δ] by state."""
    mean, variance = np.zeros(mdp.S), np.zeros(mdp.S)
    for start in np.flatnonzero(~mdp.terminal):
        p, arrays = trajectories(mdp, pi, mu, int(start))
        s, t = arrays.pop("states")
        Δ = ot.state_targets(trace, **arrays, value=V[s], next_value=V[t]).correction[:, 0]
        mean[start] = p @ Δ
        variance[start] = p @ (Δ - p @ Δ) ** 2
    return mean, variance


def recent(past: ot.History) -> float:
    """A β of the whole history."""
    return float(min(1.0, past.rho[1:].min() * past.rho[-1]) ** 0.5)


WITH_HORIZON = [
    ot.OneStep(),
    ot.ImportanceSampling(0.9, horizon=N),
    ot.TreeBackup(0.9, horizon=3),
    ot.VTrace(0.9, 1.1, 0.8, horizon=N),
    ot.VTrace(0.9, 0.7, 2.0, horizon=N),
    ot.AlphaRetrace(0.4, 0.9, horizon=N),
    ot.ABQ(0.8, horizon=N),
    ot.RBIS(0.9, horizon=N),
    ot.NonMarkovRetrace(0.8, horizon=3),
    ot.TruncatedIS(1.2, 0.9, horizon=N),
    ot.TruncatedIS((0.5, 2.0, 0.7, 0.0)),
    ot.HistoryBounded(2.0, horizon=N),
    ot.StepTrace(lambda xp, c, now: (xp.minimum(2.0, c * now.rho), now.lam * c / now.lag), lam=0.9, horizon=N),
    ot.StepTrace(ot.replacing(0.9).step, lam=0.9, reads=("rho", "pair"), horizon=N, title="replacing"),
    ot.HistoryTrace(recent, horizon=N),
]


@pytest.mark.parametrize("trace", WITH_HORIZON, ids=lambda trace: f"{trace.title}")
def test_mean_and_variance_are_those_of_all_trajectories(trace: ot.Trace) -> None:
    for seed, terminal in ((2, False), (3, True)):
        mdp, pi, mu = tiny(seed, 0.9, terminal=terminal)
        rewards = np.random.default_rng(seed).normal(size=(mdp.S, mdp.A, mdp.S)) * ~mdp.terminal[:, None, None]
        mdp = MDP(mdp.dense_P, rewards, 0.9, terminal=mdp.terminal)
        op = StateOperator(trace, mdp, target=pi, behavior=mu)
        V = np.random.default_rng(seed).normal(size=mdp.S) * ~mdp.terminal
        mean, variance = moments(op.trace, mdp, pi, mu, V)
        np.testing.assert_allclose(op.apply(V), V + mean, rtol=1e-9, atol=1e-9)
        low, high = op.variance_bounds(V)
        assert (low <= variance + 1e-9).all(), (low, variance)
        assert (variance <= high + 1e-9).all(), (variance, high)
        assert (high - low).max() <= 1e-5


ENDLESS = [
    ot.TreeBackup(0.9), ot.ABQ(0.9), ot.VTrace(0.9, 0.8, 0.6), ot.RBIS(0.9), ot.NonMarkovRetrace(), ot.TruncatedIS(1.0, 0.9),
]  # fmt: skip


@pytest.mark.parametrize("trace", ENDLESS, ids=lambda trace: trace.title)
def test_without_a_horizon_it_is_the_limit(trace: ot.Trace) -> None:
    """γ^60 is 1e-6 of nothing: what a horizon of 60 leaves out. The rate is below the one-step rate where it is proven to be."""
    mdp, pi, mu = tiny(3, 0.6, terminal=True)
    op, cut = (StateOperator(t, mdp, target=pi, behavior=mu) for t in (trace, replace(trace, horizon=60)))
    for name in ("contraction", "spectral_radius"):
        a, b = getattr(op, name), getattr(cut, name)
        assert a.lower - 1e-9 <= b.upper
        assert b.lower <= a.upper + 1e-9
        assert a.width <= 1e-5
    V = np.array([1.0, -2.0, 0.0])
    np.testing.assert_allclose(op.variance(V), cut.variance(V), rtol=1e-4)
    np.testing.assert_allclose(op.mean_coefficients(5), cut.mean_coefficients(5), rtol=1e-5)
    assert op.magnitude.mean.midpoint == pytest.approx(0.6 ** np.arange(40) @ op.mean_coefficients(40), rel=1e-5)
    assert op.contraction.lower <= op.one_step.upper + 1e-12 or not op.setting.recursive_condition


def test_fixed_points() -> None:
    """V^π whatever the trace; π_ρ̄'s by V-trace; the mixture's by α-Retrace. Iterating M gets there."""
    mdp, pi, mu = tiny(0, 0.8)
    policies = {ot.RBIS(0.9): pi, ot.TreeBackup(): pi, ot.VTrace(0.9, 0.7, 0.7): clipped_policy(pi, mu, 0.7)}
    policies[ot.AlphaRetrace(0.3)] = 0.3 * pi + 0.7 * mu
    for trace, policy in policies.items():
        op = StateOperator(trace, mdp, target=pi, behavior=mu)
        wanted = (policy * mdp.q(policy)).sum(axis=1)
        np.testing.assert_allclose(op.fixed_point, wanted, rtol=1e-10)
        np.testing.assert_allclose(op.iterate(np.zeros(2), 150), wanted, rtol=1e-6)
        Z = (op.apply(wanted + 1.0) - wanted)[:, None] / 1.0
        np.testing.assert_allclose(Z, op.Z @ np.ones((2, 1)), atol=1e-6)
    old = v_trace(mdp, pi, mu, 0.9, 0.7, 0.5)
    new = StateOperator(ot.VTrace(0.9, 0.7, 0.5), mdp, target=pi, behavior=mu)
    np.testing.assert_allclose(new.Z, old.Z, atol=1e-12)
    np.testing.assert_allclose(new.fixed_point, old.fixed_point, rtol=1e-10)


def test_certificates() -> None:
    """V-trace with c̄ above ρ̄ breaks the condition: the history is told by states and actions. Truncated IS is searched for it."""
    mdp, pi, mu = tiny(0, 0.9)
    good = certify(ot.VTrace(1.0, 1.0, 1.0), mdp, pi, mu, values="state")
    assert good.verdict == "contracts"
    assert good.recursive.holds
    bad = certify(ot.VTrace(1.0, 0.5, 2.0), mdp, pi, mu, values="state")
    assert bad.recursive.holds is False
    violation = bad.recursive.violation
    assert violation is not None
    assert all(s < 2 and a < 2 for s, a in violation.pairs)
    read_out = certify(ot.TruncatedIS(1.0), mdp, pi, mu, values="state")
    assert read_out.recursive.holds is False
    with pytest.raises(ValueError, match='values must be "action" or "state"'):
        certify(ot.Retrace(), mdp, pi, mu, values="states")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"V must be an array \[S\] = \[2\], got shape \[2, 2\]"):
        StateOperator(ot.Retrace(), mdp, target=pi, behavior=mu).apply(np.zeros((2, 2)))


def test_an_action_that_mu_never_takes() -> None:
    """Its part of π is missing: the fixed point is that of π among the other actions."""
    P, R = np.full((2, 2, 2), 0.5), np.arange(4.0).reshape(2, 2)
    pi, mu = np.full((2, 2), 0.5), np.array([[1.0, 0.0], [0.5, 0.5]])
    with pytest.warns(UserWarning, match="behavior = 0"):
        op = StateOperator(ot.RBIS(), MDP(P, R, 0.9), target=pi, behavior=mu)
    seen = np.array([[1.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(op.fixed_point, (seen * MDP(P, R, 0.9).q(seen)).sum(axis=1))
    np.testing.assert_allclose(op.apply(op.fixed_point), op.fixed_point)
    with pytest.warns(UserWarning, match="behavior = 0"):
        never = StateOperator(ot.RBIS(), MDP(P, R, 0.9), target=np.eye(2)[[1, 1]], behavior=mu)
    with pytest.raises(ValueError, match="never takes an action of target in state 0"):
        _ = never.fixed_point
