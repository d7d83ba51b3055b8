"""The same evaluation of segments of the logs, such as the regions of a country."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from offtrace._shared.suggestions import did_you_mean
from offtrace.logs.container import Logs, take
from offtrace.logs.result import Result

MOST = 50
"""At most so many segments: with more, some interval is wrong for certain, and nobody reads them."""


def of_episodes(logs: Logs, given: object, what: str) -> np.ndarray:
    """What `cluster` or `by` says of each episode [E]: an array, or the name of a column that `read` has kept."""
    if isinstance(given, str):
        if given not in logs.kept:
            raise ValueError(
                f"{what}={given!r}: the logs have kept no such column{did_you_mean(given, list(logs.kept))}; keep it where they "
                f"are read, read(…, columns=Columns(keep={given!r})), or give an array [E]"
            )
        return logs.kept[given]
    names = np.asarray(given)
    if names.shape != (logs.episodes,):
        raise ValueError(
            f"{what} must be a kept column, or have one entry for each of the {logs.episodes:,} episodes, got shape {names.shape}"
        )
    return names


def segments(
    logs: Logs, by: object, cluster: object, evaluated: Callable[[Logs, object], Result]
) -> dict[str, Result | str]:
    """The result of each segment, from its own episodes; or why there is none, in words."""
    if by is None:
        return {}
    names = of_episodes(logs, by, "by").astype(str)
    clusters = None if cluster is None else of_episodes(logs, cluster, "cluster")
    different = np.unique(names)
    if len(different) > MOST:
        raise ValueError(f"by has {len(different):,} different values, and at most {MOST} are shown: join some of them")
    results: dict[str, Result | str] = {}
    for name in different.tolist():
        episodes = np.flatnonzero(names == name)
        part = replace(take(logs, episodes), report=None)
        try:
            results[name] = evaluated(part, None if clusters is None else clusters[episodes])
        except ValueError as error:
            results[name] = str(error)
    return results
