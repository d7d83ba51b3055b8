"""The program: rollouts of the current policy wait for K updates before they are learned from, so that data are K updates old.

At update n = 0, 1, … U − 1 a batch n is drawn from the policy θ_n, and the policy learns from batch n − K: what θ_{n-K} has
drawn, or θ_0 where n < K. A batch has groups of answers to one prompt. With the rewards R of a group, A = (R − mean) / standard
deviation, or 0 where all are equal, the gradient is that of

    Σ w_t A log π(a_t) / number of decisions that are kept

where w and what is kept come from the weighting. It is clipped by its norm and goes to Adam. Nothing else holds π to μ.
Runs are mapped side by side: each has a seed, a step size, an age and one of the weightings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from offtrace.returns.weights.decisions import estimate
from stale import transformer
from stale.token_tasks import TokenTask
from stale.transformer import Shape, Weights
from stale.weighting import OPTIONS, Weighting

jax.tree_util.register_dataclass(Weighting, ["trace"], list(OPTIONS))


class Setting(NamedTuple):
    """What all runs of a program have in common."""

    task: TokenTask
    shape: Shape
    updates: int
    prompts: int
    """The number of prompts in a batch."""
    answers: int
    """The number of answers to each prompt, which make a group."""
    oldest: int
    """The largest age that a run may have."""
    precision: str = "float32"
    """In which the sampler computes: "float32" or "bfloat16"."""
    top_p: float = 1.0
    clip: float = 1.0


Column = Any
"""NumPy's or JAX's array [runs], a number of one run, or an axis for vmap."""


class Runs(NamedTuple):
    """One number for each run."""

    seed: Column
    alpha: Column
    age: Column
    which: Column
    """The place of its weighting among those that are given."""


class Batch(NamedTuple):
    """Answers, and what is known of them when they were drawn."""

    prompts: Array
    answers: Array
    log_mu: Array
    reward: Array


class Measured(NamedTuple):
    """What is measured at each update: [updates] of one run, [runs, updates] of several."""

    reward: Array | np.ndarray
    """The mean reward of batch n."""
    success: Array | np.ndarray
    """The share of its answers that are right."""
    entropy: Array | np.ndarray
    """The mean of −log μ of its tokens: the entropy of the policy as it is sampled, for a token, in nats."""
    ess: Array | np.ndarray
    """The effective sample size (Σw)² / (n Σw²) of the n decisions that are learned from; what is rejected has the weight 0."""
    kl: Array | np.ndarray
    """The mean of k3 = ρ − 1 − log ρ of the tokens that are learned from: KL(μ, π), for a token."""
    finite: Array | np.ndarray
    """1 if the gradient is finite."""


def train(setting: Setting, weightings: list[Weighting], runs: Runs) -> Measured:
    """Train the runs side by side. The same run alone gives the same, to rounding."""
    if (runs.age > setting.oldest).any() or (runs.age < 0).any():
        raise ValueError(f"ages are between 0 and oldest = {setting.oldest}, got {runs.age.tolist()}")
    if len(np.unique(runs.which)) == 1:
        runs = runs._replace(which=runs.which[0])  # one for all: the others are not computed
    columns = Runs(*(jnp.asarray(a) for a in runs))
    return Measured(*(np.asarray(a) for a in program(setting)(weightings, columns)))


@lru_cache(maxsize=16)
def program(setting: Setting) -> Callable[[list[Weighting], Runs], Measured]:
    """The compiled program: (weightings, runs) → what is measured, [runs, updates]."""

    def of_all(weightings: list[Weighting], runs: Runs) -> Measured:
        axes = Runs(*(0 if jnp.ndim(a) else None for a in runs))
        return jax.vmap(lambda run: _run(setting, weightings, run), in_axes=(axes,))(runs)

    return jax.jit(of_all)


class State(NamedTuple):
    """What changes: the policy, its optimiser, and the batches that wait."""

    weights: Weights
    adam: optax.OptState
    waiting: Batch


def _run(setting: Setting, weightings: list[Weighting], run: Runs) -> Measured:
    key = jax.random.PRNGKey(run.seed)
    weights = transformer.first(jax.random.fold_in(key, 0), setting.task, setting.shape)
    optimizer = optax.chain(optax.clip_by_global_norm(setting.clip), optax.scale_by_adam())
    room = setting.oldest + 1
    empty = jax.eval_shape(partial(rollouts, setting), weights, key)
    waiting = jax.tree.map(lambda a: jnp.zeros((room, *a.shape), a.dtype), empty)

    def iteration(state: State, n: Array) -> tuple[State, Measured]:
        drawn = rollouts(setting, state.weights, jax.random.fold_in(key, n + room))
        waiting = jax.tree.map(lambda all_, new: all_.at[n % room].set(new), state.waiting, drawn)
        state = state._replace(waiting=waiting)
        old: Batch = jax.tree.map(lambda all_: all_[(n - run.age) % room], waiting)

        def learn(state: State) -> tuple[State, tuple[Array, ...]]:
            gradient, told = jax.grad(partial(_loss, setting, weightings, run.which), has_aux=True)(state.weights, old)
            finite = jnp.stack([jnp.isfinite(part).all() for part in gradient.values()]).all()
            step, adam = optimizer.update(gradient, state.adam)
            changed = jax.tree.map(lambda w, s: w - run.alpha * s, state.weights, step)
            return State(changed, adam, state.waiting), (*told, finite.astype(jnp.float32))

        def wait(state: State) -> tuple[State, tuple[Array, ...]]:
            return state, (jnp.zeros(()),) * 3

        state, told = lax.cond(n >= 0, learn, wait, state)
        right = (drawn.reward >= 1.0).mean()
        return state, Measured(drawn.reward.mean(), right, -drawn.log_mu.mean(), *told)

    # Batches −oldest … −1 are drawn from θ_0 and only wait.
    state = State(weights, optimizer.init(weights), waiting)
    _, measured = lax.scan(iteration, state, jnp.arange(-setting.oldest, setting.updates))
    return jax.tree.map(lambda a: a[setting.oldest :], measured)


def rollouts(setting: Setting, weights: Weights, key: Array) -> Batch:
    """A batch of the policy: prompts × answers rows, those of a group one after another."""
    of_prompts, of_answers = jax.random.split(key)
    prompts = setting.task.draw(of_prompts, setting.prompts).repeat(setting.answers, axis=0)
    dtype = jnp.dtype(setting.precision)
    lowered = jax.tree.map(lambda w: w.astype(dtype), weights)
    answers, log_mu = transformer.sample(lowered, setting.task, setting.shape, prompts, of_answers, setting.top_p)
    return Batch(prompts, answers, log_mu, setting.task.reward(prompts, answers))


def advantages(reward: Array, answers: int) -> Array:
    """(R − mean) / standard deviation in each group of `answers` rows; 0 where all rewards of a group are equal."""
    groups = reward.reshape(-1, answers)
    away, spread = groups - groups.mean(axis=1, keepdims=True), groups.std(axis=1, keepdims=True)
    return jnp.where(spread > 1e-6, away / jnp.where(spread > 1e-6, spread, 1.0), 0.0).reshape(-1)


def log_probabilities(setting: Setting, weights: Weights, batch: Batch) -> Array:
    """log π of the answers' tokens [B, answer]."""
    logs = jax.nn.log_softmax(transformer.logits(weights, setting.task, setting.shape, batch.prompts, batch.answers))
    return jnp.take_along_axis(logs, batch.answers[..., None], 2)[..., 0]


def _loss(
    setting: Setting, weightings: list[Weighting], which: Array | int, weights: Weights, batch: Batch
) -> tuple[Array, tuple[Array, Array]]:
    log_pi = log_probabilities(setting, weights, batch)
    seen = lax.stop_gradient(log_pi)

    def weighed(one: Weighting) -> tuple[Array, Array]:
        found, kept = one(seen, batch.log_mu, jnp.arange(len(seen)) // setting.answers)
        return found, jnp.ones(seen.shape, bool) if kept is None else kept

    w, keep = lax.switch(which, [partial(weighed, one) for one in weightings])
    w = jnp.where(keep, w, 0.0)
    total = (w * advantages(batch.reward, setting.answers)[:, None] * log_pi).sum()
    ess = w.sum() ** 2 / (w.size * jnp.maximum((w**2).sum(), 1e-30))
    kl = estimate(jnp, "k3", seen - batch.log_mu, batch.log_mu).mean()
    return -total / jnp.maximum(keep.sum(), 1), (ess, kl)
