"""Real Ray: two nodes on this machine, one of them killed half-way. Rows are those of local processes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from logs import test_sweep
from offtrace.logs import sweep
from offtrace.studies import Study, StudyError
from studies.small import declared, equal, half_way

pytest.importorskip("ray")
QUIET = os.environ | {
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONWARNINGS": "ignore",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONPATH": os.pathsep.join(sys.path),  # the nodes import the modules of the study
}


@pytest.mark.whole
def test_two_nodes_and_one_that_is_killed_and_a_new_cluster(tmp_path: Path) -> None:
    gate, file = tmp_path / "open", tmp_path / "study.toml"
    local = Study.declared(half_way(gate), out=tmp_path / "local").run(workers=0, progress=False)
    file.write_text(local.as_toml(), encoding="utf-8")
    script = Path(__file__).parent / "ray_cluster.py"
    ran = subprocess.run([sys.executable, script, file, tmp_path, gate], capture_output=True, text=True, env=QUIET)
    assert ran.returncode == 0, ran.stderr
    assert "nodes at its end: 1\n" in ran.stdout
    assert "finished; units: tuning 10/10, test 2/2" in ran.stdout
    for out in ("two", "new"):
        study = local.at(tmp_path / out)
        assert equal(study.records(), local.records())
        assert equal(study.curves(), local.curves())
        assert not study.status().problems
    swept = sweep(tmp_path / "log", test_sweep.TARGET, **test_sweep.ASKED)
    assert f"swept: {swept.value!r}\n" in ran.stdout  # sums are in the order of the files: equal to the bit
    by_features = sweep(tmp_path / "log", test_sweep.policy, **test_sweep.FEATURES)
    assert f"of features: {by_features.value!r} {by_features.low!r} with 1 nodes left\n" in ran.stdout
    assert "raised {'tuning': (3, 6), 'test': (1, 2)}: 3 units were set aside; the others are done" in ran.stdout
    assert (tmp_path / "tried").read_text() == 9 * "x"
    for what in ("frozen", "lost"):
        assert re.search(f"{what}: the Ray cluster at .* no longer answers", ran.stdout)
        begun = local.at(tmp_path / what)
        assert 0 < begun.status().rows < local.status().rows
        assert equal(begun.run(workers=0, progress=False).records(), local.records())


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nonsense"])
def test_a_cluster_that_is_not_there(address: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"there is no Ray cluster at '{address}'"):
        Study.declared(declared()).run("ray", address=address, out=tmp_path)


def test_a_port_on_which_something_else_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait there."""
    monkeypatch.setattr("offtrace.studies.ray_executor.START", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(StudyError, match=f"there is no Ray cluster at '{address}' .*within 1 s"):
            Study.declared(declared()).run("ray", address=address, out=tmp_path)
