"""What the claims share: how one is declared, random MDPs to try it on, the histories of an MDP, the traces of the examples.

A claim is a function that returns (refuted, numbers, decided_by). It may look for a counterexample or try a battery of
random MDPs, and it never returns a number that it has not just computed. C = Σ γ^t K_t and Z = I − C(I − γP_π), as everywhere.
Where a counterexample is shown, both ‖Z‖ and the spectral radius are: the first says whether M contracts, the second whether
iterating it converges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import offtrace.traces as ot
from offtrace.mdps import MDP, garnet, random_policy
from offtrace.operators.operator import Operator
from offtrace.operators.proofs import Proof
from offtrace.returns.by_definition import beta


class Found(NamedTuple):
    """What a claim comes back with."""

    refuted: bool
    numbers: str
    decided_by: str
    proofs: tuple[Callable[[], Proof], ...] = ()
    """What makes proofs of what decides it, where there are any of that form (`operators.proofs`)."""


class Claim(NamedTuple):
    """A statement, where it stands, and the function that decides it."""

    statement: str
    where: str
    decide: Callable[[], Found]


def claim(statement: str, where: str) -> Callable[[Callable[[], Found]], Claim]:
    """Make a claim of the function that decides it."""
    return lambda decide: Claim(statement, where, decide)


def claims_of(module: ModuleType) -> list[Claim]:
    """All claims of a module, in the order in which they are defined."""
    return [value for value in vars(module).values() if isinstance(value, Claim)]


def recursive() -> list[ot.Trace]:
    """Traces of all listed rules for which β_t ≤ β_{t-1}ρ_t is shown."""
    shown = (rule for rule in ot.rules() if issubclass(rule, ot.Trace) and rule.recursive_condition)
    return [trace for rule in shown for trace in rule.typical()]


SECOND_LAG = ot.TruncatedIS(bound=(0.0, np.inf, 0.0))
"""β = (1, 0, ρ₁ρ₂, 0, …)."""

ALL_BUT_SECOND = ot.TruncatedIS(bound=(np.inf, 0.0, np.inf, 0.0))
"""β = (1, ρ₁, 0, ρ₁ρ₂ρ₃, 0, …)."""


def _first_action(xp: Any, carry: Any, now: ot.Step) -> tuple[Any, Any]:
    return carry, xp.where(now.pair == 0, 1.0, 0.0)


FIRST_ACTION = ot.StepTrace(_first_action, reads=("pair",), title="β_t = 1 after action 0, else 0")
"""β_t = 1 after the first action of the only state, else 0 (Daley et al. 2023, Counterexample 5.8)."""


@cache
def battery(count: int = 12) -> list[tuple[MDP, np.ndarray, np.ndarray]]:
    """Random MDPs with policies, from nearly deterministic to nearly uniform ones; always the same."""
    rng = np.random.default_rng(2021)
    problems = []
    for i in range(count):
        mdp = garnet(3, 2, 1 + i % 3, seed=i, gamma=(0.5, 0.9, 0.97)[i % 3])
        spread = (0.3, 1.0, 3.0)[i // 3 % 3]
        problems.append((mdp, random_policy(mdp, rng, spread), 0.98 * random_policy(mdp, rng, spread) + 0.01))
    return problems


@cache
def on_battery(i: int, trace: ot.Trace) -> Operator:
    """A trace on the i-th MDP of the battery. Kept while an audit runs, since several claims ask for the same."""
    mdp, pi, mu = battery()[i]
    return Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-4)


def operators(*traces: ot.Trace) -> Iterator[Operator]:
    """Each trace on each MDP of the battery."""
    return (on_battery(i, trace) for i, trace in product(range(len(battery())), traces))


def sizes(op: Operator) -> str:
    """Norm and radius, to five digits."""
    return f"‖Z‖ = {op.contraction.midpoint:.5g}, spectral radius {op.spectral_radius.midpoint:.5g}"


def sizes_of(Z: np.ndarray) -> tuple[float, float]:
    """Norm and radius of a matrix."""
    return float(np.abs(Z).sum(axis=1).max()), float(np.abs(np.linalg.eigvals(Z)).max())


def histories(mdp: MDP, mu: np.ndarray, start: int, steps: int) -> list[tuple[list[int], float]]:
    """All histories of `steps` steps from a pair under μ, as pairs, each with its probability."""
    step, paths = mdp.P_pi(mu).toarray(), [([start], 1.0)]
    for _ in range(steps):
        paths = [([*f, int(y)], c * step[f[-1], y]) for f, c in paths for y in np.flatnonzero(step[f[-1]])]
    return paths


def coefficient(trace: ot.Trace, pi: np.ndarray, mu: np.ndarray, past: list[int]) -> float:
    """β of a history of pairs, by its definition."""
    π, μ = pi.ravel()[past], mu.ravel()[past]
    return beta(trace, π.tolist(), μ.tolist(), (π / μ).tolist(), past)


def enumerated(mdp: MDP, trace: ot.Trace, pi: np.ndarray, mu: np.ndarray, lags: int) -> np.ndarray:
    """K_t(x, y) = E_μ[β_t 1{(s_t,a_t) = y} | x] for t < lags, [lags, S·A, S·A]: all histories, β by its definition."""
    K = np.zeros((lags, mdp.pairs, mdp.pairs))
    for t, x in product(range(lags), range(mdp.pairs)):
        for past, chance in histories(mdp, mu, x, t):
            K[t, x, past[-1]] += chance * coefficient(trace, pi, mu, past)
    return K


def summed(mdp: MDP, K: np.ndarray) -> np.ndarray:
    """C = Σ γ^t K_t."""
    return np.tensordot(mdp.gamma ** np.arange(len(K)), K, 1)
