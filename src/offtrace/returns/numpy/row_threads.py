"""Rows shared among threads: they are independent, and compiled passes let go of the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np

from offtrace._shared.cores import cores
from offtrace.returns.numpy.compiled_pass import ROWS

CORES = cores()


def in_threads(rows: Callable[[int, int], int], B: int) -> int:
    """Share the rows among threads; the worst that any pass found."""
    workers = max(1, min(B // ROWS, CORES))
    if workers == 1:
        return rows(0, B)
    edges = np.linspace(0, B // ROWS, workers + 1).astype(int) * ROWS
    edges[-1] = B
    *others, (first, stop) = pairwise(int(edge) for edge in edges)
    jobs = [_pool().submit(rows, *block) for block in others]
    return max(rows(first, stop), *(job.result() for job in jobs))  # a share is done here, without waiting for a thread


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES, thread_name_prefix="offtrace")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
