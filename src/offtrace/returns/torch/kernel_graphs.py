"""Compiled kernels that are launched together, as one CUDA graph whose arguments are set anew each time.

To launch a kernel takes the driver of an H200 about ten microseconds. To launch a graph of ten kernels takes it two, and to set
the arguments of a kernel in it less than one. This is the driver's own interface, called by ctypes: PyTorch's graphs cannot be
given other arguments. Where a driver or a Triton is not as it is written here, there is no graph, and kernels are launched one by
one.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

POINTER = "Q"
CODES = {"i32": "i", "i64": "q", "fp32": "f", "fp64": "d"}
"""The types of arguments as Triton calls them and as `struct` does."""
BUFFER, SIZE, END = 1, 2, 0
"""What the entries that follow in `extra` are: where the arguments are, how many bytes, nothing."""


class Kernel(NamedTuple):
    """A compiled kernel, and how many programs of it are launched."""

    function: int
    programs: int
    threads: int
    shared_memory: int
    arguments: struct.Struct
    """How they are laid out, with those that Triton adds at the end."""
    taken: tuple[int, ...]
    """Which of the arguments in the source it takes: others were compiled in."""
    added: int
    """How many Triton adds: addresses of memory that our kernels do not use."""


class _NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("x", "y", "z", "threads_x", "threads_y", "threads_z", "shared_memory")),
        *((name, ctypes.c_void_p) for name in ("parameters", "extra", "kernel", "context")),
    )


@cache
def _driver() -> Any:
    """The driver, if it has what is needed. Its calls are short: Python waits for them."""
    try:
        driver = ctypes.PyDLL("libcuda.so.1")
        for name in ("FuncGetParamInfo", "GraphAddKernelNode_v2", "GraphExecKernelNodeSetParams_v2"):
            getattr(driver, f"cu{name}")
    except (OSError, AttributeError):
        return None
    return driver


def layout(types: Sequence[str], added: int) -> struct.Struct | None:
    """How arguments of these types lie in memory, and so many addresses after them; None if a type is not known."""
    codes = [POINTER if str(kind).startswith("*") else CODES.get(kind) for kind in types]
    known = [code for code in codes if code is not None]
    return struct.Struct("@" + "".join(known) + POINTER * added) if len(known) == len(codes) else None


def places(arguments: struct.Struct) -> list[tuple[int, int]]:
    """The offset and the size of each argument."""
    codes, found = arguments.format.removeprefix("@"), list[tuple[int, int]]()
    for i, code in enumerate(codes, 1):
        size = struct.calcsize(code)
        found.append((struct.calcsize("@" + codes[:i]) - size, size))
    return found


def _places_by_driver(function: int) -> list[tuple[int, int]]:
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    found = list[tuple[int, int]]()
    while not _driver().cuFuncGetParamInfo(
        ctypes.c_void_p(function), ctypes.c_size_t(len(found)), ctypes.byref(offset), ctypes.byref(size)
    ):
        found.append((offset.value, size.value))
    return found


def kernel(compiled: Any, programs: int) -> Kernel | None:
    """What a graph must know of a kernel that Triton has compiled; None if it is launched in another way than is known here."""
    about: Any = getattr(compiled, "metadata", None)
    types = [*getattr(getattr(compiled, "src", None), "signature", {}).values()]
    unusual = (
        "launch_cooperative_grid",
        "launch_pdl",
        "global_scratch_size",
        "profile_scratch_size",
        "tensordesc_meta",
    )
    if _driver() is None or about is None or not types:
        return None
    if getattr(about, "num_ctas", 1) != 1 or any(getattr(about, name, None) for name in unusual):
        return None
    taken = tuple(i for i, kind in enumerate(types) if kind != "constexpr")
    by_driver = _places_by_driver(compiled.function)
    added = len(by_driver) - len(taken)
    arguments = layout([types[i] for i in taken], max(added, 0))
    if arguments is None or places(arguments) != by_driver:
        return None
    return Kernel(compiled.function, programs, 32 * about.num_warps, about.shared, arguments, taken, added)


class KernelGraph:
    """Kernels that are launched one after the other."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        driver, self.graph, self.ready = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
        errors = [driver.cuGraphCreate(ctypes.byref(self.graph), 0)]
        self.nodes: list[tuple[Callable[..., None], ctypes.Array[ctypes.c_char], ctypes.c_void_p, object]] = []
        self.kept: list[object] = []
        """What the driver is given the addresses of."""
        self.lock, before = Lock(), None
        for one in kernels:
            memory = ctypes.create_string_buffer(one.arguments.size)
            size = ctypes.c_size_t(one.arguments.size)
            extra = (ctypes.c_void_p * 5)(BUFFER, ctypes.addressof(memory), SIZE, ctypes.addressof(size), END)
            about = _NodeParameters(
                one.function, one.programs, 1, 1, one.threads, 1, 1, one.shared_memory, None, ctypes.addressof(extra), None, None
            )  # fmt: skip
            node, previous = ctypes.c_void_p(), None if before is None else ctypes.byref(before)
            add = driver.cuGraphAddKernelNode_v2
            count = ctypes.c_size_t(before is not None)
            errors.append(add(ctypes.byref(node), self.graph, previous, count, ctypes.byref(about)))
            self.nodes.append((one.arguments.pack_into, memory, node, ctypes.byref(about)))
            self.kept += [size, extra, about]
            before = node
        errors.append(driver.cuGraphInstantiateWithFlags(ctypes.byref(self.ready), self.graph, ctypes.c_ulonglong(0)))
        self.works = not any(errors)
        """Whether the driver took it."""
        weakref.finalize(self, _destroy, self.graph, self.ready).atexit = False  # the driver may have ended before

    def launch(self, arguments: Sequence[Sequence[float]], stream: int) -> None:
        """Launch the kernels with these arguments each, in a stream."""
        driver, error = _driver(), 0
        with self.lock:  # another thread would set the arguments of the same graph
            for (pack, memory, node, about), given in zip(self.nodes, arguments, strict=True):
                pack(memory, 0, *given)
                error = error or driver.cuGraphExecKernelNodeSetParams_v2(self.ready, node, about)
            error = error or driver.cuGraphLaunch(self.ready, ctypes.c_void_p(stream))
        if error:
            raise RuntimeError(
                f"the driver did not launch a CUDA graph of {len(self.nodes)} kernels: its error is {error}"
            )


def _destroy(graph: ctypes.c_void_p, ready: ctypes.c_void_p) -> None:
    _driver().cuGraphExecDestroy(ready)
    _driver().cuGraphDestroy(graph)
