"""Rows of unequal length without padding: flat arrays with `cu_seqlens`, lists of arrays, nested tensors.

They are padded for the computation, and the result takes the form that came in. So packed rows have exactly the results of
padded ones. `cu_seqlens` [n + 1] holds the places in the flat arrays [N] at which rows begin, and then N.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Generic, NamedTuple

import numpy as np

from offtrace.arrays import Array
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.backend import Backend
from offtrace.returns.weights.decisions import check_offsets, flags

OF_ROWS, MAY_BE_OF_ROWS = ("group",), ("advantage", "keep")
"""Arguments that hold one number for each row, and those that may."""


def padded(result: Any) -> Any:
    """A result as it is: the form of padded rows."""
    return result


class Packed(NamedTuple):
    """Rows of unequal length in flat arrays [N]."""

    arrays: dict[str, Any]
    """Flat arrays, and those that hold one number for each row."""
    cu_seqlens: Any
    per_row: list[str]
    """Which of the arrays that may do so hold one number for each row."""
    form: Callable[[Any], Any]
    """Gives a flat result the form in which the arrays came."""

    @property
    def flat(self) -> dict[str, Any]:
        """The flat arrays alone."""
        not_flat = (*OF_ROWS, *self.per_row)
        return {name: a for name, a in self.arrays.items() if a is not None and name not in not_flat}

    def padded(self, max_seqlen: int | None, check: bool | None) -> tuple[dict[str, Any], Callable[[Any], Any]]:
        """The arrays as [n, T] with a mask, and the function that gives a result the form that they have."""
        backend = backend_of(self.flat)
        flat = {name: backend.array(name, a) for name, a in self.flat.items()}
        rows = Ragged(backend, flat, self.cu_seqlens, max_seqlen, check)
        if self.per_row and rows.total == len(self.cu_seqlens) - 1 and rows.longest > 1:
            raise ValueError(
                "advantage may be of rows or of tokens, as there are as many: give it for each token, in a list"
            )
        return {**self.arrays, **rows.padded()}, lambda result: self.form(rows.flat(result))


def packed_rows(arrays: Mapping[str, Any], cu_seqlens: Any = None, max_seqlen: int | None = None) -> Packed | None:
    """The rows as flat arrays, if they are flat with `cu_seqlens`, lists of arrays or nested tensors; None for padded arrays."""
    given = {name: a for name, a in arrays.items() if a is not None and name not in OF_ROWS}
    lists = [name for name, a in given.items() if _is_list_of_rows(a)]
    nested = [name for name, a in given.items() if getattr(a, "is_nested", False)]
    if cu_seqlens is None and not lists and not nested:
        if max_seqlen is not None:
            raise TypeError("max_seqlen is given without cu_seqlens: it is the length of the longest packed row")
        return None
    if arrays.get("segment") is not None:
        raise TypeError("segment says where rows begin, as cu_seqlens, lists and nested tensors do: pass one of them")
    form: Callable[[Any], Any] = padded
    if cu_seqlens is None:
        first = (lists or nested)[0]
        flat, cu_seqlens, form = _of_lists(given, first) if lists else _of_nested(given, first)
        arrays = {**arrays, **flat}
    n = len(cu_seqlens) - 1
    per_row = [name for name in MAY_BE_OF_ROWS if arrays.get(name) is not None and np.shape(arrays[name]) == (n,)]
    return Packed(dict(arrays), cu_seqlens, per_row, form)


def padded_rows(
    arrays: Mapping[str, Any], cu_seqlens: Any = None, max_seqlen: int | None = None, check: bool | None = None
) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """`Packed.padded` of rows that are packed. Padded arrays stay."""
    packed = packed_rows(arrays, cu_seqlens, max_seqlen)
    return (dict(arrays), padded) if packed is None else packed.padded(max_seqlen, check)


class Ragged(Generic[Array]):
    """Flat arrays [N] of n rows, and where each entry goes in rows [n, T]."""

    def __init__(
        self,
        backend: Backend[Array],
        arrays: dict[str, Array],
        cu_seqlens: Any,
        max_seqlen: int | None,
        check: bool | None,
    ) -> None:
        self.backend, self.arrays = backend, arrays
        name, first = next(iter(arrays.items()))
        for other, array in arrays.items():
            if len(array.shape) != 1 or array.shape != first.shape or not len(first):
                raise ValueError(
                    f"{other} has shape {tuple(array.shape)} and {name} {tuple(first.shape)}: packed rows are flat arrays [N], "
                    "all of one length and not empty"
                )
        self.total = len(first)
        xp: Any = backend.xp
        cu: Any = xp.asarray(cu_seqlens)
        if len(cu.shape) != 1 or len(cu) < 2 or backend.letter(cu.dtype) not in "iu":
            raise TypeError(f"cu_seqlens must hold integers [n + 1], got {cu.dtype} of shape {tuple(cu.shape)}")
        on_host = isinstance(cu_seqlens, list | tuple | np.ndarray)
        longest: int | None = None
        if on_host or backend.looks(check, {**arrays, "cu_seqlens": cu}):
            seen = np.asarray(cu_seqlens) if on_host else backend.as_numpy(cu)
            check_offsets(seen, self.total, name)
            longest = int(np.diff(seen).max())
            if max_seqlen is not None and max_seqlen < longest:
                raise ValueError(
                    f"max_seqlen is {max_seqlen}, but row {np.argmax(np.diff(seen))} has {longest} entries"
                )
        self.longest = _longest(cu, max_seqlen) if max_seqlen is not None or longest is None else longest
        cu = cu.to(first.device) if backend.has_devices else cu
        n = len(cu) - 1
        place = backend.cast(xp.cumsum(xp.broadcast_to(cu[:1] * 0 + 1, (self.total,)), 0) - 1, cu.dtype)
        row = xp.clip(xp.searchsorted(cu[1:], place, side="right"), 0, n - 1)
        column = place - cu[row]
        self.fits = (column >= 0) & (column < self.longest)
        self.size = n * self.longest
        self.at = xp.where(self.fits, row * self.longest + column, self.size)
        self.shape = n, self.longest

    def padded(self) -> dict[str, Array]:
        """The arrays as [n, T]; `mask` is true for the entries of the rows, and where a mask that is given is."""
        mask = self.arrays.get("mask")
        there = self.fits if mask is None else self.fits & (mask != 0)
        if mask is not None and self.backend.letter(mask.dtype) in "biuf" and self.backend.looks(None, {"mask": mask}):
            flags(self.backend.as_numpy(mask))
        return {
            name: self.backend.placed(array, self.at, self.size + 1)[: self.size].reshape(self.shape)
            for name, array in {**self.arrays, "mask": there}.items()
        }

    def flat(self, result: Array) -> Array:
        """A result [n, T] as [N]; NaN, or False, where `max_seqlen` was too small."""
        entries: Any = result.reshape(-1)[self.backend.xp.clip(self.at, 0, self.size - 1)]
        if self.backend.letter(result.dtype) in "biu":
            return entries & self.fits
        return self.backend.xp.where(self.fits, entries, np.nan)


def _longest(cu: Any, max_seqlen: int | None) -> int:
    if max_seqlen is None:
        try:
            return int((cu[1:] - cu[:-1]).max())
        except TypeError:  # of JAX: it is traced
            raise TypeError(
                "cu_seqlens is traced, so that the length of the longest row is not known: pass max_seqlen"
            ) from None
    if isinstance(max_seqlen, bool) or not isinstance(max_seqlen, int | np.integer) or max_seqlen < 1:
        raise ValueError(f"max_seqlen must be an integer of at least 1, got {max_seqlen!r}")
    return int(max_seqlen)


def _is_list_of_rows(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and len(value) > 0 and all(len(getattr(row, "shape", ())) == 1 for row in value)
    )


def _of_lists(given: Mapping[str, Any], first: str) -> tuple[dict[str, Any], list[int], Callable[[Any], Any]]:
    """Lists of 1-D arrays as flat ones, where rows begin, and what makes a list of a result."""
    lengths = [len(row) for row in given[first]]
    flat: dict[str, Any] = {}
    for name, rows in given.items():
        if name in MAY_BE_OF_ROWS and not _is_list_of_rows(rows):
            continue
        if not _is_list_of_rows(rows) or len(rows) != len(lengths):
            raise ValueError(f"{name} must be a list of {len(lengths)} rows, as {first} is")
        for b, (row, n) in enumerate(zip(rows, lengths, strict=True)):
            if len(row) != n:
                raise ValueError(f"{name} has {len(row)} entries in row {b}, but {first} has {n}")
        flat[name] = backend_of({name: rows[0]}).xp.concatenate(list(rows))
    ends = np.cumsum([0, *lengths]).tolist()
    return flat, ends, lambda result: [result[a:b] for a, b in pairwise(ends)]


def _of_nested(given: Mapping[str, Any], first: str) -> tuple[dict[str, Any], Any, Callable[[Any], Any]]:
    """Nested tensors as flat ones, where rows begin, and what makes a nested tensor of a result."""
    import torch

    if any(a.layout is not torch.jagged for a in given.values() if getattr(a, "is_nested", False)):
        lists = {name: list(a.unbind()) if getattr(a, "is_nested", False) else a for name, a in given.items()}
        flat, ends, form = _of_lists(lists, first)
        return flat, ends, lambda result: torch.nested.as_nested_tensor(form(result))
    offsets = given[first].offsets()
    flat = {}
    for name, a in given.items():
        if name in MAY_BE_OF_ROWS and not a.is_nested:
            continue
        if not a.is_nested or a.values().shape != given[first].values().shape:
            raise ValueError(f"{name} must be a nested tensor of the rows of {first}")
        if a.offsets() is not offsets and not torch.equal(a.offsets(), offsets):
            b = int(torch.argmax((a.offsets().diff() != offsets.diff()).int()))
            raise ValueError(
                f"{name} has {int(a.offsets().diff()[b])} entries in row {b}, but {first} has another number"
            )
        flat[name] = a.values()
    return flat, offsets, lambda result: torch.nested.nested_tensor_from_jagged(result, offsets)
