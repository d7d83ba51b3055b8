"""Ray: the same units as tasks of a cluster. Only the driver writes; a task that dies with its worker or node is run again.

Nodes may join and leave while it runs. They need the same version of offtrace.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading
import time
import warnings
from collections.abc import Callable

import offtrace
from offtrace._shared.cores import cores
from offtrace._shared.extras import install
from offtrace.studies.declaration_checks import StudyError
from offtrace.studies.local_processes import ATTEMPTS, ONE_THREAD, SHARED
from offtrace.studies.plan import Failure, Job, Outcome

RETRIES = 20
"""So often may a unit be lost with its node. It may raise, or be lost with its worker alone, as often as a local one."""
START = 300.0
"""Seconds within which a cluster must have run a first, empty task."""
HEAD = 5.0
"""Seconds between two knocks at the head. When it is lost, Ray waits for ever, or ends this process after a minute."""

ENVIRONMENT = {"env_vars": ONE_THREAD | SHARED}


def nothing() -> None:
    """A task that shows that the cluster runs tasks."""


def task(job: Job) -> tuple[Outcome | Failure, str, str]:
    """On a node: the outcome or the failure, the worker, its version of offtrace."""
    from offtrace.studies import work

    try:
        answer: Outcome | Failure = work.run(job)
    except Exception as error:
        answer = Failure.raised(job.unit, error)
    return answer, f"{platform.node()}:{os.getpid()}", offtrace.__version__


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
                raise ImportError(f"running on Ray needs Ray: {install('ray')}") from None
            self.ray, self.own = ray, False
            if not ray.is_initialized():
                self._connect(address or os.environ.get("RAY_ADDRESS") or "local", workers)
        by_client = bool(address) and str(address).startswith("ray://")
        self.head = str(address) if by_client else str(ray.get_runtime_context().gcs_address)
        self.looked, self.missed, self.cpus = time.monotonic(), 0, self._count()
        # Of a whole job at best: workers that Ray has started before it knows of a task would be of no use to it.
        settings = {} if self.own else {"runtime_env": ENVIRONMENT}
        self.remote = ray.remote(task).options(num_cpus=1, max_retries=0, name="offtrace unit", **settings)
        self.waiting: dict[object, Job] = {}
        self.failures: dict[str, int] = {}
        self.failure: StudyError | None = None

    def _connect(self, address: str, workers: int | None) -> None:
        quiet: dict[str, object] = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": ENVIRONMENT}
        if address == "local":
            quiet |= {"num_cpus": workers or cores(), "num_gpus": 0, "include_dashboard": False}
            quiet |= {"object_store_memory": 100 * 2**20, "_node_ip_address": "127.0.0.1"}
        try:
            _knock(address, self.ray.util.get_node_ip_address)
            if address == "local":  # its processes end with the thread that starts them
                self._start(address, quiet)
            else:
                _within(START, lambda: self._start(address, quiet), f"no answer within {START:g} s")
        except (OSError, RuntimeError, ValueError) as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise StudyError(
                f"there is no Ray cluster at {address!r} ({why}). Start one with `ray start --head` and give its address, or "
                "leave --address out for a new one on this machine"
            ) from error
        self.own = True

    def _start(self, address: str, settings: dict[str, object]) -> None:
        self.ray.init(address=address, **settings)
        self.ray.get(self.ray.remote(nothing).options(num_cpus=1).remote(), timeout=START)

    def __str__(self) -> str:
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        return f"Ray, {nodes} node{'s' if nodes > 1 else ''}, {self._count()} CPUs"

    def _count(self) -> int:
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def pending(self) -> int:
        """Jobs that were taken and not answered."""
        return len(self.waiting)

    @property
    def room(self) -> int:
        """How many more jobs it would take: enough that nodes which join find some."""
        return max(0, 8 + 3 * self.cpus - self.pending)

    def submit(self, job: Job) -> None:
        """Give a job to Ray."""
        self.waiting[self.remote.remote(job)] = job

    def answered(self, timeout: float) -> list[tuple[Outcome | Failure, str]]:
        """What has come in: (outcome, worker); after `timeout` seconds, perhaps nothing."""
        if self.failure:  # what came in with it has been handed on by now
            raise self.failure
        ready, _ = self.ray.wait(list(self.waiting), timeout=timeout)
        self._look_at_head()
        if ready:
            ready, _ = self.ray.wait(list(self.waiting), num_returns=len(self.waiting), timeout=0)
        found: list[tuple[Outcome | Failure, str]] = []
        for ref in ready:
            job = self.waiting.pop(ref)
            try:
                answer, worker, version = self.ray.get(ref)
            except self.ray.exceptions.RayTaskError as error:
                self.failure = StudyError(f"a unit failed: {job.unit}\n{error}")
                continue
            except self.ray.exceptions.RayError as error:
                crashed = isinstance(error, self.ray.exceptions.WorkerCrashedError)
                lost = Failure(
                    job.unit,
                    f"it was lost with its {'worker' if crashed else 'node'}: {error}".splitlines()[0],
                    str(error),
                )
                found += self._again_or(lost, job, ATTEMPTS if crashed else RETRIES)
                continue
            if version != offtrace.__version__:
                self.failure = StudyError(
                    f"{worker} has offtrace {version}, and this is {offtrace.__version__}: install the same on all nodes"
                )
                continue
            found += self._again_or(answer, job, ATTEMPTS) if isinstance(answer, Failure) else [(answer, worker)]
        return found

    def _again_or(self, failure: Failure, job: Job, attempts: int) -> list[tuple[Outcome | Failure, str]]:
        """Try a unit again, or return its failure if it has failed so often."""
        self.failures[job.unit.id] = self.failures.get(job.unit.id, 0) + 1
        if self.failures[job.unit.id] >= attempts:
            return [(failure, "ray")]
        self.submit(job)
        return []

    def _look_at_head(self) -> None:
        """Count the CPUs anew; an error if the head no longer answers, of which Ray itself would not tell."""
        if time.monotonic() - self.looked < HEAD:
            return
        self.looked = time.monotonic()
        try:
            _knock(self.head)
        except OSError as error:
            self.missed += 1
            if self.missed > 1:
                raise StudyError(
                    f"the head of the Ray cluster at {self.head} no longer answers ({error}). What has come in is written; start "
                    "the cluster again, and the same command goes on from here"
                ) from error
        else:
            self.missed, self.cpus = 0, self._count()

    def close(self) -> None:
        """Leave the cluster; one that was started here ends. Of a head that is lost no answer is waited for."""

        def leave() -> None:
            for ref in self.waiting:
                self.ray.cancel(ref, force=True)
            if self.own:
                self.ray.shutdown()

        if not self.missed:
            leave()
            return
        with contextlib.suppress(TimeoutError):
            _within(HEAD, leave, "")


def _knock(address: str, own: Callable[[], str] | None = None) -> None:
    """An OSError where nothing listens: Ray would try for a long time. `own` is the address of this node, as Ray sees it."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("an address is host:port, ray://host:port or auto")
    with socket.create_connection((host, int(port)), timeout=5):
        pass
    if own is None or address.startswith("ray://") or host not in ("127.0.0.1", "localhost", "::1"):
        return
    seen = own()
    try:
        with socket.create_connection((seen, int(port)), timeout=5):
            pass
    except OSError as error:
        raise OSError(
            f"Ray takes {host} for {seen}, where nothing listens ({error}): start the head without --node-ip-address={host}, or "
            f"with --node-ip-address={seen}"
        ) from error


def _within(seconds: float, what: Callable[[], None], why: str) -> None:
    """Do it in a thread, since much of Ray waits for ever; a TimeoutError if it takes too long."""
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            what()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(why)
    if failed:
        raise failed[0]
