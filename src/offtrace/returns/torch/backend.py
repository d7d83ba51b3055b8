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
from offtrace.returns.inputs import bounded, decisions
from offtrace.returns.mixtures import Mixture, mixed
from offtrace.returns.numpy import backend as numpy_backend
from offtrace.returns.numpy import mixtures
from offtrace.returns.numpy import weights as numpy_weights
from offtrace.returns.torch import weights as weight_tensors
from offtrace.returns.torch.tensor_ops import TORCH, in_double, in_tensors, seen_by_torch
from offtrace.returns.weights.decisions import Criterion, Weighing, agreed
from offtrace.traces import Trace
from offtrace.trajectory import FLAGS, Agreed, Trajectory, laid_out

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
    xp = torch

    def array(self, name: str, value: object) -> Tensor:
        if isinstance(value, Tensor):
            if value.is_nested:
                raise TypeError(
                    f"{name} is a nested tensor: pad it, e.g. torch.nested.to_padded_tensor({name}, 0.0), and mark the padding "
                    "by mask or valid"
                )
            return value
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")

    def letter(self, dtype: torch.dtype) -> str:
        return "b" if dtype is torch.bool else "f" if dtype.is_floating_point or dtype.is_complex else "i"

    def discount(self, gamma: Tensor | float) -> Tensor | float:
        """A number; or a tensor of no dimension, which may have a gradient."""
        if not isinstance(gamma, Tensor):
            return one_discount(gamma)
        refuse_text_and_flags(gamma)
        return gamma

    def converting(self, name: str, dtype: object) -> str:
        return f"{name}.to(torch.{str(dtype).removeprefix('torch.')})"

    def correct(
        self, trace: Trace, x: Agreed[Tensor], *, add_q: bool | None, differentiable: bool, check: bool | None
    ) -> tuple[Tensor, ...]:
        """q + Δ or Δ, or the results of state values: on the host, by Triton's kernels, or by tensor operations."""
        like, seen = x.arrays["terminated"], seen_by_torch(*x.arrays.values(), x.gamma)
        plain = not (differentiable or seen)
        if plain and like.is_cpu:
            try:
                outs = numpy_backend.correct(trace, _on_host(x, trace, look=check is not False), add_q=add_q)
                return tuple(torch.from_numpy(out).to(x.dtype) for out in outs)
            except ValueError:
                if check is not False:
                    raise
        elif not seen and (check or (check is None and like.is_cpu)):
            numpy_backend.look(trace, _on_host(x, trace))
        if plain and like.is_cuda and not (isinstance(x.gamma, Tensor) and not x.gamma.ndim):
            from offtrace.returns.torch import cuda

            if cuda.takes(trace):
                return by_triton(trace, x, add_q)
        return in_tensors(trace, x if differentiable else x.mapped(Tensor.detach, x.dtype), add_q)

    def coefficients(self, trace: Trace, arrays: Mapping[str, object]) -> Tensor:
        """β_{k:t} from the host, on the arrays' device, in the dtype of the log-probabilities that the trace reads."""
        given = {name: self.array(name, a) for name, a in arrays.items() if a is not None}
        names = [name for name, needs in (("log_pi", trace.needs_pi), ("log_mu", trace.needs_mu)) if needs]
        dtype = next((given[name].dtype for name in names if name in given), torch.get_default_dtype())
        on_host = dict.fromkeys(arrays) | {name: self.as_numpy(in_double(a)) for name, a in given.items()}
        β = torch.from_numpy(numpy_backend.BACKEND.coefficients(trace, on_host))
        return β.to(next(iter(given.values())).device, dtype)

    def mixed(self, x: Mixture) -> Tensor:
        """On the CPU by the compiled loop, on CUDA by a kernel, else by tensor operations; in float64."""
        if not seen_by_torch(*x):
            if x.own.is_cpu:
                return torch.from_numpy(mixtures.mixed(Mixture(*map(self.as_numpy, x))))
            if x.own.is_cuda:
                from offtrace.returns.triton import mixtures as kernels

                return kernels.mixed(x)
        return mixed(TORCH, Mixture(*(a.double() for a in x)))

    def weights(self, trace: Trace, arrays: Mapping[str, object], how: Weighing, *, check: bool | None) -> Tensor:
        """The weight of each decision, in the wider dtype of the log-probabilities: on the CPU by the compiled loop."""
        given = decisions(self, trace, arrays)
        dtype = reduce(torch.promote_types, given.dtypes or (torch.get_default_dtype(),))
        any_array = next(array for array in (*given.arrays().values(), *arrays.values()) if isinstance(array, Tensor))
        merge = None if how.process_group is None else weight_tensors.over(how.process_group)
        weights = self._by_host(
            check,
            any_array,
            given.arrays().values(),
            lambda: numpy_weights.weigh(trace, given.mapped(self.as_numpy), how, merge),
        )
        if weights is None:
            weights = weight_tensors.weights(trace, given, how, any_array.device, dtype)
        return weights.to(any_array.device, dtype)

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
        given = agreed(self, arrays)
        log_pi = given.arrays()["log_pi"]
        kept = self._by_host(
            check, log_pi, given.arrays().values(), lambda: numpy_weights.keep(criteria, given.mapped(self.as_numpy))
        )
        return weight_tensors.keep(criteria, given) if kept is None else kept.to(log_pi.device)

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
        return torch.take_along_dim(array, index.long(), -1)

    def placed(self, values: Tensor, at: Tensor, size: int) -> Tensor:
        return values.new_zeros(size).index_copy(0, at.long(), values)

    def summed(self, values: Tensor, at: Tensor, size: int) -> Tensor:
        return values.new_zeros(size).index_add(0, at, values)

    def largest(self, values: Tensor, at: Tensor, size: int) -> Tensor:
        return values.new_full((size,), -torch.inf).scatter_reduce(0, at, values, "amax")

    def cast(self, array: Tensor, dtype: torch.dtype) -> Tensor:
        return array.to(dtype)

    def constant(self, array: Tensor) -> Tensor:
        return array.detach()


BACKEND = TorchBackend()


def by_triton(trace: Trace, x: Agreed[Tensor], add_q: bool | None) -> tuple[Tensor, ...]:
    """The same by Triton kernels that the rule is compiled into. Real arrays go there in one dtype, and flags as bytes."""
    from offtrace.returns.torch import cuda

    given: dict[str, Any] = {"valid": None, "log_pi": None, "log_mu": None, **x.arrays, "gamma": x.gamma}
    if "value" in given:
        given["q"] = given["value"]
    for name, a in given.items():
        if name in FLAGS:
            given[name] = a if a is None or a.dtype in (torch.bool, torch.uint8) else a != 0
        elif isinstance(a, Tensor) and a.dtype is not x.dtype and name != "pair":
            given[name] = a.to(x.dtype)
    lags = None if trace.custom else trace.bounds_by_lag(x.shape[-1])
    return cuda.correct(trace, given, lags, add_q=add_q)


def _on_host(x: Agreed[Tensor], trace: Trace, *, look: bool = True) -> Trajectory:
    """The trajectory that tensors which agree make, in their own memory where they are on the CPU."""
    return laid_out(x.mapped(BACKEND.as_numpy, NUMPY_DTYPES[x.dtype]), bounded(trace), look=look)
