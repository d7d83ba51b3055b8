"""The Triton kernel for weights, run by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offtrace as ot
import triton_interpreter  # noqa: F401
from decision_batches import batches, by_rows
from helpers import BUILT_IN
from offtrace.returns.inputs import decisions
from offtrace.returns.torch.backend import TorchBackend
from offtrace.returns.weights.decisions import Weighing

cuda_weights = pytest.importorskip("offtrace.returns.torch.cuda_weights")


def by_kernel(trace: Any, batch: dict[str, Any], how: Weighing, dtype: Any = torch.float64) -> np.ndarray:
    tensors = {name: torch.from_numpy(a) for name, a in batch.items()}
    ready = decisions(TorchBackend(), trace, tensors).arrays()
    out = torch.full(tensors["log_pi"].shape, torch.nan, dtype=dtype)
    with np.errstate(all="ignore"):
        return cuda_weights.weigh(trace, ready, how, out).numpy()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(batch=batches(), trace=st.sampled_from(BUILT_IN), length=st.sampled_from([2, 4, 8]))
def test_weights_by_the_kernel(batch: dict[str, Any], trace: Any, length: int) -> None:
    """Rows of one block and of several."""
    T, packed = batch["log_pi"].shape[-1], "segment" in batch
    levels = [n for n in cuda_weights.LEVELS if cuda_weights.takes_weights(trace, Weighing(n), T, packed=packed)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_weights, "WEIGHED", length)
        for level in levels:
            wanted = by_rows(trace, level, batch)
            found = by_kernel(trace, batch, Weighing(level))
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=0, err_msg=level)
            held = Weighing(level, 0.5, 2.0, drop=length == 4)
            inside = (wanted >= 0.5) & (wanted <= 2.0)
            kept = np.where(inside, wanted, 0.0) if held.drop else np.clip(wanted, 0.5, 2.0)
            at_an_end = held.drop & (np.abs(wanted / [[[0.5]], [[2.0]]] - 1.0) < 1e-9).any(0)
            kept, found = np.where(batch.get("mask", 1) != 0, kept, 0.0), by_kernel(trace, batch, held)
            np.testing.assert_allclose(found[~at_an_end], kept[~at_an_end], rtol=1e-10, atol=0, err_msg=level)


def test_float32_keeps_its_digits_over_a_long_row() -> None:
    """Products that leave float32 and come back; what is beyond it is 0, or infinite."""
    rng = np.random.default_rng(0)
    log_mu = -rng.exponential(size=(2, 600)).astype(np.float32) - 2.0
    log_pi = (log_mu + rng.normal(size=(2, 600)) * [[0.05], [2.0]]).astype(np.float32)
    for trace in (ot.ImportanceSampling(), ot.NonMarkovRetrace(), ot.FlattenedIS(kappa=0.5, bound=1.0)):
        for level in cuda_weights.LEVELS:
            wanted = ot.weights(trace, level=level, log_pi=log_pi.astype(float), log_mu=log_mu.astype(float))
            found = by_kernel(trace, {"log_pi": log_pi, "log_mu": log_mu}, Weighing(level), torch.float32)
            with np.errstate(over="ignore"):
                np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=5e-7, atol=2e-45)


def test_what_is_not_known_spreads_to_the_rows_end() -> None:
    log_mu = np.full((1, 9), -1.0)
    log_pi = log_mu.copy()
    log_mu[0, 4] = -np.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_weights, "WEIGHED", 2)
        found = by_kernel(ot.NonMarkovRetrace(), {"log_pi": log_pi, "log_mu": log_mu}, Weighing("prefix"))
    assert (np.isnan(found) == (np.arange(9) >= 4)).all()


@pytest.mark.parametrize("level", list(cuda_weights.LEVELS))
@pytest.mark.parametrize("trace", [ot.ImportanceSampling(0.9), ot.NonMarkovRetrace(0.9), ot.TruncatedIS(2.0, 0.9)])
def test_packed_rows_equal_padded_ones(trace: Any, level: str) -> None:
    """Flat arrays with offsets, rows without a step among them, and offsets that leave the end out."""
    rng, lengths = np.random.default_rng(0), np.array([3, 0, 7, 1, 0, 12])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    N, T = int(starts[-1]) + 2, 12
    flat = {"log_mu": -rng.exponential(size=N), "mask": rng.random(N) < 0.8}
    flat["log_pi"] = flat["log_mu"] + 0.5 * rng.normal(size=N)
    there = np.arange(T) < lengths[:, None]
    padded: dict[str, Any] = {name: np.zeros((len(lengths), T), a.dtype) for name, a in flat.items()}
    for name, a in flat.items():
        padded[name][there] = a[: N - 2]
    wanted = ot.weights(trace, **padded, level=level)[there]
    tensors = {name: torch.from_numpy(a) for name, a in flat.items()}
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(cuda_weights, "WEIGHED", 4)
        found = cuda_weights.weigh_packed(trace, tensors, Weighing(level), torch.from_numpy(starts), torch.float64)
    np.testing.assert_allclose(found[: N - 2], wanted, rtol=1e-12)
    assert found[N - 2 :].isnan().all()
