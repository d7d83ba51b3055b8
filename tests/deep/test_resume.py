"""A run that stops and goes on is the run that did not stop."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import offtrace as ot
from deep.small import CONFIG
from offtrace.deep import CheckpointError, Config, DivergedError, Trained, checkpoints, progress_line, runs, train
from offtrace.deep.games import Hosted, Stepped
from offtrace.deep.training import OnHost, Tally, rounds, trainer

RUN = checkpoints.described(CONFIG, [0, 1])


@pytest.fixture(scope="session")
def unbroken() -> Trained:
    return train(CONFIG, seeds=2, progress=False)


def test_a_resumed_run_equals_the_unbroken_one_to_the_bit(unbroken: Trained, tmp_path: Path) -> None:
    class Stop(Exception):
        """In the middle of it."""

    def stop(frames: int, tally: Tally[np.ndarray]) -> None:
        if frames > 800:
            raise Stop

    with pytest.raises(Stop):
        train(CONFIG, 2, tmp_path, progress=False, save_every=0.0, on_report=stop)
    assert len(checkpoints.in_folder(tmp_path)) == 2
    on = train(CONFIG, 2, tmp_path, progress=False)
    for a, b in zip(jax.tree.leaves(on.state), jax.tree.leaves(unbroken.state), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(on.curve, unbroken.curve)
    again = train(CONFIG, 2, tmp_path, progress=False)  # nothing is left to do
    np.testing.assert_array_equal(again.curve, unbroken.curve)


def test_a_resumed_run_is_not_compiled_anew(unbroken: Trained) -> None:
    """A checkpoint gives back arrays of a dtype: what a game gives as a Python number must be one, too."""
    assert not [leaf for leaf in jax.tree.leaves(unbroken.state) if leaf.weak_type]


def test_seeds_do_not_see_each_other(unbroken: Trained) -> None:
    other = train(CONFIG, [7, 1], progress=False)
    mine, before = (run.curve[run.curve["seed"] == 1] for run in (other, unbroken))
    np.testing.assert_array_equal(mine, before)


def test_lambda_may_differ_between_seeds_without_another_program(unbroken: Trained) -> None:
    pair = train(CONFIG, [0, 1], traces=[ot.RBIS(lam=0.0), ot.RBIS(lam=0.9)], progress=False)
    of = [pair.curve[pair.curve["seed"] == seed] for seed in (0, 1)]
    assert (of[0]["length"] == 1).all()  # λ = 0 is one-step
    np.testing.assert_array_equal(of[1], unbroken.curve[unbroken.curve["seed"] == 1])


def test_checkpoints_of_others_and_damaged_ones(unbroken: Trained, tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, unbroken.state, unbroken.curve, RUN, keep=2)
    with pytest.raises(CheckpointError, match=r"gamma is 0\.99 there and 0\.9 here"):
        train(replace(CONFIG, gamma=0.9), 2, tmp_path, progress=False)
    with pytest.raises(CheckpointError, match=r"traces is None there"):
        train(CONFIG, 2, tmp_path, traces=[ot.RBIS(lam=0.1), ot.RBIS(lam=0.9)], progress=False)
    with pytest.raises(CheckpointError, match=r"seeds is \[0, 1\] there and \[0\] here"):
        train(CONFIG, 1, tmp_path, progress=False)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:5000] + b"\0" * 50 + whole[5050:], b"nothing"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            train(CONFIG, 2, tmp_path, progress=False)


def test_no_space_left(unbroken: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = checkpoints.save(tmp_path, unbroken.state, unbroken.curve, RUN, keep=2)
    before = first.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="the disk is full; the last checkpoint is"):
        checkpoints.save(tmp_path, unbroken.state, unbroken.curve, RUN, keep=2)
    assert [p.name for p in tmp_path.iterdir()] == [first.name]
    assert first.read_bytes() == before


def test_a_diverged_loss_is_an_error_at_once(unbroken: Trained, tmp_path: Path) -> None:
    learner = unbroken.state.learner
    wild = learner._replace(weights=jax.tree.map(lambda w: w * 1e30, learner.weights))
    checkpoints.save(tmp_path, unbroken.state._replace(learner=wild), unbroken.curve, RUN, keep=2)
    with pytest.raises(DivergedError, match="smaller learning_rate"):
        train(replace(CONFIG, frames=2 * CONFIG.frames), 2, tmp_path, progress=False)


def test_a_gymnasium_game_goes_on_with_new_episodes(tmp_path: Path) -> None:
    """Every step of the memory is followed by its own next observation, also where the run was stopped."""
    config = replace(CONFIG, game="gym/CartPole-v1", frames=400)
    train(config, 2, tmp_path, progress=False)
    made = trainer(config, [0, 1])
    assert isinstance(made, OnHost)
    keys = jax.vmap(jax.random.PRNGKey)(np.arange(2, dtype=np.uint32))
    before, _ = checkpoints.load(
        checkpoints.in_folder(tmp_path)[-1], made.first(keys), checkpoints.described(config, [0, 1])
    )
    state = made.collect(made.resumed(before))
    memory = jax.tree.map(np.asarray, state.memory)
    steps = 0
    for ring in range(2):
        for e in range(config.envs):
            for at in range(max(0, memory.count[ring, e] + 1 - config.slots), memory.count[ring, e]):
                here, after = at % config.slots, (at + 1) % config.slots
                if memory.valid[ring, e, here]:
                    s, then = memory.observation[ring, e, here], memory.observation[ring, e, after]
                    np.testing.assert_allclose(
                        then[0], s[0] + 0.02 * s[1], atol=1e-5
                    )  # the cart moves on with its speed
                    steps += 1
    assert steps > 500
    assert train(replace(config, frames=600), 2, tmp_path, progress=False).curve["frames"].max() >= 600


def test_a_slow_gymnasium_game_stops_after_the_round_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, game="gym/CartPole-v1", frames=2_000)
    assert rounds(config) == 6
    step, calls = Hosted.step, 0

    def interrupted(world: Hosted, action: np.ndarray) -> Stepped[np.ndarray]:
        nonlocal calls
        calls += 1
        if calls == (config.begin + config.round) // config.envs - 1:  # in the first round
            signal.raise_signal(signal.SIGTERM)
        return step(world, action)

    monkeypatch.setattr(Hosted, "step", interrupted)
    trained = train(config, 2, tmp_path, progress=False)
    assert not trained.finished
    assert trained.curve["frames"].tolist() == [config.begin + config.round] * 2
    assert train(config, 2, tmp_path, progress=False).finished


def test_reports_are_pieces_of_equal_size() -> None:
    assert rounds(CONFIG) * CONFIG.round <= CONFIG.frames // 20
    assert runs.CURVE.names


@pytest.mark.parametrize("game", ["CartPole-v1", "gym/CartPole-v1"])
@pytest.mark.parametrize("frames", [388, 600, 601, 612, 1_600])
def test_training_ends_where_it_says(game: str, frames: int) -> None:
    """At `frames`, where an update is made there; else at the next update, which may be in the middle of a piece."""
    config = replace(CONFIG, game=game, frames=frames)
    assert (config.begin, config.round) == (100, 16)
    assert config.end == next(n for n in range(100, 3000, 16) if n >= frames)
    trained = train(config, 2, progress=False)
    assert trained.curve["frames"][-1] == int(trained.state.frames[0]) == config.end
    assert int(trained.state.learner.updates[0]) == (config.end - config.begin) // config.round
    pieces = np.diff(trained.curve["frames"][::2], prepend=config.begin)  # there is a row for each seed
    assert set(pieces[:-1]) <= {rounds(config) * config.round}
    assert np.isfinite(trained.curve["loss"]).all()


def test_a_run_that_would_learn_nothing_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"frames = 100 leave nothing to learn: the first update comes after 100 frames"
    ):
        replace(CONFIG, frames=100)


def test_it_says_where_it_ends_and_no_time_is_left_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with `--frames 60000`, which ended after 60,992 with the words "left -1:59:59"."""
    config = Config(game="minatar/breakout", frames=60_000)
    assert (config.begin, config.round, config.end) == (5_056, 64, 60_032)
    clock = iter([0.0, 1.0, 10_000.0, 20_000.0])
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: next(clock))
    line = progress_line.Line(config, 1)
    said = capsys.readouterr().err
    assert "training ends after 60,032 frames, not 60,000: 64 games step together" in said
    row = np.zeros(1, runs.CURVE)
    for frames in (59_000, 59_500, config.end):
        line.report(frames, row)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "60k of 60k frames" in last
    assert " left 0:00 " in last


def test_a_run_of_whole_updates_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress_line.Line(replace(CONFIG, frames=1_604), 1)
    assert not capsys.readouterr().err
