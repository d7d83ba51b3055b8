"""Values from logs: what a policy would be worth, from what another one did."""

from offtrace.evaluation.logs import Logs

__all__ = ["Logs"]
