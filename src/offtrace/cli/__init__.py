"""The command line. `COMMANDS` says which function each command is: tyro makes its options from the function's signature.

A module of commands is imported when one of its commands is named, so that `offtrace --help` waits for none of them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

import offtrace
from offtrace._shared.suggestions import closest, ending
from offtrace.cli import errors

COMMANDS = {
    "audit": ("tables:audit", "decide every lemma, theorem and convergence claim of the paper"),
    "certify": ("certify:certify", "how fast a trace contracts on a finite MDP, with a proof"),
    "check": ("certify:check", "verify a proof that `offtrace certify` or `offtrace audit` has written"),
    "study run": ("study:run", "run what has not been run yet of a declared grid of traces"),
    "study status": ("study:status", "show what there is of a study"),
    "study list": ("study:list_studies", "list the shipped studies, and those that have been run"),
    "study report": ("study:report", "write one HTML page about a study, and open it"),
    "study export": ("study:export", "write the rows and curves of a study as Parquet and CSV"),
    "deep train": ("deep:train", "train an agent; after an interruption the same command resumes"),
    "deep play": ("deep:play", "record a GIF of a trained agent"),
    "logs describe": ("logs:describe", "what logs are like, and what they can say about a target policy"),
    "logs evaluate": ("log_evaluate:evaluate", "what a target policy is worth, by a trace and the standard estimators"),
    "logs sweep": ("logs:sweep", "the same by a trace alone, from files that need not fit into memory together"),
    "logs estimators": ("logs:estimators", "the estimators: what each computes, and what it needs"),
    "diagnose": ("diagnose:diagnose", "what is wrong with the log-probabilities of a batch that a trainer has saved"),
    "explore": ("tables:explore", "see what a trace does: one page, live, without a network"),
    "doctor": ("doctor:doctor", "which backends, devices and extras are here, and whether they work"),
    "methods": ("tables:methods", "all learning methods: equation, source, what is proven, what each needs"),
}
"""The commands: where the function is, and what it does."""
GROUPS = {
    "study": "a declared grid of traces, step sizes, environments and seeds, run anywhere",
    "deep": "deep agents that learn with any trace",
    "logs": "what a policy would be worth, from logs of another one",
}
"""What the groups of commands are about."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--version"]:
        print(f"offtrace {offtrace.__version__}")
        raise SystemExit(0)
    for words in (2, 1):
        if (name := " ".join(given[:words])) in COMMANDS:
            return _run(name, given[words:])
    group = given[0] if given and given[0] in GROUPS else ""
    rest = given[1:] if group else given
    if rest and rest[0] not in ("-h", "--help"):
        name = " ".join([group, rest[0]]).strip()
        wrong = ending(closest(name, [*COMMANDS, *GROUPS]))
        print(f"{overview(group).splitlines()[0]}\nofftrace: there is no command {name!r}{wrong}", file=sys.stderr)
        raise SystemExit(2)
    print(overview(group))
    if rest:
        raise SystemExit(0)
    return 2


def overview(group: str = "") -> str:
    """All commands, or those of a group, with a line about each."""
    start = f"{group} " if group else ""
    lines = {name.removeprefix(start): about for name, (_, about) in COMMANDS.items() if name.startswith(start)}
    about = (
        f"offtrace: {GROUPS[group]}" if group else "Off-policy reinforcement learning that accounts for past decisions."
    )
    return "\n".join(
        [
            f"usage: offtrace {start}COMMAND [options]\n\n{about}\n\ncommands:",
            *(f"  {name:<16}{line}" for name, line in lines.items()),
            f"\n`offtrace {start}COMMAND --help` lists the options of a command, with an example.",
            *([] if group else ["`offtrace --version` prints the version."]),
        ]
    )


def _run(name: str, given: list[str]) -> int:
    module, function = COMMANDS[name][0].split(":")
    with errors.as_sentences(name) as status:
        from offtrace.cli import rule_options

        rule_options.import_rules(given)
        status.code = call(getattr(import_module(f"offtrace.cli.{module}"), function), f"offtrace {name}", given)
    return status.code


def call(function: Callable[..., int], prog: str, given: Sequence[str]) -> int:
    """Call a function with the arguments that are given as words, or print its help."""
    import tyro

    from offtrace.cli.options import REGISTRY, SHAPES, TYPED, with_plain_help

    TYPED.set(shlex.join([*prog.split(), *given]))
    return tyro.cli(with_plain_help(function), prog=prog, args=given, config=SHAPES, registry=REGISTRY)
