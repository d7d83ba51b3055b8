"""DQN with sequence replay and any off-policy trace, in JAX: `python examples/dqn_jax.py --trace rbis --lam 0.9`.

μ, the policy that acts, is ε-greedy and its ε falls; π, the policy that is learned about, is ε-greedy with a constant ε. A step
is stored with log μ of its action as it was when acting, with the true next observation (the final one where an episode
ends), and with terminated and truncated apart. The network moves towards M Q⁻, the targets of whole sequences: values from
its slow copy Q⁻, π from the network (double estimation), β from the trace. Not Rainbow: uniform replay, a plain network.
"""

import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from jax import Array
from tensorboard.summary import Writer

import offtrace as ot

REPORTED = "return/evaluation", "return/training", "learning/loss", "learning/trace_length", "learning/steps_per_second"


@dataclass(frozen=True)
class Args:
    """What the command line offers."""

    trace: str = "retrace"  # the rule for β by name: retrace, non-markov-retrace, rbis, tree-backup, one-step, …
    lam: float = 0.9  # λ of the rule, where it has one
    env: str = "CartPole-v1"  # a Gymnasium environment with discrete actions
    seed: int = 0  # of the network, the environments, exploration and replay
    steps: int = 150_000  # environment steps at most, all environments together
    solved: float = 475.0  # stop where the mean return of an evaluation reaches this
    evaluation: int = 100  # greedy episodes in an evaluation
    report_every: int = 5_000  # steps between reports: an evaluation, a line on the terminal, a point in TensorBoard
    log_dir: str = "out/dqn_jax"  # where TensorBoard's files go, in a folder for each run
    envs: int = 8  # environments side by side
    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers
    learning_rate: float = 1e-3  # of Adam
    gamma: float = 0.99  # the discount
    epsilon: tuple[float, float] = (1.0, 0.05)  # ε of μ, at first and at last
    epsilon_steps: int = 10_000  # steps over which it falls, linearly
    target_epsilon: float = 0.05  # ε of π
    memory: int = 100_000  # steps that are remembered, all environments together
    warmup: int = 1_000  # steps before the first update
    update_every: int = 8  # steps per update
    sequences: int = 32  # sequences per update
    length: int = 16  # steps per sequence
    slow_rate: float = 0.05  # how far the slow copy moves towards the network at each update


class Ring:
    """The last `capacity` steps of each environment, in arrays [capacity, envs, …]; slot `at` is written next."""

    def __init__(self, capacity: int, envs: int, observation: tuple[int, ...]) -> None:
        self.capacity, self.envs, self.at, self.size = capacity, envs, 0, 0
        self.columns = {
            "observation": np.zeros((capacity, envs, *observation), np.float32),
            "action": np.zeros((capacity, envs), np.int64),
            "log_mu": np.zeros((capacity, envs), np.float32),
            "reward": np.zeros((capacity, envs), np.float32),
            "next_observation": np.zeros((capacity, envs, *observation), np.float32),
            "terminated": np.zeros((capacity, envs), bool),
            "truncated": np.zeros((capacity, envs), bool),
        }

    def add(self, *step: np.ndarray) -> None:
        """Write one step of every environment over the oldest: an array [envs, …] for each column, in their order."""
        for column, new in zip(self.columns.values(), step, strict=True):
            column[self.at] = new
        self.at = (self.at + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def draw(self, rng: np.random.Generator, sequences: int, length: int) -> dict[str, np.ndarray]:
        """Sequences [B, T] of consecutive steps, uniformly. None runs across slot `at`, where the newest meets the oldest."""
        if length > self.size:
            raise ValueError(f"sequences of {length} steps asked for, {self.size} are stored: raise warmup or memory")
        age = rng.integers(length, self.size + 1, (sequences, 1))  # of the first step; the newest step has age 1
        slot = (self.at - age + np.arange(length)) % self.capacity
        env = rng.integers(self.envs, size=(sequences, 1))
        return {name: column[slot, env] for name, column in self.columns.items()}


def make_envs(name: str, number: int) -> gym.vector.SyncVectorEnv:
    """Environments that start anew in the very step that ends an episode, whose last observation is info["final_obs"]."""

    def make() -> gym.Env:
        return gym.wrappers.FlattenObservation(gym.make(name))

    return gym.vector.SyncVectorEnv([make] * number, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def make_network(widths: tuple[int, ...], seed: int) -> nnx.Sequential:
    """s → Q(s, ·): linear layers, ReLU between them; all weights start uniform in ±1/√inputs, biases too, as in PyTorch."""
    rngs = nnx.Rngs(seed)

    def linear(inputs: int, outputs: int) -> nnx.Linear:
        bound = inputs**-0.5
        start = partial(jax.random.uniform, minval=-bound, maxval=bound)
        return nnx.Linear(inputs, outputs, kernel_init=start, bias_init=start, rngs=rngs)

    layers = [layer for a, b in pairwise(widths) for layer in (linear(a, b), nnx.relu)]
    return nnx.Sequential(*layers[:-1])


def probability(action: Any, q: Any, epsilon: float) -> Any:
    """Of an action under the ε-greedy policy: ε/A + (1−ε)·1{a = argmax Q}."""
    return epsilon / q.shape[-1] + (1 - epsilon) * (action == q.argmax(-1))


def taken(q: Array, action: Array) -> Array:
    """Q(s, a) out of Q(s, ·)."""
    return jnp.take_along_axis(q, action[..., None], -1)[..., 0]


@partial(jax.jit, static_argnames="graph")
def action_values(graph: nnx.GraphDef, params: nnx.State, observation: np.ndarray) -> Array:
    """Q(s, ·) of one observation per environment. A network is a graph, which is static, and its parameters."""
    return nnx.merge(graph, params)(jnp.asarray(observation, jnp.float32))


def trajectory(steps: dict[str, Array], q: Array, network: nnx.Module, slow: nnx.Module, epsilon: float) -> dict:
    """What `ot.targets` takes: q and next_value of the slow copy, π ε-greedy in the network's q, log μ as stored."""
    next_q, next_best = slow(steps["next_observation"]), network(steps["next_observation"]).argmax(-1)
    return {
        "q": taken(slow(steps["observation"]), steps["action"]),
        "next_value": epsilon * next_q.mean(-1) + (1 - epsilon) * taken(next_q, next_best),
        "log_pi": jnp.log(probability(steps["action"], q, epsilon)),
        **{name: steps[name] for name in ("log_mu", "reward", "terminated", "truncated")},
    }


@partial(jax.jit, static_argnames=("graph", "args"))
def learn(
    graph: nnx.GraphDef, params: nnx.State, slow: nnx.State, moments: Any, trace: Any, steps: dict, args: Args
) -> tuple:
    """One update towards the targets of the sequences drawn: what it changed, the loss, what the targets were made of."""

    def loss_of(params: nnx.State) -> tuple[Array, dict[str, Array]]:
        network = nnx.merge(graph, params)
        q = network(steps["observation"])
        given = jax.lax.stop_gradient(trajectory(steps, q, network, nnx.merge(graph, slow), args.target_epsilon))
        target = ot.targets(trace, **given, gamma=args.gamma, time_major=False)
        return optax.huber_loss(taken(q, steps["action"]), target).mean(), given

    (loss, given), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
    change, moments = optax.adam(args.learning_rate).update(gradient, moments)
    params = cast(nnx.State, optax.apply_updates(params, change))
    return params, optax.incremental_update(params, slow, args.slow_rate), moments, loss, given


@jax.jit
def trace_length(trace: ot.Rule, given: dict[str, Array], gamma: float) -> Array:
    """The mean over all starts of Σ_t γ^t β_t: that is what a target is where every δ is 1."""
    one, zero = jnp.ones_like(given["q"]), jnp.zeros_like(given["q"])
    ones = given | {"reward": one, "q": zero, "next_value": zero}
    return ot.targets(trace, **ones, gamma=gamma, time_major=False).mean()


def evaluate(graph: nnx.GraphDef, params: nnx.State, args: Args) -> float:
    """The mean return of greedy episodes, side by side, each with a start of its own."""
    envs = make_envs(args.env, args.evaluation)
    observation, _ = envs.reset(seed=args.seed + 1_000_000)
    total, running = np.zeros(args.evaluation), np.ones(args.evaluation, bool)
    while running.any():
        action = np.asarray(action_values(graph, params, observation)).argmax(-1)
        observation, reward, terminated, truncated, _ = envs.step(action)
        total += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(total.mean())


def main(args: Args) -> None:
    """Act, remember, learn, report."""
    trace = ot.trace(args.trace)
    if hasattr(trace, "lam"):
        trace = replace(trace, lam=args.lam)
    rng = np.random.default_rng(args.seed)
    envs = make_envs(args.env, args.envs)
    inputs, actions = envs.single_observation_space.shape, envs.single_action_space
    if inputs is None or not isinstance(actions, gym.spaces.Discrete):
        raise TypeError(f"{args.env} has the actions {actions}: choose an environment with discrete ones")
    graph, params = nnx.split(make_network((*inputs, *args.hidden, int(actions.n)), args.seed))
    slow, moments = params, optax.adam(args.learning_rate).init(params)
    ring = Ring(args.memory // args.envs, args.envs, inputs)
    writer = Writer(f"{args.log_dir}/{args.env}-{args.trace}-{args.seed}-{time.time_ns()}")
    print(f"{trace} on {args.env}, seed {args.seed}; to watch: tensorboard --logdir {args.log_dir}")
    print("     step  evaluation  training    loss  trace length  steps/s", flush=True)

    observation, _ = envs.reset(seed=args.seed)
    total, recent, losses, given = np.zeros(args.envs), deque(maxlen=100), [], {}
    step, updates, mean, training, clock = 0, 0, np.nan, 0.0, time.perf_counter()
    for step in range(args.envs, args.steps + 1, args.envs):
        # Act by μ; remember log μ and the true next observation.
        epsilon = float(np.interp(step, (0, args.epsilon_steps), args.epsilon))
        q = np.asarray(action_values(graph, params, observation))
        explores, anything = rng.random(args.envs) < epsilon, rng.integers(actions.n, size=args.envs)
        action = np.where(explores, anything, q.argmax(-1))
        after, reward, terminated, truncated, info = envs.step(action)
        ended, true_next = terminated | truncated, after.copy()
        for i in np.flatnonzero(ended):
            true_next[i] = info["final_obs"][i]
        log_mu = np.log(probability(action, q, epsilon))
        ring.add(observation, action, log_mu, reward, true_next, terminated, truncated)
        observation, total = after, total + reward
        recent.extend(total[ended])
        total[ended] = 0

        # Learn from sequences.
        while updates * args.update_every < step - args.warmup:
            steps = ring.draw(rng, args.sequences, args.length)
            params, slow, moments, loss, given = learn(graph, params, slow, moments, trace, steps, args)
            losses.append(loss)
            updates += 1

        # Report. The clock counts training alone.
        if losses and (step % args.report_every < args.envs or step + args.envs > args.steps):
            training += time.perf_counter() - clock
            mean = evaluate(graph, params, args)
            length, speed = float(trace_length(trace, given, args.gamma)), step / training
            values = mean, np.mean(recent or np.nan), np.mean(losses), length, speed
            print("{:9,}{:12.1f}{:10.1f}{:8.4f}{:14.2f}{:9,.0f}".format(step, *values), flush=True)
            for name, value in zip(REPORTED, values, strict=True):
                writer.add_scalar(name, value, step)
            if mean >= args.solved:
                break
            losses.clear()
            clock = time.perf_counter()

    envs.close()
    writer.close()
    verdict = "solved" if mean >= args.solved else "not solved"
    print(f"{verdict}: {trace.title}, seed {args.seed}: {mean:.1f} over {args.evaluation} greedy episodes ", end="")
    print(f"after {step:,} steps, {training:.1f} s of training")


if __name__ == "__main__":
    main(tyro.cli(Args))
