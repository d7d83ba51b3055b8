"""Right implementations are accepted: of every rule, in every kind of array and layout, and whatever is only rounding."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

import offtrace as ot
import plain_returns
from helpers import TRACES, name_of
from offtrace.testing import check_estimator

BY_STEP = ot.VariableLambda(lam=np.array([0.3, 0.9, 0.0, 1.0, 0.6, 0.8]))


@pytest.mark.parametrize("trace", [*(t for t in TRACES if not t.custom), BY_STEP], ids=name_of)
def test_every_rule(trace: Any) -> None:
    assert check_estimator(plain_returns.on_actions(trace), trace)


def test_custom_traces() -> None:
    """By the library's own loop in Python."""
    trace = next(t for t in TRACES if t.form == "history")
    assert check_estimator(partial(ot.targets, trace), trace)


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_uncorrected_returns(lam: float) -> None:
    def peng(reward, next_value, terminated, truncated, gamma, valid):
        G = np.zeros_like(reward)
        for t in reversed(range(reward.shape[1])):
            last = truncated[:, t] | (t + 1 == reward.shape[1])
            last |= False if last.all() else ~valid[:, min(t + 1, reward.shape[1] - 1)]
            ahead = np.where(
                last, next_value[:, t], (1 - lam) * next_value[:, t] + lam * G[:, min(t + 1, reward.shape[1] - 1)]
            )
            G[:, t] = reward[:, t] + gamma * ~terminated[:, t] * ahead
        return G

    assert check_estimator(peng, ot.PengQ(lam=lam))
    assert check_estimator(peng, ot.PengQ(lam=lam), values="state")


@pytest.mark.parametrize("n", [1, 3, 10])
def test_n_step_returns(n: int) -> None:
    def fn(reward, next_value, terminated, truncated, gamma):
        G = np.zeros_like(reward)
        for b, k in np.ndindex(reward.shape):
            for i in range(n):
                t = k + i
                G[b, k] += gamma**i * reward[b, t]
                if terminated[b, t]:
                    break
                if truncated[b, t] or t + 1 == reward.shape[1] or i == n - 1:
                    G[b, k] += gamma ** (i + 1) * next_value[b, t]
                    break
        return G

    check = check_estimator(fn, ot.NStep(n=n))
    assert check
    assert (
        check.steps == 4 * 4 * max(6, n + 3) + 4
    )  # long enough for n steps to end inside of a row; four rows of one step


@pytest.mark.parametrize(
    "trace", [ot.VTrace(lam=0.9, rho_bar=1.2, c_bar=1.5), ot.ImportanceSampling(lam=0.7)], ids=name_of
)
def test_state_values(trace: Any) -> None:
    """All three results, with a discount for each step."""

    def fn(reward, value, next_value, terminated, truncated, rho, gamma, valid):
        w, T = trace.delta_ratio(np, rho), reward.shape[1]
        _, c, _ = trace.normal_form(np, rho, rho, rho)
        correction, target, advantage = (np.zeros_like(value) for _ in range(3))
        for t in reversed(range(T)):
            on = ~(terminated[:, t] | truncated[:, t]) & (valid[:, t + 1] if t + 1 < T else False)
            late, v = (0.0, 0.0) if t + 1 == T else (correction[:, t + 1], target[:, t + 1])
            delta = reward[:, t] + gamma[:, t] * ~terminated[:, t] * next_value[:, t] - value[:, t]
            correction[:, t] = w[:, t] * delta + on * gamma[:, t] * trace.lam * c[:, t] * late
            target[:, t] = value[:, t] + correction[:, t]
            ahead = np.where(on, (1 - trace.lam) * next_value[:, t] + trace.lam * v, next_value[:, t])
            advantage[:, t] = w[:, t] * (reward[:, t] + gamma[:, t] * ~terminated[:, t] * ahead - value[:, t])
        return target, advantage, correction

    assert check_estimator(fn, trace, returns=("target", "advantage", "correction"), gamma="by step")


@pytest.mark.parametrize("layout", ["[T]", "[T, B]", "[B, T, 1]", "[T, B, 1]"])
def test_layouts(layout: Any) -> None:
    """The time axis is the only one that a λ-return goes along, so that a wrong layout would show."""
    axis = 1 if layout.startswith("[B") else 0

    def fn(reward, q, next_value, terminated, done, gamma, lam):
        delta = np.moveaxis(reward + gamma * ~terminated * next_value - q, axis, 0)
        going, ahead = np.moveaxis(~done, axis, 0), np.zeros_like(delta)
        ahead[-1] = delta[-1]
        for t in reversed(range(len(delta) - 1)):
            ahead[t] = delta[t] + gamma * lam * going[t] * ahead[t + 1]
        return q + np.moveaxis(ahead, 0, axis)

    assert check_estimator(fn, ot.QLambda(lam=0.9), layout=layout)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensors(dtype: Any) -> None:
    torch = pytest.importorskip("torch")

    def fn(reward, q, next_value, terminated, done, rho, gamma, lam):
        assert reward.dtype == getattr(torch, dtype)
        target, ahead = torch.empty_like(q), torch.zeros_like(q[:, 0])
        c = torch.cat([lam * rho[:, 1:].clamp(max=1.0), torch.zeros_like(rho[:, :1])], dim=1)
        for t in reversed(range(q.shape[1])):
            delta = reward[:, t] + gamma * (1 - terminated[:, t].to(q.dtype)) * next_value[:, t] - q[:, t]
            ahead = delta + gamma * (1 - done[:, t].to(q.dtype)) * c[:, t] * ahead
            target[:, t] = q[:, t] + ahead
        return target.requires_grad_()

    assert check_estimator(fn, ot.Retrace(lam=0.9), arrays="torch", dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounding(dtype: str) -> None:
    torch = pytest.importorskip("torch")

    def fn(reward, q, next_value, terminated, done, gamma, lam):
        reward, q, next_value = (a.to(getattr(torch, dtype)) for a in (reward, q, next_value))
        target, ahead = torch.empty_like(q), torch.zeros_like(q[:, 0])
        for t in reversed(range(q.shape[1])):
            delta = reward[:, t] + gamma * ~terminated[:, t] * next_value[:, t] - q[:, t]
            ahead = delta + gamma * lam * ~done[:, t] * ahead
            target[:, t] = q[:, t] + ahead
        return target

    assert check_estimator(fn, ot.QLambda(lam=0.9), arrays="torch")


def test_rlax_with_tables_of_actions_where_nothing_is_truncated() -> None:
    """rlax's Retrace takes Q(s, ·) and policies, [T, A]; it knows ends by its discounts only."""
    jnp = pytest.importorskip("jax.numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what rlax imports
        rlax: Any = pytest.importorskip("rlax")

    def fn(q_table, next_q_table, next_pi_table, action, reward, discount, mu, lam):
        next_action, next_mu = jnp.append(action[1:], 0), jnp.append(mu[1:], 1.0)
        at_next = (next_pi_table, next_mu)
        return rlax.retrace(q_table, next_q_table, action, next_action, reward, discount, *at_next, lam)  # target − q

    how: Any = {"returns": "correction", "arrays": "jax", "layout": "[T]", "never": ("truncated", "zero ratios")}
    assert check_estimator(fn, ot.Retrace(lam=0.9), **how)


def test_functions_of_torchrl_by_their_own_names() -> None:
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    names = {"state_value": "value", "next_state_value": "next_value", "lmbda": "lam"}
    gae = functional.generalized_advantage_estimate
    how: Any = {"arrays": "torch", "layout": "[B, T, 1]", "values": "state"}
    assert check_estimator(gae, ot.ImportanceSampling(lam=0.9), names=names, returns=("correction", "target"), **how)


@pytest.mark.parametrize(
    ("fn", "trace", "given", "says"),
    [
        (lambda reward, qq: reward, ot.OneStep(), {}, "did you mean 'q'"),
        (lambda reward, q: reward, ot.TreeBackup(), {}, "needs pi of the actions taken"),
        (lambda reward, q: reward[:, 1:], ot.QLambda(), {}, "one number for each step"),
        (lambda reward, q: (reward, q), ot.QLambda(), {}, "returned tuple"),
        (lambda reward, q: reward, ot.QLambda(), {"returns": "advantage"}, "returns must be of target, correction"),
        (lambda reward, q: reward, ot.QLambda(), {"layout": "[B,T]"}, "layout must be one of"),
        (lambda reward, q: reward, ot.QLambda(), {"names": {"x": "q"}}, "no parameters of fn"),
        (lambda reward, q: reward, ot.QLambda(), {"arrays": "tensorflow"}, "arrays must be one of"),
        (lambda reward, q: reward, ot.QLambda(), {"never": ("truncation",)}, "did you mean 'truncated'"),
        (lambda reward, q: reward, "retrace", {}, "trace must be an offtrace trace"),
    ],
)
def test_what_is_asked_wrongly_is_an_error(fn: Any, trace: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        check_estimator(fn, trace, **given)
