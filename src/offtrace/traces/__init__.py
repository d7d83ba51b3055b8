"""Traces: π, μ → decay, ratio, cap. One short class per rule."""

from offtrace.traces.base import INFINITY, Factors, Rule, Sweep, Trace
from offtrace.traces.custom import History, HistoryTrace, Step, StepTrace, count_dependent, replacing
from offtrace.traces.per_decision import ImportanceSampling, OneStep, QLambda, Retrace, TreeBackup, VTrace, WatkinsQ
from offtrace.traces.per_decision_families import ABQ, AlphaRetrace, CTrace, QSigma, VariableLambda
from offtrace.traces.registry import register, rules, trace
from offtrace.traces.trajectory_aware import (
    RBIS,
    DiscountedBound,
    FlattenedIS,
    HistoryBounded,
    NonMarkovRetrace,
    TruncatedIS,
)
from offtrace.traces.uncorrected import NStep, PengQ

__all__ = [
    "ABQ",
    "INFINITY",
    "RBIS",
    "AlphaRetrace",
    "CTrace",
    "DiscountedBound",
    "Factors",
    "FlattenedIS",
    "History",
    "HistoryBounded",
    "HistoryTrace",
    "ImportanceSampling",
    "NStep",
    "NonMarkovRetrace",
    "OneStep",
    "PengQ",
    "QLambda",
    "QSigma",
    "Retrace",
    "Rule",
    "Step",
    "StepTrace",
    "Sweep",
    "Trace",
    "TreeBackup",
    "TruncatedIS",
    "VTrace",
    "VariableLambda",
    "WatkinsQ",
    "count_dependent",
    "register",
    "replacing",
    "rules",
    "trace",
]

# Making a rule prints its lines, which torch.compile does not follow: from here on a compiled program may make it.
_ = [rule.typical() for rule in rules()]
