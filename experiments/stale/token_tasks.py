"""Tasks whose answers can be verified: a prompt of tokens is drawn, an answer of tokens is rewarded between 0 and 1.

The grid names them as in "reverse:length=6,symbols=12". Everything here is traced by JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True)
class TokenTask:
    """A task: lengths, a function that draws prompts, and one that rewards answers.

    >>> import jax
    >>> def draw(key, n):
    ...     return jax.random.randint(key, (n, 4), 0, 2)
    >>> def reward(prompts, answers):  # the parity of the prompt
    ...     return (prompts.sum(axis=1) % 2 == answers[:, 0]).astype(float)
    >>> TokenTask(tokens=2, prompt=4, answer=1, draw=draw, reward=reward).answer
    1
    """

    tokens: int
    """Tokens are 0, 1, … tokens − 1."""
    prompt: int
    """The length of a prompt."""
    answer: int
    """The length of an answer."""
    draw: Callable[[Array, int], Array]
    """(key, n) → n prompts, integers [n, prompt]."""
    reward: Callable[[Array, Array], Array]
    """(prompts [n, prompt], answers [n, answer]) → rewards [n] between 0 and 1. An answer is right where it is 1."""

    def __post_init__(self) -> None:
        for name in ("tokens", "prompt", "answer"):
            if getattr(self, name) < (2 if name == "tokens" else 1):
                raise ValueError(f"{name} = {getattr(self, name)} is too small for a task of tokens")


def share_right(solve: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    """Make the reward that is the share of tokens equal to those of `solve(prompts)` [n, answer]."""

    def reward(prompts: Array, answers: Array) -> Array:
        return (answers == solve(prompts)).mean(axis=1)

    return reward


def reverse(length: int = 6, symbols: int = 12) -> TokenTask:
    """Copy backwards."""
    return TokenTask(symbols, length, length, _uniform(length, symbols), share_right(lambda x: x[:, ::-1]))


def sort(length: int = 6, symbols: int = 12) -> TokenTask:
    """Put in order, smallest first."""
    return TokenTask(symbols, length, length, _uniform(length, symbols), share_right(lambda x: x.sort(axis=1)))


def addition(digits: int = 3, base: int = 10) -> TokenTask:
    """Add two numbers of `digits` digits modulo base^digits, with carried steps.

    The prompt has the digits of both numbers in pairs, the lowest first: a_0 b_0 a_1 b_1 …. The answer has for each place the
    digit of the sum and the carry out of it: d_0 c_0 d_1 c_1 …, with a_i + b_i + c_{i-1} = d_i + base c_i. The last carry is
    what the modulus drops.
    """

    def solve(prompts: Array) -> Array:
        import jax.numpy as jnp

        carry: Array | int = 0
        found: list[Array] = []
        for i in range(digits):
            total = prompts[:, 2 * i] + prompts[:, 2 * i + 1] + carry
            carry = total // base
            found += [total % base, carry]
        return jnp.stack(found, axis=1)

    return TokenTask(base, 2 * digits, 2 * digits, _uniform(2 * digits, base), share_right(solve))


def _uniform(length: int, symbols: int) -> Callable[[Array, int], Array]:
    def draw(key: Array, n: int) -> Array:
        import jax

        return jax.random.randint(key, (n, length), 0, symbols)

    return draw


TASKS: dict[str, Callable[..., TokenTask]] = {"reverse": reverse, "sort": sort, "addition": addition}
"""The tasks that the grid can name: add your own here."""
