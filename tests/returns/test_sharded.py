"""A row that is split over processes or devices gives what the whole row gives.

The algebra is tried on nasty rows in one process, whose threads stand for the processes of a group; few tests start real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offtrace as ot
from helpers import BUILT_IN, assert_close, rows, trajectories
from offtrace.returns import by_definition
from offtrace.returns.sharded.exchange import Sent
from offtrace.returns.weights import options
from returns.test_skip import closed_up, with_holes
from returns.test_weights import LIMITS

torch = pytest.importorskip("torch")
by_torch = pytest.importorskip("offtrace.returns.sharded.by_torch")

WITHOUT_LAGS = [trace for trace in BUILT_IN if trace.bounds_by_lag(100) is None]


class Thread(by_torch.ProcessGroup):
    """One of several threads that stand for the processes of a group."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.slots, self.barrier = rank, len(slots), slots, barrier
        self.device, self.sent = torch.device("cpu"), Sent()

    def _gathered(self, array: Any) -> list[Any]:
        self.slots[self.rank] = array
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


def together(size: int, work: Callable[[Thread], Any]) -> list[Any]:
    """What each of several threads makes, or its error."""
    slots, barrier = [None] * size, threading.Barrier(size, timeout=60)
    out: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            out[rank] = work(Thread(rank, slots, barrier))
        except Exception as error:
            out[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def part(arrays: dict[str, Any], first: int, stop: int) -> dict[str, Any]:
    """Some steps of NumPy arrays [B, T], as tensors."""
    cut = {n: a[:, first:stop].copy() if isinstance(a, np.ndarray) else a for n, a in arrays.items()}
    return {n: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for n, a in cut.items()}


def cut_rule(trace: Any, first: int, stop: int) -> Any:
    """The rule of a shard: with the part of what it holds for each step."""
    return trace.mapped(lambda held: held[..., first:stop]) if trace.per_step else trace


def split(work: Callable[..., Any], trace: Any, arrays: dict[str, Any], edges: list[int]) -> np.ndarray:
    """What the shards between the edges make, side by side."""

    def one(group: Thread) -> Any:
        first, stop = edges[group.rank], edges[group.rank + 1]
        return work(cut_rule(trace, first, stop), part(arrays, first, stop), group)

    found = together(len(edges) - 1, one)
    for made in found:
        if isinstance(made, Exception):
            raise made
    return np.concatenate([made.numpy() for made in found], 1)


def some_edges(seed: int, T: int) -> list[int]:
    rng = np.random.default_rng(seed)
    inner = rng.choice(np.arange(1, T), min(T - 1, rng.integers(0, 4)), replace=False) if T > 1 else []
    return [0, *sorted(int(t) for t in inner), T]


@settings(max_examples=80, deadline=None, suppress_health_check=LIMITS)
@given(given=trajectories(), holes=st.booleans(), trace=st.sampled_from(WITHOUT_LAGS), seed=st.integers(0, 999))
def test_shards_give_what_the_row_gives(given: dict[str, Any], holes: bool, trace: Any, seed: int) -> None:
    if holes:
        given = with_holes(given, seed)
    else:
        given = {n: np.atleast_2d(a) if isinstance(a, np.ndarray) else a for n, a in given.items()}
    arrays = {n: a for n, a in given.items() if n != "time_major"}
    T = given["reward"].shape[1]
    if trace.per_step:
        trace = ot.VariableLambda(np.random.default_rng(seed).random(given["reward"].shape))

    def work(rule: Any, mine: dict[str, Any], group: Thread) -> Any:
        return by_torch.correct(rule, mine, group, add_q=False, time_major=False)

    found = split(work, trace, arrays, some_edges(seed, T))
    for b, row in enumerate(rows(given | {"skip": arrays.get("skip", np.zeros(given["reward"].shape, bool))})):
        made, kept = closed_up(row)
        assert not np.delete(found[b], kept).any()
        if len(kept):
            rule = ot.VariableLambda(trace.lam[b][kept]) if trace.per_step else trace
            wanted, scale = by_definition.corrections(rule, **made)
            assert_close(found[b][kept], wanted, scale, np.float64)


@settings(max_examples=60, deadline=None, suppress_health_check=LIMITS)
@given(
    given=trajectories(),
    trace=st.sampled_from([*WITHOUT_LAGS, ot.TruncatedIS(bound=(2.0, 0.5)), ot.NonMarkovRetrace(lam=0.9, horizon=4)]),
    level=st.sampled_from(["token", "prefix", "suffix", "sequence", "geometric"]),
    packed=st.booleans(),
    seed=st.integers(0, 999),
)
def test_weights_of_shards_are_those_of_the_row(
    given: dict[str, Any], trace: Any, level: str, packed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    given = {n: np.atleast_2d(a) if isinstance(a, np.ndarray) else a for n, a in given.items()}
    shape = given["log_pi"].shape
    arrays: dict[str, Any] = {n: given[n] for n in ("log_pi", "log_mu", "greedy")}
    arrays["mask"] = given.get("valid", np.ones(shape, bool)) & (rng.random(shape) < rng.choice([0.2, 0.8, 1.0]))
    arrays["mask"][0, 0] |= given.get("valid", np.ones(shape, bool))[0, 0]
    if not arrays["mask"].any():
        return
    arrays["segment"] = np.cumsum(rng.random(shape) < 0.3, 1) if packed else None
    if trace.per_step:
        trace = ot.VariableLambda(rng.random(shape))
    wanted = ot.weights(trace, **arrays, level=level)
    how = options(level, None, None, "truncate", None, None, None)

    def work(rule: Any, mine: dict[str, Any], group: Thread) -> Any:
        return by_torch.weights(rule, mine, how, group, check=None)

    found = split(work, trace, arrays, some_edges(seed, shape[1]))
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-300)
