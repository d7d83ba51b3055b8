"""What there is of a study: what its folder says, and whether the code that made it is that of now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offtrace._shared import notebook

SHOWN = 3
"""Units of other code that are named."""


@dataclass(frozen=True)
class Status:
    """How far a study has come: units done, rows, problems, the best so far."""

    name: str
    folder: Path
    done: dict[str, tuple[int, int]]
    """Units done and in all, by phase."""
    rows: int
    seconds: float
    """The seconds that all workers together have worked."""
    workers: int
    versions: tuple[str, ...]
    """The versions of offtrace under which it was run."""
    problems: tuple[str, ...]
    """Files that are not read, and why."""
    best: tuple[str, ...]
    """The best on each environment, in words."""
    code: str = ""
    """If rows were made by other code than that of now: what differs, in words."""
    changed: tuple[str, ...] = ()
    """The units that other code made, in words."""
    failed: tuple[str, ...] = ()
    """The units that were set aside because they raised or ended their workers, and how."""
    others: tuple[Path, ...] = ()
    """Folders with rows of the same declaration that other code made: they are not used here."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""
        return all(done == total for done, total in self.done.values())

    def _repr_html_(self) -> str:
        return notebook.words(str(self))

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {done}/{total}" for phase, (done, total) in self.done.items())
        state = "finished" if self.finished else "begun" if self.rows else "not begun"
        lines = [
            f"{self.name}: {state}; units: {phases}; {self.rows:,} rows; {self.seconds:,.0f} s of work",
            f"  in {self.folder}",
        ]
        if len(self.versions) > 1:
            lines.append(f"  run under several versions of offtrace: {', '.join(self.versions)}")
        if self.code:
            lines.append(f"  its rows were made by other code than that of now: {self.code}")
            some = ", ".join(self.changed[:SHOWN]) + (", …" if len(self.changed) > SHOWN else "")
            lines.append(f"  {len(self.changed)} units of other code (--rerun-changed runs them again): {some}")
        lines += [f"  set aside: {line}" for line in self.failed]
        lines += [f"  {spelt_other(other)}" for other in self.others]
        lines += [f"  best on {line}" for line in self.best]
        return "\n".join([*lines, *(f"  not read: {problem}" for problem in self.problems)])


def spelt_other(folder: Path) -> str:
    """Say that rows of other code are there, and what to do with them."""
    return (
        f"rows of this declaration that other code made are in {folder}, and not used: `offtrace study report {folder}` shows "
        f"them, `offtrace study run {folder} --other-code` goes on with them"
    )
