"""Checkpoints that are damaged, crafted, or cannot be written; and how soon a run stops."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from learners.settings import world
from offtrace._shared.whole_files import opened_sealed, written_whole
from offtrace.learners import EpsilonGreedy, Replay, control
from offtrace.learners import run as running
from offtrace.learners.core import blocks

RUNS: dict[str, tuple[ot.Trace, Any]] = {
    "visits": (ot.TruncatedIS(), "offline"),
    "groups": (ot.NonMarkovRetrace(lam=0.95), "online"),
    "linear": (ot.Retrace(), Replay(20, every=5, batch=1, length=4)),
}
FAR = 10**12


class Cut(KeyboardInterrupt):
    """In the middle of it."""


def go(file: Path, of: str) -> np.ndarray:
    trace, update = RUNS[of]
    given: dict[str, Any] = {"behavior": EpsilonGreedy(0.3), "update": update, "points": 3, "threads": 1}
    return control(trace, world(ends=0.001), steps=600, checkpoint=file, seeds=2, **given).Q


def interrupted(file: Path, of: str) -> dict[str, np.ndarray]:
    """What the checkpoint of an interrupted run holds."""
    advance = blocks.Block.advance

    def once(block: blocks.Block, budget: int) -> bool:
        if block.steps:
            raise Cut
        return advance(block, 290)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks.Block, "advance", once)
        with pytest.raises(Cut):
            go(file, of)
    with opened_sealed(file) as opened, np.load(opened) as arrays:
        return dict(arrays)


def crafted(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """The arrays with one number, wherever there is an integer, far away from where it may be."""
    for name, array in arrays.items():
        for field in array.dtype.names or ("",):
            column = array[field] if field else array
            if column.dtype.kind == "i" and column.size:
                for far in (FAR, -FAR):
                    other = array.copy()
                    (other[field] if field else other)[...] = far
                    yield f"{name} {field}".strip(), {**arrays, name: other}


INDICES = """
m.progress seed|m.progress mark|m.progress look_state|m.progress looks|m.lane state|m.lane action|m.lane touched|m.lane head
|m.lane filled|m.touched|m.buffer state|m.buffer next_state|m.buffer action|kept.counts slots|kept.counts top|kept.counts bottom
|kept.counts first|kept.counts last|kept.slot_of|kept.weight_of|kept.at|kept.weights|kept.pair
"""


def blocks_of(of: str) -> Iterator[blocks.Block]:
    """Blocks as `go` makes them."""
    given: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "run", lambda *arguments: given.append(arguments) or SimpleNamespace(Q=None))
        go(Path(), of)
    job, seeds = given[0][:2]
    first = blocks.Block(job, seeds)
    while True:
        yield blocks.Block(job, seeds, like=first)


@pytest.mark.parametrize("of", RUNS)
def test_indices_outside_of_their_arrays_are_refused(of: str, tmp_path: Path) -> None:
    """Whatever else a number is, the loop reads and writes nothing outside of its arrays, and it ends."""
    file = tmp_path / "run"
    arrays = interrupted(file, of)
    own = {name.removeprefix("0/"): array for name, array in arrays.items() if name != "head"}
    indices = set(INDICES.replace("\n", "").split("|"))
    refused: set[str] = set()
    tried: set[str] = set()
    for (name, others), block in zip(crafted(own), blocks_of(of), strict=False):
        tried.add(name)
        try:
            block.restore({n: array.copy() for n, array in others.items()})
        except ValueError as error:
            assert str(error).startswith("its ")  # noqa: PT017
            refused.add(name)
            continue
        while not block.advance(10**9):
            pass
    assert tried & indices <= refused
    assert len(tried & indices) > 10
    with written_whole(file, sealed=True) as opened:
        np.savez(opened, **{**arrays, "0/m.lane": np.full_like(arrays["0/m.lane"], FAR)})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=f"{re.escape(str(file))} cannot be gone on from: its state"):
        go(file, of)


def test_a_checkpoint_of_another_size_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run"
    arrays = interrupted(file, "groups")
    for name in ("0/m.θ", "0/kept.G", "0/out.steps"):
        with written_whole(file, sealed=True) as opened:
            np.savez(opened, **{**arrays, name: arrays[name][..., :-1]})  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match=r"run cannot be gone on from: its .* has another size"):
            go(file, "groups")


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "run"
    interrupted(file, "linear")
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for at in np.linspace(0, len(whole) - 1, 150).astype(int):
        flipped = whole[:at] + bytes([whole[at] ^ (1 << rng.integers(8))]) + whole[at + 1 :]
        file.write_bytes(flipped)
        with pytest.raises(ValueError, match="run is not a checkpoint of a learner, or it is damaged"):
            go(file, "linear")


def test_a_disk_without_room_is_said_in_a_line_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(OSError, match=r"the checkpoint .*run cannot be written: files may not become so large"):
            go(tmp_path / "run", "linear")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_is_swept(tmp_path: Path) -> None:
    file = tmp_path / "run"
    interrupted(file, "linear")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, own = tmp_path / f".run.{dead.pid}.tmp", tmp_path / f".other.{os.getpid()}.tmp"
    left.touch()
    own.touch()
    go(file, "linear")
    assert sorted(path.name for path in tmp_path.iterdir()) == [own.name, "run"]


class Slow:
    """Takes a hundredth of a second for each step, by its own clock."""

    def __init__(self) -> None:
        self.now, self.steps, self.progress, self.budgets = 0.0, 0, 0.0, list[int]()
        self.out: Any = type("Out", (), {"seeds": [0]})

    def advance(self, budget: int) -> bool:
        self.now += 0.01 * budget
        self.budgets.append(budget)
        return len(self.budgets) == 20

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, saved: Any) -> None:
        raise NotImplementedError


def test_slow_steps_are_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace or an environment in Python may take long: Ctrl-C must not wait for half a million of its steps."""
    unit = Slow()
    monkeypatch.setattr(running, "clock", lambda: unit.now)
    running._work([unit], 1, None, 0.0, False, running.FIRST[True])
    assert max(unit.budgets) * 0.01 <= 2.0
    fast = 1000
    for _ in range(10):
        fast = running.next_slice(fast, fast * 1e-7)
    assert fast == running.SLICE
