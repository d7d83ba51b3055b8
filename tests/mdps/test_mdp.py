"""MDPs hold their own equations: values solve Bellman's, rollouts have the frequencies of P and μ, bad tables are refused."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings

import offtrace as ot
from offtrace import mdps
from offtrace.mdps import MDP, exact_values


@st.composite
def tables(draw: st.DrawFn, most: int = 6) -> dict[str, Any]:
    """P [S, A, S], R [S, A, S], gamma: sparse and dense rows, deterministic ones, with and without terminal states."""
    S, A = draw(st.integers(1, most)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    P = rng.dirichlet(np.full(S, draw(st.sampled_from([0.05, 0.3, 1.0]))), size=(S, A))
    R = rng.normal(size=(S, A, S)) * draw(st.sampled_from([0.0, 1.0, 1e3]))
    terminal = np.arange(S) >= S - draw(st.integers(0, S - 1))
    P[terminal], R[terminal] = 0.0, 0.0
    return {"P": P, "R": R, "gamma": draw(st.sampled_from([0.0, 0.5, 0.9, 0.999])), "terminal": terminal}


@st.composite
def settings_of_an_mdp(draw: st.DrawFn) -> tuple[MDP, np.ndarray, np.random.Generator]:
    mdp = MDP(**draw(tables()))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return mdp, mdps.random_policy(mdp, rng, draw(st.sampled_from([0.05, 1.0]))), rng


def chain_with_end(gamma: float) -> MDP:
    """0 → 1 → end with reward 1 for `go`; `stay` earns 0."""
    P = np.zeros((3, 2, 3))
    P[0, 0, 1] = P[1, 0, 2] = P[0, 1, 0] = P[1, 1, 1] = 1
    return MDP(P, [[1, 0], [1, 0], [0, 0]], gamma)


# Values


@settings(deadline=None)
@given(settings_of_an_mdp())
def test_q_solves_the_bellman_equation_and_P_pi_is_its_definition(case: Any) -> None:
    mdp, pi, _ = case
    q, P, R = mdp.q(pi), mdp.dense_P, mdp.R
    v = (pi * q).sum(axis=1)
    scale = max(1.0, np.abs(q).max())
    np.testing.assert_allclose(q, R + mdp.gamma * P @ v, atol=1e-10 * scale)
    assert (q[mdp.terminal] == 0).all()
    by_definition = np.zeros((mdp.S, mdp.A, mdp.S, mdp.A))
    for s, a, t, b in itertools.product(range(mdp.S), range(mdp.A), range(mdp.S), range(mdp.A)):
        by_definition[s, a, t, b] = 0.0 if mdp.terminal[t] else P[s, a, t] * pi[t, b]
    by_definition = by_definition.reshape(mdp.pairs, mdp.pairs)
    np.testing.assert_allclose(mdp.P_pi(pi).toarray(), by_definition, atol=1e-15)
    np.testing.assert_allclose(
        (np.eye(mdp.pairs) - mdp.gamma * by_definition) @ q.ravel(), R.ravel(), atol=1e-10 * scale
    )


@settings(deadline=None)
@given(settings_of_an_mdp())
def test_optimal_q_dominates_every_policy_and_is_its_own_greedy_value(case: Any) -> None:
    mdp, pi, _ = case
    best = mdp.optimal_q()
    slack = 1e-8 * max(1.0, np.abs(best).max())
    every = itertools.product(range(mdp.A), repeat=mdp.S) if mdp.A**mdp.S <= 64 else ()
    for other in [pi, mdps.uniform(mdp), *(np.eye(mdp.A)[list(actions)] for actions in every)]:
        assert (best >= mdp.q(other) - slack).all()
    np.testing.assert_allclose(best, mdp.R + mdp.gamma * mdp.dense_P @ best.max(axis=1), atol=slack)
    np.testing.assert_allclose(mdp.q(mdps.greedy(best, 1e-9)), best, atol=100 * slack)


@pytest.mark.parametrize("build", [lambda: mdps.garnet(700, 2, 3, seed=1), lambda: mdps.random_walk(700, gamma=0.999)])
def test_large_mdps_are_solved_as_exactly_as_small_ones(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garnet goes by GMRES and the walk by sparse LU; both must agree with dense LU."""
    mdp = build()
    pi = mdps.random_policy(mdp, np.random.default_rng(0))
    q, best = mdp.q(pi), mdp.optimal_q()
    monkeypatch.setattr(exact_values, "DENSE", 10_000)
    np.testing.assert_allclose(q, mdp.q(pi), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(best, mdp.optimal_q(), rtol=1e-10, atol=1e-10)


def test_without_a_discount_values_need_an_end() -> None:
    mdp = chain_with_end(gamma=1.0)
    go, stay = np.array([[1, 0], [1, 0], [1, 0]]), np.array([[1, 0], [0, 1], [1, 0]])
    np.testing.assert_allclose(mdp.q(go), [[2, 2], [1, 1], [0, 0]])
    np.testing.assert_allclose(mdp.optimal_q(), [[2, 2], [1, 1], [0, 0]])
    with pytest.raises(ValueError, match="never ends from state 0 under this policy"):
        mdp.q(stay)
    endless = MDP([[[1.0]]], [[1.0]], 1.0)
    with pytest.raises(ValueError, match="no policy ever ends the episode from state 0"):
        endless.optimal_q()
    earns = MDP(np.asarray(mdp.dense_P), [[1, 0], [1, 0.5], [0, 0]], 1.0)
    with pytest.raises(ValueError, match="some cycle earns positive reward for ever"):
        earns.optimal_q()


# Terminal states


def test_absorbing_and_empty_states_are_terminal_and_normalised() -> None:
    P = np.zeros((3, 1, 3))
    P[0, 0] = [0, 0.5, 0.5]
    P[1, 0, 1] = 1  # absorbing, reward 0; state 2 is empty
    mdp = MDP(P, np.array([[1.0], [0.0], [0.0]]), 0.9)
    assert mdp.terminal.tolist() == [False, True, True]
    assert mdp.P.nnz == 2
    assert mdp.start.tolist() == [1, 0, 0]
    assert mdp == MDP(P, mdp.R, 0.9, terminal=mdp.terminal)
    going_on = MDP(P, mdp.R, 0.9, terminal=np.array([False, False, True]))
    assert going_on.P.nnz == 3
    assert going_on != mdp
    paid = MDP(P, np.array([[0.0], [1.0], [0.0]]), 0.9)  # staying for ever with a reward ends nothing
    assert paid.terminal.tolist() == [False, False, True]


# Forms


@settings(deadline=None)
@given(tables())
def test_every_form_of_the_tables_is_the_same_mdp(given_tables: dict[str, Any]) -> None:
    P, R, gamma, terminal = (given_tables[name] for name in ("P", "R", "gamma", "terminal"))
    S, A, _ = P.shape
    mdp = MDP(P, R, gamma, terminal=terminal)
    rows = [
        sp.csr_array(P.reshape(S * A, S)),
        sp.coo_array(P.reshape(S * A, S)),
        [sp.csc_array(P[:, a]) for a in range(A)],
    ]
    rewards = [R, sp.csr_array(R.reshape(S * A, S)), [sp.csr_array(R[:, a]) for a in range(A)]]
    for P_form, R_form in itertools.product([P, P.tolist(), *rows], rewards):
        assert MDP(P_form, R_form, gamma, terminal=terminal) == mdp
    np.testing.assert_allclose(mdp.R, (P * R).sum(axis=2), atol=1e-9)
    np.testing.assert_allclose(mdp.dense_P, P)
    expected = MDP(P, mdp.R, gamma, terminal=terminal)
    assert expected.transition_rewards is None
    assert expected != mdp
    np.testing.assert_array_equal(expected.optimal_q(), mdp.optimal_q())


@settings(deadline=None)
@given(tables())
def test_an_mdp_survives_being_saved_and_pickled(tmp_path_factory: Any, given_tables: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("mdp") / "saved"  # no suffix: the path is taken as it is
    S, A, _ = given_tables["P"].shape
    mdp = MDP(**given_tables, state_names=tuple((0, s) for s in range(S)), action_names=tuple("abc"[:A]))
    mdp.save(path)
    loaded = MDP.load(path)
    assert loaded == mdp
    assert hash(loaded) == hash(mdp)
    assert (loaded.state_names, loaded.action_names) == (mdp.state_names, mdp.action_names)
    assert pickle.loads(pickle.dumps(mdp)) == mdp


def test_names_come_back_as_they_were(tmp_path: Any) -> None:
    names = ((1, ("deep", 2.5)), np.int64(7))
    mdp = MDP(**GOOD, state_names=names, action_names=("only",))
    assert mdp.state_names == ((1, ("deep", 2.5)), 7)
    mdp.save(tmp_path / "named")
    loaded = MDP.load(tmp_path / "named")
    assert (loaded.state_names, loaded.action_names) == (mdp.state_names, ("only",))


def test_an_mdp_is_frozen_and_keeps_its_own_arrays() -> None:
    P, R = np.ones((1, 1, 1)), np.ones((1, 1))
    mdp = MDP(P, R, 0.5)
    R[:] = 7
    assert mdp.R[0, 0] == 1
    for one in (mdp, pickle.loads(pickle.dumps(mdp))):
        for array in (one.R, one.P.data, one.start, one.terminal):
            assert not array.flags.writeable
    assert not mdp.dense_P.flags.writeable
    with pytest.raises(AttributeError):
        mdp.gamma = 0.9  # pyright: ignore[reportAttributeAccessIssue]
    assert mdp != "mdp"
    assert repr(mdp) == "MDP(S=1, A=1, gamma=0.5, terminal=0, nonzeros=1)"


# Rollouts


@settings(max_examples=25, deadline=None)
@given(settings_of_an_mdp())
def test_rollout_frequencies_are_those_of_P_and_mu(case: Any) -> None:
    """Counts of (s, a, s') given s within four standard errors, plus the resolution of one count; rewards exact."""
    mdp, mu, rng = case
    pi = mdps.uniform(mdp)
    seen = mdp.rollout(mu, seed=rng, steps=20_000, target=pi, limit=25)
    s, a, after = seen["state"], seen["action"], seen["next_state"]
    assert {array.shape for array in seen.values()} == {(20_000,)}
    counts = np.zeros((mdp.S, mdp.A, mdp.S))
    np.add.at(counts, (s, a, after), 1)
    visits = counts.sum(axis=(1, 2))
    p = mu[:, :, None] * mdp.dense_P
    error = np.abs(counts - visits[:, None, None] * p)
    # Many cells are looked at over many examples: six standard errors in each is four over all of them.
    assert (error <= 6 * np.sqrt(visits[:, None, None] * p * (1 - p)) + 6)[~mdp.terminal].all()
    assert (counts[p == 0] == 0).all()
    assert visits[mdp.terminal].sum() == 0
    assert mdp.transition_rewards is not None
    table = sp.csr_array((mdp.transition_rewards, mdp.P.indices, mdp.P.indptr), shape=mdp.P.shape).toarray()
    np.testing.assert_array_equal(seen["reward"], table[s * mdp.A + a, after])
    np.testing.assert_array_equal(seen["terminated"], mdp.terminal[after])
    np.testing.assert_allclose(seen["log_mu"], np.log(mu[s, a]))
    np.testing.assert_allclose(seen["log_pi"], np.log(pi[s, a]))
    ends = seen["terminated"] | seen["truncated"]
    np.testing.assert_array_equal(s[1:][~ends[:-1]], after[:-1][~ends[:-1]])
    assert (mdp.start[s[1:][ends[:-1]]] > 0).all()
    lengths = np.diff(np.flatnonzero(ends), prepend=-1)
    assert (lengths[seen["truncated"][ends]] == 25).all()
    assert (lengths <= 25).all()


def test_mean_returns_of_episodes_are_the_values() -> None:
    """Σ γ^t r_t of whole episodes has the mean start·v, within four standard errors."""
    mdp = mdps.garnet(8, 2, 3, seed=3, gamma=0.9, terminal=1)
    mu = mdps.random_policy(mdp, np.random.default_rng(0))
    seen = mdp.rollout(mu, seed=np.random.default_rng(1), episodes=20_000)
    episode = np.cumsum(seen["terminated"]) - seen["terminated"]
    assert seen["terminated"][-1]
    assert not seen["truncated"].any()
    first = np.flatnonzero(np.diff(episode, prepend=-1))
    assert len(first) == 20_000
    returns = np.bincount(episode, 0.9 ** (np.arange(len(episode)) - first[episode]) * seen["reward"])
    truth = mdp.start @ (mu * mdp.q(mu)).sum(axis=1)
    assert abs(returns.mean() - truth) <= 4 * returns.std() / np.sqrt(len(returns))


def test_rollout_fits_the_trajectory_contract_and_depends_only_on_the_generator() -> None:
    mdp = mdps.bifurcation(1)
    mu, pi = mdps.uniform(mdp), mdps.greedy(mdp.optimal_q())
    first, second = (mdp.rollout(mu, seed=np.random.default_rng(5), steps=500, target=pi, limit=30) for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    q = mdp.q(pi)
    names = ("reward", "terminated", "truncated", "log_mu", "log_pi")
    targets = ot.targets(
        ot.Retrace(lam=0.9),
        q=q[first["state"], first["action"]],
        next_value=(pi * q).sum(axis=1)[first["next_state"]],
        gamma=mdp.gamma,
        **{name: first[name] for name in names},
    )
    np.testing.assert_allclose(targets, q[first["state"], first["action"]])  # deterministic moves: every δ is 0


def test_rollout_refuses_what_has_no_meaning() -> None:
    mdp = chain_with_end(0.9)
    mu, rng = mdps.uniform(mdp), np.random.default_rng(0)
    with pytest.raises(ValueError, match="either steps or episodes"):
        mdp.rollout(mu, seed=rng)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        mdp.rollout(mu, seed=rng, steps=0)
    with pytest.raises(TypeError, match=r"limit must be an integer, got 2\.5"):
        mdp.rollout(mu, seed=rng, steps=1, limit=2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        TypeError, match=r"seed must be an integer of at least 0 or a numpy\.random\.Generator, got None"
    ):
        mdp.rollout(mu, seed=None, steps=1)  # pyright: ignore[reportArgumentType]
    stay = np.array([[1, 0], [0, 1], [1, 0]])
    with pytest.raises(ValueError, match="from state 0 the behavior reaches no terminal state"):
        mdp.rollout(stay, seed=rng, episodes=1)
    assert mdp.rollout(stay, seed=rng, episodes=3, limit=4)["truncated"].sum() == 3


# Bad input

GOOD = {"P": np.full((2, 1, 2), 0.5), "R": np.ones((2, 1)), "gamma": 0.9}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"P": np.full((2, 1, 2), 0.4)}, ValueError, r"P\[0, 0\] sums to 0.8"),
        ({"P": [[[0.5, 0.5]], [[1.5, -0.5]]]}, ValueError, r"P\[1, 0, 1\] is -0.5"),
        ({"P": [[[0.5, np.nan]], [[1, 0]]]}, ValueError, r"P\[0, 0, 1\] is nan"),
        ({"P": np.ones((2, 1, 3))}, ValueError, r"P has shape \(2, 1, 3\): it must be \[S, A, S\]"),
        ({"P": sp.csr_array(np.ones((3, 2)))}, ValueError, r"sparse P has shape \(3, 2\)"),
        ({"P": [sp.eye_array(2), sp.eye_array(3)]}, ValueError, r"P\[1\] must be a sparse matrix"),
        ({"P": "table"}, TypeError, "P is not an array of real numbers"),
        ({"P": [[[1, 0]], [[1]]]}, TypeError, "unequal rows"),
        ({"P": [[[0, 1], [0, 1]], [[0, 0], [0, 1]]], "R": np.ones((2, 2))}, ValueError, r"P\[1, 0\] sums to 0:"),
        ({"R": np.ones((2, 2))}, ValueError, r"R has shape \(2, 2\): it must be \[S, A\] = \(2, 1\)"),
        ({"R": [[1.0], [np.inf]]}, ValueError, r"R\[1, 0\] is inf"),
        ({"R": sp.eye_array(3)}, ValueError, "R is a sparse table of S = 3"),
        ({"gamma": 1.1}, ValueError, r"gamma must lie in \[0, 1\]"),
        ({"gamma": "much"}, TypeError, "gamma must be a number"),
        ({"terminal": [0, 1]}, TypeError, "terminal must be boolean"),
        ({"terminal": [True]}, ValueError, r"terminal has shape \(1,\)"),
        ({"terminal": [False, True]}, ValueError, "state 1 is marked terminal but something follows it"),
        ({"P": [[[0, 1.0]], [[0, 0]]]}, ValueError, "state 1 is terminal but has rewards"),
        ({"P": [[[0, 0]], [[0, 0]]], "terminal": [True, True]}, ValueError, "every state is marked terminal"),
        ({"P": [[[1, 0]], [[0, 1]]], "R": np.zeros((2, 1))}, ValueError, "every state is terminal"),
        ({"start": [0.5, 0.6]}, ValueError, "start must be a distribution"),
        ({"start": [1.0]}, ValueError, r"start has shape \(1,\)"),
        ({"P": [[[0, 1]], [[0, 0]]], "R": [[1], [0]], "start": [0, 1]}, ValueError, "no episode starts there"),
        ({"state_names": ("a",)}, ValueError, "state_names must be a tuple of 2 names"),
        ({"state_names": 3}, ValueError, "state_names must be a tuple of 2 names, got 3"),
        ({"action_names": ({1},)}, TypeError, r"action_names holds \{1\}: a name must be"),
        (
            {"P": sp.csr_array(np.eye(2) * 1j)},
            TypeError,
            "P is not a table of real numbers, got a sparse one of complex",
        ),
        ({"P": [sp.csr_array(np.eye(2) * 1j)]}, TypeError, "P is not a table of real numbers"),
    ],
)
def test_bad_tables_are_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MDP(**{**GOOD, **change})


def test_other_files_and_huge_tables_are_refused(tmp_path: Any) -> None:
    np.savez(tmp_path / "other.npz", x=1)
    with pytest.raises(ValueError, match="is not a saved MDP: it lacks R, data"):
        MDP.load(tmp_path / "other.npz")
    np.save(tmp_path / "array.npy", np.ones(3))
    for name, content in (("array.npy", None), ("text", "hello"), ("empty", "")):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=r"is not a saved MDP: it is no \.npz file"):
            MDP.load(tmp_path / name)
    with pytest.raises(ValueError, match="over 1 GB"):
        _ = MDP(sp.eye_array(20_000), np.ones((20_000, 1)), 0.9).dense_P
    with pytest.raises(ValueError, match="tolerance must not be negative"):
        chain_with_end(0.9).optimal_q(-1.0)
