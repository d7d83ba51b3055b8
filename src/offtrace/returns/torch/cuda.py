"""Returns of tensors on a GPU by Triton kernels: `triton.plans` says which, and here they are launched.

What is launched for arrays of some shape is planned once, without any array: a `Plan` is a list of launches, whose arguments are
places in a list of addresses and numbers. A call fills in this list and goes through the launches.

To launch a kernel by its JITFunction takes tens of microseconds, in which Triton finds out types, alignment and constants of all
arguments. They are the same for all calls of a plan: so it keeps what was compiled, which takes some microseconds.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from offtrace.returns.triton import load, plans
from offtrace.returns.triton.rule_source import MOST, factors, step
from offtrace.traces import Trace

DTYPES = {
    "int32": torch.int32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
NAME_OF = {dtype: name for name, dtype in DTYPES.items()}
ALIGNED = 512  # bytes: as PyTorch aligns what it allocates on a GPU
VECTOR = 16  # bytes: how arrays must be aligned, since kernels are compiled for this
AT_ONCE = 1 << 22  # steps that are done at once, at most
REMEMBERED = 256  # plans

NAMES = ("reward", "q", "next_value", "terminated", "truncated", "valid", "gamma", "log_pi", "log_mu")
"""The arrays of a call, as kernels take them: None, or for gamma a number, where there is no tensor."""
INSTEAD = {"valid": "terminated", "gamma": "reward", "log_pi": "reward", "log_mu": "reward"}
"""What is passed where there is none, and not read."""


@dataclass(frozen=True, eq=False)
class Slot:
    """A place in the list of what launches take."""

    place: int
    shape: tuple[int, ...] = ()
    dtype: str = ""


class Planner:
    """Notes what is launched, and where in a workspace the memory in between is (`plans.Library`)."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.launches: list[tuple[triton.JITFunction, int, list[Any], dict[str, Any]]] = []
        self.offsets: dict[int, int] = {}
        """Where each array in between begins in the workspace, in bytes, by its slot."""
        self.free: list[tuple[int, int]] = []
        """Pieces of it that can be had again: where they begin and end."""
        self.space = 0

    def slot(self, shape: tuple[int, ...] = (), dtype: str = "") -> Slot:
        """Return a new slot: of an array, or of a number, which has no shape."""
        self.slots.append(Slot(len(self.slots), shape, dtype))
        return self.slots[-1]

    def empty(self, shape: tuple[int, ...], dtype: str) -> Slot:
        """Return a slot with memory of the workspace: the smallest free piece that holds it, or else more at its end."""
        made = self.slot(shape, dtype)
        size = -(-_bytes(made) // ALIGNED) * ALIGNED
        fits = [piece for piece in self.free if piece[1] - piece[0] >= size]
        if fits:
            begin, end = min(fits, key=lambda piece: piece[1] - piece[0])
            self.free.remove((begin, end))
            if end - begin > size:
                self.free.append((begin + size, end))
        else:
            begin = self.space
            self.space += size
        self.offsets[made.place] = begin
        return made

    def launch(
        self, kernel: triton.JITFunction, programs: int, read: Sequence[Any], numbers: Sequence[Any], written: Sequence[Any],
        **constants: Any,
    ) -> list[Slot]:  # fmt: skip
        """Note so many programs of a kernel; return what it writes."""
        made = [w if isinstance(w, Slot) else self.empty(*w) for w in written]
        self.launches.append((kernel, programs, [*read, *numbers, *made], constants))
        return made

    def release(self, *arrays: Slot) -> None:
        """Let what is launched from now on have the memory of these, if it is of the workspace."""
        for array in arrays:
            if array.place in self.offsets:
                begin = self.offsets[array.place]
                self.free.append((begin, begin + -(-_bytes(array) // ALIGNED) * ALIGNED))

    def full(self, shape: tuple[int, ...], value: int) -> Slot:
        """Return an int32 array of one value."""
        size = math.prod(shape)
        (made,) = self.launch(
            load.fill, triton.cdiv(size, plans.FILLED), [], [value, size], [(shape, "int32")], N=plans.FILLED, num_warps=4
        )  # fmt: skip
        return made


def _bytes(array: Slot) -> int:
    return math.prod(array.shape) * DTYPES[array.dtype].itemsize


class Job(NamedTuple):
    """A launch: `kernel[grid](*arguments, **constants)`."""

    kernel: triton.JITFunction
    grid: tuple[int]
    arguments: Sequence[Any]
    constants: dict[str, Any]


class Plan:
    """The launches for arrays of some shape. It takes arrays, numbers and outputs, in the order of the planner's slots."""

    def __init__(self, planner: Planner) -> None:
        self.launches, self.space = planner.launches, planner.space
        self.between = [(planner.slots[index], offset) for index, offset in planner.offsets.items()]
        self.offsets = [offset for _, offset in self.between]
        order = [slot for slot in planner.slots if slot.place not in planner.offsets]
        index = {slot.place: i for i, slot in enumerate([*order, *(slot for slot, _ in self.between)])}
        self.known: list[Any] = []
        """What is the same at each call, after all slots."""
        picked = [
            [index[a.place] if isinstance(a, Slot) else self._keep(len(index), a) for a in arguments]
            for _, _, arguments, _ in self.launches
        ]
        self.picks = [itemgetter(*indices) for indices in picked]
        for (kernel, _, _, constants), indices in zip(self.launches, picked, strict=True):
            names = [name for name in inspect.signature(kernel.fn).parameters if name in constants]
            indices += [self._keep(len(index), constants[name]) for name in names]
        self.full_picks = [itemgetter(*indices) for indices in picked]
        self.compiled: list[Callable[..., object]] | None = None

    def _keep(self, slots: int, value: Any) -> int:
        self.known.append(value)
        return slots + len(self.known) - 1

    def __call__(self, arrays: Sequence[Tensor], numbers: Sequence[float], out: Sequence[Tensor], row: int = 0) -> None:
        """Launch everything for the arrays from some row on."""
        memory = torch.empty(self.space, dtype=torch.uint8, device=out[0].device)
        if self.compiled is None:  # Triton's interpreter always goes here
            jobs = self.jobs(arrays, numbers, out, row, memory)
            compile_together(jobs)
            made = [(kernel[grid](*given, **constants), grid) for kernel, grid, given, constants in jobs]
            if all(compiled is not None for compiled, _ in made):
                self.compiled = [compiled[(*grid, 1, 1)] for compiled, grid in made]
            return
        begin = memory.data_ptr()
        places = [_address(a, row) for a in (*arrays, *out)]
        n = len(arrays)
        given = [*places[:n], *numbers, *places[n:], *[begin + offset for offset in self.offsets], *self.known]
        for run, pick in zip(self.compiled, self.full_picks, strict=True):
            run(*pick(given))

    def jobs(
        self, arrays: Sequence[Tensor], numbers: Sequence[float], out: Sequence[Tensor], row: int, memory: Tensor
    ) -> list[Job]:
        """The launches as Triton takes them, with tensors."""
        between = [memory[offset : offset + _bytes(slot)].view(DTYPES[slot.dtype]) for slot, offset in self.between]
        given = [*(a[row:] for a in arrays), *numbers, *(a[row:] for a in out), *between, *self.known]
        launches = zip(self.launches, self.picks, strict=True)
        return [Job(kernel, (programs,), pick(given), constants) for (kernel, programs, _, constants), pick in launches]


def compile_together(jobs: Sequence[Job]) -> None:
    """Compile the kernels of a plan side by side."""
    if isinstance(jobs[0].kernel, triton.JITFunction) and hasattr(triton, "AsyncCompileMode"):
        with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
            for kernel, grid, arguments, constants in jobs:
                kernel.warmup(*arguments, grid=grid, **constants)


def _address(array: Tensor, row: int) -> int:
    return array.data_ptr() + row * array.shape[-1] * array.element_size() if row else array.data_ptr()


_plans: dict[object, Plan] = {}


def _plan(key: object, make: Callable[[Planner], object]) -> Plan:
    """The plan that is remembered under this key, or a new one."""
    found = _plans.get(key)
    if found is None:
        planner = Planner()
        make(planner)
        if len(_plans) >= REMEMBERED:
            del _plans[next(iter(_plans))]  # the oldest
        found = _plans[key] = Plan(planner)
    return found


class _Rule(NamedTuple):
    """What kernels take of a trace."""

    function: Any
    reads: int
    numbers: tuple[float, ...]
    """The parameters, share and ρ̄ (`load`)."""
    lam: float
    """Of a custom trace, and of the advantage on state values."""


@lru_cache(1024)
def _rule(trace: Trace) -> _Rule:
    reads = sum(bit.value for name, bit in (("pi", load.PI), ("mu", load.MU), ("rho", load.RHO)) if name in trace.reads)
    custom = trace.step_form
    if custom is None:
        function, parameters, lam = factors(trace.traced.lines), trace.parameters, trace.advantage_lam
    else:
        function, parameters, lam = step(custom.traced.lines), custom.carries, custom.lam
    share = trace.target_share if trace.mixture else 1.0
    padded = [*map(float, parameters), *[0.0] * (MOST - len(parameters))]
    return _Rule(function, reads, (*padded, float(share), float(trace.delta_bound)), float(lam))


@lru_cache(64)
def _bounds(lags: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(lags, dtype=torch.float64, device=device)


def takes(trace: Trace) -> bool:
    """Whether the rule goes into a kernel: numbers only, and few."""
    if trace.step_form is not None:
        return len(trace.step_form.carries) <= MOST
    return (
        not trace.custom and len(trace.parameters) <= MOST and all(isinstance(p, float | int) for p in trace.parameters)
    )


def in_rows(array: Tensor, T: int) -> Tensor:
    """The tensor as [B, T] in one piece, aligned; flags as bytes."""
    rows = array if array.dim() == 2 and array.is_contiguous() else array.reshape(-1, T).contiguous()
    rows = rows if rows.data_ptr() % VECTOR == 0 else rows.clone()
    return rows.view(torch.uint8) if rows.dtype is torch.bool else rows


def correct(trace: Trace, x: dict[str, Any], lags: list[float] | None, *, add_q: bool) -> Tensor:
    """Δ, or q + Δ, in the dtype and shape of the reward."""
    out = torch.empty_like(x["reward"], memory_format=torch.contiguous_format)
    _run(trace, x, lags, load.ADD_Q.value if add_q else 0, [out])
    return out


def correct_states(trace: Trace, x: dict[str, Any], lags: list[float] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Target, advantage and correction of state values, which are given as q."""
    like = x["reward"]
    target, advantage, correction = (torch.empty_like(like, memory_format=torch.contiguous_format) for _ in range(3))
    _run(trace, x, lags, 0, [target, advantage, correction])
    return target, advantage, correction


def _run(trace: Trace, x: dict[str, Any], lags: list[float] | None, how: int, out: list[Tensor]) -> None:
    """Compute Δ, or the three results of state values, into `out`."""
    reward, rule, states = x["reward"], _rule(trace), len(out) > 1
    T = reward.shape[-1]
    B = reward.numel() // T if T else 0
    if not B:
        return
    per_step, custom, pair = isinstance(x["gamma"], Tensor), trace.step_form is not None, x.get("pair")
    pair = pair if "pair" in trace.reads else None
    arrays = [in_rows(x[n] if isinstance(x[n], Tensor) else x[INSTEAD[n]], T) for n in NAMES]
    reads = rule.reads
    for there, bit in ((per_step, load.GAMMAS), (x["valid"] is not None, load.VALID), (states, load.STATES)):
        reads |= bit.value if there else 0
    how |= load.PADDED.value if x["valid"] is not None else 0
    bounds = None if lags is None or custom else _bounds(tuple(lags), reward.device)
    others = [a for a in (None if pair is None else in_rows(pair, T), bounds) if a is not None]
    per_decision = trace.per_decision and bounds is None
    at_once = B if per_decision or custom or bounds is not None else rows_at_once(B, T, trace.recursive)
    numbers = (0.0 if per_step else float(x["gamma"]), *rule.numbers, rule.lam)
    name = NAME_OF[reward.dtype]

    def make(planner: Planner, rows: int) -> None:
        given = [planner.slot((rows, T)) for _ in NAMES]
        rest = [planner.slot() for _ in others]
        *values, lam = [planner.slot() for _ in numbers]
        made = [planner.slot((rows, T)) for _ in out]
        kind = "float64" if name == "float64" else "float32"
        found = planner.empty((rows, T), kind) if states else made[0]
        call = plans.Given(planner, given, kind if states else name, rule.function, reads, values, how)
        if custom:
            plans.by_steps(call, None if pair is None else rest[0], trace.horizon, lam, found)
        elif bounds is not None:
            plans.by_lag(call, rest[-1], len(bounds) + 1, trace.recursive, found)
        elif per_decision:
            plans.without_cap(call, found)
        else:
            plans.with_cap(call, trace.recursive, found)
        if states:
            plans.state_results(call, found, lam, made)

    key = (
        rule.function, reads, how, trace.horizon if custom else None if bounds is None else len(bounds), per_decision,
        trace.recursive, pair is None or pair.dtype,
    )  # fmt: skip
    launch(key, [*arrays, *others], numbers, out, make, at_once)


def launch(
    key: object, arrays: list[Tensor], numbers: Sequence[float], out: list[Tensor], make: Callable[[Planner, int], object],
    at_once: int,
) -> None:  # fmt: skip
    """Go through the plan that is remembered under this key and what the arrays are, for so many rows after the other."""
    B, T = arrays[0].shape
    about = key, T, arrays[0].dtype, arrays[0].device
    out = [a.view(-1, T) for a in out]
    with torch.cuda.device(arrays[0].get_device()):
        for row in range(0, B, at_once):
            rows = min(at_once, B - row)
            plan = _plan((about, rows, row * T % VECTOR), lambda planner, rows=rows: make(planner, rows))
            plan(arrays, numbers, out, row)


def rows_at_once(B: int, T: int, recursive: bool) -> int:
    """How many rows are done at once, so that the memory beside a batch is three arrays of it, or little more.

    All rows at once take 4.5 of them where they are only swept, 6 for a recursive cap and 12 for one at read-out. Smaller parts
    would cost more time than the memory is worth.
    """
    swept = T <= plans.NEAR
    parts = 2 if swept or recursive else 4
    least = 1 << 19 if swept or (recursive and plans.long(T)) else 1 << 20
    parts = max(1, min(parts, B * T // least))
    return max(1, min(triton.cdiv(B, parts), AT_ONCE // T))


def given(
    delta: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, lags: Tensor | None, *, per_decision: bool, recursive: bool
) -> Tensor:
    """Δ from given δ, g, ratio and cap."""
    out = torch.empty_like(delta, memory_format=torch.contiguous_format)
    bounds = [] if lags is None or not len(lags) else [lags]
    if not delta.numel():
        return out
    B, T = delta.shape

    def make(planner: Planner, rows: int) -> None:
        of_steps = [planner.slot((rows, T)) for _ in range(4)]
        given_lags = [planner.slot() for _ in bounds]
        made = planner.slot((rows, T))
        call = plans.of_factors(planner, of_steps, NAME_OF[delta.dtype])
        if bounds:
            plans.by_lag(call, given_lags[0], len(bounds[0]) + 1, recursive, made)
        elif per_decision:
            plans.without_cap(call, made)
        else:
            plans.with_cap(call, recursive, made)

    key = "given", len(bounds[0]) if bounds else 0, per_decision, recursive
    at_once = B if per_decision or bounds else rows_at_once(B, T, recursive)
    launch(key, [*(in_rows(a, T) for a in (delta, g, ratio, cap)), *bounds], (), [out], make, at_once)
    return out


def transpose(gradient: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, lags: Tensor, recursive: bool) -> Tensor:
    """e, the gradient by δ."""
    out = gradient.clone(memory_format=torch.contiguous_format)
    bounds = [lags] if len(lags) else []
    if not out.numel():
        return out
    B, T = gradient.shape

    def make(planner: Planner, rows: int) -> None:
        of_steps = [planner.slot((rows, T)) for _ in range(4)]
        given_lags = [planner.slot() for _ in bounds]
        bounds_given = given_lags[0] if bounds else None
        plans.transposed(planner, of_steps, bounds_given, len(lags) + 1, recursive, planner.slot((rows, T)))

    arrays = [*(in_rows(a, T) for a in (gradient, g, ratio, cap)), *bounds]
    launch(("transposed", len(lags), recursive), arrays, (), [out], make, B)
    return out
