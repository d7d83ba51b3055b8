"""The program: a trained policy goes on learning from rollouts that wait, so that data are old.

In iteration n = 0, 1, … a batch is drawn from the policy θ_n: groups of answers to one prompt. Then the batch that was drawn
`age` updates earlier is learned from, in MINIBATCHES updates. So data are age … age + MINIBATCHES − 1 updates old; those of the
first iterations come from θ_0. A = (R − mean of the group) / its standard deviation, and 0 where all of a group are equal. Each
update is Adam's, of the gradient of one of `LOSSES`, clipped by its norm. Nothing else ties π to μ.

Runs are mapped side by side: a run has a task, an age, a loss, a step size and a seed, all of them data of one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

import offtrace as ot
from offtrace.policy import PolicyLoss, group_advantages, loss, losses
from offtrace.policy.shapes import ClippedWeight, Importance
from stale import transformer
from stale.tasks import SYMBOLS, solution
from stale.transformer import Shape, Weights

MINIBATCHES = 4
"""How many updates learn from a batch."""


@dataclass(frozen=True)
class Candidate:
    """A loss, and which policy it takes for π_prox."""

    parts: PolicyLoss
    prox: str
    """ "μ", the policy that drew; "start", that at the start of the iteration; "π", the policy itself, so that r = 1."""
    kind: str
    """What it does about old data: see `KINDS`."""


KINDS = {
    "none": "no correction",
    "token": "token ratio",
    "sign": "token ratio, with a clip or mask by the sign of A",
    "row": "ratio of the row, or its mean",
    "prefix": "prefix with a cap",
    "both": "prefix, with a clip by the sign of A",
}
"""What a loss does about old data."""


def _prefix(name: str, trace: ot.Trace) -> PolicyLoss:
    return PolicyLoss(name, Importance(), weight=trace, weight_options={"level": "prefix"})


def _named(name: str, prox: str, kind: str) -> Candidate:
    return Candidate(losses()[name], prox, kind)


LOSSES = {
    "no correction": Candidate(PolicyLoss("no correction", ClippedWeight(0.0, 0.0)), "μ", "none"),
    "cispo": _named("cispo", "μ", "token"),
    "sapo": _named("sapo", "μ", "token"),
    "ppo": _named("ppo", "μ", "sign"),
    "dppo_tv": _named("dppo_tv", "μ", "sign"),
    "opsm": _named("opsm", "μ", "sign"),
    "decoupled_ppo": _named("decoupled_ppo", "start", "sign"),
    "tis": _named("tis", "start", "sign"),
    "icepop": _named("icepop", "start", "sign"),
    "gspo": _named("gspo", "μ", "row"),
    "vespo": _named("vespo", "μ", "row"),
    "ctpo": _named("ctpo", "μ", "both"),
    "prefix, Non-Markov Retrace": Candidate(_prefix("Non-Markov Retrace", ot.NonMarkovRetrace()), "π", "prefix"),
    "prefix, cap 2": Candidate(_prefix("prefix, cap 2", ot.HistoryBounded(bound=2.0)), "π", "prefix"),
}
"""Rows are of equal length, so that `grpo` and `dr_grpo` have the gradients of `ppo`, but for a factor."""


class Setting(NamedTuple):
    """What all runs of a program have in common."""

    tokens: int = 512
    """The length of a row."""
    iterations: int = 100
    prompts: int = 8
    """The number of prompts in a batch."""
    answers: int = 8
    """The number of answers to each prompt, which make a group."""
    oldest: int = 64
    """The largest age that a run may have, in updates."""
    start: float = 0.2
    """The success at which pretraining ends."""
    losses: tuple[str, ...] = tuple(LOSSES)
    shape: Shape = Shape()
    clip: float = 1.0


class Runs(NamedTuple):
    """One number for each run. Tasks and losses are places in TASKS and in the setting, a seed is a place among the starts."""

    task: Any
    age: Any
    loss: Any
    alpha: Any
    seed: Any


class Batch(NamedTuple):
    """Answers, and what is known of them when they were drawn."""

    x: Array
    answers: Array
    log_mu: Array
    reward: Array


class Measured(NamedTuple):
    """What is measured in each iteration: [iterations] of one run, [runs, iterations] of several."""

    success: Any
    """The share of the answers of batch n that are right."""
    entropy: Any
    """The mean of −log μ of its tokens: the entropy of the policy, for a token, in nats."""
    kl: Any
    """The mean of ρ − 1 − log ρ of the tokens that are learned from: KL(μ, π), for a token."""
    drift: Any
    """The standard deviation of log ∏ρ over the rows that are learned from."""
    kept: Any
    """The share of decisions with A ≠ 0 whose log π has a gradient."""
    finite: Any
    """1 if all gradients were finite."""


def pretrain(
    setting: Setting, task: Array | int, seed: Array | int, most: int = 3000, rows: int = 32
) -> tuple[Weights, Array]:
    """Weights that answer a share `start` of prompts, trained on right answers, and that share.

    The chance of a right answer to a prompt is the product of the probabilities of its tokens: nothing is drawn.
    """
    key = jax.random.fold_in(jax.random.PRNGKey(seed), task)
    optimizer = optax.adam(1e-3)

    def surprise(weights: Weights, x: Array) -> tuple[Array, Array]:
        logs = transformer.log_probabilities(weights, setting.shape, x, solution(task, x))
        return -logs.mean(), jnp.exp(logs.sum(axis=1)).mean()

    def update(state: tuple[Weights, Any, Array, Array]) -> tuple[Weights, Any, Array, Array]:
        weights, adam, n, _ = state
        x = jax.random.randint(jax.random.fold_in(key, n), (rows, setting.tokens), 0, SYMBOLS)
        (_, right), gradient = jax.value_and_grad(surprise, has_aux=True)(weights, x)
        step, later = optimizer.update(gradient, adam)
        ended = right >= setting.start
        changed = jax.tree.map(lambda old, new: jnp.where(ended, old, old + new), weights, step)
        return changed, later, n + 1, right

    weights = transformer.first(jax.random.fold_in(key, 0), setting.shape)
    state = (weights, optimizer.init(weights), jnp.ones((), int), jnp.zeros(()))
    weights, _, _, right = lax.while_loop(lambda s: (s[3] < setting.start) & (s[2] < most), update, state)
    return weights, right


@partial(jax.jit, static_argnums=0)
def train(setting: Setting, starts: Weights, runs: Runs) -> Measured:
    """Train the runs side by side, each from the start of its task and seed. `starts` are [tasks, seeds, …]."""
    return jax.vmap(lambda run: _run(setting, jax.tree.map(lambda a: a[run.task, run.seed], starts), run))(runs)


class State(NamedTuple):
    """What changes: the policy, its optimiser, and the batches that wait."""

    weights: Weights
    adam: Any
    waiting: Batch


def _run(setting: Setting, start: Weights, run: Runs) -> Measured:
    key = jax.random.fold_in(jax.random.PRNGKey(10_000 + run.seed), run.task)
    optimizer = optax.chain(optax.clip_by_global_norm(setting.clip), optax.scale_by_adam())
    room = setting.oldest // MINIBATCHES + 1
    draw = partial(rollouts, setting, run.task)
    empty = jax.eval_shape(draw, start, key)
    waiting = jax.tree.map(lambda a: jnp.zeros((room, *a.shape), a.dtype), empty)

    def iteration(state: State, n: Array) -> tuple[State, Measured]:
        drawn = draw(state.weights, jax.random.fold_in(key, n + room))
        waiting = jax.tree.map(lambda all_, new: all_.at[n % room].set(new), state.waiting, drawn)
        old: Batch = jax.tree.map(lambda all_: all_[(n - run.age // MINIBATCHES) % room], waiting)
        weights, adam, told = lax.cond(n >= 0, learn, wait, state.weights, state.adam, old)
        measured = Measured(drawn.reward.mean(), -drawn.log_mu.mean(), *told)
        return State(weights, adam, waiting), measured

    def learn(weights: Weights, adam: Any, old: Batch) -> tuple[Weights, Any, tuple[Array, ...]]:
        parts = jax.tree.map(lambda a: a.reshape(MINIBATCHES, -1, *a.shape[1:]), (old, advantages(setting, old.reward)))
        log_prox = lax.map(lambda part: _log_pi(setting, weights, part[0]), parts)

        def update(state: tuple[Weights, Any], given: tuple[Batch, Array, Array]):
            weights, adam = state
            part, advantage, prox = given
            log_pi, pull = jax.vjp(lambda w: _log_pi(setting, w, part), weights)
            slope = slopes(setting.losses, run.loss, log_pi, prox, part.log_mu, advantage)
            (gradient,) = pull(slope)
            step, adam = optimizer.update(gradient, adam)
            weights = jax.tree.map(lambda w, s: w - run.alpha * s, weights, step)
            finite = jnp.stack([jnp.isfinite(a).all() for a in gradient.values()]).all()
            return (weights, adam), (*_distances(log_pi, part.log_mu, slope, advantage), finite.astype(jnp.float32))

        (weights, adam), told = lax.scan(update, (weights, adam), (*parts, log_prox))
        *means, finite = told
        return weights, adam, (*(a.mean() for a in means), finite.min())

    def wait(weights: Weights, adam: Any, old: Batch) -> tuple[Weights, Any, tuple[Array, ...]]:
        return weights, adam, (jnp.zeros(()),) * 4

    # The batches of iterations −room + 1 … −1 are drawn from θ_0 and only wait.
    state = State(start, optimizer.init(start), waiting)
    _, measured = lax.scan(iteration, state, jnp.arange(1 - room, setting.iterations))
    return jax.tree.map(lambda a: a[room - 1 :], measured)


def rollouts(setting: Setting, task: Array | int, weights: Weights, key: Array) -> Batch:
    """A batch of the policy: prompts × answers rows, those of a group one after another."""
    of_prompts, of_answers = jax.random.split(key)
    x = jax.random.randint(of_prompts, (setting.prompts, setting.tokens), 0, SYMBOLS)
    x = x.repeat(setting.answers, axis=0)
    answers, log_mu = transformer.sample(weights, setting.shape, x, of_answers)
    reward = (answers == solution(task, x)).all(axis=1).astype(jnp.float32)
    return Batch(x.astype(jnp.int8), answers.astype(jnp.int8), log_mu, reward)


def advantages(setting: Setting, reward: Array) -> Array:
    """(R − mean) / standard deviation in each group, and 0 where all rewards of a group are equal."""
    return group_advantages(reward, jnp.arange(len(reward)) // setting.answers, check=False)


def _log_pi(setting: Setting, weights: Weights, batch: Batch) -> Array:
    return transformer.log_probabilities(weights, setting.shape, batch.x, batch.answers)


def slopes(
    names: tuple[str, ...], which: Array | int, log_pi: Array, log_prox: Array, log_mu: Array, advantage: Array
) -> Array:
    """The derivative of one of the losses by the log π of each decision [rows, T]."""
    prox = {"μ": log_mu, "start": log_prox, "π": log_pi}

    def slope(candidate: Candidate) -> Callable[[], Array]:
        taken: dict[str, Any] = {"log_prox": prox[candidate.prox], "log_mu": log_mu, "advantage": advantage}
        return lambda: jax.grad(lambda log: loss(candidate.parts, log_pi=log, check=False, **taken).loss)(log_pi)

    return lax.switch(which, [slope(LOSSES[name]) for name in names])


def _distances(log_pi: Array, log_mu: Array, slope: Array, advantage: Array) -> tuple[Array, Array, Array]:
    """The KL, the drift and the share that is kept: see `Measured`."""
    moved = log_pi - log_mu
    counts = jnp.broadcast_to((advantage != 0)[:, None], slope.shape)
    kept = ((slope != 0) & counts).sum() / jnp.maximum(counts.sum(), 1)
    return (jnp.expm1(moved) - moved).mean(), moved.sum(axis=1).std(), kept
