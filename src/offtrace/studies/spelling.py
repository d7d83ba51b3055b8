"""A declaration, written as TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def spelt_toml(given: Mapping[str, Any]) -> str:
    """A declaration as TOML: plain values, then tables."""
    tables = [k for k, v in given.items() if isinstance(v, Mapping)]
    lines = [f"{k} = {_spelt(v)}" for k, v in given.items() if k not in tables]
    for k in tables:
        lines += ["", f"[{k}]", *(f"{_spelt_key(name)} = {_spelt(v)}" for name, v in given[k].items())]
    return "\n".join(lines) + "\n"


def _spelt_key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _spelt(name)


def _spelt(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
        return '"' + "".join(escapes.get(c, c) for c in value) + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_spelt_key(k)} = {_spelt(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_spelt, value)) + "]"
    return repr(value)
