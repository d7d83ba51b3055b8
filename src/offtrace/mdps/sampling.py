"""Trajectories from an MDP: one compiled loop over steps, inverse cumulative sums for actions, next states and starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace.mdps import exact_values
from offtrace.mdps.randomness import Seed, generator

if TYPE_CHECKING:
    from offtrace.mdps.mdp import MDP

CHUNK = 4096  # steps of the first buffer where it is not known how many there will be


def rollout(
    mdp: MDP,
    mu: np.ndarray,
    *,
    seed: Seed,
    steps: int | None,
    episodes: int | None,
    pi: np.ndarray | None,
    limit: int | None,
) -> dict[str, np.ndarray]:
    """`MDP.rollout` for checked policies."""
    rng = generator(seed)
    if (steps is None) == (episodes is None):
        raise ValueError(f"give either steps or episodes, got steps={steps!r} and episodes={episodes!r}")
    steps, episodes, limit = (
        None if n is None else count(name, n)
        for name, n in (("steps", steps), ("episodes", episodes), ("limit", limit))
    )
    if episodes is not None and limit is None:
        check_that_episodes_end(mdp, mu)

    S, A = mu.shape
    indptr = mdp.P.indptr.astype(np.int64)
    tables = (
        cumulative(mu.ravel(), np.arange(0, S * A + 1, A)),
        cumulative(mdp.P.data, indptr),
        indptr,
        mdp.P.indices.astype(np.int64),
        cumulative(mdp.start, np.array([0, S])),
        mdp.terminal,
        np.repeat(mdp.R.ravel(), np.diff(indptr)) if mdp.transition_rewards is None else mdp.transition_rewards,
    )
    carry = np.array([-1, 0, 0])  # the state (−1: start anew), the steps of this episode, the episodes that ended
    parts, size = [], CHUNK if steps is None else steps
    while True:
        out = tuple(np.empty(size, kind) for kind in (np.int64, np.int64, np.float64, np.int64, np.bool_, np.bool_))
        n = walk(rng, A, tables, limit or 0, episodes or 0, carry, out)
        parts.append([array[:n] for array in out])
        if steps is not None or carry[2] == episodes:
            break
        size *= 2
    names = ("state", "action", "reward", "next_state", "terminated", "truncated")
    joined = (arrays[0] if len(parts) == 1 else np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    trajectory: dict[str, np.ndarray] = dict(zip(names, joined, strict=True))
    taken = trajectory["state"], trajectory["action"]
    with np.errstate(divide="ignore"):  # π = 0 is legal: log π is −inf
        trajectory["log_mu"] = np.log(mu)[taken]
        if pi is not None:
            trajectory["log_pi"] = np.log(pi)[taken]
    return trajectory


def count(name: str, value: object) -> int:
    """A number of steps or the like: an integer of at least 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def check_that_episodes_end(mdp: MDP, mu: np.ndarray) -> None:
    """From every state that μ may visit, an end must be reachable; then each episode ends with probability one."""
    chain = exact_values.over_pairs(mu, ~mdp.terminal) @ mdp.P
    stuck = exact_values.visited(chain, mdp.start > 0) & ~exact_values.reaches(chain, mdp.terminal)
    if stuck.any():
        raise ValueError(
            f"an episode may never end: from state {int(np.argmax(stuck))} the behavior reaches no terminal state; "
            "give a limit, or ask for steps instead of episodes"
        )


@cached_njit()
def cumulative(data, indptr):
    """The cumulative sums of each row of `data`, infinite from the last positive entry on, so that `pick` ends there."""
    out = np.empty(len(data))
    for row in range(len(indptr) - 1):
        total = 0.0
        for j in range(indptr[row], indptr[row + 1]):
            total += data[j]
            out[j] = total
        j = indptr[row + 1] - 1
        while j >= indptr[row] and out[j] >= total:
            out[j] = np.inf
            j -= 1
    return out


@cached_njit()
def pick(rng, cumulated, low, high):
    """An index j in [low, high) with the probability that `cumulated` gives it: the first with cumulated[j] > u."""
    u = rng.random()
    high -= 1
    while low < high:
        middle = (low + high) // 2
        if cumulated[middle] > u:
            high = middle
        else:
            low = middle + 1
    return low


@cached_njit()
def walk(rng, A, tables, limit, episodes, carry, out):
    """Fill the arrays `out` until they are full or `episodes` have ended (0: never); return how many steps were taken.

    mu, P and start are `cumulative`; R is that of each entry of P. `limit` 0 means none.
    """
    mu, P, indptr, indices, start, ends, R = tables
    state, action, reward, next_state, terminated, truncated = out
    s, age, ended = carry
    t = 0
    while t < len(state):
        if s < 0:
            s = pick(rng, start, 0, len(start))
            age = 0
        a = pick(rng, mu, s * A, s * A + A) - s * A
        j = pick(rng, P, indptr[s * A + a], indptr[s * A + a + 1])
        after = indices[j]
        age += 1
        state[t] = s
        action[t] = a
        reward[t] = R[j]
        next_state[t] = after
        terminated[t] = ends[after]
        truncated[t] = age == limit and not ends[after]
        s = -1 if terminated[t] or truncated[t] else after
        t += 1
        if s < 0:
            ended += 1
            if ended == episodes:
                break
    carry[0], carry[1], carry[2] = s, age, ended
    return t
