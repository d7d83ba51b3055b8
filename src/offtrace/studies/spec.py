"""From a declaration, a TOML file or a dict, to the checked fields of a study. Nothing runs here, but every name is looked up."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.studies import declared_places, declared_traces
from offtrace.studies.declaration_checks import (
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
from offtrace.studies.task_protocols import METRICS, PROTOCOLS

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
}
PHASES = {
    "control": ("tuning", "test"),
    "evaluation": ("tuning", "test"),
    "replay": ("tuning", "test"),
    "map": ("map",),
    "deep": ("test",),
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
    places = declared_places.places(given.get("environments"), protocol, task)
    for place in places:
        declared_places.fits(place, ages)
    traces = declared_traces.traces(given.get("traces"), lams, task)
    for i, each in enumerate(traces if task == "deep" else ()):
        declared_places.agent_fits(f"traces[{i}]", each, places, ages)
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
        if found[phase].stop > (limit := 2**32 if task == "deep" else 2**63):
            what = f"seeds below 2^{limit.bit_length() - 1}: the last one is {found[phase].stop - 1}"
            raise DeclarationError(f"seeds.{phase}", dict(entry), what)
    if "tuning" in found and "test" in found:
        one, other = found["tuning"], found["test"]
        if one.first < other.stop and other.first < one.stop:
            used = f"seeds that tuning does not use: it uses {one.first} to {one.stop - 1}"
            raise DeclarationError("seeds.test", dict(seeds["test"]), used)
    return found
