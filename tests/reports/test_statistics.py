"""Summaries against independent formulas, known cases, and what must not change them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from offtrace.reports.study import method_names, resampling, statistics
from reports import synthetic


def rows_of(values: dict[tuple[str, str], list[float]], **columns: object) -> pl.DataFrame:
    """Test rows from {(environment, trace): values}, everything else the same."""
    rows = []
    for (environment, trace), found in values.items():
        for seed, value in enumerate(found):
            given = {"phase": "test", "lam": 0.9, "parameters": "", "alpha": 0.5} | columns
            rows.append({"unit": "", "environment": environment, "trace": trace, "seed": seed, "value": value} | given)
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col("lam", "alpha").cast(pl.Float64))


def iqm_by_definition(values: np.ndarray) -> float:
    """The mean of what is left when a quarter, rounded down, is dropped at each end."""
    ordered = sorted(values.tolist())
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def improvement_by_definition(x: Sequence[float], y: Sequence[float]) -> float:
    return sum((a > b) + 0.5 * (a == b) for a in x for b in y) / (len(x) * len(y))


def test_means_have_student_intervals() -> None:
    rows, _, _ = synthetic.records(environments=("A",), traces=("Retrace",), seeds=7)
    table = statistics.summarise(rows, "higher").table
    for row in table.iter_rows(named=True):
        same = (pl.col("phase") == "test") & (pl.col("lam") == row["lam"]) & (pl.col("alpha") == row["alpha"])
        values = rows.filter(same)["value"].to_numpy()
        interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((values.mean(), *interval), rel=1e-12)
        assert (row["n"], row["failed"]) == (7, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), min_size=1, max_size=4))
def test_the_interquartile_mean_is_over_all_runs_together(parts: list[list[float]]) -> None:
    found = resampling.interquartile_mean(*map(np.array, parts))
    assert found == pytest.approx(iqm_by_definition(np.concatenate(parts)), rel=1e-9, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(*[st.lists(st.integers(0, 5), min_size=1, max_size=8)] * 2), min_size=1, max_size=3),
)
def test_the_probability_of_improvement_counts_pairs(strata: list[tuple[list[int], list[int]]]) -> None:
    parts = [part for x, y in strata for part in resampling.ranked(np.array(x), np.array(y))]
    expected = np.mean([improvement_by_definition(x, y) for x, y in strata])
    assert float(resampling.probability(*parts)) == pytest.approx(expected)
    for x, y in strata:
        assert resampling._compared(np.array(x), np.array(y)) == pytest.approx(improvement_by_definition(x, y))
        u = stats.mannwhitneyu(x, y, method="asymptotic").statistic if len(set(x + y)) > 1 else len(x) * len(y) / 2
        assert float(resampling.probability(*resampling.ranked(np.array(x), np.array(y)))) == pytest.approx(
            u / (len(x) * len(y))
        )


def test_intervals_are_those_of_a_stratified_bootstrap() -> None:
    """Written out once more, with another generator: the seeds of an environment are drawn from that environment alone."""
    rng = np.random.default_rng(1)
    scores = {(e, t): rng.normal(i + j, 1 + j, 25) for i, t in enumerate("XY") for j, e in enumerate("ABC")}
    summary = statistics.summarise(rows_of({k: v.tolist() for k, v in scores.items()}), "higher")
    for environment in "ABC":  # the scale of each environment, held fixed
        means = [iqm_by_definition(scores[environment, t]) for t in "XY"]
        for t in "XY":
            scores[environment, t] = (scores[environment, t] - min(means)) / (max(means) - min(means))
    drawn = []
    for _ in range(4000):
        parts = {key: rng.choice(values, len(values)) for key, values in scores.items()}
        iqm = iqm_by_definition(np.concatenate([parts[e, "Y"] for e in "ABC"]))
        p = np.mean([(parts[e, "Y"][:, None] > parts[e, "X"]).mean() for e in "ABC"])
        drawn.append((iqm, p))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    row = summary.iqm.row(0, named=True)
    pair = summary.improvement.row(0, named=True)
    assert (row["method"], pair["better"], pair["worse"]) == ("Y", "Y", "X")
    assert (row["low"], row["high"]) == pytest.approx((low[0], high[0]), abs=0.04)
    assert (pair["low"], pair["high"]) == pytest.approx((low[1], high[1]), abs=0.02)
    assert row["iqm"] == pytest.approx(iqm_by_definition(np.concatenate([scores[e, "Y"] for e in "ABC"])))


def test_large_samples_take_a_normal_interval_of_the_same_width(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=400), rng.normal(size=300)]
    whole = float(resampling.interquartile_mean(*parts))
    full = resampling.resampled(parts, resampling.interquartile_mean, whole, 0)
    monkeypatch.setattr(resampling, "DRAWS", 200 * 700)
    short = resampling.resampled(parts, resampling.interquartile_mean, whole, 0)
    assert short[1] - short[0] == pytest.approx(full[1] - full[0], rel=0.15)
    assert sum(short) / 2 == pytest.approx(whole)


def test_extremes() -> None:
    values = {("A", "X"): [1.0, 2.0, 3.0], ("A", "Y"): [4.0, 5.0, 6.0], ("A", "Z"): [4.0, 5.0, 6.0]}
    summary = statistics.summarise(rows_of(values), "higher")
    pairs = {(r["better"], r["worse"]): r for r in summary.improvement.iter_rows(named=True)}
    assert pairs["Y", "X"]["probability"] == pairs["Y", "X"]["low"] == pairs["Y", "X"]["high"] == 1.0
    assert pairs["X", "Y"]["probability"] == 0.0
    assert pairs["Y", "Z"]["probability"] == 0.5
    lower = statistics.summarise(rows_of(values), "lower")
    assert lower.iqm["method"][0] == "X"
    assert {(r["better"], r["worse"]): r["probability"] for r in lower.improvement.iter_rows(named=True)}["X", "Y"] == 1


def tuning_case(tuning: dict[float, float], test: dict[float, float], **columns: object) -> statistics.Summary:
    rows = [
        rows_of({("A", "X"): [mean - 1, mean + 1]}, phase=phase, alpha=alpha, **columns)
        for phase, means in (("tuning", tuning), ("test", test))
        for alpha, mean in means.items()
    ]
    return statistics.summarise(pl.concat(rows), "higher")


def test_the_tuning_phase_chooses_and_the_test_phase_reports() -> None:
    table = tuning_case({0.1: 5.0, 0.5: 9.0}, {0.1: 100.0, 0.5: 7.0}).table
    assert table.select("alpha", "mean", "chosen_on").row(0) == (0.5, 7.0, "tuning")


def test_what_was_not_run_in_the_end_cannot_be_chosen() -> None:
    assert tuning_case({0.1: 5.0, 0.5: 9.0}, {0.1: 4.0}).table.select("alpha", "mean").row(0) == (0.1, 4.0)


def test_ties_go_to_the_smaller_step_and_failures_are_never_chosen() -> None:
    assert tuning_case({0.5: 9.0, 0.1: 9.0}, {0.1: 1.0, 0.5: 2.0}).table["alpha"][0] == 0.1
    assert tuning_case({0.5: np.nan, 0.1: -9.0, 0.9: np.inf}, {0.1: 1.0, 0.5: 2.0, 0.9: 1.0}).table["alpha"][0] == 0.1


def test_without_tuning_the_final_phase_chooses_and_says_so() -> None:
    table = tuning_case({}, {0.1: 3.0, 0.5: 7.0}).table
    assert table.select("alpha", "mean", "chosen_on").row(0) == (0.5, 7.0, "test")
    only = statistics.summarise(rows_of({("A", "X"): [1.0, 2.0]}, phase="tuning"), "higher")
    assert (only.final, only.table["chosen_on"][0]) == ("tuning", "tuning")


def test_each_method_has_its_own_lambda_in_each_environment() -> None:
    parts = [
        rows_of({("A", "X"): [a, a + 1], ("B", "X"): [b, b + 1]}, lam=lam, phase=phase)
        for lam, a, b in ((0.0, 1.0, 9.0), (0.9, 5.0, 2.0))
        for phase in ("tuning", "test")
    ]
    table = statistics.summarise(pl.concat(parts), "higher").table.filter("best_lam")
    assert table.select("environment", "lam").rows() == [("A", 0.9), ("B", 0.0)]


def test_ages_are_tuned_one_by_one_and_then_averaged_for_each_seed() -> None:
    parts = [
        rows_of({("A", "X"): [v, v + 2.0]}, age=age, alpha=alpha, phase="tuning")
        for age, alpha, v in ((0.0, 0.1, 5.0), (0.0, 0.5, 1.0), (8.0, 0.1, 1.0), (8.0, 0.5, 5.0))
    ]
    parts += [
        rows_of({("A", "X"): [1.0, 3.0]}, age=0.0, alpha=0.1),
        rows_of({("A", "X"): [11.0, 15.0]}, age=8.0, alpha=0.5),
    ]
    summary = statistics.summarise(pl.concat(parts), "higher")
    assert summary.chosen.select("age", "alpha").rows() == [(0.0, 0.1), (8.0, 0.5)]
    row = summary.table.row(0, named=True)
    assert (row["mean"], row["n"], row["alpha"]) == (7.5, 2, None)  # of the seeds' means, 6 and 9


def test_the_best_is_marked_and_so_is_what_is_not_told_apart_from_it() -> None:
    values = {
        ("A", "X"): [9.0, 10.0, 11.0],
        ("A", "V"): [9.5, 9.5, 10.5],
        ("A", "Y"): [8.5, 9.5, 10.5],  # overlaps X, and is below it with every seed
        ("A", "Z"): [1.0, 1.1, 1.2],
        ("B", "Z"): [1.0, 2.0],
    }
    table = statistics.summarise(rows_of(values), "higher").table
    marks = {(row["environment"], row["method"]): row["mark"] for row in table.iter_rows(named=True)}
    assert marks == {
        ("A", "X"): "best",
        ("A", "V"): "level",
        ("A", "Y"): "",
        ("A", "Z"): "",
        ("B", "Z"): "best",
    }


def test_runs_of_the_same_seed_are_compared_in_pairs() -> None:
    rng = np.random.default_rng(0)
    easy = 100 * rng.normal(size=40)  # what a seed makes of every trace
    rows = rows_of({("A", "X"): [*(easy + 2)], ("A", "Y"): [*(easy + 0.1 * rng.normal(size=40))]})
    paired = statistics.summarise(rows, "higher")
    found = paired.differences.row(0, named=True)
    assert found["in_pairs"]
    assert paired.leaders() == ["X"]
    x, y = rows.filter(trace="X")["value"].to_numpy(), rows.filter(trace="Y")["value"].to_numpy()
    span = stats.trim_mean(x, 0.25) - stats.trim_mean(y, 0.25)
    assert found["difference"] == pytest.approx(1.0)  # the scale goes from the worst trace to the best
    drawn = rng.integers(40, size=(4_000, 40))
    gaps = (stats.trim_mean(x[drawn], 0.25, axis=1) - stats.trim_mean(y[drawn], 0.25, axis=1)) / span
    np.testing.assert_allclose([found["low"], found["high"]], np.quantile(gaps, [0.025, 0.975]), atol=0.02)

    apart = rows.with_columns(seed=pl.when(pl.col("trace") == "Y").then(pl.col("seed") + 100).otherwise("seed"))
    unpaired = statistics.summarise(apart, "higher")
    assert not unpaired.differences["in_pairs"][0]
    assert unpaired.leaders() == ["X", "Y"]


def test_a_failed_run_is_counted_and_is_the_worst_run() -> None:
    values = {("A", "X"): [1.0, 2.0, 3.0, 4.0], ("A", "Y"): [9.0, 9.0, 9.0, float("inf")]}
    summary = statistics.summarise(rows_of(values), "lower")
    row = summary.table.filter(method="Y").row(0, named=True)
    assert row["failed"] == 1
    assert not np.isfinite(row["mean"])
    assert summary.iqm["method"].to_list() == ["X", "Y"]
    assert summary.iqm["iqm"].is_finite().all()


def test_a_method_that_lacks_an_environment_is_not_compared() -> None:
    values = {("A", "X"): [1.0, 2.0], ("B", "X"): [1.0, 2.0], ("A", "Y"): [9.0, 9.5]}
    assert statistics.summarise(rows_of(values), "higher").iqm["method"].to_list() == ["X"]


def test_one_seed_has_no_interval() -> None:
    summary = statistics.summarise(rows_of({("A", "X"): [1.0], ("A", "Y"): [2.0]}), "higher")
    assert summary.iqm["low"].is_nan().all()
    assert summary.table["low"].is_nan().all()
    assert summary.leaders() == ["Y"]


def test_parameters_make_methods() -> None:
    parts = [rows_of({("A", "Truncated IS"): [1.0, 2.0]}, parameters=f'{{"bound": {d}}}') for d in ("1.0", "2.0")]
    parts.append(rows_of({("A", "Q(σ)"): [1.0, 2.0]}, parameters='{"sigma": 0.5}'))
    methods = statistics.summarise(pl.concat(parts), "higher").methods
    assert methods == ["Truncated IS (bound = 1)", "Truncated IS (bound = 2)", "Q(σ)"]
    assert len(set(method_names.styles(methods))) == 3
    assert method_names.styles(["RBIS", "new", "Retrace", "newer"]) == [2, 1, 0, 3]


def test_nothing_depends_on_the_order_of_the_rows() -> None:
    rows, _, _ = synthetic.records(seeds=5)
    one = statistics.summarise(rows, "higher")
    two = statistics.summarise(rows.sample(fraction=1.0, shuffle=True, seed=3), "higher")
    for name in ("chosen", "iqm", "improvement"):
        assert getattr(one, name).equals(getattr(two, name))
    keys = ["environment", "method", "lam", "alpha", "best_lam", "mark", "n"]
    assert one.table.select(keys).equals(two.table.select(keys))
    np.testing.assert_allclose(one.table["mean"].to_numpy(), two.table["mean"].to_numpy(), rtol=1e-13)


def test_bad_input_is_named() -> None:
    rows, _, _ = synthetic.records(seeds=2)
    with pytest.raises(ValueError, match=r"\"higher\" or \"lower\", and 'up' was given"):
        statistics.summarise(rows, "up")
    with pytest.raises(ValueError, match="no rows"):
        statistics.summarise(rows.clear(), "higher")


def test_traces_that_tie_but_for_rounding_have_no_scale_and_no_winner() -> None:
    """As at λ = 0, where all traces are the same: scores of 10¹⁴ would come of it."""
    values = np.random.default_rng(0).uniform(0.5, 1.5, 12)
    tied = {(e, t): (values + i * 1e-16).tolist() for e in "AB" for i, t in enumerate(("Retrace", "RBIS", "Q(λ)"))}
    summary = statistics.summarise(rows_of(tied), "lower")
    assert (summary.iqm["iqm"].to_list(), summary.iqm["high"].to_list()) == ([0.0] * 3, [0.0] * 3)
    assert summary.against["difference"].to_list() == [0.0] * len(summary.against)
    assert summary.improvement["probability"].to_numpy() == pytest.approx(0.5)
    other = {("C", t): (values + i).tolist() for i, t in enumerate(("Retrace", "RBIS", "Q(λ)"))}
    mixed = statistics.summarise(rows_of(tied | other), "lower").iqm
    assert mixed["iqm"].abs().max() < 2.0  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
