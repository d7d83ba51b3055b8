"""PyTorch tensors in, PyTorch tensors out, on the device and in the dtype they came in.

On the CPU the compiled kernels of the NumPy backend run on the tensors' own memory; on a GPU a rule goes into a Triton kernel
(`triton_launch`). Where PyTorch must see what happens, everything is tensor operations (`tensor_operations`). This file is
imported when the first tensor arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offtrace.returns.backend import Backend
from offtrace.returns.needed_arrays import bounded, needed
from offtrace.returns.numpy import numpy_backend, v_trace_rows
from offtrace.returns.numpy.whole_arrays import look
from offtrace.returns.torch.tensor_operations import in_double, in_tensors, seen_by_torch, v_trace
from offtrace.traces import Rule, Trace
from offtrace.traces.arguments import as_trace
from offtrace.trajectory import Agreed, Trajectory, agree, explain_bad_value, laid_out, one_discount

NUMPY_DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.bfloat16: np.dtype(np.float32),  # NumPy has no bfloat16: it is summed in float32
}


class TorchBackend(Backend[Tensor]):
    """PyTorch tensors."""

    word, converter = "tensor", "torch.as_tensor"
    reals, reals_called = tuple(NUMPY_DTYPES), "float32, float64 or bfloat16"
    has_devices = True
    xp, storable = torch, (torch.float16, *NUMPY_DTYPES)

    def array(self, name: str, value: object) -> Tensor:
        """The tensor."""
        if isinstance(value, Tensor):
            return value
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")

    def letter(self, dtype: torch.dtype) -> str:
        """The kind of a dtype as NumPy has them."""
        return "b" if dtype is torch.bool else "f" if dtype.is_floating_point or dtype.is_complex else "i"

    def discount(self, gamma: Any) -> Any:
        """A number; or a tensor of no dimension, which may have a gradient."""
        return gamma if isinstance(gamma, Tensor) else one_discount(gamma)

    def converting(self, name: str, dtype: object) -> str:
        """By `to`."""
        return f"{name}.to(torch.{str(dtype).removeprefix('torch.')})"

    def correct(
        self, trace: Rule, arrays: Mapping[str, Any], *, add_q: bool, differentiable: bool, check: bool | None
    ) -> Tensor:
        """q + Δ, or Δ."""
        found = agree(self, needed(self, trace, arrays))
        reward, seen = found.arrays["reward"], seen_by_torch()
        if not (differentiable or seen) and reward.is_cpu:
            x = _on_host(found, trace, look=check is not False)
            out = numpy_backend.attempt(trace, x, add_q=add_q)
            if out is not None:
                return _restored(x, out, reward.dtype)
            if check is not False:
                explain_bad_value(x)
        elif self.looks(check, arrays):
            look(_on_host(found, trace), trace.reads)
        given = dict.fromkeys(arrays) | found.arrays
        if not differentiable:
            given = _detached(given)
        if not (differentiable or seen) and not trace.uncorrected and reward.is_cuda:
            from offtrace.returns.torch import triton_launch

            rule, gamma = as_trace(trace), given["gamma"]
            if triton_launch.takes(rule) and not (isinstance(gamma, Tensor) and not gamma.ndim):
                return _by_triton(rule, given, add_q=add_q)
        return in_tensors(trace, given, add_q=add_q)

    def coefficients(self, trace: Trace, arrays: Mapping[str, Any]) -> Tensor:
        """β_{k:t} from the host, on the arrays' device, in the dtype of the log-probabilities that the trace reads."""
        read = [arrays[n] for n, needs in (("log_pi", trace.needs_pi), ("log_mu", trace.needs_mu)) if needs]
        dtype = next((a.dtype for a in read if a is not None), torch.get_default_dtype())
        given = {name: a if a is None else self.as_numpy(in_double(a)) for name, a in arrays.items()}
        made = torch.from_numpy(numpy_backend.BACKEND.coefficients(trace, given))
        return made.to(arrays["terminated"].device, dtype)

    def v_trace(
        self,
        numbers: tuple[float, float, float],
        arrays: Mapping[str, Any],
        *,
        differentiable: bool,
        check: bool | None,
    ) -> tuple[Tensor, Tensor]:
        """V-trace's target and advantage."""
        found = agree(self, arrays)
        reward, seen = found.arrays["reward"], seen_by_torch()
        if not (differentiable or seen) and reward.is_cpu:
            x = _on_host(found, look=check is not False)
            made = v_trace_rows.attempt(numbers, x)
            if made is not None:
                return _restored(x, made[0], reward.dtype), _restored(x, made[1], reward.dtype)
            if check is not False:
                explain_bad_value(x)
        elif self.looks(check, arrays):
            x = _on_host(found)
            if v_trace_rows.attempt(numbers, x) is None:
                explain_bad_value(x)
        given = dict.fromkeys(arrays) | found.arrays
        return v_trace(*numbers, given if differentiable else _detached(given))

    def as_numpy(self, array: Tensor) -> np.ndarray:
        """The tensor on the host, without gradient; bfloat16, which NumPy does not have, as float32."""
        array = array.detach().cpu()
        return (array.float() if array.dtype is torch.bfloat16 else array).numpy()

    def looks(self, check: bool | None, arrays: Mapping[str, Any]) -> bool:
        """On the CPU unless check=False; on a GPU only with check=True, as that waits for the device."""
        if seen_by_torch():
            return False
        return bool(check) or (check is None and next(a for a in arrays.values() if isinstance(a, Tensor)).is_cpu)

    def take(self, array: Tensor, index: Tensor) -> Tensor:
        """The entries of the last axis at indices [..., 1]."""
        return torch.take_along_dim(array, index.long(), -1)

    def cast(self, array: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor in another dtype."""
        return array.to(dtype)

    def constant(self, array: Tensor) -> Tensor:
        """The tensor without gradient."""
        return array.detach()


BACKEND = TorchBackend()


def _on_host(found: Agreed[Tensor], trace: Rule | None = None, *, look: bool = True) -> Trajectory:
    """The trajectory that tensors which agree make, in their own memory where they are on the CPU."""
    half, views = found.dtype is torch.bfloat16, {}
    for name, array in found.arrays.items():
        if not isinstance(array, Tensor):  # gamma
            views[name] = array
        elif half or array.requires_grad or not array.is_cpu:
            views[name] = BACKEND.as_numpy(array)
        else:
            views[name] = array.numpy()
    reads = () if trace is None else bounded(trace)
    return laid_out(Agreed(views, tuple(found.shape), NUMPY_DTYPES[found.dtype]), reads, look=look)


def _restored(x: Trajectory, out: np.ndarray, dtype: torch.dtype) -> Tensor:
    made = torch.from_numpy(x.restore(out))
    return made.to(dtype) if dtype is torch.bfloat16 else made


def _detached(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: a.detach() if isinstance(a, Tensor) else a for name, a in arrays.items()}


def _by_triton(trace: Trace, arrays: dict[str, Any], *, add_q: bool) -> Tensor:
    """By a kernel that the rule is compiled into."""
    from offtrace.returns.torch import triton_launch

    shape = arrays["reward"].shape
    x = {n: a.reshape(-1, shape[-1]).contiguous() if isinstance(a, Tensor) else a for n, a in arrays.items()}
    x = {n: a.view(torch.uint8) if isinstance(a, Tensor) and a.dtype is torch.bool else a for n, a in x.items()}
    lags = None if trace.custom else trace.bounds_by_lag(shape[-1])
    return triton_launch.correct(trace, x, lags, add_q=add_q).reshape(shape)
