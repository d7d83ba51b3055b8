"""Named losses: those of the trainers' own functions, by plain loops, on every backend, in parts and in packed rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp

import offtrace as ot
from offtrace import policy
from offtrace.policy.policy_loss import KLS, LEVELS, MEANS, PolicyLoss
from offtrace.policy.shapes import Clip, Gate, Gaussian, Importance

REFERENCE = np.load(Path(__file__).parents[1] / "reference" / "trainer_losses.npz")
IN = {
    "log_pi": REFERENCE["log_pi"], "log_prox": REFERENCE["log_old"], "log_mu": REFERENCE["log_mu"],
    "mask": REFERENCE["mask"], "advantage": REFERENCE["advantage"],
}  # fmt: skip
OURS = {"geo_mean": "gmpo"}
DUAL = ("ppo", "dppo_tv", "dppo_kl", "ctpo", "ctpo_geomean")
FIXED = ("gspo", "sapo", "gmpo")
"""The trainer takes the mean over rows and their tokens, whatever it is told."""


def names() -> list[str]:
    return list(policy.losses())


def example(loss: PolicyLoss, i: int = 1) -> dict[str, Any]:
    return dict(loss.examples()[i])


@pytest.mark.parametrize("key", [key[: -len("|loss")] for key in REFERENCE.files if key.endswith("|loss")])
def test_losses_and_gradients_are_those_of_the_trainers(key: str) -> None:
    name, mode, ends = key.split("|")
    name = OURS.get(name, name)
    options: dict[str, Any] = {"mean": "seq-mean-token-mean" if name in FIXED else mode}
    if name.startswith("ctpo") and mode == "seq-mean-token-sum-norm":
        options["rows"] = 1  # an older mean, which does not divide by the rows
    if name not in ("sapo", "ctpo_la", "ctpo_geomean_la"):
        options["clip"] = tuple(map(float, ends.split(",")))
    if name in DUAL:
        options["dual"] = 3.0
    given: dict[str, Any] = {k: torch.tensor(v) for k, v in IN.items()}
    given["log_pi"].requires_grad_(True)
    found = policy.loss(name, **given, **options)
    found.loss.backward()
    np.testing.assert_allclose(found.loss.item(), REFERENCE[f"{key}|loss"], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(given["log_pi"].grad.numpy(), REFERENCE[f"{key}|grad"], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KLS)
def test_kl_terms_are_those_of_the_trainers(kind: str) -> None:
    log_pi = torch.tensor(IN["log_pi"], requires_grad=True)
    given: dict[str, Any] = {"log_prox": torch.tensor(IN["log_prox"]), "log_ref": torch.tensor(IN["log_prox"])}
    everywhere = torch.ones(log_pi.shape, dtype=torch.bool)
    zero = torch.zeros(len(log_pi), dtype=torch.float64)
    found = policy.loss("ppo", log_pi=log_pi, mask=everywhere, advantage=zero, kl=kind, kl_cost=1.0, **given)
    found.terms["kl"].sum().backward()
    wanted = {part: REFERENCE[f"kl|{kind}|{part}"] for part in ("value", "grad")}
    np.testing.assert_allclose(found.terms["kl"].detach().numpy(), wanted["value"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(log_pi.grad.numpy(), wanted["grad"], rtol=1e-7, atol=1e-9)  # pyright: ignore


def test_every_named_loss_agrees_on_every_backend() -> None:
    for name in names():
        for i in range(3):
            given = example(policy.losses()[name], i)
            plain = policy.loss(name, **given)
            tensors: dict[str, Any] = {k: torch.tensor(v) for k, v in given.items()}
            tensors["log_pi"].requires_grad_(True)
            torch_loss = policy.loss(name, **tensors)
            torch_loss.loss.backward()
            others = {k: jnp.asarray(v) for k, v in given.items() if k != "log_pi"}

            def of(log_pi: Any, name: str = name, others: Any = others) -> Any:
                return policy.loss(name, log_pi=log_pi, **others).loss

            with jax.enable_x64(True):
                others.update({k: jnp.asarray(given[k]) for k in others})
                value, gradient = jax.jit(jax.value_and_grad(of))(jnp.asarray(given["log_pi"]))
            np.testing.assert_allclose(torch_loss.loss.item(), plain.loss, rtol=1e-12, err_msg=name)
            np.testing.assert_allclose(float(value), plain.loss, rtol=1e-10, err_msg=name)
            np.testing.assert_allclose(np.asarray(gradient), tensors["log_pi"].grad.numpy(), rtol=1e-9, atol=1e-14)
            assert np.isfinite(np.asarray(gradient)).all(), name


def rows_of(given: dict[str, Any], name: str) -> list[dict[str, np.ndarray]]:
    return [{k: np.asarray(v)[b] for k, v in given.items()} for b in range(len(given["log_pi"]))]


@pytest.mark.parametrize("level", LEVELS)
def test_levels_by_plain_loops(level: str) -> None:
    given = example(PolicyLoss("any"), 1)
    found = policy.loss(PolicyLoss("any", Importance(), level), **given)
    for b, row in enumerate(rows_of(given, "any")):
        at = np.flatnonzero(row["mask"])
        logs = (row["log_pi"] - row["log_prox"])[at]
        for i, t in enumerate(at):
            upto, whole = logs[: i + 1], logs
            wanted = {
                "token": logs[i], "prefix": upto.sum(), "prefix-mean": upto.mean(), "sequence": whole.sum(),
                "sequence-mean": whole.mean(),
            }[level]  # fmt: skip
            assert found.arrays["ratio"][b, t] == pytest.approx(math.exp(wanted), rel=1e-12)


def test_weights_and_gates_by_plain_loops() -> None:
    given = example(PolicyLoss("any"), 2)
    rho = np.exp(given["log_prox"] - given["log_mu"])
    ppo = policy.loss("ppo", **given).terms["policy"]
    for name, w in (
        ("decoupled_ppo", rho),
        ("tis", np.minimum(rho, 2.0)),
        ("icepop", np.where((rho >= 0.5) & (rho <= 5.0), rho, 0.0)),
    ):
        np.testing.assert_allclose(policy.loss(name, **given).terms["policy"], np.where(given["mask"], w * ppo, 0.0))
    opsm = policy.loss("opsm", **given).terms["policy"]
    vespo = policy.loss("vespo", **given).terms["policy"]
    for b, row in enumerate(rows_of(given, "any")):
        at = np.flatnonzero(row["mask"])
        apart = float(np.mean((row["log_prox"] - row["log_pi"])[at]))
        dropped = row["advantage"] < 0 and apart > 1e-4
        np.testing.assert_allclose(opsm[b], 0.0 * ppo[b] if dropped else ppo[b])
        W = math.exp(float(np.sum((row["log_pi"] - row["log_prox"])[at])))
        k, lam = (2.0, 3.0) if row["advantage"] >= 0 else (3.0, 2.0)
        wanted = -(W**k) * math.exp(lam * (1 - W)) * row["advantage"] * row["log_pi"]
        np.testing.assert_allclose(vespo[b, at], wanted[at], rtol=1e-12)


def test_decoupled_ppo_is_clipped() -> None:
    given = example(PolicyLoss("any"), 2)
    wanted = policy.clipped(**given, clip=0.1, dual=2.0)
    assert policy.loss("decoupled_ppo", **given, clip=0.1, dual=2.0).loss == pytest.approx(wanted.loss, rel=1e-12)


def test_packed_rows_are_the_same_as_padded_ones() -> None:
    given = example(PolicyLoss("any"), 1)
    mask = given["mask"]
    packed = {k: v[mask][None] for k, v in given.items() if k not in ("advantage", "mask")}
    ids = np.broadcast_to(np.arange(len(mask))[:, None], mask.shape)[mask][None]
    advantage = np.broadcast_to(given["advantage"][:, None], mask.shape)[mask][None]
    holes = {k: np.insert(v, 2, np.nan if v.dtype == float else 7, axis=1) for k, v in packed.items()}
    seen = np.insert(np.ones_like(ids), 2, 0, axis=1)
    for name in names():
        for mean in MEANS:
            options: dict[str, Any] = {"mean": mean, "length": 5}
            wanted = policy.loss(name, **given, **options).loss
            found = policy.loss(name, **packed, advantage=advantage, segment=ids, **options).loss
            assert found == pytest.approx(wanted, rel=1e-10), (name, mean)
            found = policy.loss(
                name, **holes, advantage=np.insert(advantage, 2, 0.0, axis=1), segment=np.insert(ids, 2, ids[0, 1], axis=1),
                mask=seen, **options,
            ).loss  # fmt: skip
            assert found == pytest.approx(wanted, rel=1e-10), (name, mean)


@pytest.mark.parametrize("mean", MEANS)
def test_parts_of_a_batch_sum_to_the_batch(mean: str) -> None:
    given = example(PolicyLoss("any"), 1)
    whole = policy.loss("gspo", **given, mean=mean)
    count: dict[str, Any] = {"tokens": int(given["mask"].sum()), "rows": int(given["mask"].any(-1).sum()), "length": 5}
    parts = [policy.loss("gspo", **{k: v[i : i + 1] for k, v in given.items()}, mean=mean, **count) for i in range(3)]
    assert sum(part.loss for part in parts) == pytest.approx(whole.loss, rel=1e-12)
    averaged = [
        policy.loss("gspo", **{k: v[i : i + 1] for k, v in given.items()}, mean=mean, ranks=3, **count)
        for i in range(3)
    ]
    assert np.mean([part.loss for part in averaged]) == pytest.approx(whole.loss, rel=1e-12)


def test_own_parts_keep_and_entropy() -> None:
    given = example(PolicyLoss("any"), 1)
    mine = PolicyLoss("mine", Gaussian(0.3), "prefix-mean", mean="seq-mean-token-sum")
    assert np.isfinite(policy.loss(mine, **given).loss)
    keep = np.arange(5) % 2 == 0
    found = policy.loss("ppo", **given, keep=np.broadcast_to(keep, given["mask"].shape))
    whole = policy.loss("ppo", **given)
    np.testing.assert_array_equal(found.terms["policy"], np.where(keep, whole.terms["policy"], 0.0))
    assert found.loss == pytest.approx(np.where(keep, whole.terms["policy"], 0.0).sum() / given["mask"].sum())
    more = policy.loss("ppo", **given, entropy=np.ones_like(given["log_pi"]), entropy_cost=0.25)
    assert more.loss == pytest.approx(whole.loss - 0.25)
    trace = policy.loss("ppo", **given, trace=ot.NonMarkovRetrace(lam=1.0))
    wanted = ot.weights(
        ot.NonMarkovRetrace(lam=1.0),
        log_pi=given["log_prox"],
        log_mu=given["log_mu"],
        mask=given["mask"],
        level="token",
    )
    np.testing.assert_allclose(trace.arrays["weight"], wanted)


def test_ratios_that_overflow_have_finite_gradients() -> None:
    log_pi = torch.tensor([[-0.1, -0.1], [-900.0, -0.1]], dtype=torch.float64, requires_grad=True)
    log_prox = torch.tensor([[-800.0, -0.2], [-0.1, -0.1]], dtype=torch.float64)
    for name in names():
        if name == "prefix":  # its ratio is not bounded
            continue
        advantage = torch.tensor([1.0, -1.0], dtype=torch.float64)
        loss = policy.loss(name, log_pi=log_pi, log_prox=log_prox, log_mu=log_prox, advantage=advantage).loss
        (gradient,) = torch.autograd.grad(loss, log_pi)
        assert torch.isfinite(gradient).all(), name


def test_mistakes_say_what_to_do() -> None:
    given = example(PolicyLoss("any"), 1)
    for words, change in (
        (r"no loss named 'gsop'; did you mean 'gspo'\?", {"name": "gsop"}),
        ("mean = 'token_mean' is not known", {"mean": "token_mean"}),
        ("kl = 'k4' is not known", {"kl": "k4", "log_ref": given["log_mu"]}),
        (r"clip must be one number or \(low, high\)", {"clip": (1.0, 2.0, 3.0)}),
        ("dual must be above 1", {"dual": 0.5}),
        (r"advantage has shape \(2,\)", {"advantage": np.zeros(2)}),
        ("advantage must be finite, got nan", {"advantage": np.full(3, np.nan)}),
    ):
        with pytest.raises(ValueError, match=words):
            policy.loss(**{"name": "ppo", **given, **change})
    with pytest.raises(TypeError, match="Gate has no clip"):
        policy.loss("sapo", **given, clip=0.2)
    without = {k: v for k, v in given.items() if k != "log_mu"}
    with pytest.raises(TypeError, match="tis weighs π_prox against μ, the policy that acted: give log_mu"):
        policy.loss("tis", **without)
    with pytest.raises(TypeError, match="ppo needs log_prox"):
        policy.loss("ppo", log_pi=given["log_pi"], advantage=given["advantage"])
    with pytest.raises(ValueError, match="there is a loss named 'ppo' already"):
        policy.register_loss(PolicyLoss("ppo", Clip()))


def test_arguments_that_cannot_be_meant_are_refused() -> None:
    given = example(PolicyLoss("any"), 1)
    mask = given["mask"]
    whole = {**given, "mask": np.ones_like(mask)}
    falling = np.broadcast_to(np.array([0, 1, 0, 0, 0]), mask.shape)
    for words, kind, change in (
        ("trace and weight are both given", TypeError, {"trace": ot.Retrace(), "weight": np.ones(mask.shape)}),
        ("kl_cost is given without log_ref", TypeError, {"kl_cost": 0.1}),
        ("entropy_cost is given without entropy", TypeError, {"entropy_cost": 0.1}),
        (r"keep has shape \(2, 5\)", ValueError, {"keep": np.ones((2, 5))}),
        ("keep must hold 0 or 1", ValueError, {"keep": np.full(mask.shape, 0.5)}),
        (r"segment has shape \(5,\)", ValueError, {"segment": np.arange(5)}),
        ("segment must hold integer ids", TypeError, {"segment": np.ones(mask.shape)}),
        ("segment falls at step 2 of row 0", ValueError, {"segment": falling}),
        ("ranks must be above 0", ValueError, {"ranks": 0}),
        ("tokens must be one number", TypeError, {"tokens": np.ones(3)}),
        ("divides by the length of a padded row", TypeError, {"segment": 0 * falling, "mean": "seq-mean-token-sum-norm"}),
        ("log_pi must not exceed 0, got 0.5", ValueError, {"name": "dppo_tv", "log_pi": np.full(mask.shape, 0.5)}),
        ("name must be that of a loss", TypeError, {"name": Clip()}),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            policy.loss(**{"name": "ppo", **whole, **change})
    with pytest.raises(TypeError, match="ClippedWeight has no dual clip"):
        policy.loss("cispo", **given, dual=3.0)
    with pytest.raises(TypeError, match="weight_options are given without weight"):
        PolicyLoss("mine", weight_options={"level": "token"})
    with pytest.raises(TypeError, match=r"shape must be one of offtrace\.policy\.shapes"):
        PolicyLoss("mine", shape="clip")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="positive must be above 0"):
        Gate(positive=0.0)


def test_actions_that_pi_never_takes_have_no_gradient_and_make_no_nan() -> None:
    given: dict[str, Any] = {k: torch.tensor(v) for k, v in example(PolicyLoss("any"), 1).items()}
    given["mask"] = torch.ones_like(given["mask"])
    given["log_pi"][0, 1] = -torch.inf
    given["log_pi"].requires_grad_(True)
    for name in names():
        found = policy.loss(name, **given)
        (gradient,) = torch.autograd.grad(found.loss, given["log_pi"])
        assert torch.isfinite(found.loss), name
        assert torch.isfinite(gradient).all(), name
        assert gradient[0, 1] == 0, name


def test_each_named_loss_says_what_it_is() -> None:
    for name in names():
        named = policy.losses()[name]
        assert named.citation
        assert named.bias
        assert named.mean in named.formula
        assert hash(named.shape) is not None
