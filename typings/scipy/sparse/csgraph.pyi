import numpy as np
from scipy.sparse import _Sparse

def breadth_first_order(csgraph: _Sparse, i_start: int, *, return_predecessors: bool) -> np.ndarray: ...
def connected_components(
    csgraph: _Sparse, directed: bool = True, connection: str = "weak"
) -> tuple[int, np.ndarray]: ...
