"""The page as one file: the rules printed as JavaScript, the MDPs and presets as JSON, the scripts and the style."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from typing import Any

import offtrace
from offtrace._shared.html_templates import rendered
from offtrace.reports.explorer import javascript, mdps
from offtrace.traces import Trace, rules


def html() -> str:
    """The text of the file."""
    shared = files("offtrace.reports.html") / "templates"
    return rendered(
        "offtrace.reports.explorer",
        "explorer.html",
        data=data(),
        rules=scripted(shown()),
        style=(shared / "page.css").read_text(encoding="utf-8"),
        basics=(shared / "scripts" / "basics.js").read_text(encoding="utf-8"),
        version=offtrace.__version__,
    )


def shown() -> list[type[Trace]]:
    """The listed rules in normal form: those that have a β of three factors."""
    return [rule for rule in rules() if issubclass(rule, Trace) and rule.form == "normal"]


def scripted(traces: list[type[Trace]]) -> str:
    """The rules as a JavaScript object, with what the computation asks of them."""
    printed: list[str] = []
    for rule in traces:
        facts = javascript.facts(rule)
        by_lag = {n["name"]: javascript.printed(rule, **{n["name"]: (1.0,)})[0] for n in facts["numbers"] if n["byLag"]}
        lists = ", ".join(f"{name}: {text}" for name, text in by_lag.items())
        asked = {name: facts[name] for name in ("recursive", "perDecision", "greedy")}
        said = ", ".join(f"{name}: {json.dumps(value)}" for name, value in asked.items())
        printed.append(
            f"  {rule.__name__}: {{ {said}, byLag: {{ {lists} }}, factors: {javascript.printed(rule)[0]} }},\n"
        )
    return f"// --- the rules, printed from their own lines ---\nconst RULES = {{\n{''.join(printed)}}};\n"


def data() -> dict[str, Any]:
    """What the page shows: facts of the rules, the MDPs, the presets."""
    return {
        "rules": [javascript.facts(rule) for rule in shown()],
        "mdps": mdps.gallery(),
        "presets": presets(),
    }


def presets() -> list[dict[str, Any]]:
    """The presets, their rules taken apart: {"name": …, "numbers": {…}}; a number may be a list, or "inf"."""
    text = (files("offtrace.reports.explorer") / "presets.toml").read_text(encoding="utf-8")
    return [
        {**preset, "rules": [_taken_apart(rule) for rule in preset["rules"]]}
        for preset in tomllib.loads(text)["preset"]
    ]


def _taken_apart(text: str) -> dict[str, Any]:
    name, *numbers = text.split()
    return {"name": name, "numbers": dict(_number(*part.split("=")) for part in numbers)}


def _number(name: str, value: str) -> tuple[str, Any]:
    values = [part if part == "inf" else float(part) for part in value.split(",")]
    return name, values if len(values) > 1 else values[0]
