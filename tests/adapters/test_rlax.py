"""The adapter beside the real rlax: equal where rlax is right, and where it is not, right."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rlax: Any = pytest.importorskip("rlax")

import offtrace as ot  # noqa: E402
from offtrace.adapters import rlax as adapter  # noqa: E402

K, A = 9, 3
RNG = np.random.default_rng(0)


def real(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


V = real(K + 1)
DISCOUNT = jnp.asarray([0.9, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], jnp.float32)
RHO = jnp.exp(real(K))
Q = {
    "q_tm1": real(K, A), "q_t": real(K, A), "a_tm1": jnp.asarray(RNG.integers(0, A, K)),
    "a_t": jnp.asarray(RNG.integers(0, A, K)),
    "r_t": real(K), "discount_t": DISCOUNT, "pi_t": jax.nn.softmax(real(K, A)),
    "mu_t": jnp.asarray(RNG.uniform(0.1, 1, K), jnp.float32),
    "lambda_": 0.9,
}  # fmt: skip
CONTINUOUS = {
    "q_tm1": real(K), "q_t": real(K - 1), "v_t": real(K), "r_t": real(K), "discount_t": DISCOUNT, "log_rhos": real(K - 1),
    "lambda_": 0.8,
}  # fmt: skip
GIVEN = {"q_t": real(K - 1), "v_t": real(K), "r_t": real(K), "discount_t": DISCOUNT, "c_t": RHO[1:]}
STATES = {
    "v_tm1": V[:-1],
    "v_t": V[1:],
    "r_t": real(K),
    "discount_t": DISCOUNT,
    "rho_tm1": RHO,
    "lambda_": 0.9,
    "clip_rho_threshold": 1.5,
}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("retrace", Q),
        ("retrace_continuous", CONTINUOUS),
        ("general_off_policy_returns_from_q_and_v", GIVEN),
        ("vtrace", STATES),
        ("vtrace_td_error_and_advantage", STATES),
    ],
)
def test_the_same_as_rlax(name: str, arguments: dict[str, Any]) -> None:
    values = list(arguments.values())  # by position: the order is rlax's
    wanted, function = getattr(rlax, name)(*values), getattr(adapter, name)
    for found in (function(*values), jax.jit(function)(*values)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), tuple(found), tuple(wanted))


def test_gradients_are_those_of_rlax() -> None:
    def loss(function: Any, q: Any, target_q: Any) -> Any:
        return (function(**{**Q, "q_tm1": q, "q_t": target_q}, stop_target_gradients=False) ** 2).sum()

    for found, wanted in zip(
        jax.grad(lambda *q: loss(adapter.retrace, *q), (0, 1))(Q["q_tm1"], Q["q_t"]),
        jax.grad(lambda *q: loss(rlax.retrace, *q), (0, 1))(Q["q_tm1"], Q["q_t"]),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_any_trace_takes_the_place_of_retrace() -> None:
    arguments = {name: value for name, value in Q.items() if name != "lambda_"}
    np.testing.assert_array_equal(adapter.q_errors(ot.Retrace(0.9), **arguments), adapter.retrace(**Q))
    assert not np.allclose(adapter.q_errors(ot.NonMarkovRetrace(0.9), **arguments), adapter.retrace(**Q))
    without_mu = {name: value for name, value in arguments.items() if name != "mu_t"}
    assert adapter.q_errors(ot.TreeBackup(0.9), **without_mu).shape == (K,)


def test_a_truncation_ends_the_trace_and_the_advantage_keeps_to_its_episode() -> None:
    """rlax's advantage at a cut inside the sequence bootstraps from the next episode; two halves show what is right."""
    cut = 4
    apart = V.at[cut + 1].set(100.0)  # the next episode's first value, while v_t at the cut is the true next state's
    whole = {**STATES, "v_tm1": apart[:-1]}
    truncated = jnp.arange(K) == cut
    found = adapter.vtrace_td_error_and_advantage(**whole, truncated_t=truncated)
    arrays = {name: value for name, value in whole.items() if jnp.ndim(value)}
    numbers = {name: value for name, value in whole.items() if not jnp.ndim(value)}
    halves = [
        adapter.vtrace_td_error_and_advantage(**{n: a[part] for n, a in arrays.items()}, **numbers)
        for part in (slice(0, cut + 1), slice(cut + 1, None))
    ]
    for i in range(3):
        np.testing.assert_allclose(found[i], jnp.concatenate([h[i] for h in halves]), rtol=1e-5, atol=1e-5)
    theirs = rlax.vtrace_td_error_and_advantage(**whole)
    assert abs(float(theirs.pg_advantage[cut] - found.pg_advantage[cut])) > 1.0


def test_targets_from_c_are_those_of_importance_sampling_with_these_ratios() -> None:
    rng = np.random.default_rng(1)
    reward, q, next_value = rng.normal(size=(3, 4, 7))
    terminated, truncated = rng.random((2, 4, 7)) < 0.1
    c = rng.uniform(0, 2, (4, 7))
    given = {
        "reward": reward,
        "q": q,
        "next_value": next_value,
        "terminated": terminated,
        "truncated": truncated,
        "gamma": 0.9,
    }
    wanted = ot.targets(ot.ImportanceSampling(), **given, log_pi=np.log(c), log_mu=np.zeros_like(c))
    np.testing.assert_allclose(ot.targets_from_c(c, **given), wanted, rtol=1e-12)
    turned = {name: value.T if isinstance(value, np.ndarray) else value for name, value in given.items()}
    np.testing.assert_allclose(ot.targets_from_c(c.T, **turned, time_major=True), wanted.T, rtol=1e-12)
    with pytest.raises(ValueError, match="at least 0"):
        ot.targets_from_c(-c, **given)
    with pytest.raises(TypeError, match="c is given"):
        ot.targets_from_c(c, **given, log_pi=c)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("retrace", Q), ("retrace_continuous", CONTINUOUS), ("vtrace_td_error_and_advantage", STATES)],
)
def test_numpy_arrays_are_taken_as_rlax_takes_them(name: str, arguments: dict[str, Any]) -> None:
    """Beside JAX arrays too: which of them are NumPy's is all the same."""
    function = getattr(adapter, name)
    wanted = tuple(function(**arguments))
    arrays = [n for n, a in arguments.items() if jnp.ndim(a)]
    for some in (arrays, arrays[::2], arrays[1::2]):
        found = tuple(function(**{n: np.asarray(a) if n in some else a for n, a in arguments.items()}))
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
