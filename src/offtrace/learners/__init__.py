"""Learners: the paper's Algorithm 1, online and offline, from replay, for evaluation and control."""

from offtrace.learners.api import control, evaluate
from offtrace.learners.arguments import Evaluation, Replay
from offtrace.learners.features import TileCoding
from offtrace.learners.follow import follow
from offtrace.learners.methods.base import Method, listed_methods, register_method, unregister_method
from offtrace.learners.methods.bounded import BoundedTD, HistoryTD
from offtrace.learners.methods.gradient import GQ, GTD, GTD2, HTD, PGTD2, TDRC, GradientABQ, GradientTrace
from offtrace.learners.methods.own_traces import ETD, ETDLB, PQ, PTD, TrueOnlineSarsa, TrueOnlineTD
from offtrace.learners.methods.registry import method
from offtrace.learners.methods.traces import (
    ABTD,
    TD,
    ExpectedSarsa,
    Sarsa,
    StateTraceLearner,
    TraceLearner,
    TreeBackupTD,
    UncorrectedLearner,
    VTraceTD,
)
from offtrace.learners.policies import Constant, EpsilonGreedy, Exponential, Harmonic, Linear, Schedule, Softmax
from offtrace.learners.published import bifurcation_auc, collision_error
from offtrace.learners.result import Curve, Learned
from offtrace.learners.stability import Stability, stability

__all__ = [
    "ABTD",
    "ETD",
    "ETDLB",
    "GQ",
    "GTD",
    "GTD2",
    "HTD",
    "PGTD2",
    "PQ",
    "PTD",
    "TD",
    "TDRC",
    "BoundedTD",
    "Constant",
    "Curve",
    "EpsilonGreedy",
    "Evaluation",
    "ExpectedSarsa",
    "Exponential",
    "GradientABQ",
    "GradientTrace",
    "Harmonic",
    "HistoryTD",
    "Learned",
    "Linear",
    "Method",
    "Replay",
    "Sarsa",
    "Schedule",
    "Softmax",
    "Stability",
    "StateTraceLearner",
    "TileCoding",
    "TraceLearner",
    "TreeBackupTD",
    "TrueOnlineSarsa",
    "TrueOnlineTD",
    "UncorrectedLearner",
    "VTraceTD",
    "bifurcation_auc",
    "collision_error",
    "control",
    "evaluate",
    "follow",
    "listed_methods",
    "method",
    "register_method",
    "stability",
    "unregister_method",
]
