"""Weights and rejection of decisions on NumPy arrays. A rule's factors come from its own lines; one compiled loop serves all.

For decision 1, 2, … of a row, whose trace starts one step before it with x_0 = 1:

    x_i = ratio_i x_{i-1}, and min(cap_i, x_i) where the rule is recursive
    prefix_i = decay_1 ··· decay_i min(cap_i, x_i)

The suffix is the same of the decisions after i. For a recursive cap it goes backward by maps x ↦ min(A x, B): if first comes
min(r x, c) and then min(A x, B), both together are min(A r x, min(A c, B)). Products are numbers of any size (`big_float`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from offtrace.returns.inputs import bounded
from offtrace.returns.numpy.big_float import clipped, raised, times
from offtrace.returns.numpy.compiling import kernel, part
from offtrace.returns.numpy.normal_form import lag_caps, normal_form
from offtrace.returns.numpy.read_steps import probabilities
from offtrace.returns.weights.decisions import LEVELS, ONE_A_ROW, Criterion, Decisions, Weighing, estimate, flags
from offtrace.traces import Trace
from offtrace.trajectory import BadValueError, Trajectory, first_index, spell, warn_if_positive

BLOCK = 1 << 16  # so many steps at a time: their factors stay in the cache
NO_MASK, NO_SEGMENT = np.empty((0, 0), np.bool_), np.empty((0, 0), np.int64)
TOKEN, PREFIX, SUFFIX, SEQUENCE, GEOMETRIC = range(len(LEVELS))

Totals = Mapping[int, tuple[float, int]]
"""For each group the sum of its weights, and how many there are."""
Merge = Callable[[Totals], Totals]
"""From the totals of this process to those of all."""


class Sequences(NamedTuple):
    """N decisions in S sequences, in the order of the batch. A sequence is the decisions of a row, or of one of its segments."""

    rows: np.ndarray
    """The row of each decision, [N]."""
    steps: np.ndarray
    """The step of each decision, [N]."""
    starts: np.ndarray
    """The place of each sequence's first decision among the N, [S]."""

    @property
    def lengths(self) -> np.ndarray:
        """How many decisions each sequence has, [S]."""
        return np.diff(self.starts, append=len(self.rows))

    def of(self, array: np.ndarray) -> np.ndarray:
        """The entries of an array [B, T] at the decisions, [N]."""
        return array[self.rows, self.steps]

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """A number for each sequence given to each of its decisions, [N]."""
        return np.repeat(numbers, self.lengths)

    @property
    def positions(self) -> np.ndarray:
        """0, 1, … along each sequence, [N]."""
        return np.arange(len(self.rows)) - self.spread(self.starts)

    def up_to(self, values: np.ndarray) -> np.ndarray:
        """The sum from the start of each sequence up to each decision, [N]."""
        out = np.empty(len(values))
        _running_sums(np.ascontiguousarray(values, np.float64), self.starts, out)
        return out


@kernel
def _running_sums(values, starts, out):
    """Sums of values [N] that start again at each of the starts [S]."""
    total, s = 0.0, 0
    for i in range(len(values)):
        if s < len(starts) and starts[s] == i:
            total, s = 0.0, s + 1
        total += values[i]
        out[i] = total


def sequences(mask: np.ndarray, segment: np.ndarray | None = None) -> Sequences:
    """The decisions where a mask [B, T] is true; an error where the ids of segments fall along a row."""
    rows, steps = np.nonzero(mask)
    begins = np.ones(len(rows), bool)
    begins[1:] = rows[1:] != rows[:-1]
    if segment is not None:
        ids = segment[rows, steps]
        falls = np.zeros(len(rows), bool)
        falls[1:] = ~begins[1:] & (ids[1:] < ids[:-1])
        if falls.any():
            i = int(np.argmax(falls))
            raise ValueError(
                f"segment falls along a row: {ids[i - 1]} is followed by {ids[i]} in row {rows[i]} at step {steps[i]}. "
                "A row that was packed first has the smaller id: number the rows in the order in which they stand"
            )
        begins[1:] |= ids[1:] != ids[:-1]
    return Sequences(rows, steps, np.flatnonzero(begins))


def trajectory(given: Decisions[np.ndarray], bounded: tuple[str, ...]) -> Trajectory:
    """The decisions as a trajectory of rows [B, T]: `valid` is the mask, `pair` the segment, and nothing ends."""
    shape = given.shape if len(given.shape) == 2 else (1, *given.shape)
    nothing = np.broadcast_to(np.False_, shape)
    mask = None if given.mask is None else _plain(flags(given.mask).reshape(shape))
    segment = None if given.segment is None else _plain(given.segment.reshape(shape).astype(np.int64, copy=False))
    log_pi, log_mu = (None if log is None else log.reshape(shape) for log in (given.log_pi, given.log_mu))
    return Trajectory(
        given.shape, np.dtype(np.float64), nothing, nothing, 1.0,
        log_pi=log_pi, log_mu=log_mu, valid=mask, pair=segment, bounded=bounded,
    )  # fmt: skip


def _plain(array: np.ndarray) -> np.ndarray:
    """Contiguous and writeable: what is not, is another type to Numba, and would be compiled again."""
    return array if array.flags.carray else array.copy()


def weigh(trace: Trace, given: Decisions[np.ndarray], how: Weighing, merge: Merge | None = None) -> np.ndarray:
    """The weights in the shape of the arrays, as float64; `merge` puts together what several processes are normalised by."""
    x = trajectory(given, bounded(trace))
    warn_if_positive(x)
    B, T = x.terminated.shape
    lags = lag_caps(trace, T + 1)
    decisions = None
    if how.normalize is not None or x.pair is not None:
        decisions = sequences(np.ones((B, T), bool) if x.valid is None else x.valid, x.pair)
    out = np.empty((B, T))
    rows = B if trace.per_step else max(1, BLOCK // T)
    for b in range(0, B, rows):
        block = x.rows(b, b + rows) if rows < B else x
        try:
            decay, ratio, cap = normal_form(trace, block, start_acts=True)
        except BadValueError as error:
            raise error.in_row(b) from None
        mask, segment = (none if a is None else a for a, none in ((block.valid, NO_MASK), (block.pair, NO_SEGMENT)))
        _weigh(decay, ratio, cap, mask, segment, lags, trace.recursive, LEVELS.index(how.level), out[b : b + rows])
    if how.bounded:
        if how.drop:
            out[(out < how.lower) | (out > how.upper)] = 0.0
        else:
            np.clip(out, how.lower, how.upper, out=out)
        if x.valid is not None:
            out[~x.valid] = 0.0
    if how.normalize is not None and decisions is not None:
        _normalize(out, decisions, how, given.group, merge)
    return out.reshape(given.shape)


def _normalize(
    weights: np.ndarray, decisions: Sequences, how: Weighing, group: np.ndarray | None, merge: Merge | None
) -> None:
    """Divide weights by their mean over the batch or the group, in place."""
    at = decisions.starts if how.level in ONE_A_ROW else slice(None)
    values, rows = decisions.of(weights)[at], decisions.rows[at]
    ids = np.zeros(len(weights), np.int64) if group is None else np.asarray(group, np.int64)
    names, place = np.unique(ids, return_inverse=True)
    sums, counts = np.bincount(place[rows], values, len(names)), np.bincount(place[rows], minlength=len(names))
    totals: Totals = {int(n): (float(s), int(c)) for n, s, c in zip(names, sums, counts, strict=True)}
    totals = totals if merge is None else merge(totals)
    check_totals(totals, grouped=group is not None)
    means = np.array([total / max(1, count) for total, count in (totals[int(n)] for n in names)])
    weights /= np.where(means > 0.0, means, 1.0)[place][:, None]  # where the mean is 0, all weights are


def check_totals(totals: Totals, *, grouped: bool) -> None:
    """An error where a mean says nothing: of one weight, or of an infinite one."""
    for name, (total, count) in totals.items():
        if count == 1:
            what = f"group {name} has one weight to normalise" if grouped else "there is one weight to normalise"
            raise ValueError(
                f"{what}: over its own mean a weight is always 1. Normalise over more rows, or pass normalize=None"
            )
        if not total < np.inf:
            raise ValueError(
                "a weight is above the largest float, so that a mean of weights does not exist: cap them, by the trace or by "
                "upper=…, before they are normalised"
            )


def merged(all_totals: Iterable[Totals]) -> Totals:
    """The totals of all processes together."""
    totals_of_all: dict[int, tuple[float, int]] = {}
    for totals in all_totals:
        for name, (total, count) in totals.items():
            before = totals_of_all.get(name, (0.0, 0))
            totals_of_all[name] = before[0] + total, before[1] + count
    return totals_of_all


def decisions_of(given: Decisions[np.ndarray], *, never_drawn: bool = False) -> tuple[np.ndarray, Sequences]:
    """log ρ of each decision, [N], checked, and where its sequences begin.

    With `never_drawn` a log μ of −∞ at a decision is no error, and log ρ is NaN there.
    """
    never = _never_drawn(given)
    if never_drawn and never.any():
        given = given._replace(log_mu=np.where(never, 0.0, given.arrays()["log_mu"]))
    x = trajectory(given, ())
    probabilities(x, ("rho",))  # an error where one is bad
    rows = sequences(np.ones(x.terminated.shape, bool) if x.valid is None else x.valid, x.pair)
    if not len(rows.rows):
        raise ValueError("mask has no decision in any row: it must be true at the steps whose actions were chosen by μ")
    log_ratio = np.subtract(rows.of(x.read("log_pi")), rows.of(x.read("log_mu")), dtype=np.float64)
    return np.where(rows.of(np.atleast_2d(never)), np.nan, log_ratio), rows


def _never_drawn(given: Decisions[np.ndarray]) -> np.ndarray:
    """Whether an action was taken that μ never takes, by log_mu."""
    never = np.isneginf(given.arrays()["log_mu"])
    return never if given.mask is None else never & (given.mask != 0)


def statistic(criterion: Criterion, log_ratio: np.ndarray, log_mu: np.ndarray, rows: Sequences) -> np.ndarray:
    """What the criterion looks at: a number for each decision, [N], or for each sequence, [S]."""
    with np.errstate(over="ignore", invalid="ignore"):  # k3 of an enormous ratio is infinite, and rejected
        value = estimate(np, criterion.k, log_ratio, log_mu)
        if criterion.over == "token":
            return value
        if criterion.over == "max":
            return np.maximum.reduceat(value, rows.starts)
        if criterion.over.startswith("prefix"):
            total = rows.up_to(value)
            return total / (rows.positions + 1) if criterion.over == "prefix mean" else total
        total = np.add.reduceat(value, rows.starts)
        return total / rows.lengths if criterion.over == "mean" else total


def keep(criteria: tuple[Criterion, ...], given: Decisions[np.ndarray]) -> np.ndarray:
    """Whether each decision passes all criteria; False where there is no decision. What is not a number passes none."""
    if given.mask is not None and not given.mask.any():
        return np.zeros(given.shape, bool)
    never = _never_drawn(given)
    if never.any():
        warnings.warn(
            f"log_mu is −inf at {never.sum()} decision(s), first at index {spell(first_index(never))}: that action was taken, so "
            "its probability under μ was not 0. Such decisions are rejected, and sequences with one where a sequence is judged",
            stacklevel=4,
        )
    log_ratio, rows = decisions_of(given, never_drawn=True)
    out = np.zeros(given.shape if len(given.shape) == 2 else (1, *given.shape), bool)
    log_mu = rows.of(np.atleast_2d(given.arrays()["log_mu"])).astype(np.float64)
    advantage = None
    if given.advantage is not None:
        of_rows = given.advantage.reshape(len(out), -1)
        advantage = rows.of(np.broadcast_to(of_rows, out.shape))
        if np.isnan(advantage).any():
            at = int(np.argmax(np.isnan(advantage)))
            raise ValueError(f"advantage is NaN at a decision, in row {rows.rows[at]} at step {rows.steps[at]}")
    passed = np.ones(len(log_ratio), bool)
    for criterion in criteria:
        value = statistic(criterion, log_ratio, log_mu, rows)
        passed &= criterion.keeps(value if len(value) == len(passed) else rows.spread(value), advantage)
    out[rows.rows, rows.steps] = passed
    return out.reshape(given.shape)


@part
def _product(f, n, r):
    """f · 2^{512n} · r, which is 0 where either is, even if the other is infinite."""
    if f == 0.0 or r == 0.0:
        return 0.0, 0
    return times(f, n, r)


@part
def _least(f, n, g, m):
    """The smaller of f · 2^{512n} and g · 2^{512m}."""
    if f == 0.0 or g == 0.0:
        return 0.0, 0
    return (f, n) if raised(f, n - m) < g else (g, m)


@part
def _read(D, Dn, x, xn, cap, lag, lags):
    """D min(cap, d_lag, x), as a number and its power; 0 from the horizon on."""
    if len(lags) and lag > 0:
        if lag > len(lags):
            return 0.0, 0
        cap = min(cap, lags[lag - 1])
    f, n = times(1.0, 0, cap) if clipped(x, xn, cap) else (x, xn)
    return (0.0, 0) if D == 0.0 or f == 0.0 else (D * f, Dn + n)


@kernel
def _weigh(decay, ratio, cap, mask, segment, lags, recursive, level, out):
    """The weights of rows into `out` [n, T]. An empty mask or segment stands for none."""
    B, T = out.shape
    for b in range(B):
        if level == SUFFIX:
            _suffix(decay, ratio, cap, mask, segment, lags, recursive, b, out)
            continue
        D, Dn, x, xn, lag, start, before = 1.0, 0, 1.0, 0, 0, 0, -1
        w, wn = 0.0, 0
        for t in range(T + 1):
            decides = t < T and (not len(mask) or mask[b, t])
            if t < T and not decides:
                out[b, t] = 0.0
                continue
            ends = t == T or (len(segment) and before >= 0 and segment[b, t] != segment[b, before])
            if ends and level >= SEQUENCE and before >= 0:
                _fill(w, wn, lag, level, mask, b, start, before + 1, out)
            if t == T:
                break
            if ends or before < 0 or level == TOKEN:
                D, Dn, x, xn, lag, start = 1.0, 0, 1.0, 0, 0, t
            before, lag = t, lag + 1
            D, Dn = _product(D, Dn, decay[b, t])
            x, xn = _product(x, xn, ratio[b, t])
            if recursive and clipped(x, xn, cap[b, t]):
                x, xn = times(1.0, 0, cap[b, t])
            w, wn = _read(D, Dn, x, xn, cap[b, t], lag, lags)
            out[b, t] = raised(w, wn)


@part
def _fill(w, wn, n, level, mask, b, start, stop, out):
    """The weight of a sequence of n decisions, or its n-th root, at each of them."""
    value = raised(w, wn)
    if level == GEOMETRIC and 0.0 < w < np.inf:
        value = np.exp((np.log(w) + wn * (512.0 * np.log(2.0))) / n)
    for t in range(start, stop):
        if not len(mask) or mask[b, t]:
            out[b, t] = value


@part
def _suffix(decay, ratio, cap, mask, segment, lags, recursive, b, out):
    """β after the last decision, of a trace that starts at t and has not met the action of t."""
    D, Dn, A, An, B, Bn, lag, after = 1.0, 0, 1.0, 0, np.inf, 0, 0, -1
    T = out.shape[1]
    for i in range(T):
        t = T - 1 - i
        if len(mask) and not mask[b, t]:
            out[b, t] = 0.0
            continue
        if len(segment) and after >= 0 and segment[b, t] != segment[b, after]:
            D, Dn, A, An, B, Bn, lag = 1.0, 0, 1.0, 0, np.inf, 0, 0
        x, xn = _least(A, An, B, Bn)
        w, wn = _read(D, Dn, x, xn, np.inf, lag, lags)
        out[b, t] = raised(w, wn)
        c = cap[b, t]
        # Without recursion the cap acts where β is read, after the last action.
        if c < np.inf and (recursive or lag == 0):
            f, n = _product(A, An, c)
            B, Bn = _least(f, n, B, Bn)
        A, An = _product(A, An, ratio[b, t])
        D, Dn = _product(D, Dn, decay[b, t])
        lag, after = lag + 1, t
