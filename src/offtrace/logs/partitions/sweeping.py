"""Values from logs that are larger than a machine: the fixed point of the sampled operator in a table, by sums over files.

One sweep reads every file once, and adds up for each pair (s, a) by how much its steps ask Q to change (`one_file`). Sums do not
depend on how the episodes are spread over files and workers, but for rounding. The fixed point takes as many sweeps as GMRES
makes products, as in `offtrace.logs.evaluate`, whose fitted estimate it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from offtrace._shared import notebook
from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import ProgressBar
from offtrace.logs.estimators.linear_bases import over_logged
from offtrace.logs.estimators.linear_systems import solve
from offtrace.logs.partitions.executing import Executor, OnRay, Threads
from offtrace.logs.partitions.kept_sums import KeptSums, Sums
from offtrace.logs.partitions.one_file import Question
from offtrace.logs.reading.columns import Columns, Names
from offtrace.logs.reading.polars_tables import files_of, polars, scan
from offtrace.logs.reading.problems import LogsError
from offtrace.traces import Trace
from offtrace.traces.arguments import as_trace
from offtrace.traces.base import number, whole
from offtrace.trajectory import distributions


@dataclass(frozen=True, eq=False)
class Swept:
    """What `sweep` found."""

    Q: np.ndarray
    """[S, A]; V(s) for actions that were never logged in a state, 0 where nothing was."""
    value: float
    """V(π), the mean over the first states of the episodes."""
    observed: float
    """V(μ): the mean discounted return of the episodes, which were not chosen by π."""
    observed_error: float
    """Its standard error."""
    counts: np.ndarray
    """[S, A]: how often each pair was logged."""
    steps: int
    episodes: int
    sweeps: int
    """How often all files were read."""
    converged: bool
    """Whether Q is the fixed point; False where only so many sweeps were asked for, or GMRES did not get there."""

    def __str__(self) -> str:
        found = "the fixed point" if self.converged else "not the fixed point"
        return (
            f"V(π) = {self.value:.6g} ({found}, {self.sweeps} sweep{'s' * (self.sweeps > 1)}); "
            f"V(μ) = {self.observed:.6g} ± {self.observed_error:.2g} as logged; {self.steps:,} steps, {self.episodes:,} episodes"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("V(π)", f"{self.value:.6g}"),
            ("V(μ), as logged", f"{self.observed:.6g} ± {self.observed_error:.2g}"),
            ("sweeps", f"{self.sweeps}{'' if self.converged else ', not the fixed point'}"),
            ("steps", f"{self.steps:,}"),
            ("episodes", f"{self.episodes:,}"),
        ]
        return notebook.table("Swept", rows)


def sweep(
    source: str | Path | Sequence[str | Path],
    target: ArrayLike,
    *,
    trace: Trace,
    gamma: float,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    truncated: Literal["never", "at end"] | None = None,
    states: Names = None,
    actions: Names = None,
    sweeps: int | None = None,
    on: Literal["here", "ray"] = "here",
    workers: int | None = None,
    address: str | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> Swept:
    """V(π) and Q of π from logs that need not fit into memory: a table, by sums over files of whole episodes.

    - `source`: a folder of Parquet, Arrow or CSV files, a pattern such as "logs/*.parquet", or a list of files. No episode may be
      in two files: that is an error.
    - `target`: π as a table [S, A]. `states` and `actions` are what these are called in the files, in the order of the table;
      without them they are ids 0 … S − 1 and 0 … A − 1.
    - `columns` and `truncated` are those of `read`.
    - `sweeps`: None goes on to the fixed point; a number applies the sampled operator so often, from Q = 0.
    - `on`: "here", by threads of this process, or "ray", on the cluster at `address`, or a new one on this machine. The result
      is the same, but for rounding, whatever the number of files and `workers`; a file whose worker is lost is read again.
    - `checkpoint`: a folder. What is summed is kept there every ten seconds, and the same call goes on from it.

    Memory is about 150 bytes for each step of the largest file, for each worker, and some tables [S, A].

    >>> import numpy as np, offtrace as ot
    >>> target = np.full((1000, 4), 0.25)
    >>> found = sweep("logs/", target, trace=ot.RBIS(lam=0.95), gamma=0.99, checkpoint="sums")  # doctest: +SKIP
    """
    files, policy = _files(source), _policy(target)
    gamma = number("gamma", gamma, 0.0, 1.0)
    if sweeps is not None:
        whole("sweeps", sweeps)
    if workers is not None:
        whole("workers", workers)
    if on not in ("here", "ray"):
        raise ValueError(f'on must be "here" or "ray", got {on!r}')
    for what, names, n in (("states", states, policy.shape[0]), ("actions", actions, policy.shape[1])):
        if names is not None and (names if isinstance(names, int) else len(names)) != n:
            raise ValueError(f"{what} must be the {n} of the target policy [S, A] = {policy.shape}, got {names!r}")
    question = Question(as_trace(trace), policy, gamma, columns, truncated, states, actions)
    executor: Executor = Threads(workers) if on == "here" else OnRay(address, workers)
    kept = KeptSums(None if checkpoint is None else Path(checkpoint), _asked(question, files))
    with ProgressBar() as bar, contextlib.closing(executor):
        return _Sums(question, files, executor, kept, bar if progress else None).found(sweeps)


class _Sums:
    """The sweeps of one call."""

    def __init__(
        self, question: Question, files: tuple[Path, ...], executor: Executor, kept: KeptSums, bar: ProgressBar | None
    ) -> None:
        self.question, self.files, self.executor, self.kept, self.bar = question, files, executor, kept, bar
        first = self._over_files("first", _first, question)
        _no_episode_in_two(files, first, question.columns.episode)
        self.counts, self.starts = first["counts"], first["starts"]
        self.share = over_logged(question.policy, self.counts)
        self.asked, self.returns = first["asked"], first["returns"]

    def found(self, sweeps: int | None) -> Swept:
        """The fixed point, or what so many sweeps make of Q = 0."""
        constant = self._mean(self.asked)
        if sweeps is None:
            free = np.where(self.counts.ravel() == 0, 1.0, 0.0)
            θ, _, converged = solve(lambda θ: free * θ - self._change(θ, rewards=False), constant)
        else:
            θ, converged = constant, False
            for _ in range(sweeps - 1):
                θ = θ + self._change(θ, rewards=True)
        V, (episodes, steps, total, squares) = self._values(θ), self.returns
        mean = total / episodes
        return Swept(
            Q=np.where(self.counts > 0, θ.reshape(self.counts.shape), V[:, None]),
            value=float(self.starts @ V / episodes),
            observed=float(mean),
            observed_error=float(np.sqrt(max(squares / episodes - mean**2, 0.0) / max(episodes - 1, 1))),
            counts=self.counts,
            steps=int(steps),
            episodes=int(episodes),
            sweeps=self.kept.sweeps,
            converged=converged,
        )

    def _mean(self, asked: np.ndarray) -> np.ndarray:
        """Each pair's mean of what its steps ask for; 0 where there are none."""
        return (asked / np.maximum(self.counts, 1)).ravel()

    def _values(self, θ: np.ndarray) -> np.ndarray:
        """V(s) [S], the mean under π over the actions that were logged there."""
        return (self.share * θ.reshape(self.counts.shape)).sum(axis=1)

    def _change(self, θ: np.ndarray, *, rewards: bool) -> np.ndarray:
        Q, V = θ.reshape(self.counts.shape), self._values(θ)
        asked = f"{rewards} {hashlib.sha256(Q.tobytes()).hexdigest()}"
        return self._mean(self._over_files(asked, _again, self.question, Q, V, rewards)["asked"])

    def _over_files(self, asked: str, work: Callable[..., Sums], *given: object) -> Sums:
        begun, sums = self.kept.begun(asked)
        started = time.monotonic()
        found = self.executor.each(work, self.files[begun:], *given)
        for done, now in self.kept.keeping(asked, len(self.files), begun, sums, found):
            sums = now
            if self.bar is not None:
                left = duration((time.monotonic() - started) / (done - begun) * (len(self.files) - done))
                text = f"sweep {self.kept.sweeps + 1}: {done:,} of {len(self.files):,} files, {left} left of this sweep"
                self.bar.show(done, len(self.files), text)
        return sums


def _first(file: Path, question: Question) -> Sums:
    """What the first sweep adds up, and which episodes are in the file."""
    found = question.first(file)
    ids = {f"each {name}": np.array([one]) for name, one in zip(("low", "high", "n"), found.ids, strict=True)}
    return {
        "counts": found.counts,
        "starts": found.starts,
        "asked": found.asked,
        "returns": np.array(found.returns),
        **ids,
    }


def _again(file: Path, question: Question, Q: np.ndarray, V: np.ndarray, rewards: bool) -> Sums:
    return {"asked": question.asked(file, Q, V, rewards)}


def _files(source: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
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


def _policy(target: ArrayLike) -> np.ndarray:
    table = np.asarray(target)
    if table.ndim != 2 or table.dtype.kind not in "fiub":
        raise TypeError(f"target must be a table of probabilities [S, A], got {table.dtype} of shape {table.shape}")
    return distributions(np.ascontiguousarray(table, np.float64), "the target policy", "state number")


def _asked(question: Question, files: Sequence[Path]) -> str:
    """All that the sums depend on: the files as they are now, the trace, π, γ and the columns."""
    of_files = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    policy = hashlib.sha256(question.policy.tobytes()).hexdigest()
    read = question.columns, question.truncated, question.states, question.actions
    return repr((of_files, repr(question.trace), policy, question.gamma, read))


def _no_episode_in_two(files: Sequence[Path], first: Sums, column: str) -> None:
    """Raise where two files have the same episode. Only files whose ranges of ids overlap are looked at again."""
    low, high, n = (first[f"each {name}"] for name in ("low", "high", "n"))
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
