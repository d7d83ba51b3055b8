"""How a compiled pass begins a row, whatever comes after it: its TD errors and discounts, and π, μ and ρ of its actions."""

from __future__ import annotations

import numpy as np

from offtrace.returns.numpy.by_address import kernel_part
from offtrace.returns.numpy.probability_rows import probabilities
from offtrace.returns.numpy.td_error_rows import REALS, discounts, harmless, td_errors

PI, MU, RHO = range(3)
"""Where `seen` has the probabilities."""


@kernel_part
def room_for_copies(T, like, valid):
    """Where the arrays of a row are copied to if some steps are invalid: five of real numbers, and the truncations."""
    n = T if valid.size else 0
    return np.empty((REALS, n), like.dtype), np.empty(n, np.bool_)


@kernel_part
def read_row(at, T, reals, flags, gammas, reads, copied, cuts, γ, delta, discount, seen):
    """Fill γ, delta, discount and seen for the row that begins at `at` in flat arrays; whether a value was bad.

    `reals` are those of `td_error_rows`, `flags` terminated, truncated and valid; `reads` says whether π, μ and ρ are wanted.
    """
    ends, cut, read = flags
    bad = discounts(at, T, gammas, read, γ)
    o, given = at, reals
    if len(read):
        harmless(at, T, reals, cut, read, copied, cuts)
        o, given, cut = 0, (copied[0], copied[1], copied[2], copied[3], copied[4]), cuts
    e = o + T
    r, v, ahead, log_π, log_μ = given
    bad |= td_errors(T, r[o:e], v[o:e], ahead[o:e], ends[at : at + T], cut[o:e], γ, delta, discount)
    discount[T - 1] = 0.0
    bad |= probabilities(T, log_π[o:e], log_μ[o:e], reads[PI], reads[MU], reads[RHO], seen[PI], seen[MU], seen[RHO])
    return bad
