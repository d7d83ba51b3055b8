"""Deep agents: Q-networks and actor-critics that learn with any trace, from a replay memory, fresh steps, or a stream.

from offtrace.deep import PQN, Config, train
trained = train(Config(game="minatar/breakout", trace=offtrace.RBIS(lam=0.9)), seeds=5, folder="runs/breakout")
fresh = train(PQN(game="minatar/breakout"), seeds=5)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from offtrace._shared.extras import from_extra

if TYPE_CHECKING:
    from offtrace.deep.checkpoints import CheckpointError
    from offtrace.deep.config import ACER, PQN, QRC, Categorical, Config, StreamAC, StreamQ
    from offtrace.deep.player import Game, play
    from offtrace.deep.runs import DivergedError, LearningError, Trained, train
    from offtrace.deep.settings import Settings

__all__ = [
    "ACER",
    "PQN",
    "QRC",
    "Categorical",
    "CheckpointError",
    "Config",
    "DivergedError",
    "Game",
    "LearningError",
    "Settings",
    "StreamAC",
    "StreamQ",
    "Trained",
    "play",
    "train",
]

_HOMES = ("config", "runs", "player", "checkpoints")
"""The modules that define these names; the first one needs no JAX."""


def __getattr__(name: str) -> object:
    """Import what is asked for: a configuration can be made, and a study declared, without JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with from_extra("deep", "deep agents need"):
        modules = (import_module(f"offtrace.deep.{home}") for home in _HOMES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
