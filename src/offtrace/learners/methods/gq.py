"""GQ(λ) (Maei and Sutton 2010, algorithm of section 4): gradient temporal differences, stable off-policy with features.

With φ_t the features of (s_t, a_t), φ̄_{t+1} = Σ_a π(a|s_{t+1}) φ(s_{t+1}, a), 0 where the episode has terminated:

    δ_t = r_t + γ θ·φ̄_{t+1} − θ·φ_t            e_t = φ_t + γ λ ρ_t e_{t-1}
    θ ← θ + α [δ_t e_t − γ (1 − λ) (w·e_t) φ̄_{t+1}]
    w ← w + α_w [δ_t e_t − (w·φ_t) φ_t]

e is the eligibility vector of importance sampling; what is new is a second set of weights, and the correction that makes θ
follow the gradient of the projected Bellman error. The traces of this library are semi-gradient methods: with features, and
off-policy, their weights may diverge where these do not. That is so for small step sizes, α below α_w; large ones add noise
that can make these diverge too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from offtrace.learners.core.records import Floats
from offtrace.learners.methods.base import Method, Sparse, Transition, add, dot
from offtrace.traces import ImportanceSampling


@dataclass(frozen=True)
class GQ(Method):
    """GQ(λ), given to `evaluate` or `control` in place of a trace; online only. `alpha_w` is the step size of w.

    It is not a trace: θ moves by more than δ times an eligibility vector. With policies that depend on the current Q, as
    in `control`, it is Greedy-GQ (Maei, Szepesvári, Bhatnagar and Sutton 2010).

    >>> import numpy as np
    >>> from offtrace.learners import evaluate
    >>> from offtrace.mdps import random_walk, uniform
    >>> mdp = random_walk(5, gamma=0.9)
    >>> x = np.stack([np.ones(mdp.S), np.arange(mdp.S)], axis=1)
    >>> left = np.tile([0.7, 0.3], (mdp.S, 1))
    >>> result = evaluate(
    ...     GQ(0.8, alpha_w=0.01), mdp, target=left, behavior=uniform(mdp), features=x, alpha=0.01, steps=1000
    ... )
    >>> result.weights.shape  # the weights of 2 features for each of 2 actions
    (2, 2)
    """

    lam: float = 1.0
    alpha_w: float = 0.01

    further: ClassVar[tuple[str, ...]] = ("w",)

    def __post_init__(self) -> None:
        _ = self.trace  # checks λ
        if isinstance(self.alpha_w, bool | str) or not 0 < self.alpha_w < np.inf:
            raise ValueError(f"alpha_w must be a step size above 0, got {self.alpha_w!r}")

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
        """λ and α_w."""
        return float(self.lam), float(self.alpha_w)

    @staticmethod
    def step(t: Transition, θ: Floats, further: Floats, numbers: Floats, e: Sparse, φ: Sparse, φ_next: Sparse) -> None:
        """The equations of the module."""
        w, λ, α_w = further[0], numbers[0], numbers[1]
        w_e, w_φ = dot(w, e), dot(w, φ)
        add(θ, t.alpha * t.delta, e)
        add(θ, -t.alpha * t.gamma * (1.0 - λ) * w_e, φ_next)
        add(w, α_w * t.delta, e)
        add(w, -α_w * w_φ, φ)
