"""Functions of jax whose own annotations name types that jax does not publish, with annotations that a strict check knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def asarray(values: ArrayLike | npt.ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return values as an array of jax, as `jax.numpy.asarray` does."""
    return jnp.asarray(values, dtype)


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an array of zeros, as `jax.numpy.zeros` does."""
    return jnp.zeros(shape, dtype)


def zeros_like(array: Array) -> Array:
    """Return zeros of the shape and dtype of an array, as `jax.numpy.zeros_like` does."""
    return jnp.zeros_like(array)


def pad(array: Array, before: int, after: int) -> Array:
    """Return a vector with so many zeros before and after it, as `jax.numpy.pad` does."""
    return jnp.pad(array, (before, after))


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function compiled, as `jax.jit` does."""
    return jax.jit(function)


def eval_shape(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the result's structure with shapes and dtypes in the place of arrays, as `jax.eval_shape` does."""
    return jax.eval_shape(function, *args, **kwargs)


def structure(tree: object) -> object:
    """Return the structure of a tree, which can be compared with others."""
    return jax.tree.structure(tree)


def with_leaves(tree: T, leaves: Sequence[np.ndarray]) -> T:
    """Return the tree with these arrays in the place of its leaves; `jax.numpy.asarray` would compile a copy for each shape."""
    return jax.tree.unflatten(jax.tree.structure(tree), jax.device_put(leaves))


def is_traced(values: object) -> bool:
    """Whether jit, vmap or grad look at this array, so that it has no values yet."""
    return isinstance(values, Tracer)
