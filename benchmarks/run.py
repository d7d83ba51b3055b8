"""All benchmarks: prints the tables, and keeps them in benchmarks/RESULTS.md.

    make bench                                   everything, and RESULTS.md is written anew
    .venv/bin/python benchmarks/run.py growth    only these parts, printed, nothing kept

Each part is a process of its own that prints one JSON record a line. The peers' environments are made on the first run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import environments
import gpu_report
import report

FAILED = "the benchmark failed, its error is printed above"
HERE = Path(__file__).resolve().parent
PARTS = {  # script and its options → the environment it needs; None is this one
    "startup": None,
    "memory": None,
    "tensors": None,
    "aware": None,
    "crossover": None,
    "growth": None,
    "laboratory": None,
    "learners": None,
    "studies": None,
    "evaluation": None,
    "evaluation_sweep": None,
    "deep": None,
    "peers": "peers",
    "peers --all-cores": "peers",
    "jitted": "peers",
    "against_tianshou": "tianshou",
}
SECTIONS = (
    (
        "Per-decision, against peers",
        "per-decision",
        HERE / "peers.py",
        lambda r: report.against_peers(r, "per-decision"),
    ),
    ("V-trace, against peers", "v-trace", HERE / "peers.py", lambda r: report.against_peers(r, "v-trace")),
    ("Inside jit on the CPU, against rlax", "jitted", HERE / "jitted.py", report.jitted),
    ("PyTorch and JAX on the CPU", "tensors", HERE / "tensors.py", report.tensors),
    ("Trajectory-aware, against Retrace", "aware", HERE / "aware.py", report.aware),
    ("Crossover with the direct O(T²) kernel", "crossover", HERE / "crossover.py", report.crossover),
    ("Growth", "growth", HERE / "growth.py", report.growth),
    ("Memory", "memory", HERE / "memory.py", report.memory),
    ("Startup", "import", HERE / "startup.py", report.startup),
    ("The operator laboratory", "laboratory", HERE / "laboratory.py", report.laboratory),
    ("Learners: trials", "trials", HERE / "learners.py", report.trials),
    ("Learners: long episodes", "episodes", HERE / "learners.py", report.episodes),
    ("Studies", "framework", HERE / "studies.py", report.framework),
    ("Values from logs: reading", "logs", HERE / "evaluation.py", report.logs),
    ("Values from logs: fitting", "evaluation sweep", HERE / "evaluation_sweep.py", report.fitting),
    ("Deep agents", "deep", HERE / "deep.py", report.deep),
)
NOTES = {
    "laboratory": "One run each, compiled code warm, one process for all.",
    "trials": (
        "Protocol daley2023 on Bifurcation 1, λ = 0.9, CPU time on one core. Independent Python code took 0.27 s for a trial, on "
        "another day: the speed of this machine varies by half. The peers of this run are the same experiment as a NumPy script "
        "and as a plain Numba loop, both with an entry for each visit, in `benchmarks/learners.py`."
    ),
    "logs": (
        "10⁷ steps of Parquet into checked logs, against `polars.scan_parquet(…).select(…).collect()` of the same columns. "
        "Memory is the growth of a fresh process's peak, beside the logs themselves; next states, which the file does not hold, "
        "are part of them."
    ),
    "evaluation sweep": (
        "A Garnet of 1,000 states and 10 actions, RBIS, λ = 0.95, γ = 0.99, a table. Memory is the peak of the process, logs too."
    ),
    "deep": (
        "Frames per second while training, compiled, one seed. The PyTorch example has the same network, update ratio and game; "
        "its evaluations are not counted."
    ),
    "framework": "One run each. The start of a study is about two seconds, whatever its size.",
    "episodes": "CPU nanoseconds a step, online, on a corridor too long to leave, γ = 0.99, λ = 0.9.",
    "per-decision": (
        "From log-probabilities to targets, checks on, float32. Above 1, offtrace is faster. rlax computes the same "
        "Retrace targets; the V-traces do the same amount of work from the same inputs. tianshou's GAE does less: no "
        "log-probabilities, no exponential, no checks. `QLambda` is its like for like, Retrace is given for "
        "information; the loop alone is less again. offtrace uses one core at these sizes; so do the peers, and rlax "
        "is given all of them as well. The tianshou rows are from `benchmarks/against_tianshou.py`."
    ),
    "v-trace": (
        "`offtrace.state_targets` gives targets and advantages, as torchrl, RLlib and rlax's "
        "`vtrace_td_error_and_advantage` do; `rlax.vtrace` gives targets only. RLlib knows no truncations."
    ),
    "aware": (
        "Both are `offtrace.targets` on the same batch. Endless: one episode a row, γ = λ = 1. Independent: one endless row, "
        "γ = 0.999, λ = 1, log-probabilities that are independent exponentials, the hardest for Truncated IS. Wall time, as "
        "users get it: with more than one row the capped rules share rows among threads from 30,000 steps on, and Retrace, being "
        "cheaper, only from 500,000; so at the two batched shapes they have all cores and Retrace one. [1, 100000] is one thread "
        "for both."
    ),
    "jitted": (
        "Both from log-probabilities to targets in one jitted function, float32, one core; rlax's is Retrace, in float32 "
        "throughout. A first call traces and compiles."
    ),
    "tensors": (
        "What a call of `offtrace.targets` takes beyond that with the same batch as NumPy arrays, checks on, float32: one of "
        "twenty in a row; and one alone, after the others' calls."
    ),
    "crossover": "Time of the direct kernel / time of the one that users get; below 1 direct is faster.",
    "growth": "Nanoseconds a step for one row, one thread, net of the fixed cost of a call.",
    "memory": "Peak resident memory of a first call beyond inputs and output.",
    "import": (
        "Fresh processes, bytecode on disk, the interpreter's own start not counted. A first call compiles a pass, which all "
        "rules with a cap share, a kernel and the rule's own lines; in this order Truncated IS finds the pass compiled, which "
        "by itself takes as long again as its kernel. A row that the walk of Truncated IS gives up compiles the sums by halves, "
        "twice as long, when the first such row comes. Half of the time is Numba's own, the rest LLVM's, which goes over a "
        "function again for each caller."
    ),
}


def measure(part: str, missing: dict[str, str]) -> list[report.Record]:
    """Run one part; what cannot be installed is added to `missing`."""
    python = sys.executable
    if PARTS[part]:
        made, lacking = environments.ensure(str(PARTS[part]))
        missing |= lacking
        if not made.exists():
            return []
        python = str(made)
    print(f"measuring: {part} …", flush=True)
    script, *options = part.split()
    start = time.perf_counter()
    done = subprocess.run(
        [python, str(HERE / f"{script}.py"), *options],
        env=environments.variables(),
        stdout=subprocess.PIPE,
        text=True,
        cwd=environments.ROOT,
    )
    if done.returncode:
        missing[part] = FAILED
    print(f"           {time.perf_counter() - start:.0f} s", flush=True)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for r in report.of(records, "missing"):
        missing.setdefault(r["peer"], f"not installed: {r['reason']}")
    return records


def machine() -> list[str]:
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ]
        cpu = names[0] if names else cpu
    pins = dict.fromkeys(p for groups in environments.PEERS.values() for packages in groups.values() for p in packages)
    return [
        f"- {datetime.date.today().isoformat()}, {cpu}, {os.cpu_count()} cores, {platform.system()}",
        f"- Python {platform.python_version()}, "
        + ", ".join(f"{p} {version(p)}" for p in ("offtrace", "numpy", "numba", "scipy")),
        f"- peers: {', '.join(pins)}",
        "",
    ]


def write_up(records: list[report.Record], missing: dict[str, str]) -> str:
    lines = []
    if missing:
        lines += ["## Not measured", "", *(f"- {name}: {why}" for name, why in missing.items()), ""]
    lines += ["## Claims", "", *report.claims(records)]
    for title, name, script, body in SECTIONS:
        if report.of(records, name):
            lines += [
                f"## {title}",
                "",
                f"{NOTES[name]} Measured by `{script.relative_to(HERE.parent)}`.",
                "",
                *body(records),
            ]
    return "\n".join([*lines, *gpu_report.kept()])


HEAD = """# Results

Made by `make bench`, which writes this page anew (the first time it installs the peers into `.bench/`); do not edit it.
Every ratio is between two sides measured in one process, taking turns on fresh random batches: the ratio of the
medians, and in brackets the quartiles of the ratio within one repetition. Batches: softmax policies over six actions,
the action drawn from μ, π's logits N(0, 0.3²) (near) or N(0, 1) (far) away from μ's, terminations 1 %, truncations
0.5 %, γ = 0.99, λ = 0.95. Endless: near, one episode a row, γ = λ = 1.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all if none is given")
    parts = parser.parse_args().parts
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    missing: dict[str, str] = {}
    records = [r for part in parts or PARTS for r in measure(part, missing)]
    text = write_up(records, missing)
    print("\n" + text)
    if FAILED in missing.values():
        sys.exit("a benchmark failed: RESULTS.md is left as it was")
    if not parts:
        (HERE / "RESULTS.md").write_text("\n".join([HEAD, *machine(), text]))


if __name__ == "__main__":
    main()
