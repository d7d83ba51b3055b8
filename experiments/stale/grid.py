"""The grid of stale.toml: environments × ages × weightings × step sizes, and its smaller subsets."""

from __future__ import annotations

import itertools
import json
import tomllib
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import offtrace as ot
from stale.token_tasks import TASKS, TokenTask
from stale.weighting import labelled

FILE = Path(__file__).with_name("stale.toml")


class Unit(NamedTuple):
    """One weighting with one step size, with all seeds of a phase."""

    phase: str
    """ "tuning", from which the step size is chosen, or "test"."""
    environment: str
    trace: str
    lam: float | None
    parameters: str
    """JSON: the parameters of the trace, the options of the weighting, and its label."""
    alpha: float
    age: int

    @property
    def weighting(self) -> tuple[str, str, float | None]:
        """What `Weighting.made` takes."""
        return self.trace, self.parameters, self.lam


class Grid:
    """What is run: all weightings in all environments, at all ages."""

    def __init__(self, subset: str | None = None, file: Path = FILE, **protocol: int) -> None:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
        subsets = given.pop("subsets")
        if subset is not None and subset not in subsets:
            raise ValueError(f"there is no subset {subset!r}: {', '.join(subsets)}")
        given = _merged(given, subsets[subset]) if subset else given
        self.name = f"stale-{subset}" if subset else "stale"
        self.environments: list[str] = given["environments"]
        self.ages: list[int] = given["ages"]
        self.alphas: list[float] = given["alphas"]
        self.seeds: dict[str, dict[str, int]] = given["seeds"]
        self.protocol: dict[str, Any] = {**given["protocol"], **protocol}
        self.weightings = [w for entry in given["traces"] for w in _weightings(entry, given["lams"])]

    def units(self, phase: str, environment: str, age: int) -> list[list[Unit]]:
        """For each weighting its units, one for each step size."""
        return [
            [Unit(phase, environment, *weighting, alpha, age) for alpha in self.alphas]
            for weighting in map(_in_unit_order, self.weightings)
        ]

    def seeds_of(self, phase: str) -> range:
        """The seeds of a phase."""
        first = self.seeds[phase]["first"]
        return range(first, first + self.seeds[phase]["count"])


def _merged(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The tables with changes: tables are merged key by key, everything else is replaced."""
    both = dict(given)
    for key, value in changes.items():
        both[key] = _merged(both[key], value) if isinstance(value, dict) and key in both else value
    return both


def _in_unit_order(weighting: tuple[str, str, float | None]) -> tuple[str, float | None, str]:
    trace, parameters, lam = weighting
    return trace, lam, parameters


def _weightings(entry: dict[str, Any], lams: list[float]) -> list[tuple[str, str, float | None]]:
    """The weightings of an entry whose lists are grids; "{bound}" in a label stands for that parameter."""
    given = dict(entry)
    name, own = given.pop("name"), given.pop("lam", lams)
    if "lam" not in (field.name for field in fields(ot.trace(name))):
        own = None
    choices = [value if isinstance(value, list) else [value] for value in given.values()]
    found: list[tuple[str, str, float | None]] = []
    for picked in itertools.product(*choices):
        parameters = labelled(dict(zip(given, picked, strict=True)))
        spelt = json.dumps(parameters, sort_keys=True)
        found += [(name, spelt, lam) for lam in (own if isinstance(own, list) else [own])]
    return found


@lru_cache(maxsize=64)
def token_task(label: str) -> tuple[TokenTask, str, float]:
    """Make the task of a label; the precision and the top_p of its sampler.

    >>> token_task("sort:length=8,top_p=0.9")[1:]
    ('float32', 0.9)
    """
    name, _, rest = label.partition(":")
    given: dict[str, Any] = dict(part.split("=") for part in rest.split(",") if part)
    precision, top_p = given.pop("precision", "float32"), float(given.pop("top_p", 1.0))
    if name not in TASKS or precision not in ("float32", "bfloat16") or not 0.0 < top_p <= 1.0:
        raise ValueError(
            f"{label}: a task is one of {', '.join(TASKS)}, with precision float32 or bfloat16, 0 < top_p ≤ 1"
        )
    return TASKS[name](**{key: int(value) for key, value in given.items()}), precision, top_p
