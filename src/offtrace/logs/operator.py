"""The sampled operator: corrections of every logged step, and their transpose, a piece of whole episodes at a time.

    Δ_k = Σ_{t≥k} γ^{t−k} β_{k:t} δ_t          what step k adds to Q(s_k, a_k)
    y_t = Σ_{k≤t} γ^{t−k} β_{k:t} u_k          the transpose: who receives from whom, read the other way

The flat arrays of a piece are one row of the trajectory contract: flags at the episodes' ends keep traces apart, and nothing is
padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace._shared.cores import cores
from offtrace.logs.container import Logs
from offtrace.logs.policies import Policy
from offtrace.returns import coefficients, corrections
from offtrace.returns.numpy import backend as numpy_backend
from offtrace.returns.numpy import normal_form
from offtrace.traces import Trace
from offtrace.traces.trace_argument import as_trace

PIECE = 1 << 18  # steps of a piece: a sweep needs about 150 bytes of scratch for each
FORGOTTEN = 1e-16  # a transposed weight below this is dropped: ∏ρ is a martingale under μ, so it does not come back
CORES = cores()

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Sampled:
    """M of one trace, as the logs sample it, for the target policy."""

    trace: Trace
    logs: Logs
    policy: Policy
    gamma: float

    def __post_init__(self) -> None:
        trace = as_trace(self.trace)
        if trace.target_share < 1:
            raise ValueError(
                f"{trace.title} with a mix of {trace.target_share:g} evaluates the mixture of π and μ, not π: for that value, "
                "give the mixture as the target policy and Retrace as the trace"
            )
        if self.logs.continuous and {"pi", "mu"} & set(trace.reads):
            raise ValueError(
                f"{trace.title} reads π or μ itself, and these are densities where actions are real numbers, which depend on the "
                "unit of the action. Take a trace that reads the ratio alone, such as RBIS, Retrace or ImportanceSampling, or "
                "neither, such as QLambda or OneStep"
            )
        if trace.needs_greedy and any(self._soft(piece) for piece in self.logs.pieces(PIECE)):
            raise ValueError(
                f"{trace.title} is defined by the greedy action, which a soft target policy does not tell: give a greedy policy, "
                "one action with probability 1 in each state, or take another trace"
            )
        if trace.needs_mu and self.logs.log_mu is None:
            raise ValueError(
                f"{trace.title} needs the density μ(a|s) of the actions taken, and these logs have none: give it as a policy "
                "(behavior=…), or take a trace that needs no μ: QLambda, OneStep"
                if self.logs.continuous
                else f"{trace.title} needs μ(a|s) of the actions taken, and these logs have none: let it be estimated "
                "(behavior=None, --behavior logged), give it as a policy (behavior=…), or take a trace that needs no μ: "
                "TreeBackup, QLambda, OneStep"
            )
        if trace.shape not in (None, (len(self.logs),)):
            raise ValueError(f"lam must hold one λ for each of the {len(self.logs):,} steps, got {trace.shape}")

    def _soft(self, piece: slice) -> bool:
        log_pi = self.log_pi(piece)
        return bool(((log_pi < 0) & (log_pi > -np.inf)).any())

    def each(self, work: Callable[[slice], T], steps: int = PIECE) -> Iterator[T]:
        """`work` on every piece, on all cores, the results in order (so that sums are the same every time)."""
        pieces = list(self.logs.pieces(steps))
        if len(pieces) == 1 or CORES == 1:
            yield from map(work, pieces)
            return
        with ThreadPoolExecutor(CORES) as pool:  # the kernels let go of the interpreter's lock
            for first in range(0, len(pieces), CORES):  # so that no more than CORES results wait
                yield from pool.map(work, pieces[first : first + CORES])

    def corrections(self, piece: slice, q: np.ndarray, next_value: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """Δ [n] of a piece."""
        arrays = self._arrays(piece)
        return corrections(self._cut(piece), reward=reward, q=q, next_value=next_value, **arrays)

    def transposed(self, piece: slice, u: np.ndarray) -> np.ndarray:
        """y of a piece, for u [n] or for many at once, [n, m]; the transpose of `corrections` as a function of δ."""
        trace, arrays = self._cut(piece), self._arrays(piece)
        if trace.custom:
            return self._by_coefficients(trace, arrays, u)
        x = numpy_backend.BACKEND.trajectory(trace, arrays)
        decay, ratio, cap = (factor[0] for factor in normal_form.normal_form(trace, x))
        ends = arrays["terminated"] | arrays["truncated"]
        lags = normal_form.lag_caps(trace, len(u))
        columns = np.ascontiguousarray(u.reshape(len(u), -1))
        out = columns.copy()
        if trace.per_decision and not len(lags):
            _forward(ends, self.gamma, decay * ratio, out)
        else:
            lags = lags if len(lags) else np.full(len(u), np.inf)
            _each_start(ends, self.gamma, decay, ratio, cap, trace.recursive, lags, columns, out)
        return out.reshape(u.shape)

    def _by_coefficients(self, trace: Trace, arrays: dict[str, Any], u: np.ndarray) -> np.ndarray:
        """For custom traces: β_{k:t} of one episode after the other."""
        gamma, out = arrays.pop("gamma"), np.empty(u.shape)
        first = 0
        for last in np.flatnonzero(arrays["terminated"] | arrays["truncated"]) + 1:
            row: dict[str, Any] = {name: a if a is None else a[first:last] for name, a in arrays.items()}
            B = coefficients(trace, **row)
            lag = np.arange(last - first)
            out[first:last] = (B * gamma ** np.maximum(lag - lag[:, None], 0)).T @ u[first:last]
            first = last
        return out

    def log_pi(self, piece: slice) -> np.ndarray:
        """log π(a|s) [n] of the actions taken."""
        if self._log_table is not None:
            return self._log_table[self.logs.state[piece], self.logs.action[piece]]
        return self._taken[piece]

    def next_choices(self, piece: slice) -> np.ndarray:
        """π(·|s') [n, A] at the next states; of real-valued actions, some of them [n, m, k]."""
        if self.policy.table is not None:
            return self.policy.table[self.logs.next_state[piece]]
        return self._following[piece]

    @cached_property
    def _log_table(self) -> np.ndarray | None:
        with np.errstate(divide="ignore"):  # π = 0 is legal: it cuts the trace
            return None if self.policy.table is None else np.log(self.policy.table)

    @cached_property
    def _taken(self) -> np.ndarray:
        """log π(a|s) [N], asked for once: a policy may be a network."""
        return np.concatenate([self.policy.log_taken(self.logs, piece) for piece in self.logs.pieces(PIECE)])

    @cached_property
    def _following(self) -> np.ndarray:
        """π(·|s') [N, A], or actions [N, m, k], asked for once."""
        logs = self.logs
        choices = np.zeros((len(logs), *self.policy.choices(logs.state[:1]).shape[1:]))
        for piece in logs.pieces(PIECE):
            on = np.flatnonzero(~logs.terminated[piece])  # after an end the next state may be anything
            choices[piece][on] = self.policy.choices(logs.next_state[piece][on])
        return choices

    def _cut(self, piece: slice) -> Trace:
        return self.trace.mapped(lambda each: each[piece])

    def _arrays(self, piece: slice) -> dict[str, Any]:
        logs = self.logs
        pair = None
        if "pair" in self.trace.reads:
            if not logs.tabular or logs.continuous:
                what = (
                    "actions of these logs are real numbers" if logs.continuous else "states of these logs are features"
                )
                raise TypeError(f"{self.trace.title} reads ids of (s, a): the {what}")
            pair = logs.state[piece] * logs.actions + logs.action[piece]
        return {
            "terminated": logs.terminated[piece],
            "truncated": logs.truncated[piece],
            "gamma": self.gamma,
            "log_pi": self.log_pi(piece) if self.trace.needs_pi else None,
            "log_mu": None if logs.log_mu is None else logs.log_mu[piece],
            "valid": None,
            "pair": pair,
        }


@cached_njit(nogil=True, error_model="numpy")
def _forward(ends, gamma, c, y):
    """y_t = u_t + γ c_t y_{t−1}, c = decay · ratio, within an episode; y [n, m] holds u when it comes."""
    for t in range(1, len(y)):
        if not ends[t - 1] and c[t] > 0:
            for j in range(y.shape[1]):
                y[t, j] += gamma * c[t] * y[t - 1, j]


@cached_njit(nogil=True, error_model="numpy")
def _each_start(ends, gamma, decay, ratio, cap, recursive, lags, u, out):
    """y [n, m] from every start by itself, in the normal form; stopped where the weight is 0 or forgotten."""
    for k in range(len(u)):
        x = w = 1.0
        for t in range(k + 1, min(len(u), k + 1 + len(lags))):
            if ends[t - 1]:
                break
            w *= gamma * decay[t]
            x *= ratio[t]
            if not w * x >= FORGOTTEN:
                break
            read = min(x, cap[t])
            if recursive:
                x = read
            β = w * min(read, lags[t - k - 1])
            for j in range(u.shape[1]):
                out[t, j] += β * u[k, j]
