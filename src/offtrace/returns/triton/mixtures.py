"""The mixtures of `returns.mixtures` by a Triton kernel: one program for each start, which goes through the later steps.

A lane stands for an atom x of the support. Where Γ z ≤ x − G ends on the ascending support is computed by bisection.
"""

# pyright: reportInvalidTypeForm=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false, reportPossiblyUnboundVariable=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from offtrace.returns.mixtures import Mixture, masses_of, sums


@triton.jit(do_not_specialize=["T", "N"])
def mix_rows(
    beta, reward, discount, F, M, F_own, M_own, support, out, T, N, LANES: tl.constexpr, HALVINGS: tl.constexpr
):
    """C at each atom of the support, of one start."""
    row = tl.program_id(0).to(tl.int64)
    first, k = row - row % T, row % T
    n = tl.arange(0, LANES)
    z = tl.load(support + n, n < N, 0.0)
    G, Γ = tl.full([], 0.0, tl.float64), tl.full([], 1.0, tl.float64)
    C = tl.zeros([LANES], tl.float64)
    for t in range(k, T):
        goes_on = t + 1 < T
        weight, weight_own = tl.load(beta + row * T + t), tl.load(beta + row * T + t + 1, goes_on, 0.0)
        G += Γ * tl.load(reward + first + t)
        Γ *= tl.load(discount + first + t)
        beyond = z - G
        index = tl.zeros([LANES], tl.int32)
        for i in tl.static_range(HALVINGS):
            probe = index + (1 << (HALVINGS - 1 - i))
            atom = tl.load(support + probe - 1, probe <= N, 0.0)
            index = tl.where((probe <= N) & (Γ * atom <= beyond), probe, index)
        at = (first + t) * (N + 1) + index
        below = weight * tl.load(F + at) - weight_own * tl.load(F_own + at + N + 1, goes_on & (n < N), 0.0)
        moment = weight * tl.load(M + at) - weight_own * tl.load(M_own + at + N + 1, goes_on & (n < N), 0.0)
        C += beyond * below - Γ * moment
    tl.store(out + row * N + n, C, n < N)


def mixed(x: Mixture) -> Tensor:
    """The target's masses [B, T, N] in float64, of tensors on a GPU."""
    beta, reward, discount, own, ahead, support = (a.double().contiguous() for a in x)
    B, T, N = own.shape
    C = torch.empty_like(own)
    arrays = beta, reward, discount, *sums(torch, ahead, support), *sums(torch, own, support), support, C
    mix_rows[(B * T,)](*arrays, T, N, LANES=triton.next_power_of_2(N), HALVINGS=N.bit_length())
    return masses_of(torch, C, support)
