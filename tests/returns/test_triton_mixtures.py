"""The Triton kernel of distributional targets, run by Triton's interpreter."""

import numpy as np
import pytest
import torch

import triton_interpreter  # noqa: F401
from offtrace.returns.mixtures import Mixture
from offtrace.returns.numpy import mixtures

kernels = pytest.importorskip("offtrace.returns.triton.mixtures")


@pytest.mark.parametrize(("B", "T", "N"), [(2, 5, 7), (1, 1, 2), (3, 4, 8), (1, 3, 51)])
def test_the_kernel_is_the_compiled_loop(B: int, T: int, N: int) -> None:
    rng = np.random.default_rng(N)
    beta = np.triu(rng.random((B, T, T)) * (rng.random((B, T, T)) < 0.8))
    discount = 0.9 * (rng.random((B, T)) < 0.8)
    own, ahead = rng.dirichlet(np.ones(N), (2, B, T))
    x = Mixture(beta, rng.normal(size=(B, T)), discount, own, ahead, np.sort(rng.normal(size=N)))
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        got = kernels.mixed(Mixture(*(torch.from_numpy(a).to(dtype) for a in x)))
        np.testing.assert_allclose(got, mixtures.mixed(x), atol=tolerance)
