"""The figures that verl 0.9.1 logs of weights, rejections and policies, by their plain definitions, in float64 on the host."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from torch import Tensor

from offtrace.returns.array_kinds import as_numpy
from offtrace.returns.numpy.backend import BACKEND
from offtrace.returns.numpy.weights import Sequences, decisions_of, statistic
from offtrace.returns.weights.decisions import ONE_A_ROW, Criterion, agreed


class Taken(TypedDict):
    """log π, log μ, which tokens are decisions, and ids of rows that were packed into one, [B, T] each."""

    log_pi: Tensor
    log_mu: Tensor
    mask: Tensor
    segment: Tensor | None


def _decisions(taken: Taken, *, never_drawn: bool = False) -> tuple[np.ndarray, Sequences]:
    """log ρ of each decision, and the sequences; with `never_drawn` log ρ is NaN where log μ is −∞, which is else an error."""
    on_host = as_numpy({name: taken[name] for name in ("log_pi", "log_mu", "mask", "segment")})
    return decisions_of(agreed(BACKEND, on_host), never_drawn=never_drawn)


def _at_decisions(array: Tensor, sequences: Sequences) -> np.ndarray:
    return sequences.of(np.atleast_2d(array.detach().double().cpu().numpy()))


def _row_means(values: np.ndarray, sequences: Sequences) -> np.ndarray:
    """The mean over the decisions of each sequence."""
    return np.add.reduceat(values, sequences.starts) / sequences.lengths


@np.errstate(over="ignore", invalid="ignore")  # of weights beyond the floats, whose mean is infinite
def of_weights(
    taken: Taken, level: str, raw: Tensor, applied: Tensor, lower: float | None, upper: float
) -> dict[str, float]:
    """Return verl's metrics of the weights as they are applied, and of how many lay outside of the bounds before, `raw`.

    Where all decisions of a row have one weight, verl's largest and smallest are those before truncation.
    """
    sequences = _decisions(taken)[1]
    before, w = _at_decisions(raw, sequences), _at_decisions(applied, sequences)
    of_rows = level in ONE_A_ROW
    each, extremes = (before[sequences.starts], before) if of_rows else (before, w)
    low = 1.0 / upper if lower is None else lower
    means, means_before = _row_means(w, sequences), _row_means(before, sequences)
    metrics = {
        "rollout_is_mean": w.mean(),
        "rollout_is_max": extremes.max(),
        "rollout_is_min": extremes.min(),
        "rollout_is_std": w.std(),
        "rollout_is_eff_sample_size": w.mean() ** 2 / np.mean(w**2) if w.any() else 0.0,
        "rollout_is_ratio_fraction_high": np.mean(each > upper),
        "rollout_is_ratio_fraction_low": np.mean(each < low),
        "rollout_is_seq_mean": means.mean(),
        "rollout_is_seq_std": means.std(ddof=1) if len(means) > 1 else 0.0,
        "rollout_is_seq_max": means.max(),
        "rollout_is_seq_min": means.min(),
        "rollout_is_seq_max_deviation": np.abs(means - 1.0).max(),
        "rollout_is_seq_fraction_high": np.mean(means_before > upper),
        "rollout_is_seq_fraction_low": np.mean(means_before < low),
    }
    if lower is not None:
        metrics["rollout_is_oob_ratio"] = np.mean((before < lower) | (before > upper))
    return {name: float(value) for name, value in metrics.items()}


def of_rejections(taken: Taken, names: list[str], chosen: tuple[Criterion, ...]) -> dict[str, float]:
    """Return verl's metrics of what each criterion looks at, and of how much it and all together reject.

    Also, "rollout_rs_never_drawn" counts decisions whose log μ is −∞. They are rejected, and else in no figure.
    """
    log_ratio, sequences = _decisions(taken, never_drawn=True)
    log_mu = _at_decisions(taken["log_mu"], sequences)
    metrics: dict[str, np.floating | float] = {"rollout_rs_never_drawn": float(np.isnan(log_ratio).sum())}
    kept = np.ones(len(log_ratio), bool)
    for name, criterion in zip(names, chosen, strict=True):
        of = statistic(criterion, log_ratio, log_mu, sequences)
        by_token = criterion.over == "token"
        by_decision = of if by_token else sequences.spread(of)
        inside = (by_decision >= criterion.lower) & (by_decision <= criterion.upper)
        kept &= inside
        rows = _known(_row_means(of, sequences) if by_token else of)
        of, by_decision = _known(of), _known(by_decision)
        clipped = np.clip(by_decision, criterion.lower if criterion.k == "k1" else 0.0, criterion.upper)
        for part, value in {
            "mean": by_decision.mean(),
            "max": of.max(),
            "min": of.min(),
            "std": clipped.std(),
            "fraction_high": np.mean(of > criterion.upper),
            "fraction_low": np.mean(of < criterion.lower),
            "seq_mean": rows.mean(),
            "seq_std": rows.std(ddof=1) if len(rows) > 1 else 0.0,
            "seq_max": rows.max(),
            "seq_min": rows.min(),
            "seq_max_deviation": np.abs(rows).max(),
            "seq_fraction_high": np.mean(rows > criterion.upper),
            "seq_fraction_low": np.mean(rows < criterion.lower),
            "masked_fraction": np.mean(~inside),
            "seq_masked_fraction": np.mean(~np.logical_and.reduceat(inside, sequences.starts)),
        }.items():
            metrics[f"rollout_rs_{name}_{part}"] = value
    metrics["rollout_rs_masked_fraction"] = np.mean(~kept)
    metrics["rollout_rs_seq_masked_fraction"] = np.mean(~np.logical_and.reduceat(kept, sequences.starts))
    return {name: float(value) for name, value in metrics.items()}


def _known(values: np.ndarray) -> np.ndarray:
    """What is a number; one 0, as verl has it, where nothing is."""
    known = values[~np.isnan(values)]
    return known if len(known) else np.zeros(1)


def of_policies(taken: Taken) -> dict[str, float]:
    """How far π and μ are apart. Rows without a decision do not count."""
    log_ratio, sequences = _decisions(taken)
    training, rollout = (_row_means(_at_decisions(taken[name], sequences), sequences) for name in ("log_pi", "log_mu"))
    whole = np.add.reduceat(log_ratio, sequences.starts)
    difference = rollout - training
    with np.errstate(over="ignore"):
        metrics = {
            **_of_one(training, "training"),
            "kl": -log_ratio.mean(),
            "k3_kl": (np.expm1(log_ratio) - log_ratio).mean(),
            **_of_one(rollout, "rollout"),
            "log_ppl_diff": difference.mean(),
            "log_ppl_abs_diff": np.abs(difference).mean(),
            "log_ppl_diff_max": difference.max(),
            "log_ppl_diff_min": difference.min(),
            "ppl_ratio": np.exp(difference).mean(),
            "chi2_token": np.exp(2.0 * log_ratio).mean() - 1.0,
            "chi2_seq": np.exp(2.0 * whole).mean() - 1.0,
        }
    return {name: float(value) for name, value in metrics.items()}


def of_training(log_pi: Tensor, mask: Tensor) -> dict[str, float]:
    """What is known of π without μ."""
    taken: Taken = {"log_pi": log_pi, "log_mu": log_pi, "mask": mask, "segment": None}
    sequences = _decisions(taken)[1]
    return _of_one(_row_means(_at_decisions(log_pi, sequences), sequences), "training")


def _of_one(means: np.ndarray, name: str) -> dict[str, float]:
    """The perplexity of one policy, and its logarithm."""
    return {f"{name}_ppl": float(np.exp(-means).mean()), f"{name}_log_ppl": float(-means.mean())}
