"""Logs: what a behaviour policy did, as flat arrays, one entry for each step, episode after episode.

    step i:  in state[i] the action[i] was taken with probability exp(log_mu[i]); reward[i] was seen, and then next_state[i]
    episode e:  the steps starts[e] … starts[e + 1] − 1

Everything that reads logs makes these, and everything that evaluates reads these. Arrays may be mapped from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from offtrace.logs.reading.problems import ReadReport


LISTED = 12
"""So many names are listed."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Logs:
    """N steps of E episodes. Arrays are checked when they are made; see `offtrace.logs.read`."""

    starts: np.ndarray
    """[E + 1], int64: where each episode begins; the last is N."""
    state: np.ndarray
    """[N] int64 ids of states 0 … states − 1, or [N, d] float64 features."""
    next_state: np.ndarray
    """Read like `state`: the true next one, also of an episode's last step (there it is not read if the episode terminated)."""
    action: np.ndarray
    """[N] int64 ids 0 … actions − 1, or [N, k] float64 where actions are real numbers."""
    reward: np.ndarray
    """[N] float64."""
    terminated: np.ndarray
    """[N] bool: the episode ended here by the task. Only an episode's last step may be."""
    truncated: np.ndarray
    """[N] bool: the episode was cut here, by a limit or by the end of the log: values beyond it count."""
    log_mu: np.ndarray | None
    """[N] float64: log μ(a|s) of the action taken, a log density where actions are real numbers; None if it is not known."""
    states: int
    """How many states there are; 0 if `state` holds features."""
    actions: int
    """How many actions there are; 0 if they are real numbers."""
    state_names: tuple[int | str, ...] = ()
    """What the ids of states stand for in the source, if they were not 0, 1, … there."""
    action_names: tuple[int | str, ...] = ()
    """The names of the actions in the source, in the order of their ids."""
    sorted_names: tuple[str, ...] = ()
    """Which of "states" and "actions" `read` has numbered in sorted order, since no order was given: nothing is then matched with
    their ids by position."""
    log_pi: np.ndarray | None = None
    """[N] float64: the log density of a target policy at the action taken, where actions are real numbers; None: not given."""
    kept: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """[E] for each further column that was kept: its value at the first row of each episode."""
    report: ReadReport | None = None
    """What was read, and what was left out; None if they were not read."""

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        states = f"{self.states} states" if self.states else f"{self.state.shape[1]} features"
        actions = f"{self.actions} actions" if self.actions else "real actions"
        logged = "μ logged" if self.log_mu is not None else "μ not logged"
        return f"Logs({len(self):,} steps of {self.episodes:,} episodes, {states}, {actions}, {logged})"

    @property
    def episodes(self) -> int:
        """The number of episodes, E."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """How many steps each episode has [E]."""
        return np.diff(self.starts)

    @property
    def first_steps(self) -> np.ndarray:
        """The first step of each episode [E]."""
        return self.starts[:-1]

    @property
    def last_steps(self) -> np.ndarray:
        """The last step of each episode [E]."""
        return self.starts[1:] - 1

    @property
    def age(self) -> np.ndarray:
        """The number t of each step in its episode [N]."""
        return np.arange(len(self)) - self.of_steps(self.first_steps)

    @property
    def cut(self) -> np.ndarray:
        """Whether each step [N] was followed by more that is not seen."""
        return self.truncated & ~self.terminated

    @property
    def pairs(self) -> np.ndarray:
        """The number of the pair (s, a) of each step [N], where both are ids."""
        return self.state * self.actions + self.action

    @property
    def counts(self) -> np.ndarray:
        """How often each action was logged in each state [S, A]."""
        return np.bincount(self.pairs, minlength=self.states * self.actions).reshape(self.states, self.actions)

    def of_steps(self, x: np.ndarray) -> np.ndarray:
        """What each step has [N] of an x for each episode [E]."""
        return np.repeat(x, self.lengths)

    def by_episode(self, x: np.ndarray) -> np.ndarray:
        """The sum of x [N] over each episode [E]."""
        return np.add.reduceat(x, self.first_steps)

    @property
    def tabular(self) -> bool:
        """Whether states are ids."""
        return self.states > 0

    @property
    def continuous(self) -> bool:
        """Whether actions are real numbers."""
        return self.actions == 0

    def names(self, what: str) -> Sequence[int | str]:
        """What the ids of "states" or "actions" stand for, in their order: names, or the ids themselves."""
        if what == "states":
            return self.state_names or range(self.states)
        return self.action_names or range(self.actions)

    def order(self, what: str) -> str:
        """The names of "states" or "actions" in the order of their ids, in words; nothing where the ids are the source's own."""
        if not (self.state_names if what == "states" else self.action_names):
            return ""
        names = self.names(what)
        listed = ", ".join(map(str, names[:LISTED])) + (f", … ({len(names):,} in all)" if len(names) > LISTED else "")
        return listed + (" (sorted: no order was given)" if what in self.sorted_names else "")

    def require_order(self, positional: str, *of: str) -> None:
        """Raise if something that goes by position in "states" or "actions" meets names that were sorted here."""
        lacking = [what for what in of if what in self.sorted_names]
        if not lacking:
            return
        names = {what: self.names(what) for what in lacking}
        listed = {
            what: ", ".join(map(repr, each[:LISTED])) + ", …" * (len(each) > LISTED) for what, each in names.items()
        }
        given = ", ".join(f"{what}=[{each}]" for what, each in listed.items())
        typed = " ".join(f"--{what} {' '.join(map(str, each[:LISTED]))}" for what, each in names.items())
        numbers = any(isinstance(each[0], int) for each in names.values())
        raise ValueError(
            f"{positional}, but the order of the {' and '.join(f'{what} ({each})' for what, each in listed.items())} was not "
            f"given: `read` sorted them. Give `read` the names in the order that you mean, which need not be this "
            f"one: {given} ({typed})"
            + ("; or how many there are, if they are 0, 1, …: then others are errors" if numbers else "")
        )

    def pieces(self, steps: int) -> Iterator[slice]:
        """Yield slices of whole episodes of at most so many steps each (or one longer episode), in order."""
        first = 0
        while first < self.episodes:
            stop: int = self.starts[first] + steps
            last = int(np.searchsorted(self.starts, stop, side="right")) - 1
            last = max(last, first + 1)
            yield slice(int(self.starts[first]), int(self.starts[last]))
            first = last


def take(logs: Logs, episodes: np.ndarray) -> Logs:
    """The logs of some episodes, given by their numbers, which may repeat."""
    lengths = logs.lengths[episodes]
    starts = np.append(0, np.cumsum(lengths))
    shift = np.repeat(logs.starts[episodes] - starts[:-1], lengths)
    step = np.arange(len(shift)) + shift
    names = ("state", "next_state", "action", "reward", "terminated", "truncated")
    given = {name: a[step] for name in ("log_mu", "log_pi") if (a := getattr(logs, name)) is not None}
    kept = {name: array[episodes] for name, array in logs.kept.items()}
    return replace(logs, starts=starts, kept=kept, **given, **{name: getattr(logs, name)[step] for name in names})
