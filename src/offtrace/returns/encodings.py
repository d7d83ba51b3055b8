"""Numbers as probabilities over a support, for critics that are trained by cross-entropy: `two_hot` and `hl_gauss`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from offtrace.arrays import Array, along_last_axis
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.backend import Backend
from offtrace.traces.base import number


def two_hot(values: Array, support: Array) -> Array:
    """Probabilities [..., N] over an ascending support [N], of the two atoms around each value, whose mean is the value.

    A value beyond the support goes to its end. With values h(x) it is MuZero's encoding (Schrittwieser et al. 2020).

    >>> import numpy as np
    >>> two_hot(np.array([0.25, 7.0]), np.array([0.0, 1.0, 2.0])).tolist()
    [[0.75, 0.25, 0.0], [0.0, 0.0, 1.0]]
    """
    do = backend_of({"values": values, "support": support})
    xp, z = do.xp, ascending(do, support)
    v: Any = do.array("values", values)
    v = xp.clip(v, z[0], z[-1])[..., None]
    lower, gap = (along_last_axis(each, v.ndim) for each in (z[:-1], z[1:] - z[:-1]))
    rising = xp.clip((v - lower) / gap, 0.0, 1.0)  # how far the value is from each atom to the next
    one = xp.ones_like(v)
    return xp.concatenate([one, rising], -1) - xp.concatenate([rising, xp.zeros_like(v)], -1)


def hl_gauss(values: Array, support: Array, sigma: float) -> Array:
    """Probabilities [..., N] of a normal distribution around each value, in bins around the atoms of an evenly spaced support.

    The bins reach half a gap beyond the support, the distribution is cut there, and `sigma` is its standard deviation before.
    (Imani, White 2018; Farebrother et al. 2024, Stop regressing, take 0.75 gaps.)

    >>> import numpy as np
    >>> hl_gauss(np.array([1.0]), np.array([0.0, 1.0, 2.0]), sigma=0.5).round(3).tolist()
    [[0.158, 0.685, 0.158]]
    """
    do = backend_of({"values": values, "support": support})
    xp, z = do.xp, ascending(do, support)
    v: Any = do.array("values", values)
    deviation = number("sigma", sigma, 0.0, np.inf)
    if deviation == 0.0:
        raise ValueError("sigma must be above 0: two_hot is the encoding without spread")
    half = (z[1] - z[0]) / 2
    edges = xp.concatenate([z - half, z[-1:] + half])
    v = xp.clip(v, edges[0], edges[-1])
    special = {"numpy": "scipy.special", "torch": "torch.special", "jax": "jax.scipy.special"}
    erf = import_module(special[xp.__name__.partition(".")[0]]).erf
    below = erf((along_last_axis(edges, v.ndim + 1) - v[..., None]) / (deviation * 2**0.5))
    return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])


def ascending(do: Backend[Array], support: Array) -> Any:
    """The support, an array of at least two atoms that ascend."""
    z: Any = do.array("support", support)
    if z.ndim != 1 or z.shape[0] < 2 or do.letter(z.dtype) in "biu":
        raise ValueError(f"support must hold two or more floats [N], got {z.dtype} of shape {tuple(z.shape)}")
    if do.looks(None, {"support": z}) and not (np.diff(do.as_numpy(z)) > 0).all():
        raise ValueError("support must ascend: each atom must be above the one before")
    return z
