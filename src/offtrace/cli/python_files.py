"""What a Python file makes, named as FILE.py:NAME. The file is executed for that, whatever it does."""

from __future__ import annotations

import runpy
from pathlib import Path

from offtrace._shared.suggestions import did_you_mean


def is_named(text: str) -> bool:
    """Whether it is FILE.py:NAME."""
    file, colon, _ = text.rpartition(":")
    return bool(colon) and file.endswith(".py")


def made_by(text: str) -> object:
    """What FILE.py:NAME names."""
    file, _, name = text.rpartition(":")
    made = runpy.run_path(str(Path(file)))
    if name not in made:
        there = [each for each in made if not each.startswith("__")]
        raise ValueError(
            f"{Path(file)} makes no {name!r}{did_you_mean(name, there)}: it makes {', '.join(sorted(there))}"
        )
    return made[name]
