"""Randomness is an integer or a generator, and is called `seed` everywhere."""

from __future__ import annotations

from numbers import Integral

import numpy as np

Seed = int | np.random.Generator
"""An integer, which gives the same numbers each time, or a generator, which continues where it is."""


def generator(seed: Seed) -> np.random.Generator:
    """The generator of this seed; a generator is returned as it is.

    >>> bool(generator(3).integers(10) == generator(3).integers(10))
    True
    """
    if isinstance(seed, np.random.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise TypeError(f"seed must be an integer of at least 0 or a numpy.random.Generator, got {seed!r}")
    return np.random.default_rng(int(seed))
