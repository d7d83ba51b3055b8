"""A study on a Ray cluster of two nodes on this machine: `python ray_cluster.py STUDY OUT [kill]`. With `kill`, one node dies."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from offtrace.studies import Study


def main(file: str, out: str, kill: bool) -> None:
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    second = cluster.add_node(**{k: v for k, v in small.items() if k != "include_dashboard"})
    cluster.wait_for_nodes()
    study = Study.load(file, out=out)
    if kill:
        threading.Thread(target=end, args=(cluster, second, study), daemon=True).start()
    study.run("ray", address=cluster.address, progress=False)
    alive = len(cluster.list_all_nodes())
    print(f"nodes at the end: {alive}", flush=True)
    cluster.shutdown()


def end(cluster: Any, node: Any, study: Study) -> None:
    """When some units are written and others are not."""
    while not list((study.folder / "units").glob("part-*.parquet")):
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)


if __name__ == "__main__":
    main(sys.argv[1], str(Path(sys.argv[2])), "kill" in sys.argv[3:])
