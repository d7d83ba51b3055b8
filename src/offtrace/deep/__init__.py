"""Deep agents: Q-networks and actor-critics that learn with any trace, from a replay memory, fresh steps, or a stream.

from offtrace.deep import PQN, Config, train
trained = train(Config(game="minatar/breakout", trace=offtrace.RBIS(lam=0.9)), seeds=5, folder="runs/breakout")
fresh = train(PQN(game="minatar/breakout"), seeds=5)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from offtrace._shared.extras import install

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

_HOME = {
    "ACER": "config",
    "Categorical": "config",
    "CheckpointError": "checkpoints",
    "Config": "config",
    "Game": "player",
    "PQN": "config",
    "QRC": "config",
    "Settings": "settings",
    "StreamAC": "config",
    "StreamQ": "config",
    "play": "player",
}


def __getattr__(name: str) -> object:
    """Import what is asked for: a configuration can be made, and a study declared, without JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"offtrace.deep.{_HOME.get(name, 'runs')}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"deep agents need more than is here ({error}): {install('deep')}") from None
