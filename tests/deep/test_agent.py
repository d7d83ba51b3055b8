"""What the agent learns from: targets of drawn sequences against the definition, and a table as the simplest network."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import offtrace as ot
from helpers import name_of
from offtrace.deep import Config
from offtrace.deep import replay_memory as memories
from offtrace.deep.agent import probabilities
from offtrace.deep.networks import Optimizer
from offtrace.deep.replay import ReplayAgent
from offtrace.returns import by_definition

SMALL = Config(game="CartPole-v1", envs=4, every=4, batch=64, length=6, capacity=100, hidden=(16,), gamma=0.9)
# One program each: by itself, JAX would compile every operation of theirs.
EMPTY = jax.jit(memories.empty, static_argnums=(0, 1), static_argnames=("prioritised",))
WRITE = jax.jit(memories.write)
DRAW = jax.jit(memories.draw, static_argnums=(2, 3))
TRACES = [
    ot.Retrace(lam=0.9), ot.TreeBackup(lam=0.8), ot.QLambda(lam=0.7), ot.TruncatedIS(lam=0.9), ot.NonMarkovRetrace(lam=0.9),
    ot.RBIS(lam=0.9), ot.OneStep(), ot.NStep(n=3), ot.PengQ(lam=0.7),
]  # fmt: skip


def made(config: Config, steps: int = 60, states: int = 5, actions: int = 3) -> tuple[ReplayAgent, Any, Any]:
    """An agent on one-hot observations, and a memory of random steps that has been written over, full of ends of both kinds."""
    agent = ReplayAgent(config, (states,), actions)
    rng = np.random.default_rng(0)
    eye = np.eye(states, dtype=np.float32)
    now = eye[rng.integers(states, size=config.envs)]
    memory = EMPTY(config.envs, config.slots, now, prioritised=config.priority > 0)
    for _ in range(steps):
        terminated = rng.random(config.envs) < 0.1
        truncated = (rng.random(config.envs) < 0.1) & ~terminated
        action = rng.integers(actions, size=config.envs)
        log_mu = np.log(rng.uniform(0.1, 0.9, config.envs)).astype(np.float32)
        after, again = (eye[rng.integers(states, size=config.envs)] for _ in range(2))
        now = np.where((terminated | truncated)[:, None], again, after)
        reward = rng.normal(size=config.envs).astype(np.float32)
        memory = WRITE(memory, action, log_mu, reward, terminated, truncated, after, now)
    first = jax.jit(agent.first)
    learner, other = first(jax.random.PRNGKey(0)), first(jax.random.PRNGKey(1)).weights  # a target network that differs
    return agent, learner._replace(target=other), memory


def definition(trace: Any, **x: Any) -> np.ndarray:
    """The targets of one sequence."""
    if isinstance(trace, ot.Trace):
        return x["q"] + by_definition.corrections(trace, **x)[0]
    x = {name: a for name, a in x.items() if name not in ("q", "log_pi", "log_mu")}
    return by_definition.n_step(trace.n, **x) if isinstance(trace, ot.NStep) else by_definition.peng(trace.lam, **x)


Sequences = tuple[dict[str, Any], list[dict[str, Any]]]


@cache
def drawn_sequences(burn_in: int) -> Sequences:
    """What the agent makes of the sequences that it draws, as arrays of JAX; and the rows of them, worked out step by step."""
    config = replace(SMALL, batch=24, burn_in=burn_in, policies="softmax", target_epsilon=0.5)
    agent, learner, memory = made(config)
    drawn = DRAW(memory, jax.random.PRNGKey(5), config.batch, config.window)
    assert (drawn.terminated & drawn.valid).any()
    assert (drawn.truncated & drawn.valid).any()
    assert not drawn.valid.all()
    online, table_of = (
        np.asarray(agent.network(weights, drawn.observation)) for weights in (learner.weights, learner.target)
    )
    policy = np.exp(online.astype(np.float64) / 0.5)
    policy /= policy.sum(axis=-1, keepdims=True)
    made_of_them = dict(agent.trajectory(learner, drawn, jnp.asarray(online)))
    rows: list[dict[str, Any]] = []
    for i in range(config.batch):
        table, π, action = table_of[i].astype(np.float64), policy[i], np.asarray(drawn.action)[i]
        steps = np.arange(len(action))
        numbers = {
            "reward": np.asarray(drawn.reward, np.float64)[i],
            "q": table[steps, action],
            "next_value": (π * table).sum(axis=1)[1:],  # the slot after a step holds its true next observation
            "log_pi": np.log(π[steps, action]),
            "log_mu": np.asarray(drawn.log_mu, np.float64)[i],
        }
        flags = {name: np.asarray(getattr(drawn, name))[i] for name in ("terminated", "truncated", "valid")}
        rows.append({**numbers, **flags, "gamma": 0.9})
    return made_of_them, rows


@pytest.mark.parametrize(("trace", "burn_in"), [*((trace, 3) for trace in TRACES), (ot.RBIS(lam=0.9), 0)], ids=str)
def test_targets_are_those_of_the_definition(trace: Any, burn_in: int) -> None:
    """Of the arrays that the agent makes; those of one rule by JAX, which compiles a program for each."""
    made, rows = drawn_sequences(burn_in)
    if trace != ot.RBIS(lam=0.9):
        made = {name: np.asarray(x) if isinstance(x, jax.Array) else x for name, x in made.items()}
        made |= {name: made[name].astype(np.float64) for name in ("reward", "q", "next_value", "log_pi", "log_mu")}
    found = np.asarray(ot.targets(trace, **made))
    for i, row in enumerate(rows):
        valid, wanted = row["valid"], definition(trace, **row)
        np.testing.assert_allclose(found[i][valid], wanted[valid], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["epsilon", "softmax"])
def test_policies(kind: str) -> None:
    q = jnp.asarray([[1.0, 3.0, 3.0, 0.0], [2.0, 1.0, 0.0, -1.0]])
    π = np.asarray(probabilities(kind, q, 0.2))
    np.testing.assert_allclose(π.sum(axis=1), 1.0, rtol=1e-6)
    if kind == "epsilon":
        np.testing.assert_allclose(π, [[0.05, 0.45, 0.45, 0.05], [0.85, 0.05, 0.05, 0.05]], rtol=1e-6)
    else:
        np.testing.assert_allclose(π[1], np.exp(5 * np.asarray(q[1])) / np.exp(5 * np.asarray(q[1])).sum(), rtol=1e-5)


def test_log_mu_is_that_of_the_action_as_it_was_taken() -> None:
    agent, learner, _ = made(replace(SMALL, explore_epsilon=0.6, behavior_epsilon=0.1, explore_frames=1000))
    seen = jnp.asarray(np.eye(5, dtype=np.float32)[np.arange(5).repeat(2000)])
    action, log_mu = map(np.asarray, jax.jit(agent.act)(learner, seen, 500, jax.random.PRNGKey(0)))
    half_way = jax.jit(lambda learner: probabilities("epsilon", agent.values(learner, seen), 0.35))  # from 0.6 to 0.1
    μ = np.asarray(half_way(learner))
    np.testing.assert_allclose(np.exp(log_mu), μ[np.arange(10_000), action], rtol=1e-5)
    for s in range(5):
        often = np.bincount(action[2000 * s : 2000 * (s + 1)], minlength=3) / 2000
        assert np.abs(often - μ[2000 * s]).max() < 0.05


@pytest.mark.parametrize("trace", [ot.Retrace(lam=0.9), ot.RBIS(lam=0.9)], ids=name_of)
def test_a_table_learns_what_the_tabular_replay_learner_does(trace: Any) -> None:
    """Q(s_k, a_k) += α Δ_k, summed over a sequence and then added: `learners` with update = "replay"."""
    α, n = 0.3, 6
    config = replace(
        SMALL, trace=trace, hidden=(), loss="squared", batch=1, double=False, target_every=1, clip=0.0,
        policies="epsilon", target_epsilon=0.1, capacity=4 * 61,
    )  # fmt: skip
    agent, learner, memory = made(config)
    agent.optimizer = Optimizer(optax.sgd(α), clip=0.0)
    learner = jax.jit(agent.first)(jax.random.PRNGKey(0))
    q = np.zeros((5, 3))
    learn = jax.jit(agent.learn)
    for update in range(40):
        key = jax.random.PRNGKey(update)
        drawn = DRAW(memory, jax.random.split(key)[0], 1, n + 1)
        learner, memory, _ = learn(trace, learner, memory, key)
        s, valid = np.argmax(drawn.observation[0], axis=1), np.asarray(drawn.valid[0])
        best = q == q.max(axis=1, keepdims=True)
        π = 0.1 / 3 + 0.9 * best / best.sum(axis=1, keepdims=True)
        a = np.asarray(drawn.action[0])
        Δ, _ = by_definition.corrections(
            trace,
            reward=np.asarray(drawn.reward[0], np.float64),
            q=q[s[:-1], a],
            next_value=(π * q).sum(axis=1)[s[1:]],
            terminated=np.asarray(drawn.terminated[0]),
            truncated=np.asarray(drawn.truncated[0]),
            valid=valid,
            log_pi=np.log(π[s[:-1], a]),
            log_mu=np.asarray(drawn.log_mu[0], np.float64),
            gamma=0.9,
        )
        np.add.at(q, (s[:-1][valid], a[valid]), α * Δ[valid] / valid.sum())  # the loss is a mean over the steps
    found = np.asarray(jax.jit(agent.values)(learner, np.eye(5)))
    assert np.abs(q).max() > 0.3
    np.testing.assert_allclose(found, q, rtol=1e-4, atol=1e-5)


def test_minibatches_see_every_step_once_and_targets_of_before() -> None:
    """DQN(λ): with a step size of 0 the mean loss of the pieces is the loss of the whole."""
    whole = replace(SMALL, loss="squared", trace=ot.RBIS(lam=0.9), capacity=2000)
    pieces = replace(whole, minibatches=8)
    losses = []
    for config in (whole, pieces):
        agent, learner, memory = made(config)
        memory = memory._replace(valid=jnp.ones_like(memory.valid))  # all pieces then have as many steps that count
        agent.optimizer = Optimizer(optax.sgd(0.0), clip=0.0)
        learner = learner._replace(optimizer=agent.optimizer.first(learner.weights).optimizer)
        learner, _, loss = jax.jit(agent.learn)(config.trace, learner, memory, jax.random.PRNGKey(3))
        losses.append(float(loss))
        assert int(learner.updates) == config.minibatches
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_burn_in_is_not_learned_from() -> None:
    config = replace(SMALL, burn_in=4)
    agent, _learner, memory = made(config)
    drawn = DRAW(memory, jax.random.PRNGKey(5), config.batch, config.window)
    counted = np.asarray(agent.counted(drawn))
    assert drawn.action.shape == (64, 10)
    assert not counted[:, :4].any()
    np.testing.assert_array_equal(counted[:, 4:] > 0, drawn.valid[:, 4:])


def test_credit_is_what_diagnose_says() -> None:
    trace = ot.NonMarkovRetrace(lam=0.9)
    config = replace(SMALL, trace=trace)
    agent, learner, memory = made(config)
    key = jax.random.PRNGKey(8)
    found = jax.jit(agent.credit)(trace, learner, memory, key)
    drawn = DRAW(memory, key, config.batch, config.window)
    x = jax.jit(lambda learner: agent.trajectory(learner, drawn, agent.values(learner, drawn.observation)))(learner)
    rows = {n: np.asarray(x[n], np.float64) for n in ("log_pi", "log_mu")}
    flags = {n: np.asarray(x[n]) for n in ("terminated", "truncated", "valid")}
    for name, gamma in (("magnitude", 0.9), ("length", 1.0)):
        wanted = ot.diagnose(trace, **rows, **flags, gamma=gamma).pooled.magnitude
        assert float(getattr(found, name)) == pytest.approx(wanted, rel=1e-5)
    assert 0 < float(found.cut) < 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"capacity": 20}, "the memory is too small"),
        ({"every": 6}, "multiple of envs"),
        ({"gamma": 1.5}, r"gamma must be within \[0, 1\]"),
        ({"minibatches": 5}, "divisor"),
        ({"loss": "hubber"}, "huber"),
        ({"policies": "softmax", "target_epsilon": 0.0}, "temperature"),
        ({"learning_rate": 0.0}, "above 0"),
    ],
)
def test_a_configuration_checks_itself(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(SMALL, **change)
