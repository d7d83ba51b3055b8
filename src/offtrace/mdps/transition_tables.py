"""What people give as P and R, brought into one form and checked: sparse rows of (s, a), terminal rows empty.

Row s·A + a of P is P(·|s, a). A terminal state ends the episode: its rows are empty and its rewards are 0, so that its
value is 0 and nothing follows it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

TOLERANCE = 1e-9  # how far a row of P, or the start, may be from one; rows of policies: trajectory.ROW_TOLERANCE


def transitions(P: object) -> tuple[sp.csr_array, int, int]:
    """P as a canonical csr_array [S·A, S] (a copy), with S and A. Negative, infinite and NaN entries are refused."""
    table, S, A = _rows("P", P)
    bad = ~((table.data >= 0) & (table.data < np.inf))
    if bad.any():
        at = int(np.argmax(bad))
        s, a = divmod(int(row_of_entry(table)[at]), A)
        raise ValueError(
            f"P[{s}, {a}, {table.indices[at]}] is {table.data[at]}: probabilities must be finite and not negative"
        )
    table.eliminate_zeros()
    return table, S, A


def rewards(R: object, P: sp.csr_array, S: int, A: int) -> tuple[np.ndarray, np.ndarray | None]:
    """E[r | s, a] as [S, A], and r(s, a, s') for each stored entry of P where R was given so, else None."""
    expected, of_entry = np.empty((S, A)), None
    if not _is_sparse(R):
        R = _numbers("R", R)
        if R.shape == (S, A):
            expected = R.copy()
        elif R.shape == (S, A, S):
            of_entry = R.reshape(S * A, S)[row_of_entry(P), P.indices]
        else:
            raise ValueError(f"R has shape {R.shape}: it must be [S, A] = {(S, A)} or [S, A, S] = {(S, A, S)}, like P")
    else:
        table, S_R, A_R = _rows("R", R)
        if (S_R, A_R) != (S, A):
            raise ValueError(f"R is a sparse table of S = {S_R}, A = {A_R}, but P has S = {S}, A = {A}")
        of_entry = _at_entries(table, P)
    if of_entry is not None:
        expected = np.bincount(row_of_entry(P), P.data * of_entry, minlength=S * A).reshape(S, A)
    bad = ~np.isfinite(expected)
    if bad.any():
        s, a = np.argwhere(bad)[0]
        raise ValueError(f"R[{s}, {a}] is {expected[s, a]}: expected rewards must be finite")
    return expected, of_entry


def terminal_states(terminal: Any, P: sp.csr_array, R: np.ndarray) -> np.ndarray:
    """The boolean mask [S] of terminal states: as given, or found. A state that ends nothing but claims to is refused.

    With None, a state is terminal where all its rows are empty, or where all its actions stay with reward 0.
    """
    S, A = R.shape
    sums = _row_sums(P).reshape(S, A)
    loops = np.bincount(_rows_that_stay(P, A), minlength=S * A).reshape(S, A) > 0
    alone = np.diff(P.indptr).reshape(S, A) == 1
    empty = (sums == 0).all(axis=1)
    absorbing = (loops & alone & (np.abs(sums - 1) <= TOLERANCE) & (R == 0)).all(axis=1)
    if terminal is None:
        terminal = empty | absorbing
        if terminal.all():
            raise ValueError(
                "every state is terminal (all rows are zero, or all actions stay with reward 0): at least one must not be; "
                "if these states go on for ever, say so: terminal=np.zeros(S, bool)"
            )
    else:
        terminal = np.array(terminal)
        if terminal.dtype != np.bool_:
            raise TypeError(f"terminal must be boolean, got {terminal.dtype}: one flag for each state")
        if terminal.shape != (S,):
            raise ValueError(f"terminal has shape {terminal.shape}: it must be [S] = {(S,)}")
        wrong = terminal & ~empty & ~absorbing
        if wrong.any():
            raise ValueError(
                f"state {int(np.argmax(wrong))} is marked terminal but something follows it: its rows of P must be zero "
                "for every action (or stay there with reward 0)"
            )
        if terminal.all():
            raise ValueError("every state is marked terminal: at least one must not be")
    paid = (R != 0).any(axis=1) & terminal
    if paid.any():
        s = int(np.argmax(paid))
        raise ValueError(
            f"state {s} is terminal but has rewards {R[s].tolist()}: nothing is earned after the end; use 0"
        )
    bad = (np.abs(sums - 1) > TOLERANCE) & ~terminal[:, None]
    if bad.any():
        s, a = np.argwhere(bad)[0]
        raise ValueError(
            f"P[{s}, {a}] sums to {sums[s, a]:.12g}: each row must sum to one, or be zero for every action of a "
            "terminal state"
        )
    return terminal


def without_rows_of(
    terminal: np.ndarray, P: sp.csr_array, of_entry: np.ndarray | None
) -> tuple[sp.csr_array, np.ndarray | None]:
    """P (and the rewards of its entries) with the rows of terminal states emptied."""
    A = P.shape[0] // P.shape[1]
    rows = row_of_entry(P)
    keep = ~terminal[rows // A]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows[keep], minlength=P.shape[0]))))
    kept = sp.csr_array((P.data[keep], P.indices[keep], indptr), shape=P.shape)
    return kept, None if of_entry is None else of_entry[keep]


def start_distribution(start: object, terminal: np.ndarray) -> np.ndarray:
    """The distribution of the first state: as given, or uniform over the states that are not terminal."""
    if start is None:
        return ~terminal / np.count_nonzero(~terminal)
    start = _numbers("start", start).copy()
    if start.shape != terminal.shape:
        raise ValueError(
            f"start has shape {start.shape}: it must be a distribution over states, [S] = {terminal.shape}"
        )
    if not (start >= 0).all() or not abs(start.sum() - 1) <= TOLERANCE:
        raise ValueError(
            f"start must be a distribution: got a smallest entry {start.min()} and a sum {start.sum():.12g}"
        )
    if (start[terminal] > 0).any():
        s = int(np.argmax(terminal & (start > 0)))
        raise ValueError(
            f"start gives state {s} the probability {start[s]}, but it is terminal: no episode starts there"
        )
    return start


def row_of_entry(table: sp.csr_array) -> np.ndarray:
    """The row of each stored entry of a csr_array."""
    return np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))


def _is_sparse(table: object) -> bool:
    return sp.issparse(table) or (isinstance(table, list | tuple) and len(table) > 0 and sp.issparse(table[0]))


def _rows(name: str, table: Any) -> tuple[sp.csr_array, int, int]:
    """[S, A, S], sparse [S·A, S], or A sparse [S, S] as a canonical csr_array [S·A, S], copied."""
    if sp.issparse(table):
        rows, S = table.shape if len(table.shape) == 2 else (1, 0)
        if S == 0 or rows == 0 or rows % S:
            raise ValueError(f"sparse {name} has shape {table.shape}: it must be [S·A, S], row s·A + a for (s, a)")
        A = rows // S
        rows = _real(name, table)
    elif _is_sparse(table):
        A, S = len(table), table[0].shape[0]
        for a, one in enumerate(table):
            if not sp.issparse(one) or one.shape != (S, S):
                got = one.shape if sp.issparse(one) else type(one).__name__
                raise ValueError(f"{name}[{a}] must be a sparse matrix [S, S] = {(S, S)} like {name}[0], got {got}")
        by_action = sp.vstack([_real(name, one) for one in table], format="csr")
        rows = sp.csr_array(by_action[np.arange(S * A).reshape(A, S).T.ravel()])
    else:
        dense = _numbers(name, table)
        if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or 0 in dense.shape:
            raise ValueError(
                f"{name} has shape {dense.shape}: it must be [S, A, S], or sparse [S·A, S], or a list of A sparse [S, S]"
            )
        S, A, _ = dense.shape
        rows = sp.csr_array(dense.reshape(S * A, S))
    rows.sum_duplicates()
    return rows, S, A


def _real(name: str, table: Any) -> sp.csr_array:
    """A sparse table as a csr_array of float64, copied."""
    if table.dtype.kind not in "fiub":
        raise TypeError(f"{name} is not a table of real numbers, got a sparse one of {table.dtype}")
    return sp.csr_array(table, copy=True, dtype=np.float64)


def _numbers(name: str, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise TypeError(f"{name} is not an array of numbers, got {type(value).__name__} of unequal rows") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} is not an array of real numbers, got {type(value).__name__} of {array.dtype}")
    return array.astype(np.float64, copy=False)


def _at_entries(table: sp.csr_array, P: sp.csr_array) -> np.ndarray:
    """Sparse `table` read at the stored entries of P; what it does not store is 0."""
    S = P.shape[1]
    keys = row_of_entry(table) * S + table.indices  # sorted, since both are canonical
    wanted = row_of_entry(P) * S + P.indices
    if len(keys) == 0:
        return np.zeros(len(wanted))
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, table.data[at], 0.0)


def _row_sums(P: sp.csr_array) -> np.ndarray:
    return np.bincount(row_of_entry(P), P.data, minlength=P.shape[0])


def _rows_that_stay(P: sp.csr_array, A: int) -> np.ndarray:
    rows = row_of_entry(P)
    return rows[rows // A == P.indices]
