"""Real Ray: two nodes on this machine, one of them killed half-way. Rows are those of local processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from offtrace.studies import Study, StudyError
from studies.small import declared, equal, longer

pytest.importorskip("ray")
QUIET = os.environ | {
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONWARNINGS": "ignore",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.declared(longer(steps=15_000), out=tmp_path_factory.mktemp("local")).run(progress=False)


@pytest.mark.parametrize("nodes", [2, 1])
def test_two_nodes_and_one_that_is_killed(local: Study, tmp_path: Path, nodes: int) -> None:
    file = tmp_path / "study.toml"
    file.write_text(local.as_toml(), encoding="utf-8")
    script = Path(__file__).parent / "ray_cluster.py"
    arguments = [sys.executable, script, file, tmp_path, *(["kill"] if nodes == 1 else [])]
    ran = subprocess.run(arguments, capture_output=True, text=True, env=QUIET, timeout=900)
    assert ran.returncode == 0, ran.stderr
    assert f"nodes at the end: {nodes}" in ran.stdout
    study = local.at(tmp_path)
    assert equal(study.records(), local.records())
    assert equal(study.curves(), local.curves())
    assert not study.status().problems


def test_a_new_cluster_on_this_machine(tmp_path: Path) -> None:
    """By the command line; its rows are those of local processes."""
    study = Study.declared(declared())
    half = Study.declared(declared(environments=["random-walk:states=5"]), out=tmp_path)
    command = [
        sys.executable,
        "-m",
        "offtrace.cli",
        "study",
        "run",
        "study.toml",
        "--on",
        "ray",
        "--workers",
        "1",
        "-q",
    ]
    (tmp_path / "study.toml").write_text(half.as_toml(), encoding="utf-8")
    ran = subprocess.run(command, capture_output=True, text=True, env=QUIET, timeout=900, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "finished; units: tuning 12/12, test 4/4" in ran.stdout
    whole = study.run(out=tmp_path / "local", progress=False).records().filter(environment="random-walk:states=5")
    on_ray = half.at(tmp_path / "offtrace-studies").records()
    assert equal(on_ray.drop("unit"), whole.drop("unit"))


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense"])
def test_a_cluster_that_is_not_there(address: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"there is no Ray cluster at '{address}'"):
        Study.declared(declared()).run("ray", address=address, out=tmp_path)
