"""Losses and their gradients are their formulas, on every kind of array; nothing is read where there is no decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offtrace as ot
from helpers import KINDS, trajectories
from offtrace import policy
from policy import by_formula

LIMITS = HealthCheck.too_slow, HealthCheck.data_too_large
COSTS: dict[str, Any] = {"value_cost": 0.3, "entropy_cost": 0.07}
A = 3


@st.composite
def batches(draw: Any) -> dict[str, Any]:
    """A batch for critics of action values, with padding, skipped steps and NaN wherever nothing may be read."""
    made = draw(trajectories(max_steps=6, extreme=False).filter(lambda t: t.get("valid", np.ones(1)).any()))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = made["reward"].shape
    logits = rng.normal(size=(2, *shape, A)) * draw(st.sampled_from([0.5, 3.0]))
    if draw(st.booleans()):
        logits[0][rng.random((*shape, A)) < 0.2] = -np.inf  # an action that π never takes
        logits[0][..., 0] = 0.0
    log_pi, log_mu = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    if draw(st.booleans()):
        skip = rng.random(shape) < 0.3
        if (~skip & made.get("valid", np.True_)).any():
            made["skip"] = skip
    made |= {
        "log_pi": log_pi,
        "log_mu": log_mu,
        "action": rng.integers(A, size=shape),
        "q": rng.normal(size=(*shape, A)),
    }
    made["value"] = rng.normal(size=shape)
    nowhere = ~decisions(made)
    for name in ("log_pi", "log_mu", "q", "value"):
        made[name][nowhere] = np.nan
    made["action"][nowhere] = -1
    del made["pair"], made["greedy"]
    return made


def decisions(made: dict[str, Any]) -> np.ndarray:
    found = np.ones(made["reward"].shape, bool) & made.get("valid", np.True_)
    return found & ~made["skip"] if "skip" in made else found


def taken(array: np.ndarray, made: dict[str, Any]) -> np.ndarray:
    return np.take_along_axis(array, np.maximum(made["action"], 0)[..., None], -1)[..., 0]


def of_actions(made: dict[str, Any], **others: Any) -> dict[str, Any]:
    """The arrays of `targets`, from those over actions."""
    picked = {name: taken(made[name], made) for name in ("q", "log_pi", "log_mu")}
    return {name: array for name, array in made.items() if name not in ("action", "value")} | picked | others


def differentiated(
    kind: str, loss: Callable[..., policy.Loss[Any]], made: dict[str, Any], by: tuple[str, ...]
) -> tuple[policy.Loss[Any], list[np.ndarray]]:
    """The loss, and its gradients by some arrays."""
    arrays = {name: KINDS[kind](a) if isinstance(a, np.ndarray) else a for name, a in made.items()}
    if kind == "torch":
        variables = [arrays[name].requires_grad_() for name in by]
        found = loss(**arrays)
        found.loss.backward()
        return found, [v.grad.numpy() for v in variables]
    jax = pytest.importorskip("jax")

    def of(variables: dict[str, Any]) -> Any:
        found = loss(**(arrays | variables))
        return found.loss, found

    (_, found), slopes = jax.value_and_grad(of, has_aux=True)({name: arrays[name] for name in by})
    return found, [np.asarray(slopes[name]) for name in by]


def held(found: Any, slopes: list[np.ndarray], shares: Sequence[tuple[Any, ...]], decision: np.ndarray) -> None:
    """The loss is the mean of the shares, and each gradient is that of its decision over their number; 0 elsewhere."""
    n = len(shares)
    assert int(found.decisions) == n
    np.testing.assert_allclose(found.loss.item(), sum(s[0] for s in shares) / n, rtol=1e-10, atol=1e-12)
    for i, slope in enumerate(slopes):
        np.testing.assert_allclose(slope[decision], np.array([s[i + 1] for s in shares]) / n, rtol=1e-9, atol=1e-12)
        assert (slope[~decision] == 0).all()


def shares(
    formula: Callable[..., by_formula.Share], columns: Sequence[np.ndarray], decision: np.ndarray, *numbers: Any
) -> list[by_formula.Share]:
    """The formula at each decision."""
    return [formula(*row, *numbers) for row in zip(*(column[decision] for column in columns), strict=True)]


@pytest.fixture(autouse=True)
def _in_float64() -> Any:
    import jax

    with jax.enable_x64(True):
        yield


few = settings(max_examples=30, deadline=None, suppress_health_check=LIMITS)
BOUNDS = st.sampled_from([0.0, 0.5, 2.0, np.inf])
KIND = pytest.mark.parametrize("kind", ["torch", "jax"])


def without(made: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: array for name, array in made.items() if name not in names}


def one_batch() -> dict[str, Any]:
    """A batch that every loss takes, of one shape, so that little is compiled."""
    rng = np.random.default_rng(0)
    shape = (3, 4)
    logits = rng.normal(size=(2, *shape, A))
    log_pi, log_mu = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    made: dict[str, Any] = {"log_pi": log_pi, "log_mu": log_mu, "q": rng.normal(size=(*shape, A)), "gamma": 0.9}
    made |= {name: rng.normal(size=shape) for name in ("reward", "next_value", "value")}
    made |= {
        "action": rng.integers(A, size=shape),
        "terminated": rng.random(shape) < 0.2,
        "truncated": rng.random(shape) < 0.2,
    }
    made |= {"valid": np.arange(4) < np.array([[4], [3], [2]]), "skip": rng.random(shape) < 0.2}
    for name in ("log_pi", "log_mu", "q", "value"):
        made[name][~decisions(made)] = np.nan
    return made


def check_acer(kind: str, made: dict[str, Any], c: float) -> None:
    trace, decision = ot.Retrace(lam=0.9), decisions(made)
    target = ot.targets(trace, **of_actions(made))
    found, slopes = differentiated(
        kind, lambda **x: policy.acer(trace, **x, bound=c, **COSTS), without(made, "value"), ("log_pi", "q")
    )
    columns = [*(made[name] for name in ("log_pi", "log_mu", "q", "action")), target]
    held(found, slopes, shares(by_formula.acer, columns, decision, c, *COSTS.values()), decision)


def check_reactor(kind: str, made: dict[str, Any], c: float) -> None:
    trace, decision = ot.RBIS(lam=0.9), decisions(made)
    target = ot.targets(trace, **of_actions(made))
    made = made | {"log_mu": taken(made["log_mu"], made)}
    found, slopes = differentiated(
        kind, lambda **x: policy.reactor(trace, **x, bound=c, **COSTS), without(made, "value"), ("log_pi", "q")
    )
    columns = [*(made[name] for name in ("log_pi", "log_mu", "q", "action")), target]
    held(found, slopes, shares(by_formula.reactor, columns, decision, c, *COSTS.values()), decision)


def check_vtrace(kind: str, made: dict[str, Any], c: float) -> None:
    decision = decisions(made)
    arrays = without(of_actions(made, value=made["value"]), "q")
    target, advantage, _ = ot.state_targets(**arrays, rho_bar=c)
    arrays["entropy"] = np.where(decision, 0.5, np.nan)
    found, slopes = differentiated(
        kind, lambda **x: policy.vtrace(**x, rho_bar=c, **COSTS), arrays, ("log_pi", "value", "entropy")
    )
    columns = [arrays["log_pi"], made["value"], target, advantage]
    each, less = shares(by_formula.vtrace, columns, decision, COSTS["value_cost"]), COSTS["entropy_cost"]
    held(found, slopes, [(s.loss - less * 0.5, s.by_log_pi, s.by_critic, -less) for s in each], decision)


CHECKS = [check_acer, check_reactor, check_vtrace]


@few
@given(made=batches(), c=BOUNDS, check=st.sampled_from(CHECKS))
def test_losses_of_critics_on_tensors(made: dict[str, Any], c: float, check: Any) -> None:
    check("torch", made, c)


@pytest.mark.parametrize("check", CHECKS)
def test_losses_of_critics_on_jax(check: Any) -> None:
    for c in (0.5, np.inf):
        check("jax", one_batch(), c)


@KIND
def test_acer_with_samples(kind: str) -> None:
    """With every action as a sample, and the samples weighed by π, it is ACER's sum over actions."""
    made = one_batch()
    decision, n = decisions(made), decisions(made).sum()
    arrays = of_actions(made, value=made["value"])
    arrays |= {"sampled_q": made["q"], "sampled_log_pi": made["log_pi"], "sampled_log_mu": made["log_mu"]}
    target = ot.targets(ot.Retrace(), **of_actions(made))
    names = ("log_pi", "q", "value", "sampled_log_pi")
    found, slopes = differentiated(
        kind, lambda **x: policy.acer_sampled(ot.Retrace(), **x, bound=0.8, value_cost=0.3), arrays, names
    )
    rho, v = np.exp(arrays["log_pi"] - arrays["log_mu"]), made["value"]
    lost = np.maximum(0, 1 - 0.8 / np.exp(made["log_pi"] - made["log_mu"]))
    wanted = [
        -np.minimum(0.8, rho) * (target - v),
        -0.3 * (target - arrays["q"]),
        -0.3 * np.minimum(1, rho) * (target - arrays["q"]),
        -lost * (made["q"] - v[..., None]) / A,
    ]
    for slope, right in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(slope[decision], right[decision] / n, rtol=1e-10)
        assert (slope[~decision] == 0).all()
    assert set(found.means) == {"policy", "correction", "value", "state_value"}


def rollouts(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    made: dict[str, Any] = {name: -rng.exponential(size=shape) for name in ("log_pi", "log_prox", "log_mu")}
    made["mask"] = rng.random(shape) < 0.8
    made["keep"] = rng.random(shape) < 0.8
    made["advantage"] = rng.normal(size=shape)
    made["mask"].flat[0] = made["keep"].flat[0] = True
    for name in ("log_pi", "log_prox", "log_mu", "advantage"):
        made[name][~made["mask"]] = np.nan
    return made


@KIND
def test_clipped(kind: str) -> None:
    made = rollouts(np.random.default_rng(2), (4, 6))
    made["segment"] = np.repeat([[0, 0, 1, 1, 1, 5]], 4, axis=0)
    decision = made["mask"] & made["keep"]
    trace = ot.TruncatedIS(bound=1.5)
    logs = {"log_pi": made["log_prox"], "log_mu": made["log_mu"], "mask": made["mask"], "segment": made["segment"]}
    weights = {
        "token": ot.weights(ot.ImportanceSampling(), **without(logs, "segment"), level="token"),
        "prefix": ot.weights(trace, **logs, level="prefix"),
        "none": np.ones((4, 6)),
    }
    for name, options in {
        "token": {},
        "prefix": {"trace": trace, "level": "prefix", "clip": (0.1, 0.3), "dual": 1.4},
        "none": {"clip": 0.3, "dual": 3.0},
    }.items():
        given = without(made, *(["log_mu"] if name == "none" else []))
        found, slopes = differentiated(
            kind, lambda options=options, **x: policy.clipped(**x, **options), given, ("log_pi",)
        )
        low, high = options.get("clip", 0.2) if name == "prefix" else [options.get("clip", 0.2)] * 2
        columns = [made["log_pi"], made["log_prox"], weights[name], made["advantage"]]
        each = shares(by_formula.clipped, columns, decision, low, high, options.get("dual"))
        held(found, slopes, each, decision)
        np.testing.assert_array_equal(np.asarray(found.arrays["clipped"])[decision], [s.by_log_pi == 0 for s in each])
        own = policy.clipped(
            **{**without(made, "log_mu"), "weight": weights[name]}, **without(options, "trace", "level")
        )
        np.testing.assert_allclose(own.loss.item(), found.loss.item())


@KIND
def test_weighted(kind: str) -> None:
    made = without(rollouts(np.random.default_rng(3), (4, 6)), "log_prox")
    decision = made["mask"] & made["keep"]
    made["advantage"] = np.array([1.0, -2.0, 0.5, 3.0])
    for trace, options in (
        (ot.NonMarkovRetrace(), {}),
        (ot.ImportanceSampling(), {"level": "sequence", "normalize": "group", "group": np.array([3, 3, 1, 1])}),
        (ot.FlattenedIS(kappa=0.5, bound=1.0), {"level": "geometric", "lower": 0.5, "outside": "mask"}),
    ):
        given = made | options
        w = ot.weights(trace, **without(given, "advantage", "keep"))
        found, (slope,) = differentiated(kind, lambda trace=trace, **x: policy.weighted(trace, **x), given, ("log_pi",))
        by_log_pi = -w * made["advantage"][:, None]
        each = [(s * log, s) for s, log in zip(by_log_pi[decision], made["log_pi"][decision], strict=True)]
        held(found, [slope], each, decision)


@pytest.mark.parametrize("kind", list(KINDS))
def test_weighted_by_the_past_and_the_own_ratio(kind: str) -> None:
    made = without(rollouts(np.random.default_rng(4), (4, 6)), "log_prox")
    made["segment"] = np.repeat([[0, 0, 1, 1, 1, 5]], 4, axis=0)
    trace = ot.FlattenedIS(kappa=0.5, bound=1.0)
    prefix = ot.weights(trace, **without(made, "advantage", "keep"))
    wanted = np.zeros((4, 6))
    for b, t in np.argwhere(made["mask"]):
        earlier = [s for s in range(t) if made["mask"][b, s] and made["segment"][b, s] == made["segment"][b, t]]
        past = prefix[b, earlier[-1]] if earlier else 1.0
        wanted[b, t] = past * min(1.5, np.exp(made["log_pi"][b, t] - made["log_mu"][b, t]))
    found = policy.weighted(trace, **{name: KINDS[kind](a) for name, a in made.items()}, own=1.5)
    np.testing.assert_allclose(np.asarray(found.arrays["weight"]), wanted, rtol=1e-12)
    whole = policy.weighted(ot.QLambda(), **{name: KINDS[kind](a) for name, a in made.items()}, own=np.inf)
    token = ot.weights(ot.ImportanceSampling(), **without(made, "advantage", "keep", "segment"), level="token")
    np.testing.assert_allclose(np.asarray(whole.arrays["weight"]), token)


@pytest.mark.parametrize("kind", list(KINDS))
def test_group_advantages(kind: str) -> None:
    reward, group = np.array([0.1, 0.1, 5.0, 0.1, 1.0, 3.0]), np.array([4, 4, -1, 4, -1, -1])
    for std in (True, False):
        found = np.asarray(policy.group_advantages(KINDS[kind](reward), KINDS[kind](group), std=std))
        for g in (4, -1):
            own = reward[group == g]
            wanted = own - own.mean()
            wanted = wanted / own.std(ddof=1) if std and g == -1 else wanted
            np.testing.assert_allclose(found[group == g], wanted, atol=1e-15)
        assert (found[group == 4] == 0).all()  # although the mean of three times 0.1 is not 0.1


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rewards_that_differ_by_rounding_are_equal(kind: str, dtype: str) -> None:
    """The same three parts, added in another order: a group has nothing to learn from, and noise must not become ±1."""
    parts = np.array([0.3, 0.7, 0.9], dtype)
    sums = [parts[list(order)].cumsum()[-1] for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1))]
    reward, group = np.array([*sums, 1.0, 1.0 + 1e-4], dtype), np.array([0, 0, 0, 0, 1, 1])
    assert len(set(sums)) > 1
    for std in (True, False):
        found = np.asarray(policy.group_advantages(KINDS[kind](reward), KINDS[kind](group), std=std))
        np.testing.assert_array_equal(found[:4], 0.0)
        assert (found[4:] != 0).all()


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_trainers_add_to_the_standard_deviation_and_a_group_of_one(kind: str) -> None:
    reward, group = np.array([1.0, 0.9999, 1.0002, 5.0]), np.array([2, 2, 2, 8])
    of = KINDS[kind](reward), KINDS[kind](group)
    own = reward[:3] - reward[:3].mean()
    for check in (None, False):
        found = np.asarray(policy.group_advantages(*of, eps=1e-4, alone="zero", check=check))
        np.testing.assert_allclose(found[:3], own / (own.std(ddof=1) + 1e-4), rtol=1e-6)
        assert found[3] == 0.0
    if kind != "numpy":  # whose values are always looked at
        assert np.isnan(np.asarray(policy.group_advantages(*of, check=False))[3])


@KIND
@pytest.mark.parametrize("check", [None, False])
def test_a_batch_without_a_decision_has_a_loss_of_0(kind: str, check: Any) -> None:
    made = one_batch()
    made = {n: a * np.nan if n in ("log_pi", "log_mu", "q", "value") else a for n, a in made.items() if n != "skip"}
    made["valid"] = np.zeros((3, 4), bool)
    of_states = without(made, "q", "action") | {"log_pi": made["value"], "log_mu": made["value"]}
    rollout = {"log_pi": made["value"], "log_mu": made["value"], "advantage": made["value"], "mask": np.zeros((3, 4))}
    ppo = without(rollout, "log_mu") | {"log_prox": made["value"]}
    rule = ot.Retrace()
    for loss, arrays, by in (
        (lambda **x: policy.acer(rule, **x, check=check), without(made, "value"), ("log_pi", "q")),
        (
            lambda **x: policy.reactor(rule, **x, check=check),
            without(made, "value") | {"log_mu": made["value"]},
            ("log_pi", "q"),
        ),
        (lambda **x: policy.vtrace(**x, check=check), of_states, ("log_pi", "value")),
        (lambda **x: policy.weighted(ot.RBIS(), **x, check=check), rollout, ("log_pi",)),
        (lambda **x: policy.weighted(ot.RBIS(), **x, mean="seq-mean-token-sum", check=check), rollout, ("log_pi",)),
        (lambda **x: policy.weighted(ot.RBIS(), **x, own=2.0, check=check), rollout, ("log_pi",)),
        (lambda **x: policy.clipped(**x, check=check), rollout | ppo, ("log_pi",)),
        (lambda **x: policy.clipped(**x, dual=3.0, check=check), ppo, ("log_pi",)),
    ):
        found, slopes = differentiated(kind, loss, arrays, by)
        assert (found.loss.item(), int(found.decisions)) == (0.0, 0)
        assert all(float(mean) == 0.0 for mean in found.means.values())
        for slope in slopes:
            np.testing.assert_array_equal(slope, 0.0)


def test_means_have_no_gradient() -> None:
    import torch

    log = torch.zeros(2, 3, requires_grad=True)
    found = policy.clipped(log_pi=log, log_prox=torch.zeros(2, 3), advantage=torch.ones(2))
    assert found.loss.requires_grad
    assert not found.means["policy"].requires_grad


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_mean_over_rows_of_the_sum_over_decisions(kind: str) -> None:
    rng = np.random.default_rng(5)
    made = without(rollouts(rng, (4, 6)), "log_prox")
    made["mask"][2] = False  # a row without a decision does not count
    for ids in (np.zeros((4, 6), int), np.repeat([[0, 0, 1, 1, 1, 5]], 4, axis=0)):
        packed = {"segment": ids} if ids.any() else {}
        arrays = {name: KINDS[kind](a) for name, a in (made | packed).items()}
        found = policy.weighted(ot.NonMarkovRetrace(), **arrays, mean="seq-mean-token-sum")
        decision = made["mask"] & made["keep"]
        count = len({(b, ids[b, t]) for b, t in np.argwhere(decision)})
        total = float(np.asarray(found.terms["policy"]).sum())
        assert float(found.loss) == pytest.approx(total / count, rel=1e-6)
        assert int(found.decisions) == decision.sum()


def test_group_advantages_of_many_rows_and_under_jit() -> None:
    import jax

    rng = np.random.default_rng(0)
    reward, group = rng.normal(size=2500), rng.integers(40, size=2500)
    found = policy.group_advantages(reward, group)
    for g in range(40):
        own = reward[group == g]
        np.testing.assert_allclose(found[group == g], (own - own.mean()) / own.std(ddof=1), rtol=1e-12)
    alone = jax.jit(policy.group_advantages)(jax.numpy.array([1.0, 2.0, 3.0]), jax.numpy.array([0, 0, 1]))
    np.testing.assert_allclose(alone, [-(0.5**0.5), 0.5**0.5, np.nan])


def test_half_precision_is_computed_with_in_float32() -> None:
    import torch

    log = torch.tensor([[-1.0, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    found = policy.weighted(
        ot.ImportanceSampling(), log_pi=log, log_mu=log.detach(), advantage=torch.ones(1, dtype=torch.bfloat16)
    )
    assert found.loss.dtype == torch.float32
    found.loss.backward()
    assert log.grad is not None
    assert log.grad.dtype == torch.bfloat16
    np.testing.assert_allclose(log.grad.float(), [[-0.5, -0.5]])


def test_no_gradient_goes_through_weights_targets_or_the_next_value() -> None:
    import torch

    made = {n: torch.tensor(a) if isinstance(a, np.ndarray) else a for n, a in one_batch().items()}
    for name in ("reward", "next_value", "log_mu"):
        made[name].requires_grad_()
    made["log_pi"].requires_grad_()
    policy.acer(ot.Retrace(), **without(made, "value")).loss.backward()
    assert all(made[name].grad is None for name in ("reward", "next_value", "log_mu"))


def test_a_ratio_that_overflows_and_is_clipped_has_no_gradient() -> None:
    import torch

    log_pi = torch.tensor([0.0, -1.0], requires_grad=True)
    policy.clipped(log_pi=log_pi, log_prox=torch.tensor([-200.0, -1.0]), advantage=torch.ones(2)).loss.backward()
    assert log_pi.grad is not None
    np.testing.assert_allclose(log_pi.grad, [0.0, -0.5])
