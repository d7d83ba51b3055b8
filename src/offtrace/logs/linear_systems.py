"""The linear systems of fitted iteration: by the inverse where the matrix is formed, else by GMRES from products alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, gmres

TOLERANCE = 1e-10
"""The residual ‖N⁻¹(b − Aθ)‖ against ‖N⁻¹b‖ at which GMRES ends."""
KEPT, CYCLES = 1 << 24, 20  # GMRES: numbers in the vectors that it keeps, and how often it starts again with none


def inverse_of(matrix: np.ndarray) -> np.ndarray:
    """Return the pseudoinverse [p, p] of a matrix [p, p].

    The fast decomposition of LAPACK (gesdd) sometimes does not converge, on well-conditioned matrices too; the slow one does.
    """
    try:
        return np.asarray(scipy.linalg.pinv(matrix))
    except np.linalg.LinAlgError:
        return slow_inverse_of(matrix)


def slow_inverse_of(matrix: np.ndarray) -> np.ndarray:
    """Return the same by gesvd.

    >>> slow_inverse_of(np.array([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    u, values, v = scipy.linalg.svd(matrix, lapack_driver="gesvd")  # pyright: ignore
    kept = values > len(matrix) * np.finfo(float).eps * values[0]
    return (v[kept].T / values[kept]) @ u[:, kept].T


def solve(product: Callable[[np.ndarray], np.ndarray], right: np.ndarray) -> tuple[np.ndarray, int, bool]:
    """Solve `product(x) = right`, [p] each, by GMRES; return x, the number of products, and whether x was reached.

    >>> x, products, reached = solve(lambda x: 2 * x, np.array([2.0, 4.0]))
    >>> x, reached
    (array([1., 2.]), True)
    """
    products = 0

    def counted(x: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        return product(x)

    kept = min(len(right), max(30, min(300, KEPT // len(right))))
    system = LinearOperator((len(right), len(right)), matvec=counted, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    solution, failed = gmres(system, right, rtol=TOLERANCE, restart=kept, maxiter=CYCLES)
    return np.asarray(solution), products, failed == 0
