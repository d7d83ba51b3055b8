"""The paper's Algorithm 1 (Daley and Amato 2021) with any trace, and with π in δ:

    z_t = Σ_k γ^{t-k} β_{k:t} φ_k          θ ← θ + α δ_t z_t

and the same on state values, where the start's own action acts and δ carries ρ̄_t (see `state_targets`):

    z_t = Σ_k γ^{t-k} b_{k:t-1} φ_k        θ ← θ + α ρ̄_t δ_t z_t

These are semi-gradient methods: with features, and off-policy, their weights may diverge. Some have names of their own, and
state their `equation`. For Sarsa a' is the next action taken, chosen before θ changes; where an episode is cut by a limit, a' is
drawn all the same.

The *uncorrected* returns bootstrap from v(s') = Σ_a π(a|s') q(s', a) alone, without the q of later steps:

    G_k = r_k + γ [(1−λ) v_{k+1} + λ G_{k+1}]

    G_k − q_k = δ_k + Σ_{t>k} (γλ)^{t-k} δ'_t,      δ_t = r_t + γ v_{t+1} − q_t,      δ'_t = r_t + γ v_{t+1} − v_t

so with z_t = γλ z_{t-1} + φ_t, of which a start leaves after n steps, where there is such an n:

    θ ← θ + α [δ_t φ_t + δ'_t (z_t − φ_t)]

Each v is taken once, when its state is reached. These are Peng's Q(λ) (Peng and Williams 1994) and the uncorrected n-step return,
the oldest off-policy methods that are still in use. Their fixed point is not Q^π unless π = μ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from offtrace.learners.arrays import Floats
from offtrace.learners.methods.base import LambdaMethod, Method, RuleMethod, register_method
from offtrace.traces import ABQ, INFINITY, QLambda, Rule, Trace, TreeBackup, VTrace
from offtrace.traces.trace_argument import eligibility_of


@dataclass(frozen=True)
class TraceLearner(Method):
    """What a trace by itself means, where a method is asked for.

    >>> import offtrace as ot
    >>> TraceLearner(ot.Retrace(lam=0.9)).trace
    Retrace(horizon=None, lam=0.9)
    """

    of: Trace

    in_loop: ClassVar[bool] = True
    name: ClassVar[str] = "Algorithm 1"
    equation: ClassVar[str] = "z = γβ-rule(z) + φ;  θ += α δ z"
    citation: ClassVar[str] = (
        "Daley, Amato (2021), Improving the efficiency of off-policy RL by accounting for past decisions, algorithm 1"
    )
    proven: ClassVar[str] = "what the trace's operator converges to, with a table; may diverge with features"
    needs: ClassVar[str] = "π, and μ where the trace reads it"

    @property
    def title(self) -> str:
        """The name of the trace."""
        return self.of.title

    @property
    def trace(self) -> Trace:
        """The trace whose eligibility vector is used."""
        return self.of

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> Self:
        """Return the method with the trace for these policies."""
        of = self.of.for_policies(target, behavior)
        return self if of is self.of else replace(self, of=of)


@dataclass(frozen=True)
class StateTraceLearner(TraceLearner):
    """Off-policy TD on state values with any trace's eligibility vector.

    >>> import offtrace as ot
    >>> StateTraceLearner(ot.RBIS(lam=0.9)).values
    'state'
    """

    values: ClassVar = "state"
    name: ClassVar[str] = "TD with a trace"
    equation: ClassVar[str] = "z = γb-rule(z) + x;  w += α ρ̄ δ z"
    needs: ClassVar[str] = "π and μ"


@dataclass(frozen=True)
class UncorrectedLearner(Method):
    """What `PengQ` or `NStep` by itself means, where a method is asked for.

    >>> import offtrace as ot
    >>> UncorrectedLearner(ot.NStep(n=3)).trace  # whose eligibility vector it uses
    QLambda(horizon=3, lam=1.0)
    """

    of: Rule

    in_loop: ClassVar[bool] = True
    uncorrected: ClassVar[bool] = True
    name: ClassVar[str] = "Uncorrected return"
    equation: ClassVar[str] = "z = γλz + φ;  θ += α[δφ + δ'(z − φ)],  δ' = r + γv' − v"
    proven: ClassVar[str] = "Peng's Q(λ) converges to the value of λμ + (1−λ)π (Kozuno et al. 2021)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of.uncorrected_return is None:
            raise TypeError(f"{self.of.title} is a trace, not an uncorrected return: use TraceLearner")

    @property
    def title(self) -> str:
        """The name of the return."""
        return self.of.title

    @property
    def trace(self) -> Trace:
        """The trace whose eligibility vector is used: it has no ratios."""
        return eligibility_of(self.of)


@register_method
@dataclass(frozen=True)
class Sarsa(LambdaMethod):
    """Sarsa(λ), with accumulating traces. It learns about the policy that acts."""

    in_loop: ClassVar = True
    sampled: ClassVar = True
    on_policy: ClassVar = True
    rule: ClassVar = QLambda
    name: ClassVar = "Sarsa(λ)"
    aliases: ClassVar = ("sarsa", "sarsa(lambda)")
    equation: ClassVar = "δ = r + γq(s', a') − q;  z = γλz + φ;  θ += α δ z"
    citation: ClassVar = (
        "Rummery, Niranjan (1994), On-line Q-learning using connectionist systems; Sutton, Barto (2018), section 12.7"
    )
    proven: ClassVar = "with a table and λ = 0, to Q* with a policy that becomes greedy (Singh et al. 2000)"
    needs: ClassVar = "the next action: it is on-policy"


@register_method
@dataclass(frozen=True)
class ExpectedSarsa(LambdaMethod):
    """Expected Sarsa(λ): off-policy by ratios in its trace, which is that of importance sampling.

    >>> ExpectedSarsa(0.9).trace
    ImportanceSampling(horizon=None, lam=0.9)
    """

    in_loop: ClassVar = True
    name: ClassVar = "Expected Sarsa(λ)"
    aliases: ClassVar = ("expected sarsa", "expected sarsa(lambda)")
    equation: ClassVar = "δ = r + γΣπ(a|s')q(s', a) − q;  z = γλρz + φ;  θ += α δ z"
    citation: ClassVar = (
        "van Seijen et al. (2009), A theoretical and empirical analysis of Expected Sarsa; Sutton, Barto (2018), "
        "equation 12.29"
    )
    proven: ClassVar = "with a table it converges to Q^π; may diverge with features off-policy"
    needs: ClassVar = "π and μ"


_OFF_POLICY = "may diverge with features off-policy; with a table it converges to V^π"


@register_method
@dataclass(frozen=True)
class TD(LambdaMethod):
    """Off-policy TD(λ) with importance sampling; on-policy it is TD(λ)."""

    values: ClassVar = "state"
    in_loop: ClassVar = True
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
    needs: ClassVar = "π and μ"


@register_method
@dataclass(frozen=True)
class TreeBackupTD(TD):
    """Tree Backup(λ) on state values: coefficients λπ, so that only δ carries a ratio."""

    rule: ClassVar = TreeBackup
    name: ClassVar = "Tree Backup(λ) on states"
    aliases: ClassVar = ("tree backup", "tb")
    equation: ClassVar = "z = γλπ₋z + x;  w += α ρ δ z      (₋: of the step before)"
    citation: ClassVar = "Precup, Sutton, Singh (2000), Eligibility traces for off-policy policy evaluation, ICML"
    proven: ClassVar = _OFF_POLICY


@register_method
@dataclass(frozen=True)
class VTraceTD(TD):
    """V-trace(λ) online. Here ρ̄ is ∞ unless it is given, so that its fixed point is V^π.

    >>> VTraceTD(lam=0.9).trace
    VTrace(horizon=None, lam=0.9, rho_bar=inf, c_bar=1.0)
    """

    rho_bar: float = INFINITY
    c_bar: float = 1.0

    rule: ClassVar = VTrace
    name: ClassVar = "V-trace(λ)"
    aliases: ClassVar = ("v-trace", "vtrace")
    equation: ClassVar = "z = γλ min(c̄, ρ₋)z + x;  w += α min(ρ̄, ρ) δ z"
    citation: ClassVar = "Espeholt et al. (2018), IMPALA, ICML, equation 1"
    proven: ClassVar = (
        "with a table it converges to V^π, or with a ρ̄ that acts to the value of π_ρ̄; may diverge with features"
    )


@register_method
@dataclass(frozen=True)
class ABTD(RuleMethod):
    """ABTD(ζ): action-dependent bootstrapping, without ratios in its coefficients. ψ0 and ψ_max are those of the policies."""

    zeta: float = 0.5
    psi0: float | None = None
    psi_max: float | None = None

    values: ClassVar = "state"
    in_loop: ClassVar = True
    rule: ClassVar = ABQ
    name: ClassVar = "ABTD(ζ)"
    aliases: ClassVar = ("abtd", "abtd(zeta)")
    equation: ClassVar = "z = γν₋π₋z + x;  w += α ρ δ z,  ν = min(ψ(ζ), 1/max(μ, π))"
    citation: ClassVar = "Mahmood, Yu, Sutton (2017), Multi-step off-policy learning without importance sampling ratios"
    proven: ClassVar = _OFF_POLICY
    needs: ClassVar = "π and μ"

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> ABTD:
        """Return the method with ψ0 and ψ_max of these policies."""
        of = ABQ(self.zeta, self.psi0, self.psi_max).for_policies(target, behavior)
        return replace(self, psi0=of.psi0, psi_max=of.psi_max)
