"""A plugin of pytest for compatibility_libraries.py: `stable_baselines3.DQN` is `TraceDQN`, before its tests are imported."""

import stable_baselines3  # pyright: ignore[reportMissingImports]

from offtrace.adapters.sb3 import TraceDQN

stable_baselines3.DQN = TraceDQN
