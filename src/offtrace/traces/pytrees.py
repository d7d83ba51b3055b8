"""Traces as JAX pytrees: their numbers are leaves, so that another λ is not another program. What shapes the program is static.

Static is a field that its class declares so, `field(metadata=pytrees.STATIC)`, and a value that is not a number: a text, a
function, a tuple of bounds by lag. `LEAVES` declares a tuple of numbers to be leaves. No class is listed anywhere: those that
exist when the first JAX array arrives are registered then (`register_all`), and `Rule` registers each later one when its first
rule is made. Nothing here imports jax before that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from types import FunctionType

STATIC = {"static": True}
LEAVES = {"static": False}

_known: set[type] = set()


def register_all(cls: type) -> None:
    """Register the class and everything that derives from it so far, in the package or outside."""
    register(cls)
    for derived in cls.__subclasses__():
        register_all(derived)


def register(cls: type) -> None:
    """Let JAX look into the rules of this class. Does nothing the second time."""
    if cls in _known:
        return
    from jax.tree_util import register_pytree_node

    names = [f.name for f in fields(cls)]  # pyright: ignore[reportArgumentType]
    declared = {f.name: f.metadata["static"] for f in fields(cls) if "static" in f.metadata}  # pyright: ignore[reportArgumentType]

    def is_static(name: str, value: object) -> bool:
        return declared.get(name, isinstance(value, str | tuple | FunctionType))

    def flatten(rule: object) -> tuple[list[object], tuple[tuple[str, object], ...]]:
        values = [(name, getattr(rule, name)) for name in names]
        leaves = [value for name, value in values if not is_static(name, value)]
        return leaves, tuple(pair for pair in values if is_static(*pair))

    def unflatten(static: tuple[tuple[str, object], ...], leaves: Iterable[object]) -> object:
        # Past the checks of the rule: JAX puts all kinds of things where the numbers were.
        rule = object.__new__(cls)
        given, left = dict(static), iter(leaves)
        for name in names:
            object.__setattr__(rule, name, given[name] if name in given else next(left))
        return rule

    _known.add(cls)
    register_pytree_node(cls, flatten, unflatten)
