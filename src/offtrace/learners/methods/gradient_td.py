"""Gradient temporal differences on state values: stable off-policy with linear features, by a second set of weights v.

With x, x' the features of s and s' (x' = 0 at an end), z = ρ(γλz₋ + x), δ = r + γ w·x' − w·x, and α_v = η α:

    GTD(λ) = TDC(λ)   w ← w + α [δz − γ(1−λ)(z·v) x']             v ← v + α_v [δz − (x·v) x]
    GTD2(λ)           w ← w + α [(x·v) x − γ(1−λ)(z·v) x']        v ← v + α_v [δz − (x·v) x]
    PGTD2(λ)          a half-step of GTD2 gives (w½, v½); a full one from the old (w, v) uses δ and v of the half-step
    TDRC(λ)           as GTD(λ), with − α_v κ v in the update of v
    HTD(λ)            z_b = γλz_b + x,   w ← w + α [δz + (x − γx')((z − z_b)·v)],   v ← v + α_v [δz − (x − γx')(z_b·v)]

w and v are updated from their old values; at an episode's end z and z_b begin anew, and v is kept.

*With any trace*: e_t = Σ_k γ^{t-k} b_{k:t-1} x_k, z_t = ρ_t e_t, and e_on = γ times what remains of e_t after the action a_t, so
that e_{t+1} = e_on + x_{t+1}. The gradient of the projected Bellman error needs E[x_t (e_t − x_t)ᵀ] = E[x_{t+1} e_onᵀ], and so
γ(1−λ)(z·v) becomes γ(z·v) − (e_on·v), which is the same for importance sampling, where e_on = γλρ_t e_t. Since E_μ[ρ_t | s_t] = 1
is used too, ρ̄ of V-trace must not act. z_b of HTD has the trace's λ; on-policy, where z = z_b, HTD is TD(λ).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from offtrace.learners.core.record_arrays import Floats
from offtrace.learners.methods.base import Method, Store, Transition, Vectors, add, checked, decay, dot, inner
from offtrace.learners.methods.registry import register_method
from offtrace.traces import ImportanceSampling, Trace


@dataclass(frozen=True)
class GradientTD(Method):
    """What these methods have in common: a λ or a trace, and η."""

    lam: float | None = None
    """λ of importance sampling, 1 if it is left out; or give `trace`."""
    eta: float = 1.0
    """α_v = η α."""
    trace: Trace | None = None  # pyright: ignore[reportIncompatibleMethodOverride,reportAssignmentType]
    """Any other trace, in the place of importance sampling."""

    values: ClassVar = "state"
    further: ClassVar[tuple[str, ...]] = ("v",)
    needs: ClassVar[str] = "π, μ and a second step size"
    _by_lam: ClassVar[bool] = True  # of an instance: whether it was made by λ, not by a trace
    short: ClassVar[str] = ""
    """Its name without λ."""

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
        object.__setattr__(self, "eta", checked("eta", self.eta, 0.0, above=True))

    @property
    def title(self) -> str:
        """The name, with its λ, or with its trace."""
        assert self.trace is not None
        return f"{self.short}({self.lam:g})" if self._by_lam else f"{self.short} with {self.trace.title}"

    @property
    def numbers(self) -> tuple[float, ...]:
        """η."""
        return (self.eta,)

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> Self:
        """Return the method with the trace for these policies."""
        assert self.trace is not None
        made = self.trace.for_policies(target, behavior)
        return self if made is self.trace else replace(self, trace=made)


@register_method
@dataclass(frozen=True)
class GTD(GradientTD):
    """GTD(λ), which is TDC(λ): δz with a correction that makes w follow the gradient of the projected Bellman error.

    >>> GTD(0.9, eta=0.5).title
    'GTD(0.9)'
    """

    name: ClassVar = "GTD(λ)"
    short: ClassVar = "GTD"
    aliases: ClassVar = ("gtd", "tdc", "tdc(λ)", "gtd(lambda)")
    equation: ClassVar = "w += α[δz − γ(1−λ)(z·v)x'];  v += α_v[δz − (x·v)x]"
    citation: ClassVar = (
        "Sutton et al. (2009), Fast gradient-descent methods for TD learning with linear function approximation, ICML; "
        "Maei (2011), Gradient temporal-difference learning algorithms, PhD thesis, Alberta"
    )
    proven: ClassVar = "converges with linear features, off-policy too, where α/α_v → 0"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        v, α_v = m.further[0], m.numbers[0] * t.alpha
        x_v, correction = dot(v, x.φ), t.gamma * t.ratio * dot(v, x.e) - dot(v, x.on)
        add(m.θ, t.alpha * t.delta * t.ratio, x.e)
        add(m.θ, -t.alpha * correction, x.φ_next)
        add(v, α_v * t.delta * t.ratio, x.e)
        add(v, -α_v * x_v, x.φ)


@register_method
@dataclass(frozen=True)
class GTD2(GradientTD):
    """GTD2(λ): w follows the gradient of the projected Bellman error as v estimates it.

    >>> GTD2(0.9, eta=0.5).title
    'GTD2(0.9)'
    """

    name: ClassVar = "GTD2(λ)"
    short: ClassVar = "GTD2"
    aliases: ClassVar = ("gtd2", "gtd2(lambda)")
    equation: ClassVar = "w += α[(x·v)x − γ(1−λ)(z·v)x'];  v += α_v[δz − (x·v)x]"
    citation: ClassVar = (
        "Sutton et al. (2009), Fast gradient-descent methods for TD learning with linear function approximation, ICML"
    )
    proven: ClassVar = "converges with linear features, off-policy too"

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        v, α_v = m.further[0], m.numbers[0] * t.alpha
        x_v, correction = dot(v, x.φ), t.gamma * t.ratio * dot(v, x.e) - dot(v, x.on)
        add(m.θ, t.alpha * x_v, x.φ)
        add(m.θ, -t.alpha * correction, x.φ_next)
        add(v, α_v * t.delta * t.ratio, x.e)
        add(v, -α_v * x_v, x.φ)


@register_method
@dataclass(frozen=True)
class PGTD2(GradientTD):
    """Proximal GTD2(λ), by mirror-prox: an extragradient step of the saddle-point problem that GTD2 solves.

    >>> PGTD2(0.9, eta=0.5).title
    'PGTD2(0.9)'
    """

    name: ClassVar = "PGTD2(λ)"
    short: ClassVar = "PGTD2"
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
        x_v, correction = dot(v, x.φ), t.gamma * t.ratio * dot(v, x.e) - dot(v, x.on)
        add(m.θ, t.alpha * x_v, x.φ)
        add(m.θ, -t.alpha * correction, x.φ_next)
        add(v, α_v * t.delta * t.ratio, x.e)
        add(v, -α_v * x_v, x.φ)
        more = dot(v, x.φ) - x_v
        more_correction = t.gamma * t.ratio * dot(v, x.e) - dot(v, x.on) - correction
        more_delta = t.reward + t.gamma * dot(m.θ, x.φ_next) - dot(m.θ, x.φ) - t.delta
        add(m.θ, t.alpha * more, x.φ)
        add(m.θ, -t.alpha * more_correction, x.φ_next)
        add(v, α_v * more_delta * t.ratio, x.e)
        add(v, -α_v * more, x.φ)


@register_method
@dataclass(frozen=True)
class TDRC(GradientTD):
    """TDRC(λ): GTD(λ) with a regularised correction, κ = `kappa`. κ → ∞ is TD, κ = 0 is GTD. It costs O(weights) a step.

    >>> TDRC(0.9).title
    'TDRC(0.9)'
    """

    kappa: float = 1.0

    name: ClassVar = "TDRC(λ)"
    short: ClassVar = "TDRC"
    aliases: ClassVar = ("tdrc", "tdrc(lambda)")
    equation: ClassVar = "w += α[δz − γ(1−λ)(z·v)x'];  v += α_v[δz − (x·v)x − κv]"
    citation: ClassVar = (
        "Ghiassian et al. (2020), Gradient temporal-difference learning with regularized corrections, ICML"
    )
    proven: ClassVar = "converges with linear features, off-policy too, for the κ and η that their theorem names"
    needs: ClassVar = "π and μ; η = κ = 1 are meant to serve everywhere"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kappa", checked("kappa", self.kappa, 0.0))

    @property
    def numbers(self) -> tuple[float, ...]:
        """η and κ."""
        return self.eta, self.kappa

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        v, α_v, κ = m.further[0], m.numbers[0] * t.alpha, m.numbers[1]
        x_v, correction = dot(v, x.φ), t.gamma * t.ratio * dot(v, x.e) - dot(v, x.on)
        add(m.θ, t.alpha * t.delta * t.ratio, x.e)
        add(m.θ, -t.alpha * correction, x.φ_next)
        for i in range(len(v)):
            v[i] -= α_v * κ * v[i]
        add(v, α_v * t.delta * t.ratio, x.e)
        add(v, -α_v * x_v, x.φ)


@register_method
@dataclass(frozen=True)
class HTD(GradientTD):
    """HTD(λ), hybrid TD: gradient TD off-policy, and TD(λ) itself on-policy.

    >>> HTD(0.9).title
    'HTD(0.9)'
    """

    traces: ClassVar = ("z_b",)
    name: ClassVar = "HTD(λ)"
    short: ClassVar = "HTD"
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
