"""Reading by its definition: rows as dictionaries, sorted and grouped in plain Python. Shares no line with what it checks."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np

from offtrace.logs import Logs

Rows = list[dict[str, Any]]


def logs_of(rows: Rows, at_end: bool = False) -> dict[str, Any]:
    """The arrays that good rows make; `next` is their next state, if they have it."""
    episodes: dict[Any, Rows] = defaultdict(list)
    for row in rows:
        episodes[row["episode"]].append(row)
    starts, out = [0], defaultdict(list)
    for name in sorted(episodes):
        steps = sorted(episodes[name], key=lambda row: row["step"])
        cut = not steps[-1]["terminated"] and (at_end or steps[-1].get("truncated"))
        for i, row in enumerate(steps):
            last = i == len(steps) - 1
            if last and cut and "next" not in row:
                break
            beyond = row["next"] if "next" in row else row["state"] if last else steps[i + 1]["state"]
            second_last = i == len(steps) - 2 and "next" not in row
            out["state"].append(row["state"])
            out["next_state"].append(beyond)
            out["action"].append(row["action"])
            out["reward"].append(row["reward"])
            out["terminated"].append(bool(row["terminated"]))
            out["truncated"].append(bool(cut and (last or second_last)))
            out["log_mu"].append(math.log(row["mu"]))
        if len(out["reward"]) > starts[-1]:
            starts.append(len(out["reward"]))
    return {"starts": starts, **out}


def agree(logs: Logs, wanted: dict[str, Any]) -> None:
    """Every array, exactly; log μ to the last digit but one."""
    for name, values in wanted.items():
        found = getattr(logs, name)
        if name == "log_mu":
            np.testing.assert_allclose(found, values, rtol=4e-16, atol=0)
        else:
            np.testing.assert_array_equal(found, np.array(values, dtype=found.dtype))
            assert found.dtype == {"reward": float, "terminated": bool, "truncated": bool}.get(name, found.dtype)
