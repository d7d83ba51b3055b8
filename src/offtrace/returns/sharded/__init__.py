"""Rows that are split along time over processes or devices (context parallelism): exact, and few numbers are sent."""

from offtrace.returns.sharded.api import corrections, state_targets, targets, weights
from offtrace.returns.sharded.exchange import Sent

__all__ = ["Sent", "corrections", "state_targets", "targets", "weights"]
