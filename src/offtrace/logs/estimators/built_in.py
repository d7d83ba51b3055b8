"""The estimators that offtrace has, in the order in which they are shown.

`offtrace.logs` takes the registry from here, so that those stand in it before anybody adds one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offtrace.logs.estimators.blending import checks_of, magic
from offtrace.logs.estimators.estimator_checks import BY_STEP, WHOLE, Checking, OfFit, cut_off
from offtrace.logs.estimators.fitted_iteration import Fit, Regressed
from offtrace.logs.estimators.importance_sampling import (
    Weighting,
    ordinary,
    per_decision,
    truncated,
    weighted,
    weighted_per_decision,
)
from offtrace.logs.estimators.linear_densities import CHECKS as LINEAR_CHECKS
from offtrace.logs.estimators.linear_densities import linear_marginalised
from offtrace.logs.estimators.marginalised import CHECKS, marginalised
from offtrace.logs.estimators.registry import (
    ACTIONS,
    FEATURES,
    FITTED_VALUES,
    IMPORTANCE,
    MODEL,
    MU,
    OWN_STARTS,
    TABLE,
    Estimator,
    Evidence,
    register_estimator,
)
from offtrace.logs.estimators.registry import (
    ESTIMATORS as ESTIMATORS,
)
from offtrace.logs.estimators.sampled_operator import Sampled


def _fitted(evidence: Evidence) -> tuple[float, NDArray[np.float64]]:
    return evidence.starts.of_fit(evidence.fit)


def _direct(evidence: Evidence) -> tuple[float, NDArray[np.float64]]:
    return evidence.starts.of_fit(evidence.direct.fit)


def _operator(evidence: Evidence) -> Sampled:
    return evidence.sampled


def _one_step_operator(evidence: Evidence) -> Sampled:
    return evidence.direct.sampled


def _main_fit(evidence: Evidence) -> Fit | Regressed:
    return evidence.fit


def _direct_fit(evidence: Evidence) -> Fit | Regressed:
    return evidence.direct.fit


def _weighting(
    name: str, equation: str, how: Weighting, title: str = "", checks: tuple[Checking, ...] = BY_STEP
) -> Estimator:
    family = MODEL if how.doubly_robust else IMPORTANCE
    needs = (MU, OWN_STARTS, ACTIONS) if how.doubly_robust else (MU, OWN_STARTS)
    return Estimator(name, equation, how, needs=needs, title=title, family=family, checks=checks)


FITTED = register_estimator(
    Estimator(
        "fitted",
        "Q̂ = MQ̂ with the trace’s β, V̂ = Σ_e Σ_a π(a|s_0) Q̂(s_0, a) / E",
        _fitted,
        (ACTIONS,),
        "fitted, {trace}",
        FITTED_VALUES,
        _operator,
        OfFit(_main_fit).all,
    )
)
DIRECT = register_estimator(
    Estimator(
        "direct method",
        "Q̂ = T_πQ̂, one step, V̂ = Σ_e Σ_a π(a|s_0) Q̂(s_0, a) / E",
        _direct,
        needs=(ACTIONS,),
        operator=_one_step_operator,
        checks=OfFit(_direct_fit).all,
    )
)
for _each in (
    _weighting("per-decision IS", "Σ_e Σ_t γ^t W_t r_t / E", Weighting(per_decision)),
    _weighting("weighted per-decision IS", "Σ_t γ^t (Σ_e W_t r_t) / Σ_e W_t", Weighting(weighted_per_decision)),
    _weighting("IS", "Σ_e W_{T−1} Σ_t γ^t r_t / E", Weighting(ordinary), "ordinary IS", WHOLE),
    _weighting("weighted IS", "Σ_e W_{T−1} Σ_t γ^t r_t / Σ_e W_{T−1}", Weighting(weighted), checks=WHOLE),
    _weighting("truncated IS", "Σ_e Σ_t γ^t min(c, W_t) r_t / E", Weighting(truncated), checks=(cut_off, *BY_STEP)),
    _weighting(
        "doubly robust",
        "Σ_e (V̂(s_0) + Σ_t γ^t W_t δ_t) / E, δ_t = r_t + γ V̂(s_{t+1}) − Q̂(s_t, a_t)",
        Weighting(per_decision, doubly_robust=True),
    ),
    _weighting(
        "weighted doubly robust",
        "Σ_e V̂(s_0) / E + Σ_t γ^t (Σ_e W_t δ_t) / Σ_e W_t",
        Weighting(weighted_per_decision, doubly_robust=True),
    ),
    Estimator(
        "MAGIC",
        "Σ_j x_j g_j with x at the least estimated squared error; g_j is weighted doubly robust up to step j, and V̂ from there",
        magic,
        needs=(MU, OWN_STARTS, ACTIONS),
        checks=checks_of(OfFit(_direct_fit)),
    ),
    Estimator(
        "marginalised IS",
        "Σ_i w(s_i) ρ_i r_i / E, w = d̂_π / d̂_μ: d̂_π(s′) = d_0(s′) + γ Σ_{i: s′_i = s′} w(s_i) ρ_i / E",
        marginalised,
        needs=(MU, TABLE),
        family=IMPORTANCE,
        checks=CHECKS,
    ),
    Estimator(
        "linear marginalised IS",
        "Σ_i w(s_i) ρ_i r_i / E, w(s) = φ(s)·θ: Σ_i w(s_i) (φ(s_i) − γ ρ_i φ(s′_i)) / E = Σ_e φ(s_0) / E",
        linear_marginalised,
        needs=(MU, FEATURES),
        family=IMPORTANCE,
        checks=LINEAR_CHECKS,
    ),
):
    register_estimator(_each)
