"""Expected gradients, exactly: every trajectory of a small MDP, weighed by its probability under μ.

Two states, two actions, three steps; π has a parameter for each step, state and action. What must come out is known in closed
form.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

import offtrace as ot
from helpers import KINDS
from offtrace import policy

T, S, A, GAMMA = 3, 2, 2, 0.9
KIND = pytest.mark.parametrize("kind", ["torch", "jax"])


class World(NamedTuple):
    theta: np.ndarray
    """The logits of π, [T, S, A]."""
    pi: np.ndarray
    mu: np.ndarray
    P: np.ndarray
    """P(s'|s, a), [S, A, S]."""
    R: np.ndarray
    start: np.ndarray

    def q(self, policy: np.ndarray) -> np.ndarray:
        """Q of a policy, or of any weights of actions, with t steps behind it, [T, S, A]."""
        found = np.zeros((T + 1, S, A))
        for t in reversed(range(T)):
            value = 0.0 if t == T - 1 else (policy[t + 1] * found[t + 1]).sum(-1)
            found[t] = self.R + GAMMA * self.P @ (value + np.zeros(S))
        return found[:T]

    @property
    def visits(self) -> np.ndarray:
        """d_μ, [T, S]."""
        found = [self.start]
        for t in range(T - 1):
            found.append(np.einsum("s,sa,sax->x", found[-1], self.mu[t], self.P))
        return np.array(found)

    def gradient(self, factor: np.ndarray) -> np.ndarray:
        """Σ_s d_μ(s) Σ_a factor(s, a) ∇log π(a|s), by θ."""
        return self.visits[..., None] * (factor - self.pi * factor.sum(-1, keepdims=True))


@cache
def world() -> World:
    rng = np.random.default_rng(5)
    theta = rng.normal(size=(T, S, A))
    pi = np.exp(theta) / np.exp(theta).sum(-1, keepdims=True)
    mu = rng.uniform(0.15, 0.85, (T, S, 1))
    P = rng.dirichlet([1.0, 1.0], (S, A))
    return World(theta, pi, np.concatenate([mu, 1 - mu], -1), P, rng.normal(size=(S, A)), np.array([0.3, 0.7]))


class Rows(NamedTuple):
    """Every trajectory, [N, T], and its probability [N]."""

    state: np.ndarray
    action: np.ndarray
    chance: np.ndarray
    steps: dict[str, Any]


@cache
def rows() -> Rows:
    w = world()
    every = np.array(list(product(*[range(S), range(A)] * T)))
    state, action = every[:, ::2], every[:, 1::2]
    chance = w.start[state[:, 0]].copy()
    for t in range(T):
        chance *= w.mu[t, state[:, t], action[:, t]]
        if t + 1 < T:
            chance *= w.P[state[:, t], action[:, t], state[:, t + 1]]
    end = np.zeros(state.shape, bool)
    end[:, -1] = True
    steps = {"reward": w.R[state, action], "terminated": end, "truncated": np.zeros(state.shape, bool), "gamma": GAMMA}
    return Rows(state, action, chance, steps)


def at(table: np.ndarray) -> np.ndarray:
    """A table [T, S] or [T, S, A] along the rows."""
    return table[np.arange(T), rows().state]


def after(table: np.ndarray) -> np.ndarray:
    """A table of states [T, S], one step later; NaN after the end."""
    values = at(table)
    return np.concatenate([values[:, 1:], np.full((len(values), 1), np.nan)], 1)


def expected(kind: str, loss: Any, given: dict[str, Any], terms: tuple[str, ...], *, over_actions: bool) -> np.ndarray:
    """The gradient by θ of the expected sum over a trajectory of minus these terms."""
    x = rows()
    fixed = {name: KINDS[kind](a) if isinstance(a, np.ndarray) else a for name, a in (x.steps | given).items()}

    def value(theta: Any, xp: Any, log_softmax: Any) -> Any:
        log_pi = log_softmax(theta, -1)[np.arange(T), x.state]
        if not over_actions:
            log_pi = log_pi[np.arange(len(x.state))[:, None], np.arange(T), x.action]
        found = loss(log_pi=log_pi, **fixed)
        return -(xp.asarray(x.chance)[:, None] * sum(found.terms[term] for term in terms)).sum()

    if kind == "torch":
        import torch

        theta = torch.tensor(world().theta, requires_grad=True)
        value(theta, torch, torch.log_softmax).backward()
        assert theta.grad is not None
        return theta.grad.numpy()
    import jax

    with jax.enable_x64(True):
        fixed |= {name: jax.numpy.asarray(a) for name, a in (x.steps | given).items() if isinstance(a, np.ndarray)}
        return np.asarray(
            jax.grad(lambda theta: value(theta, jax.numpy, jax.nn.log_softmax))(jax.numpy.asarray(world().theta))
        )


def wrong(q: np.ndarray) -> np.ndarray:
    """Another critic than the right one."""
    return q + np.random.default_rng(1).normal(size=q.shape)


def critic(q: np.ndarray) -> dict[str, Any]:
    """The arrays that a critic gives along the rows."""
    return {"q": at(q), "next_value": after((world().pi * q).sum(-1)), "action": rows().action}


def acer(kind: str, trace: ot.Trace, q: np.ndarray, c: float, *, corrected: bool = True) -> np.ndarray:
    given = critic(q) | {"log_mu": at(np.log(world().mu))}
    terms = ("policy", "correction") if corrected else ("policy",)
    return expected(kind, lambda **x: policy.acer(trace, **x, bound=c), given, terms, over_actions=True)


def true_gradient() -> np.ndarray:
    """Σ_s d_μ(s) Σ_a ∇π(a|s) Q^π(s, a)."""
    w = world()
    return w.gradient(w.pi * w.q(w.pi))


@KIND
def test_acer_without_a_bound_is_right_whatever_the_critic(kind: str) -> None:
    """The targets of importance sampling are Q^π on average, whatever Q is."""
    w = world()
    np.testing.assert_allclose(
        acer(kind, ot.ImportanceSampling(), wrong(w.q(w.pi)), np.inf), true_gradient(), atol=1e-12
    )


@KIND
@pytest.mark.parametrize("c", [0.0, 0.7, 1.5])
def test_acer_with_a_bound_is_right_where_the_critic_is_and_plain_truncation_is_not(kind: str, c: float) -> None:
    w = world()
    q, trace = w.q(w.pi), ot.NonMarkovRetrace(lam=0.9)
    np.testing.assert_allclose(acer(kind, trace, q, c), true_gradient(), atol=1e-12)
    plain = acer(kind, trace, q, c, corrected=False)
    assert np.linalg.norm(plain - true_gradient()) > 0.05 * np.linalg.norm(true_gradient())
    # What plain truncation leaves out is what the second term holds.
    advantage = q - (w.pi * q).sum(-1, keepdims=True)
    lost = w.gradient(np.maximum(0.0, w.pi - c * w.mu) * advantage)
    np.testing.assert_allclose(plain, true_gradient() - lost, atol=1e-12)


def test_acer_with_a_bound_and_a_wrong_critic_is_off_by_what_the_critic_is_off() -> None:
    w = world()
    q = wrong(w.q(w.pi))
    off = w.gradient(np.maximum(0.0, w.pi - 0.7 * w.mu) * (q - w.q(w.pi)))
    found = acer("torch", ot.ImportanceSampling(), q, 0.7)
    np.testing.assert_allclose(found, true_gradient() + off, atol=1e-12)
    assert np.linalg.norm(off) > 0.05 * np.linalg.norm(true_gradient())


@KIND
def test_acer_with_samples_is_right_on_average(kind: str) -> None:
    """Every pair of a trajectory and one sample in each state: as if the sample were drawn from π, by its chance."""
    w = world()
    q = w.q(w.pi)
    found = np.zeros_like(w.theta)
    taken = np.arange(len(rows().state))[:, None], np.arange(T), rows().action
    given = {"q": at(q)[taken], "value": at((w.pi * q).sum(-1)), "next_value": after((w.pi * q).sum(-1))}
    given["log_mu"] = at(np.log(w.mu))[taken]
    log_pi = at(np.log(w.pi))
    for a in range(A):
        sampled = {f"sampled_{name}": at(t)[..., a, None] for name, t in (("q", q), ("log_mu", np.log(w.mu)))}

        def loss(a: int = a, sampled: Any = sampled, **x: Any) -> Any:
            every = x.pop("log_pi")
            one = every[..., a : a + 1]
            made = policy.acer_sampled(ot.Retrace(), **x, log_pi=every[taken], sampled_log_pi=one, bound=0.7)
            weight = KINDS[kind](np.exp(log_pi[..., a]))
            return made._replace(terms={name: term * weight for name, term in made.terms.items()})

        found += expected(kind, loss, given | sampled, ("policy", "correction"), over_actions=True)
    np.testing.assert_allclose(found, true_gradient(), atol=1e-12)


@KIND
def test_reactor_is_off_by_what_its_bound_leaves_to_the_critic(kind: str) -> None:
    w = world()
    taken = np.arange(len(rows().state))[:, None], np.arange(T), rows().action
    for q in (w.q(w.pi), wrong(w.q(w.pi))):
        for c in (1.0, 2.0, np.inf):
            given = critic(q) | {"log_mu": at(np.log(w.mu))[taken]}
            found = expected(
                kind,
                lambda c=c, **x: policy.reactor(ot.ImportanceSampling(), **x, bound=c),
                given,
                ("policy",),
                over_actions=True,
            )
            off = w.gradient(w.pi * (1 - w.mu * np.minimum(c, 1 / w.mu)) * (q - w.q(w.pi)))
            np.testing.assert_allclose(found, true_gradient() + off, atol=1e-12)


@KIND
@pytest.mark.parametrize("bar", [0.8, np.inf])
def test_vtrace_is_the_gradient_of_the_policy_that_it_evaluates(kind: str, bar: float) -> None:
    w = world()
    passed = np.minimum(bar * w.mu, w.pi)
    between = passed / passed.sum(-1, keepdims=True)
    q = w.q(between)
    value = (between * q).sum(-1)
    taken = np.arange(len(rows().state))[:, None], np.arange(T), rows().action
    given = {"value": at(value), "next_value": after(value), "log_mu": at(np.log(w.mu))[taken]}
    found = expected(kind, lambda **x: policy.vtrace(**x, rho_bar=bar, lam=0.9), given, ("policy",), over_actions=False)
    np.testing.assert_allclose(found, w.gradient(passed * (q - value[..., None])), atol=1e-12)
    if bar == np.inf:
        np.testing.assert_allclose(found, true_gradient(), atol=1e-12)


@KIND
@pytest.mark.parametrize("trace", [ot.RBIS(lam=0.9), ot.TreeBackup()])
def test_a_state_critic_with_any_trace(kind: str, trace: ot.Trace) -> None:
    """Where V = V^π, every trace gives the same expected gradient, since δ carries ρ whole."""
    w = world()
    q = w.q(w.pi)
    value = (w.pi * q).sum(-1)
    taken = np.arange(len(rows().state))[:, None], np.arange(T), rows().action
    given = {"value": at(value), "next_value": after(value), "log_mu": at(np.log(w.mu))[taken]}
    found = expected(kind, lambda **x: policy.vtrace(trace, **x), given, ("policy",), over_actions=False)
    np.testing.assert_allclose(found, true_gradient(), atol=1e-12)


@KIND
def test_the_clipped_surrogate_is_the_policy_gradient_where_nothing_is_clipped(kind: str) -> None:
    """With π = π_prox, and μ another policy: the weight π_prox/μ makes up for it. Without the weight it does not."""
    w = world()
    q = w.q(w.pi)
    taken = np.arange(len(rows().state))[:, None], np.arange(T), rows().action
    logs = {"log_prox": at(np.log(w.pi))[taken], "log_mu": at(np.log(w.mu))[taken]}
    advantage = at(q - (w.pi * q).sum(-1, keepdims=True))[taken]

    def loss(log_mu: Any = None, **x: Any) -> Any:
        made = {"log_pi": x["log_pi"], "log_prox": x["log_prox"], "advantage": x["advantage"], "log_mu": log_mu}
        return policy.clipped(**made)

    found = expected(kind, loss, logs | {"advantage": advantage}, ("policy",), over_actions=False)
    np.testing.assert_allclose(found, true_gradient(), atol=1e-12)
    del logs["log_mu"]
    plain = expected(kind, loss, logs | {"advantage": advantage}, ("policy",), over_actions=False)
    assert np.linalg.norm(plain - true_gradient()) > 0.05 * np.linalg.norm(true_gradient())


@pytest.mark.parametrize("trace", [ot.FlattenedIS(kappa=0.5, bound=1.0), ot.NonMarkovRetrace(), ot.QLambda()])
def test_with_its_own_ratio_whole_a_token_has_no_gradient_from_what_all_advantages_share(trace: ot.Trace) -> None:
    taken = np.arange(len(rows().state))[:, None], np.arange(T), rows().action
    given = {"log_mu": at(np.log(world().mu))[taken], "advantage": np.ones(rows().state.shape)}

    def gradient(own: float | None) -> np.ndarray:
        return expected(
            "torch",
            lambda **x: policy.weighted(trace, **{n: x[n] for n in ("log_pi", "log_mu", "advantage")}, own=own),
            given,
            ("policy",),
            over_actions=False,
        )

    np.testing.assert_allclose(gradient(np.inf), 0.0, atol=1e-14)
    assert np.abs(gradient(None)).max() > 1e-3


def short_rows() -> tuple[np.ndarray, ...]:
    """All rows of at most three tokens, of which 0 ends a row: tokens, which are there, and their chances under μ."""
    token = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
    there = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]], bool)
    return token, there, np.array([0.5, 0.9, 2.0, -1.0])


def gradient_of_batches(n: int, level: str, mean: str, advantage: str) -> tuple[np.ndarray, np.ndarray]:
    """E_μ of minus the loss's gradient over all batches of n rows, and ∇J; π has a logit for each step."""
    import torch

    token, there, reward = short_rows()
    logit, mu = torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64), np.array([0.35, 0.6, 0.3])
    pi = 1 / (1 + np.exp(-logit.numpy()))

    def row_chances(p: np.ndarray) -> np.ndarray:
        return np.where(there, np.where(token == 1, p, 1 - p), 1.0).prod(1)

    def row_returns(p: np.ndarray) -> float:
        return float(row_chances(p) @ reward)

    step = 1e-6 * np.eye(3)
    slope = pi * (1 - pi)
    wanted = np.array([row_returns(pi + e) - row_returns(pi - e) for e in step]) / 2e-6 * slope
    # Q^π(h, a): the mean return under π of the rows that begin alike
    alike = [
        [[(token[i, : t + 1] == token[j, : t + 1]).all() & there[i, t] for j in range(4)] for t in range(3)]
        for i in range(4)
    ]
    later = np.array(alike) * row_chances(pi)
    q = (later @ reward) / np.maximum(later.sum(-1), 1e-300)
    given = q if advantage == "q" else np.repeat(reward[:, None], 3, axis=1)
    log_mu = np.log(np.where(token == 1, mu, 1 - mu))
    chance, found = row_chances(mu), np.zeros(3)
    for rows in product(range(4), repeat=n):
        theta = logit.clone().requires_grad_()
        at = list(rows)
        log_pi = torch.nn.functional.logsigmoid(torch.tensor(2 * token[at] - 1) * theta)
        loss = policy.weighted(
            ot.ImportanceSampling(), log_pi=log_pi, log_mu=torch.tensor(log_mu[at]), mask=torch.tensor(there[at]),
            advantage=torch.tensor(given[at]), level=level, mean=mean,
        ).loss  # fmt: skip
        loss.backward()
        assert theta.grad is not None
        found -= chance[at].prod() * theta.grad.numpy()
    return found, wanted


@pytest.mark.parametrize("n", [1, 2, 3])
def test_which_mean_is_the_gradient_of_the_return_where_rows_differ_in_length(n: int) -> None:
    """By sequences with returns, and by prefixes with Q^π: each with the mean over rows of the sum over decisions."""
    for level, advantage in (("sequence", "return"), ("sequence", "q"), ("prefix", "q")):
        found, wanted = gradient_of_batches(n, level, "seq-mean-token-sum", advantage)
        np.testing.assert_allclose(found, wanted, rtol=1e-8, err_msg=f"{level}, {advantage}")
    turned, wanted = gradient_of_batches(n, "sequence", "token-mean", "return")
    assert turned @ wanted / np.linalg.norm(turned) / np.linalg.norm(wanted) < 0.999  # no step size mends this
    biased, wanted = gradient_of_batches(n, "prefix", "seq-mean-token-sum", "return")
    assert np.linalg.norm(biased - wanted) > 0.05 * np.linalg.norm(wanted)


@KIND
def test_the_prefix_is_the_weight_with_which_the_gradient_is_that_of_the_return(kind: str) -> None:
    """∇J, with states as π visits them: by prefixes and by sequences, and not by tokens."""
    w = world()
    q = w.q(w.pi)
    advantage = at(q - (w.pi * q).sum(-1, keepdims=True))
    taken = np.arange(len(rows().state))[:, None], np.arange(T), rows().action
    given = {"log_mu": at(np.log(w.mu))[taken], "advantage": advantage[taken]}
    by_pi = w._replace(mu=w.pi)
    gradient = by_pi.gradient(w.pi * q)

    def loss(level: str) -> Any:
        return lambda **x: policy.weighted(
            ot.ImportanceSampling(), log_pi=x["log_pi"], log_mu=x["log_mu"], advantage=x["advantage"], level=level
        )

    for level in ("prefix", "sequence"):
        found = expected(kind, loss(level), given, ("policy",), over_actions=False)
        np.testing.assert_allclose(found, gradient, atol=1e-12)
    tokens = expected(kind, loss("token"), given, ("policy",), over_actions=False)
    np.testing.assert_allclose(tokens, true_gradient(), atol=1e-12)
    assert np.linalg.norm(tokens - gradient) > 0.05 * np.linalg.norm(gradient)
