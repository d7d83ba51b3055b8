"""Distributional targets: against their definition atom by atom, against ordinary targets, and on a small MDP by enumeration."""

import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from offtrace.returns import by_definition
from offtrace.returns.mixtures import Mixture

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rlax: Any = pytest.importorskip("rlax")

RULES = (
    ot.OneStep(),
    ot.Retrace(0.9),
    ot.TreeBackup(0.8),
    ot.ImportanceSampling(0.9),
    ot.NonMarkovRetrace(0.95),
    ot.RBIS(0.9),
    ot.TruncatedIS(bound=1.5, lam=0.9),
    ot.Retrace(0.9, horizon=2),
    ot.QLambda(0.7),
)
ATOMS = 7
SUPPORT = np.linspace(-3.0, 6.0, ATOMS)
WIDE = np.array([-1e3, *np.linspace(-2.0, 3.0, ATOMS - 2), 1e3])
"""All sums lie on it, so that P moves no mean, if there is nothing on its ends."""


def batch(rng, B=3, T=6, N=ATOMS):
    log_pi, log_mu = np.log(rng.uniform(0.2, 1.0, (2, B, T)))
    return {
        "probabilities": rng.dirichlet(np.ones(N), (B, T)), "next_probabilities": rng.dirichlet(np.ones(N), (B, T)),
        "reward": rng.normal(size=(B, T)), "terminated": rng.random((B, T)) < 0.15, "truncated": rng.random((B, T)) < 0.1,
        "valid": rng.random((B, T)) < 0.9, "log_pi": log_pi, "log_mu": log_mu, "gamma": rng.uniform(0.5, 1.0, (B, T)),
    }  # fmt: skip


def within(arrays):
    """The same with nothing on the ends of the support."""
    inner = np.arange(ATOMS) % (ATOMS - 1) != 0
    for name in ("probabilities", "next_probabilities"):
        masses = arrays[name] * inner
        arrays[name] = masses / masses.sum(-1, keepdims=True)
    return arrays


def atoms_by_definition(trace, row, k, support):
    """The weighted atoms of the start k of one row: [(weight, atom), …]."""
    flags = {name: row[name] for name in ("terminated", "truncated", "valid")}
    β = by_definition.coefficients(trace, **flags, log_pi=row["log_pi"], log_mu=row["log_mu"])
    found, G, Γ = [], 0.0, 1.0
    for t in range(k, len(row["reward"])):
        G, Γ = G + Γ * row["reward"][t], 0.0 if row["terminated"][t] else Γ * row["gamma"][t]
        ahead = zip(row["next_probabilities"][t], support, strict=True)
        found += [(β[k, t], G)] if row["terminated"][t] else [(β[k, t] * p, G + Γ * z) for p, z in ahead]
        if row["terminated"][t] or row["truncated"][t] or t + 1 == len(row["reward"]) or not row["valid"][t + 1]:
            break
        found += [(-β[k, t + 1] * p, G + Γ * z) for p, z in zip(row["probabilities"][t + 1], support, strict=True)]
    return found


def projected(atoms, support):
    """Bellemare et al. 2017, algorithm 1: each atom goes to its two neighbours."""
    out = np.zeros(len(support))
    for weight, z in atoms:
        z = min(max(z, support[0]), support[-1])
        above = min(int(np.searchsorted(support, z)), len(support) - 1)
        below = max(above - 1, 0)
        share = 1.0 if above == below else (z - support[below]) / (support[above] - support[below])
        out[above] += weight * share
        out[below] += weight * (1.0 - share)
    return out


@pytest.mark.parametrize("trace", RULES, ids=repr)
@pytest.mark.parametrize("support", [SUPPORT, np.array([-2.0, -1.5, 0.0, 0.1, 2.0, 5.0, 9.0])], ids=["even", "uneven"])
def test_targets_are_the_projected_mixture(trace, support):
    arrays = batch(np.random.default_rng(0))
    unread = ~arrays["valid"]
    arrays["probabilities"][unread] = np.nan
    arrays["next_probabilities"][unread | arrays["terminated"]] = np.nan
    arrays["reward"][unread] = np.nan
    got = ot.distributional_targets(trace, **arrays, support=support)
    for b, k in np.ndindex(arrays["reward"].shape):
        row = {name: a[b] for name, a in arrays.items()}
        wanted = projected(atoms_by_definition(trace, row, k, support), support) if row["valid"][k] else np.zeros(ATOMS)
        np.testing.assert_allclose(got.probabilities[b, k], wanted, atol=1e-13)
        assert got.negative[b, k] == pytest.approx(-np.minimum(wanted, 0).sum(), abs=1e-13)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from(RULES))
def test_the_mean_is_the_ordinary_target(seed, trace):
    arrays = within(batch(np.random.default_rng(seed)))
    mean = ot.distributional_targets(trace, **arrays, support=WIDE).probabilities @ WIDE
    ordinary = {name: a for name, a in arrays.items() if not name.endswith("probabilities")}
    q, next_value = arrays["probabilities"] @ WIDE, arrays["next_probabilities"] @ WIDE
    wanted = ot.targets(trace, **ordinary, q=q, next_value=next_value)
    np.testing.assert_allclose(mean, wanted, rtol=1e-12, atol=1e-9)
    found = ot.quantile_targets(
        trace, **ordinary, atoms=arrays["probabilities"], next_atoms=arrays["next_probabilities"]
    )
    q, next_value = arrays["probabilities"].mean(-1), arrays["next_probabilities"].mean(-1)
    mean = ot.targets(trace, **ordinary, q=q, next_value=next_value)
    np.testing.assert_allclose((found.atoms * found.weights).sum(-1), mean, atol=1e-12 * (1 + np.abs(mean).max()))
    np.testing.assert_allclose(found.weights.sum(-1), arrays["valid"], atol=1e-12 * (1 + np.abs(found.weights).max()))


@pytest.mark.parametrize("rule", [ot.NStep(n=2), ot.PengQ(0.7)], ids=repr)
def test_uncorrected_returns_read_the_next_state_alone(rule):
    arrays = within(batch(np.random.default_rng(1)))
    del arrays["probabilities"]
    got = ot.distributional_targets(rule, **arrays, support=WIDE).probabilities
    next_value = arrays.pop("next_probabilities") @ WIDE
    np.testing.assert_allclose(got @ WIDE, ot.targets(rule, **arrays, next_value=next_value), atol=1e-9)
    assert (got > -1e-12).all()


def test_n_step_is_rainbow_by_hand():
    support = np.linspace(0.0, 4.0, 5)
    ahead = np.eye(5)[[1, 2, 3]]
    none = np.zeros(3, bool)
    got = ot.distributional_targets(
        ot.NStep(n=2), next_probabilities=ahead, support=support, reward=np.array([1.0, 0.0, 1.0]), terminated=none,
        truncated=none, gamma=0.5,
    )  # fmt: skip
    # 1 + ½·0 + ¼·2 = 1.5;   0 + ½·1 + ¼·3 = 1.25;   1 + ½·3 = 2.5
    np.testing.assert_allclose(got.probabilities, [[0, 0.5, 0.5, 0, 0], [0, 0.75, 0.25, 0, 0], [0, 0, 0.5, 0.5, 0]])


@pytest.mark.parametrize("trace", RULES, ids=repr)
def test_the_return_distribution_is_a_fixed_point(trace):
    """Two steps, two states, rewards 0 and 1: all trajectories are listed, and returns lie on the support, so P does nothing."""
    support, π, μ = np.arange(4.0), np.array([0.3, 0.7]), np.array([0.6, 0.4])
    reward = np.array([[0.0, 1.0], [1.0, 2.0]])  # of (step, action); both actions go on
    last = np.array([np.eye(4)[int(r)] for r in reward[1]])  # Z of the last step's actions
    mixture = π @ last
    first = np.array([np.roll(mixture, int(r)) for r in reward[0]])
    for a in (0, 1):
        total = np.zeros(4)
        for b in (0, 1):
            row = {
                "probabilities": np.stack([first[a], last[b]]), "next_probabilities": np.stack([mixture, np.eye(4)[0]]),
                "reward": np.array([reward[0, a], reward[1, b]]), "terminated": np.array([False, True]),
                "truncated": np.zeros(2, bool), "log_pi": np.log(π[[a, b]]), "log_mu": np.log(μ[[a, b]]), "gamma": 1.0,
            }  # fmt: skip
            total += μ[b] * ot.distributional_targets(trace, **row, support=support).probabilities[0]
        np.testing.assert_allclose(total, first[a], atol=1e-12)


@pytest.mark.parametrize("trace", [ot.Retrace(0.9), ot.NonMarkovRetrace(0.9), ot.TruncatedIS(bound=1.0)], ids=repr)
def test_pytorch_and_jax_agree_with_numpy(trace):
    arrays = batch(np.random.default_rng(2), B=2, T=5)
    wanted = ot.distributional_targets(trace, **arrays, support=SUPPORT)
    tensors = {name: torch.from_numpy(a) for name, a in arrays.items()}
    got = ot.distributional_targets(trace, **tensors, support=torch.from_numpy(SUPPORT))
    np.testing.assert_allclose(got.probabilities.numpy(), wanted.probabilities, atol=1e-14)
    assert got.probabilities.dtype == torch.float64
    single = {name: jnp.asarray(a, jnp.float32 if a.dtype == float else None) for name, a in arrays.items()}
    for call in (ot.distributional_targets, jax.jit(ot.distributional_targets, static_argnums=0)):
        got = call(trace, **single, support=jnp.asarray(SUPPORT, jnp.float32))
        assert got.probabilities.dtype == jnp.float32
        np.testing.assert_allclose(got.probabilities, wanted.probabilities, atol=1e-5)
        np.testing.assert_allclose(got.negative, wanted.negative, atol=1e-5)


def test_jax_may_refuse_arrays_of_fewer_axes():
    """`jax_numpy_rank_promotion="raise"`, with which many JAX users find their mistakes."""
    arrays = {name: jnp.asarray(a) for name, a in batch(np.random.default_rng(2), B=2, T=5).items()}
    with jax.numpy_rank_promotion("raise"):
        call = jax.jit(ot.distributional_targets, static_argnums=0)
        assert call(ot.RBIS(0.9), **arrays, support=jnp.asarray(SUPPORT)).probabilities.shape == (2, 5, len(SUPPORT))
        assert ot.two_hot(arrays["reward"], jnp.asarray(SUPPORT)).shape == (2, 5, len(SUPPORT))
        assert ot.hl_gauss(arrays["reward"], jnp.asarray(SUPPORT), 0.5).shape == (2, 5, len(SUPPORT))


def test_tensor_operations_are_the_compiled_loop():
    """What PyTorch computes where it traces a call, and JAX inside of jit."""
    from offtrace.returns.mixtures import mixed
    from offtrace.returns.torch.backend import BACKEND
    from offtrace.returns.torch.tensor_ops import TORCH

    arrays = {name: torch.from_numpy(a) for name, a in batch(np.random.default_rng(3)).items()}
    B, T, _ = arrays["probabilities"].shape
    beta = torch.rand(B, T, T, dtype=torch.float64).triu()
    beta.diagonal(dim1=1, dim2=2).fill_(1.0)
    discount = torch.where(arrays["terminated"], 0.0, arrays["gamma"])
    own, ahead = arrays["probabilities"], arrays["next_probabilities"]
    x = Mixture(beta, arrays["reward"], discount, own, ahead, torch.from_numpy(SUPPORT))
    np.testing.assert_allclose(mixed(TORCH, x), BACKEND.mixed(x), atol=1e-13)


def test_one_step_is_rlax_categorical_and_quantile():
    rng = np.random.default_rng(4)
    q_t, a_t = rng.normal(size=(3, ATOMS)), 1
    p = np.exp(q_t) / np.exp(q_t).sum(-1, keepdims=True)
    r, γ = 0.7, 0.9
    wanted = rlax.categorical_l2_project(
        jnp.asarray(r + γ * SUPPORT), jnp.asarray(p[a_t]), jnp.asarray(SUPPORT, jnp.float32)
    )
    row = {"reward": np.array([r]), "terminated": np.zeros(1, bool), "truncated": np.zeros(1, bool), "gamma": γ}
    got = ot.distributional_targets(
        ot.OneStep(), probabilities=p[:1], next_probabilities=p[a_t][None], support=SUPPORT, **row
    )
    np.testing.assert_allclose(got.probabilities[0], wanted, atol=1e-6)
    found = ot.quantile_targets(ot.OneStep(), atoms=q_t[:1], next_atoms=q_t[a_t][None], **row)
    np.testing.assert_allclose(found.atoms[0], r + γ * q_t[a_t])
    np.testing.assert_allclose(found.weights[0], np.full(ATOMS, 1 / ATOMS))


def test_weights_are_negative_where_the_trace_exceeds_pi_and_can_be_clipped():
    support, none = np.arange(4.0), np.zeros(2, bool)
    row = {
        "probabilities": np.eye(4)[[0, 3]], "next_probabilities": np.array([[0.5, 0, 0, 0.5], [1, 0, 0, 0]]), "support": support,
        "reward": np.zeros(2), "terminated": none, "truncated": none, "log_pi": np.log([1.0, 0.5]),
        "log_mu": np.log([1.0, 0.5]), "gamma": 1.0,
    }  # fmt: skip
    found = ot.distributional_targets(ot.Retrace(), **row)
    np.testing.assert_allclose(found.probabilities[0], [1.5, 0, 0, -0.5])
    np.testing.assert_allclose(found.negative, [0.5, 0])
    clipped = ot.distributional_targets(ot.Retrace(), **row, clip=True)
    np.testing.assert_allclose(clipped.probabilities[0], [1, 0, 0, 0])
    np.testing.assert_allclose(clipped.negative, [0.5, 0])
    kept = ot.distributional_targets(ot.TreeBackup(), **row)  # β_{t+1} = β_t π
    assert (kept.negative == 0).all()


def test_a_reach_ends_traces_as_a_horizon_does():
    arrays = batch(np.random.default_rng(5))
    ordinary = {name: a for name, a in arrays.items() if not name.endswith("probabilities")}
    atoms = {"atoms": arrays["probabilities"], "next_atoms": arrays["next_probabilities"]}
    a = ot.quantile_targets(ot.RBIS(0.9), **ordinary, **atoms, reach=3)
    b = ot.quantile_targets(ot.RBIS(0.9, horizon=3), **ordinary, **atoms)
    assert a.atoms.shape == (3, 6, 3 * 2 * ATOMS - ATOMS)
    np.testing.assert_array_equal(a.atoms, b.atoms)
    np.testing.assert_allclose(a.weights, b.weights, rtol=1e-14)


def test_weights_of_next_atoms():
    none = np.zeros(1, bool)
    found = ot.quantile_targets(
        ot.OneStep(), atoms=np.zeros((1, 2)), next_atoms=np.array([[1.0, 2.0, 3.0]]), reward=np.zeros(1),
        next_weights=np.array([[0.2, 0.3, 0.5]]), terminated=none, truncated=none, gamma=0.5,
    )  # fmt: skip
    np.testing.assert_allclose(found.atoms, [[0.5, 1.0, 1.5]])
    np.testing.assert_allclose(found.weights, [[0.2, 0.3, 0.5]])


def test_what_is_wrong_is_named():
    arrays = batch(np.random.default_rng(6), B=1, T=3)
    arrays["valid"][:] = True
    arrays["terminated"][:] = False

    def refused(match, error: type[Exception] = ValueError, **changed):
        with pytest.raises(error, match=match):
            ot.distributional_targets(ot.Retrace(), **{**arrays, "support": SUPPORT, **changed})

    refused("support must ascend", support=SUPPORT[::-1])
    refused("probabilities has 7 atoms but the support has 3", support=np.arange(3.0))
    refused(r"sum to 1, got [\s\S]* at index \[0, 0\]", probabilities=arrays["probabilities"] * 2)
    refused("probabilities is missing", TypeError, probabilities=None)
    refused(r"log_mu is -inf: got -inf at index \[0, 2\]", log_mu=np.array([[0.0, 0.0, -np.inf]]))
    refused("log_mu is missing", TypeError, log_mu=None)
    refused(r"reward must be finite: got nan at index \[0, 1\]", reward=np.array([[0.0, np.nan, 0.0]]))
    refused(r"gamma must lie in \[0, 1\]: got 1.5 at index \[0, 2\]", gamma=np.array([[0.5, 0.5, 1.5]]))
    refused("gamma must lie in", gamma=2.0)
    refused("terminated must be boolean or 0/1 integers", TypeError, terminated=np.full((1, 3), 0.5))
    refused("truncated", TypeError, truncated=None)
    atoms = {"atoms": np.zeros((1, 3, 2)), "next_atoms": np.zeros((1, 3, 2))}
    steps = {name: a for name, a in arrays.items() if not name.endswith("probabilities")}
    cases: Any = (
        (r"atoms must be finite, got .* at index \[0, 1\]", {"atoms": np.array([[[0, 0], [np.nan, 0], [0, 0.0]]])}),
        ("next_weights must hold probabilities that sum to 1", {"next_weights": np.ones((1, 3, 2))}),
        ("next_weights are of 3 atoms but next_atoms are 2", {"next_weights": np.ones((1, 3, 3)) / 3}),
    )
    for words, changed in cases:
        with pytest.raises(ValueError, match=words):
            ot.quantile_targets(ot.Retrace(), **steps, **atoms | changed)
    refused(r"next_probabilities has shape \(1, 3\)", next_probabilities=np.ones((1, 3)))
    with pytest.raises(ValueError, match="reward must be"):
        ot.distributional_targets(ot.Retrace(), **{**arrays, "support": SUPPORT, "reward": np.zeros((0, 3))})


def test_a_custom_trace_and_one_with_a_lambda_by_step():
    arrays = within(batch(np.random.default_rng(7)))
    lam = np.linspace(0.1, 0.9, 18).reshape(3, 6)
    ordinary = {name: a for name, a in arrays.items() if not name.endswith("probabilities")}
    ordinary |= {"q": arrays["probabilities"] @ WIDE, "next_value": arrays["next_probabilities"] @ WIDE}

    def step(xp, carry, now):
        carry = carry * xp.minimum(1.0, now.rho)
        return carry, carry

    for trace in (ot.VariableLambda(lam), ot.StepTrace(step, reads=("rho",))):
        got = ot.distributional_targets(trace, **arrays, support=WIDE).probabilities
        np.testing.assert_allclose(got @ WIDE, ot.targets(trace, **ordinary), atol=1e-9)


def test_all_rows_may_be_one_dimensional():
    arrays = {name: a[0] for name, a in batch(np.random.default_rng(8)).items()}
    one = ot.distributional_targets(ot.RBIS(0.9), **arrays, support=SUPPORT)
    two = ot.distributional_targets(ot.RBIS(0.9), **{n: a[None] for n, a in arrays.items()}, support=SUPPORT)
    for a, b in itertools.zip_longest(one, two):
        np.testing.assert_array_equal(a, b[0])
