"""Rows shared among threads: they are independent, and compiled kernels release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np

from offtrace._shared.cores import cores

CORES = cores()


def run_in_threads(run: Callable[[int, int], bool], B: int) -> list[bool]:
    """Call run(first, stop) for shares of the rows. One share runs here, without waiting for a thread."""
    workers = max(1, min(B // 4, CORES))
    *others, (first, stop) = pairwise(np.linspace(0, B, workers + 1).astype(int).tolist())
    jobs = [_pool().submit(run, *share) for share in others]
    here = run(first, stop)
    return [here, *(job.result() for job in jobs)]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CORES, thread_name_prefix="offtrace")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
