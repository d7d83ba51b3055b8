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
    many = [s for s in found.rows if s.starts]
    assert found.pooled.starts == sum(s.starts for s in many)
    if many and max(s.largest_magnitude for s in many) < 1e100:
        mean = sum(s.starts * s.magnitude for s in many) / found.pooled.starts
        assert found.pooled.magnitude == pytest.approx(mean, rel=1e-9)
        assert found.pooled.largest_magnitude == max(s.largest_magnitude for s in many)
        assert found.pooled.largest == max(s.largest for s in many)


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
    figure: Any = ot.credit_figure(
        traces, terminated=end, truncated=end & False, log_pi=log_pi, log_mu=log_mu, pair=np.arange(20) % 5
    )
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert len(images) == 5
    shown = images[0].get_array()
    beta = ot.coefficients(ot.Retrace(0.9), terminated=end, truncated=end & False, log_pi=log_pi, log_mu=log_mu)
    np.testing.assert_array_equal(np.ma.getmaskarray(np.ma.masked_invalid(shown)), beta == 0)
    figure.savefig(tmp_path / "credit.png")
    assert (tmp_path / "credit.png").stat().st_size > 10_000
    strips = [axes.patches for axes in figure.axes if axes.patches and not axes.images]
    heights = [bar.get_height() for bar in strips[0]]
    np.testing.assert_allclose(heights, (log_pi - log_mu) / np.log(10), atol=1e-9)


def test_no_trace_is_lost_from_the_picture() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    no, log = np.zeros(6, bool), np.zeros(6)
    traces = [
        ot.Retrace(horizon=2),
        ot.Retrace(horizon=3),
        ot.Retrace(),
        ot.Retrace(lam=0),
        ot.TruncatedIS((1, 2)),
        ot.QLambda(0.5),
    ]
    figure = ot.credit_figure(traces, terminated=no, truncated=no, log_pi=log, log_mu=log)
    assert sum(bool(axes.images) for axes in figure.axes) == 6
    assert ot.credit_figure([ot.QLambda(0.5)], terminated=no, truncated=no) is not None
    with pytest.raises(ValueError, match="traces is empty"):
        ot.credit_figure([], terminated=no, truncated=no)


def test_diagnosis_of_a_lambda_for_each_step_of_a_batch() -> None:
    rng = np.random.default_rng(0)
    no, log_pi, log_mu = np.zeros((3, 9), bool), -rng.random((3, 9)), -rng.random((3, 9))
    lam = rng.random((3, 9))
    found = ot.diagnose(ot.VariableLambda(lam), terminated=no, truncated=no, gamma=0.9, log_pi=log_pi, log_mu=log_mu)
    for b in range(3):
        row = {"terminated": no[b], "truncated": no[b], "log_pi": log_pi[b], "log_mu": log_mu[b]}
        assert found.rows[b] == ot.diagnose(ot.VariableLambda(lam[b]), gamma=0.9, **row).rows[0]


def test_adapt_refuses_what_it_cannot_measure_and_skips_padding() -> None:
    no, log = np.zeros((2, 50), bool), np.zeros((2, 50))
    given = {"terminated": no, "truncated": no, "log_pi": log - 0.5, "log_mu": log}
    trace = ot.CTrace(rate=0.5, mix=0.5)
    valid = np.ones((2, 50), bool)
    valid[1] = False
    first = {name: array[:1] for name, array in given.items()}
    assert ot.adapt(trace, gamma=0.9, valid=valid, **given).mix == pytest.approx(
        ot.adapt(trace, gamma=0.9, **first).mix
    )
    with pytest.raises(ValueError, match="no valid step"):
        ot.adapt(trace, gamma=0.9, valid=no, **given)
    with pytest.raises(TypeError, match="adapt moves the mix of a CTrace"):
        ot.adapt(ot.Retrace(), gamma=0.9, **given)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="gamma must lie in"):
        ot.adapt(trace, gamma=1.0, **given)


def test_cut_leaves_out_starts_at_the_last_step_of_their_episode() -> None:
    """Such a trace has nothing to reach: of one-step traces all others are cut, whatever the number of episodes."""
    ends = np.array([False, True, True, False, False])
    found = ot.diagnose(ot.OneStep(), terminated=ends, truncated=np.zeros(5, bool), gamma=0.9)
    assert found.pooled.cut == 1.0
