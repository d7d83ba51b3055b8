"""Transformed values: inverses, gradients, targets, streams, encodings; and stacks of critics."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offtrace as ot

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rlax: Any = pytest.importorskip("rlax")

TRANSFORMS = (ot.SignedHyperbolic(), ot.SignedHyperbolic(eps=0.1), ot.SymLog())
RULES = (ot.Retrace(0.9), ot.NonMarkovRetrace(0.9), ot.TruncatedIS(), ot.NStep(3), ot.PengQ(0.8))


def batch(seed=0, B=3, T=7):
    rng = np.random.default_rng(seed)
    reward, q, next_value = 3 * rng.normal(size=(3, B, T))
    log_pi, log_mu = np.log(rng.uniform(0.2, 1.0, (2, B, T)))
    terminated, truncated = rng.random((2, B, T)) < 0.1
    flags = {"terminated": terminated, "truncated": truncated, "valid": rng.random((B, T)) < 0.9}
    return {
        "reward": reward,
        "q": q,
        "next_value": next_value,
        "log_pi": log_pi,
        "log_mu": log_mu,
        **flags,
        "gamma": 0.9,
    }


@pytest.mark.parametrize("h", TRANSFORMS, ids=repr)
@given(st.floats(-1e6, 1e6))
def test_inverses_are_exact(h, x):
    x = np.float64(x)
    assert h.inverse(np, h.forward(np, x)) == pytest.approx(x, rel=4e-15, abs=1e-300)
    single = np.float32(x)
    assert h.inverse(np, h.forward(np, single)) == pytest.approx(single, rel=2e-6, abs=1e-38)


@pytest.mark.parametrize(
    ("h", "theirs"), [(ot.SignedHyperbolic(), "SIGNED_HYPERBOLIC_PAIR"), (ot.SymLog(), "SIGNED_LOGP1_PAIR")], ids=repr
)
def test_they_are_those_of_rlax(h, theirs):
    x = jnp.linspace(-5.0, 5.0, 21)
    pair = getattr(rlax, theirs)
    np.testing.assert_allclose(h.forward(jnp, x), pair.apply(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h.inverse(jnp, x), pair.apply_inv(x), rtol=2e-3, atol=1e-3)  # theirs loses digits


@pytest.mark.parametrize("h", TRANSFORMS, ids=repr)
@pytest.mark.parametrize("x", [-2.0, 0.0, 3.0])
def test_gradients(h, x):
    def slope(function, at):
        return (function(np, at + 1e-6) - function(np, at - 1e-6)) / 2e-6

    for function in (h.forward, h.inverse):
        z = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.grad(function(torch, z), z)[0] == pytest.approx(slope(function, np.float64(x)), rel=1e-6)
        got = jax.grad(lambda y, function=function: function(jnp, y))(x)
        assert got == pytest.approx(slope(function, np.float64(x)), rel=1e-5)


@pytest.mark.parametrize("h", TRANSFORMS, ids=repr)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_targets_are_those_of_returns(h, rule):
    arrays = batch()
    returns = {**arrays, "q": h.inverse(np, arrays["q"]), "next_value": h.inverse(np, arrays["next_value"])}
    for name in ("q", "next_value", "reward"):
        arrays[name][~arrays["valid"]] = np.nan
    wanted = ot.targets(rule, **returns)
    np.testing.assert_allclose(ot.targets(rule, **arrays, transform=h), h.forward(np, wanted), rtol=1e-13)
    assert (ot.targets(rule, **arrays, transform=h)[~arrays["valid"]] == 0).all()
    np.testing.assert_allclose(
        ot.corrections(rule, **arrays, transform=h), ot.corrections(rule, **returns), rtol=1e-12, atol=1e-12
    )
    tensors = {n: torch.from_numpy(a) if n != "gamma" else a for n, a in arrays.items()}
    np.testing.assert_allclose(ot.targets(rule, **tensors, transform=h), h.forward(np, wanted), rtol=1e-13)
    single = {n: jnp.asarray(a, jnp.float32 if a.dtype == float else None) for n, a in arrays.items() if n != "gamma"}
    got = jax.jit(lambda x: ot.targets(rule, **x, gamma=0.9, transform=h))(single)
    np.testing.assert_allclose(got, h.forward(np, wanted), rtol=2e-4, atol=2e-5)


def test_state_values_and_half_precision():
    h, arrays = ot.SignedHyperbolic(), batch(1)
    value = arrays.pop("q")
    returns = {"value": h.inverse(np, value), "next_value": h.inverse(np, arrays["next_value"])}
    wanted = ot.state_targets(ot.RBIS(0.9), **{**arrays, **returns})
    got = ot.state_targets(ot.RBIS(0.9), **arrays, value=value, transform=h)
    np.testing.assert_allclose(got.target, h.forward(np, wanted.target), rtol=1e-13)
    np.testing.assert_allclose(got.advantage, wanted.advantage, rtol=1e-12, atol=1e-12)
    half = {n: a.astype(np.float16) if getattr(a, "dtype", None) == np.float64 else a for n, a in batch(2).items()}
    assert ot.targets(ot.Retrace(), **half, transform=h).dtype == np.float16


@pytest.mark.parametrize("rule", [ot.NonMarkovRetrace(0.9), ot.PengQ(0.8)], ids=repr)
def test_a_stream_sums_to_the_corrections(rule):
    arrays, h = {name: a[0] for name, a in batch(3).items() if name not in ("gamma", "valid")}, ot.SymLog()
    stream, total = ot.Stream(rule, size=7, transform=h), np.zeros(7)
    for t in range(7):
        total += stream.step(t, **{name: a[t] for name, a in arrays.items()}, gamma=0.9)
    np.testing.assert_allclose(total, ot.corrections(rule, **arrays, gamma=0.9, transform=h), rtol=1e-10, atol=1e-12)


def test_gradients_pass_through_the_transform():
    h = ot.SignedHyperbolic()
    given = {name: torch.from_numpy(a[:1, :3]) for name, a in batch(4).items() if name not in ("gamma", "valid")}
    next_value = given.pop("next_value").requires_grad_()

    def target(v):
        return ot.targets(ot.QLambda(0.9), **given, next_value=v, gamma=0.9, transform=h, differentiable=True)

    assert torch.autograd.gradcheck(target, (next_value,))


def test_action_values_take_the_expectation_of_returns():
    h, rng = ot.SymLog(), np.random.default_rng(5)
    q, next_q = rng.normal(size=(2, 4, 3))
    pi, next_pi = rng.dirichlet(np.ones(3), (2, 4))
    for xp, convert in ((np, np.asarray), (torch, torch.from_numpy), (jnp, jnp.asarray)):
        arrays: Any = map(convert, (q, next_q, pi, next_pi, rng.integers(3, size=4)))
        made = ot.from_action_values(*arrays, transform=h)
        wanted = h.forward(np, (next_pi * h.inverse(np, next_q)).sum(-1))
        np.testing.assert_allclose(made["next_value"], wanted, rtol=1e-5 if xp is jnp else 1e-13)


def test_rlax_transformed_retrace():
    rng, K, A = np.random.default_rng(6), 5, 3
    q_tm1, q_t = 2 * rng.normal(size=(2, K, A))
    a_tm1, a_t = rng.integers(A, size=(2, K))
    pi_t, mu_t = rng.dirichlet(np.ones(A), K), rng.uniform(0.2, 1, K)
    r_t, discount_t = rng.normal(size=K), np.full(K, 0.9)
    given = (
        jnp.asarray(a, jnp.float32 if a.dtype == float else None)
        for a in (q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t)
    )
    wanted = rlax.transformed_retrace(*given, 0.95, eps=0.0, tx_pair=rlax.SIGNED_LOGP1_PAIR)
    h, step = ot.SymLog(), np.arange(K)
    none = np.zeros(K, bool)
    taken = np.append(0.0, np.log(pi_t[step, a_t])[:-1]), np.append(0.0, np.log(mu_t)[:-1])
    next_value = h.forward(np, (pi_t * h.inverse(np, q_t)).sum(-1))
    q = np.append(q_tm1[0, a_tm1[0]], q_t[step, a_t][:-1])
    got = ot.targets(
        ot.Retrace(0.95), reward=r_t, q=q, next_value=next_value, terminated=none, truncated=none, log_pi=taken[0],
        log_mu=taken[1], gamma=0.9, transform=h,
    )  # fmt: skip
    # rlax's error is of q_tm1, which here need not be the q_t of the step before
    np.testing.assert_allclose(got - q_tm1[step, a_tm1], wanted, rtol=1e-4, atol=1e-5)


def test_padding_is_0_whatever_h_of_0_is():
    class Shifted(ot.Transform):
        def forward(self, xp, returns):
            return returns + 1

        def inverse(self, xp, values):
            return values - 1

    arrays = {**batch(8), "skip": np.arange(21).reshape(3, 7) % 4 == 1}
    wanted = ot.targets(ot.RBIS(0.9), **{**arrays, "q": arrays["q"] - 1, "next_value": arrays["next_value"] - 1}) + 1
    out = ~arrays["valid"] | arrays["skip"]
    np.testing.assert_allclose(ot.targets(ot.RBIS(0.9), **arrays, transform=Shifted()), np.where(out, 0.0, wanted))


def test_targets_compile():
    given = {n: torch.from_numpy(a) for n, a in batch(9).items() if n != "gamma"}
    h = ot.SignedHyperbolic()

    @torch.compile(fullgraph=True, backend="eager")
    def call(given):
        return ot.targets(ot.Retrace(0.9), **given, gamma=0.9, transform=h)

    np.testing.assert_allclose(call(given), ot.targets(ot.Retrace(0.9), **given, gamma=0.9, transform=h), rtol=1e-12)


def test_what_is_no_transform_is_refused():
    arrays = batch(7)

    with pytest.raises(TypeError, match="transform must be one such as"):
        ot.targets(ot.Retrace(), **arrays, transform="symlog")  # pyright: ignore[reportArgumentType]
    arrays["valid"][:], arrays["q"][1, 2] = True, 1000.0
    with pytest.raises(
        ValueError, match=r"q must be finite: got inf at index \[1, 2\].*h⁻¹ of what was given, h = SymLog"
    ):
        ot.targets(ot.Retrace(), **arrays, transform=ot.SymLog())


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=5))
def test_two_hot_has_the_value_as_its_mean(values):
    support = np.array([-10.0, -1.0, 0.0, 0.5, 10.0])
    v = np.array(values)
    p = ot.two_hot(v, support)
    np.testing.assert_allclose(p @ support, np.clip(v, -10, 10), atol=1e-14)
    np.testing.assert_allclose(p.sum(-1), 1.0)
    assert (p >= 0).all()
    assert ((p > 0).sum(-1) <= 2).all()


def test_encodings_are_those_of_rlax_and_of_a_normal_distribution():
    v, support = np.array([-0.7, 0.2, 1.9]), np.linspace(-2.0, 2.0, 9)
    wanted = rlax.transform_to_2hot(jnp.asarray(v), -2.0, 2.0, 9)
    np.testing.assert_allclose(ot.two_hot(v, support), wanted, atol=2e-5)
    from scipy.stats import truncnorm  # pyright: ignore

    edges, sigma = np.linspace(-2.25, 2.25, 10), 0.4
    cdf = truncnorm.cdf(edges, (-2.25 - v[:, None]) / sigma, (2.25 - v[:, None]) / sigma, v[:, None], sigma)
    np.testing.assert_allclose(ot.hl_gauss(v, support, sigma), np.diff(cdf), atol=1e-12)
    np.testing.assert_allclose(ot.hl_gauss(jnp.asarray(v), jnp.asarray(support), sigma), np.diff(cdf), atol=1e-6)
    got = ot.hl_gauss(torch.from_numpy(v), torch.from_numpy(support), sigma)
    np.testing.assert_allclose(got, np.diff(cdf), atol=1e-12)
    with pytest.raises(ValueError, match="sigma must be above 0"):
        ot.hl_gauss(v, support, 0.0)


def stacked(rng, shared=()):
    arrays = batch(8)
    return {
        name: a if np.ndim(a) == 0 or name in shared else np.stack([a, *(_other(name, a, rng) for _ in range(3))])
        for name, a in arrays.items()
    }


def _other(name, a, rng):
    return rng.permutation(a.ravel()).reshape(a.shape)


SHARED = ((), ("log_pi", "log_mu", "reward"), ("reward", "terminated", "truncated", "valid", "log_pi", "log_mu"))


@pytest.mark.parametrize("shared", SHARED, ids=len)
@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_a_stack_is_one_call_for_each_of_its_members(shared, kind):
    convert = {"numpy": np.asarray, "torch": torch.as_tensor, "jax": jnp.asarray}[kind]
    arrays = stacked(np.random.default_rng(9), shared)

    def of(k):
        return {n: convert(a[k]) if np.ndim(a) == 3 else convert(a) if np.ndim(a) else a for n, a in arrays.items()}

    def given(change):
        return {n: convert(change(a)) if np.ndim(a) else a for n, a in arrays.items()}

    for rule in (ot.RBIS(0.9), ot.VariableLambda(np.random.default_rng(0).random((3, 7)))):
        wanted = np.stack([np.asarray(ot.targets(rule, **of(k))) for k in range(4)])
        np.testing.assert_array_equal(ot.targets(rule, **given(lambda a: a), stack="first"), wanted)

        def last(a):
            return np.moveaxis(a, 0, -1) if a.ndim == 3 else a

        np.testing.assert_array_equal(ot.targets(rule, **given(last), stack="last"), np.moveaxis(wanted, 0, -1))
    turned = given(lambda a: last(a).swapaxes(0, 1))
    wanted = np.stack([np.asarray(ot.targets(ot.RBIS(0.9), **of(k))) for k in range(4)])
    got = ot.targets(ot.RBIS(0.9), **turned, stack="last", time_major=True)
    np.testing.assert_array_equal(got, np.moveaxis(wanted, 0, -1).swapaxes(0, 1))


def test_errors_of_a_stack_name_the_index_that_came_in():
    arrays = stacked(np.random.default_rng(10), ("valid",))
    arrays["valid"][:] = True
    arrays["q"][2, 1, 4] = np.nan
    with pytest.raises(ValueError, match=r"index \[2, 1, 4\]"):
        ot.targets(ot.Retrace(), **arrays, stack="first")
    arrays = {
        n: np.moveaxis(a, 0, -1).swapaxes(0, 1) if np.ndim(a) == 3 else a.T if np.ndim(a) else a
        for n, a in arrays.items()
    }
    with pytest.raises(ValueError, match=r"index \[4, 1, 2\]"):
        ot.targets(ot.Retrace(), **arrays, stack="last", time_major=True)
    with pytest.raises(ValueError, match=r"q has shape .*: with stack='first' it must be"):
        ot.targets(ot.Retrace(), **{**batch(), "reward": np.zeros((2, 3, 7)), "q": np.zeros((3, 3, 7))}, stack="first")
    with pytest.raises(ValueError, match="stack must be 'first'"):
        ot.targets(ot.Retrace(), **batch(), stack="middle")
    with pytest.raises(ValueError, match="must have an axis more"):
        ot.targets(ot.Retrace(), **{n: a[0] if np.ndim(a) else a for n, a in batch().items()}, stack="first")


def test_a_stack_of_single_rows_with_skipped_steps():
    arrays = {n: a[0] if np.ndim(a) else a for n, a in batch(11).items()}
    arrays["skip"] = np.arange(7) % 3 == 1
    twice = {**arrays, "q": np.stack([arrays["q"], 2 * arrays["q"]])}
    got = ot.state_targets(ot.VTrace(), **{n: a for n, a in twice.items() if n != "q"}, value=twice["q"], stack="first")
    for k in range(2):
        one = {n: a for n, a in arrays.items() if n != "q"}
        np.testing.assert_array_equal(got.target[k], ot.state_targets(ot.VTrace(), **one, value=twice["q"][k]).target)
