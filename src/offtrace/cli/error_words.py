"""Errors of commands about logs as words of the command line, which names options where Python names arguments."""

from __future__ import annotations

import argparse
import re
import sys

from offtrace.cli.commands import INTERRUPTED, Run

SPELT = (
    (r"Columns\((\w+)=…\)", r"--columns \1=…"),
    (r"Columns\((\w+)='([^']*)'\), or ", ""),
    (r"Columns\((\w+)=None\)", r"--columns \1="),
    (r'truncated="never"', "--truncated never"),
    (r'truncated="at end"', "--truncated at-end"),
    (r'on_error="drop" \(--on-error drop\)', "--on-error drop"),
    (r"drop_at_most \(--drop-at-most\)", "--drop-at-most"),
    (r"behavior=None, --behavior logged", "--behavior logged"),
    (r"behavior=False", "--behavior unknown"),
    (r"give it as a policy \(behavior=…\), or ", "or "),
    (r'actions="continuous"', "--actions continuous"),
    (r"give it as behavior=Density\(log_pi\), or ", "or "),
    (r"`read` their number or names: states=…, actions=…", "their number or names: --states …, --actions …"),
    (
        r"`read` the names in the order that you mean, which need not be this one: .* \((--(?:states|actions) .*?)\)",
        r"the names in the order that you mean, which need not be this one: \1",
    ),
    (r"the names in their order to `read`: states=…, actions=…", "the names in their order: --states …, --actions …"),
    (r"give `read` all of them: actions=…", "give all of them: --actions …"),
    (r"not given: `read` sorted them", "not given: they were sorted"),
    (r"\b(estimators|initial|model|gamma|confidence|resamples|rewards|longest) (must|is|says)", r"--\1 \2"),
)
"""How Python says it, and how the command line does."""


def in_words_of_the_command(text: str) -> str:
    """An error's text with options in place of arguments.

    >>> in_words_of_the_command("Declare another one with Columns(mu=…)")
    'Declare another one with --columns mu=…'
    """
    for python, option in SPELT:
        text = re.sub(python, option, text)
    return text


def said(run: Run, args: argparse.Namespace) -> int:
    """Run a command; its errors are words, not tracebacks."""
    try:
        return run(args)
    except KeyboardInterrupt:
        print("offtrace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"offtrace: {in_words_of_the_command(str(error))}", file=sys.stderr)
        return 2
