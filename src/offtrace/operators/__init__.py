"""The operator M on finite MDPs: exact, certified, falsified, audited."""

from offtrace.operators.auditing.audit_table import Row, audit
from offtrace.operators.certify import Certificate, certify
from offtrace.operators.conditions import Condition, Violation
from offtrace.operators.control_iterates import (
    ControlRun,
    always_greedy,
    control_iterates,
    fading_into_greedy,
    greedy_in_the_limit,
)
from offtrace.operators.falsify import Falsification, falsify
from offtrace.operators.frontier import Frontier, FrontierPoint, frontier
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Magnitude, Operator
from offtrace.operators.solve.closed_form import Divergent
from offtrace.operators.state_operator import StateOperator
from offtrace.operators.tradeoff import Tradeoff, tradeoff
from offtrace.operators.uncorrected_operators import AffineOperator, clipped_policy, uncorrected, v_trace

__all__ = [
    "AffineOperator",
    "Certificate",
    "Condition",
    "ControlRun",
    "Divergent",
    "Falsification",
    "Frontier",
    "FrontierPoint",
    "Interval",
    "Magnitude",
    "Operator",
    "Row",
    "StateOperator",
    "Tradeoff",
    "Violation",
    "always_greedy",
    "audit",
    "certify",
    "clipped_policy",
    "control_iterates",
    "fading_into_greedy",
    "falsify",
    "frontier",
    "greedy_in_the_limit",
    "tradeoff",
    "uncorrected",
    "v_trace",
]
