"""Gradient temporal differences on state values: stable off-policy with linear features, by a second set of weights v.

With x, x' the features of s and s' (x' = 0 at an end), z = ρ(γλz₋ + x), δ = r + γ w·x' − w·x, and α_v = η α:

    GTD(λ) = TDC(λ)   w ← w + α [δz − γ(1−λ)(z·v) x']             v ← v + α_v [δz − (x·v) x]
    GTD2(λ)           w ← w + α [(x·v) x − γ(1−λ)(z·v) x']        v ← v + α_v [δz − (x·v) x]
    PGTD2(λ)          a half-step of GTD2 gives (w½, v½); a full one from the old (w, v) uses δ and v of the half-step
    TDRC(λ)           as GTD(λ), with − α_v κ v in the update of v
    HTD(λ)            z_b = γλz_b + x,   w ← w + α [δz + (x − γx')((z − z_b)·v)],   v ← v + α_v [δz − (x − γx')(z_b·v)]

w and v are updated from their old values; at an episode's end z and z_b start again, and v is kept.

*With any trace*: e_t = Σ_k γ^{t-k} b_{k:t-1} x_k, z_t = ρ_t e_t, and e_on = γ times what remains of e_t after the action a_t, so
that e_{t+1} = e_on + x_{t+1}. The gradient of the projected Bellman error needs E[x_t (e_t − x_t)ᵀ] = E[x_{t+1} e_onᵀ], and so
γ(1−λ)(z·v) becomes γ(z·v) − (e_on·v), which is the same for importance sampling, where e_on = γλρ_t e_t. Since E_μ[ρ_t | s_t] = 1
is used too, ρ̄ of V-trace must not act. z_b of HTD has the trace's λ; on-policy, where z = z_b, HTD is TD(λ).

Action values, with φ_t the features of (s_t, a_t), φ̄_{t+1} = Σ_a π(a|s_{t+1}) φ(s_{t+1}, a), 0 at an end, and α_w = η α:

    GQ(λ) (Maei and Sutton 2010), one λ, one γ, interest 1:      e_t = φ_t + γ λ ρ_t e_{t-1},   δ_t = r_t + γ θ·φ̄_{t+1} − θ·φ_t
    θ ← θ + α [δ_t e_t − γ (1 − λ) (w·e_t) φ̄_{t+1}]              w ← w + α_w [δ_t e_t − (w·φ_t) φ_t]

    With a per-decision trace of coefficients c(s, a) (for ABQ(ζ): Mahmood, Yu and Sutton 2017):      e_t = φ_t + γ c_t e_{t-1}
    θ ← θ + α [δ_t e_t − γ (w·e_t) (φ̄_{t+1} − φ̃_{t+1})],         φ̃_{t+1} = Σ_a μ(a|s_{t+1}) c(s_{t+1}, a) φ(s_{t+1}, a)

The traces of this library are semi-gradient methods: with features, and off-policy, their weights may diverge where these do
not. That is so for small step sizes, α below α_w; large ones add noise that can make these diverge too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from offtrace.learners.arrays import Floats, inline_fma
from offtrace.learners.methods.base import (
    LambdaMethod,
    Method,
    Store,
    Transition,
    Vectors,
    add,
    decay,
    dot,
    inner,
    number,
    register_method,
)
from offtrace.learners.policies import checked
from offtrace.traces import ABQ, ImportanceSampling, Trace


@dataclass(frozen=True)
class GradientTD(Method):
    """What these methods have in common: a λ or a trace, and η."""

    lam: float | None = None
    """λ of importance sampling, 1 if it is left out; or give `trace`."""
    eta: float = number(1.0, above=True)
    """α_v = η α."""
    trace: Trace | None = None  # pyright: ignore[reportIncompatibleMethodOverride,reportAssignmentType]
    """Any other trace, instead of importance sampling."""

    values: ClassVar = "state"
    further: ClassVar[tuple[str, ...]] = ("v",)
    step_reads: ClassVar[tuple[str, ...]] = ("eta",)
    needs: ClassVar[str] = "π, μ and a second step size"
    _by_lam: ClassVar[bool] = True  # of an instance: whether it was created by λ, not by a trace

    def __post_init__(self) -> None:
        super().__post_init__()
        trace = self.trace
        object.__setattr__(self, "_by_lam", trace is None)
        if trace is None:
            trace = ImportanceSampling(lam=1.0 if self.lam is None else self.lam)
        elif not isinstance(trace, Trace):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"trace must be an offtrace trace such as offtrace.RBIS(lam=0.9), got {trace!r}")
        elif self.lam is not None and self.lam != getattr(trace, "lam", None):
            raise TypeError(f"give lam or a trace, which has its own, got lam={self.lam!r} and trace={trace!r}")
        if np.min(trace.delta_bound) < np.inf:
            raise ValueError(
                f"{trace.title} clips the ratio of δ, for which there is no gradient here: use rho_bar=inf"
            )
        object.__setattr__(self, "trace", trace)
        object.__setattr__(self, "lam", getattr(trace, "lam", None))

    @property
    def title(self) -> str:
        """The name, with its λ, or with its trace."""
        assert self.trace is not None
        return super().title if self._by_lam else f"{self.name.removesuffix('(λ)')} with {self.trace.title}"

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> Self:
        """Return the method with the trace for these policies."""
        assert self.trace is not None
        trace = self.trace.for_policies(target, behavior)
        return self if trace is self.trace else replace(self, trace=trace)


@register_method
@dataclass(frozen=True)
class GTD(GradientTD):
    """GTD(λ), which is TDC(λ): δz with a correction that makes w follow the gradient of the projected Bellman error.

    >>> GTD(0.9, eta=0.5).title
    'GTD(0.9)'
    """

    kappa: ClassVar[float] = 0.0
    step_reads: ClassVar = ("eta", "kappa")
    name: ClassVar = "GTD(λ)"
    aliases: ClassVar = ("gtd", "tdc", "tdc(λ)", "gtd(lambda)")
    equation: ClassVar = "w += α[δz − γ(1−λ)(z·v)x'];  v += α_v[δz − (x·v)x]"
    citation: ClassVar = (
        "Sutton et al. (2009), Fast gradient-descent methods for TD learning with linear function approximation, ICML; "
        "Maei (2011), Gradient temporal-difference learning algorithms, PhD thesis, Alberta"
    )
    proven: ClassVar = "converges with linear features, off-policy too, where α/α_v → 0"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of TDRC, which are those of GTD where κ = 0."""
        v, α_v, κ = m.further[0], m.numbers[0] * t.alpha, m.numbers[1]
        x_v, correction = dot(v, x.φ), t.gamma * t.ratio * dot(v, x.e) - dot(v, x.on)
        add(m.θ, t.alpha * t.delta * t.ratio, x.e)
        add(m.θ, -t.alpha * correction, x.φ_next)
        if κ > 0.0:
            for i in range(len(v)):
                v[i] -= α_v * κ * v[i]
        add(v, α_v * t.delta * t.ratio, x.e)
        add(v, -α_v * x_v, x.φ)


@inline_fma
def _gtd2_step(t: Transition, m: Store, x: Vectors) -> tuple[float, float]:
    """One step of GTD2. Returns x·v and γ(1−λ)(z·v), with v before the step."""
    v, α_v = m.further[0], m.numbers[0] * t.alpha
    x_v, correction = dot(v, x.φ), t.gamma * t.ratio * dot(v, x.e) - dot(v, x.on)
    add(m.θ, t.alpha * x_v, x.φ)
    add(m.θ, -t.alpha * correction, x.φ_next)
    add(v, α_v * t.delta * t.ratio, x.e)
    add(v, -α_v * x_v, x.φ)
    return x_v, correction


@register_method
@dataclass(frozen=True)
class GTD2(GradientTD):
    """GTD2(λ): w follows the gradient of the projected Bellman error as v estimates it.

    >>> GTD2(0.9, eta=0.5).title
    'GTD2(0.9)'
    """

    name: ClassVar = "GTD2(λ)"
    aliases: ClassVar = ("gtd2", "gtd2(lambda)")
    equation: ClassVar = "w += α[(x·v)x − γ(1−λ)(z·v)x'];  v += α_v[δz − (x·v)x]"
    citation: ClassVar = (
        "Sutton et al. (2009), Fast gradient-descent methods for TD learning with linear function approximation, ICML"
    )
    proven: ClassVar = "converges with linear features, off-policy too"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        _gtd2_step(t, m, x)


@register_method
@dataclass(frozen=True)
class PGTD2(GradientTD):
    """Proximal GTD2(λ), by mirror-prox: an extragradient step of the saddle-point problem that GTD2 solves.

    >>> PGTD2(0.9, eta=0.5).title
    'PGTD2(0.9)'
    """

    name: ClassVar = "PGTD2(λ)"
    aliases: ClassVar = ("pgtd2", "proximal gtd2", "gtd2-mp", "pgtd2(lambda)")
    equation: ClassVar = "GTD2 to (w½, v½); then GTD2 from the old (w, v), with δ and v of the half-step"
    citation: ClassVar = (
        "Liu, Liu, Ghavamzadeh, Mahadevan, Petrik (2015), Finite-sample analysis of proximal gradient TD algorithms, "
        "UAI"
    )
    proven: ClassVar = "converges with linear features, off-policy too, with a finite-sample bound"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The half-step is taken, and then what the full one differs from it by."""
        v, α_v = m.further[0], m.numbers[0] * t.alpha
        x_v, correction = _gtd2_step(t, m, x)
        more = dot(v, x.φ) - x_v
        more_correction = t.gamma * t.ratio * dot(v, x.e) - dot(v, x.on) - correction
        more_delta = t.reward + t.gamma * dot(m.θ, x.φ_next) - dot(m.θ, x.φ) - t.delta
        add(m.θ, t.alpha * more, x.φ)
        add(m.θ, -t.alpha * more_correction, x.φ_next)
        add(v, α_v * more_delta * t.ratio, x.e)
        add(v, -α_v * more, x.φ)


@register_method
@dataclass(frozen=True)
class TDRC(GTD):
    """TDRC(λ): GTD(λ) with a regularised correction, κ = `kappa`. κ → ∞ is TD, κ = 0 is GTD. It costs O(weights) a step.

    >>> TDRC(0.9).title
    'TDRC(0.9)'
    """

    kappa: float = number(1.0)  # pyright: ignore[reportIncompatibleVariableOverride]

    name: ClassVar = "TDRC(λ)"
    aliases: ClassVar = ("tdrc", "tdrc(lambda)")
    equation: ClassVar = "w += α[δz − γ(1−λ)(z·v)x'];  v += α_v[δz − (x·v)x − κv]"
    citation: ClassVar = (
        "Ghiassian et al. (2020), Gradient temporal-difference learning with regularized corrections, ICML"
    )
    proven: ClassVar = "converges with linear features, off-policy too, for the κ and η that their theorem names"
    needs: ClassVar = "π and μ; η = κ = 1 are meant to serve everywhere"


@register_method
@dataclass(frozen=True)
class HTD(GradientTD):
    """HTD(λ), hybrid TD: gradient TD off-policy, and TD(λ) itself on-policy.

    >>> HTD(0.9).title
    'HTD(0.9)'
    """

    traces: ClassVar = ("z_b",)
    name: ClassVar = "HTD(λ)"
    aliases: ClassVar = ("htd", "hybrid td", "htd(lambda)")
    equation: ClassVar = "z_b = γλz_b + x;  w += α[δz + (x−γx')((z−z_b)·v)];  v += α_v[δz − (x−γx')(z_b·v)]"
    citation: ClassVar = (
        "Hackman (2012), Faster gradient-TD algorithms, MSc thesis, Alberta; White, White (2016), Investigating practical "
        "linear temporal difference learning, AAMAS"
    )
    proven: ClassVar = "on-policy it is TD(λ); convergence with linear features under conditions on the features"

    @property
    def numbers(self) -> tuple[float, ...]:
        """η and λ."""
        assert self.trace is not None
        if np.ndim(self.trace.advantage_lam):
            raise ValueError(f"HTD needs one λ for z_b, and {self.trace.title} has an array of them")
        return self.eta, float(self.trace.advantage_lam)

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        v, z_b, α_v = m.further[0], m.traces[0], m.numbers[0] * t.alpha
        decay(z_b, t.gamma * m.numbers[1], m.active)
        add(z_b, 1.0, x.φ)
        v_b = inner(v, z_b, m.active)
        c = t.ratio * dot(v, x.e) - v_b
        add(m.θ, t.alpha * t.delta * t.ratio, x.e)
        add(m.θ, t.alpha * c, x.φ)
        add(m.θ, -t.alpha * t.gamma * c, x.φ_next)
        add(v, α_v * t.delta * t.ratio, x.e)
        add(v, -α_v * v_b, x.φ)
        add(v, α_v * t.gamma * v_b, x.φ_next)


def _second_step_size(alpha_w: float | None, eta: float | None) -> tuple[float, float]:
    """α_w as a number and as a share of α: one of them is 0."""
    if alpha_w is not None and eta is not None:
        raise TypeError(f"give alpha_w or eta, α_w = η α, got alpha_w={alpha_w!r} and eta={eta!r}")
    if alpha_w is not None:
        return checked("alpha_w", alpha_w, above=True), 0.0
    return 0.0, 1.0 if eta is None else checked("eta", eta, above=True)


@register_method
@dataclass(frozen=True)
class GQ(LambdaMethod):
    """GQ(λ). It learns online only. In `control`, where policies depend on the current Q, it is Greedy-GQ.

    `alpha_w` is the step size of w, 0.01 if it is left out, or give `eta`: α_w = η α.

    >>> import numpy as np
    >>> from offtrace.learners import evaluate
    >>> from offtrace.mdps import random_walk, uniform
    >>> mdp = random_walk(5, gamma=0.9)
    >>> x = np.stack([np.ones(mdp.S), np.arange(mdp.S)], axis=1)
    >>> left = np.tile([0.7, 0.3], (mdp.S, 1))
    >>> evaluate(GQ(0.8, alpha_w=0.01), mdp, target=left, behavior=uniform(mdp), features=x,
    ...          alpha=0.01, steps=1000).weights.shape  # 2 features for each of 2 actions
    (2, 2)
    """

    alpha_w: float | None = None
    eta: float | None = None

    further: ClassVar = ("w",)
    name: ClassVar[str] = "GQ(λ)"
    aliases: ClassVar[tuple[str, ...]] = ("gq", "gq(lambda)", "greedy-gq")
    equation: ClassVar[str] = "e = φ + γλρe;  θ += α[δe − γ(1−λ)(w·e)φ̄'];  w += α_w[δe − (w·φ)φ]"
    citation: ClassVar[str] = "Maei, Sutton (2010), GQ(λ), AGI; Maei, Szepesvári, Bhatnagar, Sutton (2010), ICML"
    proven: ClassVar[str] = "converges with linear features, off-policy too, where α/α_w → 0"
    needs: ClassVar[str] = "π, μ and a second step size"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.numbers  # checks them

    @property
    def numbers(self) -> tuple[float, ...]:
        """λ, α_w and η, of which one is 0."""
        alpha_w = 0.01 if self.alpha_w is None and self.eta is None else self.alpha_w
        return float(self.lam), *_second_step_size(alpha_w, self.eta)

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        w, λ, α_w = m.further[0], m.numbers[0], m.numbers[1] + m.numbers[2] * t.alpha
        w_e, w_φ = dot(w, x.e), dot(w, x.φ)
        add(m.θ, t.alpha * t.delta, x.e)
        add(m.θ, -t.alpha * t.gamma * (1.0 - λ) * w_e, x.φ_next)
        add(w, α_w * t.delta, x.e)
        add(w, -α_w * w_φ, x.φ)


@dataclass(frozen=True)
class GradientTrace(Method):
    """The gradient correction with any per-decision trace, on action values. α_w = η α, η = 1 if it is left out.

    >>> import offtrace as ot
    >>> GradientTrace(ot.Retrace(0.9), eta=2.0).title
    'Gradient Retrace'
    """

    of: Trace
    eta: float | None = None
    alpha_w: float | None = None

    further: ClassVar = ("w",)
    passes_on: ClassVar = True
    name: ClassVar[str] = "Gradient trace"
    equation: ClassVar[str] = "e = φ + γce;  θ += α[δe − γ(w·e)(φ̄' − φ̃')];  w += α_w[δe − (w·φ)φ]"
    citation: ClassVar[str] = (
        "Mahmood, Yu, Sutton (2017), Multi-step off-policy learning without importance sampling ratios; Touati et al. (2018), "
        "Convergent Tree Backup and Retrace with function approximation, ICML"
    )
    proven: ClassVar[str] = "converges with linear features, off-policy too, where α/α_w → 0"
    needs: ClassVar[str] = "π, μ and a second step size"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.numbers  # checks them
        if not self.of.per_decision or self.of.custom or self.of.horizon is not None or self.of.target_share != 1.0:
            raise TypeError(
                f"{self.of.title} has not one coefficient for each decision: on action values the gradient needs its mean over "
                "the next action. On state values GTD(trace=…) takes any trace"
            )

    @property
    def title(self) -> str:
        """The name, with the trace's name."""
        return f"Gradient {self.of.title}"

    @property
    def trace(self) -> Trace:
        """The trace whose eligibility vector is e."""
        return self.of

    @property
    def numbers(self) -> tuple[float, ...]:
        """α_w and η, one of which is 0."""
        return _second_step_size(self.alpha_w, self.eta)

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        w, α_w = m.further[0], m.numbers[0] + m.numbers[1] * t.alpha
        w_e, w_φ = dot(w, x.e), dot(w, x.φ)
        add(m.θ, t.alpha * t.delta, x.e)
        add(m.θ, -t.alpha * t.gamma * w_e, x.φ_next)
        add(m.θ, t.alpha * t.gamma * w_e, x.on)
        add(w, α_w * t.delta, x.e)
        add(w, -α_w * w_φ, x.φ)

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> Self:
        """Return the method with the trace for these policies."""
        return replace(self, of=self.of.for_policies(target, behavior))


@register_method
@dataclass(frozen=True)
class GradientABQ(GradientTrace):
    """Gradient ABQ(ζ): no ratios at all, and stable with features. ψ0 and ψ_max are the policies', if they are not given.

    >>> GradientABQ(zeta=0.5).title
    'Gradient ABQ(0.5)'
    """

    of: ABQ = field(init=False, repr=False, compare=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    zeta: float = 0.5
    psi0: float | None = None
    psi_max: float | None = None

    name: ClassVar = "Gradient ABQ(ζ)"
    aliases: ClassVar = ("gradient abq", "abq gradient")
    equation: ClassVar = "e = φ + γνπe;  θ += α[δe − γ(w·e)(φ̄' − Σ_a νμπφ')];  w += α_w[δe − (w·φ)φ]"
    citation: ClassVar = "Mahmood, Yu, Sutton (2017), Multi-step off-policy learning without importance sampling ratios"

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", ABQ(self.zeta, self.psi0, self.psi_max))
        super().__post_init__()

    title = Method.title  # pyright: ignore[reportIncompatibleMethodOverride]

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> GradientABQ:
        """Return the method with ψ0 and ψ_max of these policies."""
        of = self.of.for_policies(target, behavior)
        return replace(self, psi0=of.psi0, psi_max=of.psi_max)
