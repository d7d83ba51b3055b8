"""Every agent: it learns CartPole, a run of it that stops and goes on is the run that did not stop, and it can be played."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import offtrace as ot
from deep.small import GAME, LEARNERS, SEEDS, configured
from helpers import whole
from offtrace.deep import (
    PQN,
    Config,
    LearningError,
    StreamAC,
    StreamQ,
    Trained,
    checkpoints,
    play,
    train,
)
from offtrace.deep.config import AGENTS, configuration
from offtrace.deep.runs import CURVE
from offtrace.deep.training import Tally


class Stop(Exception):
    """In the middle of it."""


def same(one: Trained, other: Trained) -> bool:
    """Whether all that two runs know is the same, to the bit."""
    leaves = zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in leaves) and repr(one.curve) == repr(other.curve)


def median_return(trained: Trained) -> float:
    """Over the seeds, in the last fifth of the frames. A seed whose games were all too good to end there has none."""
    return float(np.nanmedian(trained.last_return(trained.config.frames // 5)))


SHORT = ("replay", "stream-ac")
"""One that learns values and one that learns a policy."""


@pytest.mark.parametrize("name", [*SHORT, *whole(name for name in LEARNERS if name not in SHORT)])
def test_it_learns(name: str) -> None:
    config, wanted = LEARNERS[name]
    assert median_return(train(config, SEEDS, progress=False)) > wanted


RESUMED = (*SHORT, "stream-q")
"""A memory, an actor, and a stream of groups."""


@pytest.mark.parametrize("name", [*RESUMED, *whole(name for name in LEARNERS if name not in RESUMED)])
def test_it_goes_on_from_where_it_was_stopped(name: str, tmp_path: Path) -> None:
    """The short run that is stopped at its second report is the beginning of one that learns."""
    config = LEARNERS[name][0]
    short, reports = replace(config, frames=config.begin + 4 * config.round), 0

    def stop(frames: int, tally: Tally[np.ndarray]) -> None:
        nonlocal reports
        reports += 1
        if reports == 2:
            raise Stop

    with pytest.raises(Stop):
        train(short, SEEDS, tmp_path, progress=False, save_every=0.0, logs=False, on_report=stop)
    assert len(checkpoints.in_folder(tmp_path)) == 1
    on = train(short, SEEDS, tmp_path, progress=False, logs=False)
    assert len(on.curve) > 1
    assert same(on, train(short, SEEDS, progress=False))
    assert checkpoints.about(checkpoints.in_folder(tmp_path)[-1])["agent"] == name


def test_what_has_been_learned_is_played(tmp_path: Path) -> None:
    """With what it has learned of observations, too, which are normalised."""
    config, wanted = LEARNERS["stream-ac"]
    train(config, SEEDS, tmp_path, progress=False, logs=False)
    game = play(tmp_path, steps=200)
    assert max(len(game.moments), *game.returns, 0) > wanted
    assert type(game.config) is StreamAC


def test_every_agent_is_tried_here() -> None:
    assert {*LEARNERS} == {*AGENTS}


def test_a_stream_that_had_to_forget_a_group_is_an_error(tmp_path: Path) -> None:
    config = replace(LEARNERS["stream-q"][0], frames=200)
    state = train(config, SEEDS, progress=False).state
    kept = state.memory.kept._replace(lost=state.memory.kept.lost + 0.1)
    forgetful = state._replace(memory=state.memory._replace(kept=kept))
    checkpoints.save(tmp_path, forgetful, np.zeros(0, CURVE), checkpoints.described(config, list(range(SEEDS))), keep=2)
    with pytest.raises(LearningError, match=r"needs more than groups = 64 groups of starts: one that counted 0\.1"):
        train(replace(config, frames=400), SEEDS, tmp_path, progress=False, logs=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StreamQ(**GAME, envs=2), "envs must be 1"),
        (lambda: StreamQ(**GAME, trace=ot.PengQ(lam=0.5)), "step by step, a rule needs a β"),
        (lambda: PQN(**GAME, minibatches=7), r"a divisor of envs × length = 4096"),
        (lambda: configuration("pqm"), "did you mean 'pqn'"),
        (lambda: PQN(**GAME, trace=ot.CTrace()), "needs μ of all actions"),
        (lambda: Config(**GAME, trace=ot.OneStep(), choose_lam="median"), "One-step has none"),
        (lambda: StreamAC(**GAME), "explore_frames"),  # an actor has no ε
    ],
)
def test_what_does_not_fit_is_said_in_words(make: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        make()


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_is_an_option_and_has_its_own_options(name: str) -> None:
    found = configured(["a", "--agent", name, "--gamma", "0.5", "--lam", "0.25"])
    kind = configuration(name)
    default: Any = kind(game="a").trace
    assert found == kind(game="a", gamma=0.5, trace=replace(default, lam=0.25))
    others = {f.name for cls in AGENTS.values() for f in fields(cls)} - {f.name for f in fields(kind)}
    for option in sorted(others & {"batch", "epochs", "overshooting"}):
        with pytest.raises(ValueError, match=f"--{option} is an option of"):
            configured(["a", "--agent", name, f"--{option}", "1"])


def test_targets_of_fresh_steps_are_those_of_the_definition() -> None:
    """PQN: q, next values and π are those of the current network, and the next observation is the true one."""
    import jax.numpy as jnp

    from offtrace.deep import fresh_steps
    from offtrace.deep.agent import Acted, make
    from offtrace.deep.games import Stepped
    from offtrace.returns import by_definition

    config = PQN(
        game="a", envs=3, length=7, minibatches=1, hidden=(), gamma=0.9, policies="softmax", target_epsilon=0.5
    )
    agent: Any = make(config, (5,), 2)
    table = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    remember = jax.jit(agent.remember)  # in one program: by itself, JAX would compile every operation
    learner = jax.jit(agent.first)(jax.random.PRNGKey(0))
    learner = learner._replace(weights=jax.tree.map(lambda w: jnp.asarray(table).reshape(w.shape), learner.weights))
    rng, eye = np.random.default_rng(1), np.eye(5, dtype=np.float32)
    now, memory, seen = rng.integers(5, size=3), agent.empty(jnp.asarray(eye[:3])), []
    for _ in range(2 * 7):  # what is older than a round is written over
        action, μ, reward = rng.integers(2, size=3), rng.uniform(0.1, 0.9, 3), rng.normal(size=3)
        terminated, truncated = rng.random((2, 3)) < 0.2
        truncated &= ~terminated
        after, again = rng.integers(5, size=(2, 3))
        then = np.where(terminated | truncated, again, after)
        stepped: Any = Stepped(None, *map(jnp.asarray, (eye[then], eye[after], reward, terminated, truncated)))
        acted = Acted(jnp.asarray(action), jnp.log(jnp.asarray(μ)))
        memory = remember(learner, memory, jnp.asarray(0), jnp.asarray(eye[now]), acted, stepped)
        seen.append((now, action, μ, reward, terminated, truncated, after))
        now = then
    assert isinstance(memory, fresh_steps.Steps)
    trace = ot.RBIS(lam=0.9)
    found = np.asarray(ot.targets(trace, **agent.trajectory(learner, memory)))
    π = np.exp(table / 0.5) / np.exp(table / 0.5).sum(axis=1, keepdims=True)
    for e in range(3):
        s, a, μ, reward, terminated, truncated, after = (np.array([step[i][e] for step in seen[7:]]) for i in range(7))
        x: Any = {"reward": reward, "q": table[s, a], "next_value": (π * table).sum(axis=1)[after], "gamma": 0.9}
        flags: Any = {"terminated": terminated, "truncated": truncated}
        wanted = x["q"] + by_definition.corrections(trace, **x, **flags, log_pi=np.log(π[s, a]), log_mu=np.log(μ))[0]
        np.testing.assert_allclose(found[e], wanted, rtol=1e-4, atol=1e-5)


def test_a_gymnasium_game_is_streamed_and_goes_on_with_new_episodes(tmp_path: Path) -> None:
    """What the host steps is learned from as well; where it goes on, no trace reaches back into the episode that is lost."""
    config = StreamQ(**{**GAME, "game": "gym/CartPole-v1"}, frames=60)
    before = train(config, 1, tmp_path, progress=False, logs=False)
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(before.state.memory.kept))
    cleared = jax.vmap(before.agent.cut)(before.state.memory, before.state.observation)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(cleared.kept))
    assert train(replace(config, frames=90), 1, tmp_path, progress=False, logs=False).curve["frames"][-1] == 90
