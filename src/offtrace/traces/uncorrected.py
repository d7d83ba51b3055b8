"""Two returns that are not of the operator's form: they bootstrap from `next_value` alone, without the q of later steps.

Users compare with them, so they go through the same `targets`. They have no β: `coefficients` refuses them. All are

    G_k(n) = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}(n−1)],    G_k(1) = r_k + γ_k v_{k+1}

with a weight λ of what was seen, and the number n of steps after which they bootstrap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from offtrace.traces.base import Rule, UncorrectedReturn, number, whole
from offtrace.traces.pytrees import STATIC
from offtrace.traces.registry import register


@register
@dataclass(frozen=True)
class PengQ(Rule):
    """G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}]. Uncorrected: its fixed point is that of λμ + (1−λ)π, not π.

    >>> import numpy as np, offtrace as ot
    >>> row = {"reward": np.ones(3), "q": np.zeros(3), "next_value": np.zeros(3)}
    >>> ends = {"terminated": np.array([0, 0, 1]), "truncated": np.zeros(3, int)}
    >>> ot.targets(ot.PengQ(lam=1.0), **row, **ends, gamma=0.5).tolist()
    [1.75, 1.5, 1.0]
    """

    lam: float = 1.0

    title: ClassVar = "Peng's Q(λ)"
    formula: ClassVar = "G_k = r_k + γ_k [(1−λ) v_{k+1} + λ G_{k+1}]"
    uncorrected: ClassVar = True
    n = None
    aliases: ClassVar = ("peng", "peng q(lambda)", "peng's q(lambda)")
    citation: ClassVar = (
        "Peng, Williams (1994), Incremental multi-step Q-learning, ICML; "
        "Kozuno et al. (2021), Revisiting Peng's Q(λ) for modern reinforcement learning, ICML"
    )

    @property
    def uncorrected_return(self) -> UncorrectedReturn:
        return UncorrectedReturn(self.lam, None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lam", number("lam", self.lam, 0.0, 1.0))


@register
@dataclass(frozen=True)
class NStep(Rule):
    """G_k = Σ_{i<n} γ^i r_{k+i} + γ^n v_{k+n}, shorter where the episode ends. Uncorrected: biased unless π = μ.

    >>> import numpy as np, offtrace as ot
    >>> row = {"reward": np.ones(3), "q": np.zeros(3), "next_value": np.zeros(3)}
    >>> ends = {"terminated": np.array([0, 0, 1]), "truncated": np.zeros(3, int)}
    >>> ot.targets(ot.NStep(n=2), **row, **ends, gamma=0.5).tolist()
    [1.5, 1.5, 1.0]
    """

    n: int = field(default=3, metadata=STATIC)

    title: ClassVar = "n-step"
    formula: ClassVar = "Σ_{i<n} γ^i r_{k+i} + γ^n v_{k+n}, shorter where the episode ends"
    uncorrected: ClassVar = True
    aliases: ClassVar = ("nstep", "uncorrected n-step")
    citation: ClassVar = (
        "Sutton, Barto (2018), Reinforcement learning: an introduction, section 7.1; "
        "Hessel et al. (2018), Rainbow: combining improvements in deep reinforcement learning, AAAI, without a correction"
    )

    @property
    def uncorrected_return(self) -> UncorrectedReturn:
        return UncorrectedReturn(1.0, self.n)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole("n", self.n))
