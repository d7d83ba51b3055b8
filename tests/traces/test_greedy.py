"""Watkins' Q(λ) goes by the greedy action, wherever π is soft: told, refused, or asked of Q, never read off π > 0."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import offtrace as ot
from offtrace.mdps import random_walk, uniform
from offtrace.operators import certify, falsify

LAM, GAMMA = 0.9, 0.97


def soft(seed: int = 0, B: int = 3, T: int = 40, A: int = 4, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    """A trajectory under an ε-greedy target: π is never 0."""
    rng = np.random.default_rng(seed)
    q_all = rng.normal(size=(B, T, A))
    action = np.where(rng.random((B, T)) < 0.7, q_all.argmax(-1), rng.integers(0, A, (B, T)))
    greedy = action == q_all.argmax(-1)
    made = {"reward": rng.normal(size=(B, T)), "q": np.take_along_axis(q_all, action[..., None], -1)[..., 0]}
    made |= {"next_value": rng.normal(size=(B, T)), "log_pi": np.log(np.where(greedy, 0.925, 0.025))}
    flags = {"terminated": rng.random((B, T)) < 0.05, "truncated": rng.random((B, T)) < 0.05, "greedy": greedy}
    return {name: array.astype(dtype) for name, array in made.items()} | flags


def watkins(x: dict[str, np.ndarray], b: int) -> list[float]:
    """Watkins (1989) as Sutton and Barto print it: a trace of past steps, λγ-decayed, emptied after an exploratory action."""
    T = x["reward"].shape[1]
    total, trace = [0.0] * T, {}
    for t in range(T):
        if not x["greedy"][b, t]:
            trace = {}
        trace[t] = 1.0
        ahead = 0.0 if x["terminated"][b, t] else GAMMA * x["next_value"][b, t]
        delta = x["reward"][b, t] + ahead - x["q"][b, t]
        for k, e in trace.items():
            total[k] += e * delta
        ended = x["terminated"][b, t] or x["truncated"][b, t]
        trace = {} if ended else {k: GAMMA * LAM * e for k, e in trace.items()}
    return total


def test_it_is_watkins_on_a_soft_target() -> None:
    x = soft()
    found = ot.corrections(ot.WatkinsQ(LAM), gamma=GAMMA, **x)
    np.testing.assert_allclose(found, [watkins(x, b) for b in range(3)], rtol=1e-12, atol=1e-13)
    assert np.abs(found - ot.corrections(ot.QLambda(LAM), gamma=GAMMA, **x)).max() > 0.1


def test_on_every_backend() -> None:
    x = soft()
    wanted = ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **x)
    tensors = {n: torch.from_numpy(a) for n, a in x.items()}
    for differentiable in (False, True):
        found = ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **tensors, differentiable=differentiable)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    x = {n: jnp.asarray(a) for n, a in soft(dtype=np.float32).items()}
    for call in (ot.targets, jax.jit(lambda trace, **y: ot.targets(trace, **y))):
        np.testing.assert_allclose(call(ot.WatkinsQ(LAM), gamma=GAMMA, **x), wanted, rtol=1e-5, atol=1e-5)
    # log π of the greedy policy says the same.
    greedy = {n: a for n, a in soft().items() if n != "greedy"} | {"log_pi": np.where(soft()["greedy"], 0.0, -np.inf)}
    np.testing.assert_array_equal(ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **greedy), wanted)


def test_a_soft_pi_alone_is_refused_or_nan() -> None:
    x = {n: a for n, a in soft().items() if n != "greedy"}
    words = r"log_pi is of a soft policy: got -\S+ at index \[0, 0\].*pass greedy="
    with pytest.raises(ValueError, match=words):
        ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **x)
    with pytest.raises(ValueError, match=words):
        ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **{n: torch.from_numpy(a) for n, a in x.items()})
    arrays = {n: jnp.asarray(a) for n, a in x.items()}
    with pytest.raises(ValueError, match=words):
        ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **arrays)
    found = jax.jit(lambda **y: ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **y))(**arrays)
    goes_on = ~(x["terminated"] | x["truncated"])[:, :-1]
    assert np.isnan(found[:, :-1])[goes_on].all()
    with pytest.raises(TypeError, match="greedy is missing: Watkins' Q"):
        ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **{n: a for n, a in x.items() if n != "log_pi"})
    with pytest.raises(ValueError, match=r"greedy has shape \(40,\) but the trajectory has \(3, 40\)"):
        ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **x, greedy=np.ones(40, bool))
    with pytest.raises(TypeError, match="greedy must be boolean"):
        ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **x, greedy=np.ones((3, 40)))


def test_padding_is_not_read() -> None:
    x = soft() | {"valid": np.arange(40) < np.array([[40], [30], [10]])}
    wanted = ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **x)
    soft_there = {n: a for n, a in x.items() if n != "greedy"}
    soft_there["log_pi"] = np.where(x["valid"], np.where(x["greedy"], 0.0, -np.inf), -0.5)
    np.testing.assert_array_equal(ot.targets(ot.WatkinsQ(LAM), gamma=GAMMA, **soft_there), wanted)


def test_operators_want_a_greedy_target() -> None:
    mdp = random_walk(5, gamma=0.9)
    mu = uniform(mdp)
    with pytest.raises(ValueError, match="defined by the greedy action, which a soft target does not tell"):
        certify(ot.WatkinsQ(1.0), mdp, np.tile([0.7, 0.3], (mdp.S, 1)), mu)
    assert certify(ot.WatkinsQ(1.0), mdp, np.tile([1.0, 0.0], (mdp.S, 1)), mu).converges
    with pytest.raises(TypeError, match="falsify cannot search with Watkins"):
        falsify(ot.WatkinsQ(1.0))
