"""offtrace: off-policy reinforcement learning that accounts for past decisions."""

from offtrace.returns import StateTargets, coefficients, corrections, from_action_values, state_targets, targets
from offtrace.traces import *  # noqa: F403
from offtrace.traces import __all__ as _traces

__version__ = "0.1.0"
__all__ = [*_traces, "StateTargets", "coefficients", "corrections", "from_action_values", "state_targets", "targets"]
