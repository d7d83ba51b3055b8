"""Compiled code on disk, where there is a folder for it, and only as it was written.

Numba keeps it in `NUMBA_CACHE_DIR`, beside the source, or in a folder of the user's. Where none of them can be written, as in a
container without a home, it refuses to make the function at all; here the function is compiled in each process, which is said
once. A file that was cut short or damaged would be an error of the unpickler, or machine code of any kind; here a digest stands
before its content, and what does not fit to it is compiled anew. What is compiled for given types is large: of several processes
that need it at once, one compiles it, and the others wait for it.

This uses names of Numba that are not public: `tests/test_numba_names.py` lists all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.types import Type

from offtrace._shared import typed_first as typed_first

F = TypeVar("F", bound=Callable[..., Any])
DIGEST = hashlib.sha256().digest_size


def cached_njit(**options: Any) -> Callable[[F], F]:
    """`numba.njit(cache=True)`; where Numba finds no folder that it can write to, the function is compiled in each process."""

    def decorate(function: F) -> F:
        compiling: Any = numba.njit
        try:
            return compiling(cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
            return compiling(**options)(function)

    return decorate


def keep_on_disk(made: Any) -> None:
    """Keep on disk what a function of Numba's compiles from now on, where that can be."""
    try:
        made.enable_caching()
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        _say_once("there is no folder for it that can be written")
        return
    made._cache.__class__ = _Kept
    made._cache._cache_file.__class__ = _CheckedFiles


def kept_njit(kinds: tuple[Type, ...] | None = None, /, **options: Any) -> Callable[[F], F]:
    """`numba.njit(cache=True)`; with the types of the arguments given, it is compiled at once, and for no others."""

    def decorate(function: F) -> F:
        usual: dict[str, Any] = {"no_cfunc_wrapper": True}  # nobody asks for its address
        made: Any = numba.njit(**(usual | options))(function)
        keep_on_disk(made)
        if kinds is not None:
            with _one_at_a_time(made):
                made.compile(kinds)
            made.disable_compile()
        return made

    return decorate


@contextlib.contextmanager
def _one_at_a_time(made: Any) -> Iterator[None]:
    """Wait until no other process compiles this function; what that one wrote to disk need not be compiled again."""
    with contextlib.ExitStack() as held:
        if isinstance(made._cache, _Kept):
            with contextlib.suppress(ImportError, OSError):  # a system, a disk or a folder without locks
                import fcntl

                lock = Path(made._cache._cache_file._index_path).with_suffix(".lock")
                fcntl.flock(held.enter_context(lock.open("a")), fcntl.LOCK_EX)
        yield


_said: set[str] = set()


def _say_once(why: str) -> None:
    if not _said:
        _said.add(why)
        warnings.warn(
            f"offtrace cannot keep compiled code on disk ({why}), so each process compiles it again: "
            "set NUMBA_CACHE_DIR to a folder that can be written",
            RuntimeWarning,
            stacklevel=2,
        )


class _Kept(FunctionCache):
    """A function's compiled code on disk."""

    def save_overload(self, sig: object, data: object) -> None:
        """Where the disk is full, or cannot be written any more, nothing is kept."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _say_once(str(error))


class _CheckedFiles(IndexDataCacheFile):
    """Numba's files of compiled code, each with a digest of its content before it."""

    def _load_index(self) -> dict[Any, str]:
        found = self._read(self._index_path)
        if found is None or found[:2] != (self._version, self._source_stamp):
            return {}
        return found[2]

    def _save_index(self, overloads: dict[object, str]) -> None:
        self._write(self._index_path, (self._version, self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        return self._read(self._data_path(name))  # None: not kept

    def _save_data(self, name: str, data: object) -> None:
        self._write(self._data_path(name), data)

    def _read(self, path: str) -> Any:
        """What the file holds; None where it is not there or not whole."""
        try:
            content = Path(path).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(content[DIGEST:]).digest() != content[:DIGEST]:
            return None
        return pickle.loads(content[DIGEST:])

    def _write(self, path: str, content: object) -> None:
        dumped = self._dump(content)
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(dumped).digest() + dumped)
