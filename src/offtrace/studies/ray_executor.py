"""Ray: units as tasks of a cluster. Nodes may join and leave while they run. They need the same version of offtrace.

Ray itself runs in a separate process, the driver: many calls of Ray never return when its head is lost or frozen, or end their
process. The driver says every few seconds that the cluster answers; if it does not, it is ended and the study stops
with an error that says so. Only the coordinator writes.
"""

from __future__ import annotations

import math
import os
import platform
import queue
import signal
import socket
import sys
import time
from importlib.util import find_spec
from multiprocessing.connection import wait
from typing import Any

from offtrace._shared.cores import cores
from offtrace._shared.extras import install
from offtrace.studies.executor import ONE_THREAD, SHARED, START, Answer, Child, Executor
from offtrace.studies.fields import StudyError
from offtrace.studies.plan import Failure, Job

LOST = 20
"""How often a unit may be lost with its node. It may raise, or be lost with its worker alone, as often as a local one."""
SILENCE = 30.0
"""Seconds without a message after which the driver counts as frozen."""
ALIVE = 2.0
"""Seconds between two heartbeats of the driver."""
LEAVING = 5.0
"""Seconds after its last message that the driver has to leave the cluster."""


class RayCluster(Executor):
    """A Ray cluster: the one at `address`, or a new one on this machine."""

    def __init__(self, address: str | None, workers: int | None, patience: float) -> None:
        super().__init__()
        if not find_spec("ray"):
            raise ImportError(f"running on Ray needs Ray: {install('ray')}")
        self.address = address or _address_in_use() or os.environ.get("RAY_ADDRESS") or "local"
        self.nodes = self.cpus = 0
        try:
            require_listener(self.address)
        except (OSError, ValueError) as error:
            raise self._not_there(str(error)) from error
        self.child = Child("ray_executor.py", self.address, str(workers or cores()), str(patience))
        self.heard = time.monotonic()
        try:
            while not self.cpus:
                self._messages(1.0, START)
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return f"Ray, {self.nodes} node{'s' if self.nodes > 1 else ''}, {self.cpus} CPUs"

    def submit(self, job: Job) -> None:
        """Give a unit to the driver."""
        super().submit(job)
        self.child.send(job)

    def answers(self, timeout: float) -> list[Answer]:
        """What has come in, and from which worker; after `timeout` seconds, perhaps nothing."""
        return self._messages(timeout, SILENCE)

    def _messages(self, timeout: float, silence: float) -> list[Answer]:
        wait([self.child.socket], timeout)
        status = self.child.status
        answers: list[Answer] = []
        for kind, *content in self.child.messages():
            self.heard = time.monotonic()
            if kind == "answer":
                answers.append((content[0], content[1]))
            elif kind == "alive":
                self.nodes, self.cpus = content
                self.slots = 8 + 3 * self.cpus  # some wait in Ray, for nodes that join
            elif kind == "not there":
                raise self._not_there(content[0])
            elif kind == "lost":
                raise self._lost(content[0])
        if not answers and status is not None:
            raise self._lost(f"the process that calls it has ended with status {status}")
        if not answers and time.monotonic() - self.heard > silence:
            if not self.cpus:
                raise self._not_there(f"no answer within {silence:g} s")
            raise self._lost(f"it has said nothing for {silence:g} s")
        return answers

    def _not_there(self, why: str) -> StudyError:
        return StudyError(
            f"there is no Ray cluster at {self.address!r} ({why}). Start one with `ray start --head` and give its address, or "
            "leave --address out for a new one on this machine"
        )

    def _lost(self, why: str) -> StudyError:
        return StudyError(
            f"the Ray cluster at {self.address!r} no longer answers: {why}. What has come in is written; start the cluster "
            "again, and the same command continues from here"
        )

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self.cpus:
            self.child.send("leave")
            while self.child.status is None and time.monotonic() - self.heard < LEAVING:
                time.sleep(0.05)
        self.child.end()


def _address_in_use() -> str | None:
    """The address of the cluster to which this process is connected already."""
    ray: Any = sys.modules.get("ray")
    return str(ray.get_runtime_context().gcs_address) if ray and ray.is_initialized() else None


def require_listener(address: str) -> None:
    """Raise an OSError if nothing listens there: Ray would try for a long time."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("an address is host:port, ray://host:port or auto")
    with socket.create_connection((host, int(port)), timeout=5):
        pass


def run_on_node(job: Job, patience: float) -> Answer:
    """On a node: the outcome or the failure, and the worker. After `patience` seconds the system's timer ends the process."""
    from offtrace.studies import tasks

    worker = f"{platform.node()}:{os.getpid()}"
    signal.setitimer(signal.ITIMER_REAL, patience if patience < math.inf else 0.0)
    try:
        return tasks.run(job), worker
    except Exception as error:
        return Failure.raised(job.unit, error), worker
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def nothing() -> None:
    """A task that shows that the cluster runs tasks."""


class Driver:
    """The process that calls Ray."""

    def __init__(self, connection: socket.socket, messages: queue.SimpleQueue[bytes], patience: float) -> None:
        import ray

        self.ray: Any = ray
        self.patience = patience
        self.connection, self.inbox = connection, messages
        self.running: dict[Any, Job] = {}

    def say(self, *message: object) -> None:
        """Send a message to the coordinator."""
        from offtrace.studies.worker import packed

        self.connection.sendall(packed(message))

    def connect(self, address: str, workers: int) -> None:
        """Join the cluster, or start one, and run a first, empty task."""
        environment = {"env_vars": ONE_THREAD | SHARED}
        settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": environment}
        if address == "local":
            settings |= {"num_cpus": workers, "num_gpus": 0, "include_dashboard": False}
            settings |= {"object_store_memory": 100 * 2**20, "_node_ip_address": "127.0.0.1"}
        self.ray.init(address=address, **settings)
        self.ray.get(self.ray.remote(nothing).options(num_cpus=1).remote())
        # One environment for the whole job: workers that Ray starts in advance could not be used for a task with another one.
        self.remote = self.ray.remote(run_on_node).options(num_cpus=1, max_retries=0, name="offtrace unit")

    def report_alive(self) -> None:
        """Say that the cluster answers, and that this machine still belongs to it."""
        own = self.ray.get_runtime_context().get_node_id()
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        if own not in [node["NodeID"] for node in nodes]:
            self.say("lost", "this machine no longer belongs to it: its raylet has ended")
            os._exit(1)
        self.say("alive", len(nodes), max(1, int(sum(node["Resources"].get("CPU", 0) for node in nodes))))

    def work(self) -> None:
        """Hand units to Ray and answers to the coordinator, until it says that this shall end."""
        import pickle

        reported = time.monotonic()
        while True:
            while not self.inbox.empty():
                message: Any = pickle.loads(self.inbox.get())
                if message == "leave":
                    return
                self.running[self.remote.remote(message, self.patience)] = message
            refs = list(self.running)
            if not refs:
                time.sleep(0.05)
            ready, _ = self.ray.wait(refs, timeout=0.1) if refs else ([], [])
            if ready:
                ready, _ = self.ray.wait(refs, num_returns=len(refs), timeout=0)
            for ref in ready:
                self.say("answer", *self._answer(ref, self.running.pop(ref)))
            if time.monotonic() - reported > ALIVE:
                reported = time.monotonic()
                self.report_alive()

    def _answer(self, ref: Any, job: Job) -> Answer:
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            with_worker = isinstance(error, self.ray.exceptions.WorkerCrashedError | self.ray.exceptions.RayTaskError)
            what = f"it was lost with its {'worker' if with_worker else 'node'}: {error}".splitlines()[0]
            return Failure(job.unit, what, str(error), 3 if with_worker else LOST), "ray"


def main() -> None:
    """The driver: `python ray_executor.py SOCKET ADDRESS WORKERS PATIENCE`."""
    import warnings

    from offtrace.studies.worker import connected

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    warnings.simplefilter("ignore")
    # By its name, and not as __main__, which no worker of Ray could import
    from offtrace.studies import ray_executor

    connection, messages = connected()
    driver = ray_executor.Driver(connection, messages, float(sys.argv[4]))
    try:
        driver.connect(sys.argv[2], int(sys.argv[3]))
    except (OSError, RuntimeError, ValueError) as error:
        driver.say("not there", (str(error).strip() or type(error).__name__).splitlines()[0])
        os._exit(1)
    driver.report_alive()
    driver.work()
    driver.ray.shutdown()
    os._exit(0)  # Ray's threads need not end


if __name__ == "__main__":
    main()
