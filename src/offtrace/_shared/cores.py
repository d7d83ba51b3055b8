"""How many processors there are."""

from __future__ import annotations

import os


def cores() -> int:
    """The number of processors that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
