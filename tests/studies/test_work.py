"""A unit gives what calling the learners and the operator gives, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

import offtrace as ot
from offtrace import mdps
from offtrace.learners import Replay, evaluate
from offtrace.learners.published import STEPS, area, bifurcation_auc
from offtrace.operators import Operator, uncorrected
from offtrace.studies import Study, environments, policies, tasks
from offtrace.studies.plan import Job, Plan
from offtrace.studies.tasks.tabular import moving_mean
from studies.small import declared


def job(study: Study, **wanted: Any) -> Job:
    plan = Plan(study)
    tests = [plan.unit(plan.last_phase, unit.group, unit.alpha) for unit in plan.units.values()]
    for unit in (*plan.units.values(), *tests):
        if all(getattr(unit, k) == v for k, v in wanted.items()):
            return plan.job(unit)
    raise LookupError(wanted)


@pytest.mark.parametrize("gridworld", [1, 2, 3, 4])
def test_bifurcation_is_the_published_protocol(gridworld: int) -> None:
    study = Study.load("bifurcation")
    wanted = job(study, phase="test", environment=f"bifurcation-{gridworld}", trace="RBIS", lam=0.9, alpha=0.7)
    found = tasks.run(replace(wanted, count=12))
    direct = bifurcation_auc(gridworld, ot.RBIS(lam=0.9), alpha=0.7, seeds=12, seed=1000, threads=1)
    assert np.array_equal(found.rows["value"], direct)
    assert found.rows["seed"].tolist() == list(range(1000, 1012))
    assert found.score == direct.mean()
    assert found.curve["step"][[0, -1]].tolist() == [0, STEPS[gridworld]]
    assert found.curve["n"].tolist() == [12] * 101
    assert (found.curve["low"] <= found.curve["mean"]).all()


@pytest.mark.parametrize("episodes", [0, 1, 30])
def test_the_curve_is_the_one_whose_area_is_taken(episodes: int) -> None:
    rng = np.random.default_rng(episodes)
    at, returns = np.sort(rng.choice(np.arange(1, 60), size=episodes, replace=False)), rng.random(episodes)
    out = np.empty(61)
    moving_mean(at, returns, 7, np.arange(61), out)
    assert out.sum() == pytest.approx(area(at, returns, 60, window=7), abs=1e-12)


def test_return_and_error_in_control() -> None:
    study = Study.declared(
        declared(task="control", metric="return", environments=["bifurcation-1"], protocol={"steps": 500, "window": 5})
    )
    by_return = tasks.run(job(study))
    assert by_return.score == pytest.approx(by_return.curve["mean"][-1], rel=1e-14)
    by_error = tasks.run(job(Study.declared({**study.given, "metric": "rms error"})))
    assert by_error.curve["mean"][-1] == pytest.approx(by_error.score, rel=1e-14)


def test_evaluation() -> None:
    wanted = job(
        Study.declared(declared()), trace="Truncated IS", parameters='{"bound": 2.0}', alpha=0.3, phase="tuning"
    )
    mdp = mdps.random_walk(5)
    arguments: Any = {
        "target": np.tile([0.3, 0.7], (mdp.S, 1)),
        "behavior": mdps.uniform(mdp),
        "alpha": 0.3,
        "steps": 200,
    }
    direct = evaluate(ot.TruncatedIS(bound=2.0, lam=0.5), mdp, **arguments, seeds=3, certify=False)
    found = tasks.run(wanted)
    assert np.array_equal(found.rows["value"], direct.curve.error[:, -1])
    assert np.array_equal(found.curve["mean"], direct.curve.error.mean(axis=0))
    averaged = tasks.run(replace(wanted, metric="mean rms error"))
    assert np.array_equal(averaged.rows["value"], direct.curve.error.mean(axis=1))
    assert not found.rows["diverged"].any()


def test_replay() -> None:
    study = Study.declared({**Study.load("replay").given, "metric": "rms error"}, "ci")
    found = tasks.run(job(study, age=50, trace="RBIS", phase="tuning", alpha=0.1))
    label = study.environments[0].name
    mdp, now = environments.mdp(label), policies.ageing(label, 50, 0.1, 0.1, 0)
    memory = Replay(capacity=4000, every=4, batch=1, length=16)
    direct = evaluate(
        ot.RBIS(lam=0.9),
        mdp,
        target=now,
        behavior=mdps.uniform(mdp),
        alpha=0.1,
        steps=500,
        seeds=10,
        update=memory,
        limit=200,
    )
    assert np.array_equal(found.rows["value"], direct.curve.error[:, -1])


def test_an_error_weighted_by_visits() -> None:
    study = Study.declared(declared(metric="weighted rms error", environments=["random-walk:states=5"]))
    found = tasks.run(job(study, trace="Retrace", alpha=0.3, phase="tuning"))
    mdp = mdps.random_walk(5)
    pi = np.tile([0.3, 0.7], (mdp.S, 1))
    often, at = np.zeros((mdp.S, mdp.A)), mdp.start.copy()
    for _ in range(2000):  # until nobody walks any more
        often += at[:, None] * pi * ~mdp.terminal[:, None]
        at = np.einsum("s,sa,sat->t", at, pi, mdp.dense_P)
    for i, steps in enumerate([25, 50, 100, 200]):
        Q = evaluate(ot.Retrace(lam=0.5), mdp, target=pi, behavior=mdps.uniform(mdp), alpha=0.3, steps=steps, seeds=3).Q
        error = np.sqrt((often * (Q - mdp.q(pi)) ** 2).sum(axis=(1, 2)) / often.sum())
        assert found.curve["mean"][i] == pytest.approx(error.mean(), rel=1e-9)
    assert found.curve["step"].tolist() == [25, 50, 100, 200]
    assert found.score == pytest.approx(found.curve["mean"][-1], rel=1e-12)


def test_a_learner_that_diverges_is_a_row() -> None:
    given = declared(
        environments=["garnet:states=5,actions=2,branching=2,seed=0"], traces=["Q(λ)"], lams=[1.0], alphas=[1.0, 0.5]
    ) | {"protocol": {"steps": 20_000, "behavior": [0.99, 0.01], "target": [0.01, 0.99]}}
    found = tasks.run(job(Study.declared(given), alpha=1.0))
    assert found.rows["diverged"].all()
    assert found.score == np.inf


def test_map() -> None:
    study = Study.load("contraction-map", "ci")
    found = tasks.run(job(study, trace="Retrace", lam=0.5))
    rng = np.random.default_rng(1)
    mdp = mdps.garnet(5, 2, 2, seed=1, gamma=0.9)
    pi, mu, Q = mdps.random_policy(mdp, rng), mdps.random_policy(mdp, rng), rng.standard_normal((5, 2))
    op = Operator(ot.Retrace(lam=0.5), mdp, target=pi, behavior=mu, tolerance=1e-3)
    assert (found.rows["contraction_lower"][1], found.rows["contraction_upper"][1]) == (
        op.contraction.lower,
        op.contraction.upper,
    )
    assert found.rows["variance"][1] == pytest.approx(op.variance(Q).mean(), rel=1e-12)
    assert found.rows["bias"][1] == 0.0
    biased = tasks.run(job(study, trace="Peng's Q(λ)", lam=0.5))
    away = np.abs(uncorrected(ot.PengQ(0.5), mdp, pi, mu).fixed_point - mdp.q(pi)).max()
    assert biased.rows["bias"][1] == pytest.approx(away, rel=1e-12)
    mixed = tasks.run(job(study, trace="α-Retrace", parameters='{"mix": 0.5}', lam=1.0))
    assert mixed.rows["bias"][1] == pytest.approx(np.abs(mdp.q(0.5 * pi + 0.5 * mu) - mdp.q(pi)).max(), rel=1e-9)


@pytest.mark.parametrize("name", ["contraction-map", "random-walk", "replay"])
def test_shipped_studies_run(name: str, tmp_path: Any) -> None:
    study = Study.load(name, "ci").run(workers=0, out=tmp_path, progress=False)
    assert study.status().finished
    rows, last = study.records(), list(study.seeds)[-1]
    assert rows.filter(phase=last).group_by("environment", "trace", "lam", "parameters", "age").len().height == len(
        Plan(study).groups
    )
    assert rows["value"].is_not_nan().all()
    if study.task != "map":
        assert study.curves().group_by("unit").len()["len"].unique().to_list() == [4 if name == "replay" else 100]
    if name == "replay":
        mean = rows.filter(trace="Retrace", phase="test").group_by("age").agg(pl.mean("value")).sort("age")
        assert mean["age"].to_list() == [0.0, 10.0, 50.0]


def test_learning_methods_stand_among_the_traces() -> None:
    """State values in evaluation, and in control what has a name of its own; a unit is what calling the learners gives."""
    methods = ["td", {"name": "tdrc", "eta": 0.5}, "Retrace"]
    for metric in ("rms error", "weighted rms error"):
        found = tasks.run(job(Study.declared(declared(traces=methods, metric=metric)), trace="TDRC(λ)"))
        assert np.isfinite(found.rows["value"]).all()
    place = {"task": "control", "environments": ["bifurcation-1"], "protocol": {"steps": 200}}
    for trace, title in (("peng", "Peng's Q(λ)"), ("sarsa", "Sarsa(λ)"), ("pq", "PQ(λ)")):
        found = tasks.run(job(Study.declared(declared(traces=[trace], **place)), trace=title))
        assert len(found.rows["value"]) > 0
