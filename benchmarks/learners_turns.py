"""Two versions of the learners' compiled loop, in turns: whether a change has made it slower.

    git worktree add /tmp/before COMMIT
    .venv/bin/python benchmarks/learners_turns.py /tmp/before/src src

Each source has a process of its own, and both live through the same steps. They take turns for as long as `--turns` says, and
the shortest turn of each counts: another program can only make a turn longer.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from timing import emit


def cases() -> dict[str, Callable[[int], object]]:
    """What is timed, for one number of a turn: each takes about a tenth of a second."""
    import offtrace as ot
    from learners import corridor
    from offtrace import learners, mdps

    grid, line = mdps.bifurcation(1), corridor(2_001)
    leaning, even = np.tile([0.45, 0.55], (line.S, 1)), np.full((line.S, 2), 0.5)
    rows = np.random.default_rng(0).normal(size=(grid.S, 8))
    first = next(iter(inspect.signature(learners.evaluate).parameters))
    words = ("target", "behavior") if first == "trace" else ("pi", "mu")

    def call(function: Any, trace: Any, env: Any, turn: int, **given: Any) -> object:
        given = {"points": 1, "threads": 1, "progress": False, "seed": turn, **given}
        return function(*((trace, env) if first == "trace" else (env, trace)), **given)

    def daley(trace: ot.Trace) -> Callable[[int], object]:
        given: dict[str, Any] = {"alpha": 0.5, "seeds": 300, "threads": 1, "progress": False}
        return lambda turn: learners.bifurcation_auc(1, trace, seed=300 * turn, **given)

    def long(trace: Any) -> Callable[[int], object]:
        given: dict[str, Any] = {"alpha": 0.1, "steps": 1_000_000, "limit": 20_000, "certify": False}
        given |= {"truth": np.zeros((line.S, 2)), **dict(zip(words, (leaning, even), strict=True))}
        return lambda turn: call(learners.evaluate, trace, line, turn, **given)

    def acting(trace: Any, **given: Any) -> Callable[[int], object]:
        policies = {"behavior": learners.EpsilonGreedy(0.3), "target": learners.EpsilonGreedy(0.1)}
        given = {"alpha": 0.01, "steps": 600_000, "limit": 50, **policies, **given}
        return lambda turn: call(learners.control, trace, grid, turn, **given)

    return {
        "daley2023, Retrace": daley(ot.Retrace(0.9)),
        "daley2023, RBIS": daley(ot.RBIS(0.9)),
        "daley2023, Truncated IS": daley(ot.TruncatedIS(lam=0.9)),
        "long episodes, Retrace": long(ot.Retrace(0.9)),
        "long episodes, RBIS": long(ot.RBIS(0.9)),
        "eight features, Retrace": acting(ot.Retrace(0.9), features=rows),
        "eight features, GQ": acting(learners.GQ(0.9, alpha_w=0.02), features=rows),
        "offline, RBIS": acting(ot.RBIS(0.9), update="offline"),
        "replay, Retrace": acting(ot.Retrace(0.9), update=learners.Replay(1000, every=8), steps=300_000),
    }


def work() -> None:
    """One source: a line on stdin names a case and a turn, a line on stdout says how many seconds of CPU it took."""
    known = cases()
    for line in sys.stdin:
        name, turn = json.loads(line)
        if name is None:
            answer: Any = list(known)
        else:
            began = time.process_time()
            known[name](turn)
            answer = time.process_time() - began
        print(json.dumps(answer), flush=True)


def started(source: str) -> subprocess.Popen[str]:
    """A worker that imports offtrace from this source."""
    environment = os.environ | {"PYTHONPATH": str(Path(source).resolve()), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, "--work"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(worker: subprocess.Popen[str], name: str | None, turn: int) -> Any:
    """What a worker answers."""
    asked, answered = cast("IO[str]", worker.stdin), cast("IO[str]", worker.stdout)
    asked.write(json.dumps([name, turn]) + "\n")
    asked.flush()
    return json.loads(answered.readline())


def main() -> None:
    """Take turns, and print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", help="the folder src of the old version, and that of the new one")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    workers = [started(source) for source in options.sources]
    names = [name for name in ask(workers[0], None, 0) if options.only in name]
    assert all(set(names) <= set(ask(worker, None, 0)) for worker in workers)
    for name in names:
        compiled = [ask(worker, name, 0) for worker in workers]
        taken = np.array([[ask(worker, name, turn) for worker in workers] for turn in range(1, options.turns + 1)])
        least = taken.min(axis=0)
        emit("turns", case=name, first=compiled, seconds=least.round(4).tolist(), ratio=round(least[-1] / least[0], 3))


if __name__ == "__main__":
    main()
