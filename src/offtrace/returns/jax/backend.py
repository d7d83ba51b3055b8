"""JAX arrays in, JAX arrays out: inside jit, vmap and grad, on any device.

Arrays that are on the CPU, and are not being traced, go through the kernels of the NumPy backend, which check every value in
passing. Everything else is JAX operations (`operations`) in float64 (`float64_programs`). This file is imported when the first
JAX array arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.tree_util import tree_flatten, tree_leaves, tree_map

from offtrace.arrays import one_discount, refuse_text_and_flags
from offtrace.returns.backend import Backend
from offtrace.returns.inputs import agreed_rule, bounded, decisions, needed, needed_on_states
from offtrace.returns.jax.float64_programs import compute
from offtrace.returns.jax.operations import Given, keep, matrix, mixed_masses, results
from offtrace.returns.jax.operations import weights as weigh
from offtrace.returns.mixtures import Mixture
from offtrace.returns.numpy import backend as numpy_backend
from offtrace.returns.numpy import mixtures
from offtrace.returns.numpy import weights as numpy_weights
from offtrace.returns.weights.decisions import Criterion, Decisions, Weighing, agreed
from offtrace.traces import Rule, Trace, pytrees
from offtrace.trajectory import Agreed, agree, laid_out

pytrees.register_all(Rule)


def _on_device_of(like: jax.Array, outs: tuple[np.ndarray, ...]) -> tuple[jax.Array, ...]:
    """What was computed on the host, on the device that an array was put on, or on JAX's own choice if none was chosen."""
    return tuple(jax.device_put(out, like.sharding) if like.committed else jnp.asarray(out) for out in outs)


class JaxBackend(Backend[jax.Array]):
    """JAX arrays."""

    word, converter = "JAX array", "jnp.asarray"
    reals = tuple(map(np.dtype, (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)))
    reals_called = "float16, bfloat16, float32 or float64"
    xp, storable = jnp, reals

    def array(self, name: str, value: object) -> jax.Array:
        """The array. Under vmap outside of jit, JAX may put a NumPy array in its place."""
        if isinstance(value, jax.Array | np.ndarray):
            return value  # pyright: ignore[reportReturnType]
        raise TypeError(f"{name} must be a JAX array, got {type(value).__name__}")

    def discount(self, gamma: jax.Array | float) -> jax.Array | float:
        """A number; or an array of no dimension, which may be traced."""
        if not isinstance(gamma, jax.Array):
            return one_discount(gamma)
        refuse_text_and_flags(gamma)
        return gamma

    def converting(self, name: str, dtype: object) -> str:
        """Return the call of `astype` that converts it."""
        return f"{name}.astype(jnp.{dtype})"

    def correct(
        self, trace: Rule, arrays: Mapping[str, object], *, add_q: bool, differentiable: bool, check: bool | None
    ) -> jax.Array:
        """q + Δ, or Δ."""
        rule, found = agreed_rule(self, trace, arrays)
        return _correct(rule, found, add_q, differentiable, check)[0]

    def coefficients(self, trace: Trace, arrays: Mapping[str, object]) -> jax.Array:
        """β_{k:t} as [T, T], in the dtype of the log-probabilities: Δ of row t, whose δ is 1 at t and 0 elsewhere, is β_{·:t}."""
        found = agree(self, {"gamma": 1.0, **needed(self, trace, arrays)})
        if len(found.shape) != 1:
            raise ValueError(f"coefficients takes one trajectory [T], got shape {found.shape}: pass one row")
        dtype = dtype_of(found)
        if not where_from(trace, found.arrays)[0]:
            made = numpy_backend.coefficients(trace, laid_out(_on_host(found), bounded(trace)))
            return jnp.asarray(made, dtype)
        _refuse_history(trace)
        numbers, rule = tree_flatten(trace)
        how = Given(rule, tuple(found.shape), dtype != np.float64)
        return compute(matrix, how, numbers, {**found.arrays, "gamma": 1.0}, dtype, False)

    def correct_states(
        self, trace: Trace, arrays: Mapping[str, object], *, differentiable: bool, check: bool | None
    ) -> tuple[jax.Array, ...]:
        """Target, advantage and correction of state values."""
        return _correct(trace, agree(self, needed_on_states(self, trace, arrays)), None, differentiable, check)

    def mixed(self, x: Mixture) -> jax.Array:
        """On the CPU outside of jit by NumPy's compiled loop, else by JAX operations in float64."""
        traced, on_cpu = where_from(x)
        dtype = np.dtype(x.own.dtype)
        if on_cpu and not traced:
            return jnp.asarray(mixtures.mixed(Mixture(*map(_exactly, x))), dtype)
        return compute(mixed_masses, None, [], x._asdict(), dtype, False)

    def weights(self, trace: Trace, arrays: Mapping[str, object], how: Weighing, *, check: bool | None) -> jax.Array:
        """The weight of each decision, in the wider dtype of the log-probabilities."""
        if how.process_group is not None:
            raise TypeError("process_group is one of torch.distributed: it goes with tensors")
        given = decisions(self, trace, arrays)
        dtype = np.dtype(jnp.result_type(*given.dtypes)) if given.dtypes else _dtype_of_floats()
        traced, on_cpu = where_from(trace, given.arrays())
        if _looks(check, traced, on_cpu):
            return jnp.asarray(numpy_weights.weigh(trace, given.mapped(_exactly), how), dtype)
        numbers, rule = tree_flatten(trace)
        return compute(weigh, Given(rule, given.shape, how), numbers, for_program(given), dtype, False)

    def reject(self, criteria: tuple[Criterion, ...], arrays: Mapping[str, object], *, check: bool | None) -> jax.Array:
        """Whether each decision is kept."""
        given = agreed(self, self.storable, arrays)
        if _looks(check, *where_from(given.arrays())):
            return jnp.asarray(numpy_backend.BACKEND.reject(criteria, given.mapped(_exactly).arrays(), check=check))
        how = Given(None, given.shape, criteria)
        return compute(keep, how, [], for_program(given), np.dtype(np.float32), False) != 0

    def as_numpy(self, array: jax.Array) -> np.ndarray:
        """The array on the host."""
        return np.asarray(array)

    def as_parameter(self, name: str, array: object) -> object:
        """The array itself: it may be traced."""
        return array

    def looks(self, check: bool | None, arrays: Mapping[str, object]) -> bool:
        """On the CPU unless check=False; on a GPU only with check=True, as that waits for the device; never where traced."""
        return _looks(check, *where_from(dict(arrays)))

    def take(self, array: jax.Array, index: jax.Array) -> jax.Array:
        """The entries of the last axis at indices [..., 1]."""
        return jnp.take_along_axis(array, index, -1)

    def placed(self, values: jax.Array, at: jax.Array, size: int) -> jax.Array:
        """Values [N] at these places of a flat array of zeros."""
        return jnp.zeros(size, values.dtype).at[at].set(values)

    def summed(self, values: jax.Array, at: jax.Array, size: int) -> jax.Array:
        """Sums of the values [N] that go to the same place of a flat array."""
        return jnp.zeros(size, values.dtype).at[at].add(values)

    def largest(self, values: jax.Array, at: jax.Array, size: int) -> jax.Array:
        """The largest of the values [N] that go to the same place of a flat array."""
        return jnp.full(size, -jnp.inf, values.dtype).at[at].max(values)

    def cast(self, array: jax.Array, dtype: np.dtype[np.generic]) -> jax.Array:
        """The array in another dtype."""
        return array.astype(dtype)

    def constant(self, array: jax.Array) -> jax.Array:
        """The array without gradient."""
        return lax.stop_gradient(array)

    def at_once(
        self, function: Callable[..., dict[str, jax.Array]], arrays: dict[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """The same, compiled: on small arrays to start an operation takes longer than to run it."""
        return _compiled(function)(arrays)


BACKEND = JaxBackend()


@cache
def _compiled(function: Callable[..., dict[str, jax.Array]]) -> Callable[..., dict[str, jax.Array]]:
    return jax.jit(lambda arrays: function(BACKEND, **arrays))


def _correct(
    trace: Trace, found: Agreed[jax.Array], add_q: bool | None, differentiable: bool, check: bool | None
) -> tuple[jax.Array, ...]:
    """q + Δ or Δ; without `add_q` target, advantage and correction of state values.

    Outside of jit the program is one for rows of up to the next 2ⁿ or 3·2ⁿ steps.
    """
    _refuse_history(trace)
    traced, on_cpu = where_from(trace, found.arrays, found.gamma)
    if _looks(check, traced, on_cpu):
        outs = numpy_backend.correct(trace, laid_out(_on_host(found), bounded(trace)), add_q=add_q)
        if on_cpu:
            return _on_device_of(found.arrays["terminated"], outs)
    numbers, rule = tree_flatten(trace)
    given, shape, dtype = {**found.arrays, "gamma": found.gamma}, tuple(found.shape), dtype_of(found)
    T = shape[-1]
    if not traced and not any(map(np.ndim, numbers)):
        given, shape = _in_bucket(given, shape)
    how = Given(rule, shape, (add_q, dtype != np.float64))
    return tuple(a[..., :T] for a in compute(results, how, numbers, given, dtype, differentiable))


def _on_host(found: Agreed[jax.Array]) -> Agreed[np.ndarray]:
    return found.mapped(np.asarray, found.dtype)


def _refuse_history(trace: Trace) -> None:
    if trace.form == "history":
        raise TypeError(f"{trace.title!r} is a HistoryTrace, a Python function of NumPy arrays: JAX needs a StepTrace")


def for_program(given: Decisions[jax.Array]) -> dict[str, jax.Array | float]:
    """The arrays under names by which a program tells flags and ids from real numbers."""
    mask = jnp.ones(given.shape, bool) if given.mask is None else given.mask != 0
    there = {"pair" if name == "segment" else name: a for name, a in given.arrays().items() if name != "mask"}
    return {**there, "valid": mask}


def _exactly(array: jax.Array) -> np.ndarray:
    """The array on the host; bfloat16, with which NumPy does not compute, as float32."""
    return np.asarray(array, np.float32 if array.dtype == jnp.bfloat16 else None)


def _dtype_of_floats() -> np.dtype[np.floating]:
    """The dtype that JAX gives to floats."""
    return np.dtype(jnp.result_type(float))


def dtype_of(found: Agreed[jax.Array]) -> np.dtype[np.floating]:
    """The dtype of the real arrays; where there are none, the one that JAX would take."""
    return np.dtype(found.dtype) if found.dtype else _dtype_of_floats()


def where_from(*trees: object) -> tuple[bool, bool]:
    """Whether anything is being traced, and, if not, whether everything is on the CPU."""
    leaves = tree_leaves(trees)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return True, False
    devices = {device.platform for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()}
    return False, devices <= {"cpu"}


def _looks(check: bool | None, traced: bool, on_cpu: bool) -> bool:
    if check and traced:
        raise ValueError(
            "check=True must look at values, which there are none of inside jit, vmap and grad: leave it out"
        )
    return bool(check) or (check is None and on_cpu and not traced)


def _in_bucket(
    arrays: dict[str, jax.Array | float], shape: tuple[int, ...]
) -> tuple[dict[str, jax.Array | float], tuple[int, ...]]:
    """The arrays with padding up to the next 2ⁿ or 3·2ⁿ steps, and their shape: so a new T is rarely a new program."""
    T = shape[-1]
    half = 1 << max(3, (T - 1).bit_length() - 1)
    length = next(n for n in (half, half * 3 // 2, half * 2) if n >= T)
    if length == T:
        return arrays, shape
    there = {name: a for name, a in arrays.items() if not isinstance(a, float | int) and a.ndim}
    return {**arrays, **_padded(there, length - T)}, (*shape[:-1], length)


@partial(jax.jit, static_argnums=1)
def _padded(arrays: dict[str, jax.Array], more: int) -> dict[str, jax.Array]:
    arrays = {"valid": jnp.ones(arrays["terminated"].shape, bool), **arrays}
    return tree_map(lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, more)]), arrays)
