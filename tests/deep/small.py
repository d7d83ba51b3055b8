"""One small agent for several tests and one example: what is compiled for one of them, JAX has on disk for the others."""

from __future__ import annotations

import offtrace as ot
from offtrace.deep import Config

CONFIG = Config(
    game="CartPole-v1", trace=ot.RBIS(lam=0.9), frames=1_600, envs=4, every=16, batch=4, length=8, warm_up=100,
    capacity=800, hidden=(16,), priority=0.5, explore_frames=1_000,
)  # fmt: skip
"""Trained with two seeds. The example of `offtrace.deep.train` has the same numbers."""
