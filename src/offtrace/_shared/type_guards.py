"""Checks of values that may be anything, after which a type checker knows what they are, and what they hold stays open."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

Several = list[object] | tuple[object, ...]
"""A list or a tuple, whatever it holds."""


def is_list(given: object) -> TypeGuard[Several]:
    """Whether it is a list or a tuple.

    >>> is_list((1, 2)), is_list("12")
    (True, False)
    """
    return isinstance(given, list | tuple)


def is_array(given: object) -> TypeGuard[np.ndarray]:
    """Whether it is an array of NumPy."""
    return isinstance(given, np.ndarray)
