"""Off-policy TD methods on state values that have names of their own. Each is a trace's eligibility vector, and ρ on δ:

    TD(λ)            z ← ρ_t (γλ z + x_t)                  w ← w + α δ_t z
    Tree Backup(λ)   z ← γ λ π_{t-1} z + x_t               w ← w + α ρ_t δ_t z
    V-trace(λ)       z ← γ λ min(c̄, ρ_{t-1}) z + x_t       w ← w + α min(ρ̄, ρ_t) δ_t z
    ABTD(ζ)          z ← γ ν_{t-1} π_{t-1} z + x_t         w ← w + α ρ_t δ_t z          ν = min(ψ(ζ), 1 / max(μ, π))

Any other trace makes one as well: `learners.method("rbis", lam=0.9)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from offtrace.learners.core.record_arrays import Floats
from offtrace.learners.methods.registry import register_method
from offtrace.learners.methods.trace_learner import StateTraceLearner
from offtrace.traces import ABQ, INFINITY, ImportanceSampling, TreeBackup, VTrace

_OFF_POLICY = "may diverge with features off-policy; with a table it converges to V^π"


@register_method
@dataclass(frozen=True)
class TD(StateTraceLearner):
    """Off-policy TD(λ) with importance sampling; on-policy it is TD(λ).

    >>> TD(lam=0.9).title
    'TD(0.9)'
    """

    of: ImportanceSampling = field(init=False, repr=False, compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    lam: float = 1.0

    name: ClassVar = "TD(λ)"
    aliases: ClassVar = ("td", "off-policy td", "td(lambda)")
    equation: ClassVar = "z = ρ(γλz + x);  w += α δ z"
    citation: ClassVar = (
        "Sutton (1988), Learning to predict by the methods of temporal differences; Precup, Sutton, Dasgupta (2001), "
        "Off-policy temporal-difference learning with function approximation, ICML"
    )
    proven: ClassVar = (
        "on-policy with linear features it converges (Tsitsiklis, Van Roy 1997); off-policy it may diverge"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", ImportanceSampling(lam=self.lam))

    @property
    def title(self) -> str:
        """The name, with its λ."""
        return f"TD({self.lam:g})"


@register_method
@dataclass(frozen=True)
class TreeBackupTD(StateTraceLearner):
    """Tree Backup(λ) on state values: coefficients λπ, so that only δ carries a ratio.

    >>> TreeBackupTD(lam=0.9).title
    'Tree Backup(0.9) on states'
    """

    of: TreeBackup = field(init=False, repr=False, compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    lam: float = 1.0

    name: ClassVar = "Tree Backup(λ) on states"
    aliases: ClassVar = ("tree backup", "tb")
    equation: ClassVar = "z = γλπ₋z + x;  w += α ρ δ z      (₋: of the step before)"
    citation: ClassVar = "Precup, Sutton, Singh (2000), Eligibility traces for off-policy policy evaluation, ICML"
    proven: ClassVar = _OFF_POLICY

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", TreeBackup(lam=self.lam))

    @property
    def title(self) -> str:
        """The name, with its λ."""
        return f"Tree Backup({self.lam:g}) on states"


@register_method
@dataclass(frozen=True)
class VTraceTD(StateTraceLearner):
    """V-trace(λ) online. Here ρ̄ is ∞ unless it is given, so that its fixed point is V^π.

    >>> VTraceTD(lam=0.9).trace
    VTrace(horizon=None, lam=0.9, rho_bar=inf, c_bar=1.0)
    """

    of: VTrace = field(init=False, repr=False, compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    lam: float = 1.0
    rho_bar: float = INFINITY
    c_bar: float = 1.0

    name: ClassVar = "V-trace(λ)"
    aliases: ClassVar = ("v-trace", "vtrace")
    equation: ClassVar = "z = γλ min(c̄, ρ₋)z + x;  w += α min(ρ̄, ρ) δ z"
    citation: ClassVar = "Espeholt et al. (2018), IMPALA, ICML, equation 1"
    proven: ClassVar = (
        "with a table it converges to V^π, or with a ρ̄ that acts to the value of π_ρ̄; may diverge with features"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", VTrace(lam=self.lam, rho_bar=self.rho_bar, c_bar=self.c_bar))

    @property
    def title(self) -> str:
        """The name, with its λ."""
        return f"V-trace({self.lam:g})"


@register_method
@dataclass(frozen=True)
class ABTD(StateTraceLearner):
    """ABTD(ζ): action-dependent bootstrapping, without ratios in its coefficients. ψ0 and ψ_max are the policies', if not given.

    >>> ABTD(zeta=0.5).title
    'ABTD(0.5)'
    """

    of: ABQ = field(init=False, repr=False, compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    zeta: float = 0.5
    psi0: float | None = None
    psi_max: float | None = None

    name: ClassVar = "ABTD(ζ)"
    aliases: ClassVar = ("abtd", "abtd(zeta)")
    equation: ClassVar = "z = γν₋π₋z + x;  w += α ρ δ z,  ν = min(ψ(ζ), 1/max(μ, π))"
    citation: ClassVar = "Mahmood, Yu, Sutton (2017), Multi-step off-policy learning without importance sampling ratios"
    proven: ClassVar = _OFF_POLICY

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", ABQ(self.zeta, self.psi0, self.psi_max))

    @property
    def title(self) -> str:
        """The name, with its ζ."""
        return f"ABTD({self.zeta:g})"

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> ABTD:
        """Return the method with ψ0 and ψ_max of these policies."""
        made = self.of.for_policies(target, behavior)
        return replace(self, psi0=made.psi0, psi_max=made.psi_max)
