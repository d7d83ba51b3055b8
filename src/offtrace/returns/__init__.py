"""Returns: trajectory × trace → corrections, targets. One file per kernel, one oracle by definition."""

from offtrace.returns.action_values import from_action_values
from offtrace.returns.api import StateTargets, coefficients, corrections, state_targets, targets, targets_from_c
from offtrace.returns.diagnose import Diagnosis, Statistics, adapt, credit_figure, diagnose
from offtrace.returns.distributions import (
    DistributionalTargets,
    WeightedAtoms,
    distributional_targets,
    quantile_targets,
)
from offtrace.returns.encodings import hl_gauss, two_hot
from offtrace.returns.streaming.stream import Stream
from offtrace.returns.transforms import SignedHyperbolic, SymLog, Transform
from offtrace.returns.weights.api import reject, weights
from offtrace.returns.weights.diagnose import WeightDiagnosis, diagnose_weights

__all__ = [
    "Diagnosis",
    "DistributionalTargets",
    "SignedHyperbolic",
    "StateTargets",
    "Statistics",
    "Stream",
    "SymLog",
    "Transform",
    "WeightDiagnosis",
    "WeightedAtoms",
    "adapt",
    "coefficients",
    "corrections",
    "credit_figure",
    "diagnose",
    "diagnose_weights",
    "distributional_targets",
    "from_action_values",
    "hl_gauss",
    "quantile_targets",
    "reject",
    "state_targets",
    "targets",
    "targets_from_c",
    "two_hot",
    "weights",
]
