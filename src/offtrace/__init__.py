"""offtrace: off-policy reinforcement learning that accounts for past decisions.

trajectory → trace (the rule for β) → correction → target. Start with `targets`; `trace` finds a rule by name.
"""

from offtrace import returns as _returns
from offtrace import traces as _traces
from offtrace.returns import *  # noqa: F403
from offtrace.traces import *  # noqa: F403

__version__ = "0.1.0"
__all__ = [*_traces.__all__, *_returns.__all__]  # pyright: ignore[reportUnsupportedDunderAll]
