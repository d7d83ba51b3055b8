"""The published losses, each in one sentence of `PolicyLoss`."""

from __future__ import annotations

from offtrace.policy.policy_loss import PolicyLoss
from offtrace.policy.shapes import (
    Clip,
    ClippedWeight,
    Divergence,
    Gate,
    GeometricClip,
    Importance,
    Kernel,
    PositionClip,
)
from offtrace.traces import ImportanceSampling, TruncatedIS

SEQUENCES = "seq-mean-token-mean"
NO_PREFIX = "the past of a decision is not weighed, so that states count as π_prox visits them"

NAMED = (
    PolicyLoss("ppo", Clip(), citation="Schulman et al. 2017, arXiv:1707.06347; dual: Ye et al. 2020", bias=NO_PREFIX),
    PolicyLoss(
        "decoupled_ppo", Clip(), weight=ImportanceSampling(), citation="Hilton et al. 2022, arXiv:2110.00641", bias=NO_PREFIX
    ),
    PolicyLoss("grpo", Clip(), mean=SEQUENCES, citation="Shao et al. 2024, arXiv:2402.03300", bias=NO_PREFIX),
    PolicyLoss(
        "dr_grpo", Clip(), mean="seq-mean-token-sum-norm", citation="Liu et al. 2025, arXiv:2503.20783", bias=NO_PREFIX
    ),
    PolicyLoss("clip_higher", Clip(0.2, 0.28), citation="DAPO: Yu et al. 2025, arXiv:2503.14476", bias=NO_PREFIX),
    PolicyLoss(
        "gspo", Clip(3e-4, 4e-4), "sequence-mean", mean=SEQUENCES, citation="Zheng et al. 2025, arXiv:2507.18071",
        bias="the root of the row's ratio is no importance weight: with stale rows it is biased, with less variance",
    ),
    PolicyLoss(
        "gmpo", GeometricClip(), mean=SEQUENCES, citation="Zhao et al. 2025, arXiv:2507.20673",
        bias="as of gspo: a geometric mean of ratios is no importance weight",
    ),
    PolicyLoss("cispo", ClippedWeight(), citation="MiniMax-M1 2025, arXiv:2506.13585", bias=NO_PREFIX),
    PolicyLoss("sapo", Gate(), mean=SEQUENCES, citation="Gao et al. 2025, arXiv:2511.20347", bias=NO_PREFIX),
    PolicyLoss("dppo_tv", Divergence("tv"), citation="2026, arXiv:2602.04879", bias=NO_PREFIX),
    PolicyLoss("dppo_kl", Divergence("kl", 0.05, 0.05), citation="2026, arXiv:2602.04879", bias=NO_PREFIX),
    PolicyLoss(
        "opsm", Clip(), keep_negative=1e-4, citation="DeepSeek-V3.2 2025, arXiv:2512.02556; slime",
        bias=f"{NO_PREFIX}; rows of A < 0 are dropped by how far π has gone, which depends on what was drawn",
    ),
    PolicyLoss(
        "tis", Clip(), weight=TruncatedIS(bound=2.0), citation="Yao et al. 2025, truncated importance sampling", bias=NO_PREFIX
    ),
    PolicyLoss(
        "icepop", Clip(), weight=ImportanceSampling(), weight_options={"lower": 0.5, "upper": 5.0, "outside": "mask"},
        citation="Ling team 2025, arXiv:2510.18855", bias=NO_PREFIX,
    ),
    PolicyLoss(
        "mis", Clip(), weight=ImportanceSampling(),
        weight_options={"level": "sequence", "upper": 2.0, "outside": "mask"},
        citation="Liu et al. 2025, masked importance sampling by the row's ratio",
        bias="rows with a ratio above the bound are left out, which biases it; the others are weighed right",
    ),
    PolicyLoss(
        "ctpo", Clip(), "prefix", citation="Rethinking importance sampling: a cumulative token perspective, 2026",
        bias="the prefix is the right weight of a decision; where it is clipped, biased",
    ),
    PolicyLoss(
        "ctpo_geomean", Clip(), "prefix-mean", citation="the same", bias="the root of a prefix is no importance weight"
    ),
    PolicyLoss(
        "ctpo_la", PositionClip(), "prefix", citation="the same, with bounds that widen by position",
        bias="as of ctpo; late decisions are clipped less",
    ),
    PolicyLoss(
        "ctpo_geomean_la", PositionClip(power=-0.5), "prefix-mean", citation="the same",
        bias="the root of a prefix is no importance weight",
    ),
    PolicyLoss(
        "vespo", Kernel(), "sequence", citation="Shen et al. 2026, arXiv:2602.10693",
        bias="biased by its kernel, with bounded weights; it weighs whole rows",
    ),
    PolicyLoss(
        "prefix", Importance(), "prefix", mean="seq-mean-token-sum", citation="the policy gradient theorem",
        bias="none, if log_prox is that of the policy that acted and A is Q^π, less a baseline of the state",
    ),
)  # fmt: skip
"""In the order in which they are listed."""
