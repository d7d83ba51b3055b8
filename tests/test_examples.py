"""The two DQN examples: what they store and draw, what they learn from, and that they run as a user runs them.

That they solve CartPole takes minutes and is measured by hand (docs/tutorials/index.md), not here.
"""

import importlib.util
import re
import runpy
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import offtrace as ot
from offtrace.returns import by_definition

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FRAMEWORKS = ["torch", "jax"]
SCALARS = {
    "return/evaluation",
    "return/training",
    "learning/loss",
    "learning/trace_length",
    "learning/steps_per_second",
}
WIDTHS = (4, 16, 8, 2)
SETTINGS = {"gamma": 0.97, "target_epsilon": 0.1}
SEQUENCES = 32
"""As many as by default. With the same shapes and numbers everywhere, JAX compiles each trace once."""


def path_of(framework: str) -> Path:
    return EXAMPLES / f"dqn_{framework}.py"


@cache
def load(framework: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"dqn_{framework}", path_of(framework))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """The example asks PyTorch for one thread; the tests that follow shall have theirs again."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=FRAMEWORKS)
def example(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_is_a_single_short_file(framework: str) -> None:
    assert len(path_of(framework).read_text().splitlines()) < 250


@pytest.mark.parametrize(("framework", "trace"), [("torch", "non-markov-retrace"), ("jax", "rbis")])
def test_it_runs_as_a_program(
    framework: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where torch and JAX are imported already; a warning is an error."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    options = {"trace": trace, "lam": 0.8, "steps": 600, "warmup": 200, "report-every": 300, "evaluation": 3}
    options |= {name.replace("_", "-"): value for name, value in SETTINGS.items()}
    command = [str(path_of(framework)), "--log-dir", str(tmp_path), "--hidden", *map(str, WIDTHS[1:-1])]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", command)
    with warnings.catch_warnings(action="error"):
        runpy.run_path(command[0], run_name="__main__")
    said = capsys.readouterr().out
    assert repr(ot.trace(trace, lam=0.8)) in said
    assert re.search(r"^not solved: .* after 600 steps", said, re.MULTILINE)

    (file,) = tmp_path.glob("*/events.*")
    seen = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            seen[value.tag, event.step] = float(make_ndarray(value.tensor))
    assert set(seen) == {
        (tag, step) for tag in SCALARS for step in (304, 600)
    }  # of 8 environments: 304 is the first beyond 300
    assert np.isfinite(list(seen.values())).all()
    assert all(1 <= seen["learning/trace_length", step] <= 16 for step in (304, 600))


def test_wrong_choices_are_named_before_anything_is_made(example: Any, tmp_path: Path) -> None:
    where = tmp_path / "log"
    for wrong, message in (
        ({"trace": "retrase"}, "there is no trace named 'retrase'; did you mean 'Retrace'"),
        ({"lam": 1.5}, r"lam must lie in \[0, 1\], got 1.5"),
        ({"env": "Pendulum-v1"}, "Pendulum-v1 has the actions Box.*discrete"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            example.main(example.Args(log_dir=str(where), **wrong))
    assert not where.exists()


# -- the ring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [4, 9, 10, 11, 19, 25, 30])
def test_no_sequence_runs_across_the_write_position(example: Any, written: int) -> None:
    """Every step carries its time and its environment, so that a drawn sequence tells where it is from."""
    capacity, envs, length = 10, 3, 4
    ring = example.Ring(capacity, envs, (2,))
    for time in range(written):
        now = np.stack([np.full(envs, time), np.arange(envs)], axis=-1)
        action, log_mu, reward = np.full((3, envs), [[time], [-time], [2 * time]])
        ring.add(now, action, log_mu, reward, now + 1, np.full(envs, time % 2), np.full(envs, time % 3 == 0))
    drawn = ring.draw(np.random.default_rng(0), 2_000, length)

    time, env = drawn["observation"][..., 0], drawn["observation"][..., 1]
    assert (np.diff(time) == 1).all()
    assert (np.diff(env) == 0).all()
    oldest = max(0, written - capacity)
    assert set(time[:, 0]) == set(range(oldest, written - length + 1))  # each possible start, and no other
    assert set(env[:, 0]) == set(range(envs))
    assert (drawn["action"] == time).all()
    assert (drawn["log_mu"] == -time).all()
    assert (drawn["reward"] == 2 * time).all()
    assert (drawn["next_observation"] == drawn["observation"] + 1).all()
    assert (drawn["terminated"] == time % 2).all()
    assert (drawn["truncated"] == (time % 3 == 0)).all()


def test_a_sequence_longer_than_what_is_stored_is_refused(example: Any) -> None:
    ring = example.Ring(10, 1, ())
    ring.add(*[np.zeros(1)] * 7)
    with pytest.raises(ValueError, match="sequences of 2 steps asked for, 1 are stored"):
        ring.draw(np.random.default_rng(0), 1, 2)


# -- what is stored, and what is learned from it ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def cut_short() -> Iterator[str]:
    """CartPole with a limit of 12 steps: episodes terminate and are truncated, often."""
    name = "CartPoleCutShort-v0"
    gym.register(name, entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=12)
    yield name
    del gym.registry[name]


Weights = list[tuple[np.ndarray, np.ndarray]]


def random_weights(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(a, b)), rng.normal(size=b)) for a, b in pairwise(WIDTHS)]


def forward(weights: Weights, x: np.ndarray) -> np.ndarray:
    """Q(s, ·) in NumPy and float64."""
    for kernel, bias in weights[:-1]:
        x = np.maximum(x @ kernel + bias, 0)
    return x @ weights[-1][0] + weights[-1][1]


class InTorch:
    """The example's own functions, on given weights, with NumPy arrays in and out."""

    def __init__(self, weights: Weights, slow: Weights, args: dict[str, Any]) -> None:
        self.example = load("torch")
        self.args = self.example.Args(**args)
        self.networks = [self.example.make_network(WIDTHS) for _ in range(2)]
        for network, given in zip(self.networks, (weights, slow), strict=True):
            for layer, (kernel, bias) in zip(network[::2], given, strict=True):
                layer.load_state_dict({"weight": torch.tensor(kernel.T), "bias": torch.tensor(bias)})
        self.optimizer = torch.optim.Adam(self.networks[0].parameters(), self.args.learning_rate)

    def learn(self, trace: ot.Rule, drawn: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
        loss, given = self.example.learn(*self.networks, self.optimizer, trace, drawn, self.args)
        return loss, {name: x.numpy() for name, x in given.items()}

    def weights(self) -> list[Weights]:
        both = ([(layer.weight.T, layer.bias) for layer in network[::2]] for network in self.networks)
        return [[(kernel.detach().numpy(), bias.detach().numpy()) for kernel, bias in layers] for layers in both]


class InJax:
    """The same for the other one."""

    def __init__(self, weights: Weights, slow: Weights, args: dict[str, Any]) -> None:
        import jax.numpy as jnp
        import optax
        from flax import nnx

        self.example, self.merge = load("jax"), nnx.merge
        self.args = self.example.Args(**args)
        self.states = []
        for given in (weights, slow):
            network = self.example.make_network(WIDTHS, seed=0)
            for layer, (kernel, bias) in zip(network.layers[::2], given, strict=True):
                layer.kernel, layer.bias = nnx.Param(jnp.asarray(kernel)), nnx.Param(jnp.asarray(bias))
            self.graph, state = nnx.split(network)
            self.states.append(state)
        self.moments = optax.adam(self.args.learning_rate).init(self.states[0])

    def learn(self, trace: ot.Rule, drawn: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
        *self.states, self.moments, loss, given = self.example.learn(
            self.graph, *self.states, self.moments, trace, drawn, self.args
        )
        return float(loss), {name: np.asarray(x) for name, x in given.items()}

    def weights(self) -> list[Weights]:
        networks = (self.merge(self.graph, state) for state in self.states)
        return [[(np.asarray(x.kernel[...]), np.asarray(x.bias[...])) for x in n.layers[::2]] for n in networks]


LEARNERS = {"torch": InTorch, "jax": InJax}


def remembered(example: Any, log_dir: Path, **args: Any) -> Any:
    """The ring of a run that only acts, with the network as it was made."""
    made = []

    class Kept(example.Ring):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "Ring", Kept)
        example.main(example.Args(warmup=args["steps"], log_dir=str(log_dir), **args))
    return made[0]


def values_at_first(example: Any, seed: int, observation: np.ndarray) -> np.ndarray:
    """Q(s, ·) by the network as a run with this seed makes it."""
    if example.__name__ == "dqn_jax":
        from flax import nnx

        return np.asarray(example.action_values(*nnx.split(example.make_network(WIDTHS, seed)), observation))
    torch.manual_seed(seed)
    return example.action_values(example.make_network(WIDTHS), observation)


def test_what_is_stored_is_what_happened(example: Any, cut_short: str, tmp_path: Path) -> None:
    """Each stored step is taken again by CartPole itself: the next observation is the true one, at the ends too."""
    envs, rounds, capacity = 4, 100, 60
    sizes = {"envs": envs, "steps": envs * rounds, "memory": envs * capacity, "hidden": WIDTHS[1:-1]}
    ring = remembered(example, tmp_path, env=cut_short, seed=3, epsilon_steps=300, **sizes)
    order = (ring.at + np.arange(capacity)) % capacity
    x = {name: column[order] for name, column in ring.columns.items()}

    world: Any = gym.make("CartPole-v1").unwrapped
    world.reset(seed=0)
    for at in np.ndindex(capacity, envs):
        world.state, world.steps_beyond_terminated = x["observation"][at].astype(float), None
        after, _, fell, _, _ = world.step(x["action"][at])
        np.testing.assert_allclose(x["next_observation"][at], after, atol=1e-5)
        assert fell == x["terminated"][at]
    ended = x["terminated"] | x["truncated"]
    follows = (x["next_observation"][:-1] == x["observation"][1:]).all(axis=-1)
    assert (follows == ~ended[:-1]).all()
    for e in range(envs):
        ends = np.flatnonzero(ended[:, e])
        assert (np.diff(ends)[x["truncated"][ends[1:], e]] == 12).all()
        assert (np.diff(ends)[~x["truncated"][ends[1:], e]] <= 12).all()
    assert x["terminated"].any()
    assert x["truncated"].any()
    assert (x["reward"] == 1).all()

    step = envs * (1 + np.arange(rounds - capacity, rounds))[:, None]
    epsilon = np.interp(step, (0, 300), (1.0, 0.05))
    greedy = values_at_first(example, 3, x["observation"]).argmax(-1) == x["action"]
    np.testing.assert_allclose(x["log_mu"], np.log(epsilon / 2 + (1 - epsilon) * greedy), rtol=1e-5)
    assert greedy.any()
    assert not greedy.all()


@pytest.fixture(scope="module")
def drawn(cut_short: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Sequences from a ring that has wrapped around, with ends of both kinds inside."""
    args = {"env": cut_short, "steps": 400, "envs": 4, "memory": 240, "epsilon_steps": 300}
    drawn = remembered(load("torch"), tmp_path_factory.mktemp("log"), **args).draw(
        np.random.default_rng(0), SEQUENCES, 16
    )
    assert drawn["terminated"][:, :-1].any()
    assert drawn["truncated"][:, :-1].any()
    return drawn


@pytest.mark.parametrize(
    ("framework", "trace"),
    [
        *(("torch", trace) for trace in (ot.Retrace(0.9), ot.NonMarkovRetrace(0.9), ot.RBIS(0.9))),
        ("jax", ot.RBIS(0.9)),  # which compiles a program for each trace; that of this one, other tests need too
    ],
    ids=str,
)
def test_it_learns_the_targets_of_the_definition(framework: str, trace: Any, drawn: dict[str, np.ndarray]) -> None:
    """The loss is the Huber loss to q + Δ, where Δ is that of by_definition, and q, v, π are worked out step by step."""
    gamma, epsilon, weights, slow = *SETTINGS.values(), random_weights(0), random_weights(1)
    loss, given = LEARNERS[framework](weights, slow, SETTINGS).learn(trace, drawn)

    def pi(observation: np.ndarray) -> np.ndarray:
        return np.where(np.arange(2) == forward(weights, observation).argmax(), 1 - epsilon + epsilon / 2, epsilon / 2)

    losses = []
    for b in range(SEQUENCES):
        row = {name: x[b] for name, x in drawn.items()}
        now = [forward(weights, s)[a] for s, a in zip(row["observation"], row["action"], strict=True)]
        made = {
            "q": [forward(slow, s)[a] for s, a in zip(row["observation"], row["action"], strict=True)],
            "next_value": [pi(s) @ forward(slow, s) for s in row["next_observation"]],
            "log_pi": [np.log(pi(s)[a]) for s, a in zip(row["observation"], row["action"], strict=True)],
        } | {name: row[name] for name in ("log_mu", "reward", "terminated", "truncated")}
        for name, value in made.items():
            np.testing.assert_allclose(given[name][b], value, rtol=1e-4, atol=1e-4, err_msg=name)
        made = {name: x[b] for name, x in given.items()}  # from here on, to the last digits
        Δ, scale = by_definition.corrections(trace, **made, gamma=gamma)
        target = ot.targets(trace, **made, gamma=gamma)
        assert (np.abs(target - (made["q"] + Δ)) <= 2e-6 * scale + 1e-6 * np.abs(made["q"])).all()
        error = np.abs(now - (made["q"] + Δ))
        losses.extend(np.where(error < 1, error**2 / 2, error - 0.5))
    assert loss == pytest.approx(np.mean(losses), rel=1e-4)


def test_both_examples_are_the_same_algorithm(drawn: dict[str, np.ndarray]) -> None:
    """From the same weights and sequences, three updates leave the same losses, weights and slow copies."""
    weights, slow, trace = random_weights(0), random_weights(1), ot.RBIS(0.9)
    one, other = (LEARNERS[framework](weights, slow, SETTINGS) for framework in FRAMEWORKS)
    for _ in range(3):
        assert one.learn(trace, drawn)[0] == pytest.approx(other.learn(trace, drawn)[0], rel=1e-4)
    for mine, theirs, start in zip(one.weights(), other.weights(), (weights, slow), strict=True):
        for a, b, before in zip(sum(mine, ()), sum(theirs, ()), sum(start, ()), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
            assert np.abs(a - before).max() > 1e-4  # it did move


def test_a_policy_learns_from_stale_rollouts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole program, with few updates, and one line that learns."""
    spec = importlib.util.spec_from_file_location("stale_policy_gradient", EXAMPLES / "stale_policy_gradient.py")
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name, number in {"UPDATES": 2, "REFRESH": 2, "SEEDS": 1}.items():
        monkeypatch.setattr(example, name, number)
    example.main()
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(example.WEIGHTS)
    monkeypatch.setattr(example, "UPDATES", 40)
    right, size = example.learn(ot.TruncatedIS(bound=2.0), {"level": "token"}, 0)
    assert right > 0.8
    assert 0 < size <= 1


def test_the_actor_critic_with_a_lagged_actor(capsys: pytest.CaptureFixture[str]) -> None:
    """Each correction trains; on fresh data V-trace and none have the same loss; with a lag they differ."""
    example: Any = runpy.run_path(str(EXAMPLES / "actor_critic_torch.py"))
    args = example["Args"](steps=2_048, lag=4)
    found = example["main"](args)
    assert list(found) == ["vtrace", "non-markov-retrace", "none"]
    assert all(10 < mean < 200 for mean in found.values())
    assert len(capsys.readouterr().out.splitlines()) >= 3 * 5
    learner, older = (example["ActorCritic"](4, 2) for _ in range(2))
    actors, generator = example["Actors"](args), torch.Generator().manual_seed(0)

    def losses(mu: Any) -> list[float]:
        data = actors.batch(mu, 16, generator)
        kinds = ("vtrace", "none")
        return [example["loss_of"](example["Args"](correction=kind), learner, data).item() for kind in kinds]

    assert np.ptp(losses(learner)) < 1e-5
    assert np.ptp(losses(older)) > 1e-3


@pytest.mark.whole
def test_fast_td3_runs_with_each_rule(capsys: pytest.CaptureFixture[str]) -> None:
    example: Any = runpy.run_path(str(EXAMPLES / "fast_td3_torch.py"))
    args = example["Args"](steps=480, envs=2, warm_up=100, batch=8, length=4, hidden=16, atoms=11)
    found = example["main"](args)
    assert list(found) == ["n-step", "retrace", "rbis"]
    assert all(-2_000 < mean < 0 for mean in found.values())
    assert len(capsys.readouterr().out.splitlines()) == 3 * 5


@pytest.mark.parametrize("trace", ["rbis", "peng-q"])
def test_the_file_in_the_manner_of_cleanrl_runs(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    example: Any = runpy.run_path(str(EXAMPLES / "pqn_cleanrl.py"))
    mean = example["main"](example["Args"](trace=trace, total_timesteps=1024))
    assert 5 < mean < 100
    assert "step    1,024" in capsys.readouterr().out
