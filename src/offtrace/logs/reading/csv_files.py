"""What may be wrong with a CSV file as such, before anything is made of its rows.

Polars renames the second of two columns with one name, and leaves out fields that no column names. Both are errors here.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from offtrace.logs.reading.problems import LogsError


def check_heads(files: Collection[Path], used: Collection[str]) -> None:
    """Check that each file has a header, and that the header names no used column twice."""
    for file in files:
        with _rows(file) as rows:
            head = next(rows, [])
        if not head:
            raise LogsError(f"{file} is empty: a CSV file begins with the names of its columns")
        for name, times in Counter(head).items():
            if times > 1 and name in used:
                raise LogsError(
                    f"{file} has {times} columns that are called {name!r}: rename all but the one that is meant"
                )


def explain_long_row(files: Collection[Path]) -> None:
    """Raise an error that names the first row with more fields than its file has columns, if there is one."""
    for file in files:
        with _rows(file) as rows:
            width = len(next(rows, []))
            for number, row in enumerate(rows):
                if len(row) > width:
                    raise LogsError(
                        f"row {number:,} of {file} has {len(row)} fields, but the header names {width} columns; is a comma in a "
                        f"text not quoted? The row begins with {','.join(islice(row, 4))!r}"
                    )


@contextmanager
def _rows(file: Path) -> Iterator[Iterator[list[str]]]:
    """The rows of a file, blank lines left out."""
    with file.open(newline="", encoding="utf-8", errors="replace") as text:
        yield (row for row in csv.reader(text) if row)
