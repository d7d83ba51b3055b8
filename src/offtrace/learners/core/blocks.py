"""Learners in blocks: each block is one memory that lives through its seeds one after another, a slice of steps at a time.

Blocks are independent, so threads may take them in any order; a checkpoint is a snapshot of each, no two at the same moment.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
import warnings
import zipfile
import zlib
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, cast

import numpy as np

from offtrace._shared.cores import cores
from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import ProgressBar
from offtrace._shared.whole_files import written_whole
from offtrace.learners.core import eligibility, loop
from offtrace.learners.core.compiling import source_digest
from offtrace.learners.core.eligibility import Kept
from offtrace.learners.core.history_callback import Past
from offtrace.learners.core.loop import BAD, DONE, ROOM, Memory, Out, Settings
from offtrace.learners.core.plan import STEP, compiled, plan
from offtrace.learners.environments import Environment
from offtrace.learners.learned import BEYOND, Curve, Learned, beyond
from offtrace.learners.methods.gq import GQ
from offtrace.learners.policies import Coded
from offtrace.traces import Trace

SLICE = 500_000
"""Steps between two looks at the clock."""
BLOCK = 64
"""Seeds in a block at most."""
EVERY = 60.0
"""Seconds between two checkpoints."""


class Block:
    """Some seeds in an MDP."""

    def __init__(
        self,
        where: Environment,
        trace: Trace | GQ,
        policies: tuple[Coded, ...],
        settings: Settings,
        capacity: int,
        seeds: np.ndarray,
    ) -> None:
        self.where, self.trace, self.settings = where, trace, settings
        self.past = Past(trace, STEP) if trace.form == "history" else None
        self.plan, *rule = plan(trace, where.shape, self.past)
        k, carry = where.features.tile.shape[1], len(self.plan.first)
        slots, deep = (settings.length * k, settings.length + 3) if settings.update == loop.REPLAY else (64, 64)
        self.m = loop.memory(
            where.size, where.features.A, k, settings.by_visits, settings.update, capacity, self.plan.second > 0
        )
        self.kept = eligibility.kept(self.plan.way, where.size, k, carry, slots, deep)
        self.out = empty(seeds, where.size, settings)
        self._fixed = (where.world, where.features, self.plan, *rule, *policies, settings)

    def advance(self, budget: int) -> bool:
        """Go on for so many steps; whether all seeds are done."""
        while True:
            arguments = (*self._fixed, self.m, self.kept, self.out)
            before = self.steps
            status = compiled(loop.run, *arguments, budget)(*arguments, budget)
            if status == BAD:
                refuse(self.trace, self.past)
            if status != ROOM:
                return status == DONE
            budget = max(1, budget - (self.steps - before))
            self.grow()

    def grow(self) -> None:
        """Twice the room for what has run out of it."""
        if self.m.i[loop.LOOKS] == len(self.out.look_step):
            more = {
                n: np.concatenate([a, np.zeros_like(a)])
                for n in ("look_step", "look_return")
                for a in [getattr(self.out, n)]
            }
            self.out = self.out._replace(**more)
        if any(eligibility.lacking(self.plan.way, self.kept)):
            self.kept = eligibility.grown(self.plan.way, self.kept)

    @property
    def steps(self) -> int:
        """Taken so far, by all seeds."""
        return int(self.out.steps.sum()) + (int(self.m.i[loop.T]) if self.m.i[loop.BEGUN] else 0)

    @property
    def progress(self) -> float:
        """How many seeds are done, the one under way in part."""
        s, i = self.settings, self.m.i
        part = 0.0 if not i[loop.BEGUN] else i[loop.E] / s.episodes if s.episodes else i[loop.T] / s.steps
        return float(i[loop.SEED] + part)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything that changes, copied."""
        parts = {"m": self.m, "kept": self.kept, "out": self.out}
        saved = {f"{part}.{name}": array.copy() for part, of in parts.items() for name, array in of._asdict().items()}
        return saved if self.past is None else {**saved, "past": self.past.steps.copy()}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Go on from a snapshot."""
        for part, kind in (("m", Memory), ("kept", Kept), ("out", Out)):
            setattr(self, part, kind(**{name: saved[f"{part}.{name}"] for name in kind._fields}))
        if self.past is not None:
            self.past.steps = saved["past"]


def refuse(trace: Trace | GQ, past: Past | None) -> NoReturn:
    """A custom trace gave no coefficient."""
    if past is not None and past.error is not None:
        raise past.error
    raise ValueError(
        f"the custom trace {trace.title!r} returned a β that is negative or not finite; "
        "does it list all that it uses in `reads`?"
    )


def empty(seeds: np.ndarray, size: int, settings: Settings, lanes: int = 1) -> Out:
    """Room for what will come of these seeds."""
    n, points = len(seeds), len(settings.marks)
    looks = 0 if not settings.look_every else 1024
    return Out(
        seeds=seeds.astype(np.uint64),
        θ=np.zeros((n, size)),
        steps=np.zeros(n, np.int64),
        episodes=np.zeros(n, np.int64),
        largest=np.zeros(n),
        error=np.full((n, points), np.nan),
        returns=np.full((n, points), np.nan),
        at=np.zeros((n, points), np.int64),
        look_step=np.zeros(max(looks, lanes), np.int64),
        look_return=np.zeros(max(looks, lanes)),
        look_stop=np.zeros(n, np.int64),
    )


def run(
    where: Environment,
    trace: Trace | GQ,
    behavior: Coded,
    target: Coded,
    looking: Coded,
    settings: Settings,
    capacity: int,
    seeds: np.ndarray,
    alone: bool,
    checkpoint: Any,
    progress: bool | None,
    threads: int | None,
) -> Learned:
    """Run all seeds, and put together what comes of them."""
    kind, each = Block, BLOCK
    if where.mdp is None:
        from offtrace.learners.gymnasium_host import HostBlock

        kind, each = HostBlock, 1
    if threads is None:
        threads = cores()
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads must be an integer of at least 1, got {threads!r}")
    each, file = min(each, -(-len(seeds) // threads)), None
    if checkpoint is not None:
        key = _key(where, trace, behavior, target, looking, settings, capacity, seeds)
        file = _File(Path(checkpoint), key, each)
        each = file.each
    made = [
        kind(where, trace, (behavior, target, looking), settings, capacity, seeds[i : i + each])
        for i in range(0, len(seeds), each)
    ]
    if file:
        if kind is not Block:
            cast(Any, made[0]).check_that_it_can_be_saved()
        file.restore(made)
    if kind is not Block or trace.form == "history":  # Python works, a thread at a time
        threads = 1
    started = time.perf_counter() - (file.wall if file else 0.0)
    _work(made, threads, file, started, sys.stderr.isatty() if progress is None else progress)
    return _learned(made, where, trace, seeds, alone, time.perf_counter() - started)


def _work(made: list[Any], threads: int, file: _File | None, started: float, progress: bool) -> None:
    """Take blocks in turn, a slice at a time, until all are done."""
    total, stop, lock = sum(len(b.out.seeds) for b in made), threading.Event(), threading.Lock()

    def work(block: Any) -> None:
        while not stop.is_set():
            done = block.advance(SLICE)
            if file:
                with lock:
                    file.keep(made.index(block), block, started)
            if done:
                return

    with ProgressBar() if progress else nullcontext() as bar, ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(work, block) for block in made}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2 if progress else None, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                if bar:
                    _show(bar, sum(b.progress for b in made), total, started, sum(b.steps for b in made))
        except BaseException as error:
            stop.set()
            pool.shutdown(cancel_futures=True)
            if file and not isinstance(error, Exception):  # interrupted between two slices, not failed within one
                file.write(made, started)
            raise
    if file:
        file.write(made, started)


def _show(bar: ProgressBar, done: float, total: int, started: float, steps: int) -> None:
    spent = time.perf_counter() - started
    left = spent * (total - done) / done if done > 0 else float("inf")
    rate = f"{steps / max(spent, 1e-9):,.0f} steps/s"
    bar.show(done, total, f"{done:.1f}/{total} learners, {rate}, {duration(left)} left")


def _learned(
    made: list[Any], where: Environment, trace: Trace | GQ, seeds: np.ndarray, alone: bool, wall: float
) -> Learned:
    for b in made:
        lost = beyond(b.out.θ, b.out.largest, b.out.steps, where, b.settings)
        b.out.θ[lost] = np.nan
        b.out.error[lost, -1] = np.inf

    def whole(name: str) -> np.ndarray:
        joined = np.concatenate([getattr(b.out, name) for b in made])
        return joined[0] if alone else joined

    looks = []
    for b in made:
        stops = np.concatenate([[0], b.out.look_stop])
        looks += [(b.out.look_step[i:j].copy(), b.out.look_return[i:j].copy()) for i, j in pairwise(stops)]
    θ = whole("θ")
    result = Learned(
        trace=trace,
        weights=θ.reshape(*θ.shape[:-1], -1, where.features.A),
        features=where.features,
        coder=where.coder,
        seeds=seeds[0] if alone else seeds,
        steps=whole("steps"),
        episodes=whole("episodes"),
        curve=Curve(whole("at"), whole("error"), whole("returns")),
        evaluations=tuple(looks),
        wall=wall,
    )
    lost = int(np.sum(result.diverged))
    if lost:
        who = "the learner" if alone else f"{lost} of {len(seeds)} learners"
        warnings.warn(
            f"{who} diverged: values are not finite, or {BEYOND:,.0f} times larger than the rewards seen allow (their Q is NaN). "
            "Try a smaller alpha or a smaller λ",
            stacklevel=4,
        )
    return result


def _key(*parts: Any) -> str:
    """What a run is: a digest of everything that its result depends on, the code of learners and of the trace included."""
    digest = hashlib.sha256(source_digest().encode())

    def feed(part: Any) -> None:
        if isinstance(part, Environment):
            feed((part.world if part.mdp is not None else repr(part.gym), part.features, repr(part.coder), part.gamma))
        elif isinstance(part, tuple):
            digest.update(b"(")
            for piece in part:
                feed(piece)
            digest.update(b")")
        elif isinstance(part, Trace | GQ):
            rule = getattr(type(part), "factors", None)
            feed((type(part).__qualname__, rule, *(getattr(part, f.name) for f in fields(part))))
        elif isinstance(part, FunctionType):  # its repr would be another one in another process
            code = part.__code__
            feed((part.__qualname__, code.co_code.hex(), code.co_names, *(c for c in code.co_consts if _plain(c))))
            feed(tuple(c.cell_contents for c in part.__closure__ or () if _plain(c.cell_contents)))
        elif isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        else:
            digest.update(repr(part).encode())

    feed(parts)
    return digest.hexdigest()


def _plain(x: Any) -> bool:
    """Whether its repr says what it is."""
    return isinstance(x, int | float | str | tuple | np.ndarray | FunctionType | None)


class _File:
    """The checkpoint: snapshots of all blocks, replaced as a whole."""

    def __init__(self, path: Path, key: str, each: int) -> None:
        self.path, self.key, self.wall, self.last = path, key, 0.0, time.monotonic()
        self.each = each
        """Seeds in a block: as many as when the file was first written, whatever the number of threads is now."""
        self.saved: dict[str, np.ndarray] = {}
        self.snapshots: list[dict[str, np.ndarray]] = []
        if not path.exists():
            if not path.parent.is_dir():
                raise FileNotFoundError(f"{path} cannot be a checkpoint: there is no folder {path.parent}")
            return
        try:
            with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
                self.saved = {name: file[name] for name in file.files}
            head = json.loads(str(self.saved.pop("head")))
            written, self.wall, self.each = head["key"], float(head["wall"]), int(head["each"])
        except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a checkpoint of a learner, or it is damaged: {error}") from error
        if written != key:
            raise ValueError(
                f"{path} is the checkpoint of another run: its arguments differ, or the code of the trace or of offtrace has "
                "changed since. Give another path, or remove it"
            )

    def restore(self, made: list[Any]) -> None:
        """Take all blocks to where they were."""
        for i, block in enumerate(made):
            own = {name.split("/", 1)[1]: a for name, a in self.saved.items() if name.startswith(f"{i}/")}
            self.snapshots.append(own)
            if own:
                block.restore({name: a.copy() for name, a in own.items()})
        self.saved = {}

    def keep(self, i: int, block: Any, started: float) -> None:
        """A snapshot of block i; the file is written if it is time."""
        if time.monotonic() - self.last > EVERY / 2:
            self.snapshots[i] = block.snapshot()
        if time.monotonic() - self.last > EVERY:
            self._replace(started)

    def write(self, made: list[Any], started: float) -> None:
        """Everything as it is now; nobody works any more."""
        self.snapshots = [block.snapshot() for block in made]
        self._replace(started)

    def _replace(self, started: float) -> None:
        head = json.dumps({"key": self.key, "each": self.each, "wall": time.perf_counter() - started})
        arrays = {f"{i}/{name}": a for i, of in enumerate(self.snapshots) for name, a in of.items()}
        with written_whole(self.path) as file:
            np.savez(file, head=np.array(head), **arrays)  # pyright: ignore[reportArgumentType]
        self.last = time.monotonic()
