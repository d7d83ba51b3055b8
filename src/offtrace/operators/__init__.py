"""The operator M on finite MDPs: exact, certified, falsified, audited."""

from offtrace.operators.auditing import Row, audit
from offtrace.operators.beside import AffineOperator, clipped_policy, n_step, peng, v_trace
from offtrace.operators.certify import Certificate, certify
from offtrace.operators.closed import Divergent
from offtrace.operators.conditions import Condition, Violation
from offtrace.operators.control import (
    ControlRun,
    always_greedy,
    control_iterates,
    fading_into_greedy,
    greedy_in_the_limit,
)
from offtrace.operators.falsify import Falsification, falsify
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Magnitude, Operator
from offtrace.operators.tradeoff import Tradeoff, tradeoff

__all__ = [
    "AffineOperator",
    "Certificate",
    "Condition",
    "ControlRun",
    "Divergent",
    "Falsification",
    "Interval",
    "Magnitude",
    "Operator",
    "Row",
    "Tradeoff",
    "Violation",
    "always_greedy",
    "audit",
    "certify",
    "clipped_policy",
    "control_iterates",
    "fading_into_greedy",
    "falsify",
    "greedy_in_the_limit",
    "n_step",
    "peng",
    "tradeoff",
    "v_trace",
]
