"""The adapter of tianshou, against the library itself. `make peers` makes its environment."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou")

import torch
from tianshou.algorithm import Algorithm  # pyright: ignore[reportMissingImports]
from tianshou.data import Batch, ReplayBuffer  # pyright: ignore[reportMissingImports]

import offtrace as ot
from offtrace.adapters.tianshou import compute_episodic_return, compute_nstep_return
from offtrace.returns import by_definition


def filled(seed: int, steps: int = 50, size: int = 37) -> Any:
    rng = np.random.default_rng(seed)
    buffer = ReplayBuffer(size)
    for _ in range(steps):
        end, cut = rng.random(2) < 0.1
        buffer.add(Batch(obs=rng.normal(), act=0, rew=rng.normal(), terminated=end, truncated=cut and not end))
    return buffer


@pytest.mark.parametrize("seed", range(5))
def test_without_a_trace_the_numbers_are_theirs(seed: int) -> None:
    buffer, rng = filled(seed), np.random.default_rng(seed)
    batch, indices = buffer.sample(0)
    v, after = rng.normal(size=(2, len(indices)))
    for given in ((after,), (after, v), (torch.as_tensor(after), torch.as_tensor(v))):
        theirs = Algorithm.compute_episodic_return(batch, buffer, indices, *given, gamma=0.9, gae_lambda=0.8)
        ours = compute_episodic_return(batch, buffer, indices, *given, gamma=0.9, gae_lambda=0.8)
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    drawn = rng.integers(0, len(buffer), 20)
    for shape in ((-1,), (-1, 1), (-1, 2)):

        def target(_: Any, at: Any, shape: Any = shape) -> torch.Tensor:
            wide = after[at] if shape[-1] != 2 else np.stack([after[at], v[at]], 1)
            return torch.as_tensor(wide).reshape(shape)

        for n in (1, 3, 60):
            theirs = Algorithm.compute_nstep_return(buffer[drawn], buffer, drawn, target, 0.9, n).returns
            ours = compute_nstep_return(buffer[drawn], buffer, drawn, target, 0.9, n).returns
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs)


def test_a_trace_corrects_n_step_returns() -> None:
    buffer, rng = filled(7), np.random.default_rng(7)
    names = ("q", "next_value", "log_pi", "log_mu")
    held = dict(zip(names, rng.normal(size=(4, len(buffer))), strict=True))
    held |= {name: np.log(rng.uniform(0.2, 1, len(buffer))) for name in ("log_pi", "log_mu")}
    indices, n = np.arange(len(buffer)), 6
    trace = ot.NonMarkovRetrace(lam=0.9)

    def values(_: Any, at: np.ndarray) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(x[at]) for name, x in held.items()}

    never: Any = None
    made = compute_nstep_return(buffer[indices], buffer, indices, never, 0.9, n, trace=trace, values_fn=values).returns
    unfinished = set(buffer.unfinished_index().tolist())
    for i in indices:
        steps = [int(i)]
        while len(steps) < n and not buffer.done[steps[-1]] and steps[-1] not in unfinished:
            steps.append((steps[-1] + 1) % len(buffer))
        row: Any = {name: x[steps].tolist() for name, x in held.items()} | {"reward": buffer.rew[steps].tolist()}
        row |= {"terminated": buffer.terminated[steps].tolist(), "truncated": buffer.truncated[steps].tolist()}
        Δ, _ = by_definition.corrections(trace, **row, gamma=0.9)
        assert made[i, 0].item() == pytest.approx(row["q"][0] + Δ[0])


def test_a_trace_of_state_values() -> None:
    buffer, rng = filled(3, steps=30), np.random.default_rng(3)
    batch, indices = buffer.sample(0)
    v, after, log_pi, log_mu = rng.normal(size=(4, len(indices))) * 0.3
    given: Any = {"v_s_": after, "v_s": v, "log_pi": -np.abs(log_pi), "log_mu": -np.abs(log_mu)}
    returns, advantage = compute_episodic_return(batch, buffer, indices, **given, gamma=0.9, trace=ot.VTrace())
    flags = {name: np.asarray(batch[name], bool) for name in ("terminated", "truncated")}
    named = {"value": v, "next_value": after, "log_pi": given["log_pi"], "log_mu": given["log_mu"]}
    made = ot.state_targets(ot.VTrace(), reward=batch.rew, **flags, **named, gamma=0.9)
    np.testing.assert_allclose((returns, advantage), (made.target, made.advantage))


def test_steps_that_do_not_follow_do_not_learn_from_each_other() -> None:
    buffer = filled(1)
    indices = np.array([3, 9, 20])
    after, v = np.arange(3.0), np.ones(3)
    returns, _ = compute_episodic_return(buffer[indices], buffer, indices, after, v, gamma=0.9)
    np.testing.assert_allclose(returns, buffer.rew[indices] + 0.9 * after * ~buffer.terminated[indices])


def test_what_is_missing_is_said() -> None:
    buffer = filled(1)
    batch, indices = buffer.sample(0)
    never: Any = None
    with pytest.raises(ValueError, match="v_s_ is missing"):
        compute_episodic_return(batch, buffer, indices)
    with pytest.raises(TypeError, match="v_s and log_pi and log_mu missing"):
        compute_episodic_return(batch, buffer, indices, np.zeros(len(indices)), trace=ot.VTrace())
    with pytest.raises(TypeError, match="values_fn is missing"):
        compute_nstep_return(batch, buffer, indices, never, trace=ot.Retrace())
    with pytest.raises(ValueError, match="pass one for each"):
        compute_nstep_return(batch, buffer, indices[:2], never)
