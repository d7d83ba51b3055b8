"""A plugin of pytest for peer_suites.py: the functions of verl's `rollout_corr_helper` that we have too are ours."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo import rollout_corr_helper  # pyright: ignore[reportMissingImports]

from offtrace.adapters import verl

for name in ("compute_rollout_correction_and_rejection_mask", "compute_is_metrics", "compute_offpolicy_metrics"):
    setattr(rollout_corr_helper, name, getattr(verl, name))


def left_out(item: Any) -> str | None:
    """Why a test does not concern ours."""
    of_configuration = item.cls is not None and item.cls.__name__ == "TestRolloutCorrectionConfigNormalization"
    return "read verl's configuration only" if of_configuration else None
