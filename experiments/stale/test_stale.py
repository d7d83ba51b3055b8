"""Old rollouts: the sampler draws what the learner computes, data are as old as they say, and a study of them is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offtrace.policy import loss

jax = pytest.importorskip("jax")
pytest.importorskip("optax")
jnp = jax.numpy

from stale import tables, training, transformer  # noqa: E402
from stale.run import Grid, Work, complete_lines, line_of, unit_of  # noqa: E402
from stale.tasks import SYMBOLS, TASKS, solution  # noqa: E402
from stale.training import LOSSES, MINIBATCHES, Measured, Runs, Setting  # noqa: E402
from stale.transformer import WINDOW, Shape  # noqa: E402

TWO = ("no correction", "prefix, Non-Markov Retrace")
SETTING = Setting(tokens=16, iterations=4, prompts=4, answers=4, oldest=8, start=0.3, losses=TWO, shape=Shape(1, 16, 2))

LOG_PI = jax.jit(transformer.log_probabilities, static_argnums=1)
SAMPLE = jax.jit(transformer.sample, static_argnums=1)


def policy(shape: Shape, seed: int = 0) -> transformer.Weights:
    """Weights whose outputs are far from uniform."""
    weights = jax.jit(transformer.first, static_argnums=1)(jax.random.PRNGKey(seed), shape)
    near = jax.random.normal(jax.random.PRNGKey(1), weights["distance"].shape)
    return {**weights, "out": 10.0 * weights["out"], "distance": near}


def symbols(rows: int, tokens: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).integers(0, SYMBOLS, (rows, tokens)))


def test_the_sampler_says_the_log_probabilities_that_the_learner_computes() -> None:
    """Over several windows, where the sampler's memory has been overwritten."""
    shape, x = Shape(2, 16, 2), symbols(5, 3 * WINDOW)
    answers, log_mu = SAMPLE(policy(shape), shape, x, jax.random.PRNGKey(3))
    log_pi = np.asarray(LOG_PI(policy(shape), shape, x, answers))
    assert np.asarray(log_mu) == pytest.approx(log_pi, abs=2e-5)
    assert log_pi.std() > 0.1  # it is no uniform policy, for which any order of tokens would do
    assert not np.allclose(log_mu, LOG_PI(policy(shape, 1), shape, x, answers), atol=1e-2)


def test_the_sampler_draws_by_its_probabilities() -> None:
    """The first token of many answers to one prompt."""
    shape, x = Shape(1, 16, 2), jnp.tile(symbols(1, WINDOW), (4000, 1))
    answers, _ = SAMPLE(policy(shape), shape, x, jax.random.PRNGKey(0))
    each = jnp.tile(jnp.arange(SYMBOLS)[:, None], (1, WINDOW))
    expected = np.exp(np.asarray(LOG_PI(policy(shape), shape, x[:SYMBOLS], each)[:, 0]))
    assert expected.sum() == pytest.approx(1.0, abs=1e-5)
    assert expected.std() > 0.02
    share = np.bincount(np.asarray(answers[:, 0]), minlength=SYMBOLS) / 4000
    assert share == pytest.approx(expected, abs=5 * 0.5 / np.sqrt(4000))


def test_a_step_sees_the_window_before_it() -> None:
    """With one layer: the symbol at step 20 matters for steps 20 … 20 + WINDOW − 1."""
    shape, x = Shape(1, 16, 2), symbols(1, 4 * WINDOW)
    changed = x.at[0, 20].set((x[0, 20] + 1) % SYMBOLS)
    answers = symbols(1, 4 * WINDOW, seed=1)
    apart = np.abs(
        np.asarray(LOG_PI(policy(shape), shape, x, answers) - LOG_PI(policy(shape), shape, changed, answers))
    )
    assert np.flatnonzero(apart[0] > 1e-6).tolist() == list(range(20, 20 + WINDOW))


def test_tasks_by_hand() -> None:
    x = jnp.array([[1, 7, 3, 0, 2, 0, 0, 5]])
    assert list(TASKS) == ["sum", "lag"]
    assert solution(0, x).tolist() == [[1, 0, 3, 3, 5, 5, 5, 2]]
    assert solution(1, x).tolist() == [[1, 7, 3, 0, 2, 0, 0, 6]]


def test_advantages_are_normalised_in_each_group() -> None:
    reward = jnp.array([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    expected = [-0.5, 1.5, -0.5, -0.5, 0, 0, 0, 0]
    assert training.advantages(SETTING, reward).tolist() == pytest.approx(expected)


def test_slopes_are_the_gradients_of_the_losses() -> None:
    """All losses side by side in JAX, against PyTorch in float64."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    log_mu = -rng.uniform(0.01, 1.0, (len(LOSSES), 4, 6))
    log_prox, log_pi = (np.minimum(log_mu + s * rng.normal(size=log_mu.shape), -0.01) for s in (0.05, 0.3))
    advantage = rng.normal(size=log_mu.shape[:2])
    arrays = [jnp.asarray(a, jnp.float32) for a in (log_pi, log_prox, log_mu, advantage)]
    slope = np.asarray(jax.jit(jax.vmap(partial(training.slopes, tuple(LOSSES))))(jnp.arange(len(LOSSES)), *arrays))
    for run, candidate in enumerate(LOSSES.values()):
        pi, prox, mu, A = (torch.tensor(a[run]) for a in (log_pi, log_prox, log_mu, advantage))
        prox = {"μ": mu, "start": prox, "π": pi}[candidate.prox]
        pi = pi.clone().requires_grad_()
        loss(candidate.parts, log_pi=pi, log_prox=prox, log_mu=mu, advantage=A).loss.backward()
        assert slope[run] == pytest.approx(pi.grad.numpy(), abs=1e-6), candidate.parts.name
        assert np.abs(slope[run]).max() > 1e-3 or candidate.parts.name in ("gspo", "opsm")


def test_no_correction_is_the_score_times_the_advantage() -> None:
    A = jnp.array([1.0, -2.0])
    log_pi, log_prox, log_mu = (-jnp.ones((2, 3)) * c for c in (0.5, 1.0, 2.0))
    slope = training.slopes(TWO, 0, log_pi, log_prox, log_mu, A)
    assert np.asarray(slope) == pytest.approx(np.repeat([[-1 / 6], [2 / 6]], 3, axis=1))


@pytest.fixture(scope="module")
def start() -> transformer.Weights:
    """A policy that has been trained a little."""
    weights, right = jax.jit(partial(training.pretrain, SETTING, 0, 0))()
    assert SETTING.start <= right < 0.9
    return weights


def by_definition(start: transformer.Weights, age: int, which: int, alpha: float) -> dict[str, list[float]]:
    """The run as the module says it: all policies are kept, and each batch is drawn again by the policy that drew it."""
    import optax

    key, room = jax.random.fold_in(jax.random.PRNGKey(10_000), 0), SETTING.oldest // MINIBATCHES + 1
    draw = jax.jit(partial(training.rollouts, SETTING, 0))
    optimizer = optax.chain(optax.clip_by_global_norm(SETTING.clip), optax.adam(alpha))
    adam, policies = jax.jit(optimizer.init)(start), [start]
    advantages = jax.jit(partial(training.advantages, SETTING))

    @jax.jit
    def update(weights: Any, adam: Any, begun: Any, batch: Any, A: Any) -> Any:
        def objective(weights: Any) -> Any:
            log_pi = LOG_PI(weights, SETTING.shape, batch.x, batch.answers)
            prox = {"μ": batch.log_mu, "π": jax.lax.stop_gradient(log_pi)}[LOSSES[TWO[which]].prox]
            taken = {"log_mu": batch.log_mu, "advantage": A, "check": False}
            return loss(LOSSES[TWO[which]].parts, log_pi=log_pi, log_prox=prox, **taken).loss

        step, adam = optimizer.update(jax.grad(objective)(weights), adam)
        return optax.apply_updates(weights, step), adam

    curves: dict[str, list[float]] = {"success": [], "entropy": []}
    for n in range(SETTING.iterations):
        drawn = draw(policies[n], jax.random.fold_in(key, n + room))
        curves["success"].append(float(drawn.reward.mean()))
        curves["entropy"].append(-float(drawn.log_mu.mean()))
        back = n - age // MINIBATCHES
        old = draw(policies[max(0, back)], jax.random.fold_in(key, back + room))
        A = advantages(old.reward)
        weights = policies[n]
        for part in np.split(np.arange(len(A)), MINIBATCHES):
            batch = jax.tree.map(lambda a, part=part: a[part], old)
            weights, adam = update(weights, adam, policies[n], batch, A[part])
        policies.append(weights)
    return curves


def test_data_are_as_old_as_they_say(start: transformer.Weights) -> None:
    """Runs side by side, of three ages and two losses, with a large step size, against each by its definition."""
    runs = Runs(*map(jnp.array, ([0, 0, 0], [0, 8, 8], [0, 0, 1], [0.02, 0.02, 0.02], [0, 0, 0])))
    starts = jax.tree.map(lambda a: a[None, None], start)
    measured = Measured(*(np.asarray(a) for a in training.train(SETTING, starts, runs)))
    for i, (age, which) in enumerate([(0, 0), (8, 0), (8, 1)]):
        curves = by_definition(start, age, which, 0.02)
        assert measured.success[i].tolist() == pytest.approx(curves["success"], abs=1e-6)
        assert measured.entropy[i].tolist() == pytest.approx(curves["entropy"], abs=1e-3)
    assert np.ptp(measured.entropy[:, -1]) > 1e-2  # the three are apart
    assert measured.kl[1:, 1:].min() > 0
    assert (measured.finite == 1).all()


def test_a_run_as_a_line() -> None:
    """Means over parts; once a gradient is not finite, success is 0."""
    up = np.linspace(0.1, 1.0, 50)
    broken = np.ones(50)
    broken[30] = 0.0
    unit = unit_of({"phase": "test", "task": "sum", "age": 8, "loss": TWO[0], "alpha": 0.1, "seed": 3})
    line = line_of(unit, Measured(up, up, up, up, up, np.ones(50)))
    assert line["end"] == pytest.approx(up[-10:].mean())
    assert line["curve"]["success"] == pytest.approx(up.reshape(25, 2).mean(axis=1), rel=1e-3)
    assert not tables.collapsed(line)
    line = line_of(unit, Measured(up, up, up, up, up, broken))
    assert line["end"] == 0.0
    assert tables.collapsed(line)
    assert unit_of(line) == unit


def test_ages_must_fit() -> None:
    with pytest.raises(ValueError, match=r"multiples of 4, at most 64, got \[3, 68\]"):
        Grid(ages=(3, 8, 68))


def test_a_study_is_resumed_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without time nothing begins. A second run trains nothing; a torn line is trained again, to the same numbers."""
    setting = SETTING._replace(iterations=5)
    grid, file = Grid(setting, ("lag",), (8,), alphas=(1e-3, 3e-3), tuning=1, test=2), tmp_path / "tiny.jsonl"

    def run() -> list[str]:
        Work(grid, file, 4).run()
        return file.read_text().splitlines()

    Work(grid, file, 4, seconds=0.0).run()
    assert "stopped: 4 runs are left" in capsys.readouterr().out
    lines = run()
    assert len(lines) == 1 + 2 * 2 * 1 + 2 * 2  # a head; losses × step sizes × seeds; losses × seeds
    assert run() == lines
    file.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    again = json.loads(run()[-1])
    assert again["end"] == pytest.approx(json.loads(lines[-1])["end"], abs=1e-6)
    with pytest.raises(SystemExit, match="give another file"):
        Work(replace(grid, setting=setting._replace(prompts=8)), file, 4)

    chosen = {line["loss"]: line["alpha"] for line in complete_lines(file) if line.get("phase") == "test"}
    for name, alpha in chosen.items():
        own = [line for line in complete_lines(file) if line.get("phase") == "tuning" and line["loss"] == name]
        assert max(own, key=lambda line: line["end"])["alpha"] == alpha

    monkeypatch.setattr(tables, "TOKENS", 4)
    text = tables.tables(*tables.read([file]))
    assert "| prefix, Non-Markov Retrace | prefix with a cap |" in text
    assert "lag, 8–11 updates old" in text
    tables.figure(tables.read([file])[1]).savefig(tmp_path / "figure.png")
