"""Commands in processes of their own, without the time of a start: a process that has imported all they need forks for each.

`python forked.py` reads requests from its standard input, a line of JSON each, and answers on its standard output. `Forks` asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

KILLED_AT = ("open", "os.mkdir", "os.rename", "os.remove")
"""What a process does to files that others see, as Python's audit hooks name it."""


class Started:
    """A process, much as `subprocess.Popen` has it."""

    def __init__(self, forks: Forks, pid: int, output: Path) -> None:
        self.forks, self.pid, self.output, self.returncode = forks, pid, output, None

    def poll(self) -> int | None:
        return self._end(wait=False)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self) -> str:
        """Wait for its end; what it has said."""
        self._end(wait=True)
        return self.output.read_text(encoding="utf-8")

    def _end(self, wait: bool) -> int | None:
        if self.returncode is None:
            self.returncode = self.forks.ask({"pid": self.pid, "wait": wait})
        return self.returncode


class Forks:
    """The process that forks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, *arguments: str, **how: Any) -> Started:
        """`offtrace ARGUMENTS`; `how`: cwd, kill (before which change of files below `below`), limit (of a file’s size)."""
        self.count += 1
        output = self.folder / f"{self.count}.txt"
        pid = self.ask({"arguments": list(map(str, arguments)), "output": str(output), **how})
        return Started(self, pid, output)

    def run(self, *arguments: str, **how: Any) -> tuple[int | None, str]:
        """Its exit status, and what it has said."""
        started = self.start(*arguments, **how)
        said = started.communicate()
        return started.returncode, said

    def ask(self, request: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def main() -> None:
    import polars  # noqa: F401

    from offtrace.reports.study import paper_figures, study_page  # noqa: F401
    from offtrace.studies import tasks
    from offtrace.studies.plan import Plan
    from offtrace.studies.study import Study

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from studies.small import declared

    import_module("tyro")  # what is imported here, they need not import
    plan = Plan(Study.declared(declared()))
    for unit in plan.units.values():  # what is compiled here, they need not compile
        tasks.run(plan.job(unit))
    answers = os.fdopen(os.dup(1), "w")
    outputs: dict[int, tuple[int, Path]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "imported" in request:
            answer: Any = request["imported"] in sys.modules
        elif "arguments" in request:
            reading, writing = os.pipe()
            answer = os.fork()
            if not answer:
                child(request, writing)
            os.close(writing)
            outputs[answer] = reading, Path(request["output"])
        else:
            pid, status = os.waitpid(request["pid"], 0 if request["wait"] else os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            if pid:
                reading, output = outputs.pop(pid)
                with os.fdopen(reading, "rb") as said:
                    output.write_bytes(said.read())
        print(json.dumps(answer), file=answers, flush=True)


def child(request: dict[str, Any], output: int) -> None:
    from offtrace import cli

    # The tests may run with these ignored: in the background, or under nohup.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(request.get("cwd", "."))
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in ((0, nothing), (1, output), (2, output)):
        os.dup2(file, number)
    if "limit" in request:  # as on a full disk
        sys.dont_write_bytecode = True  # half of it would be
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], resource.RLIM_INFINITY))
    if "kill" in request:
        kill_at(request["kill"], request["below"], request.get("at", "files"))
    status = 1
    with contextlib.suppress(BaseException):
        try:
            status = cli.main(request["arguments"])
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            raise
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def kill_at(number: int, below: str, at: str) -> None:
    """End this process by SIGKILL before the commit of this number, or before it changes files below a folder for this time."""
    left = number

    def count(event: str = "", arguments: tuple[Any, ...] = ()) -> None:
        nonlocal left
        if event and (event not in KILLED_AT or not str(arguments[0]).startswith(below)):
            return
        if event == "open" and not set(str(arguments[1])) & set("wax+"):
            return
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if at == "files":
        sys.addaudithook(count)
        return

    from offtrace.studies.store import Store

    add = Store.add

    def counted(*given: Any) -> None:
        count()
        add(*given)

    setattr(Store, "add", counted)  # noqa: B010


if __name__ == "__main__":
    main()
