"""Returns: trajectory × trace → corrections, targets. One file per kernel, one oracle by definition."""

from offtrace.returns.action_values import from_action_values
from offtrace.returns.api import StateTargets, coefficients, corrections, state_targets, targets, targets_from_c
from offtrace.returns.diagnose import Diagnosis, Statistics, adapt, credit_figure, diagnose
from offtrace.returns.streaming.stream import Stream
from offtrace.returns.weights.api import reject, weights
from offtrace.returns.weights.diagnose import WeightDiagnosis, diagnose_weights

__all__ = [
    "Diagnosis",
    "StateTargets",
    "Statistics",
    "Stream",
    "WeightDiagnosis",
    "adapt",
    "coefficients",
    "corrections",
    "credit_figure",
    "diagnose",
    "diagnose_weights",
    "from_action_values",
    "reject",
    "state_targets",
    "targets",
    "targets_from_c",
    "weights",
]
