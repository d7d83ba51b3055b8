"""offtrace: off-policy reinforcement learning that accounts for past decisions.

trajectory → trace (the rule for β) → correction → target. Start with `targets`; `trace` finds a rule by name.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from offtrace import returns as _returns
from offtrace import traces as _traces
from offtrace.returns import *  # noqa: F403
from offtrace.traces import *  # noqa: F403

__version__ = "0.2.0"
__all__ = [*_traces.__all__, *_returns.__all__]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> _Any:
    """The other packages, and `offtrace.audit`, on demand: targets need neither SciPy nor what studies need."""
    if name in ("mdps", "operators", "learners", "policy", "logs", "deep", "studies", "reports", "testing"):
        return _import_module(f"offtrace.{name}")
    if name == "sharded":
        return _import_module("offtrace.returns.sharded")
    if name == "audit":
        return _import_module("offtrace.operators").audit
    raise AttributeError(f"module 'offtrace' has no attribute {name!r}")
