"""The ring against a list that keeps everything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from offtrace.deep import replay_memory as memories

ENVS, SLOTS, WINDOW = 3, 17, 6
WRITE = jax.jit(memories.write)
DRAW = jax.jit(memories.draw, static_argnums=(2, 3), static_argnames=("priority", "correction"))


@dataclass
class Kept:
    """All that was ever written for one game: (observation, step or None), in the order of its slots."""

    slots: list[tuple[float, tuple[Any, ...] | None]] = field(default_factory=list)


def draw(memory: memories.Memory, seed: int, n: int, **options: float) -> memories.Sequences:
    """Sequences as NumPy arrays."""
    return jax.tree.map(np.asarray, DRAW(memory, jax.random.PRNGKey(seed), n, WINDOW, **options))


def filled(steps: int, *, prioritised: bool = False, seed: int = 0) -> tuple[memories.Memory, list[Kept]]:
    """A memory after so many steps of games whose observations are all different, and what should be in it."""
    rng = np.random.default_rng(seed)
    fresh = iter(range(10**9))
    now = np.array([[next(fresh)] for _ in range(ENVS)], np.float32)
    memory = memories.empty(ENVS, SLOTS, jnp.asarray(now), prioritised=prioritised)
    kept = [Kept() for _ in range(ENVS)]
    for _ in range(steps):
        action, log_mu = rng.integers(0, 4, ENVS), rng.normal(size=ENVS).astype(np.float32)
        reward = rng.normal(size=ENVS).astype(np.float32)
        terminated = rng.random(ENVS) < 0.15
        truncated = (rng.random(ENVS) < 0.15) & ~terminated
        after = np.array([[next(fresh)] for _ in range(ENVS)], np.float32)
        ended = terminated | truncated
        seen = np.where(ended[:, None], [[next(fresh)] for _ in range(ENVS)], after).astype(np.float32)
        memory = WRITE(memory, action, log_mu, reward, terminated, truncated, after, seen)
        for e in range(ENVS):
            step = (action[e], reward[e], terminated[e], truncated[e], log_mu[e])
            kept[e].slots.append((now[e, 0], step))
            if ended[e]:
                kept[e].slots.append((after[e, 0], None))
        now = seen
    for e in range(ENVS):
        kept[e].slots.append((now[e, 0], None))
    return memory, kept


@pytest.mark.parametrize("steps", [7, 15, 17, 333])
@pytest.mark.parametrize("prioritised", [False, True])
def test_sequences_are_what_was_written(steps: int, prioritised: bool) -> None:
    memory, kept = filled(steps, prioritised=prioritised, seed=steps)
    first, last = (np.asarray(a) for a in memories.starts(memory, WINDOW))
    drawn = draw(memory, steps, 400, priority=float(prioritised))
    assert drawn.valid.any()
    begun = set()
    for i in range(400):
        seen = np.asarray(drawn.observation[i, :, 0])
        e, at = next(
            (e, k) for e in range(ENVS) for k, (observation, _) in enumerate(kept[e].slots) if observation == seen[0]
        )
        begun.add((e, at))
        assert first[e] <= at <= last[e]
        assert at >= len(kept[e].slots) - SLOTS  # nothing that has been written over
        wanted = kept[e].slots[at : at + WINDOW]
        np.testing.assert_array_equal(seen, [observation for observation, _ in wanted])
        for k, (_, step) in enumerate(wanted[:-1]):
            assert bool(drawn.valid[i, k]) == (step is not None)
            if step is not None:
                names = ("action", "reward", "terminated", "truncated", "log_mu")
                assert tuple(getattr(drawn, name)[i, k] for name in names) == step
    if not prioritised:  # every start that is allowed is drawn, the very first and the very last too
        assert begun == {(e, k) for e in range(ENVS) for k in range(first[e], last[e] + 1)}


def test_episodes_that_are_cut_end_with_the_step_written_last() -> None:
    """One that goes on is truncated there, and its last observation stays; one that has ended stays as it is."""
    for steps in (5, 40):  # before and after the ring is full
        memory, kept = filled(steps, seed=4)
        ended = [slots.slots[-2][1] is None for slots in kept]
        assert {True, False} == set(ended)
        now = -1.0 - np.arange(ENVS, dtype=np.float32)[:, None]
        cut = memories.cut(memory, jnp.asarray(now))
        for e in range(ENVS):
            last = int(memory.count[e]) - 1
            assert int(cut.count[e]) == last + 1 + (not ended[e])
            assert float(cut.observation[e, int(cut.count[e]) % SLOTS, 0]) == now[e, 0]
            assert not cut.valid[e, int(cut.count[e]) % SLOTS]
            if not ended[e]:
                assert bool(cut.truncated[e, last % SLOTS])
                assert float(cut.observation[e, (last + 1) % SLOTS, 0]) == kept[e].slots[-1][0]
            changed = np.asarray(cut.truncated[e] != memory.truncated[e])
            assert changed.sum() == (not ended[e])


def test_a_full_ring_is_used_to_its_last_slot() -> None:
    memory, kept = filled(200)
    first, last = memories.starts(memory, WINDOW)
    np.testing.assert_array_equal(last - first + 1, [SLOTS - WINDOW + 1] * ENVS)
    np.testing.assert_array_equal(memory.count + 1, [len(k.slots) for k in kept])


def test_each_start_is_as_likely_as_any_other() -> None:
    memory, _ = filled(40)
    n = 20_000
    drawn = draw(memory, 1, n)
    counts = np.unique(np.asarray(drawn.at[:, 0]), return_counts=True)[1]
    cells = ENVS * (SLOTS - WINDOW + 1)
    assert len(counts) == cells
    excess = ((counts - n / cells) ** 2 / (n / cells)).sum()  # χ² with cells − 1 degrees of freedom
    assert excess < cells + 6 * np.sqrt(2 * cells)


def test_priorities_are_followed_and_taken_back() -> None:
    memory, _ = filled(40, prioritised=True)
    everything = draw(memory, 2, 1000, priority=1.0)
    error = jnp.where(
        everything.at == everything.at[0, 0], 9.0 - 1e-3, 1.0 - 1e-3
    )  # the first start matters nine times as much
    memory = memories.reprioritised(memory, everything, error)
    n, α, correction = 20_000, 0.5, 0.7
    drawn = draw(memory, 3, n, priority=α, correction=correction)
    starts, counts = np.unique(np.asarray(drawn.at[:, 0]), return_counts=True)
    priority = np.asarray(memory.priority).reshape(-1)[starts] ** α
    share = priority / priority.sum()
    assert np.abs(counts / n - share).max() < 5 * np.sqrt(share.max() / n)
    rarity = (1 / (len(starts) * share)) ** correction
    weight = np.asarray(drawn.weight)[[np.flatnonzero(drawn.at[:, 0] == s)[0] for s in starts]]
    np.testing.assert_allclose(weight, rarity / rarity.max(), rtol=1e-5)


def test_final_observations_are_never_starts_of_priority() -> None:
    memory, _ = filled(40, prioritised=True)
    drawn = draw(memory, 4, 2000, priority=1.0)
    assert drawn.valid[:, 0].all()
