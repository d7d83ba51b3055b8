"""Small agents for several tests and one example: what is compiled for one of them, JAX has on disk for the others."""

from __future__ import annotations

from functools import wraps
from typing import Any

import offtrace as ot
from offtrace import cli
from offtrace.cli import deep
from offtrace.deep import ACER, PQN, QRC, Categorical, Config, Settings, StreamAC, StreamQ

CONFIG = Config(
    game="CartPole-v1", trace=ot.RBIS(lam=0.9), frames=1_600, envs=4, every=16, batch=4, length=8, warm_up=100,
    capacity=800, hidden=(16,), priority=0.5, explore_frames=1_000,
)  # fmt: skip
"""Trained with two seeds. The example of `offtrace.deep.train` has the same numbers."""

OF_ACTORS: Any = {"game": "CartPole-v1", "hidden": (32,)}
GAME: Any = {**OF_ACTORS, "explore_frames": 1_000}
LEARNERS: dict[str, tuple[Settings, float]] = {
    "pqn": (
        PQN(
            **{**GAME, "hidden": (64,)},
            frames=25_000,
            envs=16,
            length=16,
            epochs=4,
            minibatches=8,
            learning_rate=2e-3,
            clip=1.0,
            trace=ot.PengQ(lam=0.9),
        ),
        60.0,
    ),
    "stream-q": (StreamQ(**GAME, frames=5_000, trace=ot.NonMarkovRetrace(lam=0.7), groups=64), 100.0),
    "stream-ac": (StreamAC(**OF_ACTORS, frames=5_000), 100.0),
    "qrc": (QRC(**GAME, frames=12_000, learning_rate=3e-3, h_rate=0.3), 50.0),
    "acer": (
        ACER(
            **OF_ACTORS,
            frames=20_000,
            envs=8,
            every=64,
            length=16,
            batch=8,
            capacity=4_000,
            warm_up=500,
            learning_rate=2e-3,
        ),
        50.0,
    ),
    "categorical": (
        Categorical(
            **{**GAME, "hidden": (64, 64), "explore_frames": 3_000},
            frames=8_000,
            envs=8,
            every=8,
            batch=16,
            length=8,
            gamma=0.95,
            capacity=8_000,
            warm_up=500,
            target_every=1,
            target_rate=0.02,
            trace=ot.Retrace(lam=0.9),
            atoms=41,
            least=0.0,
            most=20.0,
        ),
        50.0,
    ),
    "replay": (
        Config(
            **{**GAME, "hidden": (64, 64), "explore_frames": 4_000},
            frames=6_000,
            envs=8,
            every=8,
            batch=16,
            length=8,
            gamma=0.95,
            capacity=8_000,
            warm_up=500,
            target_every=1,
            target_rate=0.02,
            trace=ot.CTrace(rate=0.9, lam=0.9),
            choose_lam="median",
        ),
        50.0,
    ),
}
"""Runs that take seconds, and a return that nearly all seeds reach; a random policy has 22, as one that learns nothing has."""
SEEDS = 3
"""They run together. The median counts: by the rounding of another machine or version, another seed is the unlucky one."""


def configured(words: list[str]) -> Any:
    """The configuration that `offtrace deep train` makes of these words."""

    def read(**options: Any) -> int:
        names = ("game", "agent", "trace", "rule", "of_agent")
        made.append(deep.configured(**{name: options[name] for name in names}))
        return 0

    made: list[Any] = []
    cli.call(wraps(deep.train)(read), "offtrace deep train", words)
    return made[0]
