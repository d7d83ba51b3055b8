"""Which kind of array came in, and so which backend computes. All arguments decide, and a mixture is refused.

A type is recognised by the name of its package, since a NumPy array must not cost an import of the others. A backend is imported
when the first array of its kind comes; `register` adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from offtrace.arrays import Array, is_number
from offtrace.returns.backend import Backend
from offtrace.returns.numpy import backend as numpy_backend

Loader = Callable[[], Backend[Any]]


def _load_numpy() -> Backend[Any]:
    return numpy_backend.BACKEND


def _load_torch() -> Backend[Any]:
    from offtrace.returns.torch.backend import BACKEND

    return BACKEND


def _load_jax() -> Backend[Any]:
    from offtrace.returns.jax.backend import BACKEND

    return BACKEND


_loaders: dict[str, Loader] = {"torch": _load_torch, "jax": _load_jax, "jaxlib": _load_jax}
_by_type: dict[type, Loader] = {}  # not functools.cache: torch.compile looks into this


def register(package: str, load: Loader) -> None:
    """Let arrays whose class is defined in a package be computed with by the backend that `load` gives."""
    _loaders[package] = load
    _by_type.clear()


def backend_of(arrays: Mapping[str, Array | float | None], differentiable: bool = False) -> Backend[Array]:
    """The one backend for all arrays, which may be lists where they are NumPy's.

    None and a number instead of gamma are of no kind.
    """
    kinds: dict[Loader, str] = {}  # from a kind to the first argument that is of it
    for name, array in arrays.items():
        if array is None or (name == "gamma" and is_number(array)):
            continue
        kind = _load_numpy
        if type(array) is not np.ndarray:
            kind = _loader(type(array))
            if getattr(array, "is_nested", False):
                kind().array(name, array)  # says that a nested tensor must be padded
            if isinstance(array, list | tuple):
                _refuse_tensors(name, array)
        if kind not in kinds:
            kinds[kind] = name
    if len(kinds) > 1:
        _refuse(kinds, arrays)
    backend = next(iter(kinds), _load_numpy)()
    if differentiable and not backend.differentiates:
        raise TypeError("differentiable=True needs PyTorch tensors or JAX arrays: NumPy has no gradients")
    return backend


def as_numpy(arrays: Mapping[str, Array | float | None]) -> dict[str, Any]:
    """Arrays of any one kind as NumPy arrays, without gradient. None and numbers stay."""
    return backend_of(arrays).all_as_numpy(arrays)


def _refuse_tensors(name: str, rows: list[Any] | tuple[Any, ...]) -> None:
    """An error where a list holds tensors or JAX arrays: NumPy would turn them into one NumPy array."""
    first: Any = rows
    while isinstance(first, list | tuple) and first:
        first = first[0]
    load = _loader(type(first))
    if load is not _load_numpy:
        backend = load()
        stack = "torch.stack" if backend.word == "tensor" else "jnp.stack"
        raise TypeError(
            f"{name} is a {type(rows).__name__} of {backend.word}s: stack them, e.g. by {stack}, or pad rows of unequal "
            "length and mark the padding"
        )


def _loader(of: type) -> Loader:
    if of not in _by_type:
        packages = (base.__module__.partition(".")[0] for base in of.__mro__)  # a subclass may come from any package
        _by_type[of] = next((_loaders[package] for package in packages if package in _loaders), _load_numpy)
    return _by_type[of]


def _refuse(kinds: dict[Loader, str], arrays: Mapping[str, object]) -> NoReturn:
    """Say which argument is odd: one that is not of the kind that is registered first."""
    kind = next(load for load in (*_loaders.values(), _load_numpy) if load in kinds)
    odd = next(name for other, name in kinds.items() if other is not kind)
    backend = kind()
    remedy = (
        f"pass {backend.word}s only, e.g. {backend.converter}({odd})"
        if _load_numpy in kinds
        else "pass arrays of one kind"
    )
    raise TypeError(f"{odd} is a {type(arrays[odd]).__name__} but {kinds[kind]} is a {backend.word}: {remedy}")
