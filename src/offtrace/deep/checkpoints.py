"""Checkpoints: one file with the whole state of a run, which appears whole or not at all. The last few are kept.

A file is a ZIP of NumPy arrays (`numpy.load` reads it), one for each leaf of the state, the rows of the curve so far, and the
configuration as JSON. ZIP's checksums are compared before anything is parsed: a damaged file is an error.

One process at a time writes to a folder: it holds the lock (`held`). A folder belongs to the run whose checkpoints it has.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from offtrace._shared.folder_lock import LockedError, locked
from offtrace._shared.whole_files import read_npz, sweep, why_not_written, written_whole
from offtrace.deep.settings import Settings, Spelt
from offtrace.deep.training import State
from offtrace.traces import Rule

Tree = TypeVar("Tree")

FREE = ("frames",)
"""The settings that may differ between a checkpoint and the run that resumes from it."""


class CheckpointError(Exception):
    """A checkpoint cannot be written, read, or used."""


def described(config: Settings, seeds: list[int], traces: Sequence[Rule] | None = None) -> Spelt:
    """Describe a run as JSON has it, so that a checkpoint says of which run it is."""
    each = traces and [repr(trace) for trace in traces]
    return json.loads(json.dumps({**config.spelt(), "seeds": seeds, "traces": each}))


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
        held = in_folder(folder)
        last = f"the last checkpoint is {held[-1].name}, and it is whole" if held else "there is no checkpoint yet"
        raise CheckpointError(f"{path} cannot be written: {why_not_written(error)}; {last}") from error
    for old in in_folder(folder)[:-keep]:
        old.unlink()
    return path


@contextmanager
def held(folder: Path, run: Spelt) -> Generator[None, None, None]:
    """Hold the lock of a folder, which belongs to this run or to none; remove what killed processes have left there."""
    with ExitStack() as at_the_end:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            at_the_end.enter_context(locked(folder))
        except LockedError as error:
            raise CheckpointError(
                f"process {error} is training in {folder}: wait until it ends, or give another folder"
            ) from None
        except OSError as error:
            raise CheckpointError(f"nothing can be written to {folder}: {why_not_written(error)}") from error
        if known := in_folder(folder):
            require_same(known[-1], run)
        sweep(folder)
        yield


def in_folder(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    return sorted(folder.glob("checkpoint-*.npz"))


def about(path: Path) -> Spelt:
    """Return the configuration and the seeds of a checkpoint."""
    try:
        return dict(json.loads(bytes(_read(path, ["about"])["about"])))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} does not say of which run it is ({error})") from error


def require_whole(path: Path) -> None:
    """Raise if a checkpoint is damaged."""
    _read(path)


def load(path: Path, like: Tree, run: Spelt) -> tuple[Tree, np.ndarray]:
    """Return the state, in the structure of `like`, and the curve so far; raise if the checkpoint is of another run."""
    require_same(path, run)
    return filled(path, like), _read(path, ["curve"])["curve"]


def require_same(path: Path, run: Spelt) -> None:
    """Raise if a checkpoint is of another run."""
    stored = about(path)
    differ = [k for k in run if k not in FREE and run[k] != stored.get(k)]
    if differ:
        words = "; ".join(f"{k} is {stored.get(k)!r} there and {run[k]!r} here" for k in differ)
        raise CheckpointError(f"{path} is of another run: {words}. Give another folder, or the same settings")


def filled(path: Path, like: Tree) -> Tree:
    """Return `like` with the file's leaves in it: a state, or its beginning, such as the weights of its learner."""
    leaves = jax.tree.leaves(like)
    values = list(_read(path, [f"leaf{i}" for i in range(len(leaves))]).values())
    for have, want in zip(values, leaves, strict=True):
        if have.shape != want.shape or have.dtype != want.dtype:
            raise CheckpointError(
                f"{path} was written by another version: it has {have.dtype}{have.shape} instead of {want.dtype}{want.shape}"
            )
    # `jax.numpy.asarray` would compile a copy for each shape
    return jax.tree.unflatten(jax.tree.structure(like), jax.device_put(values))


def _read(path: Path, names: list[str] | None = None) -> dict[str, np.ndarray]:
    try:
        return read_npz(path, names)
    except Exception as error:  # a file that anybody may have written can raise anything
        raise CheckpointError(
            f"{path} is damaged, or of another version, and cannot be read ({error}): remove it, and the run resumes from the "
            "one before"
        ) from error
