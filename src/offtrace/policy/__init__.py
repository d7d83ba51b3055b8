"""Losses of actor-critics and policy gradients from what another policy did, for tensors and JAX arrays."""

from offtrace.policy.action_critic import acer, acer_sampled, reactor
from offtrace.policy.exact_gradients import GradientMoments, TokenRows, gradient_moments, token_rows
from offtrace.policy.grpo_advantages import group_advantages
from offtrace.policy.policy_loss import PolicyLoss, loss, losses, register_loss
from offtrace.policy.shards import sharded_loss
from offtrace.policy.state_critic import vtrace
from offtrace.policy.steps import Loss
from offtrace.policy.surrogate import clipped, weighted

__all__ = [
    "GradientMoments",
    "Loss",
    "PolicyLoss",
    "TokenRows",
    "acer",
    "acer_sampled",
    "clipped",
    "gradient_moments",
    "group_advantages",
    "loss",
    "losses",
    "reactor",
    "register_loss",
    "sharded_loss",
    "token_rows",
    "vtrace",
    "weighted",
]
