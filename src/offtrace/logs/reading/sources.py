"""Logs of any source, checked.

    logs = offtrace.logs.read("logs/*.parquet", columns=Columns(state=("x", "y"), mu="propensity"))

What is read, and in which form:

    a path               of a Parquet, Arrow (IPC), CSV (.csv.gz too) or JSONL file, of a folder of them, or a pattern such as
                         "logs/*.parquet"
    a frame              of polars (lazy too) or pandas, or an Arrow table
    a list of rows       each a mapping from columns to values
    a Minari dataset     itself, its folder, or its id, such as "frozenlake/random-v0", if it is on this machine
    Gymnasium episodes   a list of mappings with `observations` (one more than actions), `actions`, `rewards`, `terminations`,
                         `truncations` and, for μ, `infos`

Rows may stand in any order; the same rows give the same logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from offtrace.logs.container import Logs
from offtrace.logs.reading import episodes, tables
from offtrace.logs.reading.assembly import assembled
from offtrace.logs.reading.columns import Columns, checked_names
from offtrace.logs.reading.conversion import Conversion
from offtrace.logs.reading.problems import LogsError


def read(
    source: object,
    *,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    truncated: Literal["never", "at end"] | None = None,
    on_error: Literal["raise", "drop"] = "raise",
    drop_at_most: float = 0.05,
    states: int | np.integer | np.ndarray | Sequence[int | str] | None = None,
    actions: int | np.integer | np.ndarray | str | Sequence[int | str] | None = None,
) -> Logs:
    """The logs of `source`; `logs.report` says what was read, `describe(logs)` what they are like.

    - `columns`: what they are called; of Minari and Gymnasium episodes only `mu` or `log_mu` matters, a key of `infos`.
    - `truncated`: whether episodes were cut, where no column says it. "never": each must end with a terminated step; "at end":
      one whose last step is not terminated was cut there. Without either, the source must say it: it is not guessed.
    - `on_error`: "raise" names everything impossible with its first rows; "drop" leaves out episodes with any of it, whole.
    - `drop_at_most`: the share of the episodes that may be dropped; more is an error, since the rest may be a biased sample.
    - `states`: how many there are, or their names in the order of their ids, as the target policy has them; None: those of the
      source. Other ones are impossible values. Given, a column of floats holds ids too.
    - `actions`: likewise; or "continuous" where they are real numbers, and μ are densities. Several columns, a column of lists,
      and Box spaces are so without it.

    Integers from 0 on are ids as they are. Strings, and integers below 0 or far above the number of steps, are numbered in sorted
    order, and `state_names` or `action_names` has them. Where that order was not given as `states` or `actions`, nothing is
    matched with it by position: a table [S, A] is refused.

    Without a column `next_state`, the next state is that of the next row. The last row of a truncated episode has none, and what
    its action led to is not known: then this row's state is the next state of the row before, which becomes the truncated one,
    and its action and reward are not used. The report says of how many episodes.

    >>> import polars as pl
    >>> from offtrace.logs import Columns, read
    >>> steps = {"episode": [0, 0], "step": [0, 1], "state": ["a", "b"], "action": [0, 1],
    ...          "reward": [0.0, 1.0]}
    >>> table = pl.DataFrame({**steps, "terminated": [False, True], "mu": [0.5, 0.5]})
    >>> logs = read(table, columns=Columns(mu="mu", truncated=None), truncated="never")
    >>> logs.episodes, logs.state_names, logs.log_mu.round(3).tolist()
    (1, ('a', 'b'), [-0.693, -0.693])
    """
    if on_error not in ("raise", "drop"):
        raise ValueError(f'on_error must be "raise" or "drop", got {on_error!r}')
    if truncated not in (None, "never", "at end"):
        raise ValueError(f'truncated must be "never" or "at end" if it is given, got {truncated!r}')
    if not 0.0 <= drop_at_most <= 1.0:
        raise ValueError(f"drop_at_most must be a share of the episodes, from 0 to 1, got {drop_at_most!r}")
    most = drop_at_most if on_error == "drop" else None
    given = checked_names("states", states), checked_names("actions", actions)
    opened = _opened(source, columns)
    if not isinstance(opened, tables.Table):
        opened, columns, *given = episodes.table(opened, columns, truncated, *given)
    try:
        columns.check(opened.frame.collect_schema().names(), truncated)
        tables.check_rows(opened)
        return assembled(Conversion(opened, columns, *given).rows(truncated == "at end"), most)
    except tables.UNREADABLE as error:
        tables.explain_files(opened.files)
        raise LogsError(f"{opened.name} cannot be read: {error}") from error


def _opened(source: object, columns: Columns) -> object:
    """A table, or what `episodes` reads."""
    if isinstance(source, str | Path):
        if (Path(source) / "data" / "metadata.json").exists() or (Path(source) / "metadata.json").exists():
            return Path(source)
        if files := tables.files_of(source):
            return tables.from_files(files, str(source), columns)
        return str(source)
    return tables.from_frame(source, columns) or source
