"""Errors as sentences of the command line, which names options where Python names arguments."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

from offtrace._shared.suggestions import did_you_mean

SPELT = (
    (r"Columns\(\w+='[^']*'\), or ", ""),  # where both spellings are said
    (r"Columns\((\w+)=(?:(…)|None)\)", r"--columns \1=\2"),
    (r"give it as (?:a policy \(behavior=…\)|behavior=Density\(log_pi\)), or ", "or "),
    (r"behavior=None, --behavior logged", "--behavior logged"),
    (r"behavior=False", "--behavior unknown"),
    (r'on_error="drop" \((.*?)\)|drop_at_most \((.*?)\)', r"\1\2"),
    (r'truncated="(at|never) ?(end)?"', lambda said: "--truncated " + "-".join(filter(None, said.groups()))),
    (r"this one: .* \((--(?:states|actions) .*?)\)", r"this one: \1"),
    (r'\b(states|actions)="?(…|continuous)"?', r"--\1 \2"),
    (r"`read` sorted them", "they were sorted"),
    (r" to `read`| `read`", ""),
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


@contextmanager
def as_sentences(command: str) -> Iterator[SimpleNamespace]:
    """Print errors of a command as one line, and warnings about studies; `code` of what this yields is then the exit status."""
    status = SimpleNamespace(code=2)
    try:
        with warnings.catch_warnings():
            if command.startswith("study"):
                warnings.showwarning = lambda message, *_, **__: print(f"offtrace: {message}", file=sys.stderr)
            yield status
    except KeyboardInterrupt as stop:
        number = getattr(stop, "number", signal.SIGINT)
        status.code = 128 + number
        words = str(stop)
        with suppress(OSError):  # after SIGHUP there may be no terminal
            print(f"offtrace: interrupted{' ' * words[:1].isalpha()}{words}", file=sys.stderr, flush=True)
    except BrokenPipeError:  # whoever read the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        words = sentence(error)
        if words is None:
            raise
        if command.startswith("logs"):
            words = in_words_of_the_command(words)
        print(f"offtrace: {words}", file=sys.stderr)


def sentence(error: Exception) -> str | None:
    """The error in words; None if it is none that a user can cause.

    >>> sentence(FileNotFoundError(2, "No such file or directory", "nowhere/no.csv"))
    'there is no file nowhere/no.csv'
    """
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return _about_a_file(error, str(error.filename))
    if isinstance(error, OSError) and error.errno is not None:
        from offtrace._shared.whole_files import why_not_written

        return f"cannot write: {why_not_written(error)}"
    own = type(error).__module__.startswith("offtrace.")
    return str(error) if own or isinstance(error, ValueError | TypeError | OSError | ImportError) else None


def _about_a_file(error: OSError, name: str) -> str:
    from pathlib import Path

    from offtrace._shared.whole_files import why_not_written

    if isinstance(error, FileNotFoundError):
        there = [each.name for each in Path(name).parent.iterdir()] if Path(name).parent.is_dir() else []
        return f"there is no file {name}{did_you_mean(Path(name).name, there)}"
    if isinstance(error, IsADirectoryError):
        return f"{name} is a folder, and not a file"
    if isinstance(error, PermissionError):
        return f"{name} may not be opened by this user"
    return f"cannot write {name}: {why_not_written(error)}"
