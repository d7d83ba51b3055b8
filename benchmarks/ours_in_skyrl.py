"""A plugin of pytest for peer_suites.py: SkyRL's off-policy correction, and its losses that we have too, are ours."""

from __future__ import annotations

import typing
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # pydantic asks for it below Python 3.12, for which SkyRL is written

from skyrl.backends.skyrl_train.utils import off_policy_correction_utils, ppo_utils  # noqa: E402 # pyright: ignore

from offtrace.adapters import skyrl  # noqa: E402

OURS = {
    "regular": "ppo", "dual_clip": "ppo", "gspo": "gspo", "cispo": "cispo", "sapo": "sapo", "dppo": "dppo_tv",
}  # fmt: skip
for name in dir(skyrl):
    if name.startswith("compute_"):
        setattr(off_policy_correction_utils, name, getattr(skyrl, name))
registry: Any = ppo_utils.PolicyLossRegistry
for name, ours in OURS.items():
    registry.unregister(name)
    registry.register(name, skyrl.policy_loss(ours))


def left_out(item: Any) -> str | None:
    """Why a test does not concern ours."""
    if "cov" in item.name:
        return "of losses that we have not"
    if "anchor" in item.name or "ratio_min_max" in item.name:
        return "of CISPO's ratio against the rollout policy, or its figures"
    if item.name == "test_compute_token_mask_boundary_values":
        return "rounds a ratio at the bound to float32"
    if "dppo" in item.name and item.callspec.params["expect_mask"] is not None:
        return "compares the value of r A; ours is r A log π, with the same gradient"
    return None
