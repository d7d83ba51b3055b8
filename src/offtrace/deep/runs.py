"""A run from its first frame, or its last checkpoint, to its last frame."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from offtrace._shared import notebook
from offtrace.deep import checkpoints
from offtrace.deep.agent import Agent
from offtrace.deep.progress_line import Line, TensorBoard
from offtrace.deep.settings import Settings, Spelt
from offtrace.deep.training import Compiled, OnHost, State, Tally, batched, rounds, trainer
from offtrace.traces import Rule

CURVE = np.dtype(
    [("frames", np.int64), ("seed", np.int64), ("return", np.float64), ("episodes", np.int64), ("loss", np.float64)]
    + [(name, np.float64) for name in ("length", "magnitude", "cut")]
)
"""A row of the curve: what one seed did since the row before. `return` is the mean over the episodes that ended, or NaN."""


class LearningError(Exception):
    """A setting does not fit what is learned: the result would not be what was asked for."""


class DivergedError(LearningError):
    """The loss is no longer finite."""


@dataclass(frozen=True)
class Trained:
    """A trained agent, its curve and its state: what `train` returns."""

    config: Settings
    seeds: list[int]
    curve: np.ndarray
    """Rows of CURVE, one for each report and seed."""
    state: State
    agent: Agent[Any, Any, Any]
    finished: bool
    """Whether it came to its end: False if it was interrupted."""

    def _repr_html_(self) -> str:
        """The run in a notebook: what was trained, and returns over frames for each seed."""
        rows = [("game", self.config.game), ("trace", self.config.trace), ("seeds", ", ".join(map(str, self.seeds)))]
        rows.append(("finished", "yes" if self.finished else "no: it was interrupted"))
        frames = np.unique(self.curve["frames"])
        lines = {f"seed {s}": self.curve["return"][self.curve["seed"] == s] for s in self.seeds[:6]}
        lines = {name: y for name, y in lines.items() if len(y) == len(frames)}
        return notebook.table("Trained", rows) + notebook.curves(frames, lines, "frames", "return")

    def values(self, observation: ArrayLike, seed: int) -> np.ndarray:
        """Return Q(s, ·) [n, A] of observations [n, …] by the network of one seed; preferences, if it is an actor."""
        learner = jax.tree.map(itemgetter(self.seeds.index(seed)), self.state.learner)
        return np.asarray(self.agent.values(learner, jnp.asarray(observation)))

    def last_return(self, frames: int) -> np.ndarray:
        """Return the mean return of the episodes that ended in the last `frames` frames, [seeds]."""
        late = self.curve[self.curve["frames"] > self.curve["frames"].max() - frames]
        return np.array([_mean_return(late[late["seed"] == seed]) for seed in self.seeds])


def _mean_return(rows: np.ndarray) -> float:
    ended = rows[rows["episodes"] > 0]
    return float((ended["return"] * ended["episodes"]).sum() / ended["episodes"].sum()) if len(ended) else math.nan


def train(
    config: Settings,
    seeds: int | Sequence[int] = 1,
    folder: str | Path | None = None,
    *,
    traces: Sequence[Rule] | None = None,
    keep: int = 2,
    save_every: float = 60.0,
    progress: bool = True,
    go_on: bool = False,
    logs: bool = True,
    on_report: Callable[[int, Tally[np.ndarray]], None] | None = None,
) -> Trained:
    """Train for `config.frames` frames with each seed, all side by side in one program; to be exact, until `config.end`.

    With a `folder`, checkpoints and, unless `logs` is False, logs for TensorBoard go there: checkpoints every `save_every`
    seconds, at the end, and when it is interrupted (by Ctrl-C, SIGTERM or SIGHUP); the last `keep` are kept. If there is a
    checkpoint the run resumes from it, bit for bit as if it had not stopped (a Gymnasium game, which cannot be saved, begins new
    episodes). The folder is this run's alone: while another process trains there, or if its checkpoints are of other
    settings, CheckpointError is raised.
    `traces`, one for each seed, let numbers such as λ differ.
    A loss that is no longer finite raises DivergedError at once. With `go_on` it is recorded in the
    curve, and the other seeds continue.

    >>> from offtrace import RBIS
    >>> from offtrace.deep import Config, train
    >>> sizes = {"envs": 4, "every": 16, "batch": 4, "length": 8, "warm_up": 100, "capacity": 800,
    ...          "hidden": (16,)}
    >>> agent = {"trace": RBIS(lam=0.9), "priority": 0.5, "explore_frames": 1_000}
    >>> config = Config(game="CartPole-v1", frames=1_600, **agent, **sizes)
    >>> trained = train(config, seeds=2, progress=False)
    >>> trained.curve.dtype.names
    ('frames', 'seed', 'return', 'episodes', 'loss', 'length', 'magnitude', 'cut')
    """
    chosen = list(range(seeds)) if isinstance(seeds, int) else [int(s) for s in seeds]
    if not chosen:
        raise ValueError("seeds is empty: there is nothing to train")
    if keep < 1:
        raise ValueError(f"keep must be at least 1, the checkpoint to resume from, got {keep}")
    stacked = batched(config.trace, len(chosen)) if traces is None else _stacked(traces, config, len(chosen))
    training = trainer(config, chosen)
    run = checkpoints.described(config, chosen, traces)
    where = Path(folder) if folder else None
    with checkpoints.held(where, run) if where else nullcontext():
        state, curve = _begun(training, run, where)
        line = Line(config, len(chosen)) if progress else None
        board = TensorBoard(where, chosen) if where and logs else None
        saved = time.monotonic()
        reporters = [reporter for reporter in (line, board) if reporter]
        with ExitStack() as at_the_end, _interruptible() as interrupted:
            for reporter in reporters:
                at_the_end.callback(reporter.close)
            if isinstance(training, OnHost):
                training.stop = interrupted
            while (frames := int(state.frames[0])) < config.end and not interrupted():
                n = rounds(config, frames)
                state, since = training.advance(stacked, state, n)
                tally = Tally(*(np.asarray(a) for a in since))
                frames = int(state.frames[0])
                if not go_on and not np.isfinite(tally.loss).all():
                    _diverged(config, tally, chosen, where)
                if words := training.agent.complaint(state.learner, state.memory):
                    raise LearningError(words)
                rows = _rows(frames, chosen, tally)
                curve = np.concatenate([curve, rows])
                for reporter in reporters:
                    reporter.report(frames, rows)
                if on_report:
                    on_report(frames, tally)
                if where and time.monotonic() - saved > save_every:
                    checkpoints.save(where, state, curve, run, keep)
                    saved = time.monotonic()
            stopped = interrupted()
        if where:
            checkpoints.save(where, state, curve, run, keep)
    if stopped and progress:
        words = (
            "its state is saved, and the same command resumes from there" if where else "nothing was saved: no folder"
        )
        print(f"interrupted after {int(state.frames[0]):,} frames; {words}", file=sys.stderr)
    return Trained(config, chosen, curve, state, training.agent, not stopped)


def _begun(training: Compiled | OnHost, run: Spelt, folder: Path | None) -> tuple[State, np.ndarray]:
    """Return the state to resume from, and the curve so far."""
    keys = jax.vmap(jax.random.PRNGKey)(jnp.asarray(run["seeds"], jnp.uint32))
    held = checkpoints.in_folder(folder) if folder else []
    if not held:
        return training.collect(training.first(keys)), np.zeros(0, CURVE)
    like = jax.eval_shape(training.first, keys) if not isinstance(training, OnHost) else training.first(keys)
    state, curve = checkpoints.load(held[-1], like, run)
    return (training.resumed(state) if isinstance(training, OnHost) else state), curve


def _stacked(traces: Sequence[Rule], config: Settings, seeds: int) -> Rule:
    each = [batched(trace, 1) for trace in traces]
    if len(each) != seeds or any(jax.tree.structure(t) != jax.tree.structure(each[0]) for t in each):
        raise ValueError(
            f"traces must be {seeds}, one for each seed, and differ in their numbers only, got {list(traces)}"
        )
    if type(traces[0]) is not type(config.trace):
        raise ValueError(f"config.trace is {config.trace!r}, but traces are of another rule: {traces[0]!r}")
    return jax.tree.map(lambda *numbers: jnp.concatenate(numbers), *each)


def _rows(frames: int, seeds: list[int], tally: Tally[np.ndarray]) -> np.ndarray:
    rows = np.zeros(len(seeds), CURVE)
    rows["frames"], rows["seed"], rows["episodes"] = frames, seeds, tally.episodes
    rows["return"] = np.where(tally.episodes > 0, tally.total / np.maximum(tally.episodes, 1), np.nan)
    for name in ("loss", "length", "magnitude", "cut"):
        rows[name] = getattr(tally, name)
    return rows


def _diverged(config: Settings, tally: Tally[np.ndarray], seeds: list[int], folder: Path | None) -> None:
    bad = [seed for seed, loss in zip(seeds, np.asarray(tally.loss), strict=True) if not np.isfinite(loss)]
    held = checkpoints.in_folder(folder) if folder else []
    kept = f" The last checkpoint, from before, is {held[-1]}." if held else ""
    raise DivergedError(
        f"the loss of seed {', '.join(map(str, bad))} is not finite with {config.trace}: try {config.cures}.{kept}"
    )


@contextmanager
def _interruptible() -> Generator[Callable[[], bool], None, None]:
    """Remember Ctrl-C, SIGTERM and SIGHUP, so that the piece that is being computed is finished; the second one raises."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def press(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    heeded = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup wants it ignored
        heeded.append(signal.SIGHUP)
    before = {number: signal.signal(number, press) for number in heeded}
    try:
        yield pressed.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
