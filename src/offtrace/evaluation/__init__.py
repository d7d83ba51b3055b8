"""Values from logs: what a policy would be worth, from what another one did.

logs = offtrace.evaluation.read("logs/*.parquet", columns=Columns(mu="propensity"))
result = offtrace.evaluation.evaluate(logs, target_policy, trace=offtrace.RBIS(lam=0.95), gamma=0.99)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offtrace.evaluation.columns import Columns
    from offtrace.evaluation.describing import Coverage, Description, describe
    from offtrace.evaluation.evaluating import ESTIMATORS, evaluate
    from offtrace.evaluation.fitted import Features, Regressor
    from offtrace.evaluation.logs import Logs
    from offtrace.evaluation.problems import LogsError, Problem, ReadReport
    from offtrace.evaluation.reading import read
    from offtrace.evaluation.results import Result
    from offtrace.evaluation.simulating import simulate

__all__ = [
    "ESTIMATORS",
    "Columns",
    "Coverage",
    "Description",
    "Features",
    "Logs",
    "LogsError",
    "Problem",
    "ReadReport",
    "Regressor",
    "Result",
    "describe",
    "evaluate",
    "read",
    "simulate",
]

_HOME = {
    "columns": ("Columns",),
    "describing": ("Coverage", "Description", "describe"),
    "evaluating": ("ESTIMATORS", "evaluate"),
    "fitted": ("Features", "Regressor"),
    "logs": ("Logs",),
    "problems": ("LogsError", "Problem", "ReadReport"),
    "reading": ("read",),
    "results": ("Result",),
    "simulating": ("simulate",),
}


def __getattr__(name: str) -> Any:
    """On first use: the command line need not wait for SciPy and Numba to say what its options are."""
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"offtrace.evaluation.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
