"""Peak memory of one call beyond its inputs and its output: O(T) for each thread, whatever the number of rows.

Each case is a process of its own. The inputs are read from files, the compiled code is loaded and the threads are
started by a call as small as the kernel allows, freed heap is given back, the high-water mark of resident memory is
reset, and then the first large call is made. Resident memory sees everything: NumPy, Numba's own allocations, thread
stacks, and whole huge pages where only a part is used. Linux only (/proc).
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from aware import rules
from batches import NEAR, Batch, draw
from timing import emit

import offtrace as ot
from offtrace.returns.numpy import passes

SHAPES = ((4096, 256), (1, 100_000), (1, 1_000_000))
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(field: str) -> int:
    """VmRSS or VmHWM, its peak since the reset, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure(name: str, folder: Path) -> None:
    """One case, in this process."""
    rule = rules(NEAR)[name]
    arrays = {file.stem: np.load(file) for file in folder.glob("*.npy")}
    x = Batch(**arrays, gamma=NEAR.gamma).for_targets()
    B, T = arrays["reward"].shape
    chosen, passes.PARALLEL = passes.PARALLEL, 1 if B > 1 else 1 << 40  # pyright: ignore[reportAttributeAccessIssue]
    small = draw(np.random.default_rng(1), NEAR, 8 if B > 1 else 1, passes.FEW_STEPS + 16).for_targets()
    ot.targets(rule, **small)
    passes.PARALLEL = chosen  # pyright: ignore[reportAttributeAccessIssue]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    RESET.write_text("5")
    before = resident("VmRSS")
    out = ot.targets(rule, **x)
    extra = resident("VmHWM") - before - out.nbytes
    inputs = sum(a.nbytes for a in x.values() if isinstance(a, np.ndarray))
    emit("memory", rule=name, shape=[B, T], extra_mb=max(0, extra) / 1e6, inputs_mb=inputs / 1e6, bytes_per_t=extra / T)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
    elif not RESET.exists():
        emit("missing", peer="memory", reason="this system lacks /proc/self/clear_refs")
    else:
        for B, T in SHAPES:
            with tempfile.TemporaryDirectory() as folder:
                for name, array in vars(draw(np.random.default_rng(0), NEAR, B, T)).items():
                    if isinstance(array, np.ndarray):
                        np.save(Path(folder) / name, array)
                for name in rules(NEAR):
                    subprocess.run([sys.executable, __file__, name, folder], check=True)
