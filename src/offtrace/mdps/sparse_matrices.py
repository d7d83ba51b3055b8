"""SciPy's sparse matrices with types, which SciPy itself does not declare."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

SparseMatrix = sparse.csr_array
"""What the package calls by this name: rows that store their entries."""


def identity_minus(matrix: SparseMatrix) -> SparseMatrix:
    """I − A of a square A."""
    return sparse.csr_array(sparse.eye_array(len(matrix.indptr) - 1, format="csr") - matrix)


def row_lengths(matrix: SparseMatrix) -> np.ndarray:
    """How many entries each row stores.

    >>> row_lengths(sparse.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]]))).tolist()
    [2, 0]
    """
    return np.diff(matrix.indptr)


def entries_divided(table: sparse.csr_array, by: sparse.csr_array) -> sparse.csr_array:
    """The quotients of the stored entries of two tables that store the same places, in the same order."""
    return sparse.csr_array((np.divide(table.data, by.data), table.indices, table.indptr), shape=table.shape)


def solved(matrix: SparseMatrix, b: np.ndarray) -> np.ndarray:
    """The x with A x = b, found by iteration to about 13 digits; callers bound the error from the residual."""
    return linalg.bicgstab(matrix, b, rtol=1e-13, atol=0.0, maxiter=5000)[0]
