"""Two operators registered with PyTorch, so that autograd, torch.compile and vmap know them:

    offtrace::linear    x_k = a_k + c_k x_{k+1}
    offtrace::capped    Δ_k = Σ_{t≥k} D_{k:t} min(cap_t, x_{k:t}) δ_t, or its transpose        (see `gradients`)

Both are float64 [B, T], and linear in what they sum, so that the backward pass is the transposed operator. `linear` has a
gradient with respect to c too; `capped` takes g, ratio and cap as constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offtrace.returns.numpy import gradients


def _host(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _linear(a: Tensor, c: Tensor) -> Tensor:
    return torch.from_numpy(gradients.solve(_host(a), _host(c)))


def _capped(
    delta: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, lags: Tensor, recursive: bool, transposed: bool
) -> Tensor:
    run = gradients.transpose if transposed else gradients.correct
    return torch.from_numpy(run(_host(delta), _host(g), _host(ratio), _host(cap), _host(lags), recursive))


linear = torch.library.custom_op(
    "offtrace::linear", _linear, mutates_args=(), schema="(Tensor a, Tensor c) -> Tensor", device_types="cpu"
)
capped = torch.library.custom_op(
    "offtrace::capped",
    _capped,
    mutates_args=(),
    schema="(Tensor delta, Tensor g, Tensor ratio, Tensor cap, Tensor lags, bool recursive, bool transposed) -> Tensor",
    device_types="cpu",
)


@linear.register_kernel("cuda")
def _linear_on_cuda(a: Tensor, c: Tensor) -> Tensor:
    from offtrace.returns.torch import cuda

    a, c = a.contiguous(), c.contiguous()
    one = torch.ones_like(c)
    return cuda.given(a, c, one, one, None, per_decision=True, recursive=False)


@capped.register_kernel("cuda")
def _capped_on_cuda(
    delta: Tensor, g: Tensor, ratio: Tensor, cap: Tensor, lags: Tensor, recursive: bool, transposed: bool
) -> Tensor:
    from offtrace.returns.torch import cuda

    delta, g, ratio, cap = (x.contiguous() for x in (delta, g, ratio, cap))
    return cuda.given(delta, g, ratio, cap, lags, per_decision=False, recursive=recursive, transposed=transposed)


def _fake(a: Tensor, *others: object) -> Tensor:
    return torch.empty(a.shape, dtype=a.dtype, device=a.device)


linear.register_fake(_fake)
capped.register_fake(_fake)


def _keep_linear(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1], output)


def _linear_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient is e_k = G_k + c_{k-1} e_{k-1}, the same recursion forward in time; ∂/∂c_k = e_k x_{k+1}."""
    c, x = ctx.saved_tensors
    e = linear(gradient.flip(1), c.roll(1, 1).flip(1)).flip(1)
    following = torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], 1)
    return e, e * following


def _keep_capped(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, bool, bool], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:5])
    ctx.recursive, ctx.transposed = inputs[5:]


def _capped_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
    e = capped(gradient, *ctx.saved_tensors, ctx.recursive, not ctx.transposed)
    return e, None, None, None, None, None, None


linear.register_autograd(_linear_backward, setup_context=_keep_linear)
capped.register_autograd(_capped_backward, setup_context=_keep_capped)


def _folded(info: Any, in_dims: Sequence[int | None], arrays: Iterable[Tensor]) -> list[Tensor]:
    """Turn arrays [B, T] with a mapped dimension into arrays [N·B, T]: rows are independent."""
    folded: list[Tensor] = []
    for array, dim in zip(arrays, in_dims, strict=False):
        moved = array.expand(info.batch_size, *array.shape) if dim is None else array.movedim(dim, 0)
        folded.append(moved.reshape(-1, moved.shape[-1]))
    return folded


def _linear_vmap(info: Any, in_dims: Sequence[int | None], a: Tensor, c: Tensor) -> tuple[Tensor, int]:
    out = linear(*_folded(info, in_dims, (a, c)))
    return out.reshape(info.batch_size, -1, out.shape[1]), 0


def _capped_vmap(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
    *arrays, lags, recursive, transposed = arguments
    out = capped(*_folded(info, in_dims, arrays), lags, recursive, transposed)
    return out.reshape(info.batch_size, -1, out.shape[1]), 0


linear.register_vmap(_linear_vmap)
capped.register_vmap(_capped_vmap)
