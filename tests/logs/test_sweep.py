"""Logs in many files: the same numbers as from one, whoever reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import offtrace as ot
from offtrace import cli, mdps
from offtrace.logs import Columns, LogsError, evaluate, read, simulate, sweep

MDP = mdps.garnet(6, 3, 2, seed=3, gamma=0.9)
RNG = np.random.default_rng(0)
TARGET = RNG.dirichlet(np.ones(3), 6)
TARGET[0] = [1.0, 0.0, 0.0]
BEHAVIOR = np.full((6, 3), 1 / 3)
COLUMNS = Columns(log_mu="log_mu", next_state="next_state")
ASKED = {"trace": ot.RBIS(lam=0.9), "gamma": 0.9, "columns": COLUMNS, "confidence": None}
PLACES = RNG.normal(size=(6, 2))
"""Features of the states."""
FEATURES = {
    **ASKED,
    "columns": Columns(state=("x", "y"), next_state=("next_x", "next_y"), log_mu="log_mu"),
    "actions": 3,
    "confidence": 0.95,
}


def policy(x: np.ndarray) -> np.ndarray:
    """π on features."""
    weight = np.exp(x @ np.array([[1.0, 0.0, -1.0], [0.0, 0.5, 0.0]]))
    return weight / weight.sum(axis=1, keepdims=True)


def frame(episodes: int = 40) -> pl.DataFrame:
    logs = simulate(MDP, BEHAVIOR, steps=20 * episodes, limit=20, seed=1)
    length = np.diff(logs.starts)
    held = {name: np.asarray(getattr(logs, name)) for name in ("state", "next_state", "action", "reward", "log_mu")}
    flags = {name: np.asarray(getattr(logs, name)) for name in ("terminated", "truncated")}
    step = np.concatenate([np.arange(n) for n in length])
    both = np.concatenate([PLACES[held["state"]], PLACES[held["next_state"]]], axis=1)
    places = dict(zip(("x", "y", "next_x", "next_y"), both.T, strict=True))
    return pl.DataFrame({"episode": np.repeat(np.arange(len(length)), length), "step": step, **held, **flags, **places})


def split(folder: Path, files: int) -> Path:
    folder.mkdir()
    whole = frame()
    for i, part in enumerate(np.array_split(whole["episode"].unique(maintain_order=True).to_numpy(), files)):
        whole.filter(pl.col("episode").is_in(part.tolist())).write_parquet(folder / f"part-{i:02}.parquet")
    return folder


def test_files_and_workers_do_not_matter(tmp_path: Path) -> None:
    logs = read(frame(), columns=COLUMNS, states=6, actions=3)
    whole = evaluate(logs, TARGET, trace=ASKED["trace"], gamma=0.9, estimators=["fitted"], resamples=50)
    for files, workers in ((1, 1), (3, 2), (7, 1)):
        found = sweep(split(tmp_path / str(files), files), TARGET, workers=workers, **ASKED)
        assert found.converged
        assert found.value == pytest.approx(whole.rows()[0]["estimate"], rel=1e-9)
        np.testing.assert_allclose(found.Q, whole.q(np.arange(6)), rtol=1e-8)
        assert (found.steps, found.episodes) == (len(logs), logs.episodes)
    returns = [
        (0.9 ** np.arange(b - a) * logs.reward[a:b]).sum() for a, b in zip(logs.starts, logs.starts[1:], strict=False)
    ]
    assert found.observed == pytest.approx(np.mean(returns))
    assert found.observed_error == pytest.approx(np.std(returns, ddof=1) / np.sqrt(len(returns)))
    assert "as logged" in str(found)


def test_sweeps_are_those_of_the_operator(tmp_path: Path) -> None:
    logs = read(frame(), columns=COLUMNS, states=6, actions=3)
    folder, pair = split(tmp_path / "log", 3), logs.state * 3 + logs.action
    Q, n = np.zeros(18), np.maximum(np.bincount(pair, minlength=18), 1)
    for sweeps in (1, 2, 3):
        v = (TARGET * Q.reshape(6, 3)).sum(axis=1)[logs.next_state]
        with np.errstate(divide="ignore"):
            log_pi = np.log(TARGET[logs.state, logs.action])
        Δ = ot.corrections(
            ASKED["trace"], reward=logs.reward, q=Q[pair], next_value=v, terminated=logs.terminated,
            truncated=logs.truncated, log_pi=log_pi, log_mu=logs.log_mu, gamma=0.9,
        )  # fmt: skip
        Q = Q + np.bincount(pair, Δ, 18) / n
        found = sweep(folder, TARGET, sweeps=sweeps, **ASKED)
        np.testing.assert_allclose(found.Q.ravel(), Q, rtol=1e-10)
        assert (found.sweeps, found.converged) == (sweeps, False)


def test_bad_input_is_named(tmp_path: Path) -> None:
    folder = split(tmp_path / "log", 2)
    whole = frame()
    whole.filter(pl.col("episode") == 3).with_columns(pl.col("step")).write_parquet(folder / "part-09.parquet")
    with pytest.raises(
        LogsError, match=r"episode 3 is in 2 files, part-00\.parquet and part-09\.parquet: each episode"
    ):
        sweep(folder, TARGET, **ASKED)
    (folder / "part-09.parquet").unlink()
    mixed = whole.with_columns(
        episode=pl.col("episode") % 2 * 100 + pl.col("episode")
    )  # ranges overlap, episodes do not
    for i in (0, 1):
        mixed.filter(pl.col("episode") % 3 == i).write_parquet(folder / f"part-0{i}.parquet")
    assert sweep(folder, TARGET, sweeps=1, **ASKED).episodes < whole["episode"].n_unique()
    with pytest.raises(LogsError, match="state"):
        sweep(folder, TARGET[:4], **ASKED)
    with pytest.raises(ValueError, match="sum to one"):
        sweep(folder, TARGET / 2, **ASKED)
    with pytest.raises(TypeError, match=r"table of probabilities \[S, A\]"):
        sweep(folder, TARGET[0], **ASKED)
    with pytest.raises(FileNotFoundError, match="no folder, file or pattern"):
        sweep(tmp_path / "none*.parquet", TARGET, **ASKED)
    with pytest.raises(ValueError, match='"here" or "ray"'):
        sweep(folder, TARGET, on="there", **ASKED)  # pyright: ignore[reportArgumentType]


def test_the_command_sweeps_and_names_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = split(tmp_path / "log", 2)
    plain = sweep(folder, TARGET, **ASKED)
    named = [f"s{i}" for i in range(6)]
    for file in folder.iterdir():
        ids = dict(enumerate(named))
        part = pl.read_parquet(file)
        part.with_columns(pl.col("state", "next_state").replace_strict(ids)).write_parquet(file)
    np.savez(tmp_path / "policy.npz", probabilities=TARGET[::-1], states=np.array(named[::-1]))
    command = [
        "logs",
        "sweep",
        str(folder),
        "--policy",
        str(tmp_path / "policy.npz"),
        "--lam",
        "0.9",
        "--gamma",
        "0.9",
        "--json",
    ]
    columns = [
        "--columns",
        "log_mu=log_mu",
        "next_state=next_state",
        "--no-interval",
        "-q",
        "-o",
        str(tmp_path / "found.npz"),
    ]
    assert cli.main([*command, *columns]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(plain.value, rel=1e-9)
    np.testing.assert_allclose(np.load(tmp_path / "found.npz")["Q"][::-1], plain.Q, rtol=1e-8)
    assert cli.main([*command, "--columns", "log_mu=none"]) == 2
    assert "no column" in capsys.readouterr().err
