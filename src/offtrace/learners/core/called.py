"""Compiled functions as loops take them: their address.

Numba's own type of a function that is an argument costs Python twenty times as much, at each call of a loop: it unpickles the
signature. It also compiles a second way to call the function, through C, which is never taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import types
from numba.core import cgutils
from numba.core.typing.templates import Signature
from numba.extending import lower_builtin, models, register_model

from offtrace.learners.core.addressed import Address, Addressed


class Calls(Address, types.Callable):
    """Numba's type of the address of a compiled function."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        super().__init__(f"address of {signature}")

    def get_call_type(self, context: object, args: object, kws: object) -> Signature:
        """The signature, with the address as what a method's object is: `_call` is then given it."""
        return Signature(self.signature.return_type, self.signature.args, recvr=self)

    def get_call_signatures(self) -> tuple[list[Signature], bool]:
        """Return the only signature that there is."""
        return [self.signature], False

    def get_impl_key(self, sig: object) -> type[Calls]:
        """Return the same key for every signature: all are called in one way."""
        return Calls


class Called(Addressed):
    """A function that is compiled for one signature, given to a compiled loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = cast(Any, function)
        (signature,) = self.function.nopython_signatures
        self.kind = Calls(types.unliteral(signature))
        found = self.function.overloads[signature.args]
        self.address = found.library.get_pointer_to_function(found.fndesc.llvm_func_name)


register_model(Calls)(models.OpaqueModel)


@lower_builtin(Calls, types.VarArg(types.Any))
def _call(context: Any, builder: Any, signature: Signature, arguments: tuple[Any, ...]) -> Any:
    """Call it as Numba's functions call each other: what it raises is raised."""
    returned, kinds = signature.return_type, signature.args[1:]
    convention = context.call_conv
    function = builder.bitcast(arguments[0], convention.get_function_type(returned, kinds).as_pointer())
    status, result = convention.call_function(builder, function, returned, kinds, arguments[1:])
    with cgutils.if_unlikely(builder, status.is_error):
        convention.return_status_propagate(builder, status)
    return result
