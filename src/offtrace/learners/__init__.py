"""Learners: the paper's Algorithm 1, online and offline, from replay, for evaluation and control."""

from offtrace.learners.api import control, evaluate
from offtrace.learners.arguments import Evaluation, Replay
from offtrace.learners.learned import Curve, Learned
from offtrace.learners.methods.base import Method
from offtrace.learners.methods.gq import GQ
from offtrace.learners.methods.trace_learner import TraceLearner
from offtrace.learners.policies import (
    Constant,
    EpsilonGreedy,
    Exponential,
    Harmonic,
    Linear,
    Schedule,
    Softmax,
)
from offtrace.learners.published import bifurcation_auc
from offtrace.learners.tile_coding import TileCoding

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
    "Method",
    "Replay",
    "Schedule",
    "Softmax",
    "TileCoding",
    "TraceLearner",
    "bifurcation_auc",
    "control",
    "evaluate",
]
