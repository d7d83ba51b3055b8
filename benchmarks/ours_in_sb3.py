"""A plugin of pytest for peer_suites.py: `stable_baselines3.DQN` is `TraceDQN`, before its tests are imported."""

from __future__ import annotations

from typing import Any

import stable_baselines3  # pyright: ignore[reportMissingImports]

from offtrace.adapters.sb3 import TraceDQN

stable_baselines3.DQN = TraceDQN

REFUSED = {
    "test_save_load_replay_buffer": "fill the buffer without log μ",
    "test_warn_buffer": "ask for optimize_memory_usage, which is refused",
}


def left_out(item: Any) -> str | None:
    """Why a test does not concern ours."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if TraceDQN not in params.values() and "dqn" not in item.nodeid.lower():
        return "concern another algorithm, or none"
    if "test_her" in item.nodeid:
        return "give DQN a HerReplayBuffer, which is refused"
    return REFUSED.get(item.originalname)
