from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import _Sparse

class LinearOperator:
    def __init__(
        self, shape: tuple[int, int], matvec: Callable[[np.ndarray], np.ndarray], *, dtype: Any = None
    ) -> None: ...

class SuperLU:
    def solve(self, rhs: np.ndarray) -> np.ndarray: ...

def splu(A: _Sparse) -> SuperLU: ...
def gmres(
    A: Any,
    b: np.ndarray,
    x0: np.ndarray | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
) -> tuple[np.ndarray, int]: ...
def bicgstab(
    A: Any,
    b: np.ndarray,
    x0: np.ndarray | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
) -> tuple[np.ndarray, int]: ...
