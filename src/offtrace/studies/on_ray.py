"""Ray: the same units as tasks of a cluster. Only the driver writes; a task that dies with its worker or node is run again.

Nodes may join and leave while it runs. They need the same version of offtrace.
"""

from __future__ import annotations

import os
import platform
import socket
import warnings
from typing import Any

import offtrace
from offtrace._shared.cores import cores
from offtrace.studies.checks import StudyError
from offtrace.studies.local_processes import ATTEMPTS, ONE_THREAD, SHARED
from offtrace.studies.plan import Job, Outcome

RETRIES = 20
"""By Ray itself, when a worker or a node is lost."""

ENVIRONMENT = {"env_vars": ONE_THREAD | SHARED}


def task(job: Job) -> tuple[Any, str, str]:
    """On a node: the outcome, the worker, its version of offtrace."""
    from offtrace.studies import work

    return work.run(job), f"{platform.node()}:{os.getpid()}", offtrace.__version__


class RayPool:
    """A Ray cluster: the one at `address`, or a new one on this machine."""

    def __init__(self, address: str | None, workers: int | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                import ray
            except ImportError:
                raise ImportError("running on Ray needs Ray: pip install 'offtrace[ray]'") from None
            self.ray, self.own = ray, False
            if not ray.is_initialized():
                self._connect(address or os.environ.get("RAY_ADDRESS") or "local", workers)
        # Of a whole job at best: workers that Ray has started before it knows of a task would be of no use to it.
        settings = {} if self.own else {"runtime_env": ENVIRONMENT}
        self.remote = ray.remote(task).options(num_cpus=1, max_retries=RETRIES, name="offtrace unit", **settings)
        self.waiting: dict[Any, Job] = {}
        self.deaths: dict[str, int] = {}
        self.failure: StudyError | None = None

    def _connect(self, address: str, workers: int | None) -> None:
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": ENVIRONMENT}
        try:
            if address == "local":
                self.ray.init(
                    address="local",
                    num_cpus=workers or cores(),
                    num_gpus=0,
                    include_dashboard=False,
                    object_store_memory=100 * 2**20,
                    _node_ip_address="127.0.0.1",
                    **quiet,
                )
            else:
                _knock(address)
                self.ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            why = str(error).strip().splitlines()[0]
            raise StudyError(
                f"there is no Ray cluster at {address!r} ({why}). Start one with `ray start --head` and give its address, or "
                "leave --address out for a new one on this machine"
            ) from error
        self.own = True

    def __str__(self) -> str:
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        return f"Ray, {nodes} node{'s' if nodes > 1 else ''}, {self._cpus()} CPUs"

    def _cpus(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def pending(self) -> int:
        """Jobs that were taken and not answered."""
        return len(self.waiting)

    @property
    def room(self) -> int:
        """How many more jobs it would take: enough that nodes which join find some."""
        return max(0, 8 + 3 * self._cpus() - self.pending)

    def submit(self, job: Job) -> None:
        """Take a job."""
        self.waiting[self.remote.remote(job)] = job

    def answered(self, timeout: float) -> list[tuple[Outcome, str]]:
        """What has come in: (outcome, worker); after `timeout` seconds, perhaps nothing."""
        if self.failure:  # what came in with it has been handed on by now
            raise self.failure
        ready, _ = self.ray.wait(list(self.waiting), timeout=timeout)
        if ready:
            ready, _ = self.ray.wait(list(self.waiting), num_returns=len(self.waiting), timeout=0)
        found = []
        for ref in ready:
            job = self.waiting.pop(ref)
            try:
                outcome, worker, version = self.ray.get(ref)
            except self.ray.exceptions.RayTaskError as error:
                self.failure = StudyError(f"a unit failed: {job.unit}\n{error}")
                continue
            except self.ray.exceptions.RayError as error:
                self.deaths[job.unit.id] = self.deaths.get(job.unit.id, 0) + 1
                if self.deaths[job.unit.id] >= ATTEMPTS:
                    self.failure = StudyError(f"a unit was lost {ATTEMPTS} times: {job.unit}\n{error}")
                else:
                    self.submit(job)
                continue
            if version != offtrace.__version__:
                self.failure = StudyError(
                    f"{worker} has offtrace {version}, and this is {offtrace.__version__}: install the same on all nodes"
                )
                continue
            found.append((outcome, worker))
        return found

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        for ref in self.waiting:
            self.ray.cancel(ref, force=True)
        if self.own:
            self.ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself would try for a long time."""
    if address == "auto":
        return
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("an address is host:port, ray://host:port or auto")
    with socket.create_connection((host, int(port)), timeout=5):
        pass
