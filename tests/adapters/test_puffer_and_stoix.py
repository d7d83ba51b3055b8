"""PufferLib's advantage and Stoix's Retrace, against their recursions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import offtrace as ot
from offtrace.adapters import pufferlib, stoix

compute_puff_advantage: Any = pufferlib.compute_puff_advantage
batch_retrace_continuous: Any = stoix.batch_retrace_continuous


def puff(given, gamma, lam, rho_clip, c_clip):
    """The loop over a row, as PufferLib's extension has it."""
    values, rewards, terminals, ratio = given
    out = np.zeros_like(values)
    for b, t in ((b, t) for b in range(len(values)) for t in reversed(range(values.shape[1] - 1))):
        goes_on = 1.0 - terminals[b, t + 1]
        delta = rewards[b, t + 1] + gamma * values[b, t + 1] * goes_on - values[b, t]
        out[b, t] = min(ratio[b, t], rho_clip) * delta
        out[b, t] += gamma * lam * min(ratio[b, t], c_clip) * goes_on * out[b, t + 1]
    return out


def segments(seed=0, shape=(4, 9)) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    values, rewards = rng.normal(size=(2, *shape))
    return values, rewards, (rng.random(shape) < 0.15).astype(float), 2.5 * rng.random(shape)


@pytest.mark.parametrize("clips", [(1.0, 1.0), (1.0, 0.8), (3.0, 0.5)])
def test_puffer_advantage(clips: tuple[float, float]) -> None:
    given = segments()
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        tensors: Any = [torch.from_numpy(a).to(dtype) for a in given]
        out = torch.full_like(tensors[0], torch.nan)
        got = compute_puff_advantage(*tensors, out, 0.995, 0.91, *clips)
        assert got is out
        np.testing.assert_allclose(got, puff(given, 0.995, 0.91, *clips), rtol=tolerance, atol=tolerance)


def test_puffer_advantage_on_policy_is_gae_and_takes_any_trace() -> None:
    values, rewards, terminals, ratio = (torch.from_numpy(a) for a in segments(1))
    out, one = torch.empty_like(values), torch.ones_like(ratio)
    gae = compute_puff_advantage(values, rewards, terminals, one, out.clone(), 0.9, 0.8, 1.0, 1.0)
    by_trace = compute_puff_advantage(
        values, rewards, terminals, one, out.clone(), 0.9, 0.0, 0.0, 0.0, trace=ot.ImportanceSampling(0.8)
    )
    np.testing.assert_allclose(gae, by_trace, rtol=1e-12)
    ratio[0, 0] = 0.0
    other = compute_puff_advantage(values, rewards, terminals, ratio, out, 0.9, 0.8, 1.0, 1.0, trace=ot.RBIS(0.9))
    assert torch.isfinite(other).all()
    assert other[0, 0] == 0


def retrace(given, lam):
    """G_k = r_k + γ_k (v_k + c_k (G_{k+1} − q_k)), c = λ min(1, ρ)."""
    q_tm1, q_t, v_t, r_t, discount_t, log_rhos = given
    c, out = lam * np.minimum(1.0, np.exp(log_rhos)), np.zeros_like(r_t)
    for b, k in ((b, k) for b in range(len(r_t)) for k in reversed(range(r_t.shape[1]))):
        ahead = c[b, k] * (out[b, k + 1] - q_t[b, k]) if k + 1 < r_t.shape[1] else 0.0
        out[b, k] = r_t[b, k] + discount_t[b, k] * (v_t[b, k] + ahead)
    return out - q_tm1


def sequences(seed=2, shape=(3, 7)) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    q_tm1, v_t, r_t = rng.normal(size=(3, *shape))
    q_t, log_rhos = rng.normal(size=(2, shape[0], shape[1] - 1))
    return q_tm1, q_t, v_t, r_t, 0.95 * (rng.random(shape) < 0.9), log_rhos


@pytest.mark.parametrize("lam", [0.9, "by step"])
def test_stoix_retrace(lam: Any) -> None:
    given = sequences()
    lam = np.linspace(0.1, 1.0, 6) if isinstance(lam, str) else lam
    wanted = retrace(given, lam)
    arrays: Any = [jnp.asarray(a, jnp.float32) for a in given]
    for call in (batch_retrace_continuous, jax.jit(batch_retrace_continuous)):
        np.testing.assert_allclose(call(*arrays, jnp.asarray(lam)), wanted, rtol=1e-5, atol=1e-5)
    by_trace = batch_retrace_continuous(*arrays, 0.0, trace=ot.Retrace(0.9))
    np.testing.assert_allclose(by_trace, retrace(given, 0.9), rtol=1e-5, atol=1e-5)


def test_stoix_gradients_stop_at_the_target() -> None:
    arrays: Any = [jnp.asarray(a, jnp.float32) for a in sequences(3)]
    q_tm1, q_t, *rest = arrays

    def loss(q_tm1, q_t, stop):
        return jnp.sum(batch_retrace_continuous(q_tm1, q_t, *rest, 0.9, stop) ** 2)

    of_q_t = jax.jit(jax.grad(loss, 1), static_argnums=2)
    assert (of_q_t(q_tm1, q_t, True) == 0).all()
    assert (of_q_t(q_tm1, q_t, False) != 0).any()
