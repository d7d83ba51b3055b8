"""`evaluate` and `control`: what a person calls. Arguments are checked before anything runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from offtrace.learners import run
from offtrace.learners.core.acting import TABLE, Coded
from offtrace.learners.core.blocks import Job
from offtrace.learners.core.memory import OFFLINE, ONLINE, REPLAY, Settings
from offtrace.learners.environments import Environment, environment
from offtrace.learners.learned import Learned
from offtrace.learners.methods.base import Method
from offtrace.learners.methods.trace_learner import TraceLearner
from offtrace.learners.policies import GREEDILY, Constant, Policy, Schedule, as_schedule, coded, extremes
from offtrace.mdps import MDP
from offtrace.returns.api import as_trace
from offtrace.traces import Trace

PAIRS_TO_CERTIFY = 200
"""Up to so many pairs, `evaluate` asks `certify` whether the trace converges at all."""


@dataclass(frozen=True)
class Replay:
    """Learning from a buffer of past steps: every `every` steps, `batch` sequences of up to `length` steps are drawn.

    A sequence begins at a step of the buffer, each as likely as any other, and ends with the episode, with the newest
    step or after `length` steps. It keeps the probabilities under which it was made; π is that of the moment.
    """

    capacity: int = 10_000
    every: int = 1
    batch: int = 1
    length: int = 32


@dataclass(frozen=True)
class Evaluation:
    """After each `every` training episodes, one evaluation episode of at most `limit` steps; it has its own random numbers.

    One that hits the limit goes on from where it stopped the next time.
    """

    policy: Policy | Any = GREEDILY
    every: int = 1
    limit: int = 1000


def evaluate(
    env: Any,
    trace: Trace | Method | str,
    *,
    pi: Any,
    mu: Any,
    gamma: float | None = None,
    alpha: float | Schedule | Literal["1/N"] = 0.1,
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    seeds: int | None = None,
    update: str | Replay = "online",
    q0: Any = 0.0,
    spread: float = 0.0,
    limit: int | None = None,
    points: int = 100,
    truth: Any = None,
    features: Any = None,
    certify: bool = True,
    checkpoint: Any = None,
    progress: bool | None = None,
    threads: int | None = None,
) -> Learned:
    """Learn Q^π from what μ does, in an MDP or a Gymnasium environment.

    `env` is an MDP, or the id of a Gymnasium environment, an environment, a vector environment (all its copies feed one
    learner) or a function that makes one; with Gymnasium, `gamma` must be given. `features` are an array [S, d], or
    `TileCoding(…)` for Box observations. `trace` may also be `GQ(…)`, the stable reference for features.

    `alpha` is a number, a schedule or "1/N" (one over the visits to the pair). `update` is "online" (the paper's Algorithm 1),
    "offline" (the episode's updates are added at its end) or "replay". Q starts at `q0`, a number or [S, A], plus
    normal noise of standard deviation `spread`. `limit` truncates episodes. `seeds=n` runs n learners with the seeds
    `seed`, `seed` + 1, …; a learner's result depends on its seed alone. `checkpoint` is the path of a file that is
    written every minute and when the run is interrupted, and from which the same call goes on; that of a Gymnasium environment
    holds pickles, so open none but your own.

    >>> import numpy as np, offtrace as ot
    >>> from offtrace.mdps import random_walk, uniform
    >>> mdp = random_walk(5, gamma=0.9)
    >>> left = np.tile([0.7, 0.3], (mdp.S, 1))
    >>> result = evaluate(mdp, ot.Retrace(), pi=left, mu=uniform(mdp), alpha="1/N", episodes=5000)
    >>> bool(np.abs(result.Q - mdp.q(left)).max() < 0.1)
    True
    """
    where = environment(env, gamma, features)
    policies = coded("mu", mu, where.shape), coded("pi", pi, where.shape)
    method = _method(trace, where, *policies)
    _require_support(where, method.trace, ("mu", "pi"), *policies)
    mdp = where.mdp if all(p.kind == TABLE for p in policies) else None
    if mdp and truth is None and features is None:
        truth = mdp.q(method.trace.evaluated(policies[1].table, policies[0].table))
    made = _settings(where, method, policies[0], alpha, steps, episodes, update, q0, spread, limit, points, truth, None)
    if mdp and certify:
        _warn_if_it_diverges(method, mdp, pi, mu)
    job = Job(where, method, *policies, GREEDILY.coded, made, _capacity(update))
    return run.run(job, _seeds(seed, seeds), seeds is None, checkpoint, progress, threads)


def control(
    env: Any,
    trace: Trace | Method | str,
    *,
    behavior: Any,
    target: Any = GREEDILY,
    gamma: float | None = None,
    alpha: float | Schedule | Literal["1/N"] = 0.1,
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    seeds: int | None = None,
    update: str | Replay = "online",
    q0: Any = 0.0,
    spread: float = 0.0,
    limit: int | None = None,
    points: int = 100,
    truth: Any = None,
    evaluation: Evaluation | None = None,
    features: Any = None,
    checkpoint: Any = None,
    progress: bool | None = None,
    threads: int | None = None,
) -> Learned:
    """Learn towards Q*: act by `behavior`, learn about `target`, both policies in the current Q.

    They are `EpsilonGreedy(…)` or `Softmax(…)` with a number or a schedule, or arrays [S, A]. The other arguments are those of
    `evaluate`; the curve's error is the distance to Q* on an MDP, unless `truth` says otherwise.

    >>> import offtrace as ot
    >>> from offtrace.learners import EpsilonGreedy
    >>> from offtrace.mdps import bifurcation
    >>> mdp = bifurcation(1)
    >>> result = control(mdp, ot.RBIS(lam=0.9), behavior=EpsilonGreedy(0.2), alpha=0.5, steps=20_000)
    >>> bool((result.Q.argmax(axis=1) == mdp.optimal_q().argmax(axis=1))[mdp.start > 0].all())
    True
    """
    where = environment(env, gamma, features)
    if truth is None and isinstance(where.mdp, MDP) and features is None:
        truth = where.mdp.optimal_q()
    if not isinstance(evaluation, Evaluation | None):
        raise TypeError(f"evaluation must be an Evaluation(…), got {evaluation!r}")
    policies = coded("behavior", behavior, where.shape), coded("target", target, where.shape)
    method = _method(trace, where, *policies)
    _require_support(where, method.trace, ("behavior", "target"), *policies)
    looking = GREEDILY.coded if evaluation is None else coded("evaluation.policy", evaluation.policy, where.shape)
    made = _settings(
        where, method, policies[0], alpha, steps, episodes, update, q0, spread, limit, points, truth, evaluation
    )
    job = Job(where, method, *policies, looking, made, _capacity(update))
    return run.run(job, _seeds(seed, seeds), seeds is None, checkpoint, progress, threads)


def _method(given: Trace | Method | str, where: Environment, behavior: Coded, target: Coded) -> Method:
    """The method, with the constants of these policies, where it has such. A trace by itself is the paper's Algorithm 1."""
    import offtrace

    if isinstance(given, str):
        given = offtrace.trace(given)
    method = given if isinstance(given, Method) else TraceLearner(as_trace(given))
    return method.for_policies(*(extremes(policy, where.features.A) for policy in (target, behavior)))


def _require_support(where: Environment, trace: Trace, names: tuple[str, str], behavior: Coded, target: Coded) -> None:
    """Where μ acts, it must take every action that π may take: a pair that is never tried is never learned."""
    if behavior.kind != TABLE or trace.target_share == 0.0:
        return
    wanted = target.table > 0.0 if target.kind == TABLE else np.ones(behavior.table.shape, bool)
    missing = wanted & (behavior.table == 0.0) & where.visited(behavior.table)[:, None]
    if missing.any():
        s, a = (int(i) for i in np.argwhere(missing)[0])
        raise ValueError(
            f"{names[0]} never takes action {a} in state {s}, but {names[1]} may: its value there cannot be learned, nor those "
            f"that depend on it. Give the action some probability in {names[0]}"
        )


def _warn_if_it_diverges(method: Method, mdp: MDP, pi: Any, mu: Any) -> None:
    """Where theory gives no promise, a second is spent on finding out."""
    trace = method.trace
    if not method.follows_operator or trace.recursive_condition or mdp.pairs > PAIRS_TO_CERTIFY:
        return
    if trace.needs_greedy:  # such a rule has no linear operator
        return
    from offtrace.operators import certify
    from offtrace.operators.solve import closed_form

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on support: `certify` itself says it to those who ask it
        try:
            found = certify(trace, mdp, pi, mu, tolerance=1e-3, budget=1.0)
        except closed_form.Divergent as error:
            warnings.warn(f"{trace.title} does not converge here, whatever the step size: {error}", stacklevel=3)
            return
        except TimeoutError:
            return
    if found.converges is False:
        warnings.warn(
            f"{trace.title} does not converge on this MDP: iterating its exact operator diverges, spectral radius "
            f"{found.spectral_radius}. β_t ≤ β_(t-1) ρ_t is {found.recursive}. A step size below 1 may hide it; it cures it "
            "only where the eigenvalue is not above 1. Retrace, RBIS and Non-Markov Retrace converge",
            stacklevel=3,
        )


def _settings(
    where: Environment,
    method: Method,
    behavior: Coded,
    alpha: Any,
    steps: Any,
    episodes: Any,
    update: Any,
    q0: Any,
    spread: Any,
    limit: Any,
    points: Any,
    truth: Any,
    evaluation: Evaluation | None,
) -> Settings:
    if (steps is None) == (episodes is None):
        raise ValueError(f"give either steps or episodes, got steps={steps!r} and episodes={episodes!r}")
    steps, episodes, limit = (
        0 if n is None else _count(name, n) for name, n in (("steps", steps), ("episodes", episodes), ("limit", limit))
    )
    if isinstance(alpha, str):
        if alpha != "1/N":
            raise ValueError(f'alpha must be a number, a schedule or "1/N", got {alpha!r}')
    schedule = Constant(1.0) if isinstance(alpha, str) else as_schedule("alpha", alpha)
    if not schedule(0) > 0:
        raise ValueError(f"alpha must be above 0, got {alpha!r}")
    if isinstance(spread, bool) or not isinstance(spread, int | float | np.number) or not 0 <= float(spread) < np.inf:
        raise ValueError(f"spread must be a standard deviation, 0 or more, got {spread!r}")
    if not isinstance(update, Replay) and update not in ("online", "offline", "replay"):
        raise ValueError(f'update must be "online", "offline", "replay" or a Replay(…), got {update!r}')
    kind = REPLAY if isinstance(update, Replay) or update == "replay" else ONLINE if update == "online" else OFFLINE
    if not method.in_loop and (kind != ONLINE or isinstance(alpha, str)):
        raise ValueError(
            f"{type(method).__name__} learns online, with one step size for all weights: got update={update!r}, alpha={alpha!r}"
        )
    memory = update if isinstance(update, Replay) else Replay()
    for name in ("capacity", "every", "batch", "length"):
        _count(f"Replay.{name}", getattr(memory, name))
    if evaluation is not None:
        _count("evaluation.every", evaluation.every)
        _count("evaluation.limit", evaluation.limit)
    if episodes and not limit:
        where.require_ends(behavior.table)
    total = steps or episodes
    marks = np.unique(np.round(np.linspace(0, total, min(_count("points", points), total) + 1)[1:]).astype(np.int64))
    truth = np.empty((0, 0)) if truth is None else np.array(truth, dtype=np.float64)
    if truth.size and truth.shape != where.shape:
        raise ValueError(f"truth must be an array [S, A] = {where.shape}, got shape {truth.shape}")
    return Settings(
        update=kind,
        steps=steps,
        episodes=episodes,
        limit=limit,
        gamma=where.gamma,
        alpha=schedule.coded,
        by_visits=isinstance(alpha, str),
        first=where.first(q0),
        spread=float(spread),
        marks=marks,
        truth=truth,
        judged=where.judged,
        look_every=0 if evaluation is None else evaluation.every,
        look_limit=0 if evaluation is None else evaluation.limit,
        every=memory.every,
        batch=memory.batch,
        length=min(memory.length, memory.capacity),
    )


def _capacity(update: Any) -> int:
    return update.capacity if isinstance(update, Replay) else Replay().capacity


def _seeds(seed: Any, seeds: Any) -> np.ndarray:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be an integer of at least 0, got {seed!r}")
    return np.arange(seed, seed + (1 if seeds is None else _count("seeds", seeds)), dtype=np.uint64)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)
