"""Programs that work in float64, whatever comes in: in float32 a product of ratios loses its range within three steps.

Float64 is switched on for the operations of a program only, and so the gradient is written here as well: JAX would transpose
the operations outside, where it is off.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.tree_util import tree_flatten, tree_map, tree_unflatten

from offtrace.returns.jax.xla_kernels import in_float64
from offtrace.trajectory import FLAGS


def compute(function: Any, given: Any, numbers: Any, arrays: dict[str, Any], dtype: Any, differentiable: bool) -> Any:
    """function(given, numbers, real arrays, other arrays), which works in float64, with results in `dtype`."""
    # vmap outside of jit may hold a float64 of NumPy's in what it calls a float32. A copy, made before float64 is on, is one.
    numbers, arrays = tree_map(lambda a: jnp.array(a) if isinstance(a, Tracer) else a, (numbers, arrays))
    other = {n: a for n, a in arrays.items() if a is not None and n in (*FLAGS, "pair")}
    real = {n: a for n, a in arrays.items() if a is not None and n not in other}
    leaves, tree = tree_flatten((numbers, real))
    if not differentiable:
        leaves = [lax.stop_gradient(a) if isinstance(a, jax.Array) else a for a in leaves]
    # What is not JAX's has no gradient, and comes as float64. What JAX holds keeps the precision that it has.
    variables = {i: a for i, a in enumerate(leaves) if isinstance(a, jax.Array)}
    with in_float64():
        constants = {i: jnp.asarray(a, jnp.float64) for i, a in enumerate(leaves) if i not in variables}
        return _program((function, given, tree, dtype), variables, (constants, other))


def _run(program: Any, variables: Any, fixed: Any) -> Any:
    function, given, tree, dtype = program
    constants, other = fixed
    with in_float64():
        leaves = variables | constants
        real = [lax.convert_element_type(leaves[i], jnp.float64) for i in range(len(leaves))]
        out = function(given, *tree_unflatten(tree, real), other)
        return tree_map(lambda a: lax.convert_element_type(a, dtype), out)


def _pull(program: Any, variables: Any, fixed: Any, gradient: Any) -> Any:
    with in_float64():
        return jax.vjp(lambda v: _run(program, v, fixed), variables)[1](gradient)[0]


def _mappable(function: Any) -> Any:
    """The function, mapped by vmap as Python and in float64, even where vmap finds it within an already jitted function."""
    found = custom_vmap(function)

    @found.def_vmap
    def rule(size: int, mapped: Any, *arguments: Any) -> Any:
        axes = tuple(tree_map(lambda is_mapped: 0 if is_mapped else None, mapped))
        with in_float64():
            out = _mappable(jax.vmap(function, in_axes=axes, axis_size=size))(*arguments)
        return out, tree_map(lambda _: True, out)

    return found


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient(program: Any, variables: Any, fixed: Any) -> Any:
    return _mappable(partial(_run, program))(variables, fixed)


def _forward(program: Any, variables: Any, fixed: Any) -> Any:
    return _mappable(partial(_run, program))(variables, fixed), (variables, fixed)


def _backward(program: Any, seen: Any, gradient: Any) -> Any:
    return _mappable(partial(_pull, program))(*seen, gradient), None


_with_gradient.defvjp(_forward, _backward)
_program: Any = jax.jit(_with_gradient, static_argnums=0)
