"""GQ(λ) (Maei and Sutton 2010, algorithm of section 4): gradient temporal differences, stable off-policy with features.

With φ_t the features of (s_t, a_t), φ̄_{t+1} = Σ_a π(a|s_{t+1}) φ(s_{t+1}, a), 0 where the episode has terminated:

    δ_t = r_t + γ θ·φ̄_{t+1} − θ·φ_t            e_t = φ_t + γ λ ρ_t e_{t-1}
    θ ← θ + α [δ_t e_t − γ (1 − λ) (w·e_t) φ̄_{t+1}]
    w ← w + α_w [δ_t e_t − (w·φ_t) φ_t]

e is the eligibility vector of importance sampling, so the loop keeps it as it keeps all others; what is new is a second
set of weights, and the correction that makes θ follow the gradient of the projected Bellman error. The traces of this
library are semi-gradient methods: with features, and off-policy, their weights may diverge where these do not. That is so
for small step sizes, α below α_w; large ones add noise that can make these diverge too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from offtrace.learners.core.compiling import seldom
from offtrace.learners.core.eligibility import SLOTS
from offtrace.learners.policies import best_of, probability
from offtrace.traces import ImportanceSampling


@dataclass(frozen=True)
class GQ:
    """GQ(λ), given to `evaluate` or `control` in place of a trace; online only. `alpha_w` is the step size of w.

    It is not a trace: θ moves by more than δ times an eligibility vector. With policies that depend on the current Q, as
    in `control`, it is Greedy-GQ (Maei, Szepesvári, Bhatnagar and Sutton 2010).

    >>> import numpy as np
    >>> from offtrace.learners import evaluate
    >>> from offtrace.mdps import random_walk, uniform
    >>> mdp = random_walk(5, gamma=0.9)
    >>> x = np.stack([np.ones(mdp.S), np.arange(mdp.S)], axis=1)
    >>> left = np.tile([0.7, 0.3], (mdp.S, 1))
    >>> result = evaluate(mdp, GQ(0.8, alpha_w=0.01), pi=left, mu=uniform(mdp), features=x, alpha=0.01, steps=1000)
    >>> result.weights.shape  # the weights of 2 features for each of 2 actions
    (2, 2)
    """

    lam: float = 1.0
    alpha_w: float = 0.01

    def __post_init__(self) -> None:
        self.rule  # checks λ  # noqa: B018
        number = isinstance(self.alpha_w, int | float | np.number) and not isinstance(self.alpha_w, bool)
        if not number or not 0 < self.alpha_w < np.inf:
            raise ValueError(f"alpha_w must be a step size above 0, got {self.alpha_w!r}")

    @property
    def rule(self) -> ImportanceSampling:
        """The trace whose eligibility vector is e."""
        return ImportanceSampling(lam=self.lam)

    form: ClassVar[str] = "method"
    """It is no trace: see `Trace.form`."""
    target_share: ClassVar[float] = 1.0
    """It evaluates π: see `Trace.target_share`."""

    def evaluated(self, target: Any, behavior: Any) -> Any:
        """π: see `Trace.evaluated`."""
        return target

    def for_policies(self, target: Any, behavior: Any) -> GQ:
        """It has no constants that depend on the policies: see `Trace.for_policies`."""
        return self

    @property
    def title(self) -> str:
        """Its name in a report."""
        return f"GQ({self.lam:g})"


@seldom
def correct(plan, features, gamma, m, kept, π, α, δ, s, a, after, terminated):
    """What GQ does beyond θ += α δ e. It comes after that, with m.q[1] still q(s', ·) as δ has seen it."""
    A, w, q = features.A, m.w, m.q[1]
    e, n = kept.z, kept.n[SLOTS]
    w_e, w_φ = 0.0, 0.0
    for i in range(n):
        w_e += w[kept.weight_of[i]] * e[i]
    for j in range(features.tile.shape[1]):
        w_φ += w[features.tile[s, j] * A + a] * features.value[s, j]
    if not terminated:
        best, _, ties, _ = best_of(q)
        c = α * gamma * (1.0 - plan.lam) * w_e
        for b in range(A):
            p = probability(π, after, q, best, ties, b)
            for j in range(features.tile.shape[1]):
                m.θ[features.tile[after, j] * A + b] -= c * p * features.value[after, j]
    for i in range(n):
        w[kept.weight_of[i]] += plan.second * δ * e[i]
    for j in range(features.tile.shape[1]):
        w[features.tile[s, j] * A + a] -= plan.second * w_φ * features.value[s, j]
