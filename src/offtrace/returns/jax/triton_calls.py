"""Caps under JAX on an NVIDIA GPU, in rows of any length, by the Triton kernels that PyTorch has: jax-triton calls them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

if TYPE_CHECKING:
    import triton

    from offtrace.returns.triton import plans


@cache
def are_known() -> bool:
    """Tell whether there is a GPU here, and jax-triton."""
    if find_spec("jax_triton") is None or find_spec("triton") is None:
        return False
    try:
        return bool(jax.local_devices(backend="cuda"))
    except RuntimeError:
        return False


@cache
def _jax_triton() -> ModuleType:
    """Import jax-triton. It empties TRITON_CACHE_DIR, without which PyTorch's kernels no longer compile: that is put back."""
    before = os.environ.get("TRITON_CACHE_DIR")
    import jax_triton

    if before is None:
        os.environ.pop("TRITON_CACHE_DIR", None)
    else:
        os.environ["TRITON_CACHE_DIR"] = before
    return jax_triton


class Arrays:
    """JAX arrays, for `plans`."""

    def launch(
        self, kernel: triton.JITFunction, programs: int, read: Sequence[Array], numbers: Sequence[float],
        written: Sequence[plans.Written], **constants: object,
    ) -> list[Array]:  # fmt: skip
        """Launch so many programs of a kernel; return what it has written."""
        outs = [w if isinstance(w, Array) else jax.ShapeDtypeStruct(*w) for w in written]
        changed = {
            next(j for j, a in enumerate(read) if a is w): i for i, w in enumerate(written) if isinstance(w, Array)
        }
        values = [np.float32(n) if isinstance(n, float) else n for n in numbers]
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in outs]
        return self.call(kernel, programs, [*read], values, shapes, changed, constants)

    def call(
        self, kernel: triton.JITFunction, programs: int, read: list[Array], numbers: Sequence[np.float32 | float],
        outs: list[jax.ShapeDtypeStruct], changed: dict[int, int], constants: dict[str, object],
    ) -> list[Array]:  # fmt: skip
        """Call a kernel. What is `changed`, an array that it reads, becomes one that it makes."""
        return _jax_triton().triton_call(
            *read, *numbers, kernel=kernel, out_shape=outs, grid=(programs,), input_output_aliases=changed, **constants
        )

    def release(self, *arrays: Array) -> None:
        """Do nothing: XLA knows what is read no more."""

    def full(self, shape: tuple[int, ...], value: int) -> Array:
        """Return an int32 array of one value."""
        return jnp.full(shape, value, jnp.int32)


LIBRARY = Arrays()


def capped(delta: Array, g: Array, step: Array, cap: Array, *, recursive: bool, single: bool) -> Array:
    """Compute Δ [N, T] of arrays as in `kernels`; to float32 only, if `single`."""
    from offtrace.returns.triton import plans

    kind = jnp.float32 if single else jnp.float64
    ratio = jnp.pad(step[:, :-1], ((0, 0), (1, 0)), constant_values=1.0)
    delta, cap = delta.astype(kind), cap.astype(kind)  # products of ratios would not keep their digits
    call = plans.of_factors(LIBRARY, (delta, g, ratio, cap), np.dtype(kind).name)
    return plans.with_cap(call, recursive).astype(jnp.float64)
