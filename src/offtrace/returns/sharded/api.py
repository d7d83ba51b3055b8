"""The public calls on shards: targets, corrections, state values and weights of rows that are split over processes or devices."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, cast

from offtrace.arrays import Array, Option
from offtrace.returns.layouts import batch_first, layout_of, rule_batch_first
from offtrace.returns.sharded.exchange import Sent
from offtrace.returns.state_values import StateTargets
from offtrace.returns.weights import options
from offtrace.traces import Rule, Trace
from offtrace.traces.base import whole
from offtrace.traces.trace_argument import as_rule, as_state_rule, as_trace

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def targets(
    trace: Rule,
    *,
    reward: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    q: Array | None = None,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    skip: Array | None = None,
    greedy: Array | None = None,
    process_group: ProcessGroup | None = None,
    axis_name: Hashable | None = None,
    room: int | None = None,
    sent: Sent | None = None,
    time_major: Option = None,
    differentiable: Option = False,
    check: Option = None,
) -> Array:
    """The targets of `offtrace.targets` for one shard of rows that are split along time, as the whole rows would give them.

    The arrays are this shard's, [B, T] or [T], with all rows and some of their steps; `next_value` at its last step is the value
    of the true next state, as everywhere. Every shard must make the same call. Where the others are is said by one of:

    - `process_group`, of torch.distributed, for tensors: rank 0 has the first steps of the rows, rank 1 the next ones, and so on.
      Shards may differ in length. If the arrays of one process are bad, all raise an error
    - `axis_name`, an axis of the mesh, for JAX arrays inside of `jax.shard_map`: devices hold the steps in the order of the axis

    What is sent is an affine map for each row; or, where the rule has a cap, the steps at which a trace from an earlier
    shard may be clipped (docs/distributed.md). `sent` counts the numbers. JAX must know before how many these are: it sends T + 1
    steps, or `room` of them; where more are needed, results that depend on them are NaN.

    A rule with a horizon or with bounds by lag, an n-step return and a custom trace are refused. There are no gradients:
    `differentiable=True` is refused. All else is as in `offtrace.targets`. This example is one shard alone, in a group of one:

    >>> import torch, offtrace as ot
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> sent, no = ot.sharded.Sent(), torch.zeros(3, dtype=torch.bool)
    >>> ot.sharded.targets(ot.QLambda(lam=1.0), reward=torch.ones(3), q=torch.zeros(3),
    ...                    next_value=torch.zeros(3), terminated=no,
    ...                    truncated=no, gamma=0.5, process_group=distributed.group.WORLD, sent=sent)
    tensor([1.7500, 1.5000, 1.0000])
    >>> sent
    13 numbers in 4 messages
    >>> distributed.destroy_process_group()
    """
    arrays = {"reward": reward, "q": q, "next_value": next_value, "terminated": terminated, "truncated": truncated}
    arrays |= {"gamma": gamma, "log_pi": log_pi, "log_mu": log_mu, "valid": valid, "skip": skip, "greedy": greedy}
    where = process_group, axis_name, room, sent
    return _correct(trace, arrays, where, time_major, differentiable, check, add_q=True)


def corrections(
    trace: Rule,
    *,
    reward: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    q: Array,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    skip: Array | None = None,
    greedy: Array | None = None,
    process_group: ProcessGroup | None = None,
    axis_name: Hashable | None = None,
    room: int | None = None,
    sent: Sent | None = None,
    time_major: Option = None,
    differentiable: Option = False,
    check: Option = None,
) -> Array:
    """Δ_k, what `sharded.targets` adds to q_k. Arrays and options are those of `sharded.targets`.

    >>> import torch, offtrace as ot
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> zero, no = torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    >>> row = {"reward": torch.ones(3), "q": zero, "next_value": zero, "terminated": no,
    ...        "truncated": no}
    >>> ot.sharded.corrections(ot.QLambda(lam=1.0), **row, gamma=1.0,
    ...                        process_group=distributed.group.WORLD)
    tensor([3., 2., 1.])
    >>> distributed.destroy_process_group()
    """
    arrays = {"reward": reward, "q": q, "next_value": next_value, "terminated": terminated, "truncated": truncated}
    arrays |= {"gamma": gamma, "log_pi": log_pi, "log_mu": log_mu, "valid": valid, "skip": skip, "greedy": greedy}
    where = process_group, axis_name, room, sent
    return _correct(trace, arrays, where, time_major, differentiable, check, add_q=False)


def state_targets(
    trace: Trace | None = None,
    *,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    log_pi: Array,
    log_mu: Array,
    gamma: Array | float,
    lam: Option = None,
    rho_bar: Option = None,
    c_bar: Option = None,
    valid: Array | None = None,
    skip: Array | None = None,
    process_group: ProcessGroup | None = None,
    axis_name: Hashable | None = None,
    room: int | None = None,
    sent: Sent | None = None,
    time_major: Option = None,
    differentiable: Option = False,
    check: Option = None,
) -> StateTargets[Array]:
    """The targets and advantages of `offtrace.state_targets` for one shard of rows that are split along time.

    The arrays are this shard's; the target of its first state is sent too. Where the other shards are, `room`, `sent` and what is
    refused is told in `sharded.targets`; all else is as in `offtrace.state_targets`.

    >>> import torch
    >>> import offtrace as ot
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> one, none, no = torch.ones(3), torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    >>> ot.sharded.state_targets(ot.RBIS(), reward=one, value=none, next_value=none, terminated=no,
    ...                          truncated=no, log_pi=none,
    ...                          log_mu=none, gamma=0.5, process_group=distributed.group.WORLD).target
    tensor([1.7500, 1.5000, 1.0000])
    >>> distributed.destroy_process_group()
    """
    rule = as_state_rule(trace, {"lam": lam, "rho_bar": rho_bar, "c_bar": c_bar})
    arrays = {"reward": reward, "value": value, "next_value": next_value, "terminated": terminated}
    arrays |= {"truncated": truncated, "gamma": gamma, "log_pi": log_pi, "log_mu": log_mu, "valid": valid, "skip": skip}
    _refuse(rule, differentiable)
    count = Sent() if sent is None else sent
    if _by_processes(process_group, axis_name, room):
        from offtrace.returns.sharded import by_torch, processes

        exchange = processes.ProcessGroup(process_group, processes.device_of(arrays), count)
        made: Any = by_torch.correct_states(rule, arrays, exchange, time_major=time_major, check=check)
        return StateTargets(*made)
    from offtrace.returns.sharded import by_jax

    steps = _room(room, check)
    layout = layout_of(arrays, time_major)
    rule, turned = as_trace(rule_batch_first(layout, rule)), batch_first(layout, arrays)
    made = by_jax.correct_states(rule, turned, axis_name, count, room=steps)
    return StateTargets(*map(layout.restored, made))


def weights(
    trace: Trace,
    *,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    mask: Array | None = None,
    level: str = "prefix",
    segment: Array | None = None,
    lower: float | None = None,
    upper: float | None = None,
    outside: str = "truncate",
    greedy: Array | None = None,
    process_group: ProcessGroup | None = None,
    axis_name: Hashable | None = None,
    sent: Sent | None = None,
    check: Option = None,
) -> Array:
    """The weights of `offtrace.weights` for one shard of rows that are split along time, as the whole rows would give them.

    The arrays are this shard's. A row's shards send one map x ↦ min(a x, b) for each row, with its decay and its number of
    decisions; with `segment`, one for the first and one for the last packed row. Ids of segments hold over all shards, and do not
    fall along the whole row. `process_group`, `axis_name` and `sent` are those of `sharded.targets`. There is no `normalize`:
    docs/distributed.md shows how to divide by a mean over all shards. All else is as in `offtrace.weights`.

    >>> import torch, offtrace as ot
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> rho = torch.tensor([[0.5, 4.0, 2.0]]).log()
    >>> ot.sharded.weights(ot.NonMarkovRetrace(lam=1.0), log_pi=rho, log_mu=0 * rho,
    ...                    process_group=distributed.group.WORLD)
    tensor([[0.5000, 1.0000, 1.0000]])
    >>> distributed.destroy_process_group()
    """
    trace = as_trace(trace)
    if trace.custom:
        raise TypeError(f"{trace.title!r} has no normal form, which weights need: write it with `factors`, as a Trace")
    how = options(level, lower, upper, outside, None, None, None)
    arrays = {"log_pi": log_pi, "log_mu": log_mu, "mask": mask, "segment": segment, "greedy": greedy}
    count = Sent() if sent is None else sent
    if _by_processes(process_group, axis_name):
        from offtrace.returns.sharded import by_torch, processes

        exchange = processes.ProcessGroup(process_group, processes.device_of(arrays), count)
        return cast(Array, by_torch.weights(trace, arrays, how, exchange, check=check))
    from offtrace.returns.sharded import by_jax

    _room(None, check)
    return cast(Array, by_jax.weights(trace, arrays, how, axis_name, count))


Where = tuple["ProcessGroup | None", Hashable | None, int | None, Sent | None]
"""The process group, the axis, how many steps may be sent over it, and the count."""


def _correct(
    trace: Rule,
    arrays: Mapping[str, object],
    where: Where,
    time_major: bool | None,
    differentiable: bool,
    check: bool | None,
    *,
    add_q: bool,
) -> Any:
    rule = as_rule(trace)
    _refuse(rule, differentiable)
    process_group, axis_name, room, sent = where
    count = Sent() if sent is None else sent
    if _by_processes(process_group, axis_name, room):
        from offtrace.returns.sharded import by_torch, processes

        exchange = processes.ProcessGroup(process_group, processes.device_of(arrays), count)
        return by_torch.correct(rule, arrays, exchange, add_q=add_q, time_major=time_major, check=check)
    from offtrace.returns.sharded import by_jax

    room = _room(room, check)
    layout = layout_of(arrays, time_major)
    rule, turned = rule_batch_first(layout, rule), batch_first(layout, arrays)
    return layout.restored(by_jax.correct(rule, turned, axis_name, count, room=room, add_q=add_q))


def _by_processes(process_group: object, axis_name: object, room: int | None = None) -> bool:
    """Whether the shards are on processes, and not on devices along an axis."""
    if (process_group is None) == (axis_name is None):
        raise TypeError(
            "say where the other shards are: process_group=torch.distributed.group.WORLD, or another group, for tensors "
            "(it is None before init_process_group has been called); "
            'axis_name="…", an axis of the mesh, for JAX arrays inside of jax.shard_map'
        )
    if process_group is not None and room is not None:
        raise TypeError("room goes with axis_name: processes send as many steps as there are")
    return process_group is not None


def _room(room: int | None, check: bool | None) -> int | None:
    """The steps that may be sent along an axis, if nothing is to be looked at."""
    if check:
        raise ValueError(
            "check=True must look at values, which there are none of inside of jax.shard_map: leave it out"
        )
    return None if room is None else whole("room", room)


def _refuse(rule: Rule, differentiable: bool) -> None:
    """Refuse what cannot be computed on shards, and say what to do instead."""
    remedy = "gather the rows along time, and call offtrace.targets on each rank"
    if differentiable:
        raise TypeError(f"targets of shards have no gradient: leave out differentiable=True, or {remedy}")
    if rule.uncorrected_return is not None:
        if rule.uncorrected_return.n is not None:
            raise TypeError(f"{rule.title} reaches over a number of steps, which shards do not count: {remedy}")
        return
    trace = as_trace(rule)
    if trace.custom:
        raise TypeError(f"{trace.title!r} is a custom trace, which may depend on the whole history: {remedy}")
    if trace.horizon is not None or trace.lag_bound is not None:
        raise TypeError(
            f"{trace.title} has a horizon or bounds by lag, and shards do not count the steps of a trace: leave these out, or "
            f"{remedy}"
        )
