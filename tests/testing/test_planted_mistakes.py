"""Each known mistake, planted in code as people write it, is found and named, with its first step and a smallest row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
import plain_returns
from offtrace.testing import EstimatorCheck, check_estimator

# Retrace on action values, each with one mistake -----------------------------------------------------------------------------


def retrace(
    reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, lam,
    *, shift=1, ends="both", bootstrap="terminated", padding="bootstraps", twice=False, c=None, where="after",
) -> np.ndarray:  # fmt: skip
    """One backward pass with switches, each of which plants a mistake."""
    rho = np.exp(log_pi - log_mu)
    c = lam * np.minimum(1.0, rho) if c is None else c(lam, rho)
    B, T = reward.shape
    over = {"both": terminated | truncated, "terminated": terminated, "none": np.zeros_like(terminated)}[ends]
    no_value = {"terminated": terminated, "done": terminated | truncated}[bootstrap]
    target, ahead = np.zeros((B, T)), np.zeros(B)
    if twice:  # the carry is seeded with the value that the last δ holds already
        ahead = next_value[:, -1] * ~no_value[:, -1]
    for t in reversed(range(T)):
        value = np.where(no_value[:, t], 0.0, next_value[:, t])
        follows = valid[:, t + 1] if t + 1 < T else np.full(B, twice)
        if padding == "ends":
            value = np.where(follows | (t + 1 == T), value, 0.0)
        delta = reward[:, t] + gamma * value - q[:, t]
        factor = c[:, min(t + shift, T - 1)]
        passed = np.where(over[:, t] | (~follows if padding != "read" else False), 0.0, gamma * factor * ahead)
        ahead = delta + passed if where == "after" else lam * (delta + passed / lam * 1.0)
        target[:, t] = q[:, t] + ahead
    return target


def planted(**switches: Any) -> Callable[..., np.ndarray]:
    def fn(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, lam):
        return retrace(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, lam, **switches)

    return fn


ON_ACTIONS: list[tuple[str, dict[str, Any]]] = [
    ("boundary leak", {"ends": "terminated"}),
    ("boundary leak", {"ends": "none"}),
    ("ratio off by one", {"shift": 0}),
    ("ratio off by one", {"shift": 2}),
    ("bootstrap counted twice", {"twice": True}),
    ("truncation taken for termination", {"bootstrap": "done"}),
    ("padding taken for an end", {"padding": "ends"}),
    ("padding read", {"padding": "read"}),
    ("lambda misplaced", {"c": lambda lam, rho: np.minimum(1.0, lam * rho)}),
    ("lambda misplaced", {"c": lambda lam, rho: np.minimum(1.0, rho)}),
    ("lambda misplaced", {"c": lambda lam, rho: lam * lam * np.minimum(1.0, rho)}),
    ("lambda misplaced", {"c": lambda lam, rho: (1 - lam) * np.minimum(1.0, rho)}),
    ("lambda misplaced", {"where": "on delta"}),
    ("ratio missing", {"c": lambda lam, rho: np.full_like(rho, lam)}),
    ("ratio upside down", {"c": lambda lam, rho: lam * np.minimum(1.0, 1.0 / np.maximum(rho, 1e-9))}),
    ("another rule", {"c": lambda lam, rho: lam * rho}),
]


def found(check: EstimatorCheck) -> list[str]:
    return [finding.mistake for finding in check.findings]


def holds_together(check: EstimatorCheck) -> None:
    """The report tells the step with its numbers, and its smallest row is short and wrong."""
    text = repr(check)
    for finding in check.findings:
        b, t = finding.at
        assert f"{finding.returns}[{b}, {t}] is {finding.got:.6g}, should be {finding.wanted:.6g}" in text
        assert finding.mistake in text
        if finding.trajectory is not None:
            assert finding.result is not None
            assert finding.right is not None
            assert len(finding.result) <= 3
            assert np.abs(finding.result - finding.right).max() > 1e-3


def test_without_a_mistake_it_is_right() -> None:
    assert check_estimator(planted(), ot.Retrace(lam=0.8))


@pytest.mark.parametrize(("mistake", "switches"), ON_ACTIONS)
def test_on_action_values(mistake: str, switches: dict[str, Any]) -> None:
    check = check_estimator(planted(**switches), ot.Retrace(lam=0.8))
    assert found(check) == [mistake], check
    holds_together(check)


@pytest.mark.parametrize("seed", range(3))
def test_two_at_once_and_other_seeds(seed: int) -> None:
    check = check_estimator(planted(shift=0, bootstrap="done", padding="ends"), ot.Retrace(lam=0.8), seed=seed)
    assert set(found(check)) == {"ratio off by one", "truncation taken for termination", "padding taken for an end"}
    holds_together(check)


@pytest.mark.parametrize(
    "trace",
    [ot.NonMarkovRetrace(lam=0.8), ot.RBIS(lam=0.8), ot.TruncatedIS(bound=1.5, lam=0.8), ot.TreeBackup(lam=0.8)],
    ids=lambda t: t.title,
)
def test_ratio_off_by_one_of_any_rule(trace: Any) -> None:
    right = plain_returns.on_actions(trace)

    def early(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid):
        log_pi, log_mu = np.roll(log_pi, 1, axis=1), np.roll(log_mu, 1, axis=1)
        return right(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, valid)

    check = check_estimator(early, trace, never=("zero ratios",))
    assert found(check) == ["ratio off by one"], check
    holds_together(check)


@pytest.mark.parametrize("trace", [ot.ImportanceSampling(lam=0.9), ot.Retrace(lam=0.9)], ids=lambda t: t.title)
def test_the_ratio_of_the_start_s_own_action(trace: Any) -> None:
    """V-trace's ratios on action values: ρ_k acts though a_k is given."""
    right = plain_returns.on_actions(trace)

    def fn(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid):
        target = right(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, valid)
        return np.exp(log_pi - log_mu) * (target - q) + q

    check = check_estimator(fn, trace)
    assert found(check) == ["ratio off by one"], check
    holds_together(check)


# As they were in public libraries --------------------------------------------------------------------------------------------


def vtrace_of_torchrl(reward, value, next_value, terminated, done, log_pi, log_mu, gamma):
    """torchrl 4209: v_{k+1} of the advantage is the target of the next row entry, also where the episode was truncated."""
    rho = np.minimum(1.0, np.exp(log_pi - log_mu))
    delta = rho * (reward + gamma * ~terminated * next_value - value)
    target, ahead = np.zeros_like(value), np.zeros(len(value))
    for t in reversed(range(value.shape[1])):
        ahead = delta[:, t] + gamma * ~done[:, t] * rho[:, t] * ahead
        target[:, t] = value[:, t] + ahead
    shifted = np.concatenate([target[:, 1:], next_value[:, -1:]], axis=1)
    return target, rho * (reward + gamma * ~terminated * shifted - value)


def gae_of_rl_triton(reward, value, next_value, terminated, done, gamma, lam):
    """rl-triton 4: the carry of the backward scan is seeded with V(s_T), which δ_{T-1} holds as well."""
    advantage, ahead = np.zeros_like(value), next_value[:, -1] * ~terminated[:, -1]
    for t in reversed(range(value.shape[1])):
        delta = reward[:, t] + gamma * ~terminated[:, t] * next_value[:, t] - value[:, t]
        ahead = delta + gamma * lam * ~done[:, t] * ahead
        advantage[:, t] = ahead
    return advantage


def gae_of_one_file(reward, value, next_value, done, gamma, lam):
    """GAE with one flag for both ends, as in most single-file implementations."""
    advantage, ahead = np.zeros_like(value), 0.0
    for t in reversed(range(value.shape[1])):
        delta = reward[:, t] + gamma * ~done[:, t] * next_value[:, t] - value[:, t]
        ahead = delta + gamma * lam * ~done[:, t] * ahead
        advantage[:, t] = ahead
    return advantage


def pqn_of_rejax(reward, q, next_value, terminated, done, gamma, lam):
    """rejax 34: the bootstrap inside the row is cached at the state where the next step lands, one step late."""
    target = np.zeros_like(reward)
    after = np.concatenate([next_value[:, 1:], next_value[:, -1:]], axis=1)
    for t in reversed(range(reward.shape[1])):
        v = next_value[:, t] if t + 1 == reward.shape[1] else np.where(done[:, t], next_value[:, t], after[:, t])
        G = np.where(done[:, t], v, (1 - lam) * v + lam * target[:, t + 1]) if t + 1 < reward.shape[1] else v
        target[:, t] = reward[:, t] + gamma * ~terminated[:, t] * G
    return target


def retrace_of_trfl(reward, q, next_value, terminated, done, rho, gamma, lam):
    """trfl 24, as asked there: E_π Q and Q(s, a) of δ from the same time index."""
    same = np.concatenate([next_value[:, :1], next_value[:, :-1]], axis=1)
    target, ahead = np.zeros_like(reward), np.zeros(len(reward))
    c = lam * np.minimum(1.0, np.roll(rho, -1, axis=1))
    for t in reversed(range(reward.shape[1])):
        going = ~done[:, t] & (t + 1 < reward.shape[1])
        delta = reward[:, t] + gamma * ~terminated[:, t] * same[:, t] - q[:, t]
        ahead = delta + gamma * going * c[:, t] * ahead
        target[:, t] = q[:, t] + ahead
    return target


def shifted_gae(reward, value, next_value, terminated, done, gamma, lam):
    """V(s_{t+1}) by shifting `value`: at a truncation that is the next episode's first value."""
    after = np.concatenate([value[:, 1:], next_value[:, -1:]], axis=1)
    return gae_on(reward, value, after, terminated, done, gamma, lam)


def gae_on(reward, value, after, terminated, done, gamma, lam):
    advantage, ahead = np.zeros_like(value), 0.0
    for t in reversed(range(value.shape[1])):
        ahead = reward[:, t] + gamma * ~terminated[:, t] * after[:, t] - value[:, t] + gamma * lam * ~done[:, t] * ahead
        advantage[:, t] = ahead
    return advantage


def normalised(reward, value, next_value, terminated, done, gamma, lam):
    made = gae_on(reward, value, next_value, terminated, done, gamma, lam)
    return (made - made.mean()) / made.std()


GAE = ot.ImportanceSampling(lam=0.9)


PUBLIC: list[Any] = [
    (vtrace_of_torchrl, ot.VTrace(), ("target", "advantage"), ["boundary leak"]),
    (gae_of_rl_triton, GAE, "correction", ["bootstrap counted twice"]),
    (gae_of_one_file, GAE, "correction", ["truncation taken for termination"]),
    (pqn_of_rejax, ot.PengQ(lam=0.9), "target", ["value of another step"]),
    (retrace_of_trfl, ot.Retrace(lam=0.9), "target", ["value of another step"]),
    (shifted_gae, GAE, "correction", ["boundary leak"]),
    (normalised, GAE, "correction", ["not linear"]),
    (gae_of_one_file, GAE, "target", ["target and correction mixed up", "truncation taken for termination"]),
]


@pytest.mark.parametrize(("fn", "trace", "returns", "mistakes"), PUBLIC, ids=lambda x: getattr(x, "__name__", None))
def test_mistakes_of_public_libraries(fn: Any, trace: Any, returns: Any, mistakes: list[str]) -> None:
    check = check_estimator(fn, trace, returns=returns)
    assert found(check) == mistakes, check
    holds_together(check)


# State values ----------------------------------------------------------------------------------------------------------------


def vtrace(reward, value, next_value, terminated, truncated, rho, gamma, lam, rho_bar, c_bar, *, planted=""):
    done, T = terminated | truncated, value.shape[1]
    w, c = np.minimum(rho_bar, rho), lam * np.minimum(c_bar, rho)
    if planted == "no ratio on delta":
        w = np.ones_like(rho)
    if planted == "as on actions":
        w, c = np.ones_like(rho), np.append(c[:, 1:], c[:, -1:], axis=1)
    if planted == "late":
        c = np.append(c[:, 1:], c[:, -1:], axis=1)
    if planted == "lambda on delta":
        w = lam * w
    if planted == "clips the product":
        c = np.minimum(c_bar, lam * rho)
    target, ahead = np.zeros_like(value), 0.0
    for t in reversed(range(T)):
        delta = w[:, t] * (reward[:, t] + gamma * ~terminated[:, t] * next_value[:, t] - value[:, t])
        ahead = delta + gamma * c[:, t] * ~done[:, t] * ahead
        target[:, t] = value[:, t] + ahead
    return target


ON_STATES = [
    ("no ratio on delta", "ratio missing"),
    ("as on actions", "ratio off by one"),
    ("late", "ratio off by one"),
    ("lambda on delta", "lambda misplaced"),
    ("clips the product", "lambda misplaced"),
]


@pytest.mark.parametrize(("planted", "mistake"), ON_STATES)
def test_on_state_values(planted: str, mistake: str) -> None:
    def fn(reward, value, next_value, terminated, truncated, rho, gamma, lam, rho_bar, c_bar):
        return vtrace(
            reward, value, next_value, terminated, truncated, rho, gamma, lam, rho_bar, c_bar, planted=planted
        )

    check = check_estimator(fn, ot.VTrace(lam=0.8))
    assert found(check) == [mistake], check
    holds_together(check)


@pytest.mark.parametrize("arrays", ["torch", "jax"])
def test_found_in_float32_of_other_libraries(arrays: Any) -> None:
    pytest.importorskip(arrays)

    def fn(reward, q, next_value, done, gamma, lam):
        made, ahead = [], 0.0
        for t in reversed(range(q.shape[1])):
            going = 1.0 - done[:, t] * 1.0
            ahead = reward[:, t] + gamma * going * next_value[:, t] - q[:, t] + gamma * lam * going * ahead
            made.append(q[:, t] + ahead)
        stack = __import__("torch").stack if arrays == "torch" else __import__("jax").numpy.stack
        return stack(made[::-1], 1)

    assert found(check_estimator(fn, ot.QLambda(lam=0.9), arrays=arrays)) == ["truncation taken for termination"]


def test_zero_over_zero() -> None:
    """Products of ratios as quotients of running products: 0/0 after an action that π never takes."""

    def fn(reward, q, next_value, terminated, rho, gamma):
        T = q.shape[1]
        running = np.cumprod(rho, axis=1)
        delta = reward + gamma * ~terminated * next_value - q
        with np.errstate(all="ignore"):
            weight = gamma ** (np.arange(T) - np.arange(T)[:, None]) * running[:, None, :] / running[:, :, None]
        return q + (np.triu(weight) * delta[:, None, :]).sum(axis=2)

    check = check_estimator(fn, ot.ImportanceSampling(), never=("terminated", "truncated"))
    assert found(check) == ["not a number"]
    assert "π = 0 is legal" in repr(check)


# By the place in the batch, by padding, by the length of the row --------------------------------------------------------------


def test_what_a_function_writes_at_padding_is_told_and_no_mistake() -> None:
    def fn(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, lam):
        made = retrace(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, lam)
        return np.where(valid, made, np.nan)

    check = check_estimator(fn, ot.Retrace(lam=0.8))
    assert check
    assert "writes other numbers than 0 at padding" in repr(check)
    zeros = check_estimator(plain_returns.on_actions(ot.Retrace(lam=0.8)), ot.Retrace(lam=0.8))
    assert "at padding" not in repr(zeros)


def test_an_error_says_on_which_rows_it_came() -> None:
    def fn(reward, q, terminated):
        return reward + (np.linalg.inv(np.zeros((1, 1))) if terminated.any() else 0.0)

    with pytest.raises(np.linalg.LinAlgError) as error:
        check_estimator(fn, ot.QLambda(lam=0.9))
    assert "rows that show terminations" in error.value.__notes__[0]


def test_a_function_that_refuses_single_steps_is_right_and_it_is_told() -> None:
    def fn(reward, q, next_value, terminated, truncated, gamma, lam):
        made = one_pass()(reward, q, next_value, terminated, truncated, gamma, lam)
        return made + 0.0 * reward[:, [1]]  # rows of one step have no step 1

    check = check_estimator(fn, Q_LAMBDA)
    assert check
    assert "raised IndexError on rows of a single step" in repr(check)
    assert "a single step" not in check.scenarios


def of_rows(change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """Retrace whose result is changed along the batch."""

    def fn(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, lam):
        return change(retrace(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, lam))

    return fn


def last_row_is(value: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda made: np.concatenate([made[:-1], value(made[-1:])])


def ratio_is(change: Callable[..., np.ndarray], rule: Any) -> Callable[..., np.ndarray]:
    """A rule of ratios whose log_pi is changed first, so that π/μ is what the mistake makes of it."""

    def fn(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, greedy):
        with np.errstate(all="ignore"):
            log_pi = np.log(change(np.exp(log_pi), np.exp(log_mu))) + log_mu
        made = plain_returns.on_actions(rule)
        return made(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, greedy)

    return fn


def on_states(rho_bar=1.0, c_bar=1.0, change=lambda rho: rho) -> Callable[..., np.ndarray]:
    def fn(reward, value, next_value, terminated, truncated, rho, gamma, lam):
        return vtrace(reward, value, next_value, terminated, truncated, change(rho), gamma, lam, rho_bar, c_bar)

    return fn


def one_pass(
    *, trace_gamma=0, boot_power=1, last_power=1, steps=slice(None), horizon=None, boot_gamma=0, skip_own=False
):
    """The λ-return with a discount for each step, as a double loop; `…_gamma` moves a discount, `…_power` repeats it."""

    def fn(reward, q, next_value, terminated, truncated, gamma, lam):
        B, T = reward.shape
        target = np.zeros((B, T))
        gamma = np.broadcast_to(gamma, (B, T))
        for b in range(B):
            for k in range(T)[steps]:
                target[b, k] = q[b, k]
                weight = 1.0
                for t in range(k, T):
                    if horizon is not None and t - k >= horizon:
                        break
                    power = last_power if t + 1 == T else boot_power
                    boot = 0.0 if terminated[b, t] else gamma[b, min(t + boot_gamma, T - 1)] ** power * next_value[b, t]
                    if not (skip_own and t == k):
                        target[b, k] += weight * (reward[b, t] + boot - q[b, t])
                    if terminated[b, t] or truncated[b, t]:
                        break
                    weight *= lam * gamma[b, min(max(t + trace_gamma, 0), T - 1)]
        return target

    return fn


def across_padding(reward, q, next_value, terminated, truncated, log_pi, log_mu, gamma, valid, lam):
    """Credit passes over an invalid step inside a row: only what padding itself adds is masked."""
    rho = np.exp(log_pi - log_mu)
    target, ahead, c = np.zeros_like(q), 0.0, 0.0
    for t in reversed(range(q.shape[1])):
        delta = reward[:, t] + gamma * ~terminated[:, t] * next_value[:, t] - q[:, t]
        here = delta + gamma * ~(terminated | truncated)[:, t] * c * ahead
        ahead = np.where(valid[:, t], here, ahead)
        c = np.where(valid[:, t], lam * np.minimum(1.0, rho[:, t]), c)
        target[:, t] = np.where(valid[:, t], q[:, t] + ahead, 0.0)
    return target


def wrong_on_single_steps(reward, q, next_value, terminated, truncated, gamma, lam):
    made = one_pass()(reward, q, next_value, terminated, truncated, gamma, lam)
    return made if reward.shape[1] > 1 else reward + ~terminated * next_value


def non_markov_started_at(own: float | None) -> Callable[..., np.ndarray]:
    """b_t = λ min(1, b_{t-1} ρ_t) from b_k = λ in the place of 1; `own` is the weight of δ_k."""

    def fn(reward, q, next_value, terminated, truncated, rho, gamma, lam):
        target = q.copy()
        for b, k in np.ndindex(q.shape):
            weight, x = 1.0, lam
            for t in range(k, q.shape[1]):
                x = x if t == k else lam * min(1.0, x * rho[b, t])
                boot = 0.0 if terminated[b, t] else gamma * next_value[b, t]
                beta = own if t == k and own is not None else x
                target[b, k] += weight * beta * (reward[b, t] + boot - q[b, t])
                weight *= gamma
                if terminated[b, t] or truncated[b, t]:
                    break
        return target

    return fn


def shifted_reward(by: int) -> Callable[..., np.ndarray]:
    def fn(reward, q, next_value, terminated, truncated, gamma, lam):
        return one_pass()(np.roll(reward, by, axis=1), q, next_value, terminated, truncated, gamma, lam)

    return fn


def last_step_lost(reward, q, next_value, terminated, truncated, gamma, lam):
    short = [a[:, :-1] for a in (reward, q, next_value, terminated, truncated)]
    return np.pad(one_pass()(*short, gamma=gamma, lam=lam), ((0, 0), (0, 1)))


RETRACE, IS, Q_LAMBDA = ot.Retrace(lam=0.8), ot.ImportanceSampling(lam=0.8), ot.QLambda(lam=0.8)
BY_STEP = {"gamma": "by step"}
OTHERS: list[tuple[str, str, Callable[..., np.ndarray], Any, dict[str, Any]]] = [
    ("rows reversed", "rows mixed up", of_rows(lambda made: made[::-1]), RETRACE, {}),
    ("rows moved on", "rows mixed up", of_rows(lambda made: np.roll(made, 1, axis=0)), RETRACE, {}),
    ("the last row is 0", "rows mixed up", of_rows(last_row_is(np.zeros_like)), RETRACE, {}),
    ("the last row is double", "rows mixed up", of_rows(last_row_is(lambda row: 2 * row)), RETRACE, {}),
    ("minus the mean of the batch", "rows mixed up", of_rows(lambda made: made - made.mean(axis=0)), RETRACE, {}),
    ("credit across padding", "padding read", across_padding, RETRACE, {}),
    ("T = 1", "discount misplaced", wrong_on_single_steps, Q_LAMBDA, {}),
    ("γ² on every bootstrap", "discount misplaced", one_pass(boot_power=2, last_power=2), Q_LAMBDA, {}),
    ("no γ on the bootstrap", "discount misplaced", one_pass(boot_power=0, last_power=0), Q_LAMBDA, {}),
    ("γ² on the row's last bootstrap", "discount misplaced", one_pass(last_power=2), Q_LAMBDA, {}),
    ("γ_{t+1} in the trace", "discount misplaced", one_pass(trace_gamma=1), Q_LAMBDA, BY_STEP),
    ("γ_{t-1} in the trace", "discount misplaced", one_pass(trace_gamma=-1), Q_LAMBDA, BY_STEP),
    ("γ_{t+1} in δ", "discount misplaced", one_pass(boot_gamma=1), Q_LAMBDA, BY_STEP),
    ("c̄ = 2 on states", "another number", on_states(c_bar=2.0), ot.VTrace(lam=0.8), {}),
    ("ρ̄ = 2 on states", "another number", on_states(rho_bar=2.0), ot.VTrace(lam=0.8), {}),
    ("c̄ = 2 of Retrace", "another number", planted(c=lambda lam, rho: lam * np.minimum(2.0, rho)), RETRACE, {}),
    ("λ = 0.95", "another number", planted(c=lambda lam, rho: 0.95 * np.minimum(1.0, rho)), RETRACE, {}),
    ("bound 3 for 1.5", "another number", ratio_is(lambda pi, mu: pi / mu, ot.TruncatedIS(3.0)), ot.TruncatedIS(1.5), {}),
    ("a horizon", "wrong horizon", one_pass(horizon=2), Q_LAMBDA, {}),
    ("n + 1 for n", "wrong horizon", lambda reward, next_value, terminated, truncated, gamma: ot.targets(
        ot.NStep(n=2), reward=reward, next_value=next_value, terminated=terminated, truncated=truncated, gamma=gamma,
        time_major=False), ot.NStep(n=1), {}),
    ("√ρ", "ratio altered", ratio_is(lambda pi, mu: np.sqrt(pi / mu), RETRACE), RETRACE, {}),
    ("√ρ on states", "ratio altered", on_states(change=np.sqrt), ot.VTrace(lam=0.8), {}),
    ("an ε in μ", "ratio altered", ratio_is(lambda pi, mu: pi / (mu + 0.01), RETRACE), RETRACE, {}),
    ("an ε in π and μ", "ratio altered", ratio_is(lambda pi, mu: (pi + 0.2) / (mu + 0.2), IS), IS, {}),
    ("a floor on ρ", "ratio altered", ratio_is(lambda pi, mu: np.maximum(pi / mu, 0.5), RETRACE), RETRACE, {}),
    ("a low floor on ρ", "ratio altered", ratio_is(lambda pi, mu: np.maximum(pi / mu, 0.02), RETRACE), RETRACE, {}),
    ("1/μ", "ratio altered", ratio_is(lambda pi, mu: 1 / mu, IS), IS, {}),
    ("the first step lost", "step lost", one_pass(steps=slice(1, None)), Q_LAMBDA, {}),
    ("the last step lost", "step lost", last_step_lost, Q_LAMBDA, {}),
    ("δ_k lost", "step lost", one_pass(skip_own=True), Q_LAMBDA, {}),
    ("Non-Markov Retrace from λ", "trace not started at 1", non_markov_started_at(None), ot.NonMarkovRetrace(0.8), {}),
    ("the same but β_k = 1", "trace not started at 1", non_markov_started_at(1.0), ot.NonMarkovRetrace(0.8), {}),
    ("r_{t-1}", "reward of another step", shifted_reward(1), Q_LAMBDA, {}),
    ("r_{t+1}", "reward of another step", shifted_reward(-1), Q_LAMBDA, {}),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "fn", "trace", "how"), [case[1:] for case in OTHERS], ids=[c[0] for c in OTHERS])
def test_other_mistakes(mistake: str, fn: Any, trace: Any, how: dict[str, Any]) -> None:
    check = check_estimator(fn, trace, **how)
    assert found(check) == [mistake], check
    holds_together(check)


def test_the_docs_say_how_many_are_planted() -> None:
    """Each test above demands the name of its mistake: all are seen and named, but for what is written at padding."""
    named = len(ON_ACTIONS) + len(PUBLIC) + len(ON_STATES) + len(OTHERS) + 1  # 1: 0/0
    page = (Path(__file__).parents[2] / "docs" / "checking.md").read_text(encoding="utf-8")
    assert f"Of {named + 1} mistakes that are planted in its tests, {named} are seen and named" in page
