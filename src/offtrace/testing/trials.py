"""The trajectories on which an estimator is tried: short rows with each kind of end, padding and π = 0, and what is right there.

Numbers that must not be read, `next_value` after a termination and everything at padding, are finite but large, so that a factor
of 0 hides them as it does in most code, and anything else shows. On state values next_value[t] is value[t+1] inside an episode,
so that code which shifts `value` is right where its users' data are so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import numpy as np

from offtrace.returns import by_definition
from offtrace.traces import Rule
from offtrace.traces.trace_argument import as_trace

Values = Literal["action", "state"]
Quantity = Literal["target", "advantage", "correction"]
Input = Literal["reward", "own", "next_value"]
"""What a return is linear in; `own` is q on action values and value on state values."""
SINGLE_STEP = "a single step"
JUNK = 30.0
"""About the size of what must not be read; other numbers are below 3."""
BY_STEP = (
    "reward",
    "own",
    "next_value",
    "terminated",
    "truncated",
    "valid",
    "log_pi",
    "log_mu",
    "greedy",
    "pair",
    "gamma",
)


@dataclass(frozen=True, eq=False)
class Row:
    """One trajectory: arrays [T], real ones in float64, whose numbers float32 holds exactly."""

    reward: np.ndarray
    own: np.ndarray
    next_value: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    log_pi: np.ndarray
    log_mu: np.ndarray
    greedy: np.ndarray
    pair: np.ndarray
    gamma: np.ndarray

    @property
    def steps(self) -> int:
        """T."""
        return len(self.reward)

    @property
    def goes_on(self) -> np.ndarray:
        """Whether step t + 1 belongs to the same episode as step t."""
        follows = np.append(self.valid[1:], False)
        return self.valid & follows & ~(self.terminated | self.truncated)

    def last(self, k: int) -> int:
        """The last step of the stretch that a trace from k reaches."""
        return k + int(np.argmin(self.goes_on[k:]))

    @property
    def rho(self) -> np.ndarray:
        """π/μ of the actions taken."""
        return np.exp(self.log_pi - self.log_mu)

    def with_numbers(self, values: Values, numbers: Iterable[tuple[Input, int]] = ()) -> Self:
        """The same episodes, all rewards and values 0 but these, which are 1.

        On state values the value of s_t stands in two places: value[t], and next_value[t−1] where that step is of the episode.
        """
        probe = {name: np.zeros(self.steps) for name in ("reward", "own", "next_value")}
        for name, t in numbers:
            probe[name][t] = 1.0
            if values == "state" and name == "own" and t > 0 and self.goes_on[t - 1]:
                probe["next_value"][t - 1] = 1.0
        return replace(self, **probe)

    def without(self, step: int) -> Self:
        """The row without one of its steps."""
        return replace(self, **{name: np.delete(getattr(self, name), step) for name in BY_STEP})


class Scenario(NamedTuple):
    """Rows of one length that show one thing."""

    shows: str
    rows: list[Row]


class Setting(NamedTuple):
    """What is checked."""

    rule: Rule
    values: Values
    quantity: Quantity
    on_policy: bool
    one_gamma: bool


def right(row: Row, rule: Rule, values: Values, quantity: Quantity) -> np.ndarray:
    """The return of every step of a row by its definition [T]."""
    given = {"reward": row.reward, "next_value": row.next_value, "terminated": row.terminated}
    given |= {"truncated": row.truncated, "gamma": row.gamma, "valid": row.valid}
    own = np.where(row.valid, row.own, 0.0)
    form = rule.uncorrected_return
    if form is not None:
        targets = by_definition.peng(form.lam, **given) if form.n is None else by_definition.n_step(form.n, **given)
        return targets - own * (quantity == "correction")
    read = {"log_pi": row.log_pi, "log_mu": row.log_mu, "pair": row.pair}
    if values == "state":
        return getattr(by_definition.state_targets(as_trace(rule), value=row.own, **given, **read), quantity)
    correction, _ = by_definition.corrections(as_trace(rule), q=row.own, greedy=row.greedy, **given, **read)
    return correction + own * (quantity == "target")


def scale(row: Row, rule: Rule, values: Values, quantity: Quantity) -> np.ndarray:
    """The size of what is summed up for every step [T], against which an error is to be judged."""
    ahead = np.where(row.terminated, 0.0, row.gamma * np.abs(row.next_value))
    sizes = np.where(row.valid, np.abs(row.reward) + np.abs(row.own) + ahead, 0.0)
    zero = np.zeros(row.steps)
    return (
        1.0
        + np.abs(row.own)
        + np.abs(right(replace(row, reward=sizes, own=zero, next_value=zero), rule, values, quantity))
    )


def scenarios(
    rule: Rule, values: Values, *, steps: int, gamma: float | None, on_policy: bool, never: Sequence[str], seed: int
) -> list[Scenario]:
    """From the simplest to the most involved, so that the first one that fails says most. `gamma` None: one for each step."""
    rng = np.random.default_rng(seed)

    def rows(*marks: Mapping[str, Sequence[int]], steps: int = steps) -> list[Row]:
        return [_row(rng, rule, values, steps, gamma, on_policy, mark) for mark in marks]

    shown = [("one episode that goes on after the row", rows({}, {}, {}, {}))]
    if "terminated" not in never:
        shown.append(("terminations", rows(*({"terminated": at} for at in ((2,), (0,), (1, 4), (-1,))))))
    if "truncated" not in never:
        shown.append(("truncations", rows(*({"truncated": at} for at in ((2,), (0,), (1, 4), (-1,))))))
    if not {"terminated", "truncated"} & set(never):
        both = ({"terminated": (1,), "truncated": (3,)}, {"terminated": (3,), "truncated": (0,)})
        same = ({"terminated": (2,), "truncated": (2,)}, {"terminated": (2,), "truncated": (0, 1)})
        shown.append(("terminations and truncations", rows(*both, *same)))
    if "padding" not in never:
        end, after = range(4, steps), range(3, steps)
        ended = {"terminated": (1,)} if "terminated" not in never else {"truncated": (1,)}
        shown.append(
            (
                "padding",
                rows({"padding": end}, {"padding": (0, 1)}, {**ended, "padding": (2, 3)}, {**ended, "padding": after}),
            )
        )
    if "zero ratios" not in never and not on_policy and not rule.needs_greedy:
        shown.append(("actions that π never takes", rows(*({"zero": at} for at in ((2,), (1, 4), (0,), (-1,))))))
    if "padding" not in never:
        inside = ((2,), (1,), (2, 3), (1, 4))
        shown.append(("padding inside an episode", rows(*({"padding": at} for at in inside))))
    if "one step" not in never and not rule.per_step:
        ends = [{name: (0,)} for name in ("terminated", "truncated") if name not in never]
        shown.append((SINGLE_STEP, rows({}, {}, *ends, steps=1)))
    return [Scenario(*one) for one in shown]


def _row(
    rng: np.random.Generator,
    rule: Rule,
    values: Values,
    steps: int,
    gamma: float | None,
    on_policy: bool,
    marks: Mapping[str, Sequence[int]],
) -> Row:
    """A row with random numbers, and flags at the steps that are given by name; steps that it does not have are left out."""

    def flags(name: str) -> np.ndarray:
        is_marked = np.zeros(steps, bool)
        is_marked[[t for t in marks.get(name, ()) if -steps <= t < steps]] = True
        return is_marked

    def signed(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, steps) * rng.choice([-1.0, 1.0], steps)

    padding, terminated, truncated = flags("padding"), flags("terminated"), flags("truncated")
    terminated, truncated = terminated & ~padding, truncated & ~padding
    reward, own, next_value = (np.where(padding, signed(JUNK, 2 * JUNK), signed(0.5, 2.5)) for _ in range(3))
    next_value = np.where(terminated, signed(JUNK, 2 * JUNK), next_value)
    greedy = rng.random(steps) < 0.7
    log_mu = np.log(rng.uniform(0.2, 0.8, steps))
    log_pi = log_mu.copy() if on_policy else np.log(rng.uniform(0.15, 0.85, steps))
    if rule.needs_greedy:
        log_pi = np.where(greedy, 0.0, -np.inf)
    log_pi[flags("zero")] = -np.inf
    discount = rng.uniform(0.5, 1.0, steps) if gamma is None else np.full(steps, gamma)
    real = (reward, own, next_value, log_pi, log_mu)
    reward, own, next_value, log_pi, log_mu = (array.astype(np.float32).astype(float) for array in real)
    pair = rng.integers(0, 3, steps)
    row = Row(reward, own, next_value, terminated, truncated, ~padding, log_pi, log_mu, greedy, pair, discount)
    if values == "action":
        return row
    return replace(row, next_value=np.where(row.goes_on, np.append(own[1:], 0.0), next_value))
