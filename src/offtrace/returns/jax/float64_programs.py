"""Programs that work in float64, whatever comes in: in float32 a product of ratios loses its range within three steps.

Float64 is switched on for the operations of a program only, and so the gradient is written here as well: JAX would transpose
the operations outside, where it is off.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, NamedTuple, TypeVar, TypeVarTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.tree_util import tree_flatten, tree_map, tree_unflatten

from offtrace.returns.jax.kernels import in_float64
from offtrace.trajectory import FLAGS

How = TypeVar("How", bound=Hashable)
Out = TypeVar("Out")  # an array, or a tuple of arrays
Arguments = TypeVarTuple("Arguments")

Numbers = list[Array]
"""The numbers of a rule, as JAX finds them."""
Arrays = dict[str, Array]
Function = Callable[[How, Numbers, Arrays, Arrays], Out]
"""What is computed, from what shapes the program, the numbers, the real arrays, and the flags and ids."""
Variables = dict[int, Array]
"""The arrays that may have a gradient, by their place among all numbers and real arrays."""
Fixed = tuple[dict[int, Array], Arrays]
"""The other ones by their place, and flags and ids by name."""


class Program(NamedTuple, Generic[How, Out]):
    """What decides about the compiled program."""

    function: Function[How, Out]
    how: How
    tree: Hashable
    """The structure of numbers and real arrays."""
    dtype: np.dtype[np.floating]


def compute(
    function: Function[How, Out],
    how: How,
    numbers: list[Array | float],
    arrays: dict[str, Array | float],
    dtype: np.dtype[np.floating],
    differentiable: bool,
) -> Out:
    """function(how, numbers, real arrays, other arrays), which works in float64, with results in `dtype`."""
    # vmap outside of jit may hold a float64 of NumPy's in what it calls a float32. A copy, created before float64 is on, is one.
    numbers, arrays = tree_map(lambda a: jnp.array(a) if isinstance(a, Tracer) else a, (numbers, arrays))
    other = {name: a for name, a in arrays.items() if name in (*FLAGS, "pair")}
    real = {name: a for name, a in arrays.items() if name not in other}
    leaves, tree = tree_flatten((numbers, real))
    if not differentiable:
        leaves = [lax.stop_gradient(a) if isinstance(a, Array) else a for a in leaves]
    # What is not JAX's has no gradient, and comes as float64. What JAX holds keeps the precision that it has.
    variables = {i: a for i, a in enumerate(leaves) if isinstance(a, Array)}
    with in_float64():
        constants = {i: jnp.asarray(a, jnp.float64) for i, a in enumerate(leaves) if i not in variables}
        return _program(Program(function, how, tree, dtype), variables, (constants, other))


def _run(program: Program[How, Out], variables: Variables, fixed: Fixed) -> Out:
    constants, other = fixed
    with in_float64():
        leaves = variables | constants
        real = [lax.convert_element_type(leaves[i], jnp.float64) for i in range(len(leaves))]
        numbers, arrays = tree_unflatten(program.tree, real)
        out = program.function(program.how, numbers, arrays, other)
        return tree_map(lambda a: lax.convert_element_type(a, program.dtype), out)


def _pull(program: Program[How, Out], variables: Variables, fixed: Fixed, gradient: Out) -> Variables:
    with in_float64():
        return jax.vjp(lambda v: _run(program, v, fixed), variables)[1](gradient)[0]


def _mappable(function: Callable[[*Arguments], Out]) -> Callable[[*Arguments], Out]:
    """The function, mapped by vmap as Python and in float64, even where vmap finds it within an already jitted function."""
    call = custom_vmap(function)

    @call.def_vmap
    def rule(size: int, mapped: tuple[object, ...], *arguments: *Arguments) -> tuple[Out, object]:
        axes = tuple(tree_map(lambda is_mapped: 0 if is_mapped else None, mapped))
        with in_float64():
            out = _mappable(jax.vmap(function, in_axes=axes, axis_size=size))(*arguments)
        return out, tree_map(lambda _: True, out)

    return call


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient(program: Program[How, Out], variables: Variables, fixed: Fixed) -> Out:
    return _mappable(partial(_run, program))(variables, fixed)


def _forward(program: Program[How, Out], variables: Variables, fixed: Fixed) -> tuple[Out, tuple[Variables, Fixed]]:
    return _mappable(partial(_run, program))(variables, fixed), (variables, fixed)


def _backward(program: Program[How, Out], seen: tuple[Variables, Fixed], gradient: Out) -> tuple[Variables, None]:
    return _mappable(partial(_pull, program))(*seen, gradient), None


_with_gradient.defvjp(_forward, _backward)
_program = jax.jit(_with_gradient, static_argnums=0)
