"""Which of the two conditions of the theory hold on an MDP, for every history that can happen on it.

    product condition     β_t ≤ ρ_1 ··· ρ_t          (paper, Theorem 1: it does not suffice)
    recursive condition   β_t ≤ β_{t-1} ρ_t          (Daley et al. 2023: it does: Z ≥ 0, and ‖Z‖ ≤ γ)

decay·ratio ≤ ρ proves the first, and the second where no cap acts at read-out. Otherwise histories are grown, shortest first and
merged where their futures agree, until one violates the condition, none are left, or there are too many to go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offtrace.mdps.sparse_matrices import row_lengths
from offtrace.operators.setting import Setting
from offtrace.operators.solve.merged_histories import keys, successors, walk_of

MOST, WIDEST, LONGEST = 60_000, 4_000, 200
SLACK = 1e-9


@dataclass(frozen=True)
class Violation:
    """A history on which a condition fails at its last step."""

    pairs: tuple[tuple[int, int], ...]
    """(s_0, a_0), …, (s_t, a_t)."""
    beta: float
    """β_t."""
    bound: float
    """What the condition allows it to be."""

    def __str__(self) -> str:
        shown = self.pairs if len(self.pairs) <= 8 else (*self.pairs[:4], "…", *self.pairs[-3:])
        path = " → ".join(p if isinstance(p, str) else f"({p[0]}, {p[1]})" for p in shown)
        return f"{path}: β_{len(self.pairs) - 1} = {self.beta:.6g} > {self.bound:.6g}"


@dataclass(frozen=True)
class Condition:
    """Whether one condition holds on this MDP."""

    name: str
    holds: bool | None
    """Whether it holds. None: no violation among the histories that were tried, and no proof."""
    violation: Violation | None = None
    tried: str = ""

    def __str__(self) -> str:
        if self.holds is None:
            return f"not violated {self.tried}; not proved"
        return "holds" if self.holds else f"violated on {self.violation}"


def product_condition(setting: Setting) -> Condition:
    """Decide β_t ≤ ∏ρ for every history: by the normal form where it is plain from that, else by growing histories."""
    name = "β_t ≤ ∏ρ"
    if setting.one_step_condition or setting.horizon == 1:
        return Condition(name, True)
    return _search(setting, name, recursive=False)


def recursive_condition(setting: Setting) -> Condition:
    """Decide β_t ≤ β_{t-1}ρ_t for every history: by the normal form where it is plain from that, else by growing histories."""
    name = "β_t ≤ β_{t-1} ρ_t"
    if setting.recursive_condition:
        return Condition(name, True)
    return _search(setting, name, recursive=True)


def _search(setting: Setting, name: str, recursive: bool) -> Condition:
    walk, step = walk_of(setting), setting.onto_pairs(setting.mu)
    step.eliminate_zeros()
    ρ = setting.target_rho.ravel()
    pair = np.flatnonzero(row_lengths(step) > 0)
    start, carry = pair, walk.begin(len(pair), pair)
    β, product = np.ones(len(pair)), np.ones(len(pair))
    levels: list[tuple[np.ndarray, np.ndarray]] = [(pair, np.full(len(pair), -1))]
    known: set[tuple[float, ...]] = set()
    tried, whole, lag = 0, True, 0
    while len(pair):
        lag += 1
        if walk.bounded_by is not None and lag >= walk.bounded_by:
            break  # from here on β = 0
        which, to, _ = successors(step, pair)
        carry, new = walk.advance(carry[which], lag, start[which], to)
        start, product = start[which], product[which] * ρ[to]
        allowed = β[which] * ρ[to] if recursive else product
        tried += len(to)
        over = new > allowed * (1 + SLACK) + 1e-300
        if over.any():
            worst = int(np.argmax(np.where(over, new - allowed, -np.inf)))
            levels.append((to[[worst]], which[[worst]]))
            pairs = setting.path([int(z) for z in _path(levels)])
            return Condition(name, False, Violation(pairs, float(new[worst]), float(allowed[worst])))
        alive, future = np.ones(len(to), bool), [carry, new if recursive else product]
        if setting.normal:
            alive = (carry[:, 0] > 0) & (carry[:, 1] > 0)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                # Decays cancel from β_t / β_{t-1}; for the product only what is left of them against ∏ρ matters.
                future = [carry[:, 0], np.full(len(to), float(lag == 1)) if recursive else carry[:, 1] / product]
        keep = _unseen(known, keys(walk, lag, start, to, *future), alive)
        if len(keep) > WIDEST:
            keep, whole = keep[np.argsort(-new[keep], kind="stable")[:WIDEST]], False
        levels.append((to[keep], which[keep]))
        pair, start, carry, β, product = to[keep], start[keep], carry[keep], new[keep], product[keep]
        if tried > MOST * 10 or len(known) > MOST or lag >= LONGEST:
            whole = False
            break
    return Condition(name, True if whole else None, tried=f"by {tried} histories of up to {lag} steps")


def _unseen(known: set[tuple[float, ...]], key: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """One of each group of histories with the same future, of those that have one and have not been met before."""
    index = np.flatnonzero(alive)
    if not len(index):
        return index
    rows, one = np.unique(key[index], axis=0, return_index=True)
    fresh: list[int] = []
    for numbers, i in zip(rows, one, strict=True):
        row: tuple[float, ...] = tuple(numbers)
        if row not in known:
            known.add(row)
            fresh.append(i)
    return index[np.array(fresh, dtype=np.int64)]


def _path(levels: list[tuple[np.ndarray, np.ndarray]]) -> list[int]:
    """The pairs from the start to the one node of the last level."""
    path: list[int] = []
    at = 0
    for pair, parent in reversed(levels):
        path.append(int(pair[at]))
        at = int(parent[at])
    return path[::-1]
