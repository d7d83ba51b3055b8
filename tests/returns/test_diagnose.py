"""Diagnosis against sums over the matrix of coefficients; the picture is drawn for real."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings

import offtrace as ot
from helpers import TRACES, name_of, rows, trajectories


@pytest.mark.parametrize("trace", TRACES, ids=name_of)
@settings(max_examples=15, deadline=None)
@over(given=trajectories())
def test_statistics_are_sums_over_coefficients(trace: ot.Trace, given: dict[str, Any]) -> None:
    given = {name: array for name, array in given.items() if name not in ("reward", "q", "next_value")}
    with np.errstate(all="ignore"):
        found = ot.diagnose(trace, **given)
    batch = [row | {"reward": row["terminated"]} for row in rows(given | {"reward": given["terminated"]})]
    for row, statistics in zip(batch, found.rows, strict=True):
        gamma = np.broadcast_to(row["gamma"], len(row["terminated"]))
        wanted = _by_matrix(trace, {n: row[n] for n in row if n not in ("gamma", "reward")}, gamma)
        if wanted is None:
            assert statistics.starts == 0
            continue
        for name, value in wanted.items():
            assert getattr(statistics, name) == pytest.approx(value, rel=1e-7, abs=1e-9), name
    assert found.pooled.starts == sum(s.starts for s in found.rows)


def _by_matrix(trace: ot.Trace, row: dict[str, Any], gamma: np.ndarray) -> dict[str, float] | None:
    T = len(gamma)
    B = ot.coefficients(trace, **row)
    valid = row.get("valid", np.ones(T, bool))
    if not valid.any() or B.max() > 1e100:
        return None if not valid.any() else {}
    weights = np.zeros((T, T))
    for k in np.flatnonzero(valid):
        for t in range(k, T):
            weights[k, t] = np.prod(gamma[k:t]) * B[k, t] if B[k, t] else 0.0
    lags = np.arange(T) - np.arange(T)[:, None]
    m = weights.sum(axis=1)[valid]
    cut = []
    for k in np.flatnonzero(valid):
        last = k
        while last + 1 < T and valid[last + 1] and not (row["terminated"][last] or row["truncated"][last]):
            last += 1
        if last > k:
            cut.append(B[k, last] == 0)
    return {
        "starts": int(valid.sum()),
        "magnitude": m.mean(),
        "largest_magnitude": m.max(),
        "horizon": (weights * np.maximum(lags, 0)).sum() / m.sum() + 1,
        "cut": float(np.mean(cut)) if cut else 0.0,
        "largest": B.max(),
        "effective": m.sum() ** 2 / (m**2).sum(),
    }


def test_the_picture_is_drawn(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    rng = np.random.default_rng(0)
    log_pi, log_mu = -rng.random(20), -rng.random(20)
    end = np.zeros(20, bool)
    end[12] = True
    traces = [ot.Retrace(0.9), ot.NonMarkovRetrace(0.9), ot.ImportanceSampling(), ot.replacing(0.5), ot.OneStep()]
    figure = ot.credit_figure(
        traces, terminated=end, truncated=end & False, log_pi=log_pi, log_mu=log_mu, pair=np.arange(20) % 5
    )
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert len(images) == 5
    shown = images[0].get_array()
    beta = ot.coefficients(ot.Retrace(0.9), terminated=end, truncated=end & False, log_pi=log_pi, log_mu=log_mu)
    np.testing.assert_array_equal(np.ma.getmaskarray(np.ma.masked_invalid(shown)), beta == 0)
    figure.savefig(tmp_path / "credit.png")
    assert (tmp_path / "credit.png").stat().st_size > 10_000
