"""Facts that live on the trace: the policy it evaluates, constants that belong to policies, an upper bound of β."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import offtrace as ot
from helpers import BUILT_IN, name_of
from offtrace.mdps import garnet, random_policy
from offtrace.operators import Operator, falsify_objective
from offtrace.operators.falsify import _Search


@pytest.mark.parametrize(
    "trace", [ot.CTrace(mix=0.3, rate=0.8, lam=0.9), ot.AlphaRetrace(mix=0.3, lam=0.9)], ids=name_of
)
def test_the_search_climbs_on_the_operator(trace: ot.Trace) -> None:
    """The objective of `falsify` and the operator's spectral radius agree where the target is a mixture."""
    search = _Search(trace, 3, 2, 0.98)
    theta = np.random.default_rng(0).normal(size=(4, 6 * 5))
    h = np.full(4, 0.5)
    P, pi, mu = falsify_objective.decode(theta, 3, 2, h, np.full(4, 2.0))
    found = np.abs(search._eigenvalues(P, pi, mu, h)).max(axis=1)
    for at in range(4):
        radius = search._operator(P[at], pi[at], mu[at]).spectral_radius
        assert radius.lower - 1e-3 <= found[at] <= radius.upper + 1e-3


@pytest.mark.parametrize("trace", BUILT_IN, ids=name_of)
def test_no_coefficient_is_above_the_bound(trace: ot.Trace) -> None:
    rng = np.random.default_rng(0)
    no = np.zeros(30, bool)
    logs = {"log_pi": np.log(rng.uniform(0.01, 1, 30)), "log_mu": np.log(rng.uniform(0.01, 1, 30)), "greedy": no | True}
    assert ot.coefficients(trace, terminated=no, truncated=no, **logs).max() <= trace.largest


def test_abq_has_the_published_constants() -> None:
    """ψ0 = 1/max max(μ, π), ψ_max = 1/min max(μ, π) over the pairs with max(μ, π) > 0."""
    pi, mu = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]]), np.array([[0.5, 0.5, 0.0], [0.6, 0.3, 0.1]])
    trace = ot.ABQ.from_policies(0.8, pi, mu)
    assert (trace.zeta, trace.psi0, trace.psi_max) == (0.8, 1 / 0.9, 1 / 0.3)
    assert trace.psi == pytest.approx(2 * 0.8 / 0.9 + 0.6 * (1 / 0.3 - 2 / 0.9))
    rng = np.random.default_rng(0)
    mdp = garnet(6, 3, 2, seed=0, gamma=0.9)
    pi, mu = random_policy(mdp, rng), random_policy(mdp, rng)
    both = np.maximum(pi, mu)
    wanted = ot.ABQ(0.7, psi0=1 / both.max(), psi_max=1 / both.min())
    assert Operator(ot.ABQ(0.7), mdp, target=pi, behavior=mu).trace == wanted


def test_abq_without_its_constants_says_what_to_do() -> None:
    zero, no = np.zeros(3), np.zeros(3, bool)
    given = {"reward": zero, "q": zero, "next_value": zero, "terminated": no, "truncated": no, "gamma": 0.9}
    with pytest.raises(ValueError, match=r"ABQ\.from_policies\(zeta, target, behavior\), or give psi0 and psi_max"):
        ot.targets(ot.ABQ(0.5), log_pi=zero, log_mu=zero, **given)
    assert replace(ot.ABQ(0.5), psi0=1.0).psi == 1.0
    with pytest.raises(ValueError, match="target has shape"):
        ot.ABQ.from_policies(0.5, np.ones((2, 1)), np.ones(2))
