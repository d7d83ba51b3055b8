"""The loss of rows that are split along time over processes: context parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offtrace.policy.policy_loss import PolicyLoss, loss, named_loss
from offtrace.policy.steps import Loss
from offtrace.returns.sharded import gather_from_processes

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

STEPS = ("log_pi", "log_prox", "log_mu", "advantage", "mask", "segment", "weight", "keep", "log_ref", "entropy")
DIFFERENTIATED = ("log_pi", "entropy")


def sharded_loss(
    name: str | PolicyLoss, *, process_group: ProcessGroup, position: Any = None, **arguments: Any
) -> Loss[Tensor]:
    """The loss of `policy.loss` for one shard of rows, tensors [T] or [B, T] with all rows and some of their steps.

    Shards hold the steps in the order of ranks, or where `position` says, as in `sharded.targets`. `loss` is that of the whole
    rows, on all processes; its gradient is that of this shard's steps, so that the sum of gradients over the group is that of the
    whole rows. Where a trainer takes their mean, pass `ranks`, the number of processes. `terms` and `arrays` hold this shard's
    steps.

    >>> import torch
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> logs = torch.tensor([[-1.0, -0.5]])
    >>> result = sharded_loss("gspo", process_group=distributed.group.WORLD, log_pi=logs, log_mu=logs,
    ...                      advantage=torch.ones(1))
    >>> float(result.loss)
    -1.0
    >>> distributed.destroy_process_group()
    """
    import torch

    log_pi = arguments["log_pi"]
    of_steps = {n: a for n, a in arguments.items() if n in STEPS and a is not None and a.ndim == log_pi.ndim}
    options = {n: a for n, a in arguments.items() if n not in of_steps}
    called = f"{named_loss(name)!r}, {', '.join(of_steps)}, {[n for n in options if n not in STEPS]}"
    whole, keep = gather_from_processes(process_group, of_steps, None, position, called)
    T = whole["log_pi"].shape[-1]
    mine = keep(torch.arange(T, device=log_pi.device).expand(whole["log_pi"].shape)).reshape(-1, log_pi.shape[-1])[0]
    for array in DIFFERENTIATED:
        if array in of_steps:
            whole[array] = whole[array].index_copy(-1, mine, of_steps[array])
    result = loss(name, **whole, **options)
    return result._replace(
        terms={n: keep(term) for n, term in result.terms.items()},
        arrays={n: keep(array) for n, array in result.arrays.items()},
    )
