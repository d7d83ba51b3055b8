"""The agents beside each other on MinAtar, at equal frames: the table of docs/minatar.md.

    python benchmarks/minatar_agents.py run FILE [--games breakout,freeway] [--agents replay,pqn] [--frames 60000] [--seeds 2]
    python benchmarks/minatar_agents.py table FILE [FILE …]

It runs on whatever JAX finds: a GPU, or the CPU. FILE gets one line of JSON for each game and agent, as soon as it is done, with
the return of each seed; what it has already is not run again. All seeds of a line are one program. On a GPU take all games, as
many frames as the replay study (750,000) or more, and five seeds. A stream steps one game for each seed, so that on a GPU it is
bound by latency: give it many seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import offtrace as ot
from offtrace.deep import PQN, QRC, Config, Settings, StreamAC, StreamQ, train
from offtrace.deep.games import MINATAR

EPSILON: Any = {"behavior_epsilon": 0.05}
"""The same for all that act by values: returns are those of the training episodes."""
AGENTS: dict[str, tuple[type[Settings], dict[str, Any]]] = {
    "replay, Retrace(0.9)": (Config, {**EPSILON, "trace": ot.Retrace(lam=0.9)}),
    "PQN, Peng's Q(0.65)": (PQN, EPSILON),
    "PQN, Retrace(0.65)": (PQN, {**EPSILON, "trace": ot.Retrace(lam=0.65), "target_epsilon": 0.05}),
    "Stream Q(λ), Watkins(0.8)": (StreamQ, EPSILON),
    "Stream Q(λ), RBIS(0.8)": (StreamQ, {**EPSILON, "trace": ot.RBIS(lam=0.8), "target_epsilon": 0.01, "groups": 32}),
    "Stream AC(λ), λ = 0.8": (StreamAC, {}),
    "QRC(λ), Watkins(0.8)": (QRC, {**EPSILON, "learning_rate": 1e-4}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    begun = commands.add_parser("run")
    begun.add_argument("file", type=Path)
    begun.add_argument("--games", default=",".join(game.removeprefix("minatar/") for game in MINATAR))
    begun.add_argument("--agents", default="", help="those whose name contains one of these, such as pqn,stream (all)")
    begun.add_argument("--frames", type=int, default=750_000)
    begun.add_argument("--seeds", type=int, default=5)
    begun.set_defaults(run=run)
    shown = commands.add_parser("table")
    shown.add_argument("files", type=Path, nargs="+")
    shown.set_defaults(run=lambda args: print(table([line for file in args.files for line in lines(file)])))
    args = parser.parse_args()
    args.run(args)


def run(args: argparse.Namespace) -> None:
    """Train what the file does not have."""
    wanted = [name.lower() for name in args.agents.split(",")]
    done = {(line["game"], line["agent"], line["frames"]) for line in lines(args.file)}
    for game in args.games.split(","):
        for name, (kind, own) in AGENTS.items():
            if not any(part in name.lower() for part in wanted) or (game, name, args.frames) in done:
                continue
            given: dict[str, Any] = {"game": f"minatar/{game}", "frames": args.frames, **own}
            if kind is not StreamAC:
                given["explore_frames"] = args.frames // 5
            began, spent = time.perf_counter(), time.process_time()
            trained = train(kind(**given), args.seeds, progress=False)
            line = {
                "game": game,
                "agent": name,
                "frames": args.frames,
                "returns": trained.last_return(args.frames // 10).tolist(),
                "seconds": round(time.perf_counter() - began, 1),
                "cpu_seconds": round(time.process_time() - spent, 1),
                "device": jax.devices()[0].device_kind,
            }
            args.file.parent.mkdir(parents=True, exist_ok=True)
            with args.file.open("a") as file:
                print(json.dumps(line, ensure_ascii=False), file=file, flush=True)
            print(f"{game}, {name}: {np.mean(line['returns']):.2f} in {line['seconds']:.0f} s", flush=True)


def lines(file: Path) -> list[dict[str, Any]]:
    """What a file has."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(found: list[dict[str, Any]]) -> str:
    """A table of means, with the standard error of the mean over the seeds."""
    games = list(dict.fromkeys(line["game"] for line in found))
    cells: dict[tuple[str, str], str] = {}
    for line in found:
        returns = np.array(line["returns"])
        error = returns.std(ddof=1) / math.sqrt(len(returns)) if len(returns) > 1 else math.nan
        cells[line["agent"], line["game"]] = f"{returns.mean():.2f} ± {error:.2f}"
    rows = [f"| {agent} | " + " | ".join(cells.get((agent, game), "–") for game in games) + " |" for agent in AGENTS]
    of = sorted({(line["frames"], len(line["returns"]), line["device"]) for line in found})
    return "\n".join(
        [f"| return ± standard error, {of} | {' | '.join(games)} |", "|---" * (len(games) + 1) + "|", *rows]
    )


if __name__ == "__main__":
    main()
