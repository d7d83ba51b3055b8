"""Target policies as `--policy` names them.

One is an .npz file with `probabilities` [S, A] and, where the log names its states or actions, `states` [S] and `actions` [A]
with these names; or FILE.py:NAME, a function of states, or a classifier, that a Python file makes. The file is executed for
that, whatever it does; an .npz file is only read. Where actions are real numbers it is a `Density` or a `Deterministic` that a
Python file makes, or nothing, where a column has log π of the actions taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.whole_files import read_npz
from offtrace.cli.rule_options import defined_in_file, is_defined_in_file
from offtrace.trajectory import distributions


class Target(NamedTuple):
    """A policy from a file."""

    policy: object
    """A table [S, A], a callable or a classifier."""
    states: int | tuple[int | str, ...] | None = None
    """S, or the names of the states; None: those of the log."""
    actions: int | tuple[int | str, ...] | None = None
    """A, or the names of the actions; None: those of the log."""


def load_policy(text: str) -> Target:
    """The target policy that --policy names."""
    return Target(defined_in_file(text)) if is_defined_in_file(text) else _from_npz(Path(text))


def _from_npz(file: Path) -> Target:
    writes = "np.savez(file, probabilities=pi) writes one"
    try:
        there = read_npz(file)
    except Exception as error:  # a changed byte can lead a reader of ZIP files anywhere
        if isinstance(error, OSError) and error.filename is not None:  # there is no such file, or it may not be read
            raise
        raise ValueError(
            f"{file} is no .npz file of plain arrays, or it is damaged ({error}): {writes}; what a Python file makes is "
            "FILE.py:NAME"
        ) from error
    if "probabilities" not in there:
        near = did_you_mean("probabilities", list(there))
        raise ValueError(f"{file} has no array 'probabilities' [S, A]{near}: it has {sorted(there)}. {writes}")
    pi = there["probabilities"]
    if pi.ndim != 2 or 0 in pi.shape or pi.dtype.kind not in "fiub":
        raise ValueError(f"probabilities in {file} must be numbers [S, A], got {pi.dtype} of shape {pi.shape}")
    pi = distributions(pi, f"probabilities in {file}")
    named: list[int | tuple[int | str, ...]] = []
    for name, size in (("states", pi.shape[0]), ("actions", pi.shape[1])):
        names = there.get(name)
        if names is not None and names.shape != (size,):
            raise ValueError(
                f"{name} in {file} must be the {size} names of [S, A] = {pi.shape}, got shape {names.shape}"
            )
        named.append(size if names is None else tuple(names.tolist()))
    return Target(pi, *named)


def load_policies(files: tuple[str, ...]) -> dict[str, Target]:
    """The policies by the names of their files, or of what Python files make."""
    policies: dict[str, Target] = {}
    for text in files:
        short = text.rpartition(":")[2] if is_defined_in_file(text) else Path(text).stem
        policies[text if short in policies else short] = load_policy(text)
    sizes = {(target.states, target.actions) for target in policies.values()}
    if len(sizes) > 1:
        raise ValueError(
            f"the policies have different states or actions: {', '.join(policies)}. Those of one command must agree"
        )
    return policies
