"""State values in `evaluate`: the same as `follow` over the same steps; on MDPs and Gymnasium; tables, features, tiles."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offtrace as ot
from learners import by_definition
from learners.settings import policies, world
from offtrace.learners import (
    EpsilonGreedy,
    Harmonic,
    TileCoding,
    collision_error,
    control,
    evaluate,
    follow,
    method,
)

X = np.random.default_rng(3).normal(size=(5, 3))
METHODS: list[Any] = [
    method("td", lam=0.9),
    method("gtd2", lam=0.5),
    method("htd", trace=ot.RBIS(0.9), eta=0.5),
    method("etdlb", lam=0.5),
    method("ptd", lam=0.8),
    method("truncated is", lam=0.9),
]


def lived(mdp: Any, pi: Any, mu: Any, steps: int, limit: int, seed: int) -> dict[str, Any]:
    """What a learner with this seed lives through."""
    run = by_definition.learn(ot.OneStep(), mdp, target=pi, behavior=mu, alpha=0.1, steps=steps, limit=limit, seed=seed)
    names = {"state": "s", "action": "a", "reward": "reward", "next_state": "after"}
    found = {name: np.array([getattr(v, of) for v in run.visits]) for name, of in names.items()}
    return found | {name: np.array([getattr(v, name) for v in run.visits]) for name in ("terminated", "truncated")}


@pytest.mark.parametrize("learner", METHODS, ids=lambda m: m.title)
def test_evaluate_is_follow(learner: Any) -> None:
    mdp = world()
    pi, mu = policies(mdp)
    steps = lived(mdp, pi, mu, 200, 30, 5)
    for x in (None, X):
        run: dict[str, Any] = {"target": pi, "behavior": mu, "features": x, "alpha": 0.05}
        found = evaluate(learner, mdp, steps=200, limit=30, seed=5, **run)
        wanted = follow(learner, gamma=mdp.gamma, **run, **steps)[-1]
        np.testing.assert_allclose(found.weights, wanted, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.V, wanted if x is None else X @ wanted)
        assert found.v(2) == pytest.approx(found.V[2])


def test_finds_the_values() -> None:
    """With a table. V-trace with a ρ̄ that acts finds those of another policy, against which its error is taken."""
    mdp, α = world(), Harmonic(0.1, half=5000, by="step")
    pi, mu = policies(mdp)
    learners: list[Any] = [method("td", lam=0.5), ot.AlphaRetrace(0.5, 0.9), method("v-trace", lam=0.9, rho_bar=1.0)]
    for learner in learners:
        found = evaluate(
            learner, mdp, target=pi, behavior=mu, alpha=α, steps=200_000, values="state", seeds=2, threads=1
        )
        assert found.V.shape == (2, 5)
        assert found.curve.error[:, -1].max() < 0.25
        far = np.abs(found.V[0] - (pi * mdp.q(pi)).sum(axis=1)).max()
        assert (far > 1.0) == (learner is learners[2])


class Line(gymnasium.Env[Any, Any]):
    """A walk on 0 … 5, seen as a number in [0, 1] or as an integer; it ends at 5."""

    def __init__(self, box: bool) -> None:
        self.box, self.at = box, 0
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,)) if box else gymnasium.spaces.Discrete(6)
        self.action_space = gymnasium.spaces.Discrete(2)

    def _seen(self) -> Any:
        return np.array([(self.at + 0.5) / 6], np.float32) if self.box else self.at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 2
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = max(0, self.at - 1) if action == 0 else self.at + 1
        return self._seen(), float(self.at), self.at == 5, False, {}


@pytest.mark.parametrize("learner", [METHODS[0], METHODS[3]], ids=lambda m: m.title)
def test_gymnasium_with_tables_and_with_tiles(learner: Any) -> None:
    """Policies are tables, or functions of the observation; with one tile for each place both are the same learner."""
    pi, mu = np.tile([0.3, 0.7], (6, 1)), np.tile([0.5, 0.5], (6, 1))
    pi[1] = [1.0, 0.0]
    run: dict[str, Any] = {"gamma": 0.9, "alpha": 0.05, "steps": 300, "seed": 1}
    table = evaluate(learner, lambda: Line(False), target=pi, behavior=mu, **run)
    tiles = evaluate(
        learner, lambda: Line(True), target=lambda o: pi[int(o[0] * 6)], behavior=[0.5, 0.5],
        features=TileCoding(tilings=1, bins=6), **run,
    )  # fmt: skip
    np.testing.assert_allclose([float(tiles.v([(i + 0.5) / 6])) for i in range(6)], table.V, rtol=1e-12)
    with pytest.raises(ValueError, match="behavior must give 2 probabilities that sum to 1"):
        evaluate(
            learner,
            lambda: Line(True),
            target=[0.5, 0.5],
            behavior=lambda o: [0.5, 0.6],
            features=TileCoding(1, 6),
            **run,
        )


def test_what_is_refused() -> None:
    mdp = world()
    pi, mu = policies(mdp)
    run: dict[str, Any] = {"target": pi, "behavior": mu, "steps": 10}
    with pytest.raises(ValueError, match="learns state values, which say nothing of actions"):
        control("gtd", mdp, behavior=EpsilonGreedy(0.1), steps=10)
    with pytest.raises(TypeError, match="there is no Q for a policy to look at: target must be"):
        evaluate("gtd", mdp, target=EpsilonGreedy(0.1), behavior=mu, steps=10)
    with pytest.raises(ValueError, match="learns about the policy that acts"):
        evaluate("true online td", mdp, **run)
    with pytest.raises(TypeError, match="target is missing"):
        evaluate("td", mdp, behavior=mu, steps=10)
    with pytest.raises(ValueError, match=r"GTD\(1\) learns state values, got values='action'"):
        evaluate("gtd", mdp, values="action", **run)
    with pytest.raises(ValueError, match=r"alpha is 0.1 here, and 0.2 in"):
        evaluate(method("td", alpha=0.2), mdp, alpha=0.1, **run)
    with pytest.raises(ValueError, match=r"truth must be an array \[S\] = \(5,\)"):
        evaluate("td", mdp, truth=np.zeros((5, 3)), **run)
    with pytest.raises(ValueError, match="needs a target that is greedy"):
        evaluate(ot.WatkinsQ(0.9), mdp, values="state", **run)
    found = evaluate("td", mdp, **run)
    with pytest.raises(TypeError, match=r"has learned state values: use result\.V"):
        _ = found.Q
    with pytest.raises(TypeError, match=r"has learned action values: use result\.Q"):
        _ = evaluate(ot.Retrace(), mdp, **run).V


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"marks": [2, 1]}, ValueError, "marks must be in increasing order"),
        ({"marks": [1, 3]}, ValueError, "number of steps, 2"),
        ({"marks": [0.5]}, TypeError, "marks must be integers"),
        ({"features": np.ones((3, 2))}, ValueError, "features must be a finite array .* S = 2"),
        (
            {"behavior": [[0.0, 1.0], [0.5, 0.5]]},
            ValueError,
            "never takes action 0 in state 0, but it was taken at step 0",
        ),
        ({"state": [0, 0]}, ValueError, "next_state at step 0 is 1, but state at step 1 is 0"),
        ({"state": [0.0, 1.0]}, TypeError, "state must be integers, got float64"),
        ({"action": [0, 2]}, ValueError, r"action must lie in \[0, 2\).* got 2 at step 1"),
        ({"reward": [0.0, np.nan]}, ValueError, "reward must be finite, got nan at step 1"),
        ({"terminated": [0.0, 1.0]}, TypeError, "terminated must be booleans"),
        ({"next_state": [1]}, ValueError, r"next_state must have the shape of reward, \(2,\), got \(1,\)"),
        ({"gamma": 1.5}, ValueError, "gamma must lie"),
        ({"target": [[0.5, 0.6], [0.5, 0.5]]}, ValueError, "target"),
        ({"alpha": None}, TypeError, "alpha is missing"),
        ({"first": [1.0, 2.0, 3.0]}, ValueError, r"first must be finite weights of shape \(2,\)"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_follow_refuses(change: dict[str, Any], error: type[Exception], message: str) -> None:
    steps: dict[str, Any] = {
        "state": [0, 1], "action": [0, 1], "reward": [0.0, 1.0], "next_state": [1, 0], "terminated": [False, True],
        "target": [[1.0, 0.0], [0.5, 0.5]], "behavior": np.full((2, 2), 0.5), "gamma": 0.5, "alpha": 0.1,
    }  # fmt: skip
    assert follow("td", **steps).shape == (1, 2)
    with pytest.raises(error, match=message):
        follow("td", **steps | change)


def test_collision() -> None:
    """tests/reference/collision_auc.csv has means over 50 runs of 20,000 steps, with other features; here are five runs."""
    names = {"TB": "tree backup"}
    with (Path(__file__).parent.parent / "reference" / "collision_auc.csv").open() as file:
        entries = [row for row in csv.DictReader(file) if row["algorithm"] in ("GTD", "ETD", "TB")][:3]
    for row in entries:
        learner = method(
            names.get(row["algorithm"], row["algorithm"]), alpha=float(row["alpha"]), lam=float(row["lam"])
        )
        error = collision_error(learner, runs=5)
        of_five = float(row["stderr"]) * np.sqrt(10)
        assert abs(error.mean() - float(row["mean_rmsve"])) < 4 * np.hypot(of_five, float(row["stderr"]))
