"""Where a study was run: what its records and its report say of the software and the machine."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata

import offtrace
from offtrace._shared.cores import cores

PACKAGES = {
    "deep": ("numpy", "jax", "flax", "optax", "gymnax", "polars"),
}
LEARNING = ("numpy", "scipy", "numba", "polars")


def versions(task: str) -> dict[str, str]:
    """Of the packages that the rows of a task depend on, as far as they are installed as such."""
    found = {"offtrace": offtrace.__version__, "python": platform.python_version()}
    for name in PACKAGES.get(task, LEARNING):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """System, processor and cores, and its GPUs."""
    n = cores()
    said = [f"{platform.system()} {platform.machine()}", f"{n} core{'s' if n > 1 else ''}"]
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        said += subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.split("\n")
    except (OSError, subprocess.SubprocessError):
        pass  # there is none
    return ", ".join(filter(None, map(str.strip, said)))
