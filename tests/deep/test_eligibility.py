"""Eligibility traces of trees, against `offtrace.Stream`, whose own tests hold it to the definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import offtrace as ot
from offtrace.deep.eligibility import Eligibility, of_action
from offtrace.deep.settings import Settings
from offtrace.traces import Trace, rules

γ, STEPS, SIZE = 0.9, 16, 5


class Online(Settings):
    """An agent that learns step by step, whichever."""

    learns_online = True


def cases() -> list[Trace]:
    """All rules that can be fed step by step, and some of them with a horizon."""
    found = [rule.examples() for rule in rules() if Online.refusal(rule) is None]
    traces = [trace for some in found if isinstance(trace := some[len(some) // 2], Trace)]
    some = (ot.RBIS(lam=0.9), ot.Retrace(lam=0.9), ot.TruncatedIS(bound=(0.5, 2.0, 1.0), lam=0.9))
    return [*traces, *(replace(trace, horizon=4) for trace in some)]


def followed(trace: Any, groups: int, seed: int = 0) -> tuple[Any, Any, list[np.ndarray], list[np.ndarray]]:
    """What is kept at the end, and z of every step, here and by Stream. Ends, ρ = 0 and huge ratios are among the steps."""
    rng = np.random.default_rng(seed)
    like = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(1)}
    made, stream = Eligibility(trace, like, groups), ot.Stream(trace, SIZE)
    kept, here, there = made.first(), [], []
    for t in range(STEPS):
        flat = rng.normal(size=SIZE).astype(np.float32).astype(np.float64)
        π, μ = rng.uniform(0.05, 0.95, 2)
        π, greedy, ended = π * (rng.random() > 0.1), bool(rng.random() > 0.3), t % 10 == 9
        tree = {"a": jnp.asarray(flat[:4].reshape(2, 2)), "b": jnp.asarray(flat[4:])}
        now = of_action(trace, jnp.asarray(π), jnp.asarray(μ), jnp.asarray(greedy))
        kept, z = made.step(trace, kept, γ, now, tree)
        kept = made.cleared(kept, jnp.asarray(ended))
        here.append(np.concatenate([np.ravel(z["a"]), z["b"]]))
        with np.errstate(divide="ignore"):
            step: Any = {
                "reward": 1.0,
                "q": 0.0,
                "next_value": 0.0,
                "terminated": ended,
                "truncated": False,
                "gamma": γ,
            }
            if trace.needs_pi and not trace.needs_greedy:
                step["log_pi"] = np.log(π)
            if trace.needs_greedy:
                step["greedy"] = greedy
            if trace.needs_mu:
                step["log_mu"] = np.log(μ)
            there.append(np.array(stream.step(flat, **step)))  # δ = 1, so that it is z
    return made, kept, here, there


@pytest.mark.parametrize("trace", cases(), ids=str)
def test_z_is_that_of_a_stream(trace: Any) -> None:
    made, kept, here, there = followed(trace, groups=11)
    for mine, wanted in zip(here, there, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=3e-4, atol=1e-4 * max(1.0, np.abs(wanted).max()))
    assert made.complaint(kept) is None


def test_too_few_groups_are_not_a_silent_error() -> None:
    made, kept, _, _ = followed(ot.NonMarkovRetrace(lam=0.9), groups=3)
    assert "NonMarkovRetrace" in repr(made.trace)
    assert "needs more than groups = 3 groups of starts" in str(made.complaint(kept))
