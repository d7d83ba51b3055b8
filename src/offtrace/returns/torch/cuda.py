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
from contextvars import copy_context
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
from offtrace.traces.symbols import Traced

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 4):
    raise ImportError(
        f"offtrace's kernels need Triton 3.4, which comes with PyTorch 2.8, or later: this is {triton.__version__}"
    )

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
        slot = self.slot(shape, dtype)
        size = -(-_bytes(slot) // ALIGNED) * ALIGNED
        fits = [piece for piece in self.free if piece[1] - piece[0] >= size]
        if fits:
            begin, end = min(fits, key=lambda piece: piece[1] - piece[0])
            self.free.remove((begin, end))
            if end - begin > size:
                self.free.append((begin + size, end))
        else:
            begin = self.space
            self.space += size
        self.offsets[slot.place] = begin
        return slot

    def launch(
        self, kernel: triton.JITFunction, programs: int, read: Sequence[Any], numbers: Sequence[Any], written: Sequence[Any],
        **constants: Any,
    ) -> list[Slot]:  # fmt: skip
        """Note so many programs of a kernel; return what it writes."""
        outs = [w if isinstance(w, Slot) else self.empty(*w) for w in written]
        compiled_in = [constants.pop(name) for name in inspect.signature(kernel.fn).parameters if name in constants]
        self.launches.append((kernel, programs, [*read, *numbers, *outs, *compiled_in], constants))
        return outs

    def release(self, *arrays: Slot) -> None:
        """Let what is launched from now on have the memory of these, if it is of the workspace."""
        for array in arrays:
            if array.place in self.offsets:
                begin = self.offsets[array.place]
                self.free.append((begin, begin + -(-_bytes(array) // ALIGNED) * ALIGNED))

    def full(self, shape: tuple[int, ...], value: int) -> Slot:
        """Return an int32 array of one value."""
        size = math.prod(shape)
        (outs,) = self.launch(
            load.fill, triton.cdiv(size, plans.FILLED), [], [value, size], [(shape, "int32")], N=plans.FILLED, num_warps=4
        )  # fmt: skip
        return outs


def _bytes(array: Slot) -> int:
    return math.prod(array.shape) * DTYPES[array.dtype].itemsize


class Job(NamedTuple):
    """A launch: `kernel[grid](*arguments, **options)`."""

    kernel: triton.JITFunction
    grid: tuple[int]
    arguments: Sequence[Any]
    options: dict[str, Any]


class Plan:
    """The launches for arrays of some shape. It takes arrays, outputs and numbers, in the order of the planner's slots."""

    def __init__(self, planner: Planner) -> None:
        self.launches, self.space = planner.launches, planner.space
        self.between = [(planner.slots[place], offset) for place, offset in planner.offsets.items()]
        self.offsets = [offset for _, offset in self.between]
        given = [slot for slot in planner.slots if slot.place not in planner.offsets]
        index = {slot.place: i for i, slot in enumerate([*given, *(slot for slot, _ in self.between)])}
        self.known: list[Any] = []
        """What is the same at each call, after all slots."""
        self.picks: list[Callable[..., tuple[Any, ...]]] = []
        """Which of all these each kernel takes."""
        for _, _, arguments, _ in self.launches:
            first = len(index) + len(self.known)
            fixed = [a for a in arguments if not isinstance(a, Slot)]
            places = iter(range(first, first + len(fixed)))
            self.picks.append(itemgetter(*[index[a.place] if isinstance(a, Slot) else next(places) for a in arguments]))
            self.known += fixed
        self.compiled: list[tuple[Callable[..., object], Callable[..., tuple[Any, ...]]]] = []
        """What launches each kernel, and which arguments it takes; empty before the first call, and for Triton's interpreter."""

    def __call__(self, addresses: list[Any], numbers: Sequence[float], device: torch.device) -> None:
        """Launch everything for arrays at these addresses."""
        given = [*addresses, *numbers]
        if self.space:
            memory = torch.empty(self.space, dtype=torch.uint8, device=device)  # until the last launch
            begin = memory.data_ptr()
            given += [begin + offset for offset in self.offsets]
        given += self.known
        for run, pick in self.compiled:
            run(*pick(given))

    def first(self, arrays: Sequence[Tensor], numbers: Sequence[float]) -> None:
        """Compile everything, and launch it for these arrays."""
        jobs = self.jobs(arrays, numbers)
        if not isinstance(jobs[0].kernel, triton.JITFunction):  # Triton's interpreter
            for kernel, grid, arguments, options in jobs:
                kernel[grid](*arguments, **options)
            return
        compiled = copy_context().run(compile_jobs, jobs)  # what fails there leaves its mark on the context
        with ThreadPoolExecutor() as pool:
            runs = list(pool.map(_loaded, compiled, [job.grid for job in jobs], [arrays[0].device] * len(jobs)))
        for run, job in zip(runs, jobs, strict=True):
            run(*job.arguments)
        self.compiled = list(zip(runs, self.picks, strict=True))

    def jobs(self, arrays: Sequence[Tensor], numbers: Sequence[float]) -> list[Job]:
        """The launches as Triton takes them, with tensors."""
        memory = torch.empty(self.space, dtype=torch.uint8, device=arrays[0].device)
        between = [memory[offset : offset + _bytes(slot)].view(DTYPES[slot.dtype]) for slot, offset in self.between]
        bytes_for_flags = [a.view(torch.uint8) if a.dtype is torch.bool else a for a in arrays]
        given = [*bytes_for_flags, *numbers, *between, *self.known]
        launches = zip(self.launches, self.picks, strict=True)
        return [Job(kernel, (programs,), pick(given), options) for (kernel, programs, _, options), pick in launches]


def compile_jobs(jobs: Sequence[Job]) -> list[Any]:
    """Compile the kernels of a plan, side by side where Triton does that."""

    def compiled() -> list[Any]:
        return [kernel.warmup(*arguments, grid=grid, **options) for kernel, grid, arguments, options in jobs]

    if hasattr(triton, "AsyncCompileMode"):
        with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
            compiled()
    return compiled()


def _loaded(compiled: Any, grid: tuple[int], device: torch.device) -> Callable[..., object]:
    """What launches a compiled kernel. Triton builds it at this time, by a C compiler."""
    with torch.cuda.device(device):
        return compiled[(*grid, 1, 1)]


_plans: dict[object, Plan] = {}


def _plan(key: object, make: Callable[[Planner], object]) -> Plan:
    """A new plan, which is remembered under this key."""
    planner = Planner()
    make(planner)
    if len(_plans) >= REMEMBERED:
        del _plans[next(iter(_plans))]  # the oldest
    _plans[key] = Plan(planner)
    return _plans[key]


def launch(
    key: object, shape: tuple[int, int], arrays: list[Tensor], out: list[Tensor], numbers: Sequence[float],
    make: Callable[[Planner, int], object], at_once: int | None = None,
) -> None:  # fmt: skip
    """Go through the plan that is remembered under this key and shape, for so many rows after the other.

    Arrays of the outputs' shape come first; the others are passed whole, and only where all rows are done at once.
    """
    B, T = shape
    device = out[0].device
    if device.index is not None and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(key, shape, arrays, out, numbers, make, at_once)
        return
    every = [*arrays, *out]
    addresses = [a.data_ptr() for a in every]
    if any(map(VECTOR.__rmod__, addresses)) or not all(map(Tensor.is_contiguous, every)):
        every = [*map(_aligned, arrays), *out]
        addresses = [a.data_ptr() for a in every]
    rows = at_once or B
    for row in range(0, B, rows):
        rows = min(rows, B - row)
        there = (key, rows, T, row * T % VECTOR, out[0].dtype, device)
        plan = _plans.get(there) or _plan(there, lambda planner, rows=rows: make(planner, rows))
        if plan.compiled:
            places = (
                [p + row * T * a.element_size() for p, a in zip(addresses, every, strict=True)] if row else addresses
            )
            plan(places, numbers, device)
        else:
            plan.first(every if at_once is None else [a.view(-1, T)[row:] for a in every], numbers)


def _aligned(array: Tensor) -> Tensor:
    """The tensor in one piece, at an address for which kernels are compiled."""
    whole = array.contiguous()
    return whole if whole.data_ptr() % VECTOR == 0 else whole.clone()


@dataclass(frozen=True, eq=False)
class _Rule:
    """What kernels take of a trace."""

    lines: Traced
    """The rules of one plan have the same."""
    function: Any
    reads: int
    numbers: tuple[float, ...]
    """The parameters, share and ρ̄ (`load`); and λ, of a custom trace and of the advantage on state values."""


@lru_cache(1024)
def _rule(trace: Trace) -> _Rule:
    reads = sum(bit.value for name, bit in (("pi", load.PI), ("mu", load.MU), ("rho", load.RHO)) if name in trace.reads)
    custom = trace.step_form
    if custom is None:
        traced, parameters, lam = trace.traced, trace.parameters, trace.advantage_lam
        function = factors(traced.lines)
    else:
        traced, parameters, lam = custom.traced, custom.carries, custom.lam
        function = step(traced.lines)
    share = trace.target_share if trace.mixture else 1.0
    padded = [*parameters, *[0.0] * (MOST - len(parameters)), share, trace.delta_bound, lam]
    return _Rule(traced, function, reads, tuple(map(float, padded)))


@lru_cache(64)
def _bounds(lags: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(lags, dtype=torch.float64, device=device)


def takes(trace: Trace) -> bool:
    """Whether the rule goes into a kernel: numbers only, and few."""
    if not trace.hashable:
        return False
    if trace.step_form is not None:
        return len(trace.step_form.carries) <= MOST
    numbers = not trace.custom and all(isinstance(p, float | int) for p in trace.parameters)
    return numbers and len(trace.parameters) <= MOST


def correct(trace: Trace, x: dict[str, Any], lags: list[float] | None, *, add_q: bool | None) -> tuple[Tensor, ...]:
    """q + Δ or Δ; without `add_q` target, advantage and correction of state values. In the dtype and shape of the reward."""
    reward, gamma, rule, states = x["reward"], x["gamma"], _rule(trace), add_q is None
    out = [_empty(reward) for _ in range(3 if states else 1)]
    per_step, custom, padded = isinstance(gamma, Tensor), trace.step_form is not None, x["valid"] is not None
    T = reward.shape[-1]
    B = reward.numel() // T
    there = [name for name in NAMES if isinstance(x[name], Tensor)]
    arrays = [x[name] for name in there]
    reads = rule.reads | per_step * load.GAMMAS.value | padded * load.VALID.value | states * load.STATES.value
    how = (load.ADD_Q.value if add_q else 0) | padded * load.PADDED.value
    bounds = None if lags is None or custom else _bounds(tuple(lags), reward.device)
    pair = x["pair"] if "pair" in trace.reads else None
    others = [a for a in (pair, bounds) if a is not None]
    per_decision, recursive = trace.per_decision and bounds is None, trace.recursive
    at_once = None if per_decision or others or custom else rows_at_once(B, T, recursive)
    name = NAME_OF[reward.dtype]

    def make(planner: Planner, rows: int) -> None:
        slots = {name: planner.slot((rows, T)) for name in there}
        rest = [planner.slot() for _ in others]
        outs = [planner.slot((rows, T)) for _ in out]
        *numbers, lam = [planner.slot() for _ in range(len(rule.numbers) + 1)]
        given = [slots.get(name) or slots[INSTEAD[name]] for name in NAMES]
        kind = "float64" if name == "float64" else "float32"
        call = plans.Given(planner, given, kind if states else name, rule.function, reads, numbers, how)
        if per_decision and not custom:
            plans.without_cap(call, lam, outs)
            return
        delta = planner.empty((rows, T), kind) if states else outs[0]
        if custom:
            plans.by_steps(call, None if pair is None else rest[0], trace.horizon, lam, delta)
        elif bounds is not None:
            plans.walked(call, rest[-1], recursive, delta, reach=len(bounds) + 1)
        else:
            plans.with_cap(call, recursive, delta)
        if states:
            plans.state_results(call, delta, lam, outs)

    bounded = trace.horizon if custom else None if bounds is None else len(bounds)
    key = (rule.lines, reads, how, bounded, per_decision, recursive, None if pair is None else pair.dtype, *there)
    launch(key, (B, T), [*arrays, *others], out, (0.0 if per_step else gamma, *rule.numbers), make, at_once)
    return (*out[1:], out[0])  # kernels have the correction first


def _empty(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def rows_at_once(B: int, T: int, recursive: bool) -> int:
    """How many rows are done at once, so that the memory besides a batch is three arrays of it, or little more.

    All rows at once take 4.5 of them where they are only swept, 6 for a recursive cap and 12 for one at read-out. Smaller parts
    would cost more time than the memory is worth.
    """
    swept = T <= plans.NEAR
    parts = 2 if swept or recursive else 4
    least = 1 << 19 if swept or (recursive and plans.long(T)) else 1 << 20
    parts = max(1, min(parts, B * T // least))
    return max(1, min(-(-B // parts), AT_ONCE // T))


def given(
    delta: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, lags: Tensor | None, *, per_decision: bool, recursive: bool,
    transposed: bool = False,
) -> Tensor:  # fmt: skip
    """Δ from given δ, g, ratio and cap, [B, T]; if `transposed`, the gradient by δ from that by Δ instead of δ."""
    B, T = delta.shape
    reach = 0 if lags is None else len(lags)
    out = delta.clone(memory_format=torch.contiguous_format) if transposed else _empty(delta)

    def make(planner: Planner, rows: int) -> None:
        of_steps = [planner.slot((rows, T)) for _ in range(4)]
        bounds = planner.slot() if reach else None
        out_slot = planner.slot((rows, T))
        call = plans.of_factors(planner, of_steps, NAME_OF[delta.dtype])
        if transposed:
            plans.transposed(planner, of_steps, bounds, reach + 1, recursive, out_slot)
        elif bounds is not None:
            plans.walked(call, bounds, recursive, out_slot, reach=reach + 1)
        elif per_decision:
            plans.without_cap(call, 0.0, [out_slot])
        else:
            plans.with_cap(call, recursive, out_slot)

    arrays = [delta, g, ratio, cap, *([lags] if lags is not None and reach else [])]
    at_once = None if transposed or per_decision or reach else rows_at_once(B, max(1, T), recursive)
    if out.numel():
        launch(("given", reach, per_decision, recursive, transposed), (B, T), arrays, [out], (), make, at_once)
    return out
