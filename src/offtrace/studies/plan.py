"""The units of work of a study, in order: what is to be run, and which step size tuning has chosen.

A unit is one configuration with all seeds of its phase. First each group (environment, trace, λ, age) is tuned: one unit for each
step size. When these are done, its test unit runs with the step size of the best mean. Deep agents are not tuned, and a unit has
all λ's of its trace: they are compiled once, and fill a GPU together.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from traceback import format_exc
from typing import TYPE_CHECKING, Any

from offtrace.studies.spec import HIGHER_IS_BETTER

if TYPE_CHECKING:
    import numpy as np

    from offtrace.studies.study import Study


Group = tuple[str, str, float | None, str, int | None]
"""Environment, trace, λ, parameters, age."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One configuration, with all seeds of a phase."""

    id: str
    """A digest of the study's digest and of the other fields."""
    phase: str
    environment: str
    trace: str
    lam: float | None
    parameters: str
    """JSON; empty where there are none."""
    alpha: float | None
    age: int | None

    @property
    def group(self) -> Group:
        """What a step size is chosen for."""
        return self.environment, self.trace, self.lam, self.parameters, self.age

    def __str__(self) -> str:
        numbers = [("λ", self.lam), ("α", self.alpha), ("age", self.age)]
        spelt = " ".join(f"{n} = {v:g}" for n, v in numbers if v is not None)
        return f"{self.trace}{' ' + self.parameters if self.parameters else ''} {spelt} on {self.environment}"


@dataclass(frozen=True)
class Job:
    """A unit with all that a worker must know of its study."""

    unit: Unit
    task: str
    metric: str
    protocol: Any
    lams: tuple[float | None, ...]
    """That of the unit; for deep agents all of its trace."""
    first: int
    count: int
    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    sources: str = ""
    """The digest of the modules and files that it needs; a worker that has others refuses."""
    unfinished: str = ""
    """The folder where a long unit keeps its checkpoints until it is done; empty: it starts again if it is killed."""


@dataclass(frozen=True)
class Outcome:
    """What a unit gives."""

    unit: Unit
    rows: dict[str, np.ndarray]
    """seed, value, and what else there is of: lam, episodes, diverged, contraction_lower, contraction_upper, variance, bias."""
    curve: dict[str, np.ndarray]
    """step, mean, low, high, n; of deep agents one for each run, with its lam and seed; empty for a map."""
    score: float
    """The mean of the metric over the seeds: what tuning goes by."""
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A unit that could not be run; the others continue."""

    unit: Unit
    error: str
    """What happened, in one line."""
    traceback: str = ""
    attempts: int = 3
    """So often may this happen to a unit; then it is set aside."""

    @classmethod
    def raised(cls, unit: Unit, error: Exception, attempts: int = 3) -> Failure:
        """A unit that raised an error."""
        return cls(unit, f"it raised {type(error).__name__}: {error}".splitlines()[0], format_exc(), attempts)


class Plan:
    """All units of a study, and which of them are done."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.done: dict[str, float] = {}
        """The score of each unit that is done."""
        self.stored: Mapping[str, float] = {}
        """The same, with tests that may or may not be what tuning will choose."""
        self.protocols = {place.name: place.protocol for place in study.environments}
        self.first_phase, self.last_phase = next(iter(study.seeds)), list(study.seeds)[-1]
        self.groups: dict[Group, list[Unit]] = self._groups()
        self.units = {unit.id: unit for group in self.groups.values() for unit in group}
        """Those of the first phase, and the tests whose step size is chosen."""

    def take(self, done: Mapping[str, float]) -> None:
        """Take these as done; but not a test with another step size than tuning chooses."""
        self.stored = done
        first = (unit for group in self.groups.values() for unit in group)
        self.done = {unit.id: done[unit.id] for unit in first if unit.id in done}
        for group in self.groups.values() if self.tunes else ():
            if all(unit.id in self.done for unit in group):
                test = self._chosen(group)
                if test.id in done:
                    self.done[test.id] = done[test.id]

    @property
    def tunes(self) -> bool:
        """Whether there are two phases."""
        return self.first_phase != self.last_phase

    @property
    def total(self) -> int:
        """How many units will have been run in the end."""
        return sum(map(len, self.groups.values())) + (len(self.groups) if self.tunes else 0)

    @property
    def finished(self) -> bool:
        """Whether nothing is left."""
        return len(self.done) >= self.total

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Done and total, by phase."""
        tested = sum(self.units[id].phase == self.last_phase for id in self.done)
        first = sum(map(len, self.groups.values()))
        if not self.tunes:
            return {self.first_phase: (tested, first)}
        return {self.first_phase: (len(self.done) - tested, first), self.last_phase: (tested, len(self.groups))}

    @property
    def runs(self) -> int:
        """The number of runs in all units together: one for each λ and seed."""
        counts = {phase: seeds.count for phase, seeds in self.study.seeds.items()}
        tests = counts[self.last_phase] if self.tunes else 0
        return sum(
            len(self._lams(group[0])) * (len(group) * counts[self.first_phase] + tests)
            for group in self.groups.values()
        )

    def cost(self, unit: Unit) -> float:
        """How much work a unit is, roughly."""
        runs = len(self._lams(unit)) * self.study.seeds[unit.phase].count
        return self.protocols[unit.environment].cost * runs

    def left(self) -> Iterator[Unit]:
        """What can be run now: not done, and if it is a test, tuned."""
        for group in self.groups.values():
            waiting = [unit for unit in group if unit.id not in self.done]
            yield from waiting
            if not waiting and self.tunes and (test := self._chosen(group)).id not in self.done:
                yield test

    def mark(self, unit: Unit, score: float) -> Unit | None:
        """Mark a unit as done, and return the test that can be run because of that, if there is one."""
        self.done[unit.id] = score
        group = self.groups[unit.group]
        if self.tunes and unit.phase == self.first_phase and all(u.id in self.done for u in group):
            test = self._chosen(group)
            if test.id not in self.stored:
                return test
            self.done[test.id] = self.stored[test.id]
        return None

    def _chosen(self, group: list[Unit]) -> Unit:
        """The test with the step size of the best mean; the smaller one if two are equal. A NaN is worst."""
        best = min(group, key=lambda unit: (self.rank(self.done[unit.id]), unit.alpha))
        test = self.unit(self.last_phase, best.group, best.alpha)
        return self.units.setdefault(test.id, test)

    def rank(self, score: float) -> float:
        """The score as a number that is smaller the better it is."""
        if math.isnan(score):
            return math.inf
        return -score if self.study.metric in HIGHER_IS_BETTER else score

    def job(self, unit: Unit) -> Job:
        """The unit, ready to be sent to a worker."""
        study, seeds = self.study, self.study.seeds[unit.phase]
        protocol, unfinished = self.protocols[unit.environment], ""
        if study.task == "deep":
            unfinished = str(study.folder.absolute() / "unfinished" / f"{unit.id}-{study.code.digest[:12]}")
        about = study.task, study.metric, protocol, self._lams(unit), seeds.first, seeds.count
        return Job(unit, *about, study.modules, study.files, study.code.sources_digest, unfinished)

    def unit(self, phase: str, group: Group, alpha: float | None) -> Unit:
        """A unit of a group. Its id depends on the study and on all other fields."""
        head = _spelt(self.study.digest, phase, *group[:4])
        return _unit(head, phase, group, alpha, json.dumps(alpha), json.dumps(group[4]))

    def _lams(self, unit: Unit) -> tuple[float | None, ...]:
        """That of the unit; for deep agents all of its trace."""
        if self.study.task != "deep":
            return (unit.lam,)
        return next(t.lams for t in self.study.traces if (t.title, t.spelt) == (unit.trace, unit.parameters))

    def _groups(self) -> dict[Group, list[Unit]]:
        study, phase, groups = self.study, self.first_phase, {}
        alphas = [(alpha, json.dumps(alpha)) for alpha in study.alphas or (None,)]
        ages = [(age, json.dumps(age)) for age in study.ages or (None,)]
        for place in study.environments:
            for trace in study.traces:
                for lam in trace.lams if study.task != "deep" else (None,):
                    head = _spelt(study.digest, phase, place.name, trace.title, lam, trace.spelt)
                    for age, age_spelt in ages:
                        group = place.name, trace.title, lam, trace.spelt, age
                        groups[group] = [_unit(head, phase, group, alpha, spelt, age_spelt) for alpha, spelt in alphas]
        return groups


def _spelt(*values: object) -> str:
    return json.dumps(values)[:-1]


def _unit(head: str, phase: str, group: Group, alpha: float | None, alpha_spelt: str, age_spelt: str) -> Unit:
    environment, trace, lam, parameters, age = group
    id = hashlib.sha256(f"{head}, {alpha_spelt}, {age_spelt}]".encode()).hexdigest()[:16]
    return Unit(id, phase, environment, trace, lam, parameters, alpha, age)
