"""The same work on every file, the results in the order of the files: by threads of this process, or on a Ray cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

from offtrace._shared.cores import cores
from offtrace._shared.extras import install

T = TypeVar("T")
Begun = TypeVar("Begun")
RETRIES = 20
"""So often may a file be lost with the worker or the node that reads it."""


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
            yield from _in_order(
                self.workers, files, lambda file: pool.submit(work, file, *given), lambda future: future.result()
            )

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
        self.ray: ModuleType = ray
        self.own = not self.ray.is_initialized()
        if self.own:
            new = {"num_cpus": workers or cores(), "num_gpus": 0, "include_dashboard": False}
            quiet = {"logging_level": "ERROR", "log_to_driver": False}
            self.ray.init(address=address or "local", **quiet, **({} if address else new))
        self.workers = workers or max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def each(self, work: Callable[..., T], files: Sequence[Path], *given: object) -> Iterator[T]:
        """See `Executor`. A task that is lost with its worker or node is run again."""
        task = self.ray.remote(work).options(num_cpus=1, max_retries=0, name="offtrace sweep")
        kept = [self.ray.put(one) for one in given]  # once, and not with every task

        def submit(file: Path) -> tuple[Path, object]:
            return file, task.remote(file, *kept)

        def result(begun: tuple[Path, object]) -> T:
            """Return the result of a task. If its node died it is begun again here: Ray would wait some fifteen seconds."""
            for _ in range(RETRIES):
                try:
                    return self.ray.get(begun[1])
                except (self.ray.exceptions.WorkerCrashedError, self.ray.exceptions.NodeDiedError):
                    begun = submit(begun[0])
            return self.ray.get(begun[1])

        yield from _in_order(2 * self.workers, files, submit, result)

    def close(self) -> None:
        """Leave the cluster, if this process was not in it before."""
        if self.own:
            self.ray.shutdown()


def _in_order(
    waiting: int, files: Sequence[Path], submit: Callable[[Path], Begun], result: Callable[[Begun], T]
) -> Iterator[T]:
    """Results in the order of the files, with at most so many files begun and not yet given back."""
    begun: list[Begun] = []
    for file in files:
        begun.append(submit(file))
        if len(begun) > waiting:
            yield result(begun.pop(0))
    for each in begun:
        yield result(each)
