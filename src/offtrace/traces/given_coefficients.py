"""Coefficients that are simply given, one for each decision. It is not a registered rule: `targets_from_c` makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offtrace.traces.base import INFINITY, Math, Numbers, ThreeFactors, whole
from offtrace.traces.per_decision_families import VariableLambda
from offtrace.trajectory import first_index, spell


@dataclass(frozen=True, eq=False)
class GivenCoefficients(VariableLambda):
    """β_t = ∏ c_i; c stands in the place of λ, by step."""

    title: ClassVar = "given c"
    reads: ClassVar = ()
    recursive_condition: ClassVar = None

    def __post_init__(self) -> None:
        if self.horizon is not None:
            self._set("horizon", whole("horizon", self.horizon))
        if type(self.lam).__module__.startswith("jax."):
            return
        c = np.array(self.lam, np.float64)
        bad = (c < 0) | np.isinf(c)
        if not c.ndim or bad.any():
            what = f"{c[at := first_index(bad)]} at index {spell(at)}" if c.ndim else f"{self.lam!r}, one number"
            raise ValueError(f"c must hold a finite coefficient of at least 0 for each step, got {what}")
        self._set("lam", c)

    @property
    def advantage_lam(self) -> Numbers:
        """1: what stands in the place of λ is c."""
        return 1.0

    @staticmethod
    def factors(xp: Math, pi: Numbers, mu: Numbers, rho: Numbers, lam: Numbers) -> ThreeFactors:
        """The coefficients are the ratios."""
        return 1.0, lam, INFINITY
