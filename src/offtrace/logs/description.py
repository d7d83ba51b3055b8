"""What logs are like, and what they can say about a target policy.

W_e = ∏_t π(a_t|s_t) / μ(a_t|s_t)  over episode e,       effective sample size = (Σ_e W_e)² / Σ_e W_e²   (Kish 1965)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offtrace._shared import notebook
from offtrace._shared.number_text import counted
from offtrace.logs.container import Logs
from offtrace.logs.importance import kish, shares
from offtrace.logs.policies import Policy, as_policy
from offtrace.logs.reading.problems import ReadReport

PIECE = 1 << 18
"""How many steps a policy is asked for at a time."""
FIRST = 3
"""How many steps or pairs are named."""


@dataclass(frozen=True)
class Coverage:
    """What logs say about a target policy."""

    could: float
    """The share of steps whose action the target could take: π(a|s) > 0."""
    first_not: tuple[str, ...]
    """The first steps whose action the target could not take, in words."""
    pairs: int | None
    """How many (s, a) the target takes in states of the logs; None for features."""
    unseen: int | None
    """How many of these pairs the logs do not have."""
    first_unseen: tuple[str, ...]
    """Those of these pairs that the target would take most often in the logs, in words."""
    effective: float
    """Kish's effective number of episodes; NaN if μ is not known."""
    largest: float
    """The largest share of one episode in ΣW; NaN if μ is not known or all W are 0."""


@dataclass(frozen=True)
class Description:
    """What logs are like; prints as a table."""

    episodes: int
    steps: int
    lengths: tuple[int, float, int]
    """The shortest episode, the median, the longest."""
    terminated: float
    """The share of episodes that ended by the task; the others were truncated."""
    states: int
    """How many states there are; 0 where states are features."""
    states_seen: int
    """How many states occur; where states are features, how many numbers a state has."""
    actions: int
    """How many actions there are; 0 where they are real numbers."""
    actions_seen: int
    """How many actions occur; where they are real numbers, how many numbers an action has."""
    state_order: str
    """The names of the states in the order of their ids, in words; nothing where they have no names."""
    action_order: str
    """The same of the actions."""
    rewards: tuple[float, float, float]
    """The least reward, the mean and the largest."""
    mu: tuple[float, float] | None
    """The least and the median probability, or density, of an action that was taken; None if μ is not known."""
    report: ReadReport | None
    """What was read, and what was left out."""
    target: Coverage | None

    def _repr_html_(self) -> str:
        return notebook.words(str(self))

    def __str__(self) -> str:
        low, middle, high = self.lengths
        least, mean, most = self.rewards
        seen = f"{self.states_seen:,} of {self.states:,} occur" if self.states else f"{self.states_seen} features"
        rows = [
            ("episodes", f"{self.episodes:,}"),
            ("steps", f"{self.steps:,}"),
            ("lengths", f"{low:,} to {high:,}, median {middle:,g}"),
            ("ended", f"{100 * self.terminated:.3g} % terminated, {100 * (1 - self.terminated):.3g} % truncated"),
            ("states", seen + (f": {self.state_order}" if self.state_order else "")),
            (
                "actions",
                f"{self.actions_seen:,} of {self.actions:,} occur"
                + (f": {self.action_order}" if self.action_order else "")
                if self.actions
                else counted(self.actions_seen, "real number"),
            ),
            ("rewards", f"{least:.4g} to {most:.4g}, mean {mean:.4g}"),
            ("μ(a|s)", "not known" if self.mu is None else f"least {self.mu[0]:.3g}, median {self.mu[1]:.3g}"),
        ]
        if self.report is not None:
            first, *others = str(self.report).split("\n")
            rows += [("read", first), *(("", line) for line in others)]
        if (t := self.target) is not None:
            first = f"; not {', '.join(t.first_not)}" if t.first_not else ""
            rows.append(("target", f"could take {100 * t.could:.4g} % of the actions{first}"))
            if t.pairs is not None:
                first = f": {', '.join(t.first_unseen)}" if t.first_unseen else ""
                rows.append(("", f"{t.unseen:,} of the {t.pairs:,} pairs (s, a) that it takes never occur{first}"))
            worth = f"worth {t.effective:,.1f} episodes, " + (
                f"the largest has {100 * t.largest:.3g} % of them" if t.effective else "since all are 0"
            )
            rows.append(("weights", "need μ" if np.isnan(t.effective) else worth))
        return "\n".join(f"{name:<9} {text}" for name, text in rows)


def describe(logs: Logs, target: object = None) -> Description:
    """What logs are like, and what they say about a target policy: a table [S, A], a function of states, or a classifier.

    >>> from offtrace import mdps
    >>> from offtrace.logs import simulate
    >>> walk = mdps.random_walk(3)
    >>> found = describe(simulate(walk, mdps.uniform(walk), episodes=50, seed=0),
    ...                  target=mdps.uniform(walk))
    >>> found.episodes, found.states, float(found.target.could)
    (50, 4, 1.0)
    """
    lengths, last = logs.lengths, logs.last_steps
    mu = None
    if logs.log_mu is not None:
        mu = float(np.exp(logs.log_mu.min())), float(np.median(np.exp(logs.log_mu)))
    seen = np.count_nonzero(np.bincount(logs.state, minlength=1)) if logs.tabular else logs.state.shape[1]
    return Description(
        episodes=logs.episodes,
        steps=len(logs),
        lengths=(int(lengths.min()), float(np.median(lengths)), int(lengths.max())),
        terminated=float(logs.terminated[last].mean()),
        states=logs.states,
        states_seen=int(seen),
        actions=logs.actions,
        actions_seen=logs.action.shape[1] if logs.continuous else int(np.count_nonzero(np.bincount(logs.action))),
        state_order=logs.order("states"),
        action_order=logs.order("actions"),
        rewards=(float(logs.reward.min()), float(logs.reward.mean()), float(logs.reward.max())),
        mu=mu,
        report=logs.report,
        target=None if target is None and logs.log_pi is None else _coverage(logs, target),
    )


def _coverage(logs: Logs, target: object) -> Coverage:
    policy = as_policy(target, logs).for_logs(logs, 1.0)
    log_pi = np.concatenate([policy.log_taken(logs, piece) for piece in logs.pieces(PIECE)])
    never = np.flatnonzero(log_pi == -np.inf)
    first: list[int] = never[:FIRST].tolist()
    where = [(step, int(np.searchsorted(logs.starts, step, side="right")) - 1) for step in first]
    share = None if logs.log_mu is None else shares(logs.by_episode(log_pi - logs.log_mu))
    pairs, unseen, first_unseen = _pairs(logs, policy)
    return Coverage(
        could=(len(logs) - len(never)) / len(logs),
        first_not=tuple(f"step {step - logs.starts[e]} of episode {e}" for step, e in where),
        pairs=pairs,
        unseen=unseen,
        first_unseen=first_unseen,
        effective=np.nan if share is None else kish(share),
        largest=np.nan if share is None else float(share.max()),
    )


def _pairs(logs: Logs, policy: Policy) -> tuple[int | None, int | None, tuple[str, ...]]:
    """How many pairs (s, a) the policy takes in states of the logs, how many of them never occur, and the names of those that
    matter most."""
    if policy.table is None:
        return None, None, ()
    logged = logs.counts
    there = logged.sum(axis=1) > 0
    there[logs.next_state[~logs.terminated]] = True  # also those in which an episode was cut
    takes = (policy.table > 0) & there[:, None]
    unseen = np.argwhere(takes & (logged == 0))
    often = policy.table[tuple(unseen.T)] * logged.sum(axis=1)[unseen[:, 0]]
    names = logs.names("states"), logs.names("actions")
    first = tuple(f"({names[0][s]!r}, {names[1][a]!r})" for s, a in unseen[np.argsort(-often, kind="stable")[:FIRST]])
    return int(takes.sum()), len(unseen), first
