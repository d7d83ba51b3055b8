"""The folder of a run: one process at a time, one configuration, nothing left by those that were killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offtrace import cli
from offtrace.deep import CheckpointError, Config, checkpoints, runs, train

CONFIG = Config(
    game="CartPole-v1", frames=400, envs=4, every=16, batch=4, length=8, warm_up=100, capacity=800, hidden=(8,)
)
RUN = checkpoints.described(CONFIG, [0])


def begun(folder: Path) -> None:
    """A folder with a checkpoint of CONFIG; what it has learned does not matter here."""
    state: Any = type("State", (tuple,), {"frames": np.array([100])})((np.array([100]),))
    checkpoints.save(folder, state, np.zeros(0), RUN, keep=2)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def test_two_runs_in_one_folder_at_once(tmp_path: Path) -> None:
    begun(tmp_path)
    before = files(tmp_path)
    with (
        checkpoints.held(tmp_path, RUN),
        pytest.raises(CheckpointError, match=f"process {os.getpid()} is training in {re.escape(str(tmp_path))}"),
    ):
        train(CONFIG, 1, tmp_path, progress=False)
    assert files(tmp_path) == before


def test_a_folder_belongs_to_one_configuration(tmp_path: Path) -> None:
    begun(tmp_path)
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=r"of another run: gamma is 0\.99 there and 0\.5 here"):
        train(replace(CONFIG, gamma=0.5), 1, tmp_path, progress=False)
    assert files(tmp_path) == before


def test_what_killed_processes_have_left_is_swept(tmp_path: Path) -> None:
    begun(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    before = files(tmp_path)
    (tmp_path / f".checkpoint-000000000200.npz.{dead.pid}.tmp").touch()
    with checkpoints.held(tmp_path, RUN):
        pass
    assert files(tmp_path) == before


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["deep", "train", "CartPole-v1", "--out", str(tmp_path / "file" / "run")]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"offtrace: nothing can be written to .*run: Not a directory\n", err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_are_remembered_until_the_state_is_saved(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    signal.signal(number, signal.default_int_handler)  # the tests may run with some of them ignored
    try:
        with runs._interruptible() as interrupted:
            assert not interrupted()
            signal.raise_signal(number)
            assert interrupted()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    finally:
        signal.signal(number, before)


def test_a_run_under_nohup_is_not_ended_by_the_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runs._interruptible() as interrupted:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupted()
    finally:
        signal.signal(signal.SIGHUP, before)
