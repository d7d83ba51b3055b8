"""Checks for your own code: `check_estimator` tells what is wrong with an implementation of a return."""

from offtrace.testing.estimator import check_estimator
from offtrace.testing.findings import EstimatorCheck, Finding
from offtrace.testing.mistakes import Mistake

__all__ = ["EstimatorCheck", "Finding", "Mistake", "check_estimator"]
