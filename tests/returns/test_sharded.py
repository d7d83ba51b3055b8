"""A row that is split over processes or devices gives what the whole row gives.

The algebra is tried on nasty rows in one process, whose threads stand for the processes of a group; few tests start real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
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
from returns.test_states import assert_right, on_states
from returns.test_weights import LIMITS
from sharded_batches import RULES, batch

torch = pytest.importorskip("torch")
by_torch = pytest.importorskip("offtrace.returns.sharded.by_torch")
processes = pytest.importorskip("offtrace.returns.sharded.processes")

DEVICE = os.environ.get("SHARDS_DEVICE", "cpu")  # "cuda" tries the same on a GPU
WITHOUT_LAGS = [trace for trace in BUILT_IN if trace.bounds_by_lag(100) is None]
RULE = st.one_of(
    st.sampled_from([trace for trace in WITHOUT_LAGS if not trace.per_decision]), st.sampled_from(WITHOUT_LAGS)
)


class Thread(processes.ProcessGroup):
    """One of several threads that stand for the processes of a group."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.slots, self.barrier = rank, len(slots), slots, barrier
        self.device, self.sent = torch.device(DEVICE), Sent()

    def _gathered(self, array: Any) -> list[Any]:
        self.slots[self.rank] = array
        self.barrier.wait()
        found = [a.clone() if isinstance(a, torch.Tensor) else a for a in self.slots]  # as processes get copies
        self.barrier.wait()
        return found


def together(size: int, work: Callable[[Thread], Any]) -> list[Any]:
    """What each of several threads makes, or its error."""
    slots, barrier = [None] * size, threading.Barrier(size, timeout=600)
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
    return {n: torch.from_numpy(a).to(DEVICE) if isinstance(a, np.ndarray) else a for n, a in cut.items()}


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
    return np.concatenate([made.cpu().numpy() for made in found], 1)


def some_edges(seed: int, T: int) -> list[int]:
    rng = np.random.default_rng(seed)
    inner = rng.choice(np.arange(1, T), min(T - 1, rng.integers(0, 4)), replace=False) if T > 1 else []
    return [0, *sorted(int(t) for t in inner), T]


@settings(max_examples=80, deadline=None, suppress_health_check=LIMITS)
@given(given=trajectories(), holes=st.booleans(), trace=RULE, seed=st.integers(0, 999))
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


@settings(max_examples=80, deadline=None, suppress_health_check=LIMITS)
@given(given=trajectories(), holes=st.booleans(), trace=RULE, seed=st.integers(0, 999))
def test_state_values_of_shards_are_those_of_the_row(given: dict[str, Any], holes: bool, trace: Any, seed: int) -> None:
    given = with_holes(given, seed) if holes else given
    given = {n: np.atleast_2d(a) if isinstance(a, np.ndarray) else a for n, a in given.items() if n != "time_major"}
    arrays = {n: a for n, a in on_states(given, trace).items() if n != "pair"}
    shape = given["reward"].shape
    if trace.per_step:
        trace = ot.VariableLambda(np.random.default_rng(seed).random(shape))

    def work(rule: Any, mine: dict[str, Any], group: Thread) -> Any:
        return torch.stack(by_torch.correct_states(rule, mine, group, time_major=False), -1)

    found = split(work, trace, arrays, some_edges(seed, shape[1]))
    for b, row in enumerate(rows({"skip": np.zeros(shape, bool)} | arrays)):
        made, kept = closed_up(row)
        assert not np.delete(found[b], kept, 0).any()
        if len(kept):
            rule = ot.VariableLambda(trace.lam[b][kept]) if trace.per_step else trace
            assert_right(ot.StateTargets(*found[b][kept].T), rule, made)


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


def raised(work: Callable[[Thread], Any], size: int = 3) -> list[str]:
    """The errors of all threads."""
    return [f"{type(error).__name__}: {error}" for error in together(size, work)]


def test_a_bad_shard_is_an_error_everywhere() -> None:
    given = batch((2, 6))

    def targets(group: Thread, rule: Any = RULES[0], **change: Any) -> Any:
        mine = part(given, 2 * group.rank, 2 * group.rank + 2) | {"gamma": 0.9}
        return by_torch.correct(rule, mine | change if group.rank == 1 else mine, group, add_q=True)

    nan = torch.full((2, 2), torch.nan, dtype=torch.float64)
    found = raised(lambda group: targets(group, reward=nan, skip=nan == 0))
    assert "reward must be finite: got nan at index [0, 0]" in found[1]
    assert (
        found[0]
        == found[2]
        == ("RuntimeError: the arrays of rank 1 of the process group are bad: its own error says what is wrong")
    )
    assert all("RuntimeError" in e or "q is missing" in e for e in raised(lambda group: targets(group, q=None)))
    found = raised(lambda group: targets(group, skip=None))
    assert all("all ranks must call alike" in error for error in found)
    found = raised(lambda group: targets(group, ot.Retrace(lam=0.5 + 0.1 * (group.rank == 2))))
    assert all("all ranks must call alike" in error for error in found)
    fewer = {n: a[:1] for n, a in part(given, 2, 4).items()}
    assert all("each rank must hold its part of every row" in e for e in raised(lambda group: targets(group, **fewer)))

    def weights(group: Thread, **arrays: Any) -> Any:
        zero = torch.zeros(2, 2)
        how = options("prefix", None, None, "truncate", None, None, None)
        return by_torch.weights(ot.RBIS(), {"log_pi": zero, "log_mu": zero, **arrays}, how, group, check=None)

    falling = raised(lambda group: weights(group, segment=torch.full((2, 2), -group.rank)))
    assert all("segment falls along a row: 0 is followed by -1 in row 0, in the shard of rank 1" in e for e in falling)


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (ot.Retrace(), {}, "say where the other shards are"),
        (ot.Retrace(), {"differentiable": True}, "have no gradient"),
        (ot.Retrace(horizon=3), {}, "horizon or bounds by lag"),
        (ot.NStep(n=3), {}, "which shards do not count"),
        (ot.replacing(), {}, "custom trace"),
        (ot.RBIS(), {"axis_name": "time"}, "call this inside of jax.shard_map"),
        (ot.RBIS(), {"axis_name": "time", "check": True}, "leave it out"),
        (ot.RBIS(), {"axis_name": "time", "room": 0}, "room must be an integer of at least 1"),
    ],
)
def test_what_is_refused(rule: Any, options: dict[str, Any], message: str) -> None:
    some = {n: a for n, a in batch((2, 4)).items() if n != "skip"}
    with pytest.raises((TypeError, ValueError), match=message):
        ot.sharded.targets(rule, **some, gamma=0.9, **options)


def test_few_steps_are_sent_where_traces_are_clipped_alike() -> None:
    """Four rows in four shards: of the same policy; where the product falls, or rises; and rows that are made to be hard."""
    rng = np.random.default_rng(0)
    shape = (4, 256)
    given = {n: rng.normal(size=shape) for n in ("reward", "q", "next_value")}
    given |= {n: np.zeros(shape, bool) for n in ("terminated", "truncated")} | {"log_mu": np.zeros(shape)}
    log_rho = rng.normal(size=shape)
    counts: dict[str, list[int]] = {}
    hard = np.where(np.arange(256) % 64 == 63, -9.0, 0.1) + 0 * log_rho
    for log_pi in (0 * log_rho, log_rho - 0.5, abs(log_rho), hard):
        for rule in (ot.RBIS(lam=1.0), ot.TruncatedIS(bound=2.0), ot.Retrace()):
            sent: list[Sent] = []

            def work(rule: Any, mine: dict[str, Any], group: Thread, sent: list[Sent] = sent) -> Any:
                sent.append(group.sent)
                return by_torch.correct(rule, mine, group, add_q=False)

            arrays = given | {"log_pi": log_pi}
            wanted = ot.corrections(rule, **arrays, gamma=0.99)
            found = split(work, rule, arrays | {"gamma": 0.99}, [0, 64, 128, 192, 256])
            np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)
            counts.setdefault(rule.title, []).append(sent[0].steps)
            assert len({one.numbers for one in sent}) == 1
            assert sent[0].numbers == sum(int(call.rpartition(": ")[2]) for call in sent[0].calls)
    assert counts["Retrace"] == [0, 0, 0, 0]
    for rule in ("RBIS", "Truncated IS"):
        same, falls, rises, most = counts[rule]
        assert same <= 4 * 3
        assert falls <= 4 * 20
        assert rises <= 4 * 20
        assert 4 * 60 <= most <= 4 * (64 + 1)


PROCESSES = """
import os, sys, numpy as np, torch
import torch.distributed as dist
import offtrace as ot
from sharded_batches import RULES, batch

given = batch((2, 24))
wanted = [ot.targets(rule, **given, gamma=0.97) for rule in RULES]
taken = {n: given[n] for n in ("log_pi", "log_mu")} | {"mask": ~given["skip"]}
weights = ot.weights(ot.RBIS(), **taken, level="geometric", segment=np.arange(24) // 7 + np.zeros((2, 1), int))
states = {"value" if n == "q" else n: a for n, a in given.items()}
advantage = ot.state_targets(**states, gamma=0.97).advantage
for rule in RULES:  # what is compiled before the processes part is compiled once
    ot.targets(rule, **{n: torch.from_numpy(a) for n, a in given.items()}, gamma=0.97, differentiable=True)

def work(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=4)
    four, two = dist.group.WORLD, dist.new_group([1, 3])
    for group, edges in ((four, [0, 3, 10, 17, 24]), (two, [0, 11, 24])):
        place = dist.get_rank(group)
        if place < 0:
            continue
        cut = slice(edges[place], edges[place + 1])
        mine = {n: torch.from_numpy(a[:, cut].copy()) for n, a in given.items()}
        sent = ot.sharded.Sent()
        for rule, whole in zip(RULES, wanted):
            found = ot.sharded.targets(rule, **mine, gamma=0.97, process_group=group, sent=sent)
            np.testing.assert_allclose(found, whole[:, cut], rtol=1e-12, atol=1e-12)
        mine_states = {n: torch.from_numpy(a[:, cut].copy()) for n, a in states.items()}
        found = ot.sharded.state_targets(**mine_states, gamma=0.97, process_group=group)
        np.testing.assert_allclose(found.advantage, advantage[:, cut], rtol=1e-12, atol=1e-12)
        assert sent.messages == 20 and sent.numbers > 2 * 4 * 4 * 2, sent
        segment = torch.arange(24)[cut] // 7 + torch.zeros(2, 1, dtype=torch.int64)
        part = {n: torch.from_numpy(a[:, cut].copy()) for n, a in taken.items()}
        found = ot.sharded.weights(ot.RBIS(), **part, level="geometric", segment=segment, process_group=group)
        np.testing.assert_allclose(found, weights[:, cut], rtol=1e-12)
        mine["reward"][0] = torch.nan if place == 1 else 0.0
        try:
            ot.sharded.targets(RULES[0], **mine, gamma=0.97, process_group=group)
        except (ValueError, RuntimeError) as error:
            assert ("reward must be finite" if place == 1 else "the arrays of rank 1") in str(error)
        else:
            raise AssertionError("no error")
    dist.barrier()
    dist.destroy_process_group()

children = []
for rank in (1, 2, 3):
    child = os.fork()
    if not child:
        work(rank)
        os._exit(0)
    children.append(child)
work(0)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def run(script: str, *arguments: str, **environment: str) -> None:
    """Run a script in a process of its own, which sees the tests."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(ot.__file__).parents[1])])
    subprocess.run(
        [sys.executable, "-c", script, *arguments],
        check=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
    )


def test_processes(tmp_path: Path) -> None:
    run(PROCESSES, str(tmp_path / "store"))


DEVICES = """
import jax, numpy as np, offtrace as ot
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from sharded_batches import RULES, batch

given = {n: jnp.asarray(a) for n, a in batch((2, 24), np.float32).items()}
states = {"value" if n == "q" else n: a for n, a in given.items()}
taken = {n: given[n] for n in ("log_pi", "log_mu")} | {"mask": ~given["skip"]}
segment = np.arange(24) // 7 + np.zeros((2, 1), int)
sent = {n: ot.sharded.Sent() for n in ("affine", "capped", "weights")}
shards = PartitionSpec(None, "time")

def work(given, states, taken, segment):
    where = {"axis_name": "time", "gamma": 0.97}
    return (
        *ot.sharded.state_targets(**states, **where, sent=sent["affine"]),
        ot.sharded.targets(RULES[2], **given, **where, sent=sent["capped"], room=2),
        ot.sharded.weights(ot.RBIS(), **taken, segment=segment, axis_name="time", sent=sent["weights"], level="geometric"),
    )

mesh = Mesh(np.array(jax.devices()), ("time",))
found = jax.jit(jax.shard_map(work, mesh=mesh, in_specs=shards, out_specs=shards))(
    given, states, taken, jnp.asarray(segment)
)
*affine, capped, weights = map(np.asarray, found)
known = ~np.isnan(capped)
assert known[:, 18:].all() and not known.all()  # the last shard needs nothing of others, and two steps are not enough for all
whole = np.asarray(ot.targets(RULES[2], **given, gamma=0.97))
np.testing.assert_allclose(np.where(known, capped, whole), whole, rtol=2e-6, atol=1e-6)
for found, whole in zip(affine, ot.state_targets(**states, gamma=0.97)):
    np.testing.assert_allclose(found, whole, rtol=2e-6, atol=1e-6)
np.testing.assert_allclose(weights, ot.weights(ot.RBIS(), **taken, segment=jnp.asarray(segment), level="geometric"), rtol=2e-6)
assert (sent["affine"].numbers, sent["weights"].numbers) == (2 * (1 + 4 + 2), 2 * 10)
assert (sent["capped"].steps, sent["capped"].numbers) == (2 * 2, 2 * (1 + 5 + 4 * 2))
"""


def test_devices() -> None:
    pytest.importorskip("jax")
    run(DEVICES, XLA_FLAGS=os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4")
