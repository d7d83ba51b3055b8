"""Rules whose numbers the agent itself moves: the dynamic λ of DQN(λ), and α of C-trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offtrace as ot
from offtrace.deep import Config, chosen_lam
from offtrace.deep import replay_memory as memories
from offtrace.deep.agent import Acted, Trajectory
from offtrace.deep.games import Stepped
from offtrace.deep.replay import ReplayAgent


def sequences(n: int = 4, steps: int = 6) -> Trajectory:
    """Sequences with ends and padding, whose errors are of different sizes."""
    rng = np.random.default_rng(3)
    terminated = rng.random((n, steps)) < 0.15
    numbers = {
        k: rng.normal(size=(n, steps)) * np.array([[0.02], [0.3], [1.0], [0.1]]) for k in ("reward", "q", "next_value")
    }
    flags = {
        "terminated": terminated,
        "truncated": ~terminated & (rng.random((n, steps)) < 0.1),
        "valid": rng.random((n, steps)) > 0.1,
    }
    logs = {"log_pi": np.log(rng.uniform(0.2, 0.9, (n, steps))), "log_mu": np.log(rng.uniform(0.2, 0.9, (n, steps)))}
    arrays: Any = {
        k: jnp.asarray(v, jnp.float32 if v.dtype == float else bool) for k, v in {**numbers, **flags, **logs}.items()
    }
    made: Any = {**arrays, "greedy": jnp.ones((n, steps), bool), "gamma": 0.9, "time_major": False}
    return made


def jitted(choose: Any, trace: Any, x: Trajectory, *given: float) -> np.ndarray:
    """In one program, as agents run it: by itself, JAX would compile every operation."""
    arrays = {name: array for name, array in x.items() if isinstance(array, jax.Array)}
    return np.asarray(jax.jit(lambda arrays: choose(trace, {**x, **arrays}, *given))(arrays))


def at(trace: Any, x: Trajectory, lam: float) -> np.ndarray:
    """The targets with this λ, by the NumPy backend."""
    plain: Any = {
        k: np.asarray(v, np.float64) if k in ("reward", "q", "next_value", "log_pi", "log_mu") else v
        for k, v in x.items()
    }
    plain = {k: np.asarray(v) if isinstance(v, jax.Array) else v for k, v in plain.items() if k != "greedy"}
    return ot.targets(replace(trace, lam=lam), **plain)


def test_the_median_over_lam() -> None:
    x, trace = sequences(), ot.Retrace()
    wanted = np.median([at(trace, x, i / 20) for i in range(21)], axis=0)
    np.testing.assert_allclose(jitted(chosen_lam.median, trace, x), wanted, rtol=1e-4, atol=1e-5)


def test_the_largest_lam_whose_errors_are_small() -> None:
    """A multiple of 1/128, or 1: for some sequences all are small, for others none is, and for one it lies in between."""
    x, trace, bound = sequences(), ot.Retrace(), 0.45
    found, valid = jitted(chosen_lam.bounded, trace, x, bound), np.asarray(x["valid"])
    chosen = []
    for i in range(4):
        low, high = 0.0, 1.0
        for lam in (1.0, *[None] * 7):
            middle = lam or 0.5 * (low + high)
            off = (at(trace, x, middle)[i] - np.asarray(x["q"][i]))[valid[i]]
            if (off**2).mean() <= bound:
                low = middle
                if lam == 1.0:
                    break
            elif lam is None:
                high = middle
        chosen.append(low)
        np.testing.assert_allclose(found[i][valid[i]], at(trace, x, low)[i][valid[i]], rtol=1e-4, atol=1e-4)
    assert 1.0 in chosen
    assert 0.0 in chosen
    assert any(0.0 < lam < 1.0 for lam in chosen)


def test_c_trace_evaluates_its_mixture_and_moves_it_as_adapt_does() -> None:
    trace = ot.CTrace(rate=0.7, mix=0.4, step_size=1.0, lam=0.9)
    config = Config(
        game="a", envs=2, every=2, batch=6, length=5, capacity=60, hidden=(), trace=trace, gamma=0.9, double=False,
        policies="softmax", target_epsilon=0.5, behavior_epsilon=2.0, explore_epsilon=2.0,
    )  # fmt: skip
    agent = ReplayAgent(config.for_programs(), (3,), 2)
    rng, eye = np.random.default_rng(0), np.eye(3, dtype=np.float32)
    table = jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)
    act, remember = jax.jit(agent.act), jax.jit(agent.remember)
    learner = jax.jit(agent.first)(jax.random.PRNGKey(0))
    weights = jax.tree.map(lambda w: table.reshape(w.shape), learner.weights)
    learner = learner._replace(weights=weights, target=weights)
    now, memory = rng.integers(3, size=2), agent.empty(jnp.asarray(eye[:2]))
    for _ in range(12):
        terminated, truncated = rng.random((2, 2)) < 0.15
        truncated &= ~terminated
        after, again = rng.integers(3, size=(2, 2))
        then = np.where(terminated | truncated, again, after)
        reward = rng.normal(size=2).astype(np.float32)
        seen: Any = Stepped(None, *map(jnp.asarray, (eye[then], eye[after], reward, terminated, truncated)))
        acted = act(learner, jnp.asarray(eye[now]), 0, jax.random.PRNGKey(int(rng.integers(1 << 30))))
        assert acted.log_mu.shape == (2, 2)
        memory = remember(learner, memory, jnp.asarray(0), jnp.asarray(eye[now]), Acted(*acted), seen)
        now = then
    key = jax.random.PRNGKey(4)
    draw = jax.jit(memories.draw, static_argnums=(2, 3))
    drawn = draw(memory, jax.random.split(key)[0], config.batch, config.window)
    q = np.asarray(table, np.float64)
    π, μ = (np.exp(q / t) / np.exp(q / t).sum(axis=1, keepdims=True) for t in (0.5, 2.0))
    s, a, valid = np.argmax(drawn.observation, axis=2), np.asarray(drawn.action), np.asarray(drawn.valid)
    x = agent.trajectory(learner, drawn, agent.values(learner, drawn.observation), trace)
    mixed = ((0.4 * π + 0.6 * μ) * q).sum(axis=1)
    np.testing.assert_allclose(np.asarray(x["next_value"])[valid], mixed[s[:, 1:]][valid], rtol=1e-5)
    moved = jax.jit(agent.moved)(trace, learner, drawn)
    flags: Any = {name: np.asarray(getattr(drawn, name)) for name in ("terminated", "truncated", "valid")}
    logs = {"log_pi": np.log(π[s[:, :-1], a]), "log_mu": np.log(μ[s[:, :-1], a])}
    wanted = ot.adapt(trace, **flags, **logs, gamma=0.9)
    assert isinstance(moved, ot.CTrace)
    assert float(moved.mix) == pytest.approx(wanted.mix, rel=1e-4)
    learned: Any = learner._replace(updates=jnp.ones((), jnp.int32), rule=moved)
    before, then = (agent.adapted(trace, each) for each in (learner, learned))
    assert isinstance(before, ot.CTrace)
    assert isinstance(then, ot.CTrace)
    assert float(before.mix) == pytest.approx(0.4)  # before the first update it is the rule that was given
    assert float(then.mix) == pytest.approx(wanted.mix, rel=1e-4)
    assert 0 < wanted.mix < 1
    assert wanted.mix != 0.4
