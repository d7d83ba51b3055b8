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
from typing import TYPE_CHECKING, Any, NamedTuple

from offtrace.studies.task_protocols import HIGHER_IS_BETTER

if TYPE_CHECKING:
    import numpy as np

    from offtrace.studies.study import Study


Group = tuple[str, str, float | None, str, int | None]
"""Environment, trace, λ, parameters, age."""


@dataclass(frozen=True)
class Unit:
    """One configuration, with all seeds of a phase."""

    id: str
    """A digest of the study's digest and of what follows."""
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
    modules: tuple[str, ...]
    code: str = ""
    """The digest of the code that is to run it; a worker that has other code refuses."""
    unfinished: str = ""
    """The folder where a long unit keeps its checkpoints until it is done; empty: it begins anew if it is killed."""

    @property
    def cost(self) -> float:
        """How much work it is, roughly."""
        return self.protocol.cost * self.runs

    @property
    def runs(self) -> int:
        """How many there are: one for each λ and seed."""
        return len(self.lams) * self.count


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
    """A unit that cannot be run, while others go on."""

    unit: Unit
    error: str
    """What happened, in one line."""
    traceback: str = ""

    @classmethod
    def raised(cls, unit: Unit, error: Exception) -> Failure:
        """A unit that raised an error."""
        return cls(unit, f"it raised {type(error).__name__}: {error}".splitlines()[0], format_exc())


class Best(NamedTuple):
    """The best trace on an environment."""

    unit: Unit
    """Of its units, that of the first age."""
    score: float
    """The mean over the ages."""


class Plan:
    """All units of a study, and which of them are done."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.done: dict[str, float] = {}
        self.protocols = {place.name: place.protocol for place in study.environments}
        self.first_phase, self.last_phase = next(iter(study.seeds)), list(study.seeds)[-1]
        self.groups: dict[Group, list[Unit]] = {}
        for unit in self._units(self.first_phase):
            self.groups.setdefault(unit.group, []).append(unit)
        self.units = {unit.id: unit for group in self.groups.values() for unit in group}
        if self.tunes:
            self.units |= {unit.id: unit for unit in self._units(self.last_phase)}
        self.order = {unit: i for i, unit in enumerate(self.units)}

    def take(self, done: Mapping[str, float]) -> None:
        """These are done; but not a test with a step size that tuning, which was run again, no longer chooses."""
        self.done = dict(done)
        for unit in [self.units[id] for id in done if self.tunes and self.units[id].phase == self.last_phase]:
            group = self.groups[unit.group]
            if all(other.id in done for other in group) and self.test_of(group).id != unit.id:
                del self.done[unit.id]

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
        return next(self.left(), None) is None and len(self.done) >= self.total

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Done and total, by phase."""
        done = [self.units[id].phase for id in self.done]
        total = {self.first_phase: sum(map(len, self.groups.values()))}
        if self.tunes:
            total[self.last_phase] = len(self.groups)
        return {phase: (done.count(phase), n) for phase, n in total.items()}

    @property
    def total_cost(self) -> float:
        """The cost of all units together."""
        return sum(job.cost for job in self._jobs())

    @property
    def runs(self) -> int:
        """The number of runs in all units together."""
        return sum(job.runs for job in self._jobs())

    def _jobs(self) -> Iterator[Job]:
        """As many as there will have been in the end; which step size a test has does not matter here."""
        for group in self.groups.values():
            yield from map(self.job, group)
            if self.tunes:
                yield self._job(group[0], self.last_phase)

    def left(self) -> Iterator[Unit]:
        """What can be run now: not done, and if it is a test, tuned."""
        for group in self.groups.values():
            waiting = [unit for unit in group if unit.id not in self.done]
            yield from waiting
            if not waiting and self.tunes and (test := self.test_of(group)).id not in self.done:
                yield test

    def mark(self, unit: Unit, score: float) -> Unit | None:
        """Mark a unit as done, and return the unit that can be run because of that, if there is one."""
        self.done[unit.id] = score
        group = self.groups[unit.group]
        if self.tunes and unit.phase == self.first_phase and all(u.id in self.done for u in group):
            test = self.test_of(group)
            return None if test.id in self.done else test
        return None

    def test_of(self, group: list[Unit]) -> Unit:
        """The test with the step size of the best mean; the smaller one if two are equal. A NaN is worst."""
        best = min(group, key=lambda unit: (self.rank(self.done[unit.id]), unit.alpha))
        return self._unit(self.last_phase, best.group, best.alpha)

    def best(self) -> dict[str, Best]:
        """The best trace on each environment, as a report marks it: at the λ that tuning chose, by the mean over all ages.

        On a map nothing is best, and of units with several λ's the scores do not tell.
        """
        study, tested = self.study, any(self.units[id].phase == self.last_phase for id in self.done)
        if study.task == "map" or (study.task == "deep" and any(len(trace.lams) > 1 for trace in study.traces)):
            return {}
        by_lam: dict[Group, list[tuple[Unit, float]]] = {}
        for group in self.groups.values():
            tuned = [unit for unit in group if unit.id in self.done]
            if not tuned or (self.tunes and tested and len(tuned) < len(group)):
                continue
            first = min(tuned, key=lambda unit: (self.rank(self.done[unit.id]), unit.alpha or 0.0))
            unit = self.test_of(group) if self.tunes and tested else first
            if unit.id in self.done:
                by_lam.setdefault((*unit.group[:-1], None), []).append((unit, self.done[first.id]))
        by_trace: dict[Group, list[tuple[float, Best]]] = {}
        for (place, trace, _, parameters, _), units in by_lam.items():
            mean = sum(self.done[unit.id] for unit, _ in units) / len(units)
            chosen_by = self.rank(sum(score for _, score in units) / len(units))
            by_trace.setdefault((place, trace, None, parameters, None), []).append((chosen_by, Best(units[0][0], mean)))
        found: dict[str, Best] = {}
        for candidates in by_trace.values():
            _, best = min(candidates, key=lambda each: (each[0], each[1].unit.lam or 0.0))
            known = found.get(best.unit.environment)
            if known is None or self.rank(best.score) < self.rank(known.score):
                found[best.unit.environment] = best
        return found

    def rank(self, score: float) -> float:
        """The score as a number that is smaller the better it is."""
        if math.isnan(score):
            return math.inf
        return -score if self.study.metric in HIGHER_IS_BETTER else score

    def job(self, unit: Unit) -> Job:
        """The unit, ready to be sent to a worker."""
        return self._job(unit, unit.phase)

    def _job(self, unit: Unit, phase: str) -> Job:
        study, seeds = self.study, self.study.seeds[phase]
        protocol, lams = self.protocols[unit.environment], (unit.lam,)
        if study.task == "deep":
            lams = next(t.lams for t in study.traces if (t.title, t.spelt) == (unit.trace, unit.parameters))
        about = study.task, study.metric, protocol, lams, seeds.first, seeds.count, study.modules
        code = study.code.digest
        if study.task == "deep":
            unfinished = str(study.folder.absolute() / "unfinished" / f"{unit.id}-{code[:12]}")
            return Job(unit, *about, code, unfinished=unfinished)
        return Job(unit, *about, code)

    def _units(self, phase: str) -> Iterator[Unit]:
        study = self.study
        for place in study.environments:
            for trace in study.traces:
                for lam in trace.lams if study.task != "deep" else (None,):
                    for age in study.ages or (None,):
                        for alpha in study.alphas or (None,):
                            group = place.name, trace.title, lam, trace.spelt, age
                            yield self._unit(phase, group, alpha)

    def _unit(self, phase: str, group: Group, alpha: float | None) -> Unit:
        environment, trace, lam, parameters, age = group
        values = (phase, environment, trace, lam, parameters, alpha, age)
        spelt = json.dumps([self.study.digest, *values])
        return Unit(hashlib.sha256(spelt.encode()).hexdigest()[:16], *values)
