"""The parameters of the rules as options, and the rule that they choose."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import get_type_hints

from offtrace.cli.options import Add, add_option
from offtrace.traces import Rule, trace


def import_rules(arguments: Sequence[str]) -> None:
    """Import the module of `--trace module:name`, so that the rules that it lists have their options."""
    for option, value in pairwise(" ".join(arguments).replace("--trace=", "--trace ").split(" ")):
        module = value.rpartition(":")[0]
        if (
            option == "--trace" and module and not module.endswith(".py")
        ):  # a file is executed by the command that takes one
            import_module(module)


def add(to: Add, rules: Sequence[type[Rule]], lam: float) -> None:
    """Add an option for every parameter of these rules; `lam` is the λ that `chosen` takes where none is given."""
    words = {"lam": f"λ, where the rule has one ({lam:g})", "horizon": "β is 0 from this lag on (none)"}
    kinds: dict[str, object] = {}
    whose: dict[str, list[str]] = {}
    for rule in rules:
        hints = _types_of(rule)
        for field in fields(rule):
            kinds.setdefault(field.name, hints[field.name])
            whose.setdefault(field.name, []).append(rule.__name__)
    for name, kind in kinds.items():
        add_option(to, name, kind, words.get(name, f"of {', '.join(whose[name])}"))


@cache
def _types_of(rule: type[Rule]) -> dict[str, object]:
    """Return the types of a rule's fields. They are kept, since several commands take the same rules."""
    return get_type_hints(rule)


def chosen(args: argparse.Namespace, rules: Sequence[type[Rule]], lam: float, default: Rule | None = None) -> Rule:
    """The rule that `--trace` names, or `default` where it names none, with the parameters that are given."""
    known = {field.name for rule in rules for field in fields(rule)}
    given = {name: value for name, value in vars(args).items() if name in known}
    named: str | None = args.trace
    if named is None and default is not None:
        own = {field.name: getattr(default, field.name) for field in fields(default)}
        return trace(type(default).__name__, **{**own, **given})
    name = str(named)
    if "lam" not in given and any(field.name == "lam" for field in fields(trace(name))):
        given["lam"] = lam
    return trace(name, **given)
