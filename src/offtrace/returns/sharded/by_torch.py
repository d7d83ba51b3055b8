"""Shards on the processes of a group of torch.distributed, in the order of their ranks (`processes`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offtrace.arrays import is_number
from offtrace.returns.layouts import Layout, batch_first, layout_of, rule_batch_first
from offtrace.returns.needed_arrays import bounded, decisions, needed, needed_on_states
from offtrace.returns.numpy import normal_form, weight_rows
from offtrace.returns.numpy.sequences import sequences
from offtrace.returns.numpy.whole_arrays import look
from offtrace.returns.sharded import one_shard, weight_maps
from offtrace.returns.sharded.any_size import Tools
from offtrace.returns.sharded.boundaries import Flags, Known
from offtrace.returns.sharded.one_shard import Form, Shard, of_factors
from offtrace.returns.sharded.processes import ProcessGroup
from offtrace.returns.skipped_steps import check_skip
from offtrace.returns.torch import weight_tensors
from offtrace.returns.torch.registered_operators import capped, linear
from offtrace.returns.torch.tensor_operations import Rows, TensorMath, factors, ratio_of
from offtrace.returns.torch.torch_backend import BACKEND, NUMPY_DTYPES
from offtrace.returns.torch.weight_tensors import KIND
from offtrace.returns.weight_arrays import Decisions, Weighing
from offtrace.returns.weight_scan import maps_of, weigh_maps
from offtrace.traces import Rule, Trace
from offtrace.traces.trace_argument import as_trace
from offtrace.trajectory import Agreed, agree, laid_out


def _linear(delta: Tensor, weight: Tensor) -> Tensor:
    return linear(delta.contiguous(), weight.contiguous())


def _capped(delta: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, recursive: bool) -> Tensor:
    return capped(delta, g, ratio, cap, torch.empty(0, dtype=torch.float64, device=delta.device), recursive, False)


TOOLS = Tools(KIND, lambda n: torch.pow(2.0, n), Tensor.long, _linear, _capped)


def _shard(found: Agreed[Tensor], skip: Any) -> Shard:
    """The arrays as float64 and booleans [N, T]."""
    T = found.shape[-1]
    rows = {name: a.detach().reshape(-1, T) for name, a in found.arrays.items()}
    real = {name: a.double() for name, a in rows.items() if a.is_floating_point()}
    gamma = (
        found.gamma.detach().double().reshape(-1, T)
        if isinstance(found.gamma, Tensor) and found.gamma.ndim
        else found.gamma
    )
    valid = rows["valid"].bool() if "valid" in rows else torch.ones_like(rows["terminated"], dtype=torch.bool)
    skipped = None if skip is None else skip.reshape(-1, T).bool() & valid
    return Shard(real, gamma, Flags(rows["terminated"].bool(), rows["truncated"].bool(), valid, skipped))


def _look(found: Agreed[Tensor], known: Known, trace: Rule, reads: tuple[str, ...]) -> bool:
    """Raise where a value is bad that is read."""
    flags = {"terminated": known.terminated, "valid": known.decision}
    arrays = found.arrays | {name: a.reshape(found.shape) for name, a in flags.items()}
    on_host = Agreed(arrays, found.gamma, found.shape, found.dtype).mapped(BACKEND.as_numpy, NUMPY_DTYPES[found.dtype])
    look(laid_out(on_host, bounded(trace)), reads)
    return True


def numbers_of(trace: Rule) -> list[float]:
    """The numbers of a rule that all shards must have alike; what it holds for each step is not."""
    if trace.uncorrected_return is not None:
        return [trace.uncorrected_return.lam]
    return [p for p in as_trace(trace).parameters if not np.ndim(p)]


class Prepared(NamedTuple):
    """The arrays of this shard, which agree with those of the others."""

    layout: Layout
    trace: Rule
    found: Agreed[Tensor]
    shard: Shard
    known: Known

    @property
    def rows(self) -> Rows:
        """What `factors` reads."""
        nothing = torch.zeros(())
        return Rows(dict(self.shard.real), self.known.decision, nothing, None, nothing, 1.0, nothing)

    def restored(self, out: Tensor) -> Tensor:
        """A result in the dtype and layout of the arrays."""
        return self.layout.restored(out.to(self.found.dtype).reshape(self.found.shape))


Need = Callable[[Any, Any, Mapping[str, object]], dict[str, object]]
"""`needed`, or `needed_on_states`."""


def _prepared(
    trace: Rule,
    arrays: Mapping[str, object],
    exchange: ProcessGroup,
    need: Need,
    time_major: bool | None,
    check: bool | None,
) -> Prepared:
    skip, gamma = arrays.get("skip"), arrays["gamma"] if is_number(arrays["gamma"]) else "by step"
    skips = "skip" if skip is not None else "no skip"
    alike = (trace.title, *numbers_of(trace), skips, f"γ {gamma}", f"check {check}")

    def prepare() -> tuple[Layout, Rule, Agreed[Tensor], Shard]:
        layout = layout_of(arrays, time_major)
        rule, turned = rule_batch_first(layout, trace), dict(batch_first(layout, arrays))
        skipped = turned.pop("skip", None)
        if skipped is not None:
            check_skip(BACKEND, BACKEND.array("skip", skipped), turned)
        found = agree(BACKEND, need(BACKEND, rule, turned))
        return layout, rule, found, _shard(found, skipped)

    (layout, rule, found, shard), _ = exchange.all_agree(prepare, alike=alike, shape=lambda made: made[2].shape)
    known = one_shard.known(TOOLS, exchange, shard.flags)
    if BACKEND.looks(check, arrays):
        reads = rule.reads if need is needed else ("rho", *rule.reads)
        exchange.all_agree(lambda: _look(found, known, rule, reads))
    return Prepared(layout, rule, found, shard, known)


def correct(
    trace: Rule,
    arrays: Mapping[str, object],
    exchange: ProcessGroup,
    *,
    add_q: bool,
    time_major: bool | None = None,
    check: bool | None = None,
) -> Tensor:
    """q + Δ, or Δ, of this shard."""
    x = _prepared(trace, arrays, exchange, needed, time_major, check)
    form, made = Form(True, False, trace.uncorrected_return), (1.0, 1.0, 1.0)
    if not trace.uncorrected:
        rule = as_trace(x.trace)
        form, made = Form(rule.per_decision, rule.recursive, None), factors(rule, x.rows)
    made = of_factors(torch, made, x.shard)
    return x.restored(one_shard.correct(TOOLS, exchange, form, x.shard, x.known, made, add_q=add_q))


def correct_states(
    trace: Trace,
    arrays: Mapping[str, object],
    exchange: ProcessGroup,
    *,
    time_major: bool | None = None,
    check: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Target, advantage and correction of state values, of this shard."""
    x = _prepared(trace, arrays, exchange, needed_on_states, time_major, check)
    rule = as_trace(x.trace)
    form, made = Form(rule.per_decision, rule.recursive, None), of_factors(torch, factors(rule, x.rows), x.shard)
    weight = torch.as_tensor(rule.delta_ratio(TensorMath, ratio_of(x.rows)))
    λ = torch.as_tensor(rule.advantage_lam, dtype=torch.float64, device=exchange.device)
    λ = λ.reshape(weight.shape) if λ.ndim else λ
    found = one_shard.on_states(TOOLS, exchange, form, x.shard, x.known, made, weight, λ)
    target, advantage, correction = map(x.restored, found)
    return target, advantage, correction


def weights(
    trace: Trace, arrays: Mapping[str, object], how: Weighing, exchange: ProcessGroup, *, check: bool | None
) -> Tensor:
    """The weight of each decision of this shard. Ids of segments may not fall from one shard to the next."""

    def prepare() -> Decisions[Tensor]:
        given = decisions(BACKEND, trace, arrays)
        if BACKEND.looks(check, arrays):
            x = weight_rows.trajectory(given.mapped(BACKEND.as_numpy), bounded(trace))
            normal_form.normal_form(trace, x)
            if x.pair is not None:
                sequences(np.ones(x.pair.shape, bool) if x.valid is None else x.valid, x.pair)
        return given

    there = tuple(name for name, array in arrays.items() if array is not None)
    alike = (trace.title, *numbers_of(trace), how, there, f"check {check}")
    given, T = exchange.all_agree(prepare, alike=alike, shape=lambda made: made.shape)
    decision = weight_tensors.decision_of(given, exchange.device)
    rows = weight_tensors.rows_of(given)
    maps = maps_of(KIND, *weight_tensors.factors_of(trace, rows, decision), decision)
    bounds = weight_tensors.bounds_of(trace, T, exchange.device)
    segment = rows.get("segment")
    if how.level == "token":
        found = weigh_maps(KIND, maps, decision, segment, bounds, trace.recursive, how)
    else:
        shards = weight_maps.gathered(TOOLS, exchange, maps, decision, segment, trace.recursive)
        if BACKEND.looks(check, arrays):
            _look_at_shards(shards)
        found = weight_maps.weights(TOOLS, exchange, shards, maps, decision, segment, bounds, trace.recursive, how)
    dtype = reduce(torch.promote_types, given.dtypes or (torch.get_default_dtype(),))
    return found.reshape(given.shape).to(dtype)


def _look_at_shards(shards: list[weight_maps.Summary]) -> None:
    """Raise where ids of segments fall. All processes see the same."""
    if shards[0].segment is None:
        return
    count = torch.cat([shard.maps.count for shard in shards], 1)
    ids = torch.cat([torch.as_tensor(shard.segment) for shard in shards], 1)
    highest = torch.where(count > 0, ids, -torch.inf).cummax(1).values
    falls = (count > 0) & (ids < highest)
    if falls.any():
        row, place = falls.nonzero()[0].tolist()
        raise ValueError(
            f"segment falls along a row: {int(highest[row, place])} is followed by {int(ids[row, place])} in row {row}, in the "
            f"shard of rank {place // 2}. Number packed rows in the order in which they stand, over all shards"
        )
