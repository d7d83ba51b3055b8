"""Linear learners: features of an MDP against gradients fed to a Stream, and tile coding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from learners.by_definition import SplitMix, _next, inverse
from learners.settings import LEARNERS, policies, world
from offtrace.learners import EpsilonGreedy, Evaluation, Replay, TileCoding, control, evaluate

UPDATES = ["online", "offline", Replay(capacity=40, every=3, length=8)]
LINEAR = [t for t in LEARNERS if not any(np.ndim(p) for p in getattr(t, "parameters", ()))]


def by_stream(mdp, trace, x, pi, mu, alpha, steps, seed, limit):
    """Algorithm 1 with θ [d, A]; a Stream keeps z, dense. The random numbers are those of the loop."""
    draws, A, d = SplitMix(seed), mdp.A, x.shape[1]
    θ, stream, s, age = np.zeros(d * A), ot.Stream(trace, d * A), None, 0
    mix = getattr(trace, "mix", 1.0)
    mixture = mix * pi + (1 - mix) * mu

    def φ(s: int, a: int) -> np.ndarray:
        g = np.zeros((d, A))
        g[:, a] = x[s]
        return g.ravel()

    for _ in range(steps):
        if s is None:
            s, age = draws.pick(mdp.start), 0
        a = inverse(draws.uniform(), mu[s])
        after, reward = _next(mdp, s, a, draws)
        age += 1
        ends = bool(mdp.terminal[after])
        with np.errstate(divide="ignore"):
            update = stream.step(
                φ(s, a),
                reward=reward,
                q=θ @ φ(s, a),
                next_value=sum(mixture[after, b] * (θ @ φ(after, b)) for b in range(A)),
                terminated=ends,
                truncated=age == limit and not ends,
                gamma=mdp.gamma,
                log_pi=np.log(pi[s, a]),
                log_mu=np.log(mu[s, a]),
                pair=s * A + a,
                greedy=bool(θ @ φ(s, a) >= max(θ @ φ(s, b) for b in range(A))),
            )
        θ = θ + alpha * update
        s = None if ends or age == limit else after
    return θ.reshape(d, A)


@pytest.mark.parametrize("trace", LINEAR, ids=lambda t: f"{t.title} {t.horizon}")
def test_online_equals_dense_gradients(trace):
    mdp = world()
    pi, mu = policies(mdp)
    rng = np.random.default_rng(4)
    x = rng.normal(size=(mdp.S, 4)) * (rng.random((mdp.S, 4)) < 0.7) / 4
    learned = evaluate(
        trace,
        mdp,
        target=pi,
        behavior=mu,
        features=x,
        alpha=0.05,
        steps=200,
        seed=3,
        limit=90,
        certify=False,
        threads=1,
    )
    expected = by_stream(mdp, trace, x, pi, mu, 0.05, 200, 3, 90)
    np.testing.assert_allclose(learned.weights, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(learned.Q, x @ learned.weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(learned.q(2), learned.Q[2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("trace", [ot.Retrace(lam=0.9), ot.RBIS(lam=0.9), ot.TruncatedIS(bound=2.0), ot.replacing(0.9)])
@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_one_hot_features_are_a_table(trace, update):
    mdp = world()
    same: dict[str, Any] = {"behavior": EpsilonGreedy(0.3), "alpha": 0.1, "steps": 2000, "update": update, "seeds": 2}
    table = control(trace, mdp, **same)
    for order in (np.eye(mdp.S), np.eye(mdp.S)[[3, 1, 4, 0, 2]]):
        np.testing.assert_array_equal(control(trace, mdp, features=order, **same).Q, table.Q)


def test_tiles():
    tiles = TileCoding(tilings=8, bins=(4, 10), low=(None, -2.0), high=(None, 2.0)).over([0.0, -np.inf], [1.0, np.inf])
    rng = np.random.default_rng(0)
    assert tiles.size == 8 * 5 * 11
    seen = set()
    for x in rng.uniform([-0.5, -3.0], [1.5, 3.0], (2000, 2)):
        rows = tiles.rows(x)
        assert (rows // 55 == np.arange(8)).all()  # one of each tiling
        np.testing.assert_array_equal(rows, tiles.rows(np.clip(x, [0, -2], [1, 2])))
        seen |= set(rows.tolist())
    assert len(seen) > 0.9 * tiles.size
    # A step of 1/8 of a tile's width changes one tiling of eight, in either dimension.
    for at in rng.uniform(0.1, 0.6, (50, 2)):
        for step in ([0.25 / 8, 0.0], [0.0, 0.4 / 8]):
            assert (tiles.rows(at) != tiles.rows(at + step)).sum() == 1
    hashed = TileCoding(size=100).over(np.zeros(12), np.ones(12))
    rows = np.array([hashed.rows(rng.random(12)) for _ in range(300)])
    assert rows.min() >= 0
    assert rows.max() < 100
    assert len(np.unique(rows)) == 100


def test_bad_tiles():
    for wrong in ({"tilings": 0}, {"bins": (3, 0)}, {"size": -1}, {"bins": 2.5}):
        with pytest.raises(ValueError, match="must be an integer of at least 1"):
            TileCoding(**wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="one entry for each of 2 dimensions"):
        TileCoding(low=(0.0,)).over([0, 0], [1, 1])
    with pytest.raises(ValueError, match="low must be below high"):
        TileCoding(low=(2.0, 0.0)).over([0, 0], [1, 1])
    with pytest.raises(ValueError, match="bins of TileCoding has 3 entries"):
        TileCoding(bins=(1, 2, 3)).over([0, 0], [1, 1])
    with pytest.raises(ValueError, match="hash them with"):
        TileCoding().over(np.zeros(12), np.ones(12))
    with pytest.raises(ValueError, match="an observation here is 2 numbers"):
        TileCoding().over([0, 0], [1, 1]).rows(np.zeros(3))


gymnasium = pytest.importorskip("gymnasium")
CARTPOLE = TileCoding(low=(None, -3, None, -3.5), high=(None, 3, None, 3.5))


class Corridor(gymnasium.Env):
    """Six places, seen by number or as a point on a line."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, line: bool) -> None:
        self.line = line
        self.observation_space = gymnasium.spaces.Box(-0.5, 5.5, (1,)) if line else gymnasium.spaces.Discrete(6)

    def see(self) -> Any:
        return np.array([self.at], dtype=np.float32) if self.line else self.at

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(5))
        return self.see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1 if action and self.np_random.random() < 0.8 else -1 if self.at else 0
        return self.see(), -1.0, self.at == 5, False, {}


@pytest.mark.parametrize("update", UPDATES, ids=str)
@pytest.mark.parametrize("n", [None, 3])
def test_one_tiling_over_places_is_a_table(update, n):
    """To the bit: also in replay, where the features of all remembered observations are kept."""
    same: dict[str, Any] = {
        "behavior": EpsilonGreedy(0.3),
        "gamma": 0.9,
        "alpha": 0.2,
        "q0": -3.0,
        "steps": 1200,
        "update": update,
        "limit": 25 if n is None else None,
    }
    made = [
        (lambda line=line: Corridor(line))
        if n is None
        else (lambda line=line: gymnasium.vector.SyncVectorEnv([lambda: Corridor(line)] * n))
        for line in (False, True)
    ]
    table = control(ot.RBIS(lam=0.9), made[0], **same)
    tiled = control(ot.RBIS(lam=0.9), made[1], features=TileCoding(tilings=1, bins=6), **same)
    np.testing.assert_array_equal(tiled.weights[:6], table.Q)
    np.testing.assert_array_equal(tiled.q([3.2]), table.Q[3])


def test_step_sizes_mean_what_they_mean_in_a_table():
    """Normalised features with α learn as features of 1 with α / tilings."""
    same: dict[str, Any] = {"behavior": EpsilonGreedy(0.3), "gamma": 0.9, "steps": 400, "q0": 2.0}
    one, other = (
        control(ot.Retrace(lam=0.9), lambda: Corridor(True), features=coding, alpha=alpha, **same)
        for coding, alpha in ((TileCoding(4, 3), 0.2), (TileCoding(4, 3, normalized=False), 0.05))
    )
    for at in range(6):
        np.testing.assert_allclose(one.q([at]), other.q([at]), rtol=0, atol=1e-9)
    fresh = control("retrace", lambda: Corridor(True), features=TileCoding(4, 3), alpha=1e-12, **same)
    np.testing.assert_allclose(fresh.q([2.5]), 2.0, atol=1e-9)


@pytest.mark.whole
@pytest.mark.parametrize("update", ["online", Replay(every=4)], ids=str)
def test_cartpole_learns(update):
    learned = control(
        ot.Retrace(lam=0.9),
        "CartPole-v1",
        behavior=EpsilonGreedy(0.05),
        gamma=0.99,
        alpha=0.3 if update == "online" else 0.2,  # at 0.3, what is replayed blows up to |Q| = 1e17
        features=CARTPOLE,
        steps=25_000,
        update=update,
        points=5,
    )
    assert not learned.diverged
    first, last = learned.curve.returns[[0, -1]]
    assert last > 75  # 99.3 is the most within 500 steps
    assert last > first
    values = learned.q(np.zeros(4, dtype=np.float32))
    assert values.shape == (2,)
    assert np.isfinite(values).all()
    with pytest.raises(TypeError, match=r"use result\.q"):
        _ = learned.Q


@pytest.mark.whole
def test_cartpole_with_a_vector_environment():
    learned = control(
        ot.RBIS(lam=0.9),
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=8, vectorization_mode="vector_entry_point"),
        behavior=EpsilonGreedy(0.05),
        gamma=0.99,
        alpha=0.3,
        features=CARTPOLE,
        steps=40_000,
        points=5,
        evaluation=Evaluation(every=100, limit=500),
    )
    assert learned.evaluations[0][1][-1] > 75
    assert learned.curve.returns[-1] > 75
