"""Rows that are split along time over processes or devices (context parallelism).

Each shard holds all rows and some of their steps. Its arrays hold one number a step, so all shards get the whole rows (one
all_gather), compute what the ordinary function computes, and keep their own steps. So every rule works, and every option. A
process whose arrays are bad says so instead of sending them, so that nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace.arrays import is_number
from offtrace.returns import api
from offtrace.returns.inputs import layout_of
from offtrace.returns.weights.api import weights as weights_of_rows
from offtrace.traces import Rule, Trace
from offtrace.traces.trace_argument import as_rule, as_trace

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["corrections", "state_targets", "targets", "weights"]

STEPS = frozenset(
    ("reward", "q", "value", "next_value", "terminated", "truncated", "log_pi", "log_mu", "gamma", "valid", "skip", "greedy",
     "pair", "mask", "segment")
)  # fmt: skip
"""The arguments that hold something for each step. All others are options."""


def targets(
    trace: Rule,
    *,
    process_group: ProcessGroup | None = None,
    axis_name: Hashable | None = None,
    position: Any = None,
    **arrays: Any,
) -> Any:
    """The targets of `offtrace.targets` for one shard of rows that are split along time, as the whole rows give them.

    Arrays and options are those of `offtrace.targets`, the arrays of this shard alone: [B, T] or [T], with all rows and some of
    their steps. A rule that holds numbers for each step, as `VariableLambda`, holds those of the shard. `next_value` at a
    shard's last step is the value of the true next state, as everywhere. Every shard must make the same call. Where the
    others are is said by one of:

    - `process_group`, of torch.distributed, for tensors. Shards may differ in length. If the arrays of one process are bad, all
      raise an error
    - `axis_name`, an axis of the mesh, for JAX arrays inside of `jax.shard_map`

    Shards hold the steps in the order of ranks, or of the axis. In any other order, as in zigzag context parallelism,
    `position` [T] says which steps of the whole row these are, the same ones of all rows. If no permutation comes together,
    that is an error, and NaN under JAX. There are no gradients: `differentiable=True` is refused.

    This example is one shard alone, in a group of one:

    >>> import torch, offtrace as ot
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> no = torch.zeros(3, dtype=torch.bool)
    >>> ot.sharded.targets(ot.QLambda(lam=1.0), reward=torch.ones(3), q=torch.zeros(3),
    ...                    next_value=torch.zeros(3), terminated=no,
    ...                    truncated=no, gamma=0.5, process_group=distributed.group.WORLD)
    tensor([1.7500, 1.5000, 1.0000])
    >>> distributed.destroy_process_group()
    """
    return _on_shards(api.targets, trace, process_group, axis_name, position, **arrays)


def corrections(trace: Rule, **arrays: Any) -> Any:
    """Δ_k, what `sharded.targets` adds to q_k. Arrays and options are those of `sharded.targets`.

    >>> import torch, offtrace as ot
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> no, half = torch.zeros(3, dtype=torch.bool), torch.full((3,), 0.5)
    >>> ot.sharded.corrections(ot.QLambda(lam=1.0), reward=torch.ones(3), q=half,
    ...                        next_value=half, terminated=no, truncated=no, gamma=0.5,
    ...                        process_group=distributed.group.WORLD)
    tensor([1.3125, 1.1250, 0.7500])
    >>> distributed.destroy_process_group()
    """
    return _on_shards(api.corrections, trace, **arrays)


def state_targets(trace: Trace | None = None, **arrays: Any) -> Any:
    """The targets and advantages of `offtrace.state_targets` for one shard of rows that are split along time.

    Arrays and options are those of `offtrace.state_targets`; where the other shards are is said as in `sharded.targets`.

    >>> import torch, offtrace as ot
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> zero, no = torch.zeros(2), torch.zeros(2, dtype=torch.bool)
    >>> ot.sharded.state_targets(reward=torch.tensor([1.0, 2.0]), value=zero, next_value=zero,
    ...                          terminated=no, truncated=no, log_pi=zero, log_mu=zero, gamma=0.5,
    ...                          process_group=distributed.group.WORLD).target
    tensor([2., 2.])
    >>> distributed.destroy_process_group()
    """
    return _on_shards(api.state_targets, trace, **arrays)


def weights(trace: Trace, **arrays: Any) -> Any:
    """The weights of `offtrace.weights` for one shard of rows that are split along time, as the whole rows give them.

    Arrays and options are those of `offtrace.weights`; where the other shards are is said as in `sharded.targets`. Ids of
    segments hold over all shards, and do not fall along the whole row.

    >>> import torch, offtrace as ot
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> ot.sharded.weights(ot.ImportanceSampling(), log_pi=torch.tensor([0.5, 2.0, 4.0]).log(),
    ...                    log_mu=torch.zeros(3), process_group=distributed.group.WORLD)
    tensor([0.5000, 1.0000, 4.0000])
    >>> distributed.destroy_process_group()
    """
    return _on_shards(weights_of_rows, trace, **arrays)


def _on_shards(
    function: Callable[..., Any],
    trace: Rule | None,
    process_group: ProcessGroup | None = None,
    axis_name: Hashable | None = None,
    position: Any = None,
    **arrays: Any,
) -> Any:
    """Gather the rows, compute, and keep this shard's steps."""
    if (process_group is None) == (axis_name is None):
        raise TypeError(
            "say where the other shards are: process_group=torch.distributed.group.WORLD, or another group, for tensors "
            "(it is None before init_process_group has been called); "
            'axis_name="…", an axis of the mesh, for JAX arrays inside of jax.shard_map'
        )
    if arrays.get("differentiable"):
        raise TypeError("targets of shards have no gradient: leave out differentiable=True")
    options = {name: value for name, value in arrays.items() if name not in STEPS or is_number(value)}
    of_steps = {name: a for name, a in arrays.items() if name not in options and a is not None}
    rule, held = None if trace is None else as_rule(trace), dict[str, Any]()  # held: what the rule holds for each step
    if rule is not None and rule.per_step:
        as_trace(rule).mapped(lambda numbers: held.setdefault(f"number {len(held)} of the rule", numbers))
    called = rule.title if rule is not None and held else repr(rule)
    gather = _gather_along_axis if process_group is None else gather_from_processes
    where: Any = axis_name if process_group is None else process_group
    alike = f"{function.__name__}({called}, {', '.join(of_steps)}, {options})"
    whole, keep = gather(where, of_steps | held, options.get("time_major"), position, alike)
    if held:
        parts = iter([whole.pop(name) for name in held])
        rule = as_trace(rule).mapped(lambda _: next(parts))
    result: Any = function(rule, **whole, **options)
    return api.StateTargets(*map(keep, result)) if function is api.state_targets else keep(result)


def _time_axis(arrays: Mapping[str, Any], time_major: bool | None) -> int:
    """The axis of time, if all arrays have one shape."""
    name, first = next(iter(arrays.items()), ("", None))
    if first is None:
        raise TypeError("there is no array of steps: pass log_pi and log_mu, or the mask of the decisions")
    if "reward" in arrays:
        layout_of(arrays, time_major)  # an error if [N, 1] may be either
        name, first = "reward", arrays["reward"]
    shape = tuple(np.shape(first))
    for other, array in arrays.items():
        if (its := tuple(np.shape(array))) != shape:
            raise ValueError(f"{other} has shape {its} but {name} has shape {shape}: nothing is broadcast")
    if not shape or 0 in shape:
        raise ValueError(f"{name} has shape {shape}: a shard needs a row and a step; give it a step with valid=False")
    return 0 if time_major or len(shape) == 1 else 1


def gather_from_processes(
    group: ProcessGroup, arrays: Mapping[str, Any], time_major: bool | None, position: Any, alike: str
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The whole rows, without gradients, and what takes a result to this shard's steps. All processes must call `alike`."""
    import torch
    import torch.distributed

    distributed: Any = torch.distributed  # its annotations are not complete
    size, rank = distributed.get_world_size(group), distributed.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not in the process_group: only those that hold shards may call")
    ours = dict[str, torch.Tensor]()
    axis, shape, steps, error = 0, (0,), [], None
    try:
        ours = {name: torch.as_tensor(a).detach() for name, a in arrays.items()}
        axis = _time_axis(ours, time_major)
        shape = tuple(next(iter(ours.values())).shape)
        if position is not None and tuple(np.shape(position)) != shape[axis : axis + 1]:
            raise ValueError(f"position has shape {tuple(np.shape(position))}, and the shard has {shape[axis]} steps")
        alike = f"{alike}{' by position' * (position is not None)} of {[str(a.dtype) for a in ours.values()]}"
        steps = [*range(shape[axis])] if position is None else [int(t) for t in position]
    except Exception as problem:  # whatever it is, the others must hear of it
        error = problem
    shards: list[Any] = [None] * size
    rows = (*shape[:axis], *shape[axis + 1 :])
    sent = None if error else {name: a.cpu() for name, a in ours.items()}
    distributed.all_gather_object(shards, (rows, alike, steps, sent), group=group)
    if error is not None:
        raise error
    for other, (theirs, call, _, held) in enumerate(shards):
        if held is None:
            raise RuntimeError(
                f"the arrays of rank {other} of the process group are bad: its own error says what is wrong"
            )
        if theirs != rows:
            raise ValueError(
                f"this shard has rows of shape {rows}, but that of rank {other} has {theirs}: "
                "each rank must hold its part of every row"
            )
        if call != alike:
            raise ValueError(f"rank {other} called {call}, this rank {alike}: all ranks must call alike")
    device, first = next(iter(ours.values())).device, sum(len(shard[2]) for shard in shards[:rank])
    positions = torch.tensor([t for shard in shards for t in shard[2]])
    positions = torch.arange(len(positions)) if position is None else positions
    order, mine = positions.argsort(), positions[first : first + len(steps)].to(device)
    if not torch.equal(positions[order], torch.arange(len(order))):
        raise ValueError("position: the shards together must hold each step of the whole row once, 0, 1, …")
    joined = {name: torch.cat([shard[3][name] for shard in shards], axis) for name in ours}
    whole = {name: a.index_select(axis, order).to(device) for name, a in joined.items()}
    return whole, lambda result: result.index_select(axis, mine)


def _gather_along_axis(
    axis_name: Hashable, arrays: Mapping[str, Any], time_major: bool | None, position: Any, alike: str
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The whole rows, and what takes a result to this shard's steps. All devices run one program, so that they call alike."""
    import jax

    jnp: Any = jax.numpy  # JAX's annotations are not complete
    lax: Any = jax.lax
    try:
        place = lax.axis_index(axis_name)
    except NameError:
        raise ValueError(
            f"axis_name = {axis_name!r} is no axis here: call this inside of jax.shard_map, over a mesh with an axis of this name"
        ) from None
    ours = {name: jnp.asarray(a) for name, a in arrays.items()}
    axis = _time_axis(ours, time_major)
    T = next(iter(ours.values())).shape[axis]
    mine = place * T + jnp.arange(T) if position is None else jnp.asarray(position)
    whole = {name: lax.all_gather(a, axis_name, axis=axis, tiled=True) for name, a in ours.items()}
    positions = lax.all_gather(mine, axis_name, tiled=True)
    order = jnp.argsort(positions)
    each_once = jnp.all(positions[order] == jnp.arange(len(order)))
    whole = {name: jnp.take(a, order, axis) for name, a in whole.items()}
    return whole, lambda result: jnp.where(each_once, jnp.take(result, mine, axis), jnp.nan)
