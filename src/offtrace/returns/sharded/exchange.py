"""What passes between the shards of a row, and how many numbers that is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from offtrace.arrays import Module, Tensor
from offtrace.returns.weight_scan import Parts

if TYPE_CHECKING:
    import jax

    from offtrace.returns.sharded.local_steps import Steps


class One(NamedTuple):
    """One array."""

    array: Tensor


@dataclass
class Sent:
    """How many numbers this shard has sent to the others: pass one as `sent`, and read it after the call.

    It adds up over calls. Under `jax.jit` it counts when the program is traced, so once for each program.

    >>> Sent()
    0 numbers in 0 messages
    """

    numbers: int = 0
    """All numbers, with what pads them to the size of the largest shard's."""
    messages: int = 0
    steps: int = 0
    """Of a rule with a cap: the steps by which earlier shards know this one, of all rows, four numbers each, with padding."""
    calls: list[str] = field(default_factory=list[str], repr=False)
    """What each message held, and how many numbers that was."""

    def __repr__(self) -> str:
        of = f", {self.steps} steps among them" if self.steps else ""
        return f"{self.numbers} numbers in {self.messages} messages{of}"

    def add(self, what: str, numbers: int, steps: int = 0) -> None:
        """Count one message."""
        self.numbers, self.messages, self.steps = self.numbers + numbers, self.messages + 1, self.steps + steps
        self.calls.append(f"{what}: {numbers}")


class Exchange(Protocol):
    """The shards of a row, in the order of time, as one of them sees them."""

    size: int
    """How many there are."""
    rank: Any
    """The place of this one, which JAX does not know before the program runs."""
    sent: Sent

    def gather(self, what: str, array: Tensor) -> Tensor:
        """The arrays of all shards, [size, …], from one of each, in the same shape everywhere."""
        ...

    def share_steps(self, steps: Steps, count: Tensor) -> list[Steps]:
        """The short rows of all shards, from one of each: arrays [N, m], of which the first `count` [N] are steps of the row."""
        ...


def either(xp: Module, condition: bool | jax.Array, one: Parts, other: Parts) -> Parts:
    """One of two tuples of arrays, by a condition on ranks, which may be known before the program runs or not."""
    if isinstance(condition, bool):
        return one if condition else other
    return type(one)(*(xp.where(condition, a, b) for a, b in zip(one, other, strict=True)))
