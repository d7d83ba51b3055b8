"""Launches of Triton kernels, recorded once and repeated with other tensors and numbers.

To launch a kernel takes Triton's own Python tens of microseconds: it finds out types, alignment and constants of each argument,
and with them the compiled kernel. All of these are the same whenever shapes, dtypes and alignment are. So the first call with
some such is recorded: which compiled kernels were launched, with which arguments, and what memory was allocated between. A call
after it allocates that memory in one piece and launches the same kernels at the new addresses.

What may be done while a call is recorded: allocate by `torch.empty` and its like, take views, and launch kernels that were
passed through `recorded`. Another operation of PyTorch's makes the call one that is not repeated. A kernel that was not passed
through `recorded` would be left out of the repetition: all that `triton_launch.correct` launches must be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import driver

if TYPE_CHECKING:
    from torch._ops import OpOverload

ALIGNED = 512  # bytes: as PyTorch aligns what it allocates on a GPU
EMPTY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty")
REPEATS = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 4)
"""Whether a compiled kernel takes all its arguments, with those that were compiled in: before, it took the others only."""

_mine = threading.local()


class Recorded:
    """A kernel whose launches are noted while a call is recorded."""

    def __init__(self, kernel: triton.JITFunction) -> None:
        self.kernel = kernel

    def __getitem__(self, programs: tuple[int]) -> Callable[..., object]:
        recorder = getattr(_mine, "recorder", None)
        if recorder is None:
            return self.kernel[programs]
        return lambda *given, **flags: recorder.launch(self.kernel, programs, given, flags)


def recorded(kernel: triton.JITFunction) -> Recorded:
    """The kernel, which is launched as before: `kernel[(n,)](…)`."""
    return Recorded(kernel)


class _Place(NamedTuple):
    """A tensor among the arguments of a launch."""

    argument: int
    """Its place among them."""
    source: int
    """The number of an input; after these the output, and then the memory in between."""
    offset: int
    """Bytes from there."""
    like: tuple[torch.dtype, torch.Size, tuple[int, ...]]


class _Launch(NamedTuple):
    run: Callable[..., object]
    """What launches the compiled kernel; or Triton's interpreter of it."""
    programs: tuple[int, ...]
    about: tuple[object, ...] | None
    """What it takes beside the arguments: the function, its metadata, and that nobody watches; None for the interpreter."""
    given: tuple[object, ...]
    flags: dict[str, object]
    """What was given by name, for the interpreter."""
    tensors: tuple[_Place, ...]
    numbers: tuple[tuple[int, int], ...]
    """The places of numbers among the arguments, and which these are."""


@dataclass(frozen=True, eq=False)
class Repeated:
    """A recorded call."""

    launches: tuple[_Launch, ...]
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    space: int
    """Bytes that are needed in between."""

    def __call__(self, inputs: Sequence[Tensor], numbers: Sequence[float]) -> Tensor:
        """Repeat the recorded call with other tensors and numbers."""
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        sources = [*inputs, out]
        if self.space:
            sources.append(torch.empty(self.space, dtype=torch.uint8, device=self.device))
        addresses = [tensor.data_ptr() for tensor in sources]
        gpu: Any = driver.active if self.device.type == "cuda" else None
        stream = None if gpu is None else gpu.get_current_stream(self.device.index)
        for run, programs, about, known, flags, tensors, places in self.launches:
            given = list(known)
            for index, which in places:
                given[index] = numbers[which]
            if about is None:
                for place in tensors:
                    given[place.argument] = _tensor_at(sources[place.source], place)
                run(*given, **flags)
            else:
                for index, source, offset, _ in tensors:
                    given[index] = addresses[source] + offset
                run(*programs, stream, *about, *given)
        return out


def _tensor_at(source: Tensor, place: _Place) -> Tensor:
    """The tensor at a place, which Triton's interpreter wants instead of an address."""
    dtype, shape, strides = place.like
    first = source.storage_offset() * source.element_size() + place.offset
    return torch.empty(0, dtype=dtype, device=source.device).set_(
        source.untyped_storage(), first // dtype.itemsize, shape, strides
    )


class _Recorder(TorchDispatchMode):
    """Watches one call, in this thread."""

    def __init__(self, inputs: Sequence[Tensor], numbers: Sequence[float]) -> None:
        super().__init__()
        self.inputs = {id(tensor): i for i, tensor in enumerate(inputs)}
        storages = [tensor.untyped_storage().data_ptr() for tensor in inputs]
        self.parts = {s: (i, inputs[i].data_ptr()) for i, s in enumerate(storages) if storages.count(s) == 1}
        """By the address of its memory: an input of which parts may be taken, and where it begins."""
        self.of_number = {id(number): i for i, number in enumerate(numbers)}
        self.made: dict[int, Tensor] = {}
        """What was allocated, by the address of its memory."""
        self.launches: list[_Launch] = []
        self.known, self.launching = True, False

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if self.launching or func.is_view:
            return out
        if name in EMPTY:
            self.made[out.untyped_storage().data_ptr()] = out
        else:
            self.known = False
        return out

    def launch(
        self, kernel: triton.JITFunction, programs: tuple[int], given: tuple[object, ...], flags: dict[str, object]
    ) -> None:
        """Launch a kernel, and note how."""
        seen: dict[str, object] = {}

        def grid_of(bound: dict[str, object]) -> tuple[int]:
            seen.update(bound)
            return programs

        self.launching = True
        try:
            compiled = kernel[grid_of](*given, **flags)
        finally:
            self.launching = False
        if compiled is None:  # the interpreter
            self.launches.append(_Launch(kernel[programs], programs, None, given, flags, (), ()))
            return
        # As `compiled[programs](…)` does it, without looking for the stream and for whoever watches launches, each time.
        about = getattr(compiled, "function", None), getattr(compiled, "packed_metadata", None), None, None, None
        if about[0] is None or about[1] is None or not hasattr(compiled, "run"):  # another Triton
            self.known = False
        else:
            self.launches.append(_Launch(compiled.run, (*programs, 1, 1), about, tuple(seen.values()), {}, (), ()))

    def repeated(self, out: Tensor) -> Repeated | None:
        """The call that made `out`, if it can be repeated."""
        of_out = out.untyped_storage().data_ptr()
        whole = out.is_contiguous() and out.data_ptr() == of_out and of_out in self.made
        if not (self.known and whole):
            return None
        offsets, space = {of_out: 0}, 0
        for address, tensor in self.made.items():
            if address == of_out:
                continue
            size = tensor.untyped_storage().nbytes()
            offsets[address] = space
            space += -(-size // ALIGNED) * ALIGNED
        launches: list[_Launch] = []
        for launch in self.launches:
            arguments = list(enumerate(launch.given))
            tensors = [self._place(i, one, of_out, offsets) for i, one in arguments if isinstance(one, Tensor)]
            there = tuple(place for place in tensors if place is not None)
            if len(there) < len(tensors):
                return None
            numbers = tuple((i, self.of_number[id(one)]) for i, one in arguments if id(one) in self.of_number)
            kept = tuple(None if isinstance(one, Tensor) else one for one in launch.given)
            launches.append(launch._replace(given=kept, tensors=there, numbers=numbers))
        return Repeated(tuple(launches), out.shape, out.dtype, out.device, space)

    def _place(self, argument: int, tensor: Tensor, of_out: int, offsets: dict[int, int]) -> _Place | None:
        like = tensor.dtype, tensor.shape, tensor.stride()
        if id(tensor) in self.inputs:
            return _Place(argument, self.inputs[id(tensor)], 0, like)
        address = tensor.untyped_storage().data_ptr()
        if address in self.parts:
            source, first = self.parts[address]
            return _Place(argument, source, tensor.data_ptr() - first, like)
        if address not in offsets:
            return None
        source = len(self.inputs) + (address != of_out)
        return _Place(argument, source, offsets[address] + tensor.data_ptr() - address, like)


def record(
    call: Callable[[list[float]], Tensor], inputs: Sequence[Tensor], numbers: Sequence[float]
) -> tuple[Tensor, Repeated | None]:
    """What a call gives, and how to repeat it, if it can be.

    It is called with the numbers, and must pass `inputs` to kernels as these very objects.
    """
    told_apart = [number * 1.0 for number in numbers]  # objects of their own, so that each is known again
    if not REPEATS or torch.version.hip is not None or getattr(_mine, "recorder", None) is not None:
        return call(told_apart), None
    recorder = _mine.recorder = _Recorder(inputs, told_apart)
    try:
        with recorder:
            out = call(told_apart)
    finally:
        _mine.recorder = None
    return out, recorder.repeated(out)
