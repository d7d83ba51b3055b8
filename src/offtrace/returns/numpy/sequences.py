"""The decisions of a batch one after the other, and where each row, or each segment of a packed row, begins among them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Sequences(NamedTuple):
    """N decisions in S sequences, in the order of the batch. A sequence is the decisions of a row, or of one of its segments."""

    rows: np.ndarray
    """The row of each decision, [N]."""
    steps: np.ndarray
    """The step of each decision, [N]."""
    starts: np.ndarray
    """The place of each sequence's first decision among the N, [S]."""

    @property
    def lengths(self) -> np.ndarray:
        """How many decisions each sequence has, [S]."""
        return np.diff(self.starts, append=len(self.rows))

    def of(self, array: np.ndarray) -> np.ndarray:
        """The entries of an array [B, T] at the decisions, [N]."""
        return array[self.rows, self.steps]

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """A number for each sequence given to each of its decisions, [N]."""
        return np.repeat(numbers, self.lengths)


def sequences(mask: np.ndarray, segment: np.ndarray | None = None) -> Sequences:
    """The decisions where a mask [B, T] is true; an error where the ids of segments fall along a row."""
    rows, steps = np.nonzero(mask)
    begins = np.ones(len(rows), bool)
    begins[1:] = rows[1:] != rows[:-1]
    if segment is not None:
        ids = segment[rows, steps]
        falls = np.zeros(len(rows), bool)
        falls[1:] = ~begins[1:] & (ids[1:] < ids[:-1])
        if falls.any():
            i = int(np.argmax(falls))
            raise ValueError(
                f"segment falls along a row: {ids[i - 1]} is followed by {ids[i]} in row {rows[i]} at step {steps[i]}. "
                "A row that was packed first has the smaller id: number the rows in the order in which they stand"
            )
        begins[1:] |= ids[1:] != ids[:-1]
    return Sequences(rows, steps, np.flatnonzero(begins))
