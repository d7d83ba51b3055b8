"""Losses of actor-critics and policy gradients from what another policy did, for tensors and JAX arrays."""

from offtrace.policy.action_critic import acer, acer_sampled, reactor
from offtrace.policy.groups import group_advantages
from offtrace.policy.state_critic import vtrace
from offtrace.policy.steps import Loss
from offtrace.policy.surrogate import clipped, weighted

__all__ = ["Loss", "acer", "acer_sampled", "clipped", "group_advantages", "reactor", "vtrace", "weighted"]
