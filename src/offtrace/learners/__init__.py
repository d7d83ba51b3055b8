"""Learners: the paper's Algorithm 1, online and offline, from replay, for evaluation and control."""

from offtrace.learners.features import TileCoding
from offtrace.learners.gq import GQ
from offtrace.learners.policies import (
    Constant,
    EpsilonGreedy,
    Exponential,
    Harmonic,
    Linear,
    Schedule,
    Softmax,
)
from offtrace.learners.protocols import bifurcation_auc
from offtrace.learners.results import Curve, Learned
from offtrace.learners.runs import Evaluation, Replay, control, evaluate

__all__ = [
    "GQ",
    "Constant",
    "Curve",
    "EpsilonGreedy",
    "Evaluation",
    "Exponential",
    "Harmonic",
    "Learned",
    "Linear",
    "Replay",
    "Schedule",
    "Softmax",
    "TileCoding",
    "bifurcation_auc",
    "control",
    "evaluate",
]
