"""A plugin of pytest for peer_suites.py: `GAE` and `VTrace` of torchrl are our `StateEstimator`.

torchrl's V-trace draws an action of its own, so that its tests give a batch without the action that was taken. Ours refuses such
a batch: it has no ρ. Where a batch has none, an action that the actor draws is put in first.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.objectives.value import advantages

from offtrace.adapters.torchrl import StateEstimator


class OurGAE(StateEstimator):
    """Ours, without an actor."""


class OurVTrace(StateEstimator):
    """Ours, with an actor; a batch without an action gets one."""

    def __call__(self, *batch: Any, **entries: Any) -> Any:
        """As ours, once the batch holds an action."""
        if batch and "action" not in batch[0]:
            batch[0].set("action", self._drawn(batch[0]))
        elif not batch and "action" not in entries:
            entries["action"] = self._drawn(TensorDict({"obs": entries["obs"]}, entries["obs"].shape[:-1]))
        return super().__call__(*batch, **entries)

    def _drawn(self, batch: Any) -> Any:
        with torch.no_grad():
            actor: Any = self.actor_network
            return actor(batch.select("obs"))["action"]


advantages.GAE, advantages.VTrace = OurGAE, OurVTrace  # pyright: ignore[reportAttributeAccessIssue]


def left_out(item: Any) -> str | None:
    """Why a test does not concern ours."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return None if params.get("adv") in (OurGAE, OurVTrace) else "take other estimators: TD(0), TD(λ) and others"
