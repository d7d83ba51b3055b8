"""What must be set before a library is first imported, by whichever test."""

import gc
import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

# Compilers make many objects that live: looking for cycles among all of them, again and again, takes a thirtieth of the time.
gc.set_threshold(50_000, 20, 100)


BEGIN = (
    (
        "tests/learners/test_algorithm.py",
        "tests/learners/test_host.py",
        "tests/returns/test_battery.py",
        "tests/test_documentation.py",
        "tests/reports/",
    ),
    (
        "tests/returns/test_triton",
        "tests/returns/test_jax",
        "tests/returns/test_extremes_on_accelerators",
        "tests/adapters/test_rlax",
        "tests/returns/test_sharded",
        "tests/studies/",
    ),
)
"""What each process of xdist begins with. The first compiles what most tests need, loops of learners and kernels of NumPy; then
come the longest test and what needs a browser. The other one begins with JAX and Triton, which need hardly any of that, and with
what starts processes of its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each process takes as many tests as the others, in their order: here each share begins with what it should.

    So none waits for what another one compiles, and what one of them takes over from another in the end are short tests.
    """
    groups = BEGIN[: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))]
    begin = [[item for start in group for item in items if item.nodeid.startswith(start)] for group in groups]
    others = [item for item in items if not item.nodeid.startswith(tuple(start for group in groups for start in group))]
    placed: list[pytest.Item] = []
    for i, group in enumerate(begin):
        before = max(0, len(items) * i // len(groups) - len(placed))
        placed += [*others[:before], *group]
        others = others[before:]
    items[:] = [*placed, *others]


def pytest_collection_finish() -> None:
    """What was imported stays: no search for cycles need look at it."""
    gc.collect()
    gc.freeze()


# One worker of pytest runs on each core: there, threads of BLAS only wait for each other, and some tests take twice as long.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# Triton's kernels are run by its interpreter, on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Most of the time would go into compiling: programs are run as they are written, other than in `test_optimised_programs`.
# Setting this to 0 in the environment runs all tests with the programs that users run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# XLA's older way to print loops, in one piece, takes a quarter of the time of its newer one. It is gone in JAX 0.11, which
# ends the process at a flag that it does not know.
if (
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"
    and find_spec("jax")
    and tuple(map(int, version("jax").split(".")[:2])) < (0, 11)
):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")
# What one test, worker or subprocess has compiled with JAX, the others need not compile again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
# Small programs too: there are hundreds, of which each takes longer to compile than to read, whatever else the machine does.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
