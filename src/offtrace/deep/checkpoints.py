"""Checkpoints: one file with the whole state of a run, written beside and moved into place, the last few of which are kept.

A file is a ZIP of NumPy arrays (`numpy.load` reads it), one for each leaf of the state, the rows of the curve so far, and the
configuration as JSON. Every array has its check sum, so a damaged file is seen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax import Array

from offtrace._shared.typed_jax import asarray
from offtrace._shared.whole_files import written_whole
from offtrace.deep.config import Config, Spelt
from offtrace.deep.training import State
from offtrace.traces import Rule

Tree = TypeVar("Tree")

FREE = ("frames",)
"""The settings that may differ between a checkpoint and the run that goes on from it."""
RENAMED = {"explore": "explore_epsilon", "behavior": "behavior_epsilon", "target": "target_epsilon"}
"""The names of settings that older checkpoints have under another name."""


class CheckpointError(Exception):
    """A checkpoint cannot be written, read, or used."""


def described(
    config: Config, seeds: list[int], traces: Sequence[Rule] | None = None, capacities: Sequence[int] | None = None
) -> Spelt:
    """Describe a run as JSON has it, so that a checkpoint says of which run it is."""
    each = {"traces": traces and [repr(trace) for trace in traces], "capacities": capacities and list(capacities)}
    return json.loads(json.dumps({**config.spelt(), "seeds": seeds, **each}))


def save(folder: Path, state: State, curve: np.ndarray, run: Spelt, keep: int) -> Path:
    """Write a checkpoint, or leave everything as it was. `run` is what `described` returns."""
    leaves = jax.tree.leaves(state)
    frames = int(np.asarray(state.frames).reshape(-1)[0])
    arrays = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    about = np.frombuffer(json.dumps(run).encode(), np.uint8)
    path = folder / f"checkpoint-{frames:012d}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            np.savez(file, about=about, curve=curve, **arrays)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        held = found(folder)
        last = f"the last checkpoint is {held[-1].name}" if held else "there is no checkpoint yet"
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}; {last}, and it is whole"
        ) from error
    for old in found(folder)[:-keep]:
        old.unlink()
    return path


def found(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    return sorted(folder.glob("checkpoint-*.npz"))


def about(path: Path) -> Spelt:
    """Return the configuration and the seeds of a checkpoint."""
    stored: Spelt = json.loads(bytes(_read(path, ["about"])["about"]))
    return {RENAMED.get(name, name): value for name, value in stored.items()}


def load(path: Path, like: Tree, run: Spelt) -> tuple[Tree, np.ndarray]:
    """Return the state, in the structure of `like`, and the curve so far; raise if the checkpoint is of another run."""
    stored = about(path)
    differ = [k for k in run if k not in FREE and run[k] != stored.get(k)]
    if differ:
        words = "; ".join(f"{k} is {stored.get(k)!r} there and {run[k]!r} here" for k in differ)
        raise CheckpointError(f"{path} is of another run: {words}. Give another folder, or the same settings")
    return filled(path, like), _read(path, ["curve"])["curve"]


def filled(path: Path, like: Tree) -> Tree:
    """Return `like` with the file's leaves in it: a state, or its beginning, such as the weights of its learner."""
    leaves = jax.tree.leaves(like)
    values = list(_read(path, [f"leaf{i}" for i in range(len(leaves))]).values())
    for have, want in zip(values, leaves, strict=True):
        if have.shape != want.shape or have.dtype != want.dtype:
            raise CheckpointError(
                f"{path} was written by another version: it has {have.dtype}{have.shape} in the place of {want.dtype}{want.shape}"
            )
    in_order = iter(values)

    def next_leaf(_: object) -> Array:
        return asarray(next(in_order))

    return jax.tree.map(next_leaf, like)


def _read(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except Exception as error:  # a changed byte can lead a reader of ZIP files anywhere
        raise CheckpointError(
            f"{path} is damaged, or of another version, and cannot be read ({error}): remove it, and the run goes on from the "
            "one before"
        ) from error
