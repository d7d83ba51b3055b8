"""The rule of a command: `--trace`, the parameters of all rules as options, and what a Python file defines as FILE.py:NAME."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

from offtrace._shared.suggestions import did_you_mean

if TYPE_CHECKING:
    from offtrace.traces import Rule, Trace

LAMBDA = 0.95
"""The λ of the rule of a command about logs, if none is given."""


def import_rules(arguments: Sequence[str]) -> None:
    """Import the module of `--trace module:name`, so that the rules that it lists have their options."""
    for option, value in pairwise(" ".join(arguments).replace("--trace=", "--trace ").split(" ")):
        module = value.rpartition(":")[0]
        if option == "--trace" and module and not module.endswith(".py"):  # a file is executed by the command itself
            import_module(module)


def given_only(name: str, options: Mapping[str, tuple[object, str]]) -> Any:
    """A type with these options, by name their type and help, in which only those stand that are given."""
    from tyro.conf import arg

    types = {key: Annotated[kind, arg(help=words, help_behavior_hint="")] for key, (kind, words) in options.items()}
    return TypedDict(name, types, total=False)  # pyright: ignore


def parameters(default_lam: float = LAMBDA) -> Any:
    """The parameters of all rules as options."""
    from offtrace.traces import rules

    words = {"lam": f"λ, where the rule has one (default: {default_lam:g})", "horizon": "β is 0 from this lag on"}
    kinds: dict[str, object] = {}
    rules_of: dict[str, list[str]] = {}
    for rule in rules():
        if rule.per_step:  # a number for each step is none that a command line can name
            continue
        hints = get_type_hints(rule)
        for field in fields(rule):
            if field.name == "gamma":  # the discount of the task, which a command knows by itself
                continue
            kinds.setdefault(field.name, hints[field.name])
            rules_of.setdefault(field.name, []).append(rule.__name__)
    return given_only("Rule", {k: (v, words.get(k, f"of {', '.join(rules_of[k])}")) for k, v in kinds.items()})


def chosen_rule(
    name: str | None, given: Mapping[str, Any], lam: float, default: Rule | None = None, gamma: float | None = None
) -> Rule:
    """The rule of this name, or `default` where none is named, with the parameters that are given; `gamma` is the task's."""
    from offtrace.traces import trace

    if name is None and default is not None:
        own = {field.name: getattr(default, field.name) for field in fields(default)}
        return trace(type(default).__name__, **{**own, **given})
    of_command = {"lam": lam, "gamma": gamma}
    known = {f.name: v for f in fields(trace(str(name))) if (v := of_command.get(f.name)) is not None}
    return trace(str(name), **{**known, **given})


def named_or_in_file(name: str, given: Mapping[str, Any], lam: float = LAMBDA, gamma: float | None = None) -> Trace:
    """The trace that `--trace` names, by its name or as FILE.py:NAME; `lam` and `gamma` are those of a named one."""
    from offtrace.returns.api import as_trace
    from offtrace.traces import Trace

    if not is_defined_in_file(name):
        return as_trace(chosen_rule(name, given, lam, gamma=gamma))
    rule = defined_in_file(name)
    rule = rule() if isinstance(rule, type) else rule
    if not isinstance(rule, Trace):
        file, _, name = name.rpartition(":")
        raise TypeError(
            f"{name} in {file} is no trace, but {type(rule).__name__}: it must be one, such as RBIS(lam=0.9)"
        )
    return replace(rule, **given) if given.keys() <= {field.name for field in fields(rule)} else rule


def is_defined_in_file(text: str) -> bool:
    """Whether it is FILE.py:NAME."""
    file, colon, _ = text.rpartition(":")
    return bool(colon) and file.endswith(".py")


def defined_in_file(text: str) -> object:
    """What FILE.py:NAME names. The whole file is executed, and it can import the modules in its folder."""
    file, _, name = text.rpartition(":")
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    names = runpy.run_path(file)
    if name not in names:
        there = sorted(each for each in names if not each.startswith("__"))
        raise ValueError(f"{Path(file)} makes no {name!r}{did_you_mean(name, there)}: it makes {', '.join(there)}")
    return names[name]
