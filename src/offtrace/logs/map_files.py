"""The same work on every file of a large log, the results in the order of the files: by threads, or on a Ray cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from offtrace._shared.cores import cores
from offtrace._shared.extras import install
from offtrace.logs.reading.problems import LogsError
from offtrace.logs.reading.tables import files_of, polars, scan

T = TypeVar("T")
RETRIES = 20
"""So often may a file be lost with the worker or the node that reads it."""


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


def check_episodes(files: Sequence[Path], low: np.ndarray, high: np.ndarray, n: np.ndarray, column: str) -> None:
    """Raise where two files have the same episode. `low`, `high` and `n` [files]: the least and largest id, and how many.

    Only files whose ranges of ids overlap are read again.
    """
    first_file, *others = (int(i) for i in np.argsort(low, kind="stable"))
    groups = [[first_file]]
    for i in others:
        if low[i] <= max(high[j] for j in groups[-1]):
            groups[-1].append(i)
        else:
            groups.append([i])
    for group in groups:
        if len(group) > 1:
            _raise_for_twice(tuple(files[i] for i in group), column, int(n[group].sum()))


def _raise_for_twice(files: tuple[Path, ...], column: str, expected: int) -> None:
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


class Executor(Protocol):
    """What runs the work."""

    def each(self, work: Callable[..., T], files: Sequence[Path], *given: object) -> Iterator[T]:
        """`work(file, *given)` for each file, in order; no more than a few results wait."""
        ...

    def close(self) -> None:
        """End what was started for it."""
        ...


class Threads:
    """Threads of this process: the kernels and polars let go of the interpreter's lock."""

    def __init__(self, workers: int | None) -> None:
        self.workers = workers or cores()

    def each(self, work: Callable[..., T], files: Sequence[Path], *given: object) -> Iterator[T]:
        """See `Executor`."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="offtrace") as pool:
            for first in range(0, len(files), self.workers):
                yield from pool.map(lambda file: work(file, *given), files[first : first + self.workers])

    def close(self) -> None:
        """There is nothing to end."""


class OnRay:
    """The tasks of a Ray cluster, the one at `address` or a new one on this machine. Its nodes must see the same files."""

    def __init__(self, address: str | None, workers: int | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import ray
        except ImportError:
            raise ImportError(f"sweeps on Ray need Ray: {install('ray')}") from None
        self.ray: Any = ray
        self.own = not self.ray.is_initialized()
        if self.own:
            new = {"num_cpus": workers or cores(), "num_gpus": 0, "include_dashboard": False}
            quiet = {"logging_level": "ERROR", "log_to_driver": False}
            self.ray.init(address=address or "local", **quiet, **({} if address else new))
        self.workers = workers or max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def each(self, work: Callable[..., T], files: Sequence[Path], *given: object) -> Iterator[T]:
        """See `Executor`. A task that is lost with its worker or node is run again by Ray."""
        task = self.ray.remote(work).options(num_cpus=1, max_retries=RETRIES, name="offtrace sweep")
        shared = [self.ray.put(one) for one in given]  # once, and not with every task
        for first in range(0, len(files), 2 * self.workers):
            begun = [task.remote(file, *shared) for file in files[first : first + 2 * self.workers]]
            yield from (self.ray.get(each) for each in begun)

    def close(self) -> None:
        """Leave the cluster, if this process was not in it before."""
        if self.own:
            self.ray.shutdown()
