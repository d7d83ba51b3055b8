"""Compiled passes over the values of a batch: they are checked while they are copied, so that they are read once."""

from __future__ import annotations

import mmap

import numpy as np

from offtrace._shared.compile_cache import cached_njit


def touched(shape: int | tuple[int, int], kind: type[np.generic]) -> np.ndarray:
    """An array whose memory is there already: to ask for it page by page while polars does so, too, takes far longer."""
    array = np.empty(shape, kind)
    array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE] = 0
    return array


def within(values: np.ndarray, low: float, high: float) -> bool:
    """Whether all lie in [low, high]; NaN does not."""
    flat = _flat(values)
    return _within(flat, flat.dtype.type(low), flat.dtype.type(high))


def copy_ids(values: np.ndarray, without: np.ndarray, out: np.ndarray, low: int, high: int) -> tuple[bool, int]:
    """Copy ids, but for those in the sorted rows `without`: whether all lie in [low, high], and the largest that was copied."""
    fine, largest = _copy_ids(_flat(values), without, out, low, high)
    return fine, int(largest)


def copy_numbers(values: np.ndarray, without: np.ndarray, out: np.ndarray, low: float, high: float) -> bool:
    """Copy rows of numbers, but for those in the sorted rows `without`: whether all lie in [low, high]."""
    flat = _flat(values)
    return _copy_numbers(flat, len(flat) // len(values), without, out.reshape(-1), low, high)


def _flat(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(-1).view()
    flat.flags.writeable = False  # as most are: one type of arrays, compiled once
    return flat


@cached_njit(nogil=True)
def _within(values, low, high):
    fine = True
    for x in values:
        fine &= (x >= low) & (x <= high)
    return fine


@cached_njit(nogil=True)
def _copy_ids(values, without, out, low, high):
    fine, largest, begin = True, np.int64(-1), 0
    for left_out in range(len(without) + 1):
        end = without[left_out] if left_out < len(without) else len(values)
        given, to = values[begin:end], out[begin - left_out : end - left_out]
        for i in range(len(given)):
            x = given[i]
            fine &= (x >= low) & (x <= high)
            largest = max(largest, x)
            to[i] = x
        if end < len(values):
            fine &= (values[end] >= low) & (values[end] <= high)
        begin = end + 1
    return fine, largest


@cached_njit(nogil=True)
def _copy_numbers(values, width, without, out, low, high):
    fine, begin, less = True, 0, 0
    for left_out in range(len(without) + 1):
        end = without[left_out] * width if left_out < len(without) else len(values)
        given, to = values[begin:end], out[begin - less : end - less]
        for i in range(len(given)):
            x = given[i]
            fine &= (x >= low) & (x <= high)
            to[i] = x
        begin, less = min(end + width, len(values)), less + width
        for x in values[end:begin]:
            fine &= (x >= low) & (x <= high)
    return fine


@cached_njit(nogil=True)
def range_of(values):
    """The least and the largest."""
    low = high = values[0]
    for x in values:
        low, high = min(low, x), max(high, x)
    return low, high
