"""Fitted iteration: one sweep, its fixed point, its transpose and its influence, against the definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import helpers
import offtrace as ot
from logs import by_formula, settings
from offtrace import mdps
from offtrace.logs import Features, Regressor, evaluate, simulate
from offtrace.logs import bases as linear_bases
from offtrace.logs import fit as fitted_iteration
from offtrace.logs.container import take
from offtrace.logs.operator import Sampled
from offtrace.logs.policies import as_policy
from offtrace.returns import by_definition

EVALUATES_PI = [t for t in helpers.TRACES if t.target_share == 1]


def operator(trace: ot.Trace, seed: int = 0) -> Sampled:
    logs, pi, mdp = settings.some_logs(seed)
    pi = np.eye(pi.shape[1])[pi.argmax(axis=1)] if trace.needs_greedy else pi
    return Sampled(trace, logs, as_policy(pi, logs), mdp.gamma)


@pytest.mark.parametrize("trace", EVALUATES_PI, ids=helpers.name_of)
def test_transposed_is_the_transpose(trace: ot.Trace) -> None:
    """⟨u, Δ(δ)⟩ = ⟨y(u), δ⟩, Δ by definition."""
    s = operator(trace)
    logs, rng = s.logs, np.random.default_rng(1)
    u, δ, zero = rng.normal(size=(3, len(logs)))
    Δ, _ = by_definition.corrections(
        trace, reward=δ, q=zero * 0, next_value=zero * 0, terminated=logs.terminated, truncated=logs.truncated,
        gamma=s.gamma, log_pi=s.log_pi(slice(None)), log_mu=logs.log_mu, pair=logs.state * logs.actions + logs.action,
    )  # fmt: skip
    whole = slice(0, len(logs))
    assert s.transposed(whole, u) @ δ == pytest.approx(u @ Δ, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    "trace",
    [ot.OneStep(), ot.RBIS(lam=0.9), ot.TruncatedIS(bound=2.0, lam=0.9), ot.TreeBackup(), ot.replacing(lam=0.8)],
    ids=helpers.name_of,
)
def test_fixed_point_and_influence_are_those_of_the_definition(
    trace: ot.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = operator(trace)
    logs, pi = s.logs, s.policy.table
    assert pi is not None
    found = fitted_iteration.fit(s)
    assert isinstance(found, fitted_iteration.Fit)
    of_episodes = by_formula.systems(trace, logs, pi, s.gamma)
    wanted = by_formula.fixed_point(trace, logs, pi, s.gamma, of_episodes=of_episodes)
    assert found.converged
    np.testing.assert_allclose(found.q(np.arange(logs.states)), wanted, atol=1e-6)

    # One sweep from anywhere is the mean of Δ over the steps of each pair.
    θ = np.random.default_rng(2).normal(size=wanted.shape)
    matrix, right = (part.sum(axis=0) for part in of_episodes)
    counts = np.bincount(logs.state * logs.actions + logs.action, minlength=θ.size)
    step = (right - matrix @ θ.ravel()) / np.maximum(counts, 1)
    np.testing.assert_allclose(fitted_iteration.sweep(found.basis, θ.ravel()), step, atol=1e-10)

    # The influence of an episode is the derivative of the answer by its weight, but for pairs with few steps.
    monkeypatch.setattr(linear_bases.Table, "pull", lambda self, c, θ, piece, Δ: self.read(c, piece)[0] * Δ)
    first = logs.state[logs.starts[:-1]]
    gradient = found.basis.spread_values(first, np.full(len(first), 1 / len(first)))
    influence = found.influence(gradient)
    h = 1e-5
    for e in (0, 11):
        moved = []
        for sign in (1, -1):
            weights = np.ones(logs.episodes)
            weights[e] += sign * h
            q = by_formula.fixed_point(trace, logs, pi, s.gamma, weights, of_episodes)
            moved.append((pi * q).sum(axis=1)[first].mean())
        assert influence[e] == pytest.approx((moved[0] - moved[1]) / (2 * h), rel=1e-4, abs=1e-7)
    assert influence.sum() == pytest.approx(0.0, abs=1e-6)


def test_what_was_never_logged_is_worth_what_was() -> None:
    """Few logs and a greedy π: in some states its action was never logged, and all that were count alike."""
    logs, pi, mdp = settings.some_logs(episodes=6)
    pi = np.eye(3)[[0, 1, 2, 0, 1]]
    valued = by_formula.among_logged(logs, pi)
    assert set(np.unique(np.abs(valued - pi).sum(axis=1) > 0)) == {False, True}
    found = fitted_iteration.fit(Sampled(ot.Retrace(lam=0.9), logs, as_policy(pi, logs), mdp.gamma))
    wanted = by_formula.fixed_point(ot.Retrace(lam=0.9), logs, pi, mdp.gamma)
    np.testing.assert_allclose(found.q(np.arange(logs.states)), wanted, atol=1e-6)


def test_plain_iteration_ends_in_the_same_point_and_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    s = operator(ot.RBIS(lam=0.9))
    found = fitted_iteration.fit(s)
    assert isinstance(found, fitted_iteration.Fit)
    monkeypatch.setattr(linear_bases, "PIECE", 16)
    monkeypatch.setattr(linear_bases.Table, "piece", property(lambda self: 16))
    θ = np.zeros(found.basis.size)
    change, sweeps = np.ones(1), 0
    while np.abs(change).max() > 1e-9:
        change, sweeps = fitted_iteration.sweep(found.basis, θ), sweeps + 1
        θ = θ + change
    assert found.sweeps < sweeps  # GMRES makes fewer
    np.testing.assert_allclose(θ, found.theta, atol=1e-7)
    again = fitted_iteration.fit(s)
    assert isinstance(again, fitted_iteration.Fit)
    np.testing.assert_allclose(again.theta, found.theta, atol=1e-12)
    gradient = np.random.default_rng(0).normal(size=len(θ)) * (found.basis.counts > 0)  # pyright: ignore
    in_pieces = again.influence(gradient)
    monkeypatch.undo()
    np.testing.assert_allclose(in_pieces, found.influence(gradient), atol=1e-10)


@pytest.mark.parametrize("greedy", [False, True])
def test_pull_of_a_table_is_that_of_leaving_an_episode_out(greedy: bool) -> None:
    """With γ = 0 leaving an episode out is exact: V without it is V less its influence, a pair that only it has included."""
    logs, pi, _ = settings.some_logs(episodes=14, limit=1)  # one step each, so that no two pairs of a state go at once
    if greedy:  # in some states π's only action was logged once, in others never
        pi = np.eye(3)[[0, 1, 2, 0, 1]]
    s = Sampled(ot.OneStep(), logs, as_policy(pi, logs), 0.0)
    found = fitted_iteration.fit(s)
    assert isinstance(found, fitted_iteration.Fit)
    first = np.unique(logs.state)
    gradient = found.basis.spread_values(first, np.ones(len(first)))
    whole, wanted = found.values(first).sum(), []
    for e in range(logs.episodes):
        others = take(logs, np.delete(np.arange(logs.episodes), e))
        without = fitted_iteration.fit(Sampled(ot.OneStep(), others, s.policy, 0.0))
        assert isinstance(without, fitted_iteration.Fit)
        wanted.append(whole - without.values(first).sum())
    assert (found.basis.counts == 1).any()  # pyright: ignore
    if greedy:
        of_pi = [int(np.sum((logs.state == s) & (logs.action == pi[s].argmax()))) for s in first]
        assert {0, 1} <= set(of_pi), of_pi
    np.testing.assert_allclose(found.influence(gradient), np.array(wanted) - np.mean(wanted), atol=1e-8)


def test_one_hot_features_are_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of states, of pairs, and a regressor that takes means give what the table gives."""
    tree = pytest.importorskip("sklearn.tree")
    mdp, rng = mdps.garnet(5, 2, 2, seed=0, gamma=0.9, terminal=1), np.random.default_rng(0)
    logs, pi = simulate(mdp, mdps.uniform(mdp), seed=rng, episodes=200, limit=4), mdps.random_policy(mdp, rng, 5.0)
    table = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, step=False)
    eye, pairs = np.eye(logs.states), np.eye(logs.states * logs.actions)
    for model in (Features(eye), Features(of_pairs=lambda s, a: pairs[s * logs.actions + a])):
        result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, model=model)
        for wanted in table.estimates:
            row = result[wanted.estimator]
            assert row.estimate == pytest.approx(wanted.estimate, abs=1e-5), row.estimator
            assert row.standard_error == pytest.approx(wanted.standard_error, rel=0.1), row.estimator
    monkeypatch.setattr(fitted_iteration, "FEW", 0)  # by GMRES, too
    by_sweeps = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, model=Features(eye))
    assert [by_sweeps[r.estimator].estimate for r in table.estimates] == pytest.approx(
        [r.estimate for r in table.estimates], abs=1e-5
    )
    model = Regressor(lambda: tree.DecisionTreeRegressor(random_state=0), of_states=eye, tolerance=1e-6)
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=mdp.gamma, model=model, refits=12)
    for name in ("fitted", "direct method"):
        assert result[name].estimate == pytest.approx(table[name].estimate, abs=1e-3)
        assert result[name].standard_error == pytest.approx(table[name].standard_error, rel=0.5)
    for other in table.estimates[2:]:  # cross-fitted: not the same Q̂
        row = result[other.estimator]
        assert row.estimate == pytest.approx(other.estimate, abs=0.5 * row.standard_error), row.estimator


def test_features_that_hold_the_truth_find_it() -> None:
    """Logs of features with μ and π that are functions: a linear Q is found, with and without μ known."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    E, T, γ = 300, 5, 0.9

    def right(x: np.ndarray, slope: float) -> np.ndarray:
        p = 1 / (1 + np.exp(-slope * x[:, 0]))
        return np.column_stack([1 - p, p])

    # x moves by ±0.5, reward x: for a policy that ignores x, Q is linear in x, and its TD errors are all 0.
    x = np.empty((E * T, 1))
    action, following, x0 = np.empty(E * T, int), np.empty((E * T, 1)), rng.normal(size=E)
    now = x0.copy()
    for t in range(T):
        i = np.arange(E) * T + t
        x[i, 0] = now
        action[i] = rng.random(E) < right(now[:, None], 0.7)[:, 1]
        now = now + action[i] - 0.5
        following[i, 0] = now
    last = np.arange(E * T) % T == T - 1
    log_mu = np.log(right(x, 0.7)[np.arange(E * T), action])
    logs = replace(
        settings.some_logs()[0], starts=np.arange(0, E * T + 1, T), state=x, next_state=following, action=action,
        reward=x[:, 0].copy(), terminated=np.zeros(E * T, bool), truncated=last, log_mu=log_mu, states=0, actions=2,
    )  # fmt: skip

    def pi(x: np.ndarray) -> np.ndarray:
        return np.tile([0.4, 0.6], (len(x), 1))

    # V(x) = Σ γ^t (x + 0.1 t)
    truth = float(np.mean(x0)) / (1 - γ) + 0.1 * γ / (1 - γ) ** 2
    known = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=γ, model=Features())
    for name in ("fitted", "direct method", "doubly robust"):
        assert known[name].estimate == pytest.approx(truth, rel=1e-6)
    without, logistic = replace(logs, log_mu=None), linear_model.LogisticRegression()
    estimated = evaluate(without, pi, trace=ot.RBIS(lam=0.9), gamma=γ, behavior=logistic, model=Features())
    assert estimated.mu_estimated
    assert "LogisticRegression, 5 folds" in estimated.behavior
    assert estimated.value == pytest.approx(truth, rel=1e-6)
    by_weights = [r["weighted per-decision IS"].estimate for r in (known, estimated)]
    assert by_weights[0] == pytest.approx(by_weights[1], rel=0.1)
    unknown = evaluate(without, pi, trace=ot.TreeBackup(lam=0.9), gamma=γ, behavior=False, model="linear")
    assert unknown.value == pytest.approx(truth, rel=1e-3)  # its ridge is chosen
    assert [row.estimator for row in unknown.estimates] == ["fitted", "direct method"]


def test_a_rule_of_the_greedy_action_wants_a_greedy_target() -> None:
    logs, pi, mdp = settings.some_logs(0)
    with pytest.raises(ValueError, match="which a soft target policy does not tell: give a greedy policy"):
        Sampled(ot.WatkinsQ(0.9), logs, as_policy(pi, logs), mdp.gamma)
