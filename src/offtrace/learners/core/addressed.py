"""Python objects that compiled code is given as an address."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import NativeValue, typeof_impl, unbox


class Address(types.Type):
    """Numba's type of the address of one. Each kind needs `register_model(…)(models.OpaqueModel)`, which is by class."""


class Addressed:
    """A Python object that compiled code is given as an address. It keeps alive what lies there."""

    kind: Address
    address: int


@typeof_impl.register(Addressed)
def _typeof(given: Addressed, _: object) -> Address:
    return given.kind


@unbox(Address)
def _unboxed(_: Address, given: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(given, "address")
    pointer = c.pyapi.long_as_voidptr(address)
    c.pyapi.decref(address)
    return NativeValue(pointer, is_error=c.pyapi.c_api_error())
