"""Returns: trajectory × trace → corrections, targets. One file per kernel, one oracle by definition."""

from offtrace.returns.action_values import from_action_values
from offtrace.returns.state_values import StateTargets, state_targets
from offtrace.returns.targets import coefficients, corrections, targets

__all__ = ["StateTargets", "coefficients", "corrections", "from_action_values", "state_targets", "targets"]
