"""The shards of a row as one process of a group of torch.distributed sees them.

A process whose arrays are bad says so to the others before it raises, so that nobody waits for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from offtrace.arrays import is_number
from offtrace.returns.sharded.exchange import Sent
from offtrace.returns.sharded.local_steps import Steps
from offtrace.returns.torch.torch_backend import BACKEND

if TYPE_CHECKING:
    from torch import distributed

Made = TypeVar("Made")


def device_of(arrays: Mapping[str, object]) -> torch.device:
    """Where the tensors are, and so where messages are made."""
    for name, array in arrays.items():
        if array is not None and not (name == "gamma" and is_number(array)):
            return BACKEND.array(name, array).device
    raise TypeError("there is no tensor: pass log_pi and log_mu, or the mask of the decisions")


class ProcessGroup:
    """The shards of a row as one process of a group sees them."""

    def __init__(self, group: distributed.ProcessGroup | None, device: torch.device, sent: Sent) -> None:
        from torch import distributed

        self.group, self.device, self.sent = group, device, sent
        self.size, self.rank = distributed.get_world_size(group), distributed.get_rank(group)
        if self.rank < 0:
            raise ValueError("this process is not in the process_group: only those that hold shards may call")

    def gather(self, what: str, array: Tensor) -> Tensor:
        """The tensors of all processes."""
        self.sent.add(what, array.numel())
        return torch.stack(self._gathered(array.contiguous()))

    def _gathered(self, array: Tensor) -> list[Tensor]:
        from torch import distributed

        found = [torch.empty_like(array) for _ in range(self.size)]
        gather: Callable[..., object] = distributed.all_gather
        gather(found, array, group=self.group)
        return found

    def numbers(self, what: str, *ours: int) -> list[list[int]]:
        """A few whole numbers of each process."""
        return self.gather(what, torch.tensor(ours, device=self.device)).tolist()

    def all_agree(
        self,
        make: Callable[[], Made],
        *,
        alike: object = None,
        shape: Callable[[Made], tuple[int, ...]] = lambda made: (),
    ) -> tuple[Made, int]:
        """What `make` gives, and the length of the whole row, if it raises in no process and all have called alike."""
        error, made, rows, steps = None, None, 0, 0
        mark = zlib.crc32(repr(alike).encode())
        try:
            made = make()
            *first, steps = shape(made) or (0, 0)
            rows = first[0] if first else 1
        except Exception as problem:
            error = problem
        told = self.numbers("agreement", int(error is not None), rows, steps, mark)
        if error is not None or made is None:
            raise error or TypeError("nothing was made")
        for rank, (bad, count, _, other) in enumerate(told):
            if bad:
                raise RuntimeError(
                    f"the arrays of rank {rank} of the process group are bad: its own error says what is wrong"
                )
            if count != rows:
                raise ValueError(
                    f"this shard has {rows} rows, but that of rank {rank} has {count}: each rank must hold its part of every row"
                )
            if other != mark:
                raise ValueError(
                    f"rank {rank} called with another rule, or with other options or arrays, than this rank, which has {alike}: "
                    "all ranks must call alike"
                )
        return made, sum(steps for _, _, steps, _ in told)

    def share_steps(self, steps: Steps, count: Tensor) -> list[Steps]:
        """The short rows of all processes, in one message: how many steps each row has, and then these."""
        N = len(count)
        ours = torch.arange(steps.delta.shape[1], device=self.device) < count[:, None]
        packed = torch.stack([a[ours] for a in steps])
        most = max(n for (n,) in self.numbers("how many steps", packed.shape[1]))
        message = torch.zeros(N + 4 * most, dtype=torch.float64, device=self.device)
        message[:N] = count
        message[N:].view(4, most)[:, : packed.shape[1]] = packed
        found = self.gather("short rows", message)
        self.sent.steps += most
        return [_unpacked(part[:N].long(), part[N:].view(4, most)) for part in found]


def _unpacked(count: Tensor, packed: Tensor) -> Steps:
    """The short rows of one process, each with steps behind it that change nothing."""
    width = int(count.max())
    theirs = torch.arange(width, device=count.device) < count[:, None]
    found: list[Tensor] = []
    for array, idle in zip(packed, (0.0, 1.0, 1.0, 1.0), strict=True):
        whole = torch.full(theirs.shape, idle, dtype=torch.float64, device=count.device)
        whole[theirs] = array[: int(count.sum())]
        found.append(whole)
    last = found[3].gather(1, count[:, None] - 1)  # x is below the last cap already
    delta, into, ratio, cap = found
    return Steps(delta, into, ratio, torch.where(theirs, cap, last))
