"""Which kind of array came in: NumPy's, PyTorch's or JAX's. All arguments decide, and a mixture is refused.

A type is told by the name of its package, since a NumPy array must not cost an import of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax"}
WORDS = {"torch": ("tensor", "torch.as_tensor"), "jax": ("JAX array", "jnp.asarray")}


def backend_of(arrays: Mapping[str, Any]) -> str:
    """ "torch", "jax" or "numpy", where lists belong too. None and a number in the place of gamma are of no kind."""
    found: dict[str, str] = {}  # from a kind to the first argument that is of it
    for name, array in arrays.items():
        if array is None or (name == "gamma" and is_number(array)):
            continue
        kind = "numpy" if type(array) is np.ndarray else _kind(type(array))
        if kind not in found:
            found[kind] = name
    if len(found) > 1:
        _refuse(found, arrays)
    return next(iter(found), "numpy")


def is_number(gamma: Any) -> bool:
    """Whether it is one number for all steps."""
    return type(gamma) is float or not np.ndim(gamma)


def as_numpy(arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays of any one kind as NumPy arrays, without gradient. None and numbers stay."""
    kind = backend_of(arrays)
    if kind == "torch":
        from offtrace.returns.torch import torch_backend

        return torch_backend.as_numpy(arrays)
    if kind == "jax":
        from offtrace.returns.jax import jax_backend

        return jax_backend.as_numpy(arrays)
    return arrays


def _kind(of: type) -> str:
    for base in of.__mro__:  # a subclass of Tensor may come from any package
        kind = PACKAGES.get(base.__module__.partition(".")[0])
        if kind:
            return kind
    return "numpy"


def _refuse(found: dict[str, str], arrays: Mapping[str, Any]) -> NoReturn:
    kind = "torch" if "torch" in found else "jax"
    odd = next(name for other, name in found.items() if other != kind)
    word, convert = WORDS[kind]
    remedy = f"pass {word}s only, e.g. {convert}({odd})" if "numpy" in found else "pass arrays of one kind"
    raise TypeError(f"{odd} is a {type(arrays[odd]).__name__} but {found[kind]} is a {word}: {remedy}")
