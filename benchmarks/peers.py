"""Per-decision targets and V-trace against rlax, torchrl and RLlib: all from log-probabilities to targets, float32.

Same work: every side gets rewards, values, flags and log-probabilities and returns targets. The peers' inputs are in
their own array type beforehand; rlax is one jitted function with vmap inside. offtrace checks its input (NaN, μ = 0,
shapes), sums in float64 and treats truncations rightly; the peers are helped to do so where their signature lets them:

- rlax Retrace: c = 0 after a truncated step. The same targets.
- rlax V-trace: λ = 0 at a truncated step. The same targets; its advantage there bootstraps from the next episode.
- torchrl V-trace: takes terminated and done. The same targets.
- RLlib V-trace: time-major, next values by shifting, cannot know truncations: cut ones count as ends. The same targets
  where nothing was truncated.

Everything runs on one core, which is what offtrace uses at these sizes and is best for the peers too: torch's loop over
time works on one column at a time, where a second thread only has to be waited for (up to twenty times slower on a busy
machine with two cores). rlax is measured a second time with all cores, as it comes (`--all-cores`).
Agreement of the targets (not of the advantages) is checked before anything is timed, and is part of the record.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from batches import FAR, NEAR, Batch, Setting, draw
from timing import Competitor, emit, interleave, ratio

import offtrace as ot

SHAPES = ((256, 128), (64, 1024), (1, 100_000))
RETRACE, V_TRACE = "Retrace", "state_targets"
TOLERANCE = 2e-3  # float32 sums of some hundred terms


def ours(setting: Setting) -> dict[str, Competitor]:
    rule = ot.Retrace(lam=setting.lam)
    return {
        RETRACE: Competitor(Batch.for_targets, lambda x: ot.targets(rule, **x)),
        V_TRACE: Competitor(Batch.for_state_targets, lambda x: ot.state_targets(**x)),
    }


def rlax(setting: Setting) -> dict[str, Competitor]:
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import rlax  # pyright: ignore[reportMissingImports]

    def prepare(x: Batch) -> tuple:
        arrays = x.reward, x.q, x.value, x.next_value, x.terminated, x.truncated, x.log_pi, x.log_mu
        return jax.block_until_ready(tuple(jnp.asarray(a) for a in arrays))

    @jax.jit
    def retrace(reward, q, value, next_value, terminated, truncated, log_pi, log_mu):
        c = setting.lam * jnp.minimum(1.0, jnp.exp(log_pi - log_mu))[:, 1:] * ~truncated[:, :-1]
        discount = setting.gamma * ~terminated
        return jax.vmap(rlax.general_off_policy_returns_from_q_and_v)(q[:, 1:], next_value, reward, discount, c)

    @jax.jit
    def v_trace(reward, q, value, next_value, terminated, truncated, log_pi, log_mu):
        lam, discount, rho = 1.0 - truncated, setting.gamma * ~terminated, jnp.exp(log_pi - log_mu)
        return value + jax.vmap(rlax.vtrace)(value, next_value, reward, discount, rho, lam)

    @jax.jit
    def v_trace_and_advantage(reward, q, value, next_value, terminated, truncated, log_pi, log_mu):
        lam, discount, rho = 1.0 - truncated, setting.gamma * ~terminated, jnp.exp(log_pi - log_mu)
        both = jax.vmap(rlax.vtrace_td_error_and_advantage)(value, next_value, reward, discount, rho, lam)
        return value + both.errors, both.pg_advantage

    return {
        "rlax Retrace": Competitor(prepare, lambda x: retrace(*x).block_until_ready()),
        "rlax V-trace, no advantage": Competitor(prepare, lambda x: v_trace(*x).block_until_ready()),
        "rlax V-trace": Competitor(prepare, lambda x: jax.block_until_ready(v_trace_and_advantage(*x))),
    }


def torchrl(setting: Setting) -> dict[str, Competitor]:
    import torch  # pyright: ignore[reportMissingImports]
    from torchrl.objectives.value import functional  # pyright: ignore[reportMissingImports]

    def prepare(x: Batch) -> tuple:
        arrays = x.log_pi, x.log_mu, x.value, x.next_value, x.reward, x.terminated | x.truncated, x.terminated
        return tuple(torch.from_numpy(a)[..., None] for a in arrays)

    def call(x: tuple) -> tuple:
        advantage, target = functional.vtrace_advantage_estimate(setting.gamma, *x)
        return target, advantage

    return {"torchrl V-trace": Competitor(prepare, call)}


def rllib(setting: Setting) -> dict[str, Competitor]:
    import torch  # pyright: ignore[reportMissingImports]
    from ray.rllib.algorithms.impala.torch import vtrace_torch_v2  # pyright: ignore[reportMissingImports]

    def prepare(x: Batch) -> dict:
        arrays = {
            "target_action_log_probs": x.log_pi,
            "behaviour_action_log_probs": x.log_mu,
            "discounts": np.where(x.terminated | x.truncated, np.float32(0), np.float32(setting.gamma)),
            "rewards": x.reward,
            "values": x.value,
        }
        time_major = {name: torch.from_numpy(np.ascontiguousarray(a.T)) for name, a in arrays.items()}
        return time_major | {"bootstrap_values": torch.from_numpy(x.next_value[:, -1].copy())}

    return {"RLlib V-trace": Competitor(prepare, lambda x: vtrace_torch_v2.vtrace_torch(**x))}


def check_agreement(name: str, peer: Competitor, setting: Setting) -> float:
    """The largest difference between a peer's targets and ours, on a small batch of the same kind."""
    if name.startswith("RLlib"):
        setting = Setting(setting.name, setting.spread, truncations=0.0)
    batch = draw(np.random.default_rng(1), setting, 16, 200)
    mine = ot.targets(ot.Retrace(lam=setting.lam), **batch.for_targets())
    if "V-trace" in name:
        mine = ot.state_targets(**batch.for_state_targets()).target
    theirs = peer.call(peer.prepare(batch))
    theirs = np.asarray(theirs[0] if isinstance(theirs, tuple) else theirs).reshape(-1)
    mine = mine.T.reshape(-1) if name.startswith("RLlib") else mine.reshape(-1)
    difference = float(np.abs(mine - theirs).max())
    if not difference < TOLERANCE:
        raise AssertionError(f"{name} differs from ours by {difference}: the comparison would not be of the same work")
    return difference


def available(setting: Setting, makers: dict[str, Callable[[Setting], dict[str, Competitor]]]) -> dict[str, Competitor]:
    found: dict[str, Competitor] = {}
    for name, make in makers.items():
        try:
            found |= make(setting)
        except ImportError as error:
            emit("missing", peer=name, reason=f"import failed ({type(error).__name__}: {error.name})")
    return found


def compare(setting: Setting, makers: dict[str, Any], cores: str, seconds: float, least: int, seed: int) -> None:
    them = available(setting, makers)
    difference = {name: check_agreement(name, peer, setting) for name, peer in them.items()}
    for B, T in SHAPES if them else ():
        times = interleave(
            ours(setting) | them, partial(draw, setting=setting, B=B, T=T), seconds=seconds, least=least, seed=seed
        )
        for name in them:
            about = {"shape": [B, T], "setting": setting.name, "cores": cores, "peer": name}
            about["difference"] = difference[name]
            emit("per-decision", ours=RETRACE, **about, **ratio(times, name, RETRACE))
            if "V-trace" in name:
                emit("v-trace", ours=V_TRACE, **about, **ratio(times, name, V_TRACE))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--all-cores", action="store_true")
    options = parser.parse_args()
    one = not options.all_cores and hasattr(os, "sched_setaffinity")
    if one:  # before jax and torch count the cores
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for i, level in enumerate((NEAR, FAR)):
        cores = "one" if one else "all"
        compare(level, {"rlax": rlax}, cores, options.seconds, 20, seed=10 * i)
        if not options.all_cores:  # loops in Python: few repetitions
            compare(level, {"torchrl": torchrl, "RLlib": rllib}, cores, options.seconds, 3, seed=10 * i + 1)
