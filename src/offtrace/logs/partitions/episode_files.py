"""The files of a large log, and that no episode lies in two of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offtrace.logs.reading.polars_tables import files_of, polars, scan
from offtrace.logs.reading.problems import LogsError


def files_in(source: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """The files of a folder, of a pattern, or of a list."""
    if isinstance(source, str | Path):
        found = files_of(source)
    else:
        found = tuple(Path(file) for file in source)
    if not found:
        raise FileNotFoundError(f"there are no files: {source!r} is no folder, file or pattern that fits any")
    for file in found:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is not there")
    return tuple(file.resolve() for file in found)


def no_episode_in_two(files: Sequence[Path], low: np.ndarray, high: np.ndarray, n: np.ndarray, column: str) -> None:
    """Raise where two files have the same episode. `low`, `high` and `n` [files]: the least and largest id, and how many.

    Only files whose ranges of ids overlap are looked at again.
    """
    first_file, *others = (int(i) for i in np.argsort(low, kind="stable"))
    groups = [[first_file]]
    for i in others:
        if low[i] <= max(high[j] for j in groups[-1]):
            groups[-1].append(i)
        else:
            groups.append([i])
    for together in groups:
        if len(together) > 1:
            _look_for_one(tuple(files[i] for i in together), column, int(n[together].sum()))


def _look_for_one(files: tuple[Path, ...], column: str, expected: int) -> None:
    pl = polars()
    frame = pl.concat([scan((file,)).select(pl.col(column).unique()) for file in files])
    if frame.select(pl.col(column).n_unique()).collect().item() == expected:
        return
    twice = frame.group_by(column).len().filter(pl.col("len") > 1).select(pl.col(column).min()).collect().item()
    where = [file.name for file in files if scan((file,)).filter(pl.col(column) == twice).head(1).collect().height]
    raise LogsError(
        f"episode {twice!r} is in {len(where)} files, {where[0]} and {where[1]}: each episode must lie in one file. Sort by "
        f"{column} before you split the log, or give episodes that are others other ids"
    )
