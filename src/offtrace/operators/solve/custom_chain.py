"""Custom traces: the chain of (pair, carry) where it is finite, and Monte Carlo, said to be so, where it is not."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from offtrace.mdps.randomness import Seed
from offtrace.operators.setting import EPS, Setting
from offtrace.operators.solve import closed_form
from offtrace.operators.solve.merged_histories import Walk, keys, require_coefficients, successors, walk_of
from offtrace.operators.solve.monte_carlo import MonteCarlo

MOST_NODES = 40_000


def custom_solution(setting: Setting, deadline: float, seed: Seed) -> CarryChain | MonteCarlo:
    """The exact chain if it closes, or ends at a horizon, within `MOST_NODES`; else Monte Carlo."""
    walk = walk_of(setting)
    return _grow(setting, walk) or MonteCarlo(setting, walk, deadline, seed)


class CarryChain:
    """V(node) = β(node) M(pair) + γ Σ P_μ V(next node), on finitely many nodes (pair, carry)."""

    method = "exact chain"

    def __init__(
        self,
        setting: Setting,
        first: np.ndarray,
        pair: np.ndarray,
        β: np.ndarray,
        step: sparse.csr_array,
        depth: int | None,
    ) -> None:
        self.setting, self.first, self.pair, self.β, self.step, self.depth = setting, first, pair, β, step, depth
        self.certain, self.assumption, self.tail, self.largest = True, "", 0.0, 0.0

    def beyond(self, depth: int) -> CarryChain:
        """The same, cut at a lag beyond which β is at most the trace's `bound`, or taken to be no larger than it was before."""
        γ, declared, seen = self.setting.gamma, self.setting.declared_bound, float(self.β.max())
        self.certain, self.largest = declared is not None, seen if declared is None else declared
        self.tail = γ**depth / (1 - γ) * self.largest
        if declared is None:
            self.assumption = (
                f"beyond lag {depth} β is at most {seen:.6g}, the largest seen up to there; give the trace a bound"
            )
        else:
            self.assumption = (
                f"β is at most {declared:g}, as the trace declares; up to lag {depth} it is at most {seen:.6g}"
            )
        return self

    def times(self, M: np.ndarray, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """By sweeps V ← βM + γP_μV; what is left after one that changed V by ε is at most εγ/(1−γ). At γ = 1, by elimination."""
        γ, read = self.setting.gamma, self.β[:, None] * M[self.pair]
        V, left, sweeps = read, np.zeros(1), 1
        if self.depth is None and γ == 1:
            V, left = (a.reshape(read.shape)[self.first] for a in closed_form.solve(self.step, read))
        else:
            while self.depth is None or sweeps < self.depth:
                new = read + γ * (self.step @ V)
                change, V, sweeps = float(np.abs(new - V).max(initial=0.0)), new, sweeps + 1
                if change <= 1e-15 * float(V.max(initial=0.0)):
                    rest = np.inf if self.depth is None else self.depth - sweeps
                    left += change * min(rest, γ / (1 - γ) if γ < 1 else np.inf)
                    break
            V = V[self.first]
        slack = 1e-11 * V + 8 * sweeps * EPS * V  # merged values, and rounding
        tail = self.tail * M.max(axis=0, initial=0.0)
        return np.maximum(V - slack - (left if γ == 1 else 0.0), 0.0), V + slack + left + tail

    def mean_coefficients(self, n: int, gap: float, deadline: float) -> tuple[np.ndarray, np.ndarray]:
        """Powers of the chain's step on β; beyond a lag at which the chain was cut, from 0 to what β is taken to be at most."""
        lower, upper = np.zeros((self.setting.pairs, n)), np.zeros((self.setting.pairs, n))
        v = self.β
        known = n if self.depth is None else min(n, self.depth)
        for t in range(known):
            lower[:, t], upper[:, t] = v[self.first] * (1 - 1e-11), v[self.first] * (1 + 1e-11)
            v = self.step @ v
        upper[:, known:] = self.largest if self.tail else 0.0
        return lower, upper


def _grow(setting: Setting, walk: Walk) -> CarryChain | None:
    """All nodes that can be reached, level by level; None where they are too many."""
    γ, step = setting.gamma, setting.onto_pairs(setting.mu)
    step.eliminate_zeros()
    pairs = np.arange(setting.pairs)
    known: dict[tuple, int] = {}
    pair, β, edges = [pairs], [np.ones(len(pairs))], []
    ids = pairs.copy()
    here = {"start": pairs, "pair": pairs, "carry": walk.begin(len(pairs), pairs)}
    total, lag, horizon = len(pairs), 0, walk.bounded_by
    while len(ids):
        lag += 1
        largest = max(float(b.max(initial=0.0)) for b in β)
        if horizon is not None and lag >= horizon:
            break
        most = max(setting.declared_bound or largest, 1.0)
        if walk.lagged and horizon is None and γ < 1 and γ**lag / (1 - γ) * most < 1e-10:
            return _made(setting, pair, β, edges, total, lag).beyond(lag)
        which, to, p = successors(step, here["pair"])
        if total + len(to) > 8 * MOST_NODES:
            return None
        start = here["start"][which]
        carry, coefficient = walk.advance(here["carry"][which], lag, start, to)
        require_coefficients(coefficient, setting.trace.title, setting.declared_bound)
        key = keys(walk, lag, start, to, carry, coefficient)
        rows, one, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
        node = np.empty(len(rows), dtype=np.int64)
        fresh = np.zeros(len(rows), bool)
        for i, row in enumerate(map(tuple, rows)):
            at = known.get(row)
            fresh[i] = at is None
            if at is None:
                at = known[row] = total
                total += 1
            node[i] = at
        if total > MOST_NODES:
            return None
        edges.append((ids[which], node[inverse.ravel()], p))
        new = one[fresh]
        pair.append(to[new])
        β.append(coefficient[new])
        ids = node[fresh]
        here = {"start": start[new], "pair": to[new], "carry": carry[new]}
    return _made(setting, pair, β, edges, total, horizon)


def _made(setting: Setting, pair: list, β: list, edges: list, total: int, depth: int | None) -> CarryChain:
    source, target, p = (np.concatenate(part) for part in zip(*edges, strict=True)) if edges else ([], [], [])
    step = sparse.csr_array((p, (source, target)), shape=(total, total))
    return CarryChain(setting, np.arange(setting.pairs), np.concatenate(pair), np.concatenate(β), step, depth)
