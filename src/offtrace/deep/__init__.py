"""Deep agents with replay: a Q-network whose targets come from sequences of its memory, with any trace.

from offtrace.deep import Config, train
trained = train(Config(game="minatar/breakout", trace=offtrace.RBIS(lam=0.9)), seeds=5, folder="runs/breakout")
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offtrace.deep.checkpoints import CheckpointError
    from offtrace.deep.config import Config
    from offtrace.deep.player import Game, play
    from offtrace.deep.runs import DivergedError, Trained, train

__all__ = ["CheckpointError", "Config", "DivergedError", "Game", "Trained", "play", "train"]

_HOME = {"CheckpointError": "checkpoints", "Config": "config", "Game": "player", "play": "player"}


def __getattr__(name: str) -> object:
    """Import what is asked for: a configuration can be made, and a study declared, without JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"offtrace.deep.{_HOME.get(name, 'runs')}"), name)
