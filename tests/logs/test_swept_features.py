"""Features and intervals by sums over files: what the logs in memory give, however they are spread."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from logs.test_sweep import ASKED, BEHAVIOR, COLUMNS, FEATURES, MDP, PLACES, TARGET, frame, policy, split
from offtrace import cli
from offtrace.logs import Columns, Features, Logs, evaluate, read, simulate, sweep
from offtrace.logs.features import fourier
from offtrace.logs.file_sums import Question
from offtrace.logs.intervals import bootstrap
from offtrace.logs.sweeping import RIDGE

CUSTOM = ot.StepTrace(lambda xp, c, now: (now.lam * c * xp.minimum(1.0, now.rho),) * 2, lam=0.7, title="own")


def in_memory(trace: ot.Trace, model: Any) -> Any:
    """What `evaluate` finds."""
    logs = read(frame(), columns=FEATURES["columns"], actions=3)
    features = Features(ridge=RIDGE) if model == "linear" else replace(fourier(logs, 3), ridge=RIDGE)
    return evaluate(logs, policy, trace=trace, gamma=0.9, model=features, estimators=["fitted"], resamples=50, seed=3)


@pytest.mark.parametrize(
    ("trace", "model"),
    [
        (ot.RBIS(lam=0.9), "fourier"),
        (ot.TruncatedIS(lam=0.9), "linear"),
        (CUSTOM, "fourier"),
        (ot.TreeBackup(0.8), None),
    ],
)
def test_features_are_fitted_as_in_memory(tmp_path: Path, trace: ot.Trace, model: str | None) -> None:
    whole = in_memory(trace, model)
    for files, workers in ((1, 1), (4, 2)):
        folder = split(tmp_path / str(files), files)
        found = sweep(folder, policy, **{**FEATURES, "trace": trace}, model=model, seed=3, workers=workers)
        assert found.converged
        with pytest.raises(TypeError, match=r"a function of features: ask q\(states\)"):
            _ = found.Q
        assert found.value == pytest.approx(whole.value, rel=1e-9)
        np.testing.assert_allclose(found.q(PLACES), whole.q(PLACES), rtol=1e-8)
        np.testing.assert_allclose(found.values(PLACES), whole.values(PLACES), rtol=1e-8)


def test_intervals_rest_on_what_episodes_contribute(tmp_path: Path) -> None:
    folder = split(tmp_path / "log", 3)
    logs = read(frame(), columns=COLUMNS, states=6, actions=3)
    for model in (None, Features(PLACES)):
        given = {"trace": ot.RBIS(lam=0.9), "gamma": 0.9, "model": model}
        x = evaluate(logs, TARGET, **given, estimators=["fitted"], resamples=50).contributions["fitted"]
        found = sweep(folder, TARGET, **given, columns=COLUMNS)
        assert found.standard_error == pytest.approx(x.std() / np.sqrt(len(x)), rel=1e-6)
        (low,), (high,) = bootstrap(x[:, None], 0.95, 1000, 0)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)
        one = sweep(split(tmp_path / f"one {model is None}", 1), TARGET, **given, columns=COLUMNS, workers=1)
        assert (one.low, one.high) == pytest.approx((found.low, found.high), rel=1e-9)
    without = sweep(folder, TARGET, **ASKED)
    assert np.isnan(without.low)
    assert "[" in str(found)
    assert "[" not in str(without)


def test_the_interval_covers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """60 times, so that 50 is 3.7 standard errors below nominal."""
    held: list[Logs] = []
    monkeypatch.setattr(Question, "logs", lambda self, file: held[-1])
    file = split(tmp_path / "log", 1)  # of which only the ids of episodes are read
    truth = float(MDP.start @ (TARGET * MDP.q(TARGET)).sum(axis=1))
    covered = 0
    for seed in range(60):
        held.append(simulate(MDP, BEHAVIOR, steps=1600, limit=40, seed=seed))
        found = sweep(file, TARGET, **{**ASKED, "confidence": 0.95}, model=Features(np.eye(6)), workers=1)
        covered += found.low <= truth <= found.high
    assert covered >= 50


def test_pairs_that_were_never_logged_are_told(tmp_path: Path) -> None:
    rows = frame()
    rows = rows.filter(~((rows["state"] == 2) & (rows["action"] == 1)))
    ends = (rows["episode"] != rows["episode"].shift(-1)).fill_null(True)  # what is left of an episode is cut there
    rows.drop("step").with_columns(terminated=False, truncated=ends).write_parquet(tmp_path / "log.parquet")
    columns = Columns(log_mu="log_mu", next_state="next_state", step=None)
    found = sweep(tmp_path / "log.parquet", TARGET, **{**ASKED, "columns": columns})
    assert found.unlogged == pytest.approx(found.counts[2].sum() / found.counts.sum() * TARGET[2, 1])
    assert "of π is on actions that were never logged there" in str(found)


def test_what_cannot_be_swept_is_said(tmp_path: Path) -> None:
    folder = split(tmp_path / "log", 1)

    def refused(message: str, target: Any = policy, **changes: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            sweep(folder, target, **{**FEATURES, **changes})

    refused("holds a λ for each step of one log", trace=ot.VariableLambda(np.full(3, 0.9)))
    refused("a sweep does not estimate it: declare the column", columns=Columns(state=("x", "y")))
    refused("has a target, but no coefficients β", trace=ot.PengQ())
    refused("evaluates the mixture of π and μ, not π", trace=ot.AlphaRetrace(mix=0.5))
    refused("defined by the greedy action", trace=ot.WatkinsQ())
    refused("reads ids of", trace=ot.replacing())
    refused("actions must be given", actions=None)
    refused("sweeps are those of a table", sweeps=2)
    refused("a Regressor needs all steps at once", model="trees")
    refused("needs states that are ids", model="table")
    refused(r"model='fourier' needs states that are features", TARGET, model="fourier", columns=COLUMNS)
    refused("should be ids, but the files have features", np.full((6, 3), 1 / 3))
    refused("should be features, but the files have ids", columns=COLUMNS)
    refused(r"confidence must lie in \(0, 1\)", confidence=95)
    refused(r"it must be \[n, A\]", lambda x: np.ones((len(x), 2)) / 2)
    refused("say what their features are", TARGET, model=Features(), columns=COLUMNS)


def test_the_command_takes_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = split(tmp_path / "log", 2)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\ndef policy(x):\n    return np.full((len(x), 3), [0.5, 0.25, 0.25])\n"
    )
    command = [
        "logs",
        "sweep",
        str(folder),
        "--policy",
        f"{tmp_path / 'mine.py'}:policy",
        "--lam",
        "0.9",
        "--gamma",
        "0.9",
        "-q",
    ]
    columns = ["--columns", "log_mu=log_mu", "state=x,y", "next_state=next_x,next_y"]
    assert cli.main([*command, "--json", "--model", "linear", "--actions", "3", *columns]) == 0
    told = json.loads(capsys.readouterr().out)
    wanted = sweep(folder, lambda x: np.full((len(x), 3), [0.5, 0.25, 0.25]), **FEATURES, model="linear")
    assert (told["value"], told["low"], told["high"]) == pytest.approx((wanted.value, wanted.low, wanted.high))
    assert cli.main([*command, *columns]) == 2
    assert "actions must be given" in capsys.readouterr().err
    assert cli.main([*command, "--actions", "3", "--no-interval", "--json", *columns]) == 0
    assert json.loads(capsys.readouterr().out)["low"] is None
