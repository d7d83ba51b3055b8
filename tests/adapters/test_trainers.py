"""Adapters of trainers against the trainers' formulas, written out here. `make peers` runs their own tests, and TRL's mixin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import offtrace as ot  # noqa: E402
from offtrace.adapters import areal, prime_rl, skyrl, slime, verl  # noqa: E402


@pytest.fixture
def batch() -> dict[str, Any]:
    torch.manual_seed(0)
    old = -torch.rand(3, 5, dtype=torch.float64) - 0.1
    return {
        "log_pi": (old + 0.4 * torch.randn_like(old)).clamp(max=-0.01).requires_grad_(),
        "old": old,
        "mu": (old + 0.3 * torch.randn_like(old)).clamp(max=-0.01),
        "mask": torch.arange(5) < torch.tensor([[5], [2], [4]]),
        "A": torch.randn(3, 5, dtype=torch.float64),
    }


def same(ours: Any, theirs: Any, log_pi: Any) -> None:
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(loss, log_pi, retain_graph=True)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_verl_takes_bounds_and_denominators_from_its_configuration(batch: dict[str, Any]) -> None:
    class Config(SimpleNamespace):
        def get(self, name: str, default: Any) -> Any:
            return getattr(self, name, default)

    whole = {"dp_size": 2, "batch_num_tokens": 30, "global_batch_size": 8, "loss_scale_factor": 7}
    config = Config(clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=0.3, clip_ratio_c=3.0, global_batch_info=whole)
    weight = torch.rand(3, 5, dtype=torch.float64)
    log_pi, mask = batch["log_pi"], batch["mask"]
    r = (log_pi - batch["old"]).exp()
    least = torch.minimum(r * batch["A"], r.clamp(0.8, 1.3) * batch["A"])
    each = -weight * torch.where(batch["A"] < 0, torch.maximum(least, 3.0 * batch["A"]), least) * mask
    wanted = {
        "token-mean": 2 * each.sum() / 30,
        "seq-mean-token-sum": 2 * each.sum() / 8,
        "seq-mean-token-mean": 2 * (each.sum(-1) / mask.sum(-1)).sum() / 8,
        "seq-mean-token-sum-norm": each.sum() / 7,
    }
    compute = verl.policy_loss("ppo")
    for mode, loss in wanted.items():
        ours, metrics = compute(batch["old"], log_pi, batch["A"], mask, mode, config, weight)
        same(ours, loss, log_pi)
        kl = ((batch["old"] - log_pi) * mask).sum() / mask.sum()
        assert metrics["actor/ppo_kl"] == pytest.approx(float(kl.detach()))


def test_slime_weighs_lists_of_rows_and_rejects(batch: dict[str, Any]) -> None:
    rows = [row[there] for row, there in zip(batch["old"], batch["mask"], strict=True)]
    mu = [row[there] for row, there in zip(batch["mu"], batch["mask"], strict=True)]
    masks = [torch.ones(len(row)) for row in rows]
    function = slime.tis(ot.NonMarkovRetrace(), level="prefix", rejects={"by": "sequence mean ratio", "upper": 1.1})
    pg_loss = torch.ones(sum(map(len, rows)), dtype=torch.float64)
    loss, kept, metrics = function(
        None, pg_loss=pg_loss, train_log_probs=rows, rollout_log_probs=mu, loss_masks=masks, extra="ignored"
    )
    wanted: list[float] = []
    for row, other in zip(rows, mu, strict=True):
        x = 1.0
        for ratio in (row - other).exp().tolist():
            x = min(1.0, x * ratio)
            wanted.append(x)
    assert loss.tolist() == pytest.approx(wanted)
    assert [bool(mask.all()) for mask in kept] == [
        float((a - b).mean().exp()) <= 1.1 for a, b in zip(rows, mu, strict=True)
    ]
    assert set(metrics) == {"tis", "tis_clipfrac", "tis_abs"}
    assert metrics["tis"].tolist() == pytest.approx((torch.cat(rows) - torch.cat(mu)).exp().tolist())


def test_prime_rl_is_its_default_loss(batch: dict[str, Any]) -> None:
    """DPPO with its thresholds and the squared log ratio."""
    mask = batch["mask"][0]
    log_pi, mu, A = batch["log_pi"], batch["mu"][0], batch["A"][0]
    loss_weights = torch.rand(5, dtype=torch.float64)
    log_ratio = log_pi[0] - mu
    moved = log_pi[0].exp() - mu.exp()
    out = torch.where(A > 0, moved > 0.2, moved < -0.2)
    score = torch.where(out, 0.0, log_ratio.exp().detach() * A) * log_pi[0]  # with the gradient of r A
    inputs = SimpleNamespace(
        trainer_logprobs=log_pi[0], inference_logprobs=mu, advantages=A, loss_mask=mask, loss_weights=None
    )
    unweighted = prime_rl.policy_loss(inputs, kl_tau=1e-3)
    plain = ((-score + 1e-3 * log_ratio**2) * mask).sum()
    same(unweighted.loss, plain, log_pi)
    inputs.loss_weights = loss_weights
    weighed = prime_rl.policy_loss(inputs)
    same(weighed.loss, (-score * loss_weights * mask).sum(), log_pi)
    assert float(weighed.metrics["clipped"]) == pytest.approx(float((out & mask).sum() / mask.sum()))


def test_skyrl_sums_and_corrects(batch: dict[str, Any]) -> None:
    none = dict.fromkeys(
        (
            "sequence_mask_metric", "outlier_token_is_threshold_low", "outlier_token_is_threshold_high",
            "token_mask_is_threshold_low", "token_mask_is_threshold_high",
        )
    )  # fmt: skip
    correction = SimpleNamespace(tis_ratio_type="token", token_tis_ratio_clip_high=1.2, **none)
    config = SimpleNamespace(
        eps_clip_low=0.2, eps_clip_high=0.2, policy_loss_type="regular", off_policy_correction=correction
    )
    log_pi, mask = batch["log_pi"], batch["mask"].double()
    r = (log_pi - batch["old"]).exp()
    each = -torch.minimum(r * batch["A"], r.clamp(0.8, 1.2) * batch["A"])
    ratio = (batch["old"] - batch["mu"]).exp()
    compute = skyrl.policy_loss("ppo")
    ours, metrics = compute(log_pi, batch["old"], batch["A"], config, mask, batch["mu"])
    same(ours, (each * ratio.clamp(max=1.2) * mask).sum(), log_pi)
    assert metrics["tis_token_clip_high_ratio"] == pytest.approx(float(((ratio > 1.2) * mask).sum() / mask.sum()))
    prefix = skyrl.policy_loss("ppo", trace=ot.NonMarkovRetrace(), level="prefix")
    by_trace, _ = prefix(log_pi, batch["old"], batch["A"], config, mask, batch["mu"])
    w = ot.weights(ot.NonMarkovRetrace(), log_pi=batch["old"], log_mu=batch["mu"], mask=mask, level="prefix")
    same(by_trace, (each * w * mask).sum(), log_pi)


def test_areal_masks_by_k1_of_the_other_direction(batch: dict[str, Any]) -> None:
    """Its k1 is log π/μ, whose mean over a row must not exceed the bound; weights are those by token."""
    config = SimpleNamespace(level="sequence", agg="mean", metric="kl_k1", action="mask", upper=-0.1, lower=None)
    mask = batch["mask"].float()
    result = areal.apply_rejection_sampling(batch["old"], batch["mu"], mask, None, config)
    log_ratio = batch["old"] - batch["mu"]
    kept = ((log_ratio * mask).sum(-1) / mask.sum(-1) <= -0.1)[:, None] & batch["mask"]
    assert torch.equal(result.loss_mask != 0, kept)
    torch.testing.assert_close(result.behave_imp_weight, torch.where(kept, log_ratio.exp(), 0.0))
    assert 0.0 < result.filtered_fraction == pytest.approx(float((batch["mask"] & ~kept).sum() / batch["mask"].sum()))
