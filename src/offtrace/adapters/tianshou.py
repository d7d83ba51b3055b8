"""tianshou's `compute_episodic_return` and `compute_nstep_return`, with the same arguments and results, and any trace.

They take the place of the static methods of those names of tianshou's `Algorithm`, in a subclass or in the class itself. Without
a trace the numbers are tianshou's. One thing is otherwise: where a step of a batch is not followed by the next one in the
buffer, as in a uniform sample, `compute_episodic_return` cuts the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offtrace._shared.extras import install

try:
    import numpy as np
    import torch
    from tianshou.data import ReplayBuffer, to_numpy, to_torch_as  # pyright: ignore[reportMissingImports]
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"offtrace.adapters.tianshou needs tianshou ({error}): {install('tianshou')}") from None

from offtrace.returns import state_targets, targets
from offtrace.traces import NStep, QLambda, Rule, Trace

__all__ = ["compute_episodic_return", "compute_nstep_return"]


def compute_episodic_return(
    batch: Any,
    buffer: ReplayBuffer,
    indices: np.ndarray,
    v_s_: np.ndarray | Tensor | None = None,
    v_s: np.ndarray | Tensor | None = None,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    *,
    trace: Trace | None = None,
    log_pi: np.ndarray | Tensor | None = None,
    log_mu: np.ndarray | Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns and advantages [N] of the steps buffer[indices], for V(s). Without a trace: GAE, by `gae_lambda`.

    With a trace, such as `VTrace()`, `v_s`, `v_s_` and log π and log μ of the actions taken are needed, each [N]; λ is the
    trace's, and the results are the `target` and the `advantage` of `offtrace.state_targets`.

    >>> from tianshou.data import Batch
    >>> buffer = ReplayBuffer(4)
    >>> for end in (False, False, True):
    ...     _ = buffer.add(Batch(obs=0, act=0, rew=1.0, terminated=end, truncated=False))
    >>> batch, indices = buffer.sample(0)
    >>> compute_episodic_return(batch, buffer, indices, gamma=0.5, gae_lambda=1.0)[0]
    array([1.75, 1.5 , 1.  ])
    """
    reward = np.asarray(batch.rew, float)
    terminated = np.asarray(buffer.terminated[indices], bool)
    next_value = np.zeros_like(reward) if v_s_ is None else _row(v_s_)
    if v_s_ is None and not np.isclose(gae_lambda, 1.0):
        raise ValueError(f"v_s_ is missing, which only a gae_lambda of 1 does without: it is {gae_lambda}")
    value = np.roll(next_value * ~terminated, 1) if v_s is None else _row(v_s)
    end = np.asarray(batch.terminated, bool) | np.asarray(batch.truncated, bool)
    end |= np.isin(indices, buffer.unfinished_index())
    end[:-1] |= buffer.next(indices)[:-1] != indices[1:]
    given = {"reward": reward, "next_value": next_value, "terminated": terminated, "truncated": end & ~terminated}
    if trace is None:
        returns = targets(QLambda(lam=gae_lambda), q=value, **given, gamma=gamma)
        return returns, returns - value
    missing = [name for name, x in {"v_s_": v_s_, "v_s": v_s, "log_pi": log_pi, "log_mu": log_mu}.items() if x is None]
    if log_pi is None or log_mu is None or missing:
        raise TypeError(f"{' and '.join(missing)} missing: a trace needs the values of states, log π and log μ")
    result = state_targets(trace, value=value, **given, log_pi=_row(log_pi), log_mu=_row(log_mu), gamma=gamma)
    return result.target, result.advantage


def compute_nstep_return(
    batch: Any,
    buffer: ReplayBuffer,
    indices: np.ndarray,
    target_q_fn: Callable[[ReplayBuffer, np.ndarray], Tensor],
    gamma: float = 0.99,
    n_step: int = 1,
    *,
    trace: Rule | None = None,
    values_fn: Callable[[ReplayBuffer, np.ndarray], dict[str, Any]] | None = None,
) -> Any:
    """The batch, with `returns` [I, A] of the steps buffer[indices], where `target_q_fn` gives [I] or [I, A].

    Without a trace they are the uncorrected n-step returns. With one, they are its targets [I, 1] on `n_step` steps from each
    index on, up to the end of the episode. `values_fn(buffer, indices)` then gives, for indices [M], arrays or tensors [M]
    under the names "q", "next_value", "log_pi" and "log_mu", as `offtrace.from_action_values` makes them; `target_q_fn` is then
    not called.

    >>> from tianshou.data import Batch
    >>> buffer = ReplayBuffer(4)
    >>> for end in (False, False, True):
    ...     _ = buffer.add(Batch(obs=0, act=0, rew=1.0, terminated=end, truncated=False))
    >>> batch, indices = buffer.sample(0)
    >>> compute_nstep_return(batch, buffer, indices, lambda _, i: torch.ones(len(i)), gamma=0.5,
    ...                      n_step=2).returns[:, 0]
    tensor([1.7500, 1.5000, 1.0000])
    """
    if len(indices) != len(batch):
        raise ValueError(f"the batch has {len(batch)} steps, and there are {len(indices)} indices: pass one for each")
    columns = [indices]
    for _ in range(n_step - 1):
        columns.append(buffer.next(columns[-1]))  # an end, or the newest step, is its own next
    at = np.stack(columns, axis=1)
    unfinished = np.isin(at, buffer.unfinished_index())
    terminated = np.asarray(buffer.terminated[at], bool)
    ends = {"terminated": terminated, "truncated": (np.asarray(buffer.done[at], bool) | unfinished) & ~terminated}
    given = {"reward": np.asarray(buffer.rew[at], float), **ends}
    if trace is None:
        with torch.no_grad():
            like = target_q_fn(buffer, at[:, -1])
        values = to_numpy(like.reshape(len(indices), -1)).astype(float)
        rows = {name: np.repeat(x, values.shape[1], axis=0) for name, x in given.items()}
        # A start reads one next value, that of its last step; all columns hold it.
        next_value = np.repeat(values.reshape(-1, 1), n_step, axis=1)
        result = targets(NStep(n=n_step), **rows, next_value=next_value, gamma=gamma, time_major=False)[:, 0]
        result = result.reshape(values.shape)
    else:
        if values_fn is None:
            raise TypeError("values_fn is missing: a trace needs q, next_value, log π and log μ of the steps")
        with torch.no_grad():
            arrays = values_fn(buffer, at.ravel())
        like = next((x for x in arrays.values() if isinstance(x, Tensor) and x.is_floating_point()), torch.zeros(()))
        arrays = {name: to_numpy(x).reshape(at.shape) for name, x in arrays.items()}
        arrays = {name: x if x.dtype == bool else x.astype(float) for name, x in arrays.items()}
        result = targets(trace, **given, **arrays, gamma=gamma, time_major=False)[:, :1]
    batch.returns = to_torch_as(result, like)
    if hasattr(batch, "weight"):
        batch.weight = to_torch_as(batch.weight, like)
    return batch


def _row(x: np.ndarray | Tensor) -> np.ndarray:
    return np.asarray(to_numpy(x.flatten()), float)
