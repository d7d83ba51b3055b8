"""A row that is split over processes or devices gives what the whole row gives. Processes are real ones, with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import offtrace as ot
from helpers import whole
from sharded_batches import batch

pytest.importorskip("torch")

PROCESSES = """
import os, sys, numpy as np, torch
import torch.distributed as dist
import offtrace as ot
from sharded_batches import RULES, batch, zigzag

given = batch((2, 24))
states = {"value" if n == "q" else n: a for n, a in given.items()}
taken = {n: given[n] for n in ("log_pi", "log_mu")} | {"mask": ~given["skip"]}
segment = np.arange(24) // 7 + np.zeros((2, 1), int)
lam = np.random.default_rng(1).random((2, 24))

def part(arrays, at, axis=1):
    return {n: torch.from_numpy(np.take(a, at, axis)) for n, a in arrays.items()}

def equal(found, wanted, at, axis=1):
    np.testing.assert_allclose(found, np.take(wanted, at, axis), rtol=1e-12, atol=1e-12)

def errors(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")

wanted = {rule: ot.targets(rule, **given, gamma=0.97) for rule in RULES}

def work(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=4)
    four, two = dist.group.WORLD, dist.new_group([1, 3])
    spread = [np.array([0, 9, 23]), np.array([22, 1]), np.arange(2, 9), np.arange(10, 22)[::-1]]
    for group, split in ((four, np.split(np.arange(24), [3, 10, 17])), (two, np.split(np.arange(24), [11])),
                         (four, zigzag(24, 4)), (four, spread)):
        place = dist.get_rank(group)
        if place < 0:
            continue
        at = split[place]
        ordered = (np.concatenate(split) == np.arange(24)).all()
        where = {"process_group": group} | ({} if ordered else {"position": at.tolist()})
        for rule in RULES:
            equal(ot.sharded.targets(rule, **part(given, at), gamma=0.97, **where), wanted[rule], at)
        rule = ot.RBIS(0.9)
        equal(ot.sharded.corrections(rule, **part(given, at), gamma=0.97, **where), ot.corrections(rule, **given, gamma=0.97), at)
        first = {n: a.T for n, a in given.items()}
        found = ot.sharded.targets(rule, **part(first, at, 0), gamma=0.97, time_major=True, **where)
        equal(found, ot.targets(rule, **first, gamma=0.97, time_major=True), at, 0)
        row = {n: a[0] for n, a in given.items()}
        found = ot.sharded.targets(rule, **part(row, at, 0), gamma=torch.full((len(at),), 0.9, dtype=torch.float64), **where)
        equal(found, ot.targets(rule, **row, gamma=0.9), at, 0)
        found = ot.sharded.targets(ot.VariableLambda(lam[:, at]), **part(given, at), gamma=0.97, **where)
        equal(found, ot.targets(ot.VariableLambda(lam), **given, gamma=0.97), at)
        for trace in (None, ot.TruncatedIS(1.0, 0.9)):
            both = zip(ot.sharded.state_targets(trace, **part(states, at), gamma=0.97, **where),
                       ot.state_targets(trace, **states, gamma=0.97))
            for found, whole in both:
                equal(found, whole, at)
        for level in ("token", "prefix", "suffix", "sequence", "geometric"):
            ids = {} if level == "suffix" else {"segment": segment}
            found = ot.sharded.weights(ot.RBIS(), **part(taken | ids, at), level=level, normalize="batch", **where)
            equal(found, ot.weights(ot.RBIS(), **taken, **ids, level=level, normalize="batch"), at)

    at = np.arange(24).reshape(4, 6)[rank]
    def change(rule=ot.Retrace(), **changes):
        mine = part(given, at)
        mine |= {n: f(mine[n]) for n, f in changes.items()} if rank == 1 else {}
        mine = {n: a for n, a in mine.items() if a is not None}
        return errors(lambda: ot.sharded.targets(rule, **mine, gamma=0.97, process_group=four))
    assert "reward must be finite: got nan" in change(reward=lambda a: a * torch.nan)  # on all ranks
    assert ("nothing is broadcast" if rank == 1 else "RuntimeError: the arrays of rank 1") in change(q=lambda a: a[:, :2])
    assert "all ranks must call alike" in change(skip=lambda a: None)
    assert "all ranks must call alike" in change(ot.Retrace(0.5 + 0.1 * (rank == 2)))
    assert "all ranks must call alike" in change(reward=lambda a: a.float())
    fewer = {n: (lambda a: a[:1]) for n in given}
    assert "each rank must hold its part of every row" in change(**fewer)
    twice = errors(lambda: ot.sharded.targets(ot.Retrace(), **part(given, at), gamma=0.97, process_group=four, position=range(6)))
    assert "each step of the whole row once" in twice, twice
    falling = {n: torch.from_numpy(a[:, at]) for n, a in taken.items()} | {"segment": torch.full((2, 6), -rank)}
    assert "segment falls along a row" in errors(lambda: ot.sharded.weights(ot.RBIS(), **falling, process_group=four))
    dist.barrier()
    dist.destroy_process_group()

children = []
for rank in (1, 2, 3):
    child = os.fork()
    if not child:
        try:
            work(rank)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
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
import sys, jax, numpy as np, offtrace as ot
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from sharded_batches import RULES, batch, zigzag

given = {n: jnp.asarray(a) for n, a in batch((2, 24), np.float32).items()}
states = {"value" if n == "q" else n: a for n, a in given.items()}
taken = {n: given[n] for n in ("log_pi", "log_mu")} | {"mask": ~given["skip"]}
segment = jnp.asarray(np.arange(24) // 7 + np.zeros((2, 1), int))
rules = RULES if "whole" in sys.argv else RULES[1:4]  # the rows are gathered for all rules alike
steps, flat = PartitionSpec(None, "time"), PartitionSpec("time")

def whole(given, states, taken, segment, at, module=ot, **where):
    return (
        *module.state_targets(**states, gamma=0.97, **where),
        *(module.targets(rule, **given, gamma=0.97, **where) for rule in rules),
        module.weights(ot.RBIS(), **taken, segment=segment, level="geometric", **where),
    )

mesh = Mesh(np.array(jax.devices()), ("time",))
wanted = whole(given, states, taken, segment, None)
for index, given_order in ((np.arange(24), False), (np.concatenate(zigzag(24, 4)), True), (np.zeros(24, int), True)):
    def work(given, states, taken, segment, at):
        where = {"axis_name": "time"} | ({"position": at} if given_order else {})
        return whole(given, states, taken, segment, at, ot.sharded, **where)

    arrays = jax.tree_util.tree_map(lambda a: a[:, index], (given, states, taken, segment))
    found = jax.jit(jax.shard_map(work, mesh=mesh, in_specs=(steps,) * 4 + (flat,), out_specs=steps))(*arrays, jnp.asarray(index))
    for ours, theirs in zip(found, wanted, strict=True):
        if index.any():
            np.testing.assert_allclose(ours, theirs[:, index], rtol=2e-6, atol=1e-6)
        else:
            assert np.isnan(ours).all()  # positions that are no permutation
"""


@pytest.mark.parametrize("how", ["three rules", *whole(["whole"])])
def test_devices(how: str) -> None:
    pytest.importorskip("jax")
    run(DEVICES, how, XLA_FLAGS=os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say where the other shards are"),
        ({"axis_name": "time", "differentiable": True}, "have no gradient"),
        ({"axis_name": "time"}, "call this inside of jax.shard_map"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    pytest.importorskip("jax")
    with pytest.raises((TypeError, ValueError), match=message):
        ot.sharded.targets(ot.Retrace(), **batch((2, 4)), gamma=0.9, **options)
