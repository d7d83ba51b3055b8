"""Studies on Ray, one after another in one process, since starting a cluster takes long: `python ray_cluster.py STUDY OUT GATE`.

STUDY waits half-way for the file GATE. It is run by the command line on a new cluster, then on one of two nodes on this machine,
again while one of them dies, and once more while the head is lost. Between them, logs are swept while a third node dies.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from logs import test_partitions
from offtrace import cli
from offtrace.logs import sweep
from offtrace.logs.partitions import kept_sums
from offtrace.studies import Study, StudyError


def main(file: str, out: Path, gate: Path) -> None:
    gate.touch()
    cli.main(["study", "run", file, "--on", "ray", "--workers", "1", "-q", "--out", str(out / "new")])
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    second = cluster.add_node(**small)
    cluster.wait_for_nodes()
    whole, broken = Study.load(file, out=out / "two"), Study.load(file, out=out / "one")
    whole.run("ray", address=cluster.address, progress=False)
    print(f"nodes of the first: {len(cluster.list_all_nodes())}", flush=True)
    sweep_logs(cluster, cluster.add_node(**small), out)
    gate.unlink()
    killer = threading.Thread(target=end, args=(cluster, second, broken, gate), daemon=True)
    killer.start()
    broken.run("ray", address=cluster.address, progress=False)
    killer.join()
    print(f"nodes of the second: {len(cluster.list_all_nodes())}", flush=True)
    gate.unlink()
    lost = Study.load(file, out=out / "lost")
    killer = threading.Thread(target=lose_head, args=(cluster, lost), daemon=True)
    killer.start()
    try:
        lost.run("ray", address=cluster.address, progress=False)
    except StudyError as error:
        print(f"lost: {error}", flush=True)
    os._exit(0)  # Ray would wait for its head


def sweep_logs(cluster: Any, node: Any, out: Path) -> None:
    """A log in twelve files, while a node that reads some of them dies."""
    cluster.wait_for_nodes()
    folder, kept, kept_sums.EVERY = test_partitions.split(out / "log", 12), out / "kept", 0.0

    def end_node() -> None:
        while not (kept / "now.npz").exists():
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=end_node, daemon=True)
    killer.start()
    asked = {**test_partitions.ASKED, "on": "ray", "address": cluster.address, "checkpoint": kept}
    found = sweep(folder, test_partitions.TARGET, **asked)
    killer.join()
    by_features = sweep(folder, test_partitions.policy, **test_partitions.FEATURES, on="ray", address=cluster.address)
    print(f"of features: {by_features.value!r} {by_features.low!r}", flush=True)
    print(f"swept: {found.value!r} with {len(cluster.list_all_nodes())} nodes left", flush=True)


def lose_head(cluster: Any, study: Study) -> None:
    """When some units are written and others are not."""
    while not list((study.folder / "units").glob("part-*.parquet")):
        time.sleep(0.05)
    cluster.head_node.kill_gcs_server()


def end(cluster: Any, node: Any, study: Study, gate: Path) -> None:
    """When some units are written and others are not."""
    while not list((study.folder / "units").glob("part-*.parquet")):
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)
    gate.touch()


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
