"""From a declaration, a TOML file or a dict, to the checked fields of a study. Nothing runs here, but every name is looked up."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import offtrace
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.learners.methods.registry import method, method_named, rule_named
from offtrace.studies import deep_agents, environments
from offtrace.studies.checks import (
    Check,
    DeclarationError,
    T,
    Table,
    Toml,
    all_printable,
    is_table,
    number,
    one_of,
    several,
    table,
    text,
    whole,
)
from offtrace.studies.stale import weighting
from offtrace.studies.task_protocols import METRICS, PROTOCOLS, Deep, Evaluation, Map, Protocol, Replay, Stale
from offtrace.traces import Rule, Trace

FORMAT = 1
"""The version of the format of declarations; it is part of the digest."""
SHIPPED = Path(__file__).parent / "shipped"
LEARNING = ("name", "question", "task", "metric", "environments", "traces", "lams", "alphas", "seeds", "protocol")
KEYS = {
    "control": LEARNING,
    "evaluation": LEARNING,
    "replay": (*LEARNING, "ages"),
    "map": tuple(k for k in LEARNING if k != "alphas"),
    "deep": (*(k for k in LEARNING if k != "alphas"), "ages"),
    "stale": (*LEARNING, "ages"),
}
PHASES = {
    "control": ("tuning", "test"),
    "evaluation": ("tuning", "test"),
    "replay": ("tuning", "test"),
    "map": ("map",),
    "deep": ("test",),
    "stale": ("tuning", "test"),
}
OPTIONAL = ("about", "lams", "modules", "subsets")


@dataclass(frozen=True)
class Seeds:
    """The seeds first, first + 1, …, `count` of them."""

    first: int
    count: int

    @property
    def stop(self) -> int:
        """The seed after the last one."""
        return self.first + self.count


@dataclass(frozen=True)
class Place:
    """An environment and how the task is run there."""

    name: str
    protocol: Any


@dataclass(frozen=True)
class TraceGrid:
    """A trace with its further parameters, and the λ's that it runs with: (None,) if it has no λ."""

    title: str
    parameters: tuple[tuple[str, object], ...]
    lams: tuple[float | None, ...]

    @property
    def spelt(self) -> str:
        """The parameters as JSON; empty where there are none."""
        return json.dumps(dict(self.parameters), sort_keys=True) if self.parameters else ""


def read(name: str | Path) -> Table:
    """The declaration of a shipped study, or that in a file."""
    path = Path(name)
    looks_like_a_file = path.suffix == ".toml" or len(path.parts) > 1
    if not looks_like_a_file and (SHIPPED / f"{name}.toml").exists():
        path = SHIPPED / f"{name}.toml"
    elif not path.is_file():
        known = shipped()
        what = "no such file" if looks_like_a_file else f"no study of that name{did_you_mean(name, known)}"
        raise DeclarationError("study", str(name), f"the path of a TOML file, or one of {', '.join(known)}: {what}")
    return {"name": path.stem, **parsed(path)}


def parsed(path: Path, text: str | None = None) -> Table:
    """What a TOML file says, or a text that stands for it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8") if text is None else text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError("study", str(path), f"a TOML file, which it is not: {error}") from error


def shipped() -> list[str]:
    """The names of the studies that come with offtrace.

    >>> shipped()
    ['bifurcation', 'contraction-map', 'minatar', 'random-walk', 'replay', 'stale']
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


def check(given: object) -> Table:
    """Check a declaration, in which subsets are resolved, and return the fields of the study."""
    if not is_table(given):
        raise DeclarationError("study", given, "a table, as a TOML file gives it")
    all_printable("", given)
    task = needed(given, "task", one_of(*PROTOCOLS))
    table("", given, [*KEYS[task], *OPTIONAL])
    _import(given.get("modules", []))
    name = folder_name(needed(given, "name", text))
    kind = PROTOCOLS[task]
    protocol = kind.made("protocol", given.get("protocol", {}))
    ages = needed(given, "ages", several(whole(0), "ages")) if "ages" in KEYS[task] else ()
    lams = several(number(0, 1), "λ")("lams", given["lams"]) if "lams" in given else ()
    places = _places(given.get("environments"), protocol, task)
    for place in places:
        _fits(place, ages)
    traces = _traces(given.get("traces"), lams, task)
    for i, each in enumerate(traces if task == "deep" else ()):
        _agent_fits(f"traces[{i}]", each, places, ages)
    return {
        "name": name,
        "question": needed(given, "question", text),
        "about": text("about", given["about"]) if "about" in given else "",
        "task": task,
        "metric": needed(given, "metric", one_of(*METRICS[task])),
        "environments": places,
        "traces": traces,
        "alphas": needed(given, "alphas", several(number(0, above=True), "step sizes"))
        if "alphas" in KEYS[task]
        else (),
        "ages": ages,
        "seeds": checked_seeds(given.get("seeds"), task, given.get("alphas", ())),
        "modules": tuple(given.get("modules", ())),
    }


def digest(declared: Toml) -> str:
    """Return the SHA-256 of everything declared that the rows depend on: not the name, nor the words.

    `Study.digest` covers the code that makes the rows, too.
    """
    spelt = {"format": FORMAT, **{k: declared[k] for k in declared if k not in ("name", "question", "about")}}
    return hashlib.sha256(json.dumps(spelt, sort_keys=True).encode()).hexdigest()


def plain(declared: Toml) -> Table:
    """The fields as JSON has them, all defaults filled in."""
    changed = {
        "environments": [asdict(place) for place in declared["environments"]],
        "traces": [{"title": t.title, "parameters": dict(t.parameters), "lams": t.lams} for t in declared["traces"]],
        "seeds": {phase: asdict(seeds) for phase, seeds in declared["seeds"].items()},
    }
    return json.loads(json.dumps({**declared, **changed}))


def folder_name(given: str) -> str:
    """Check that the name of a study can be that of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", given):
        raise DeclarationError("name", given, "letters, digits, '.', '_' and '-': it becomes the name of a folder")
    return given


def needed(given: Toml, name: str, checked: Check[T]) -> T:
    """Check the value of a key that cannot be left out."""
    if name not in given:
        raise DeclarationError(name, None, "a value: this key is needed")
    return checked(name, given[name])


def _import(modules: object) -> None:
    """Import the modules that register traces and environments of one’s own."""
    if not is_list(modules) or not all(isinstance(m, str) for m in modules):
        raise DeclarationError(
            "modules", modules, "a list of the names of modules that register traces and environments"
        )
    for i, module in enumerate(modules):
        try:
            importlib.import_module(str(module))
        except ImportError as error:
            raise DeclarationError(f"modules[{i}]", module, f"a module that can be imported: {error}") from error


def _places(given: object, protocol: Protocol, task: str) -> tuple[Place, ...]:
    if not is_list(given) or not given:
        raise DeclarationError("environments", given, "a list of environments that is not empty")
    found: dict[str, Place] = {}
    for i, entry in enumerate(given):
        key = f"environments[{i}]"
        name, arguments = environments.split(key, entry)
        changes = arguments.pop("protocol", {})
        for picked in environments.grid(arguments):
            label = environments.join(name, picked)
            if task == "deep":
                environments.known_game(key, label)
            elif task == "stale":
                environments.known_token_task(key, label)
            else:
                label = environments.known(key, label, name, picked, seeded=task == "map")
            if label in found:
                raise DeclarationError(key, label, "each environment once")
            found[label] = Place(label, protocol.with_changes(f"{key}.protocol", changes))
    if not found:
        raise DeclarationError("environments", given, "a grid that is not empty")
    return tuple(found.values())


def _fits(place: Place, ages: tuple[int, ...]) -> None:
    """Check that the policies of the protocol can be made there."""
    protocol = place.protocol
    if isinstance(protocol, Deep):
        for age in ages:
            try:
                protocol.config(place.name, offtrace.OneStep(), age)
            except (ValueError, TypeError) as error:
                declared = {k: v for k, v in asdict(protocol).items() if v != getattr(Deep(), k)}
                where = f"what the agent can do on {place.name} with the age {age}: {error}"
                raise DeclarationError("protocol", declared, where) from error
        return
    if isinstance(protocol, Stale):
        if protocol.width % protocol.heads:
            raise DeclarationError("protocol.width", protocol.width, f"a multiple of heads = {protocol.heads}")
        return
    mdp = environments.mdp(place.name, 0 if isinstance(protocol, Map) else None)
    if isinstance(protocol, Evaluation | Map):
        rng = np.random.default_rng(0) if isinstance(protocol, Map) else None
        for key in ("behavior", "target"):
            try:
                environments.policy(getattr(protocol, key), mdp, rng)
            except ValueError as error:
                where = f"a policy for {place.name}: {error}"
                raise DeclarationError(f"protocol.{key}", getattr(protocol, key), where) from error
    if isinstance(protocol, Replay) and max(ages) > protocol.updates:
        raise DeclarationError("ages", list(ages), f"ages of at most protocol.updates = {protocol.updates}")


def _agent_fits(key: str, trace: TraceGrid, places: tuple[Place, ...], ages: tuple[int, ...]) -> None:
    """Check that the agent of a trace can be made with its settings, in each environment."""
    parameters = dict(trace.parameters)
    rule = make(trace.title, parameters, trace.lams[0])
    for place in places:
        for age in ages:
            try:
                config = deep_agents.configured(place.protocol, place.name, rule, age, parameters)
            except (ValueError, TypeError) as error:
                raise DeclarationError(key, {"name": trace.title, **parameters}, f"{error}") from error
            if config.memory_slots is None and len(ages) > 1:
                what = f"one age, since the agent {config.agent!r} has no memory, and its runs would only be repeated"
                raise DeclarationError("ages", list(ages), what)


def _traces(given: object, lams: tuple[float | None, ...], task: str) -> tuple[TraceGrid, ...]:
    if not is_list(given) or not given:
        raise DeclarationError("traces", given, "a list of traces that is not empty")
    found: list[TraceGrid] = []
    for i, entry in enumerate(given):
        key = f"traces[{i}]"
        if isinstance(entry, str):
            name, parameters = entry, {}
        else:
            name, parameters = environments.split(key, entry)
        for made in _grid_of(key, name, parameters, lams, task):
            if any((made.title, made.parameters) == (t.title, t.parameters) for t in found):
                raise DeclarationError(key, entry, "each trace with the same parameters once")
            found.append(made)
    return tuple(found)


def _grid_of(key: str, name: str, parameters: Table, lams: tuple[float | None, ...], task: str) -> list[TraceGrid]:
    learns = task in ("control", "evaluation", "replay")
    listed = method_named(name) if learns and rule_named(name) is None else None
    if listed is not None:
        title, allowed = listed.name, [n for n in listed.parameters() if n != "alpha"]
        if task == "control" and listed.values == "state":
            raise DeclarationError(key, name, "methods on action values: state values say nothing of actions")
    else:
        rule = type(_plain_rule(key, name, learns))
        title, allowed = rule.title, [f.name for f in fields(rule)]
        if not issubclass(rule, Trace) and not (rule.uncorrected and (learns or task in ("map", "deep"))):
            raise DeclarationError(key, name, "traces with coefficients β")
    beside_it = {"stale": [*weighting.OPTIONS, weighting.LABEL], "deep": deep_agents.keys()}.get(task, [])
    known = [*allowed, *(name for name in beside_it if name not in allowed)]
    for parameter in parameters:
        if parameter not in known:
            what = f"no such parameter{did_you_mean(parameter, known)}; {title} takes {', '.join(known) or 'none'}"
            raise DeclarationError(f"{key}.{parameter}", parameters[parameter], what)
    own = parameters.pop("lam", None)
    if "lam" not in allowed:
        lams = (None,)
    elif own is not None:
        lams = several(number(0, 1), "λ")(f"{key}.lam", own if is_list(own) else [own])
    elif not lams:
        raise DeclarationError("lams", None, f"a list of λ, which {title} needs (or {key}.lam)")
    for parameter, values in parameters.items():
        if isinstance(values, list) and not values:
            raise DeclarationError(f"{key}.{parameter}", [], "a number, or a list that is not empty")
    found: list[TraceGrid] = []
    for picked in environments.grid(parameters):
        try:
            if task == "stale":
                picked = weighting.labelled(picked)
                weighting.Weighting.made(title, picked, lams[0])
            else:
                picked = weighting.labelled(picked)
                make(title, picked, lams[0])
        except (ValueError, TypeError) as error:
            worst = next(iter(picked), "name")
            raise DeclarationError(f"{key}.{worst}", parameters.get(worst, name), f"{error}") from error
        found.append(TraceGrid(title, tuple(sorted(picked.items())), lams))
    return found


def _plain_rule(key: str, name: str, learns: bool) -> Rule:
    """The trace of this name, with all parameters as they are if none is given."""
    try:
        return offtrace.trace(name)
    except ValueError as error:
        what = "a trace, or a learning method" if learns else "a trace"
        raise DeclarationError(key, name, f"{what}: {error}") from error
    except TypeError as error:
        raise DeclarationError(key, name, f"traces whose parameters are numbers: {error}") from error


def make(title: str, parameters: Toml, lam: float | None) -> Any:
    """Make the trace, or the learning method, of this title with those of the parameters that it has, and `lam` if it is given.

    >>> make("Retrace", {}, 0.9)
    Retrace(horizon=None, lam=0.9)
    """
    listed = None if rule_named(title) else method_named(title)
    own = listed.parameters() if listed else tuple(field.name for field in fields(offtrace.trace(title)))
    given: Table = {k: tuple(v) if is_list(v) else v for k, v in parameters.items() if k in own}
    given |= {} if lam is None else {"lam": lam}
    return method(title, **given) if listed else offtrace.trace(title, **given)


def checked_seeds(given: object, task: str, alphas: tuple[float, ...]) -> dict[str, Seeds]:
    """Check the seeds of all phases: that there are such, and that no phase uses those of another."""
    phases = PHASES[task]
    if given is None:
        raise DeclarationError("seeds", None, f"a table with {' and '.join(phases)}, each {{ first = 0, count = 10 }}")
    found: dict[str, Seeds] = {}
    seeds = table("seeds", given, phases)
    for phase in phases:
        if phase not in seeds:
            if phase == "tuning" and len(alphas) == 1:
                continue  # one step size: nothing to choose
            raise DeclarationError(f"seeds.{phase}", None, "a table such as { first = 0, count = 10 }")
        entry = table(f"seeds.{phase}", seeds[phase], ("first", "count"))
        values = [whole(low)(f"seeds.{phase}.{k}", entry.get(k)) for k, low in (("first", 0), ("count", 1))]
        found[phase] = Seeds(*values)
        if found[phase].stop > (limit := 2**32 if task in ("deep", "stale") else 2**63):
            what = f"seeds below 2^{limit.bit_length() - 1}: the last one is {found[phase].stop - 1}"
            raise DeclarationError(f"seeds.{phase}", dict(entry), what)
    if "tuning" in found and "test" in found:
        one, other = found["tuning"], found["test"]
        if one.first < other.stop and other.first < one.stop:
            used = f"seeds that tuning does not use: it uses {one.first} to {one.stop - 1}"
            raise DeclarationError("seeds.test", dict(seeds["test"]), used)
    return found
