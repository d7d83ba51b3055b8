"""Studies on Ray, one after another in one process, since starting a cluster takes long: `python ray_cluster.py STUDY OUT GATE`.

STUDY waits half-way for the file GATE. It is run by the command line on a new cluster, then on one of two nodes on this machine
while one of them dies, and twice more while the head is frozen, and lost. Between them, logs are swept, too, while a node dies,
and a study is run whose units raise in one environment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ray.cluster_utils import Cluster

from logs import test_sweep
from offtrace import cli
from offtrace.logs import sweep
from offtrace.studies import Study, StudyError, ray_executor
from studies import gated
from studies.small import declared, units_in


def main(file: str, out: Path, gate: Path) -> None:
    gate.touch()
    cli.main(["study", "run", file, "--on", "ray", "--workers", "1", "-q", "--out", str(out / "new")])
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    head = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args={**small, **head})
    log = test_sweep.split(out / "log", 12)
    in_sweep = out / "sweep" / "open"
    in_sweep.parent.mkdir()
    with dying(cluster, cluster.add_node(**small), in_sweep):
        waiting = partial(policy, gate=str(in_sweep))
        found = sweep(log, waiting, **test_sweep.FEATURES, on="ray", address=cluster.address)
    print(f"of features: {found.value!r} {found.low!r} with {len(cluster.list_all_nodes())} nodes left", flush=True)
    gate.unlink()
    with dying(cluster, cluster.add_node(**small), gate):
        Study.load(file, out=out / "two").run("ray", address=cluster.address, progress=False)
    print(f"nodes at its end: {len(cluster.list_all_nodes())}", flush=True)
    found = sweep(log, test_sweep.TARGET, **test_sweep.ASKED, on="ray", address=cluster.address)
    print(f"swept: {found.value!r}", flush=True)
    gate.unlink()
    places = [f"raising:states=5,gate={gate}", "random-walk:states=5"]
    given = declared(modules=["studies.gated"], environments=places, traces=["Retrace"])
    raises = Study.declared(given, out=out / "raises")
    try:
        raises.run("ray", address=cluster.address, progress=False)
    except StudyError as error:
        print(f"raised {raises.status().done}: {error}", flush=True)
    ray_executor.SILENCE = 10.0
    head_node: Any = cluster.head_node
    gcs = head_node.all_processes["gcs_server"][0].process
    for what, number in (("frozen", signal.SIGSTOP), ("lost", signal.SIGKILL)):
        gate.unlink(missing_ok=True)
        study = Study.load(file, out=out / what)
        threading.Thread(target=signal_head, args=(gcs, number, study), daemon=True).start()
        try:
            study.run("ray", address=cluster.address, progress=False)
        except StudyError as error:
            print(f"{what}: {error}", flush=True)
        gcs.send_signal(signal.SIGCONT)
    os._exit(0)  # Ray would wait for its head


def policy(x: np.ndarray, gate: str) -> np.ndarray:
    gated.wait(gate)
    return test_sweep.policy(x)


@contextmanager
def dying(cluster: Any, node: Any, gate: Path) -> Iterator[None]:
    """The node dies when the workers of both are in the midst of their work; then the gate is opened."""

    def end() -> None:
        while len(list(gate.parent.glob("waiting-*"))) < 2:
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)
        gate.touch()

    cluster.wait_for_nodes()
    killer = threading.Thread(target=end, daemon=True)
    killer.start()
    yield
    killer.join()


def signal_head(gcs: Any, number: int, study: Study) -> None:
    """When some units are written and others are not."""
    while not units_in(study):
        time.sleep(0.05)
    gcs.send_signal(number)


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
