"""Kernel 3, cap at read-out (Truncated IS)."""

from __future__ import annotations

from numba.extending import register_jitable

from offtrace.returns import direct


@register_jitable
def sweep(delta, g, ratio, cap, lags, out):
    """Δ of a block of rows into `out` [n, T]; lags do not act."""
    direct.sweep_rows(delta, g, ratio, cap, False, lags, direct.NO_LIMIT, out)
