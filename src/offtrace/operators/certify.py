"""A verdict on one trace, one MDP and two policies, before a single step of training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from numpy.typing import ArrayLike

from offtrace._shared import notebook
from offtrace.mdps.mdp import MDP
from offtrace.mdps.randomness import Seed
from offtrace.operators import proofs
from offtrace.operators.conditions import Condition, product_condition, recursive_condition
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Operator
from offtrace.operators.setting import named
from offtrace.operators.state_operator import StateOperator
from offtrace.traces import Trace


@dataclass(frozen=True)
class Certificate:
    """What is known of M on this MDP; prints as a table, in a notebook too."""

    verdict: str
    """ "contracts" if ‖Z‖ < 1 for certain, "expands" if ‖Z‖ > 1 for certain, else "undecided"."""
    trace: Trace
    contraction: Interval
    """‖Z‖_∞."""
    spectral_radius: Interval
    """Iterating M converges if and only if this is below 1; ‖Z‖ > 1 alone is not divergence."""
    product: Condition
    """β_t ≤ ∏ρ."""
    recursive: Condition
    """β_t ≤ β_{t-1}ρ_t."""
    gamma: float
    """The one-step rate to compare with (less where episodes end)."""
    one_step: Interval
    """‖Z‖ of the one-step operator on the same MDP."""
    method: str
    assumption: str
    tolerance: float
    certain: bool = True
    """Whether the intervals are guaranteed, given `assumption`; if not, the verdict is "undecided"."""
    verified: tuple[str, ...] = ()
    """What `check_proof` has verified in the file of the proof, if one was asked for."""

    @property
    def converges(self) -> bool | None:
        """Whether iterating M converges from every Q; None where the spectral radius does not decide it."""
        if not self.certain:
            return None
        return True if self.spectral_radius < 1 else False if self.spectral_radius > 1 else None

    @property
    def speedup(self) -> Interval | None:
        """log ‖Z‖ / log of the one-step rate: how many one-step applications one of M is worth, at worst.

        None where the one-step rate is 0 or at least 1, and there is nothing to compare with.
        """
        if not 0 < self.one_step.midpoint < 1:
            return None

        def log(x: float) -> float:
            return math.log(x) if x > 0 else -math.inf

        base = log(self.one_step.midpoint)
        return Interval(log(self.contraction.upper) / base, log(self.contraction.lower) / base)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("contraction ‖Z‖", f"{self.contraction}   (one-step {self.one_step}{self._against()})"),
            ("spectral radius", f"{self.spectral_radius}{self._iteration()}"),
            (self.product.name, str(self.product)),
            (self.recursive.name, str(self.recursive)),
            ("method", self.method),
        ]
        if self.assumption:
            rows.append(("given that" if self.certain else "not a proof", self.assumption))
        elif self.contraction.width > self.tolerance:
            rows.append(
                ("tolerance", f"{self.tolerance:g} was not reached: the interval is {self.contraction.width:.1g} wide")
            )
        return rows

    def _against(self) -> str:
        if self.contraction < self.one_step:
            return ": faster"
        return ": slower" if self.contraction > self.one_step else ""

    def _iteration(self) -> str:
        return {True: "   (iterating M converges)", False: "   (iterating M diverges)", None: ""}[self.converges]

    def __str__(self) -> str:
        rows = self._rows()
        wide = max(len(name) for name, _ in rows)
        return "\n".join(
            [f"{named(self.trace)}: {self.verdict}", *(f"  {name:<{wide}}  {value}" for name, value in rows)]
            + [f"  verified: {sentence}" for sentence in self.verified]
        )

    def _repr_html_(self) -> str:
        return notebook.table(f"{named(self.trace)}: {self.verdict}", self._rows())


def certify(
    trace: Trace,
    mdp: MDP,
    target: ArrayLike,
    behavior: ArrayLike,
    tolerance: float = 1e-6,
    budget: float = 60.0,
    seed: Seed = 0,
    *,
    values: Literal["action", "state"] = "action",
    proof: str | Path | None = None,
) -> Certificate:
    """Compute ‖Z‖ and the spectral radius, check the conditions of the theory, and say what follows.

    `values="state"` is about the operator on state values (`StateOperator`): β is its b there, and ρ what δ carries.

    `proof` is a file to which the claims and their witnesses are written as exact rationals; `offtrace check FILE`, a program of
    its own, verifies it. Intervals are then those that it accepts. `Unprovable` says why there is no proof of that form.

    >>> import offtrace as ot
    >>> from offtrace.mdps import alternating
    >>> mdp, pi, mu = alternating()
    >>> print(certify(ot.TruncatedIS(bound=(0, float("inf"), 0)), mdp, pi, mu))  # doctest: +ELLIPSIS
    Truncated IS(bound=(0.0, inf, 0.0), lam=1.0): expands
      contraction ‖Z‖    2.439...   (one-step 0.9...: slower)
      spectral radius    2.439...   (iterating M diverges)
      β_t ≤ ∏ρ           holds
      β_t ≤ β_{t-1} ρ_t  violated on (1, 0) → (0, 0) → (1, 0): β_2 = 2.25 > 0
      method             exact chain
    """
    if values not in ("action", "state"):
        raise ValueError(f'values must be "action" or "state", got {values!r}')
    kind = StateOperator if values == "state" else Operator
    op = kind(trace, mdp, target=target, behavior=behavior, tolerance=tolerance, budget=budget, seed=seed)
    if proof is not None:
        _ = proofs.Proposer(op.trace, mdp, target, behavior)  # raises where there is none, before anything is computed
    contraction = op.contraction
    radius, recursive, verified = op.spectral_radius, recursive_condition(op.histories), ()
    if proof is not None:
        contraction, radius, verified = _proven(proof, op, target, behavior, recursive)
    verdict = "contracts" if contraction < 1 else "expands" if contraction > 1 else "undecided"
    return Certificate(
        verdict if op.certain else "undecided",
        trace,
        contraction,
        radius,
        product_condition(op.histories),
        recursive,
        op.setting.gamma,
        op.one_step,
        op.method,
        op.assumption,
        tolerance,
        op.certain,
        verified,
    )


def _proven(
    path: str | Path, op: Operator | StateOperator, target: ArrayLike, behavior: ArrayLike, recursive: Condition
) -> tuple[Interval, Interval, tuple[str, ...]]:
    """Write the proof; ‖Z‖ and the spectral radius as far as it shows them, and what has been verified."""
    if isinstance(op, StateOperator):
        raise proofs.Unprovable("there are proofs for the operator on action values only")
    history = None
    if recursive.violation is not None:
        history = [s * op.setting.A + a for s, a in recursive.violation.pairs]
    document = proofs.proof(op.trace, op.mdp, target, behavior, history=history)
    verified = proofs.write(path, document)
    known = {claim["claim"]: float(Fraction(claim["number"])) for claim in document["claims"] if "number" in claim}
    norm, radius = (
        Interval(max(0.0, known.get(f"{what} at least", 0.0)), known.get(f"{what} at most", math.inf))
        for what in ("norm", "radius")
    )
    return norm, radius, verified
