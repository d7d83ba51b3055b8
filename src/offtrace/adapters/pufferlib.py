"""PufferLib's advantage under its name and with its arguments, by V-trace or by any other trace.

    A_t = min(ρ_t, ρ̄) (r_{t+1} + γ v_{t+1} (1 − d_{t+1}) − v_t) + γλ min(ρ_t, c̄) (1 − d_{t+1}) A_{t+1},      A_{T−1} = 0

Its arrays hold at t + 1 what followed the action at t. This is the `correction` of `offtrace.state_targets` with V-trace.
"""

from __future__ import annotations

from offtrace._shared.extras import install

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(f"offtrace.adapters.pufferlib needs PyTorch ({error}): {install('torch')}") from None

from torch import Tensor

from offtrace.returns.api import state_targets
from offtrace.traces import Trace, VTrace


def compute_puff_advantage(
    values: Tensor,
    rewards: Tensor,
    terminals: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    gamma: float,
    gae_lambda: float,
    vtrace_rho_clip: float,
    vtrace_c_clip: float,
    *,
    trace: Trace | None = None,
) -> Tensor:
    """`pufferlib.pufferl.compute_puff_advantage`: written into `advantages` [segments, horizon], and returned.

    With a `trace` that is the rule, in the place of V-trace by `gae_lambda` and the two bounds.

    >>> values, rewards, zero = torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 2.0]]), torch.zeros(1, 3)
    >>> ratio = torch.tensor([[2.0, 0.5, 1.0]])
    >>> compute_puff_advantage(values, rewards, zero, ratio, torch.empty(1, 3), 0.5, 1.0, 1.0, 1.0)
    tensor([[1.5000, 1.0000, 0.0000]])
    """
    ended = terminals[:, 1:] != 0
    rule = trace or VTrace(lam=gae_lambda, rho_bar=vtrace_rho_clip, c_bar=vtrace_c_clip)
    result = state_targets(
        rule,
        reward=rewards[:, 1:].contiguous(),
        value=values[:, :-1].contiguous(),
        next_value=values[:, 1:].contiguous(),
        terminated=ended,
        truncated=torch.zeros_like(ended),
        log_pi=ratio[:, :-1].log(),
        log_mu=torch.zeros_like(ratio[:, :-1]),
        gamma=gamma,
    )
    advantages[:, :-1] = result.correction
    advantages[:, -1] = 0.0
    return advantages
