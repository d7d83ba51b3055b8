"""Values from logs: what a policy would be worth, from what another one did.

logs = offtrace.logs.read("logs/*.parquet", columns=Columns(mu="propensity"))
result = offtrace.logs.evaluate(logs, target, trace=offtrace.RBIS(lam=0.95), gamma=0.99)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offtrace.logs.comparing import Comparison, compare
    from offtrace.logs.container import Logs
    from offtrace.logs.description import Coverage, Description, describe
    from offtrace.logs.evaluation import evaluate
    from offtrace.logs.evidence import Evidence
    from offtrace.logs.fit import Features, Regressor
    from offtrace.logs.reading.columns import Columns
    from offtrace.logs.reading.problems import LogsError, Problem, ReadReport
    from offtrace.logs.reading.sources import read
    from offtrace.logs.real_actions import Density, Deterministic
    from offtrace.logs.registry import ESTIMATORS, Estimator, register_estimator
    from offtrace.logs.result import Result
    from offtrace.logs.return_distribution import Distribution, distribution
    from offtrace.logs.simulation import simulate
    from offtrace.logs.sweeping import sweep
    from offtrace.logs.swept import Swept

__all__ = [
    "ESTIMATORS",
    "Columns",
    "Comparison",
    "Coverage",
    "Density",
    "Description",
    "Deterministic",
    "Distribution",
    "Estimator",
    "Evidence",
    "Features",
    "Logs",
    "LogsError",
    "Problem",
    "ReadReport",
    "Regressor",
    "Result",
    "Swept",
    "compare",
    "describe",
    "distribution",
    "evaluate",
    "read",
    "register_estimator",
    "simulate",
    "sweep",
]

_HOME = {
    "comparing": ("Comparison", "compare"),
    "container": ("Logs",),
    "description": ("Coverage", "Description", "describe"),
    "real_actions": ("Density", "Deterministic"),
    "fit": ("Features", "Regressor"),
    "estimators": ("ESTIMATORS", "Estimator", "register_estimator"),
    "evaluation": ("evaluate",),
    "evidence": ("Evidence",),
    "sweeping": ("sweep",),
    "swept": ("Swept",),
    "reading.columns": ("Columns",),
    "reading.problems": ("LogsError", "Problem", "ReadReport"),
    "reading.sources": ("read",),
    "result": ("Result",),
    "return_distribution": ("Distribution", "distribution"),
    "simulation": ("simulate",),
}


def __getattr__(name: str) -> Any:
    """On first use: the command line need not wait for SciPy and Numba to say what its options are."""
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"offtrace.logs.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
