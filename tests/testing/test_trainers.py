"""Weights and losses of trainers with one planted mistake each: the referee names it, and says right where there is none."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import offtrace as ot  # noqa: E402
from offtrace.testing import check_loss, check_weights  # noqa: E402


def ratio(a: Any, b: Any) -> Any:
    return (a - b).exp()


def prefix(log_pi: Any, log_mu: Any, mask: Any) -> Any:
    return ((log_pi - log_mu) * mask).cumsum(-1).exp().detach()


WEIGHTS: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "token": (lambda log_pi, log_mu: ratio(log_pi, log_mu).detach(), {}, None),
    "truncated": (
        lambda log_pi, log_mu: ratio(log_pi, log_mu).clamp(max=2.0).detach(),
        {"trace": ot.TruncatedIS(bound=2.0)},
        None,
    ),
    "prefix": (prefix, {"level": "prefix"}, None),
    "one a row": (
        lambda log_pi, log_mu, mask: ((log_pi - log_mu) * mask).sum(-1, keepdim=True).exp().detach(),
        {"level": "sequence"},
        None,
    ),
    "not detached": (lambda log_pi, log_mu: ratio(log_pi, log_mu), {}, "gradient through the weight"),
    "shifted": (
        lambda log_pi, log_mu: ratio(log_pi, log_mu.roll(1, 1)).detach(),
        {},
        "token shift",
    ),
    "shifted back": (lambda log_pi, log_mu: ratio(log_pi, log_mu.roll(-1, 1)).detach(), {}, "token shift"),
    "prompt": (
        lambda log_pi, log_mu: (log_pi - log_mu).cumsum(-1).exp().detach(),
        {"level": "prefix"},
        "prompt tokens counted",
    ),
    "sequence": (
        lambda log_pi, log_mu, mask: ((log_pi - log_mu) * mask).sum(-1, keepdim=True).exp().detach(),
        {},
        "sequence ratio",
    ),
    "token in place of prefix": (
        lambda log_pi, log_mu: ratio(log_pi, log_mu).detach(),
        {"level": "prefix"},
        "token ratio",
    ),
    "upside down": (lambda log_pi, log_mu: ratio(log_mu, log_pi).detach(), {}, "ratio upside down"),
    "ones": (lambda log_pi: torch.ones_like(log_pi).detach(), {}, "old policy is the current one"),
    "no cap": (
        lambda log_pi, log_mu: ratio(log_pi, log_mu).detach(),
        {"trace": ot.TruncatedIS(bound=1.5)},
        "not truncated",
    ),
    "halves": (
        lambda log_pi, log_mu, mask: torch.cat(
            [prefix(log_pi[:, :6], log_mu[:, :6], mask[:, :6]), prefix(log_pi[:, 6:], log_mu[:, 6:], mask[:, 6:])], 1
        ),
        {"level": "prefix"},
        "a shard ignores the others",
    ),
    "root by T": (
        lambda log_pi, log_mu, mask: ((log_pi - log_mu) * mask).mean(-1, keepdim=True).exp().detach(),
        {"level": "geometric"},
        "wrong denominator",
    ),
    "metric after": (
        lambda log_pi, log_mu, mask: (
            ratio(log_pi, log_mu).clamp(max=1.2).detach(),
            {"mean_ratio": ratio(log_pi, log_mu).clamp(max=1.2)[mask].mean().item()},
        ),
        {"trace": ot.TruncatedIS(bound=1.2)},
        "truncation before the metric",
    ),
    "metric before": (
        lambda log_pi, log_mu, mask: (
            ratio(log_pi, log_mu).clamp(max=1.2).detach(),
            {"mean_ratio": ratio(log_pi, log_mu)[mask].mean().item()},
        ),
        {"trace": ot.TruncatedIS(bound=1.2)},
        None,
    ),
    "squared": (lambda log_pi, log_mu: (2 * (log_pi - log_mu)).exp().detach(), {}, "unknown"),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("seed", [0, 7])
def test_weights(name: str, seed: int) -> None:
    fn, options, mistake = WEIGHTS[name]
    verdict = check_weights(fn, seed=seed, **options)
    assert verdict.mistake == mistake, verdict
    assert bool(verdict) == (mistake is None)
    assert ("right" if mistake is None else mistake) in str(verdict)


def ppo(log_pi: Any, log_prox: Any, advantage: Any, mask: Any) -> Any:
    r = ratio(log_pi, log_prox)
    each = -torch.minimum(r * advantage, r.clamp(0.8, 1.2) * advantage)
    return (each * mask).sum() / mask.sum()


def both_sides(log_pi: Any, log_prox: Any, advantage: Any, mask: Any) -> Any:
    return -(ratio(log_pi, log_prox).clamp(0.8, 1.2) * advantage * mask).sum() / mask.sum()


def minimum_of_ratios(log_pi: Any, log_prox: Any, advantage: Any, mask: Any) -> Any:
    r = ratio(log_pi, log_prox)
    return -(torch.minimum(r, r.clamp(0.8, 1.2)) * advantage * mask).sum() / mask.sum()


def cispo(detached: bool) -> Any:
    def fn(log_pi: Any, log_prox: Any, advantage: Any, mask: Any) -> Any:
        w = ratio(log_pi, log_prox).clamp(0.0, 1.2)
        w = w.detach() if detached else w
        return -(w * advantage * log_pi * mask).sum() / mask.sum()

    return fn


def by_own_count(log_pi: Any, log_prox: Any, advantage: Any, mask: Any, tokens: float) -> Any:
    return ppo(log_pi, log_prox, advantage, mask)


def by_whole_count(log_pi: Any, log_prox: Any, advantage: Any, mask: Any, tokens: float) -> Any:
    return ppo(log_pi, log_prox, advantage, mask) * mask.sum() / tokens


def tis(log_pi: Any, log_prox: Any, log_mu: Any, advantage: Any, mask: Any) -> Any:
    r = ratio(log_pi, log_prox)
    each = -ratio(log_prox, log_mu).clamp(max=2.0) * torch.minimum(r * advantage, r.clamp(0.8, 1.2) * advantage)
    return (each * mask).sum() / mask.sum()


def sequence_ratio(log_pi: Any, log_prox: Any, advantage: Any, mask: Any) -> Any:
    at_row = (((log_pi - log_prox) * mask).sum(-1) / mask.sum(-1))[:, None].detach()
    r = (at_row + log_pi - log_pi.detach()).exp()
    each = -torch.minimum(r * advantage, r.clamp(0.8, 1.2) * advantage)
    return (each * mask).sum() / mask.sum()


def of(fn: Any, **changes: Any) -> Any:
    """The function with other arrays."""

    def call(log_pi: Any, log_prox: Any, log_mu: Any, advantage: Any, mask: Any) -> Any:
        x = {"log_pi": log_pi, "log_prox": log_prox, "advantage": advantage, "mask": mask}
        if fn is tis:
            x["log_mu"] = log_mu
        return fn(**x | {name: change(x | {"log_mu": log_mu}) for name, change in changes.items()})

    return call


LOSSES: dict[str, tuple[Any, str, str | None]] = {
    "ppo": (ppo, "ppo", None),
    "tis": (tis, "tis", None),
    "cispo": (cispo(True), "cispo", None),
    "micro-batches": (by_whole_count, "ppo", None),
    "shifted": (of(ppo, log_prox=lambda x: x["log_prox"].roll(1, 1)), "ppo", "token shift"),
    "shifted μ": (of(tis, log_mu=lambda x: x["log_mu"].roll(-1, 1)), "tis", "token shift"),
    "prompt": (of(ppo, mask=lambda x: torch.ones_like(x["mask"])), "ppo", "prompt tokens counted"),
    "all tokens": (
        lambda log_pi, log_prox, advantage, mask: ppo(log_pi, log_prox, advantage, mask) * mask.sum() / mask.numel(),
        "ppo",
        "wrong denominator",
    ),
    "own denominators": (by_own_count, "ppo", "normalisation by micro-batch"),
    "current": (of(ppo, log_prox=lambda x: x["log_pi"].detach()), "ppo", "old policy is the current one"),
    "μ as old": (of(ppo, log_prox=lambda x: x["log_mu"]), "ppo", "old policy is the one that acted"),
    "sequence": (sequence_ratio, "ppo", "sequence-mean ratio"),
    "gradient": (cispo(False), "cispo", "gradient through the weight"),
    "both sides": (both_sides, "ppo", "wrong sign under A < 0"),
    "minimum first": (minimum_of_ratios, "ppo", "wrong sign under A < 0"),
    "sign": (lambda log_pi, log_prox, advantage, mask: -ppo(log_pi, log_prox, advantage, mask), "ppo", "wrong sign"),
    "detached": (of(ppo, log_pi=lambda x: x["log_pi"].detach()), "ppo", "no gradient"),
    "no weight": (of(ppo), "tis", "weight missing"),
    "more": (lambda log_pi, log_prox, advantage, mask: 2.5 * ppo(log_pi, log_prox, advantage, mask), "ppo", "unknown"),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", [0, 7])
def test_losses(name: str, seed: int) -> None:
    fn, loss, mistake = LOSSES[name]
    verdict = check_loss(fn, loss, seed=seed)
    assert verdict.mistake == mistake, verdict
    assert bool(verdict) == (mistake is None)


def test_what_cannot_be_called_is_an_error() -> None:
    with pytest.raises(TypeError, match="did you mean"):
        check_weights(lambda logpi: logpi)
    with pytest.raises(ValueError, match="one for each step"):
        check_weights(lambda log_pi: log_pi[0].detach())
    with pytest.raises(ValueError, match="one number"):
        check_loss(lambda log_pi: log_pi)
    verdict = check_weights(lambda old, **_: old.detach(), names={"old": "log_pi"})
    assert verdict.mistake == "unknown"
