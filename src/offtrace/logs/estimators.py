"""The estimators that offtrace has, in the order in which they are shown.

`offtrace.logs` takes the registry from here, so that these are registered before anybody adds one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from offtrace.logs.checks import BY_STEP, OF_FITS, WHOLE, Checking
from offtrace.logs.evidence import Evidence
from offtrace.logs.importance import Weighting, ordinary, per_decision, weighted, weighted_per_decision
from offtrace.logs.operator import Sampled
from offtrace.logs.registry import (
    ACTIONS,
    FITTED_VALUES,
    IMPORTANCE,
    MODEL,
    MU,
    OWN_STARTS,
    TRACE,
    Estimator,
    register_estimator,
)
from offtrace.logs.registry import (
    ESTIMATORS as ESTIMATORS,
)


def _fixed_point(
    name: str,
    equation: str,
    operator: Callable[[Evidence], Sampled],
    preference: int,
    needs: tuple[str, ...],
    title: str = "",
    family: str = MODEL,
) -> Estimator:
    def value(evidence: Evidence) -> tuple[float, NDArray[np.float64]]:
        return evidence.value_of(evidence.fit_of(operator(evidence)))

    return Estimator(name, equation, value, needs, title, family, operator, preference, OF_FITS)


def _weighting(
    name: str,
    equation: str,
    how: Weighting,
    preference: int,
    title: str = "",
    checks: tuple[Checking, ...] = BY_STEP,
) -> Estimator:
    family = MODEL if how.doubly_robust else IMPORTANCE
    needs = (MU, OWN_STARTS, ACTIONS) if how.doubly_robust else (MU, OWN_STARTS)
    return Estimator(name, equation, how, needs, title, family, None, preference, checks)


FITTED = register_estimator(
    _fixed_point(
        "fitted",
        "Q̂ = MQ̂ with the trace’s β, V̂ = Σ_e Σ_a π(a|s_0) Q̂(s_0, a) / E",
        lambda evidence: evidence.sampled,
        0,
        (ACTIONS, TRACE),
        "fitted, {trace}",
        FITTED_VALUES,
    )
)
for _each in (
    _fixed_point(
        "direct method",
        "Q̂ = T_πQ̂, one step, V̂ = Σ_e Σ_a π(a|s_0) Q̂(s_0, a) / E",
        lambda evidence: evidence.one_step,
        1,
        (ACTIONS,),
    ),
    _weighting(
        "weighted doubly robust",
        "Σ_e V̂(s_0) / E + Σ_t γ^t (Σ_e W_t δ_t) / Σ_e W_t",
        Weighting(weighted_per_decision, doubly_robust=True),
        2,
    ),
    _weighting("weighted per-decision IS", "Σ_t γ^t (Σ_e W_t r_t) / Σ_e W_t", Weighting(weighted_per_decision), 3),
    _weighting(
        "doubly robust",
        "Σ_e (V̂(s_0) + Σ_t γ^t W_t δ_t) / E, δ_t = r_t + γ V̂(s_{t+1}) − Q̂(s_t, a_t)",
        Weighting(per_decision, doubly_robust=True),
        4,
    ),
    _weighting("per-decision IS", "Σ_e Σ_t γ^t W_t r_t / E", Weighting(per_decision), 5),
    _weighting("weighted IS", "Σ_e W_{T−1} Σ_t γ^t r_t / Σ_e W_{T−1}", Weighting(weighted), 6, checks=WHOLE),
    _weighting("IS", "Σ_e W_{T−1} Σ_t γ^t r_t / E", Weighting(ordinary), 7, "ordinary IS", WHOLE),
):
    register_estimator(_each)
