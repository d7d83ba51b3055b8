"""PyTorch tensors in, PyTorch tensors out, on the device and in the dtype they came in.

On the CPU the compiled kernels of the NumPy backend run on the tensors' own memory; on a GPU a rule goes into a Triton kernel
(`cuda`). Where PyTorch must see what happens, everything is tensor operations (`tensor_ops`). This file is
imported when the first tensor arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offtrace.arrays import one_discount, refuse_text_and_flags
from offtrace.returns.backend import Backend
from offtrace.returns.inputs import agreed_rule, bounded, decisions, needed_on_states
from offtrace.returns.mixtures import Loops, Mixture, mixed
from offtrace.returns.numpy import backend as numpy_backend
from offtrace.returns.numpy import mixtures
from offtrace.returns.numpy import weights as numpy_weights
from offtrace.returns.torch import weights as weight_tensors
from offtrace.returns.torch.tensor_ops import in_double, in_tensors, on_states, seen_by_torch
from offtrace.returns.weights.decisions import Criterion, Weighing, agreed
from offtrace.traces import Rule, Trace
from offtrace.trajectory import FLAGS, Agreed, Trajectory, agree, laid_out

NUMPY_DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.float16: np.dtype(np.float32),
    torch.bfloat16: np.dtype(np.float32),  # NumPy has no bfloat16
}


class TorchBackend(Backend[Tensor]):
    """PyTorch tensors."""

    word, converter = "tensor", "torch.as_tensor"
    reals, reals_called = tuple(NUMPY_DTYPES), "float16, bfloat16, float32 or float64"
    single, double = torch.float32, torch.float64
    has_devices = True
    xp, storable = torch, tuple(NUMPY_DTYPES)

    def array(self, name: str, value: object) -> Tensor:
        """The tensor."""
        if isinstance(value, Tensor):
            if value.is_nested:
                raise TypeError(
                    f"{name} is a nested tensor: pad it, e.g. torch.nested.to_padded_tensor({name}, 0.0), and mark the padding "
                    "by mask or valid"
                )
            return value
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")

    def letter(self, dtype: torch.dtype) -> str:
        """The kind of a dtype as NumPy has them."""
        return "b" if dtype is torch.bool else "f" if dtype.is_floating_point or dtype.is_complex else "i"

    def discount(self, gamma: Tensor | float) -> Tensor | float:
        """A number; or a tensor of no dimension, which may have a gradient."""
        if not isinstance(gamma, Tensor):
            return one_discount(gamma)
        refuse_text_and_flags(gamma)
        return gamma

    def converting(self, name: str, dtype: object) -> str:
        """Return the call of `to` that converts it."""
        return f"{name}.to(torch.{str(dtype).removeprefix('torch.')})"

    def correct(
        self, trace: Rule, arrays: Mapping[str, object], *, add_q: bool, differentiable: bool, check: bool | None
    ) -> Tensor:
        """q + Δ, or Δ."""
        rule, found = agreed_rule(self, trace, arrays)
        return _correct(rule, found, add_q, differentiable, check)[0]

    def coefficients(self, trace: Trace, arrays: Mapping[str, object]) -> Tensor:
        """β_{k:t} from the host, on the arrays' device, in the dtype of the log-probabilities that the trace reads."""
        given = {name: self.array(name, a) for name, a in arrays.items() if a is not None}
        names = [name for name, needs in (("log_pi", trace.needs_pi), ("log_mu", trace.needs_mu)) if needs]
        dtype = next((given[name].dtype for name in names if name in given), torch.get_default_dtype())
        on_host = dict.fromkeys(arrays) | {name: self.as_numpy(in_double(a)) for name, a in given.items()}
        made = torch.from_numpy(numpy_backend.BACKEND.coefficients(trace, on_host))
        return made.to(next(iter(given.values())).device, dtype)

    def correct_states(
        self, trace: Trace, arrays: Mapping[str, object], *, differentiable: bool, check: bool | None
    ) -> tuple[Tensor, ...]:
        """Target, advantage and correction of state values."""
        return _correct(trace, agree(self, needed_on_states(self, trace, arrays)), None, differentiable, check)

    def mixed(self, x: Mixture) -> Tensor:
        """On the CPU by the compiled loop, on CUDA by a kernel, else by tensor operations; in float64."""
        if not seen_by_torch(*x):
            if x.own.is_cpu:
                return torch.from_numpy(mixtures.mixed(Mixture(*map(self.as_numpy, x))))
            if x.own.is_cuda:
                from offtrace.returns.triton import mixtures as kernels

                return kernels.mixed(x)
        return mixed(torch, LOOPS, Mixture(*(a.double() for a in x)))

    def weights(self, trace: Trace, arrays: Mapping[str, object], how: Weighing, *, check: bool | None) -> Tensor:
        """The weight of each decision, in the wider dtype of the log-probabilities: on the CPU by the compiled loop."""
        given = decisions(self, trace, arrays)
        dtype = reduce(torch.promote_types, given.dtypes or (torch.get_default_dtype(),))
        any_array = next(array for array in (*given.arrays().values(), *arrays.values()) if isinstance(array, Tensor))
        merge = None if how.process_group is None else weight_tensors.over(how.process_group)
        made = self._by_host(
            check,
            any_array,
            given.arrays().values(),
            lambda: numpy_weights.weigh(trace, given.mapped(self.as_numpy), how, merge),
        )
        if made is None:
            made = weight_tensors.weights(trace, given, how, any_array.device, dtype)
        return made.to(any_array.device, dtype)

    def weights_of_packed(
        self, trace: Trace, arrays: Mapping[str, object], cu_seqlens: object, how: Weighing
    ) -> Tensor | None:
        """By the kernel on CUDA, which reads flat arrays; else None."""
        on_cuda = all(a.is_cuda for a in arrays.values() if isinstance(a, Tensor))
        if not on_cuda or seen_by_torch(*arrays.values()) or how.normalize is not None:
            return None
        return weight_tensors.of_packed(trace, decisions(self, trace, arrays), cu_seqlens, how)

    def reject(self, criteria: tuple[Criterion, ...], arrays: Mapping[str, object], *, check: bool | None) -> Tensor:
        """Whether each decision is kept."""
        given = agreed(self, self.storable, arrays)
        log_pi = given.arrays()["log_pi"]
        made = self._by_host(
            check, log_pi, given.arrays().values(), lambda: numpy_weights.keep(criteria, given.mapped(self.as_numpy))
        )
        return weight_tensors.keep(criteria, given) if made is None else made.to(log_pi.device)

    def _by_host(
        self, check: bool | None, like: Tensor, arrays: Iterable[object], compute: Callable[[], np.ndarray]
    ) -> Tensor | None:
        """What is computed on the host, if the tensors are there or their values are to be looked at.

        A bad value is an error unless check=False: then PyTorch computes, and it becomes NaN.
        """
        if seen_by_torch(*arrays) or not (like.is_cpu or check):
            return None
        try:
            return torch.from_numpy(compute())
        except ValueError:
            if check is not False:
                raise
            return None

    def as_numpy(self, array: Tensor) -> np.ndarray:
        """The tensor on the host, without gradient; bfloat16, which NumPy does not have, as float32."""
        if array.requires_grad:
            array = array.detach()
        if not array.is_cpu:
            array = array.cpu()
        return (array.float() if array.dtype is torch.bfloat16 else array).numpy()

    def looks(self, check: bool | None, arrays: Mapping[str, object]) -> bool:
        """On the CPU unless check=False; on a GPU only with check=True, as that waits for the device."""
        if seen_by_torch(*arrays.values()):
            return False
        return bool(check) or (check is None and all(a.is_cpu for a in arrays.values() if isinstance(a, Tensor)))

    def take(self, array: Tensor, index: Tensor) -> Tensor:
        """The entries of the last axis at indices [..., 1]."""
        return torch.take_along_dim(array, index.long(), -1)

    def placed(self, values: Tensor, at: Tensor, size: int) -> Tensor:
        """Values [N] at these places of a flat tensor of zeros."""
        return values.new_zeros(size).index_copy(0, at.long(), values)

    def summed(self, values: Tensor, at: Tensor, size: int) -> Tensor:
        """Sums of the values [N] that go to the same place of a flat tensor."""
        return values.new_zeros(size).index_add(0, at, values)

    def largest(self, values: Tensor, at: Tensor, size: int) -> Tensor:
        """The largest of the values [N] that go to the same place of a flat tensor."""
        return values.new_full((size,), -torch.inf).scatter_reduce(0, at, values, "amax")

    def cast(self, array: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor in another dtype."""
        return array.to(dtype)

    def constant(self, array: Tensor) -> Tensor:
        """The tensor without gradient."""
        return array.detach()


BACKEND = TorchBackend()


def _repeat(n: int, body: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for i in range(n):
        state = body(i, state)
    return state


LOOPS = Loops(
    repeat=_repeat,
    count=lambda z, x: torch.searchsorted(z, x.contiguous(), right=True),
    take=lambda array, index: torch.take_along_dim(array, index, -1),
)


def _correct(
    trace: Trace, found: Agreed[Tensor], add_q: bool | None, differentiable: bool, check: bool | None
) -> tuple[Tensor, ...]:
    """q + Δ or Δ; without `add_q` target, advantage and correction of state values."""
    like, seen = found.arrays["terminated"], seen_by_torch(*found.arrays.values(), found.gamma)
    plain = not (differentiable or seen)
    if plain and like.is_cpu:
        try:
            outs = numpy_backend.correct(trace, _on_host(found, trace, look=check is not False), add_q=add_q)
            return tuple(torch.from_numpy(out).to(found.dtype) for out in outs)
        except ValueError:
            if check is not False:
                raise
    elif not seen and (check or (check is None and like.is_cpu)):
        numpy_backend.look(trace, _on_host(found, trace))
    if plain and like.is_cuda and not (isinstance(found.gamma, Tensor) and not found.gamma.ndim):
        from offtrace.returns.torch import cuda

        if cuda.takes(trace):
            return _by_triton(trace, found, add_q)
    if not differentiable:
        found = found.mapped(Tensor.detach, found.dtype)
    return on_states(trace, found) if add_q is None else (in_tensors(trace, found, add_q=add_q),)


def _by_triton(trace: Trace, found: Agreed[Tensor], add_q: bool | None) -> tuple[Tensor, ...]:
    """The same by Triton kernels that the rule is compiled into."""
    from offtrace.returns.torch import cuda

    x, lags = _for_kernels(found), None if trace.custom else trace.bounds_by_lag(found.shape[-1])
    return cuda.correct_states(trace, x, lags) if add_q is None else (cuda.correct(trace, x, lags, add_q=add_q),)


def _on_host(found: Agreed[Tensor], trace: Trace, *, look: bool = True) -> Trajectory:
    """The trajectory that tensors which agree make, in their own memory where they are on the CPU."""
    return laid_out(found.mapped(BACKEND.as_numpy, NUMPY_DTYPES[found.dtype]), bounded(trace), look=look)


def _for_kernels(found: Agreed[Tensor]) -> dict[str, Any]:
    """All arrays by name, real ones in one dtype and flags as bytes; None where there is none."""
    x: dict[str, Any] = {"valid": None, "log_pi": None, "log_mu": None, **found.arrays, "gamma": found.gamma}
    if "value" in x:
        x["q"] = x["value"]
    for name, a in x.items():
        if name in FLAGS:
            x[name] = a if a is None or a.dtype in (torch.bool, torch.uint8) else a != 0
        elif isinstance(a, Tensor) and a.dtype is not found.dtype and name != "pair":
            x[name] = a.to(found.dtype)
    return x
