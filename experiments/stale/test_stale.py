"""Old rollouts: the sampler draws what the learner computes, data are as old as they say, and a study of them is shown."""

from __future__ import annotations

import json
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from stale.grid import Grid, token_task
from stale.token_tasks import addition, reverse, sort
from stale.weighting import Weighting

jax = pytest.importorskip("jax")
pytest.importorskip("optax")
jnp = jax.numpy

from stale import training, transformer  # noqa: E402
from stale.run import Work, complete_lines, unit_of  # noqa: E402
from stale.tables import frame, text  # noqa: E402
from stale.training import Measured, Runs, Setting  # noqa: E402
from stale.transformer import Shape  # noqa: E402
from stale.units import tidy  # noqa: E402

TASK = reverse(length=3, symbols=4)
SETTING = Setting(TASK, Shape(2, 8, 2), updates=4, prompts=3, answers=4, oldest=3)
NONE = Weighting(ot.QLambda(lam=1.0), "token")
PREFIX = Weighting(ot.NonMarkovRetrace(lam=1.0), "prefix")


# One program each: by itself, JAX would compile every operation of theirs.
FIRST = jax.jit(lambda key: transformer.first(key, TASK, SETTING.shape))
MOVED = jax.jit(lambda weights, step, alpha: {name: w - alpha * step[name] for name, w in weights.items()})
LOG_PI = jax.jit(partial(training.log_probabilities, SETTING))
LOGITS = jax.jit(lambda weights, prompts, tokens: transformer.logits(weights, TASK, SETTING.shape, prompts, tokens))


def policy(seed: int = 0) -> transformer.Weights:
    """Weights whose outputs are far from uniform."""
    made = FIRST(jax.random.PRNGKey(seed))
    return {**made, "out": 10.0 * made["out"]}


@cache
def rollouts(top_p: float, precision: str) -> Any:
    return jax.jit(partial(training.rollouts, SETTING._replace(top_p=top_p, precision=precision)))


def drawn(top_p: float = 1.0, precision: str = "float32") -> training.Batch:
    return rollouts(top_p, precision)(policy(), jax.random.PRNGKey(7))


@pytest.fixture(scope="module")
def batch() -> training.Batch:
    return drawn()


def test_the_sampler_says_the_log_probabilities_that_the_learner_computes(batch: training.Batch) -> None:
    log_pi = LOG_PI(policy(), batch)
    assert np.asarray(batch.log_mu) == pytest.approx(np.asarray(log_pi), abs=2e-5)
    assert np.asarray(log_pi).std() > 0.1  # it is no uniform policy, for which any order of tokens would do
    assert not np.allclose(batch.log_mu, LOG_PI(policy(1), batch), atol=1e-2)


def test_the_sampler_draws_by_its_probabilities() -> None:
    """The first token of many answers to one prompt, against the softmax of the logits."""
    prompts = jnp.tile(jnp.array([[0, 3, 1]]), (4000, 1))
    sample = jax.jit(lambda weights, key: transformer.sample(weights, TASK, SETTING.shape, prompts, key))
    tokens, log_mu = sample(policy(), jax.random.PRNGKey(0))
    first = LOGITS(policy(), prompts[:1], tokens[:1])[0, 0]
    expected = np.asarray(jax.nn.softmax(first))
    found = np.bincount(np.asarray(tokens[:, 0]), minlength=4) / 4000
    assert found == pytest.approx(expected, abs=5 * 0.5 / np.sqrt(4000))
    assert expected.std() > 0.05
    assert np.exp(np.asarray(log_mu[:, 0])) == pytest.approx(expected[np.asarray(tokens[:, 0])], rel=1e-4)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]]))
    kept = np.asarray(jax.nn.softmax(transformer.cut(logits, 0.7)))
    assert kept == pytest.approx(np.array([[0.625, 0.375, 0, 0], [0, 0, 0.375, 0.625]]), abs=1e-6)
    assert np.asarray(transformer.cut(logits, 1.0)).tolist() == np.asarray(logits).tolist()


def test_another_sampler_has_other_log_probabilities() -> None:
    """That of bfloat16 differs a little and on both sides, that of top-p is never below π."""
    for precision, top_p, most in (("bfloat16", 1.0, 0.2), ("float32", 0.7, 2.0)):
        found = drawn(top_p, precision)
        away = np.asarray(found.log_mu - LOG_PI(policy(), found))
        assert 1e-4 < np.abs(away).max() < most
        assert (away < -1e-4).any() == (top_p == 1.0)


def test_tasks_by_hand() -> None:
    prompts = jnp.array([[2, 0, 1]])
    assert reverse(3, 4).reward(prompts, jnp.array([[1, 0, 2]])).tolist() == [1.0]
    assert sort(3, 4).reward(prompts, jnp.array([[0, 1, 3]])).tolist() == pytest.approx([2 / 3])
    # 57 + 68 = 125, modulo 100: 7 + 8 = 15 and 5 + 6 + 1 = 12, each with a carry of 1.
    both = jnp.array([[7, 8, 5, 6]])
    assert addition(2, 10).reward(both, jnp.array([[5, 1, 2, 1]])).tolist() == [1.0]
    assert addition(2, 10).reward(both, jnp.array([[5, 1, 1, 1]])).tolist() == [0.75]
    for make in (reverse(5, 7), sort(5, 7), addition(3, 5)):
        drawn = np.asarray(make.draw(jax.random.PRNGKey(1), 50))
        assert drawn.shape == (50, make.prompt)
        assert drawn.min() == 0
        assert drawn.max() == make.tokens - 1


def test_advantages_are_normalised_in_each_group() -> None:
    found = np.asarray(training.advantages(jnp.array([0.0, 1.0, 0.5, 0.5]), 2))
    assert found.tolist() == [-1.0, 1.0, 0.0, 0.0]


@cache
def gradient(weighting: Weighting) -> Any:
    """The gradient of the loss."""
    return jax.jit(jax.grad(partial(training._loss, SETTING, [weighting], 0), has_aux=True))


def by_definition(age: int, weighting: Weighting, alpha: float, seed: int) -> list[float]:
    """The run as the module says it, update after update: all policies are kept, and batch n − K is drawn again by θ_{n-K}."""
    import optax

    key = jax.random.PRNGKey(seed)
    policies = [FIRST(jax.random.fold_in(key, 0))]
    optimizer = optax.chain(optax.clip_by_global_norm(SETTING.clip), optax.scale_by_adam())
    state, update = jax.jit(optimizer.init)(policies[0]), jax.jit(optimizer.update)
    rewards, draw = [], rollouts(1.0, "float32")
    for n in range(SETTING.updates):
        rewards.append(float(draw(policies[n], jax.random.fold_in(key, n + SETTING.oldest + 1)).reward.mean()))
        old = draw(policies[max(0, n - age)], jax.random.fold_in(key, n - age + SETTING.oldest + 1))
        step: Any
        step, state = update(gradient(weighting)(policies[n], old)[0], state)
        policies.append(MOVED(policies[n], step, alpha))
    return rewards


@pytest.fixture(scope="module")
def trained() -> Measured:
    """Ages 0, 1, 3 with one weighting, and age 3 with the other."""
    runs = Runs(np.array([5, 5, 5, 5]), np.full(4, 0.3, np.float32), np.array([0, 1, 3, 3]), np.array([0, 0, 0, 1]))
    return training.train(SETTING, [NONE, PREFIX], runs)


@pytest.mark.parametrize("age", [1, 3])
def test_data_are_as_old_as_they_say(trained: Measured, age: int) -> None:
    """Step sizes are large, so that rollouts of a policy one update older or younger give other rewards."""
    place = {1: 1, 3: 2}[age]
    assert trained.reward[place].tolist() == pytest.approx(by_definition(age, NONE, 0.3, 5), abs=1e-6)


def test_on_policy_nothing_is_to_be_corrected(trained: Measured) -> None:
    """Age 0 has no KL and counts all tokens alike; older data have one from the second update on, and the weights differ."""
    assert np.abs(trained.kl[0]).max() < 1e-6
    assert trained.ess == pytest.approx(np.where(np.arange(4)[:, None] < 3, 1.0, trained.ess), abs=1e-5)
    assert np.abs(trained.kl[1:, 0]).max() < 1e-6
    assert trained.kl[1:, 1:].min() > 1e-5
    assert (trained.ess[3, 1:] < 0.999).any()
    assert (trained.reward[2, 2:] != trained.reward[3, 2:]).any()
    assert (trained.finite == 1).all()


def test_collapse_and_divergence_by_definition() -> None:
    up, down = np.linspace(0.1, 1.0, 100), np.concatenate([np.linspace(0.1, 1.0, 50), np.full(50, 0.2)])
    flat, broken = np.full(100, 0.3), np.linspace(0.1, 1.0, 100)
    reward = np.stack([up, down, flat, broken])
    finite = np.ones((4, 100))
    finite[3, 60] = 0.0
    made = Measured(reward, reward >= 0.95, reward, reward, reward, finite)
    rows, curve = tidy(made, np.arange(4), 12)
    assert rows["collapsed"].tolist() == [False, True, False, True]
    assert rows["diverged"].tolist() == [False, False, False, True]
    assert rows["value"].tolist() == pytest.approx([up[90:].mean(), 0.2, 0.3, 0.0])
    assert rows["success"].tolist() == pytest.approx([(up[90:] >= 0.95).mean(), 0, 0, 0])
    assert curve["step"].reshape(4, -1)[0].tolist() == list(range(2, 101, 2))
    assert curve["reward"].reshape(4, -1)[3, 31:].tolist() == [0.0] * 19


WRONG = {
    "task": ("revers:length=3", "a task is one of reverse, sort, addition"),
    "precision": ("sort:precision=float16", "precision float32 or bfloat16"),
    "top_p": ("sort:top_p=1.5", "0 < top_p ≤ 1"),
    "length": ("sort:length=0", "prompt = 0 is too small"),
}


@pytest.mark.parametrize(("label", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_task_is_an_error(label: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        token_task(label)


@pytest.mark.parametrize("parameters", [{"level": "row"}, {"reject_upper": 1.0}])
def test_a_wrong_weighting_is_an_error(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"level = 'row' is not known|bound a criterion: name it"):
        Weighting.made("RBIS", parameters, 0.9)


def test_the_grid() -> None:
    """Lists are grids, labels name their numbers, subsets merge tables; the stored runs are of this grid."""
    whole = Grid()
    assert len(whole.weightings) == 18
    labels = [json.loads(parameters)["label"] for _, parameters, _ in whole.weightings]
    assert "prefix ρ^0.25, cap 2" in labels
    assert len(set(labels)) == 18
    small = Grid("ci")
    assert (small.protocol["updates"], small.protocol.get("clip", 1.0), small.seeds_of("test")) == (
        20,
        1.0,
        range(100, 102),
    )
    ages = Grid("h200-ages")
    units = {u for e in ages.environments for age in ages.ages for g in ages.units("tuning", e, age) for u in g}
    file = Path(__file__).parent / "records" / "h200-ages-1.jsonl.gz"
    stored = [unit_of(line) for line in complete_lines(file) if "unit" in line]
    assert {unit._replace(phase="tuning") for unit in stored} <= units
    with pytest.raises(ValueError, match="there is no subset 'cl'"):
        Grid("cl")


def test_a_run_is_resumed_and_shown(tmp_path: Path) -> None:
    """Tuned and tested; a second run trains nothing; a torn line is trained again to the same rows; the table shows them."""
    grid, file = Grid("ci"), tmp_path / "ci.jsonl"
    place = grid.environments[0]

    def run(*ages: int) -> None:
        with closing(Work(grid, file, 108)) as work:
            for age in ages:
                work.run_cell(place, age)

    run(*grid.ages)
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 2 * 2 * 2  # a head; ages × weightings × phases, with one step size
    run(*grid.ages)
    assert file.read_text().splitlines() == lines
    file.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    run(grid.ages[-1])
    rows = frame(complete_lines(file), "rows")
    assert rows.filter(phase="test").select("age", "seed").n_unique() == 4
    assert (rows["value"] == rows["reward"]).all()
    assert frame(complete_lines(file), "curve")["ess"].is_between(0, 1.0001).all()
    made = text(json.loads(lines[0]), rows)
    assert "prefix Non-Markov Retrace" in made
    assert "no correction" in made
