"""What starting costs: `import offtrace` in a fresh process, and the first call with and without compiled code on disk.

The claim: the import takes under 0.7 s and brings in neither torch nor jax. The clock starts inside the interpreter, so
its own start is not counted; bytecode is on disk. The very first call compiles into an empty folder; the same call in a
second process finds it there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from timing import emit

IMPORT = """
import json, sys, time
start = time.perf_counter()
import offtrace
seconds = time.perf_counter() - start
heavy = [name for name in ("torch", "jax", "tensorflow", "matplotlib", "pandas") if name in sys.modules]
print(json.dumps({"seconds": seconds, "heavy": heavy}))
"""
BELOW = """
import json, time
start = time.perf_counter()
import numpy, numba
print(json.dumps({"seconds": time.perf_counter() - start}))
"""
FIRST_CALL = """
import json, time
import numpy as np
import offtrace as ot
from listed_rules import trajectory_aware
rng, shape = np.random.default_rng(0), (8, 300)
x = {name: rng.normal(size=shape).astype("f4") for name in ("reward", "q", "next_value", "log_pi", "log_mu")}
x |= {"terminated": np.zeros(shape, bool), "truncated": np.zeros(shape, bool), "gamma": 0.99}
seconds = {}
for rule in (ot.Retrace(0.95), *trajectory_aware(0.95)):
    start = time.perf_counter()
    ot.targets(rule, **x)
    seconds[type(rule).__name__] = time.perf_counter() - start
print(json.dumps(seconds))
"""


def fresh(code: str, **variables: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        cwd=Path(__file__).parent,  # where `listed_rules` is
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    fresh(IMPORT)  # writes the bytecode
    runs = [(fresh(IMPORT), fresh(BELOW)) for _ in range(9)]
    seconds, below = ([run[i]["seconds"] for run in runs] for i in (0, 1))
    emit(
        "import",
        median=float(np.median(seconds)),
        quartiles=[float(s) for s in np.quantile(seconds, [0.25, 0.75])],
        numpy_and_numba=float(np.median(below)),
        heavy=runs[0][0]["heavy"],
    )
    with tempfile.TemporaryDirectory() as folder:
        first, second = (fresh(FIRST_CALL, NUMBA_CACHE_DIR=folder) for _ in range(2))
    for rule in first:
        emit("first call", rule=rule, compiled=first[rule], from_disk=second[rule])
