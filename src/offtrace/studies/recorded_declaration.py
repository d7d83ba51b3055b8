"""The fields of a study from its `study.json`, which may be anybody's: no name is looked up, and no module imported."""

from __future__ import annotations

from dataclasses import fields

from offtrace._shared.type_guards import is_list
from offtrace.studies.declaration import checked_seeds, folder_name, needed
from offtrace.studies.declaration_checks import (
    DeclarationError,
    Table,
    all_printable,
    is_table,
    number,
    one_of,
    several,
    table,
    text,
    whole,
)
from offtrace.studies.declared_places import Place
from offtrace.studies.declared_traces import TraceGrid
from offtrace.studies.task_protocols import METRICS, PROTOCOLS


def restored(plain: object) -> Table:
    """The fields of a study from what `declaration.plain` made of them, checked as far as reading records needs."""
    if not is_table(plain):
        raise DeclarationError("study", plain, "a table, as `study.json` has it")
    all_printable("", plain)
    task = needed(plain, "task", one_of(*PROTOCOLS))
    kind, defaults = PROTOCOLS[task], {f.name: f.default for f in fields(PROTOCOLS[task])}

    def place(key: str, given: object) -> Place:
        entry = table(key, given, ("name", "protocol"))
        protocol = table(f"{key}.protocol", entry.get("protocol"), defaults)
        changed = {k: v for k, v in protocol.items() if (tuple(v) if is_list(v) else v) != defaults[k]}
        return Place(text(f"{key}.name", entry.get("name")), kind.made(f"{key}.protocol", changed))

    def trace(key: str, given: object) -> TraceGrid:
        entry = table(key, given, ("title", "parameters", "lams"))
        parameters = entry.get("parameters")
        if not is_table(parameters):
            raise DeclarationError(f"{key}.parameters", parameters, "a table")
        lams = entry.get("lams")
        found = (None,) if lams == [None] else several(number(0, 1), "λ")(f"{key}.lams", lams)
        return TraceGrid(text(f"{key}.title", entry.get("title")), tuple(sorted(parameters.items())), found)

    return {
        "name": folder_name(needed(plain, "name", text)),
        "question": needed(plain, "question", text),
        "about": text("about", plain["about"]) if plain.get("about") else "",
        "task": task,
        "metric": needed(plain, "metric", one_of(*METRICS[task])),
        "environments": needed(plain, "environments", several(place, "environments")),
        "traces": needed(plain, "traces", several(trace, "traces")),
        "alphas": several(number(0, above=True), "step sizes")("alphas", plain["alphas"])
        if plain.get("alphas")
        else (),
        "ages": several(whole(0), "ages")("ages", plain["ages"]) if plain.get("ages") else (),
        "seeds": checked_seeds(plain.get("seeds"), task, tuple(plain.get("alphas") or ())),
        "modules": several(text, "modules")("modules", plain["modules"]) if plain.get("modules") else (),
    }
