"""How long `offtrace logs evaluate` takes with each model of Q, on about 28,000 rows of MountainCar, as one would call it.

    .venv/bin/python benchmarks/evaluation_models.py [linear fourier refits]

Writes the log (145 episodes, μ pushes along the velocity, half of its actions random) and the policy into a folder of its own,
runs the command for each model, and prints its wall time, its CPU time and its headline. `refits` is `evaluate` with a regressor
that is no linear system: boosted trees, fitted anew in every sweep, and refitted five times for the interval.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import polars as pl

EPISODES = 145
POLICY = """
import numpy as np

def greedier(x):
    p = np.full((len(x), 3), 0.4 / 3)
    p[np.arange(len(x)), np.where(x[:, 1] >= 0, 2, 0)] += 0.6
    return p
"""
REGRESSOR = """
import sys, time
from pathlib import Path
from sklearn.ensemble import HistGradientBoostingRegressor
import offtrace as ot
from offtrace.logs import Columns, Regressor, evaluate, read
sys.path.insert(0, str(Path(sys.argv[1]).parent))
from policy import greedier
logs = read(sys.argv[1], columns=Columns(state=("position", "velocity")))
model = Regressor(lambda: HistGradientBoostingRegressor(max_iter=30, random_state=0))
result = evaluate(logs, greedier, trace=ot.RBIS(lam=0.95), gamma=0.98, model=model, estimators=["fitted"], refits=5)
print(result.said())
"""


def log(file: Path) -> int:
    """Write the log; its rows."""
    env, rng, rows = gym.make("MountainCar-v0"), np.random.default_rng(1), []
    for episode in range(EPISODES):
        x, _ = env.reset(seed=0 if not episode else None)
        over, step = False, 0
        while not over:
            p = np.full(3, 0.5 / 3)
            p[2 if x[1] >= 0 else 0] += 0.5
            a = int(rng.choice(3, p=p))
            after, reward, terminated, truncated, _ = env.step(a)
            following = [float(value) for value in after]
            rows.append(
                (episode, step, float(x[0]), float(x[1]), a, p[a], float(reward), *following, terminated, truncated)
            )
            x, over, step = after, terminated or truncated, step + 1
    names = ["episode", "step", "position", "velocity", "action", "mu", "reward", "next_position", "next_velocity"]
    pl.DataFrame(rows, [*names, "terminated", "truncated"], orient="row").write_parquet(file)
    return len(rows)


def timed(command: list[str]) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds, and what was said."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, said


def main() -> None:
    models = sys.argv[1:] or ["linear", "fourier", "refits"]
    with tempfile.TemporaryDirectory() as folder:
        file, policy, script = (Path(folder) / name for name in ("log.parquet", "policy.py", "regressor.py"))
        print(f"{log(file):,} rows of {EPISODES} episodes")
        policy.write_text(POLICY)
        script.write_text(REGRESSOR)
        for model in models:
            columns = ["state=position,velocity", "next_state=next_position,next_velocity"]
            options = ["--gamma", "0.98", "--model", model, "--columns", *columns]
            command = [sys.executable, "-m", "offtrace", "logs", "evaluate", str(file)]
            command += ["--policy", f"{policy}:greedier", *options]
            if model == "refits":
                command = [sys.executable, str(script), str(file)]
            wall, cpu, said = timed(command)
            print(f"{model}: {wall:.0f} s, {cpu:.0f} CPU-s")
            print(next(line for line in said.splitlines() if "V(π) ≈" in line), flush=True)


if __name__ == "__main__":
    main()
