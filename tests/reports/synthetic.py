"""Records of studies that never ran, with known shapes: curves that rise, an α and a λ that are best, one run that failed."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

TRACES = (
    "Retrace",
    "Non-Markov Retrace",
    "RBIS",
    "Truncated IS",
    "Tree Backup",
    "Q(λ)",
    "Watkins' Q(λ)",
    "Importance sampling",
)
LAMBDAS = (0.0, 0.5, 0.8, 0.9, 1.0)
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
KEYS = ("unit", "phase", "environment", "trace", "lam", "parameters", "alpha")
NONE = ("contraction_lower", "contraction_upper", "variance", "bias", "age")


def records(
    *,
    environments: tuple[str, ...] = ("Bifurcation 1", "Bifurcation 2", "Bifurcation 3", "Bifurcation 4"),
    traces: tuple[str, ...] = TRACES,
    alphas: tuple[float, ...] = ALPHAS,
    seeds: int = 30,
    better: str = "higher",
    seed: int = 0,
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """A control study (`better` = "higher") or an evaluation study ("lower"), tuned on one set of seeds, reported on another."""
    rng = np.random.default_rng(seed)
    rows, curves = [], []
    steps = np.arange(0, 3001, 30)
    for e, environment in enumerate(environments):
        for i, trace in enumerate(traces):
            for lam in LAMBDAS:
                peak = 0.9 - 0.25 * lam * (1 + (i % 3)) / 3
                for alpha in alphas:
                    level = 1000 + 200 * e + 180 * lam * (1.3 - lam) - 600 * (alpha - peak) ** 2 - 18 * i * lam
                    if trace == "Importance sampling":
                        level -= 500 * lam * alpha
                    if better == "lower":
                        level = 0.6 - level / 4000
                    spread = 60 + 10 * e if better == "higher" else 0.03
                    for phase, first in (("tuning", 0), ("test", 10_000)):
                        if phase == "test" and abs(alpha - min(alphas, key=lambda a: abs(a - peak))) > 1e-9:
                            continue
                        unit = f"{phase}/{environment}/{trace}/{lam}/{alpha}"
                        key = (unit, phase, environment, trace, lam, "", alpha)
                        values = level + spread * rng.standard_normal(seeds)
                        rows += [(*key, first + j, float(v), 100 + j, *[None] * 5) for j, v in enumerate(values)]
                        if phase == "test":
                            rise = 1 - np.exp(-steps / (400 + 40 * i))
                            mean = level / 3000 * rise if better == "higher" else level + 0.5 * (1 - rise)
                            half = spread / 3000 if better == "higher" else 0.01
                            wave = half * np.sin(steps / 200 + i)
                            curves += [
                                (*key, int(s), float(m), float(m - half), float(m + half), seeds)
                                for s, m in zip(steps, mean + wave, strict=True)
                            ]
    what = ("control", "AUC of the return") if better == "higher" else ("evaluation", "RMS error")
    return _rows(rows), _curves(curves), facts(*what, better, len(rows))


def with_failures(rows: pl.DataFrame) -> pl.DataFrame:
    """The same rows, but every large step of importance sampling failed."""
    failed = (pl.col("trace") == "Importance sampling") & (pl.col("lam") >= 0.8)
    return rows.with_columns(value=pl.when(failed).then(float("nan")).otherwise("value"))


def map_records(*, seeds: int = 12, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """An operator map over two sizes of Garnet MDPs."""
    rng = np.random.default_rng(seed)
    rows = []
    for e, environment in enumerate(("Garnet 10", "Garnet 50")):
        for i, trace in enumerate((*TRACES, "One-step")):
            for lam in (None,) if trace == "One-step" else LAMBDAS:
                x = lam or 0.0
                for j in range(seeds):
                    modulus = 0.9 * (1 - x * (0.85 - 0.08 * i)) + 0.02 * rng.standard_normal()
                    variance = np.exp(3 * x * (1.1 - 0.1 * i) + e + 0.3 * rng.standard_normal())
                    bias = 0.1 * x if trace == "Q(λ)" else 0.0
                    unit = f"map/{environment}/{trace}/{lam}"
                    key = (unit, "map", environment, trace, lam, "", None)
                    rows.append((*key, j, modulus, None, modulus - 1e-6, modulus + 1e-6, variance, bias, None))
    return _rows(rows), _curves([]), facts("map", "contraction", "lower", len(rows))


def replay_records(*, seeds: int = 20, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """Error against the age of the behaviour policy."""
    rng = np.random.default_rng(seed)
    rows = []
    for environment in ("Cliff", "Bifurcation 1"):
        for i, trace in enumerate(TRACES[:5]):
            for lam in (0.5, 0.9):
                for alpha in (0.1, 0.5):
                    for phase, first in (("tuning", 0), ("test", 10_000)):
                        for age in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0):
                            level = 0.1 + 0.02 * i + 0.015 * age * lam * (1 + i % 2) + 0.2 * (alpha - 0.3) ** 2
                            for j in range(seeds):
                                value = level * np.exp(0.2 * rng.standard_normal())
                                unit = f"{phase}/{environment}/{trace}/{lam}/{alpha}/{age}"
                                key = (unit, phase, environment, trace, lam, "", alpha)
                                rows.append((*key, first + j, value, None, None, None, None, None, age))
    return _rows(rows), _curves([]), facts("replay", "RMS error", "lower", len(rows))


GAMES = tuple(f"minatar/{game}" for game in ("asterix", "breakout", "freeway", "seaquest", "space-invaders"))


def deep_records(
    *,
    games: tuple[str, ...] = GAMES,
    traces: tuple[str, ...] = (*TRACES[:6], "n-step", "One-step"),
    lams: tuple[float, ...] = (0.9,),
    ages: tuple[float, ...] = (1e4, 1e5, 1e6),
    seeds: int = 3,
    seed: int = 0,
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """Deep agents: curves of every seed; RBIS gains and n-step loses with age, one run of Q(λ) has diverged."""
    rng = np.random.default_rng(seed)
    rows, curves = [], []
    steps = np.arange(20_000, 1_000_001, 20_000)
    for e, game in enumerate(games):
        for i, trace in enumerate(traces):
            for lam in (None,) if trace in ("n-step", "One-step") else lams:
                for a, age in enumerate(ages):
                    level = (
                        10.0 * (e + 1) * (1 - 0.03 * i + 0.15 * a * (trace == "RBIS") - 0.2 * a * (trace == "n-step"))
                    )
                    parameters = '{"n": 3}' if trace == "n-step" else ""
                    key = (f"{game}/{trace}/{lam}/{age}", "test", game, trace, lam, parameters, None)
                    for j in range(seeds):
                        value = level * np.exp(0.1 * rng.standard_normal())
                        bad = (trace, e, a, j) == ("Q(λ)", 0, 0, 0)
                        rows.append((*key, j, float("nan") if bad else value, 500, *[None] * 4, age, bad))
                        rise = value * (1 - np.exp(-steps / 3e5)) * (1 + 0.03 * rng.standard_normal(len(steps)))
                        for s, y in zip(steps.tolist(), rise.tolist(), strict=True):
                            mean = float("nan") if bad and s > 500_000 else y
                            curves.append((*key, s, mean, None, None, 1, age, j))
    further = {"diverged": pl.Boolean}, {"age": pl.Float64, "seed": pl.Int64}
    about = facts("deep", "return", "higher", len(rows)) | {"step": "frame", "frames per update": 64}
    return _rows(rows, further[0]), _curves(curves, further[1]), about


def facts(task: str, metric: str, better: str, rows: int) -> dict[str, Any]:
    questions = {
        "control": "Which traces learn fastest on the Bifurcation gridworlds, and how much does the choice of λ matter?",
        "evaluation": "How do λ and α shape the error of off-policy evaluation on a random walk?",
        "map": "How much variance does each trace pay for its contraction?",
        "replay": "How old may data be before each trace stops profiting from it?",
        "deep": "With deep networks and replay, does remembering past decisions pay?",
    }
    names = {"control": "bifurcation", "evaluation": "random-walk", "map": "contraction-map", "deep": "minatar"}
    return {
        "name": names.get(task, task),
        "question": questions[task],
        "task": task,
        "metric": metric,
        "better": better,
        "versions": {"offtrace": "0.2.0", "python": "3.11.7", "numpy": "2.4.6", "numba": "0.68.1", "polars": "2.1.0"},
        "seconds": 73.4,
        "machine": "2 cores, Linux",
        "counts": {"rows": rows, "units": rows // 30, "tuning seeds": 30, "test seeds": 30},
        "declaration": 'question = "…"\ntask = "control"\n\n[traces]\nretrace = { lam = [0.0, 0.5, 0.8, 0.9, 1.0] }\n',
    }


def _rows(rows: list[tuple[Any, ...]], further: dict[str, Any] | None = None) -> pl.DataFrame:
    text, number = pl.String, pl.Float64
    schema = dict.fromkeys(KEYS, text) | {"lam": number, "alpha": number, "seed": pl.Int64, "value": number}
    schema |= {"episodes": pl.Int64} | dict.fromkeys(NONE, number) | (further or {})
    return pl.DataFrame(rows, schema=schema, orient="row")


def _curves(rows: list[tuple[Any, ...]], further: dict[str, Any] | None = None) -> pl.DataFrame:
    text, number = pl.String, pl.Float64
    schema = dict.fromkeys(KEYS, text) | {"lam": number, "alpha": number, "step": pl.Int64}
    schema |= dict.fromkeys(("mean", "low", "high"), number) | {"n": pl.Int64} | (further or {})
    return pl.DataFrame(rows, schema=schema, orient="row")
