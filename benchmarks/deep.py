"""Deep agents: frames per second against the PyTorch example, what a trace costs, and CartPole solved over ten seeds.

python benchmarks/deep.py speed      same network, update ratio and game as examples/dqn_torch.py, both on this machine
python benchmarks/deep.py traces     throughput on MinAtar Breakout of every trace against one-step, sequences of 32 steps
python benchmarks/deep.py cartpole   frames until a greedy evaluation of 100 episodes reaches 475, ten seeds side by side
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from listed_rules import trajectory_aware
from timing import emit

import offtrace as ot
from offtrace.deep import Config
from offtrace.deep.training import Compiled, batched, rounds, trainer

EXAMPLE = Path(__file__).parents[1] / "examples" / "dqn_torch.py"
ALIKE: Any = {
    "envs": 8, "every": 8, "batch": 32, "length": 16, "hidden": (256, 256), "target_every": 1, "target_rate": 0.05,
    "warm_up": 1_000, "explore_frames": 10_000, "behavior_epsilon": 0.05,
}  # fmt: skip
"""What the example does by default, in the words of Config."""
CARTPOLE: Any = {
    "envs": 16, "every": 16, "batch": 16, "length": 16, "hidden": (128, 128), "target_every": 1, "target_rate": 0.02,
    "warm_up": 1_000, "explore_frames": 10_000, "behavior_epsilon": 0.05, "frames": 200_000,
}  # fmt: skip


def begun(config: Config, seeds: int) -> tuple[Compiled, Any, Any]:
    """A trainer, the traces and the state after one piece, which compiles."""
    made = trainer(config, [])
    assert isinstance(made, Compiled)
    keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(seeds, dtype=jnp.uint32))
    traces = batched(config.trace, seeds)
    state, _ = made.advance(traces, made.collect(made.first(keys)), rounds(config))
    return made, traces, jax.block_until_ready(state)


class Run:
    """Training of one seed, which goes on and on."""

    def __init__(self, config: Config) -> None:
        self.config, (self.made, self.traces, self.state) = config, begun(config, 1)

    def rate(self, seconds: float) -> float:
        """Frames per second for about so long."""
        started, pieces = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            self.state, _ = self.made.advance(self.traces, self.state, rounds(self.config))
            jax.block_until_ready(self.state)
            pieces += 1
        return pieces * rounds(self.config) * self.config.round / (time.perf_counter() - started)


def example(steps: int) -> float:
    """Steps per second of the PyTorch example while it trains: its evaluations do not count."""
    options = ["--steps", steps, "--report-every", steps, "--solved", 1e9, "--evaluation", 1]
    command = [sys.executable, str(EXAMPLE), "--log-dir", "out/benchmark", *map(str, options)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"after ([\d,]+) steps, ([\d.]+) s of training", said)
    assert found, said
    return int(found[1].replace(",", "")) / float(found[2])


def speed() -> None:
    """Frames per second of both, taken in turns."""
    run = Run(Config(game="CartPole-v1", frames=150_000, **ALIKE))
    ours, theirs = [], []
    for _ in range(3):
        ours.append(run.rate(5.0))
        theirs.append(example(8_000))
    emit("deep", case="CartPole, against examples/dqn_torch.py", ours=np.median(ours), theirs=np.median(theirs))


def traces() -> None:
    """Frames per second of each trace and of one-step, in turns."""
    one = ot.OneStep()
    rules = (ot.Retrace(lam=0.9), *trajectory_aware(0.9))
    runs = {rule.title: Run(Config(game="minatar/breakout", trace=rule)) for rule in (one, *rules)}
    rates: dict[str, list[float]] = {title: [] for title in runs}
    for _ in range(15):
        for title, run in runs.items():
            rates[title].append(run.rate(1.0))
    for rule in rules:
        found = np.median(rates[rule.title]), np.median(rates[one.title])
        emit("deep", case=f"Breakout, {rule.title} against one-step", ours=found[0], theirs=found[1])


def greedy_return(made: Compiled, episodes: int, steps: int) -> Any:
    """A function (learners, keys) that gives the mean return of greedy episodes, each cut after `steps` steps."""
    reset, step = jax.vmap(made.world.reset), jax.vmap(made.world.step)

    def of_seed(learner: Any, key: Any) -> Any:
        def play(carried: Any, key: Any) -> Any:
            world, observation, returns, alive = carried
            action = jnp.argmax(made.agent.values(learner, observation), axis=-1)
            seen = step(jax.random.split(key, episodes), world, action)
            ended = seen.terminated | seen.truncated
            return (seen.state, seen.now, returns + alive * seen.reward, alive & ~ended), None

        to_reset, to_play = jax.random.split(key)
        first = (*reset(jax.random.split(to_reset, episodes)), jnp.zeros(episodes), jnp.ones(episodes, bool))
        return jnp.mean(jax.lax.scan(play, first, jax.random.split(to_play, steps))[0][2])

    return jax.jit(jax.vmap(of_seed))


def cartpole(seeds: int = 10) -> None:
    """A table of frames until solved."""
    for rule in (ot.Retrace(lam=0.9), *(rule for rule in trajectory_aware(0.9) if rule.recursive)):
        config = Config(game="CartPole-v1", trace=rule, **CARTPOLE)
        made, each, state = begun(config, seeds)
        evaluate = greedy_return(made, 100, 500)
        solved, started = np.zeros(seeds, int), time.perf_counter()
        while int(state.frames[0]) < config.frames and not solved.all():
            state, _ = made.advance(each, state, rounds(config))
            frames = int(state.frames[0])
            keys = jax.random.split(jax.random.PRNGKey(frames), seeds)
            mean = np.asarray(evaluate(state.learner, keys))
            solved = np.where((solved == 0) & (mean >= 475.0), frames, solved)
        spent = time.perf_counter() - started
        print(
            f"{rule.title}: {np.count_nonzero(solved)} of {seeds} solved, after {solved.tolist()} frames; {spent:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["cartpole"]:
        cartpole()
    else:
        speed()
        traces()
