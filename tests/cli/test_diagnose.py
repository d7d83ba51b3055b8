"""`offtrace diagnose FILE`: the same numbers as `diagnose_weights`, whatever the file, and errors that say what is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import offtrace as ot
from offtrace.cli import main

RNG = np.random.default_rng(0)
PI, MU = np.array([0.6, 0.2, 0.2]), np.array([0.5, 0.3, 0.2])
ACTION = RNG.choice(3, p=MU, size=(60, 20))
BATCH = {"log_pi": np.log(PI)[ACTION], "log_mu": np.log(MU)[ACTION], "mask": RNG.random((60, 20)) < 0.8}


def test_a_file_of_each_kind_prints_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    polars, safetensors = pytest.importorskip("polars"), pytest.importorskip("safetensors.numpy")
    np.savez(tmp_path / "a.npz", **BATCH)
    safetensors.save_file(BATCH, tmp_path / "b.safetensors")
    polars.DataFrame({name: list(array) for name, array in BATCH.items()}).write_parquet(tmp_path / "c.parquet")
    wanted = ot.diagnose_weights(ot.TruncatedIS(bound=1.5), **BATCH, level="prefix")
    for file in ("a.npz", "b.safetensors", "c.parquet"):
        assert main(["diagnose", str(tmp_path / file), "--trace", "truncated-is", "--bound", "1.5"]) == 0
        out = capsys.readouterr().out
        assert str(wanted) in out
        assert "No mistake is seen" in out
        assert f"position 1 to {len(wanted.ess_by_position)}" in out


def test_packed_rows_of_unequal_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = BATCH["mask"].sum(1)
    flat = {name: BATCH[name][BATCH["mask"]] for name in ("log_pi", "log_mu")}
    np.savez(tmp_path / "a.npz", **flat, cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]))
    assert main(["diagnose", str(tmp_path / "a.npz")]) == 0
    out = capsys.readouterr().out
    wanted = ot.diagnose_weights(ot.ImportanceSampling(), **BATCH, level="prefix")
    assert f"ess sequence      {wanted['ess_sequence']:.4g}" in out


def test_rules_without_lambda_and_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", **BATCH)
    (tmp_path / "rules.py").write_text("import offtrace as ot\n\nmine = ot.Retrace(lam=0.5)\n")
    for name, trace in (("one-step", ot.OneStep()), (f"{tmp_path / 'rules.py'}:mine", ot.Retrace(lam=0.5))):
        assert main(["diagnose", str(tmp_path / "a.npz"), "--trace", name]) == 0
        assert str(ot.diagnose_weights(trace, **BATCH, level="prefix")) in capsys.readouterr().out


def test_a_mistake_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = BATCH["log_mu"] + 0.1 * RNG.normal(size=BATCH["log_mu"].shape)
    np.savez(tmp_path / "a.npz", old=noisy, rollout=np.roll(noisy, 1, axis=1))
    names = ["--columns", "log_pi=old", "--columns", "log_mu=rollout"]
    assert main(["diagnose", str(tmp_path / "a.npz"), *names, "-o", str(tmp_path / "ess.png")]) == 0
    captured = capsys.readouterr()
    assert "A shifted token" in captured.out
    assert "wrote" in captured.err
    assert (tmp_path / "ess.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["b.npz"], "no file"),
        (["a.txt"], "must end in"),
        (["a.npz", "--columns", "log_pi=olt"], "has no 'olt' (did you mean 'old'?)"),
        (["a.npz", "--columns", "log_p=old"], "did you mean 'log_pi'?"),
        (["a.npz"], "has no 'log_pi'"),
    ],
)
def test_errors(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", old=BATCH["log_pi"], log_mu=BATCH["log_mu"])
    (tmp_path / "a.txt").write_text("")
    assert main(["diagnose", str(tmp_path / options[0]), *options[1:]]) != 0
    assert message in capsys.readouterr().err
