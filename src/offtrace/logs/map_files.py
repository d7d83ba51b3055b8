"""The same work on every file of a large log, the results in the order of the files: by threads, or on a Ray cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from offtrace._shared.cores import cores
from offtrace._shared.extras import install
from offtrace.logs.reading.problems import LogsError
from offtrace.logs.reading.tables import files_of, pl

T = TypeVar("T")
RETRIES = 20
"""So often may a file be lost with the worker or the node that reads it."""


def files_in(source: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """The files of a folder, of a pattern, or of a list."""
    if isinstance(source, str | Path):
        files = files_of(source)
    else:
        files = tuple(Path(file) for file in source)
    if not files:
        raise FileNotFoundError(f"there are no files: {source!r} is no folder, file or pattern that fits any")
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is not there")
    return tuple(file.resolve() for file in files)


def check_episodes(files: Sequence[Path], ids: Sequence[Any], column: str) -> None:
    """Raise where two files have the same episode. `ids`: those of each file, a series of polars."""
    frame = pl.concat([pl.DataFrame({"id": each}).with_columns(file=pl.lit(i)) for i, each in enumerate(ids)])
    twice = frame.group_by("id").agg("file").filter(pl.col("file").list.len() > 1).sort("id").head(1)
    if twice.height:
        episode, where = twice.row(0)
        first, second = (files[i].name for i in sorted(where)[:2])
        raise LogsError(
            f"episode {episode!r} is in {len(where)} files, {first} and {second}: each episode must lie in one file. Sort by "
            f"{column} before you split the log, or give episodes that are others other ids"
        )


Map = Callable[..., Iterator[Any]]
"""`each(work, files, *given)`: `work(file, *given)` for each file, in order; no more than a few results wait."""


@contextmanager
def by_threads(workers: int | None) -> Iterator[Map]:
    """A map by threads of this process: the kernels and polars let go of the interpreter's lock."""
    n = workers or cores()
    with ThreadPoolExecutor(n, thread_name_prefix="offtrace") as pool:

        def each(work: Callable[..., T], files: Sequence[Path], *given: object) -> Iterator[T]:
            for first in range(0, len(files), n):
                yield from pool.map(lambda file: work(file, *given), files[first : first + n])

        yield each


@contextmanager
def by_ray(address: str | None, workers: int | None) -> Iterator[Map]:
    """A map by tasks of the Ray cluster at `address`, or of a new one on this machine. Its nodes must see the same files.

    A task that is lost with its worker or node is run again by Ray.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray as imported
    except ImportError:
        raise ImportError(f"sweeps on Ray need Ray: {install('ray')}") from None
    ray: Any = imported
    own = not ray.is_initialized()
    if own:
        new = {"num_cpus": workers or cores(), "num_gpus": 0, "include_dashboard": False}
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        ray.init(address=address or "local", **quiet, **({} if address else new))
    n = 2 * (workers or max(1, int(ray.cluster_resources().get("CPU", 1))))

    def each(work: Callable[..., T], files: Sequence[Path], *given: object) -> Iterator[T]:
        task = ray.remote(work).options(num_cpus=1, max_retries=RETRIES, name="offtrace sweep")
        shared = [ray.put(one) for one in given]  # once, and not with every task
        for first in range(0, len(files), n):
            begun = [task.remote(file, *shared) for file in files[first : first + n]]
            yield from (ray.get(one) for one in begun)

    try:
        yield each
    finally:
        if own:
            ray.shutdown()
