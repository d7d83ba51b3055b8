"""Checks for your own code: what is wrong with an implementation of a return, of weights of decisions, or of a trainer's loss."""

from offtrace.testing.estimator import check_estimator
from offtrace.testing.findings import EstimatorCheck, Finding
from offtrace.testing.mistakes import Mistake
from offtrace.testing.trainers import TrainerCheck, check_loss, check_weights

__all__ = ["EstimatorCheck", "Finding", "Mistake", "TrainerCheck", "check_estimator", "check_loss", "check_weights"]
