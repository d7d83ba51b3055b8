"""Deep agents with replay: a Q-network whose targets come from sequences of its memory, with any trace.

from offtrace.deep import Config, train
trained = train(Config(game="minatar/breakout", trace=offtrace.RBIS(lam=0.9)), seeds=5, folder="runs/breakout")
"""

from offtrace.deep.checkpoints import CheckpointError
from offtrace.deep.config import Config
from offtrace.deep.running import DivergedError, Trained, train

__all__ = ["CheckpointError", "Config", "DivergedError", "Trained", "train"]
