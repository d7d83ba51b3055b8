"""The categorical agent: its targets have the means of ordinary ones, and it does not learn from rewards of the wrong sign."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offtrace as ot
from deep.small import GAME, LEARNERS, SEEDS
from offtrace.deep import Categorical, categorical, train
from offtrace.deep.agent import make, of_action
from offtrace.deep.replay_memory import Sequences


def drawn(n: int, steps: int, observations: int, actions: int) -> Sequences:
    """Sequences with ends and padding."""
    rng = np.random.default_rng(0)
    flags = rng.random((3, n, steps))
    given: dict[str, Any] = {
        "observation": rng.normal(size=(n, steps + 1, observations)), "action": rng.integers(actions, size=(n, steps)),
        "reward": rng.normal(size=(n, steps)), "log_mu": np.log(rng.uniform(0.3, 1.0, (n, steps))),
        "terminated": flags[0] < 0.1, "truncated": flags[1] < 0.1, "valid": flags[2] < 0.9, "weight": np.ones(n),
    }  # fmt: skip
    arrays = {name: jnp.asarray(a, jnp.float32 if a.dtype == float else None) for name, a in given.items()}
    return Sequences(**{name: arrays.get(name) for name in Sequences._fields})  # pyright: ignore


@pytest.mark.parametrize("trace", [ot.Retrace(0.9), ot.RBIS(0.9), ot.NStep(3)], ids=repr)
def test_its_errors_are_those_of_the_means(trace: Any) -> None:
    """With a support that nothing leaves and no clipping: target · support − q is the ordinary target's error."""
    config = Categorical(game="a", hidden=(8,), atoms=81, least=-400.0, most=400.0, clip_masses=False, envs=2)
    agent: Any = make(config, (3,), 2)
    learner = jax.jit(agent.first)(jax.random.PRNGKey(0))
    # masses in the middle of the support
    some = drawn(4, 6, 3, 2)

    def centred(weights: Any, observation: Any) -> Any:
        logits = nnx_logits(weights, observation)
        return logits - 0.05 * jnp.square(jnp.arange(81) - 40.0)

    nnx_logits = agent.logits
    agent.logits = centred

    @jax.jit
    def both(learner: Any) -> Any:
        online = agent.of_weights(learner.weights, some.observation)
        x = agent.trajectory(learner, some, online, trace)
        wanted = ot.targets(trace, **x) - of_action(online[:, :-1], some.action)
        return wanted, agent._whole(trace, learner, some)[2]

    wanted, error = both(learner)
    there = np.asarray(some.valid)
    np.testing.assert_allclose(np.asarray(error)[there], np.asarray(wanted)[there], rtol=1e-3, atol=5e-3)


@pytest.mark.whole
def test_it_does_not_learn_from_rewards_of_the_wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    right = categorical.distributional_targets

    def flipped(trace: Any, **given: Any) -> Any:
        return right(trace, **{**given, "reward": -given["reward"]})

    monkeypatch.setattr(categorical, "distributional_targets", flipped)
    config = replace(LEARNERS["categorical"][0], gamma=0.951, least=-20.0)  # a program of its own
    trained = train(config, SEEDS, progress=False)
    assert np.nanmedian(trained.last_return(2_000)) < 30


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"least": 1.0, "most": 1.0}, "most must be above least"),
        ({"atoms": 1}, "atoms must be a whole number ≥ 2"),
        ({"minibatches": 4}, "minibatches must be 1"),
        ({"choose_lam": "median"}, 'choose_lam must be "given"'),
        ({"transform": "symlog"}, 'transform must be "none"'),
    ],
)
def test_what_does_not_fit_is_said(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Categorical(**GAME, **settings)
