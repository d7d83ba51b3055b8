"""What a check has found, as values and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np

from offtrace.testing.mistakes import Mistake
from offtrace.testing.shrinking import Smallest
from offtrace.testing.trials import Quantity, Values
from offtrace.traces import Rule


@dataclass(frozen=True, eq=False)
class Finding:
    """One mistake of a function, with the first step that shows it and the smallest trajectory that does."""

    mistake: Mistake
    """Its name, one of `offtrace.testing.Mistake`."""
    explanation: str
    """What the mistake is, and which number counts how much in which return."""
    returns: Quantity
    """Which result is wrong: target, advantage or correction."""
    scenario: str
    """What the rows show on which it was seen first."""
    at: tuple[int, int]
    """[b, t], the first step of these rows whose result is wrong."""
    got: float
    """What the function returned there."""
    wanted: float
    """What is right there."""
    trajectory: dict[str, np.ndarray] | None
    """The smallest trajectory that shows it: arrays [T] under the names that functions are called with, or None."""
    result: np.ndarray | None
    """What the function returned on it [T]."""
    right: np.ndarray | None
    """What is right on it [T]."""

    def __str__(self) -> str:
        where = f"[{self.at[0]}, {self.at[1]}]"
        lines = [
            self.mistake,
            *(f"  {line}" for line in self.explanation.splitlines()),
            f"  First seen on rows that show {self.scenario}: "
            f"{self.returns}{where} is {self.got:.6g}, should be {self.wanted:.6g}.",
        ]
        if self.trajectory is None or self.result is None or self.right is None:
            return "\n".join(lines)
        rows = {"t": np.arange(len(self.result)), **self.trajectory, self.returns: self.result, "should be": self.right}
        width = max(map(len, rows))
        lines.append("  The smallest trajectory that shows it; rewards and values that are not printed are 0:")
        lines += [f"    {name:<{width}}  " + " ".join(f"{_spelt(x):>7}" for x in array) for name, array in rows.items()]
        return "\n".join(lines)


def _spelt(x: SupportsFloat) -> str:
    return f"{float(x) + 0.0:.4g}"  # + 0: −0 is 0


@dataclass(frozen=True, eq=False, repr=False)
class EstimatorCheck:
    """What `check_estimator` has found. It is true where the function is right, and prints as a report.

    >>> import offtrace as ot
    >>> from offtrace.testing import check_estimator
    >>> check = check_estimator(lambda reward, q, next_value, discount: reward + discount * next_value,
    ...                         ot.OneStep())
    >>> bool(check), check.findings
    (True, ())
    """

    trace: Rule
    """The rule that the function was compared with."""
    values: Values
    """Whether the values are of actions or of states."""
    findings: tuple[Finding, ...]
    """The mistakes; none where the function is right."""
    steps: int
    """How many steps were compared, over all results."""
    wrong: int
    """How many of them were wrong."""
    scenarios: tuple[str, ...]
    """What the rows showed that it was tried on."""
    notes: tuple[str, ...]
    """What could not be tried, and why."""

    @property
    def ok(self) -> bool:
        """Whether the function is right on all that was tried."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        head = f"{self.trace.title}, {self.values} values: "
        if self.ok:
            text = [f"{head}right at all {self.steps} steps. Tried: {'; '.join(self.scenarios)}."]
        else:
            mistakes = "mistake" if len(self.findings) == 1 else "mistakes"
            text = [f"{head}wrong at {self.wrong} of {self.steps} steps, {len(self.findings)} {mistakes}."]
        text += [f"{i}. {finding}" for i, finding in enumerate(self.findings, 1)]
        return "\n".join(text + [f"Note: {note}" for note in self.notes])


def trajectory_of(smallest: Smallest, values: Values, rule: Rule) -> dict[str, np.ndarray]:
    """The arrays of a smallest trajectory that say anything, under the names that functions are called with."""
    row, own = smallest.row, "value" if values == "state" else "q"
    shown = {"reward": row.reward, own: row.own, "next_value": row.next_value}
    shown |= {"terminated": row.terminated, "truncated": row.truncated, "valid": row.valid}
    keep = {name: array for name, array in shown.items() if (~array if name == "valid" else array).any()}
    reads = values == "state" or rule.reads
    if reads and (row.log_pi != row.log_mu).any():
        keep |= {"log_pi": row.log_pi, "log_mu": row.log_mu}
    return keep
