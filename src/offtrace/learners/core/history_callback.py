"""A trace that is a Python function of the history, called back from the compiled loop.

The loop asks for β once for each live start, the oldest first, and tells what it would tell a compiled step. Those calls
hold the whole past: at every step the youngest start has lag 1, so what was not seen before is seen now, and a lag that is
not smaller than the last one means a new step. Only π and μ of the start itself come with the start.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
from numba.core.typing.templates import Signature

from offtrace.learners.core.called import Called
from offtrace.learners.core.compiling import INSIDE, njit
from offtrace.traces import History, Trace

NUMBER, INTEGER = ctypes.c_double, ctypes.c_int64
KIND = ctypes.CFUNCTYPE(NUMBER, *(NUMBER,) * 5, INTEGER, INTEGER)


class _ByHistory(Protocol):
    """A trace whose form is "history"."""

    reads: tuple[str, ...]

    @property
    def history_form(self) -> Callable[[History], float]: ...


class Past:
    """What one learner's trace has seen of the episode, and the function that the loop calls."""

    def __init__(self, trace: Trace, signature: Signature) -> None:
        self.trace = cast(_ByHistory, trace)
        self.error: BaseException | None = None
        self.steps = np.empty((0, 3))
        """[n, 3]: π, μ and pair of the last n steps."""
        self.lag = 1
        call = KIND(self._beta)

        @njit(signature, **INSIDE)
        def step(carry, π, μ, ρ, lam, lag, start, pair):
            return call(carry[0], carry[1], π, μ, lag, start, pair)

        self.step = Called(step)

    def _beta(self, π_k: float, μ_k: float, π: float, μ: float, lag: float, start: int, pair: int) -> float:
        try:
            n = int(lag)
            if n >= self.lag:
                self.steps = np.vstack([self.steps[len(self.steps) + 1 - n :], [π, μ, pair]])
            self.lag = n
            seen = np.vstack([[π_k, μ_k, start], self.steps[len(self.steps) - n :]])
            pi, mu, pairs = seen.T
            every = {"pi": pi, "mu": mu, "rho": pi / mu, "pair": pairs.astype(np.int64)}
            given = (every[name] if name in self.trace.reads else None for name in History._fields)
            return self.trace.history_form(History(*given))
        except BaseException as error:  # raised again when the loop has come back
            self.error = error
            return math.nan
