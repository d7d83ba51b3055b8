"""Gradient temporal differences on action values: GQ(λ), and the same with the coefficients of any per-decision trace.

With φ_t the features of (s_t, a_t), φ̄_{t+1} = Σ_a π(a|s_{t+1}) φ(s_{t+1}, a), 0 where the episode has terminated, and α_w = η α:

    GQ(λ) (Maei and Sutton 2010, algorithm of section 4, with interest I_t, γ_t = γ(s_t) and λ_t = λ(s_t)):

    δ_t = r_t + γ_{t+1} θ·φ̄_{t+1} − θ·φ_t            e_t = I_t φ_t + γ_t λ_t ρ_t e_{t-1}
    θ ← θ + α [δ_t e_t − γ_{t+1} (1 − λ_{t+1}) (w·e_t) φ̄_{t+1}]
    w ← w + α_w [δ_t e_t − (w·φ_t) φ_t]

    With a trace of coefficients c(s, a), e_t = φ_t + γ c_t e_{t-1} (for ABQ(ζ): Mahmood, Yu and Sutton 2017):

    θ ← θ + α [δ_t e_t − γ (w·e_t) (φ̄_{t+1} − φ̃_{t+1})],      φ̃_{t+1} = Σ_a μ(a|s_{t+1}) c(s_{t+1}, a) φ(s_{t+1}, a)

What is new beside a trace is a second set of weights, and the correction that makes θ follow the gradient of the projected
Bellman error. The traces of this library are semi-gradient methods: with features, and off-policy, their weights may diverge
where these do not. That is so for small step sizes, α below α_w; large ones add noise that can make these diverge too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from offtrace.learners.core.record_arrays import Floats
from offtrace.learners.methods.base import Method, Store, Transition, Vectors, add, checked, decay, dot, inner, plus
from offtrace.learners.methods.registry import register_method
from offtrace.traces import ABQ, ImportanceSampling, Trace


def _second_step_size(alpha_w: float | None, eta: float | None, otherwise: float | None) -> tuple[float, float]:
    """α_w as a number of its own and as a share of α: one of them is 0."""
    if alpha_w is not None and eta is not None:
        raise TypeError(f"give alpha_w or eta, α_w = η α, got alpha_w={alpha_w!r} and eta={eta!r}")
    if eta is not None:
        return 0.0, checked("eta", eta, 0.0, above=True)
    if alpha_w is None and otherwise is None:
        return 0.0, 1.0
    return checked("alpha_w", otherwise if alpha_w is None else alpha_w, 0.0, above=True), 0.0


@register_method
@dataclass(frozen=True)
class GQ(Method):
    """GQ(λ), given to `evaluate` or `control` in place of a trace; online only.

    `alpha_w` is the step size of w, 0.01 if it is left out, or give `eta`: α_w = η α. It is not a trace: θ moves by more than δ
    times an eligibility vector. With policies that depend on the current Q, as in `control`, it is Greedy-GQ (Maei, Szepesvári,
    Bhatnagar and Sutton 2010).

    >>> import numpy as np
    >>> from offtrace.learners import evaluate
    >>> from offtrace.mdps import random_walk, uniform
    >>> mdp = random_walk(5, gamma=0.9)
    >>> x = np.stack([np.ones(mdp.S), np.arange(mdp.S)], axis=1)
    >>> left = np.tile([0.7, 0.3], (mdp.S, 1))
    >>> result = evaluate(
    ...     GQ(0.8, alpha_w=0.01), mdp, target=left, behavior=uniform(mdp), features=x, alpha=0.01,
    ...     steps=1000
    ... )
    >>> result.weights.shape  # the weights of 2 features for each of 2 actions
    (2, 2)
    """

    lam: float = 1.0
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
        _ = self.trace  # checks λ
        _second_step_size(self.alpha_w, self.eta, 0.01)

    @property
    def title(self) -> str:
        """Its name in a report."""
        return f"GQ({self.lam:g})"

    @property
    def trace(self) -> ImportanceSampling:
        """The trace whose eligibility vector is e."""
        return ImportanceSampling(lam=self.lam)

    @property
    def numbers(self) -> tuple[float, ...]:
        """λ, α_w and η, of which one is 0."""
        return float(self.lam), *_second_step_size(self.alpha_w, self.eta, 0.01)

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module, with one λ, one γ and interest 1."""
        w, λ, α_w = m.further[0], m.numbers[0], m.numbers[1] + m.numbers[2] * t.alpha
        w_e, w_φ = dot(w, x.e), dot(w, x.φ)
        add(m.θ, t.alpha * t.delta, x.e)
        add(m.θ, -t.alpha * t.gamma * (1.0 - λ) * w_e, x.φ_next)
        add(w, α_w * t.delta, x.e)
        add(w, -α_w * w_φ, x.φ)


@register_method
@dataclass(frozen=True)
class GeneralGQ(Method):
    """GQ(λ) as it is published, with a λ, a γ and an interest for each state: these are numbers or arrays [S].

    Without `gamma` it is that of the environment. α_w = η α.

    >>> GeneralGQ(lam=[0.9, 0.5], interest=[1.0, 0.0]).states
    2
    """

    lam: ArrayLike = 1.0
    eta: float = 1.0
    gamma: ArrayLike | None = None
    interest: ArrayLike = 1.0

    further: ClassVar = ("w",)
    traces: ClassVar = ("e",)
    uses_trace: ClassVar = False
    name: ClassVar = "GQ(λ) with I, γ_t, λ_t"
    aliases: ClassVar = ("general gq", "gq with interest")
    equation: ClassVar = "e = Iφ + γ_tλ_tρe;  θ += α[δe − γ_{t+1}(1−λ_{t+1})(w·e)φ̄'];  w += α_w[δe − (w·φ)φ]"
    citation: ClassVar = "Maei, Sutton (2010), GQ(λ), AGI, section 4"
    proven: ClassVar = "converges with linear features, off-policy too, where α/α_w → 0"
    needs: ClassVar = "π, μ, a second step size, and states that have numbers"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, high in (("lam", 1.0), ("gamma", 1.0), ("interest", np.inf)):
            given = getattr(self, name)
            array = np.array(0.0 if given is None else given, dtype=np.float64)
            if array.ndim > 1 or not array.size or not ((array >= 0) & (array <= high) & (array < np.inf)).all():
                wanted = f"in [0, {high:g}]" if high < np.inf else "of at least 0"
                raise ValueError(f"{name} must be a number {wanted} or an array [S] of such, got {given!r}")
            if given is not None:
                object.__setattr__(self, name, tuple(array.tolist()) if array.ndim else float(array))
        object.__setattr__(self, "eta", checked("eta", self.eta, 0.0, above=True))
        if len(self._lengths) > 1:
            raise ValueError(f"lam, gamma and interest have different lengths: {sorted(self._lengths)}")

    @property
    def _lengths(self) -> set[int]:
        return {len(a) for a in (self.lam, self.gamma, self.interest) if isinstance(a, tuple)}

    @property
    def states(self) -> int | None:
        """For how many states it holds numbers; None where it holds none."""
        return next(iter(self._lengths), None)

    @property
    def title(self) -> str:
        """The name, with its λ, if there is one."""
        return "GQ(λ(s))" if isinstance(self.lam, tuple) else f"GQ({self.lam:g}) in general"

    @property
    def trace(self) -> ImportanceSampling:
        """That of importance sampling, in which starts enter with their interest."""
        return ImportanceSampling(lam=float(np.mean(np.asarray(self.lam))))

    @property
    def numbers(self) -> tuple[float, ...]:
        """η, how many numbers λ, γ and I have, and these."""
        each = [np.atleast_1d(a).tolist() for a in (self.lam, () if self.gamma is None else self.gamma, self.interest)]
        return (float(self.eta), *(float(len(a)) for a in each), *(x for a in each for x in a))

    @staticmethod
    def step(t: Transition, m: Store, x: Vectors) -> None:
        """The equations of the module."""
        w, e, p = m.further[0], m.traces[0], m.numbers
        α_w, n_λ, n_γ, n_I = p[0] * t.alpha, int(p[1]), int(p[2]), int(p[3])
        s, after = t.state, t.next_state
        λ, λ_next = p[4 + (s if n_λ > 1 else 0)], p[4 + (after if n_λ > 1 else 0)]
        γ, γ_next = t.gamma, t.gamma
        if n_γ > 0:
            γ, γ_next = p[4 + n_λ + (s if n_γ > 1 else 0)], p[4 + n_λ + (after if n_γ > 1 else 0)]
        interest = p[4 + n_λ + n_γ + (s if n_I > 1 else 0)]
        δ = t.reward + γ_next * t.next_value - t.value
        decay(e, γ * λ * t.rho, m.active)
        add(e, interest, x.φ)
        w_e, w_φ = inner(w, e, m.active), dot(w, x.φ)
        plus(m.θ, t.alpha * δ, e, m.active)
        add(m.θ, -t.alpha * γ_next * (1.0 - λ_next) * w_e, x.φ_next)
        plus(w, α_w * δ, e, m.active)
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
        _second_step_size(self.alpha_w, self.eta, None)
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
        return _second_step_size(self.alpha_w, self.eta, None)

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

    @property
    def title(self) -> str:
        """The name, with its ζ."""
        return f"Gradient ABQ({self.zeta:g})"

    def for_policies(self, target: tuple[Floats, Floats], behavior: tuple[Floats, Floats]) -> GradientABQ:
        """Return the method with ψ0 and ψ_max of these policies."""
        made = self.of.for_policies(target, behavior)
        return replace(self, psi0=made.psi0, psi_max=made.psi_max)
