"""Shards on the devices along an axis of a mesh, inside of `jax.shard_map`.

Sizes are known before the program runs, so each shard sends as many steps as there may be, T + 1, or `room` of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import tree_flatten, tree_unflatten

from offtrace.returns.jax import xla_kernels
from offtrace.returns.jax.float64_programs import Function, Numbers, Out, compute
from offtrace.returns.jax.jax_backend import BACKEND, dtype_of, for_program
from offtrace.returns.jax.jax_operations import Rows, factors
from offtrace.returns.jax.pallas_kernels import capped
from offtrace.returns.jax.weight_operations import KIND, bounds_of
from offtrace.returns.needed_arrays import decisions, needed, needed_on_states
from offtrace.returns.sharded import one_shard, weight_maps
from offtrace.returns.sharded.any_size import Tools
from offtrace.returns.sharded.boundaries import Flags, Known
from offtrace.returns.sharded.exchange import Sent
from offtrace.returns.sharded.local_steps import Steps
from offtrace.returns.sharded.one_shard import Form, Shard, of_factors
from offtrace.returns.skipped_steps import check_skip
from offtrace.returns.weight_arrays import Weighing
from offtrace.returns.weight_scan import maps_of, weigh_maps
from offtrace.traces import Rule, Trace
from offtrace.traces.trace_argument import as_trace
from offtrace.trajectory import Agreed, agree


def _tools(single: bool) -> Tools:
    def run(delta: Array, g: Array, ratio: Array, cap: Array, recursive: bool) -> Array:
        step = jnp.pad(ratio[:, 1:], ((0, 0), (0, 1)), constant_values=1)
        return capped(delta, g, step, cap, recursive, single)

    return Tools(
        KIND,
        lambda n: jnp.ldexp(jnp.ones_like(n), n.astype(jnp.int32)),
        lambda n: n.astype(jnp.int32),
        xla_kernels.linear,
        run,
    )


class Axis:
    """The shards of a row as one device of a mesh's axis sees them."""

    def __init__(self, name: Hashable, size: int, sent: Sent) -> None:
        self.name, self.size, self.sent = name, size, sent
        self.rank = lax.axis_index(name)

    def gather(self, what: str, array: Array) -> Array:
        """The arrays of all devices."""
        self.sent.add(what, array.size)
        return lax.all_gather(array, self.name)

    def share_steps(self, steps: Steps, count: Array) -> list[Steps]:
        """The short rows of all devices, as many steps as there may be."""
        found = self.gather("short rows", jnp.stack(steps))
        self.sent.steps += steps.delta.size
        return [Steps(*(found[i][j] for j in range(4))) for i in range(self.size)]


class Given(NamedTuple):
    """What decides about the program."""

    rule: Hashable
    """The rule's structure, without its numbers."""
    shape: tuple[int, ...]
    axis: Hashable
    size: int
    how: Hashable
    single: bool
    """Whether the result will be float32."""


_sent: dict[Given, Sent] = {}
"""What a program sends, which is known when it is traced: JAX keeps programs, and does not trace them again."""


def _axis(given: Given) -> Axis:
    sent = Sent()
    _sent[given] = sent
    return Axis(given.axis, given.size, sent)


def size_of(axis: Hashable) -> int:
    """How many devices an axis has; an error where there is no such axis."""
    try:
        return int(lax.psum(1, axis))
    except NameError:
        raise ValueError(
            f"axis_name = {axis!r} is no axis here: call this inside of jax.shard_map, over a mesh with an axis of this name"
        ) from None


def _counted(sent: Sent, given: Given) -> None:
    """Add to the user's count what the program sends."""
    for message in _sent[given].calls:
        what, _, numbers = message.rpartition(": ")
        sent.add(what, int(numbers))
    sent.steps += _sent[given].steps


class HowCorrections(NamedTuple):
    """What decides about the program of `correct`, beside the rule."""

    add_q: bool
    room: int | None


class HowStates(NamedTuple):
    """What decides about the program of `correct_states`, beside the rule."""

    room: int | None


def _shard(shape: tuple[int, ...], real: dict[str, Array], other: dict[str, Array]) -> Shard:
    flat = {n: a.reshape(-1, shape[-1]) if a.ndim else a for n, a in (real | other).items()}
    terminated, truncated = flat.pop("terminated") != 0, flat.pop("truncated") != 0
    valid = flat.pop("valid") != 0 if "valid" in flat else jnp.ones_like(terminated)
    skip = flat.pop("skip", None)
    flags = Flags(terminated, truncated, valid, None if skip is None else (skip != 0) & valid)
    return Shard(flat, flat.pop("gamma"), flags)


def _rows(shard: Shard, known: Known) -> Rows:
    """What `factors` reads."""
    logs = {n: jnp.where(known.decision, shard.real[n], 0.0) for n in ("log_pi", "log_mu") if n in shard.real}
    return Rows(logs, jnp.ones(()), known.decision, known.decision, None)


def _result(given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """q + Δ, or Δ."""
    rule: Rule = tree_unflatten(given.rule, numbers)
    how: Any = given.how
    tools, axis = _tools(given.single), _axis(given)
    shard = _shard(given.shape, real, other)
    known = one_shard.known(tools, axis, shard.flags)
    form, made = Form(True, False, rule.uncorrected_return), (1.0, 1.0, 1.0)
    if not rule.uncorrected:
        trace = as_trace(rule)
        form, made = Form(trace.per_decision, trace.recursive, None, how.room), factors(trace, _rows(shard, known))
    made = of_factors(jnp, made, shard)
    return one_shard.correct(tools, axis, form, shard, known, made, add_q=how.add_q).reshape(given.shape)


def _on_states(
    given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]
) -> tuple[Array, Array, Array]:
    """Target, advantage and correction of state values."""
    trace: Trace = tree_unflatten(given.rule, numbers)
    how: Any = given.how
    tools, axis = _tools(given.single), _axis(given)
    shard = _shard(given.shape, real, other)
    known = one_shard.known(tools, axis, shard.flags)
    rows = _rows(shard, known)
    form, made = Form(trace.per_decision, trace.recursive, None, how.room), of_factors(jnp, factors(trace, rows), shard)
    ρ = jnp.where(jnp.isfinite(rows.arrays["log_mu"]), rows.probabilities(("rho",))[2], jnp.nan)
    λ = jnp.asarray(trace.advantage_lam, jnp.float64)
    λ = λ.reshape(ρ.shape) if λ.ndim else λ
    found = one_shard.on_states(tools, axis, form, shard, known, made, trace.delta_ratio(jnp, ρ), λ)
    target, advantage, correction = (a.reshape(given.shape) for a in found)
    return target, advantage, correction


def _computed(
    function: Function[Given, Out],
    trace: Rule,
    found: Agreed[Array],
    skip: object,
    axis: Hashable,
    how: Hashable,
    sent: Sent,
) -> Out:
    """What a program makes of the arrays of this shard."""
    all_arrays: dict[str, Array | float] = {**found.arrays, "gamma": found.gamma}
    dtype = dtype_of(found)
    if skip is not None:
        all_arrays["skip"] = BACKEND.array("skip", skip).astype(dtype)
        check_skip(BACKEND, BACKEND.array("skip", skip), found.arrays)
    numbers, rule = tree_flatten(trace)
    given = Given(rule, tuple(found.shape), axis, size_of(axis), how, dtype == np.float32)
    out = compute(function, given, numbers, all_arrays, dtype, False)
    _counted(sent, given)
    return out


def correct(
    trace: Rule, arrays: Mapping[str, object], axis: Hashable, sent: Sent, *, room: int | None, add_q: bool
) -> Array:
    """q + Δ, or Δ, of this shard."""
    given = dict(arrays)
    skip = given.pop("skip", None)
    found = agree(BACKEND, needed(BACKEND, trace, given))
    return _computed(_result, trace, found, skip, axis, HowCorrections(add_q, room), sent)


def correct_states(
    trace: Trace, arrays: Mapping[str, object], axis: Hashable, sent: Sent, *, room: int | None
) -> tuple[Array, Array, Array]:
    """Target, advantage and correction of state values, of this shard."""
    given = dict(arrays)
    skip = given.pop("skip", None)
    found = agree(BACKEND, needed_on_states(BACKEND, trace, given))
    return _computed(_on_states, trace, found, skip, axis, HowStates(room), sent)


def _weights(given: Given, numbers: Numbers, real: dict[str, Array], other: dict[str, Array]) -> Array:
    """The weights; `valid` is the mask and `pair` the segment."""
    trace: Trace = tree_unflatten(given.rule, numbers)
    how: Any = given.how
    T = given.shape[-1]
    flat = {name: a.reshape(-1, T) for name, a in (real | other).items()}
    decision = flat["valid"] != 0
    logs = {name: jnp.where(decision, flat[name], 0.0) for name in ("log_pi", "log_mu") if name in flat}
    made = factors(trace, Rows(logs, jnp.ones(()), decision, decision, None))
    bounds = bounds_of(trace, T * given.size)
    maps, segment, axis, tools = maps_of(KIND, *made, decision), flat.get("pair"), _axis(given), _tools(given.single)
    if how.level == "token":
        return weigh_maps(KIND, maps, decision, segment, bounds, trace.recursive, how).reshape(given.shape)
    shards = weight_maps.gathered(tools, axis, maps, decision, segment, trace.recursive)
    found = weight_maps.weights(tools, axis, shards, maps, decision, segment, bounds, trace.recursive, how)
    return found.reshape(given.shape)


def weights(trace: Trace, arrays: Mapping[str, object], how: Weighing, axis: Hashable, sent: Sent) -> Array:
    """The weight of each decision of this shard."""
    size = size_of(axis)
    found = decisions(BACKEND, trace, arrays)
    dtype = np.dtype(jnp.result_type(*found.dtypes)) if found.dtypes else np.dtype(jnp.result_type(float))
    numbers, rule = tree_flatten(trace)
    given = Given(rule, found.shape, axis, size, how, dtype == np.float32)
    out = compute(_weights, given, numbers, for_program(found), dtype, False)
    _counted(sent, given)
    return out
