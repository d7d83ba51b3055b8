"""Reports of deep agents: statistics over the age of the data against slow formulas, the scale, the claims, the figures."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import stats

from offtrace.reports.study import paper_figures, resampling, study_page, terminal_table, views, words
from offtrace.reports.study.views import RANDOM
from reports import synthetic
from reports.test_statistics import iqm_by_definition


def samples(seeds: int = 12) -> tuple[pl.DataFrame, dict[tuple[str, str, float], np.ndarray]]:
    """Scores of two environments, two ages and three methods, as a frame and by (environment, method, age)."""
    rng = np.random.default_rng(7)
    ages, methods = (10.0, 1000.0), ("Retrace", "RBIS", "n-step")
    found = {
        (e, m, age): rng.normal(0.3 * i + 0.5 * i * a + 0.2 * j, 1.0, seeds + j)
        for j, e in enumerate("AB")
        for i, m in enumerate(methods)
        for a, age in enumerate(ages)
    }
    rows = [(e, m, s, age, x) for (e, m, age), values in found.items() for s, x in enumerate(values.tolist())]
    frame = pl.DataFrame(rows, schema=["environment", "method", "seed", "age", "score"], orient="row")
    return frame.sample(fraction=1.0, shuffle=True, seed=0), found


def test_statistics_at_each_age_are_their_definitions() -> None:
    frame, found = samples()
    methods = ["Retrace", "RBIS", "n-step"]
    table = resampling.at_each_age(frame, methods, "Retrace")
    rng = np.random.default_rng(1)

    def iqm(values: dict[tuple[str, str, float], np.ndarray], method: str, age: float) -> float:
        return iqm_by_definition(np.concatenate([values[e, method, age] for e in "AB"]))

    assert table.select("age", "method").rows() == [(age, m) for age in (10.0, 1000.0) for m in methods]
    for row in table.iter_rows(named=True):
        method, age = row["method"], row["age"]
        assert row["iqm"] == pytest.approx(iqm(found, method, age), rel=1e-12)
        if method == "Retrace":
            assert row["difference"] is None
        else:
            assert row["difference"] == pytest.approx(iqm(found, method, age) - iqm(found, "Retrace", age), abs=1e-12)
    drawn = []
    for _ in range(1500):  # the stratified bootstrap, written out
        again = {key: rng.choice(values, len(values)) for key, values in found.items()}
        apart = iqm(again, "RBIS", 10.0) - iqm(again, "Retrace", 10.0)
        drawn.append((iqm(again, "RBIS", 10.0), apart))
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    row = table.filter(method="RBIS", age=10.0).row(0, named=True)
    ends = [(row["low"], row["high"]), (row["difference_low"], row["difference_high"])]
    np.testing.assert_allclose(ends, np.transpose([low, high]), atol=0.08)


def test_what_lacks_an_environment_or_an_age_is_not_compared() -> None:
    frame, _ = samples()
    part = frame.filter(~((pl.col("method") == "RBIS") & (pl.col("environment") == "B") & (pl.col("age") == 10.0)))
    table = resampling.at_each_age(part, ["Retrace", "RBIS"], "Retrace")
    assert table.select("age", "method").rows() == [(10.0, "Retrace"), (1000.0, "Retrace"), (1000.0, "RBIS")]
    assert resampling.at_each_age(frame, ["RBIS"], "RBIS")["difference"].null_count() == 2


def test_a_random_policy_has_score_0_and_the_best_trace_1() -> None:
    rows, curves, facts = synthetic.deep_records(traces=("Retrace", "RBIS", "One-step"), ages=(1e4, 1e5))
    shown = views.Views(rows, curves, facts)
    game, zero = "minatar/breakout", RANDOM["minatar/breakout"]
    of_game = rows.filter(environment=game)
    over_ages = of_game.group_by("trace", "seed").agg(pl.mean("value"))
    best = max(iqm_by_definition(part["value"].to_numpy()) for _, part in over_ages.group_by("trace"))
    scores = shown.summary.each_age.filter(environment="Breakout").sort("method", "age", "seed")["score"].to_numpy()
    raw = of_game.sort("trace", "age", "seed")["value"].to_numpy()
    assert scores == pytest.approx((raw - zero) / (best - zero))
    assert shown.summary.zeros
    assert "0 is a random policy" in words.answer(shown)[0]
    assert "0 is a random policy" in terminal_table.table(shown)
    unknown = pl.col("environment").str.replace("breakout", "pong")
    other = views.Views(rows.with_columns(environment=unknown), curves.with_columns(environment=unknown), facts)
    assert "0 is the interquartile mean of the worst trace" in words.answer(other)[0]


def test_curves_are_means_over_seeds_of_one_age() -> None:
    rows, curves, facts = synthetic.deep_records(games=("minatar/breakout",), lams=(0.7, 0.9), seeds=4)
    shown = views.Views(rows, curves, facts)
    lines = [line for line in shown.learning["Breakout"] if line.method == "RBIS" and line.best and line.age == 1e5]
    assert len(lines) == 1
    same = curves.filter(trace="RBIS", age=1e5, lam=lines[0].lam, step=400_000)["mean"].to_numpy()
    i = lines[0].x.index(400_000)
    interval = stats.ttest_1samp(same, 0.0).confidence_interval(0.95)
    assert len(same) == 4
    assert (lines[0].y[i], lines[0].low[i], lines[0].high[i]) == pytest.approx((same.mean(), *interval), rel=1e-12)
    assert "λ was chosen on the reported seeds" in words.answer(shown)[-1]
    assert {"standing", "lambda", "age", "age-compared", "learning-age-10000"} <= set(paper_figures.draw(shown))
    one = views.Views(rows.filter(age=1e5), curves.filter(age=1e5), facts)
    assert not {"age", "age-compared"} & set(paper_figures.draw(one))  # there is nothing to compare


def test_the_answer_compares_with_retrace_at_every_age() -> None:
    rows, curves, facts = synthetic.deep_records()
    aged, care = words.answer(views.Views(rows, curves, facts))[1:]
    assert "10,000: " in aged
    assert "1,000,000: RBIS ahead" in aged
    assert "1 of 120 runs failed" in care
    assert "tuning" not in care  # there was nothing to choose
    noise = rows.with_columns(value=10.0 + pl.col("seed"))
    aged = words.answer(views.Views(noise, curves, facts))[1]
    assert "10,000: none; 100,000: none; 1,000,000: none" in aged
    text = study_page.render(rows, curves, facts)
    assert "156, 1,562 and 15,625 updates ago" in text
    assert "to Retrace" in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_claim_nothing(seeds: int) -> None:
    shown = views.Views(*synthetic.deep_records(seeds=seeds))
    assert shown.at_each_age["low"].is_nan().all() == (seeds == 1)
    said = words.answer(shown)
    assert ("nothing can be told apart" in said[0]) == (seeds == 1)
    study_page.html(shown)
