"""From a declaration, a TOML file or a dict, to the checked fields of a study. Nothing runs here, but every name is looked up."""

from __future__ import annotations

import hashlib
import importlib
import json
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

import offtrace
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.deep.config import WithMemory
from offtrace.studies import environments, policies, traces
from offtrace.studies.fields import (
    NOT_EMPTY,
    Ages,
    Alphas,
    Count,
    DeclarationError,
    Declared,
    Lams,
    Name,
    Names,
    Natural,
    StudyError,
    Table,
    Text,
    Toml,
    all_printable,
    is_table,
)
from offtrace.studies.protocols import Control, Deep, DeepBase, Evaluation, Map, Replay
from offtrace.studies.traces import TraceGrid

FORMAT = 1
"""The version of the format of declarations; it is part of the digest."""
SHIPPED = Path(__file__).parent / "shipped"
HIGHER_IS_BETTER = ("auc", "return", "mean return")
"""Metrics; of all others the lowest is best."""


class Seeds(Declared):
    """The seeds first, first + 1, …, `count` of them."""

    first: Natural
    count: Count

    @property
    def stop(self) -> int:
        """The seed after the last one."""
        return self.first + self.count


class TuningAndTest(Declared):
    """The seeds of tasks that choose a step size; with one step size there is nothing to tune."""

    tuning: Seeds | None = None
    test: Seeds


class TestOnly(Declared):
    """The seeds of tasks that choose no step size."""

    test: Seeds


class OfMaps(Declared):
    """The seeds of maps."""

    map: Seeds


class Spec(Declared):
    """The keys that the declarations of all tasks have."""

    name: Name
    question: Text
    about: Text = ""
    task: str
    environments: Annotated[tuple[Any, ...], NOT_EMPTY]
    traces: Annotated[tuple[Any, ...], NOT_EMPTY]
    lams: Lams = ()
    modules: Names = ()
    files: Names = ()


class ControlSpec(Spec):
    """The keys of the task "control"."""

    metric: Literal["auc", "return", "rms error", "mean rms error"]
    alphas: Alphas
    seeds: TuningAndTest
    protocol: Control


class EvaluationSpec(Spec):
    """The keys of the task "evaluation"."""

    metric: Literal["rms error", "mean rms error", "weighted rms error"]
    alphas: Alphas
    seeds: TuningAndTest
    protocol: Evaluation


class ReplaySpec(EvaluationSpec):
    """The keys of the task "replay"."""

    ages: Ages
    protocol: Replay  # pyright: ignore[reportIncompatibleVariableOverride]


class MapSpec(Spec):
    """The keys of the task "map"."""

    metric: Literal["contraction"]
    seeds: OfMaps
    protocol: Map = Map()


class DeepSpec(Spec):
    """The keys of the task "deep"."""

    metric: Literal["return", "mean return"]
    ages: Ages
    seeds: TestOnly
    protocol: Deep = Deep()  # pyright: ignore[reportInvalidTypeForm]


TASKS: dict[str, type[Any]] = {
    "control": ControlSpec,
    "evaluation": EvaluationSpec,
    "replay": ReplaySpec,
    "map": MapSpec,
    "deep": DeepSpec,
}


class Place(Declared):
    """An environment and how the task is run there."""

    name: Text
    protocol: Any


class Fields(Declared):
    """The fields of a study, all defaults filled in."""

    name: Name
    question: Text
    about: str
    task: str
    metric: str
    environments: tuple[Place, ...]
    traces: tuple[TraceGrid, ...]
    alphas: tuple[float, ...]
    ages: tuple[int, ...]
    """The ages of the data: of the behaviour policy in updates ("replay"), or as many frames as the memory holds ("deep")."""
    seeds: Annotated[dict[str, Seeds], Field(min_length=1)]
    """The seeds by phase: tuning and test, or map."""
    modules: Names
    files: Names = ()


def read(name: str | Path) -> Table:
    """The declaration of a shipped study, or that in a file."""
    path = Path(name)
    looks_like_a_file = path.suffix == ".toml" or len(path.parts) > 1
    if not looks_like_a_file and str(name) in shipped():
        path = SHIPPED / f"{name}.toml"
    elif not is_file(path):
        known = shipped()
        what = "no such file" if looks_like_a_file else f"no study of that name{did_you_mean(name, known)}"
        raise DeclarationError("study", str(name), f"the path of a TOML file, or one of {', '.join(known)}: {what}")
    return {"name": path.stem, **parsed(path)}


def is_file(path: Path) -> bool:
    """Whether there is this file."""
    try:
        return path.is_file()
    except OSError:  # its name is too long
        return False


def parsed(path: Path, text: str | None = None) -> Table:
    """What a TOML file says, or a text that stands for it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8") if text is None else text)
    except RecursionError:
        raise DeclarationError("study", str(path), "tables and lists that are nested less deeply") from None
    except ValueError as error:  # no TOML, no UTF-8, or an integer of more digits than Python reads
        raise DeclarationError("study", str(path), f"a TOML file, which it is not: {error}") from error


def shipped() -> list[str]:
    """The names of the studies that come with offtrace.

    >>> shipped()
    ['bifurcation', 'contraction-map', 'minatar', 'random-walk', 'replay']
    """
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def with_subset(given: Toml, subset: str | None) -> Table:
    """What is declared, with the changes of a subset: tables are merged key by key, everything else is replaced."""
    subsets = given.get("subsets", {})
    if not is_table(subsets) or not all(is_table(v) for v in subsets.values()):
        raise DeclarationError("subsets", subsets, "tables of changes, such as [subsets.ci]")
    plain = {k: v for k, v in given.items() if k != "subsets"}
    if subset is None:
        return plain
    if subset not in subsets:
        raise DeclarationError(
            "subset", subset, f"{', '.join(subsets) or 'none is declared'}{did_you_mean(subset, subsets)}"
        )
    return _merged(plain, subsets[subset]) | {"name": f"{given.get('name')}-{subset}"}


def _merged(given: Toml, changes: Toml) -> Table:
    both = dict(given)
    for k, v in changes.items():
        both[k] = _merged(both[k], v) if is_table(v) and is_table(both.get(k)) else v
    return both


def check(given: Toml) -> Fields:
    """Check a declaration, in which subsets are resolved, and return the fields of the study."""
    try:
        all_printable("", given)
    except RecursionError:
        raise DeclarationError("the study", "…", "tables and lists that are nested less deeply") from None
    task = given.get("task")
    if not isinstance(task, str) or task not in TASKS:
        raise DeclarationError("task", task, ", ".join(map(repr, TASKS)) + did_you_mean(task, TASKS))
    spec = TASKS[task].checked("", {"protocol": {}, **given})
    _import(spec.modules)
    for i, file in enumerate(spec.files):
        if environments.file_named(file) is None:
            raise DeclarationError(f"files[{i}]", file, "a file, here or in the folder of the declaration")
    alphas, ages = getattr(spec, "alphas", ()), getattr(spec, "ages", ())
    places = _places(spec.environments, spec.protocol, task)
    for place in places:
        _check_place(place, ages)
    grids = traces.trace_grids(spec.traces, spec.lams, task)
    if task == "deep":
        for i, trace in enumerate(grids):
            _check_agent(f"traces[{i}]", trace, places, ages)
    given = {name: getattr(spec, name) for name in ("name", "question", "about", "task", "metric", "modules", "files")}
    seeds = _checked_seeds(spec.seeds, task, len(alphas))
    return Fields(**given, environments=places, traces=grids, alphas=alphas, ages=ages, seeds=seeds)


def recorded(given: object) -> Fields:
    """The fields of a study from the JSON of them. No name is looked up, and no module imported.

    They may be anybody's: they are checked as far as reading records needs.
    """
    all_printable("", given)
    fields = Fields.checked("", given)
    if fields.task not in TASKS:
        raise DeclarationError("task", fields.task, ", ".join(TASKS))
    protocol = TASKS[fields.task].model_fields["protocol"].annotation
    places = [
        Place(name=p.name, protocol=protocol.checked(f"{p.name}.protocol", p.protocol)) for p in fields.environments
    ]
    return fields.model_copy(update={"environments": tuple(places)})


def modules_named(declared: Toml) -> list[str]:
    """The modules that a declaration and its subsets name. Nothing is looked up."""
    subsets = declared.get("subsets")
    tables = [declared, *(subsets.values() if is_table(subsets) else ())]
    lists = [table.get("modules") for table in tables if is_table(table)]
    return sorted({str(module) for modules in lists if is_list(modules) for module in modules})


def is_trusted(declared: Toml, trust: bool | Collection[str]) -> bool:
    """Whether one trusts all modules that a declaration names."""
    return trust if isinstance(trust, bool) else bool(trust) and set(modules_named(declared)) <= set(trust)


def require_trust(folder: Path, *declared: Toml) -> None:
    """Refuse to look up what a folder declares if that would import a module: the one gate before `Study.declared`.

    A folder of records may be anybody's.
    """
    if named := sorted({module for each in declared for module in modules_named(each)}):
        raise StudyError(
            f"{folder} names the modules {', '.join(named)}, and to run it imports them, which executes their "
            "code. If you trust them, say so: --trust, or --module NAME for each; Study.load(folder, trust=True)"
        )


def digest(declared: Toml) -> str:
    """Return the SHA-256 of everything declared that the rows depend on: not the name, nor the words."""
    spelt = {"format": FORMAT, **{k: declared[k] for k in declared if k not in ("name", "question", "about")}}
    return hashlib.sha256(json.dumps(spelt, sort_keys=True).encode()).hexdigest()


def _import(modules: Sequence[str]) -> None:
    """Import the modules that register traces and environments of one’s own."""
    for i, module in enumerate(modules):
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}" if not isinstance(error, ImportError) else error
            raise DeclarationError(f"modules[{i}]", module, f"a module that can be imported: {why}") from error


def _checked_seeds(given: Declared, task: str, alphas: int) -> dict[str, Seeds]:
    """The seeds by phase. No phase uses those of another."""
    phases: dict[str, Seeds] = {
        name: seeds for name in type(given).model_fields if (seeds := getattr(given, name)) is not None
    }
    if alphas > 1 and "tuning" not in phases:
        raise DeclarationError("seeds.tuning", None, "a table such as { first = 0, count = 10 }")
    limit = 2**32 if task == "deep" else 2**63
    for phase, seeds in phases.items():
        if seeds.stop > limit:
            what = f"seeds below 2^{limit.bit_length() - 1}: the last one is {seeds.stop - 1}"
            raise DeclarationError(f"seeds.{phase}", seeds.model_dump(), what)
    if "tuning" in phases:
        one, other = phases["tuning"], phases["test"]
        if one.first < other.stop and other.first < one.stop:
            used = f"seeds that tuning does not use: it uses {one.first} to {one.stop - 1}"
            raise DeclarationError("seeds.test", other.model_dump(), used)
    return phases


def _places(entries: Sequence[object], protocol: Declared, task: str) -> tuple[Place, ...]:
    """Check the environments of a task, each with the protocol and its own changes of it."""
    places: dict[str, Place] = {}
    for i, entry in enumerate(entries):
        key = f"environments[{i}]"
        try:
            name, arguments = environments.split(entry)
            changes = arguments.pop("protocol", {})
            labels = [_checked_label(name, picked, task) for picked in environments.grid(arguments)]
        except ValueError as error:
            raise DeclarationError(key, entry, str(error)) from error
        if not is_table(changes):
            raise DeclarationError(f"{key}.protocol", changes, "a table")
        own = type(protocol).checked(f"{key}.protocol", {**protocol.model_dump(), **changes})
        for label in labels:
            if label in places:
                raise DeclarationError(key, label, "each environment once")
            places[label] = Place(name=label, protocol=own)
    if not places:
        raise DeclarationError("environments", list(entries), "a grid that is not empty")
    return tuple(places.values())


def _checked_label(name: str, arguments: Table, task: str) -> str:
    if task != "deep":
        return environments.checked_label(name, arguments, seeded=task == "map")
    if arguments:  # Gymnasium would take what stands before the colon for a module
        raise ValueError("a game without arguments")
    environments.check_game(name)
    return name


def _check_place(place: Place, ages: tuple[int, ...]) -> None:
    """Check that the policies of the protocol can be created there."""
    protocol = place.protocol
    if isinstance(protocol, DeepBase):
        for age in ages:
            try:
                traces.configured(protocol, place.name, offtrace.OneStep(), age, {})
            except (ValueError, TypeError) as error:
                declared = protocol.model_dump(exclude_defaults=True)
                where = f"what the agent can do on {place.name} with the age {age}: {error}"
                raise DeclarationError("protocol", declared, where) from error
        return
    mdp = environments.mdp(place.name, 0 if isinstance(protocol, Map) else None)
    if isinstance(protocol, Evaluation | Map):
        rng = np.random.default_rng(0) if isinstance(protocol, Map) else None
        for key in ("behavior", "target"):
            try:
                policies.policy(getattr(protocol, key), mdp, rng)
            except ValueError as error:
                where = f"a policy for {place.name}: {error}"
                raise DeclarationError(f"protocol.{key}", getattr(protocol, key), where) from error
    if isinstance(protocol, Replay) and max(ages) > protocol.updates:
        raise DeclarationError("ages", list(ages), f"ages of at most protocol.updates = {protocol.updates}")


def _check_agent(key: str, trace: TraceGrid, places: tuple[Place, ...], ages: tuple[int, ...]) -> None:
    """Check that the agent of a trace can be created with its settings, in each environment."""
    parameters = trace.parameters
    rule = traces.make(trace.title, parameters, trace.lams[0])
    for place in places:
        for age in ages:
            try:
                config = traces.configured(place.protocol, place.name, rule, age, parameters)
            except (ValueError, TypeError) as error:
                raise DeclarationError(key, {"name": trace.title, **parameters}, f"{error}") from error
            if not isinstance(config, WithMemory) and len(ages) > 1:
                what = f"one age, since the agent {config.agent!r} has no memory, and its runs would only be repeated"
                raise DeclarationError("ages", list(ages), what)
