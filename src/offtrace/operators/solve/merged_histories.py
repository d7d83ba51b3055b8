"""Histories of a trace on an MDP, grown step by step, many side by side; those with the same future are merged.

A history enters only through its *carry*: (x, decays so far) in normal form, the custom trace's own carry, or all its pairs.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from offtrace.mdps.sparse_matrices import SparseMatrix, row_lengths
from offtrace.operators.setting import Setting
from offtrace.traces import History, Step

# How β grows along a history. `knows_start`: the start's own pair matters. `lagged`: the lag does, so that histories of different
# lengths are not merged. From the lag `bounded_by` on β is 0.


class NormalWalk:
    """x and the product of decays."""

    knows_start = False

    def __init__(self, setting: Setting) -> None:
        self.decay, self.ratio, self.cap = (a.ravel() for a in (setting.decay, setting.ratio, setting.cap))
        self.lags, self.recursive = setting.lags, setting.trace.recursive
        self.lagged, self.bounded_by = bool(self.lags), setting.horizon

    def begin(self, n: int, pair: np.ndarray) -> np.ndarray:
        """x = 1, and nothing has decayed."""
        return np.ones((n, 2))

    def advance(
        self, carry: np.ndarray, lag: int, start: np.ndarray, pair: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The normal form itself."""
        x, D = carry[:, 0] * self.ratio[pair], carry[:, 1] * self.decay[pair]
        bound = self.lags[min(lag, len(self.lags)) - 1] if self.lags else np.inf
        read = np.minimum(np.minimum(self.cap[pair], bound), x)
        return np.stack([read if self.recursive else x, D], axis=1), np.where(D > 0, D * read, 0.0)


class StepWalk:
    """A StepTrace's own carry."""

    def __init__(self, setting: Setting) -> None:
        trace: Any = setting.trace
        self.trace, self.bounded_by = trace, trace.horizon
        self.knows_start, self.ids = "pair" in trace.reads, setting.seen_ids
        self.lagged = trace.traced.lines.uses("lag")
        reads = trace.reads
        nan = np.full(setting.pairs, np.nan)
        self.pi = setting.pi.ravel() if "pi" in reads else nan
        self.mu = setting.mu.ravel() if "mu" in reads else nan
        self.rho = setting.rho.ravel() if "rho" in reads else nan

    def begin(self, n: int, pair: np.ndarray) -> np.ndarray:
        """The trace's first carry."""
        return np.tile(np.atleast_1d(np.asarray(self.trace.carry, dtype=float)), (n, 1))

    def advance(
        self, carry: np.ndarray, lag: int, start: np.ndarray, pair: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The trace's step on arrays."""
        ids = (
            (self.ids[start], self.ids[pair]) if self.knows_start else (np.full(len(pair), -1), np.full(len(pair), -2))
        )
        lam = getattr(self.trace, "lam", 1.0)
        now = Step(self.pi[pair], self.mu[pair], self.rho[pair], lam, np.full(len(pair), float(lag)), *ids)
        given: tuple[np.ndarray, ...] | np.ndarray = (
            tuple(carry.T) if isinstance(self.trace.carry, tuple) else carry[:, 0]
        )
        with np.errstate(over="ignore"):
            after, β = self.trace.traced.call(np, given, now)
        after = after if isinstance(after, tuple) else (after,)
        columns = [np.broadcast_to(np.asarray(c, dtype=float), len(pair)) for c in after]
        return np.stack(columns, axis=1), np.array(np.broadcast_to(np.asarray(β, dtype=float), len(pair)))


class HistoryWalk:
    """All the pairs of the past."""

    knows_start, lagged = True, True

    def __init__(self, setting: Setting) -> None:
        trace: Any = setting.trace
        self.trace, self.bounded_by = trace, trace.horizon
        self.of = {"pi": setting.pi.ravel(), "mu": setting.mu.ravel(), "rho": setting.rho.ravel()}
        self.ids, self.first = (
            setting.seen_ids,
            0 if setting.ids is None else 1,
        )  # on transitions the start has no action

    def begin(self, n: int, pair: np.ndarray) -> np.ndarray:
        """The start's pair."""
        return np.asarray(pair, dtype=float)[:, None]

    def advance(
        self, carry: np.ndarray, lag: int, start: np.ndarray, pair: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """One call of the trace's function for each history."""
        carry = np.concatenate([carry, pair[:, None]], axis=1)
        β, beta = np.empty(len(carry)), self.trace.history_form
        for i, row in enumerate(carry.astype(np.int64)):
            seen: dict[str, Any] = dict.fromkeys(History._fields)
            for name in (name for name in self.of if name in self.trace.reads):
                seen[name] = self.of[name][row]
                seen[name][: self.first] = np.nan
            seen["pair"] = self.ids[row] if "pair" in self.trace.reads else None
            β[i] = beta(History(**seen))
        return carry, β


Walk: TypeAlias = NormalWalk | StepWalk | HistoryWalk


def walk_of(setting: Setting) -> Walk:
    """The walk of the setting's trace."""
    return {"normal": NormalWalk, "step": StepWalk, "history": HistoryWalk}[setting.trace.form](setting)


def keys(walk: Walk, lag: int, start: np.ndarray, pair: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
    """Rows [n, k], the same for histories with the same future: these numbers, and what else the walk depends on."""
    columns = [pair[:, None], *(rounded(x if x.ndim == 2 else x[:, None]) for x in numbers)]
    if walk.knows_start:
        columns.append(start[:, None])
    if walk.lagged and not (isinstance(walk, NormalWalk) and lag > len(walk.lags)):
        columns.append(np.full((len(pair), 1), lag))
    return np.concatenate(columns, axis=1)


def successors(step: SparseMatrix, pair: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For rows `pair` of a sparse step: the index of the row's history, the next pair, and its probability, edge by edge."""
    count = row_lengths(step)[pair]
    which = np.repeat(np.arange(len(pair)), count)
    first = np.cumsum(count) - count
    entry = np.arange(len(which)) - first[which] + step.indptr[pair][which]
    return which, step.indices[entry].astype(np.int64), step.data[entry]


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to forty bits, about twelve digits, so that values which should be equal are; −0 becomes 0."""
    m, e = np.frexp(values)  # by halves and doubles, which are exact: powers of ten would leave the range of floats
    digits = 2.0**40
    return np.where(np.isfinite(values), np.ldexp(np.round(m * digits) / digits, e), values) + 0.0


def require_coefficients(β: np.ndarray, title: str, bound: float | None = None) -> None:
    """β must be a finite number of at least 0, and at most what the trace declares."""
    good = (β >= 0) & (β < np.inf)
    if not good.all():
        raise ValueError(f"the trace {title!r} gave β = {β[~good][0]}: it must be finite and at least 0")
    if bound is not None and β.max(initial=0.0) > bound * (1 + 1e-12):
        raise ValueError(f"the trace {title!r} gave β = {β.max()}: it declares bound = {bound}")
