"""The trace of the commands about logs: `--trace`, and the options of its parameters."""

from __future__ import annotations

import argparse
from dataclasses import replace

from offtrace.cli import python_files, trace_options
from offtrace.returns.api import as_trace
from offtrace.traces import Trace, rules

LAMBDA = 0.95
"""The λ of a rule that has one, if none is given."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add `--trace`, and the parameters of all rules."""
    of_rule = command.add_argument_group("the trace", "Parameters that are not given are those of the rule itself.")
    names = ", ".join(rule.__name__ for rule in _rules())
    of_rule.add_argument(
        "--trace",
        default="rbis",
        metavar="NAME",
        help=f"of the fitted estimate (RBIS): {names}; or FILE.py:NAME, a trace that the Python file makes. offtrace executes "
        "the whole file: name only files that you would run yourself",
    )
    trace_options.add(of_rule.add_argument, _rules(), LAMBDA)


def chosen_trace(args: argparse.Namespace) -> Trace:
    """The trace that --trace and the options of its parameters name."""
    if ".py:" in args.trace:
        rule = _load_trace(args.trace)
        return replace(rule, lam=args.lam) if getattr(args, "lam", None) is not None and hasattr(rule, "lam") else rule
    return as_trace(trace_options.chosen(args, _rules(), LAMBDA))


def _load_trace(text: str) -> Trace:
    """The trace that a Python file makes, named as FILE.py:NAME."""
    made = python_files.made_by(text)
    made = made() if isinstance(made, type) else made
    if not isinstance(made, Trace):
        file, _, name = text.rpartition(":")
        raise TypeError(
            f"{name} in {file} is no trace, but {type(made).__name__}: it must be one, such as RBIS(lam=0.9)"
        )
    return made


def _rules() -> list[type[Trace]]:
    """Those that a command line can name: C-trace adapts a number, and variable λ has one for every step."""
    return [r for r in rules() if issubclass(r, Trace) and not r.adaptive and not r.per_step]
