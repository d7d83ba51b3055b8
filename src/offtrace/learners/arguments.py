"""The arguments of `evaluate` and `control`, checked before anything runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offtrace.learners.core.acting import TABLE, Coded
from offtrace.learners.core.memory import OFFLINE, ONLINE, REPLAY, Settings
from offtrace.learners.environments import Environment
from offtrace.learners.methods.base import Method
from offtrace.learners.methods.trace_learner import TraceLearner
from offtrace.learners.policies import GREEDILY, Constant, Policy, Schedule, as_schedule, extremes
from offtrace.mdps import MDP
from offtrace.mdps.randomness import Seed
from offtrace.returns.api import as_trace
from offtrace.traces import Trace
from offtrace.traces import trace as trace_named

PAIRS_TO_CERTIFY = 200
"""Up to so many pairs, `evaluate` asks `certify` whether the trace converges at all."""

StepSize = float | Schedule | Literal["1/N"]


@dataclass(frozen=True)
class Replay:
    """Learning from a buffer of past steps: every `every` steps, `batch` sequences of up to `length` steps are drawn.

    A sequence begins at a step of the buffer, each as likely as any other, and ends with the episode, with the newest
    step or after `length` steps. It keeps the probabilities under which it was made; π is that of the moment.

    >>> Replay(capacity=1_000, every=4, batch=8, length=16)  # for `update` of `evaluate` and `control`
    Replay(capacity=1000, every=4, batch=8, length=16)
    """

    capacity: int = 10_000
    every: int = 1
    batch: int = 1
    length: int = 32


@dataclass(frozen=True)
class Evaluation:
    """After each `every` training episodes, one evaluation episode of at most `limit` steps; it has its own random numbers.

    One that hits the limit goes on from where it stopped the next time.

    >>> Evaluation(every=10, limit=200)  # a greedy episode after each ten
    Evaluation(policy=EpsilonGreedy(explore=0, epsilon=0.0), every=10, limit=200)
    """

    policy: Policy | ArrayLike = GREEDILY
    every: int = 1
    limit: int = 1000


def require_order(name: str, trace: object, env: object) -> None:
    """Refuse a call in the order of earlier versions, which took the environment first."""
    if isinstance(trace, MDP) or isinstance(env, Trace | Method):
        raise TypeError(f"{name} takes the trace first: {name}(trace, env, …), got {name}({trace!r}, {env!r}, …)")


def as_method(given: Trace | Method | str, where: Environment, behavior: Coded, target: Coded) -> Method:
    """The method, with the constants of these policies, where it has such. A trace by itself is the paper's Algorithm 1."""
    if isinstance(given, str):
        given = trace_named(given)
    method = given if isinstance(given, Method) else TraceLearner(as_trace(given))
    return method.for_policies(*(extremes(policy, where.features.A) for policy in (target, behavior)))


def require_support(where: Environment, trace: Trace, behavior: Coded, target: Coded) -> None:
    """Where μ acts, it must take every action that π may take: a pair that is never tried is never learned."""
    if behavior.kind != TABLE or trace.target_share == 0.0:
        return
    wanted = target.table > 0.0 if target.kind == TABLE else np.ones(behavior.table.shape, bool)
    missing = wanted & (behavior.table == 0.0) & where.visited(behavior.table)[:, None]
    if missing.any():
        s, a = (int(i) for i in np.argwhere(missing)[0])
        raise ValueError(
            f"behavior never takes action {a} in state {s}, but target may: its value there cannot be learned, nor those "
            "that depend on it. Give the action some probability in behavior"
        )


def warn_if_it_diverges(method: Method, mdp: MDP, behavior: Coded, target: Coded) -> None:
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
            found = certify(trace, mdp, target.table, behavior.table, tolerance=1e-3, budget=1.0)
        except closed_form.Divergent as error:
            warnings.warn(f"{trace.title} does not converge here, whatever the step size: {error}", stacklevel=4)
            return
        except TimeoutError:
            return
    if found.converges is False:
        warnings.warn(
            f"{trace.title} does not converge on this MDP: iterating its exact operator diverges, spectral radius "
            f"{found.spectral_radius}. β_t ≤ β_(t-1) ρ_t is {found.recursive}. A step size below 1 may hide it; it cures it "
            "only where the eigenvalue is not above 1. Retrace, RBIS and Non-Markov Retrace converge",
            stacklevel=4,
        )


def settings_of(
    where: Environment,
    method: Method,
    behavior: Coded,
    *,
    alpha: StepSize,
    steps: int | None,
    episodes: int | None,
    update: str | Replay,
    q0: ArrayLike,
    spread: float,
    limit: int | None,
    points: int,
    truth: ArrayLike | None,
    evaluation: object = None,
) -> Settings:
    """All that the compiled loop is told, but for the policies and the trace."""
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
    given: object = spread
    if isinstance(given, bool) or not isinstance(given, Real) or not 0 <= float(given) < np.inf:
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
    if not isinstance(evaluation, Evaluation | None):
        raise TypeError(f"evaluation must be an Evaluation(…), got {evaluation!r}")
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


def capacity(update: str | Replay) -> int:
    """How many steps a replay buffer holds."""
    return update.capacity if isinstance(update, Replay) else Replay().capacity


def seeds_of(seed: Seed, seeds: int | None) -> NDArray[np.uint64]:
    """The seeds of all learners: `seed`, `seed` + 1, …; a generator draws the first of them."""
    given: object = int(seed.integers(2**62)) if isinstance(seed, np.random.Generator) else seed
    if isinstance(given, bool) or not isinstance(given, Integral) or not 0 <= int(given) < 2**63:
        raise ValueError(f"seed must be an integer of at least 0 or a generator, got {seed!r}")
    first = int(given)
    return np.arange(first, first + (1 if seeds is None else _count("seeds", seeds)), dtype=np.uint64)


def _count(name: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise TypeError(f"{name} must be an integer, got {given!r}")
    if int(given) < 1:
        raise ValueError(f"{name} must be at least 1, got {given}")
    return int(given)
