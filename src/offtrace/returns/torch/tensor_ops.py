"""Returns by tensor operations, which PyTorch can follow: for a gradient, under torch.compile and inside vmap.

δ and the rule's factors are tensor operations in float64 (`returns.operations`), and only the recursion is an operator of ours
(`operators`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from offtrace.returns import operations
from offtrace.returns.numpy import backend as numpy_backend
from offtrace.returns.operations import Operations, Rows, before
from offtrace.returns.torch.operators import capped, linear
from offtrace.traces import Trace
from offtrace.traces.base import INFINITY, bounds_by_lag
from offtrace.trajectory import Agreed


def seen_by_torch(*tensors: object) -> bool:
    """Whether the call is being traced by torch.compile, or tensors are mapped by torch.func and have no memory to look at."""
    if torch.compiler.is_compiling():
        return True
    try:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                tensor.data_ptr()
    except RuntimeError:
        return True
    return False


class TensorMath:
    """The `xp` that rules see: numbers and tensors mix, as they do not in torch itself."""

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        """PyTorch's function of this name, which takes numbers as well."""
        function = getattr(torch, name)
        return lambda *numbers: function(*map(_as_tensor, numbers))


def _as_tensor(number: Tensor | float) -> Tensor:
    if isinstance(number, Tensor):
        return number
    return torch.tensor(number, dtype=torch.bool if isinstance(number, bool) else torch.float64)


class TorchOperations(Operations):
    """What PyTorch does not spell as JAX does."""

    xp, math, horizon_has_gradient = torch, TensorMath(), False

    def linear(self, delta: Tensor, weight: Tensor) -> Tensor:
        return linear(delta, weight)

    def linear_within(self, delta: Tensor, weight: Tensor, n: int) -> Tensor:
        """Δ up to lag n − 1; the weights are constants."""
        lags, weight = bounds_by_lag(n, None, delta.shape[1]), weight.detach()
        return self.capped(delta, (weight != 0).double(), weight, torch.full_like(delta, INFINITY), lags, False)

    def capped(
        self, delta: Tensor, g: Tensor, step: Tensor, cap: Tensor, lags: list[float] | None, recursive: bool
    ) -> Tensor:
        bounds = torch.tensor(lags or [], dtype=torch.float64, device=delta.device)
        return capped(delta, g, before(torch, step, 1.0), cap, bounds, recursive, False)

    def custom(self, trace: Trace, x: Rows, delta: Tensor) -> Tensor:
        """Δ_k = Σ_t (γ_k ··· γ_{t-1}) β_{k:t} δ_t of a custom trace, whose β are constants and come from the host."""
        if seen_by_torch(delta, *x.arrays.values()):
            raise TypeError(
                f"{trace.title!r} is a custom trace: it does not go through torch.compile or vmap; "
                "call it outside, or write it in normal form"
            )
        ends = x.discount == 0
        given = {"terminated": ends & ~ends, "truncated": ends, "valid": x.valid, "pair": x.pair}
        given |= {name: x.arrays.get(name) for name in ("log_pi", "log_mu")}
        on_host = {name: None if a is None else in_double(a).cpu().numpy() for name, a in given.items()}
        rows = ({name: None if a is None else a[b] for name, a in on_host.items()} for b in range(len(delta)))
        β = torch.from_numpy(np.stack([numpy_backend.BACKEND.coefficients(trace, row) for row in rows])).to(
            delta.device
        )
        later = torch.ones_like(β[0], dtype=torch.bool).triu(1)  # t > k
        weight = β * torch.where(later, x.discount.detach().roll(1, 1)[:, None], 1.0).cumprod(-1)
        return torch.where(weight == 0, 0.0, weight * delta[:, None]).sum(-1)  # 0 · NaN, unchecked, must not spread

    def asarray(self, numbers: object, like: Tensor) -> Tensor:
        if isinstance(numbers, Tensor):
            return numbers.double()
        return torch.tensor(numbers, dtype=torch.float64, device=like.device)

    def constant(self, array: Tensor) -> Tensor:
        return array.detach()

    def take(self, array: Tensor, index: Tensor) -> Tensor:
        return torch.take_along_dim(array, index, -1)

    def repeat(self, n: int, body: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for i in range(n):
            state = body(i, state)
        return state


TORCH = TorchOperations()


def in_double(array: Tensor) -> Tensor:
    """Real numbers in float64, so that the host rounds once; flags and ids as they are."""
    return array.detach().double() if array.is_floating_point() else array


def in_tensors(trace: Trace, x: Agreed[Tensor], add_q: bool | None) -> tuple[Tensor, ...]:
    """q + Δ or Δ, or the results of state values, by tensor operations and our two operators."""
    arrays = {name: a.double() if a.is_floating_point() else a for name, a in x.arrays.items()}
    arrays["gamma"] = TORCH.asarray(x.gamma, x.arrays["terminated"])
    return tuple(out.to(x.dtype) for out in operations.results(TORCH, trace, x.shape, arrays, add_q))
