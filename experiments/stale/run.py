"""Tune and test all losses, and write a JSON line for each run into FILE as soon as it is done.

    cd experiments
    python -m stale.run --small small.jsonl            # five minutes on two cores
    python -m stale.run --seconds 450 h200.jsonl       # on one H200; the same command resumes it

A cell is an age and a task. Each loss is tuned in it: all step sizes with the tuning seeds. Then the step size with the
highest mean success at the end is run with the test seeds. Runs of all cells are trained side by side, `--runs` at once, in one
compiled program: first the tests that can be run, then what is left of tuning, oldest age first. Interrupt it at any time: the
same command continues with what FILE lacks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import offtrace as ot
from stale.tasks import TASKS
from stale.training import MINIBATCHES, Measured, Runs, Setting, pretrain, train
from stale.transformer import Shape

POINTS = 25
"""The largest number of points in the curve of a run."""
LAST = 0.2
"""The share of the iterations at the end over which success is taken."""


@dataclass(frozen=True)
class Grid:
    """What is run."""

    setting: Setting = field(default_factory=Setting)
    tasks: tuple[str, ...] = tuple(TASKS)
    ages: tuple[int, ...] = (64, 16, 0)
    """In updates; a multiple of MINIBATCHES."""
    alphas: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    tuning: int = 5
    """How many seeds choose the step size: 0, 1, …; those that test follow."""
    test: int = 10

    def __post_init__(self) -> None:
        wrong = [age for age in self.ages if age % MINIBATCHES or not 0 <= age <= self.setting.oldest]
        if wrong:
            raise ValueError(f"ages must be multiples of {MINIBATCHES}, at most {self.setting.oldest}, got {wrong}")

    def seeds(self, phase: str) -> range:
        """The seeds of "tuning" or "test"."""
        return range(self.tuning) if phase == "tuning" else range(self.tuning, self.tuning + self.test)


SMALL = Grid(
    Setting(tokens=64, iterations=40, prompts=6, oldest=32, shape=Shape(1, 32, 2)),
    tasks=("sum",), ages=(32,), alphas=(3e-4, 1e-3, 3e-3), tuning=2, test=3,
)  # fmt: skip
"""A grid for two cores."""


class Unit(NamedTuple):
    """One run."""

    phase: str
    task: str
    age: int
    loss: str
    alpha: float
    seed: int


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true", help="the grid for two cores")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="nothing begins that would end later")
    parser.add_argument("--runs", type=int, default=175, help="how many are trained side by side")
    parser.add_argument("--ages", type=int, nargs="*")
    parser.add_argument("--tasks", nargs="*", choices=TASKS)
    parser.add_argument("--alphas", type=float, nargs="*")
    for name in ("tuning", "test", "tokens", "iterations", "prompts"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    given = {name: value for name, value in vars(args).items() if value is not None}
    grid = SMALL if args.small else Grid()
    setting = grid.setting._replace(**{n: given[n] for n in ("tokens", "iterations", "prompts") if n in given})
    changes = {n: given[n] for n in ("tuning", "test") if n in given}
    changes |= {n: tuple(given[n]) for n in ("ages", "tasks", "alphas") if n in given}
    Work(replace(grid, setting=setting, **changes), args.file, args.runs, args.seconds).run()


class Work:
    """The file and the time, and what is still to be done."""

    def __init__(self, grid: Grid, file: Path, at_once: int, seconds: float = float("inf")) -> None:
        self.grid, self.file, self.at_once, self.seconds = grid, file, at_once, seconds
        self.began = time.monotonic()
        self.scores: dict[Unit, float] = {}
        """The success at the end of each run, by which step sizes are chosen."""
        setting = json.loads(json.dumps(grid.setting._asdict()))
        if file.exists():
            text = file.read_bytes()
            file.write_bytes(text[: text.rfind(b"\n") + 1])  # without what a killed process has left of a line
            for line in complete_lines(file):
                if "setting" in line and line["setting"] != setting:
                    raise SystemExit(f"{file} holds runs of {line['setting']}, not of {setting}: give another file")
                if "seed" in line:
                    self.scores[unit_of(line)] = line["end"]
        if not file.exists() or not file.stat().st_size:
            self.write([{"setting": setting, "machine": machine(), "offtrace": ot.__version__, "jax": jax.__version__}])

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Add lines to the file."""
        with self.file.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)

    def say(self, words: str) -> None:
        """Print, with the seconds since the beginning."""
        print(f"{time.monotonic() - self.began:5.0f} s  {words}", flush=True)

    def starts(self) -> dict[str, np.ndarray]:
        """The trained policies, [tasks, seeds, …], from the file beside FILE if it is there."""
        file = self.file.with_suffix(".npz")
        if file.exists():
            return dict(np.load(file))
        seeds = jnp.arange(self.grid.tuning + self.grid.test)
        of_seeds = jax.vmap(lambda task, seed: pretrain(self.grid.setting, task, seed), (None, 0))
        weights, right = jax.jit(jax.vmap(of_seeds, (0, None)))(jnp.arange(len(TASKS)), seeds)
        made: dict[str, Any] = {name: np.asarray(a) for name, a in weights.items()} | {"success": np.asarray(right)}
        np.savez(file, **made)
        self.say(f"pretrained: success {made['success'].min():.2f} to {made['success'].max():.2f}")
        return made

    def pending(self) -> list[Unit]:
        """What is left: the tests of cells that are tuned, then tuning in the order of cells."""
        tests: list[Unit] = []
        tuning: list[Unit] = []
        for age in self.grid.ages:
            for task in self.grid.tasks:
                cell = list(self.cell(age, task))
                left = [unit for unit in cell if unit not in self.scores]
                tuning += left
                if not left:
                    tests += [unit for unit in self.chosen(cell) if unit not in self.scores]
        return tests + tuning

    def cell(self, age: int, task: str) -> Iterator[Unit]:
        """The tuning of all losses for a task, at an age."""
        for seed in self.grid.seeds("tuning"):
            for name in self.grid.setting.losses:
                for alpha in sorted(self.grid.alphas):
                    yield Unit("tuning", task, age, name, alpha, seed)

    def chosen(self, cell: list[Unit]) -> Iterator[Unit]:
        """The tests of each loss, with its best step size in tuning; the first of equals is the smaller."""
        for name in self.grid.setting.losses:
            own = [unit for unit in cell if unit.loss == name]
            mean = {a: np.mean([self.scores[u] for u in own if u.alpha == a]) for a in sorted(self.grid.alphas)}
            best = max(mean, key=mean.__getitem__)
            for seed in self.grid.seeds("test"):
                yield own[0]._replace(phase="test", alpha=best, seed=seed)

    def run(self) -> None:
        """Train what is left, as many runs at once as there may be."""
        starts = self.starts()
        starts.pop("success")
        longest, compiled = 0.0, None
        while left := self.pending():
            if time.monotonic() - self.began + longest > self.seconds:
                self.say(f"stopped: {len(left)} runs are left; run the same command again")
                return
            units = left[: self.at_once]
            filled = units + units[-1:] * (self.at_once - len(units))  # one program for all
            runs = columns(self.grid.setting.losses, filled)
            if compiled is None:
                compiled = train.lower(self.grid.setting, starts, runs).compile()
                self.say("compiled")
            before = time.monotonic()
            measured = Measured(*(np.asarray(a) for a in compiled(starts, runs)))
            took = time.monotonic() - before
            longest = max(longest, took)
            lines = [line_of(unit, Measured(*(a[i] for a in measured))) for i, unit in enumerate(units)]
            self.write(lines)
            ends = [line["end"] for line in lines]
            self.scores |= dict(zip(units, ends, strict=True))
            self.say(
                f"{len(units)} runs in {took:.1f} s, success {np.mean(ends):.2f}; {len(left) - len(units)} or more left"
            )
        self.say("done")


def columns(losses: tuple[str, ...], units: list[Unit]) -> Runs:
    """The runs as the program takes them."""
    tasks = list(TASKS)
    return Runs(
        jnp.array([tasks.index(u.task) for u in units]),
        jnp.array([u.age for u in units]),
        jnp.array([losses.index(u.loss) for u in units]),
        jnp.array([u.alpha for u in units], jnp.float32),
        jnp.array([u.seed for u in units]),
    )


def line_of(unit: Unit, measured: Measured) -> dict[str, Any]:
    """What is written of a run: means over at most POINTS parts of its iterations.

    Once a gradient was not finite, the policy answers nothing, and its success is 0.
    """
    finite = np.logical_and.accumulate(measured.finite > 0)
    measured = measured._replace(success=np.where(finite, measured.success, 0.0))
    parts = np.array_split(np.arange(len(finite)), min(POINTS, len(finite)))
    curves = {
        name: [float(f"{np.mean(np.asarray(a, float)[part]):.4g}") for part in parts]
        for name, a in measured._asdict().items()
    }
    late = measured.success[-max(1, round(LAST * len(finite))) :]
    return {**unit._asdict(), "end": float(late.mean()), "curve": curves}


def unit_of(line: dict[str, Any]) -> Unit:
    """The unit of a line."""
    return Unit(**{name: line[name] for name in Unit._fields})


def complete_lines(file: Path) -> list[dict[str, Any]]:
    """What was written; a last line that was torn is left out."""
    text = (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()).decode()
    whole, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def machine() -> str:
    """What computes."""
    return f"{platform.system()} {platform.machine()}, {jax.devices()[0].device_kind}"


if __name__ == "__main__":
    main()
