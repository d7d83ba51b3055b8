"""Learners: the paper's Algorithm 1, online and offline, from replay, for evaluation and control."""

from offtrace.learners.api import control, evaluate
from offtrace.learners.arguments import Evaluation, Replay
from offtrace.learners.given_trajectory import follow
from offtrace.learners.learned import Curve, Learned
from offtrace.learners.methods.base import Method
from offtrace.learners.methods.emphatic import ETD, ETDLB
from offtrace.learners.methods.gq import GQ, GeneralGQ, GradientABQ, GradientTrace
from offtrace.learners.methods.gradient_td import GTD, GTD2, HTD, PGTD2, TDRC
from offtrace.learners.methods.histories import BoundedTD, CompositeTD, CountTD, HistoryTD
from offtrace.learners.methods.provisional import PQ, PTD
from offtrace.learners.methods.registry import listed_methods, method, register_method, unregister_method
from offtrace.learners.methods.sarsa import ExpectedSarsa, Sarsa
from offtrace.learners.methods.state_td import ABTD, TD, TreeBackupTD, VTraceTD
from offtrace.learners.methods.trace_learner import StateTraceLearner, TraceLearner
from offtrace.learners.methods.true_online import TrueOnlineSarsa, TrueOnlineTD
from offtrace.learners.methods.uncorrected_learner import UncorrectedLearner
from offtrace.learners.policies import (
    Constant,
    EpsilonGreedy,
    Exponential,
    Harmonic,
    Linear,
    Schedule,
    Softmax,
)
from offtrace.learners.published import bifurcation_auc, collision_error
from offtrace.learners.stability import Stability, stability
from offtrace.learners.tile_coding import TileCoding

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
    "CompositeTD",
    "Constant",
    "CountTD",
    "Curve",
    "EpsilonGreedy",
    "Evaluation",
    "ExpectedSarsa",
    "Exponential",
    "GeneralGQ",
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
