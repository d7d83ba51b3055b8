"""The arguments of `evaluate` and `control`, checked before anything runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from numbers import Integral, Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offtrace.learners.acting import CONSTANT, TABLE, CodedPolicy
from offtrace.learners.arrays import Floats
from offtrace.learners.environments import Environment
from offtrace.learners.methods.base import Method, StepSize, Values
from offtrace.learners.methods.registry import method as method_of_name
from offtrace.learners.methods.registry import of_rule, rule_named
from offtrace.learners.policies import GREEDILY, Policy, Probabilities, coded, extremes, positive_schedule
from offtrace.learners.run import Job
from offtrace.learners.state import OFFLINE, ONLINE, REPLAY
from offtrace.mdps import MDP
from offtrace.mdps.randomness import Seed
from offtrace.mdps.sampling import count
from offtrace.traces import Rule, Trace
from offtrace.traces import trace as trace_named
from offtrace.traces.trace_argument import as_rule

PAIRS_TO_CERTIFY = 200
"""Up to so many pairs, `evaluate` asks `certify` whether the trace converges at all."""

DEFAULT_ALPHA = 0.1
"""The step size where neither the call nor the method says one."""


@dataclass(frozen=True)
class Replay:
    """Learning from a buffer of past steps: every `every` steps, `batch` sequences of up to `length` steps are drawn.

    A sequence begins at a step of the buffer, each as likely as any other, and ends with the episode, with the newest
    step or after `length` steps. It keeps the probabilities under which it acted; π is the current one.

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

    One that hits the limit continues from where it stopped the next time.

    >>> Evaluation(every=10, limit=200)  # a greedy episode after each ten
    Evaluation(policy=EpsilonGreedy(explore=0, epsilon=0.0), every=10, limit=200)
    """

    policy: Policy | ArrayLike = GREEDILY
    every: int = 1
    limit: int = 1000


def require_order(name: str, trace: object, env: object) -> None:
    """Refuse a call that gives the environment first."""
    if isinstance(trace, MDP) or isinstance(env, Rule | Method):
        raise TypeError(f"{name} takes the trace first: {name}(trace, env, …), got {name}({trace!r}, {env!r}, …)")


def as_method(given: Rule | Method | str, values: Values | None = None) -> Method:
    """The method. A trace by itself is the paper's Algorithm 1, on the values that are asked for. A name may be a trace's."""
    if isinstance(given, str):
        given = trace_named(given) if ":" in given or rule_named(given) else method_of_name(given)
    if isinstance(given, Method):
        if values is not None and values != given.values:
            raise ValueError(f"{given.title} learns {given.values} values, got values={values!r}")
        return given
    return of_rule(as_rule(given), "action" if values is None else values)


def step_size_of(method: Method, alpha: StepSize | None, default: StepSize | None = DEFAULT_ALPHA) -> StepSize | None:
    """Return the step size of the call or of the method, or the default. It is an error if both give one, and not the same."""
    if alpha is not None and method.alpha is not None and alpha != method.alpha:
        raise ValueError(f"alpha is {alpha!r} here, and {method.alpha!r} in {method!r}: give one of them")
    given = method.alpha if alpha is None else alpha
    return default if given is None else given


def policies_of(
    method: Method,
    where: Environment,
    behavior: Policy | Probabilities | ArrayLike,
    target: Policy | Probabilities | ArrayLike | None,
) -> tuple[Method, CodedPolicy, CodedPolicy]:
    """The method with the constants of these policies, where it has such; the behaviour and the target, as the loop takes them.

    Methods that learn about the policy that acts need no target.
    """
    A, states = where.features.A, where.features.states
    acting = coded("behavior", behavior, where.shape, A)
    if target is None and not method.on_policy:
        raise TypeError("target is missing: the policy whose values are to be learned")
    wanted = acting if target is None else coded("target", target, where.shape, A)
    same = wanted[:7] == acting[:7] and np.array_equal(wanted.table, acting.table)
    if method.on_policy and target is not None and (not same or (where.shape is None and target is not behavior)):
        raise ValueError(f"{method.title} learns about the policy that acts: leave target out, or give behavior")
    for name, policy in (("behavior", acting), ("target", wanted)):
        if states and policy.kind != TABLE:
            raise TypeError(
                f"{method.title} learns state values, so there is no Q for a policy to look at: {name} must be an array "
                "[S, A], or with tile coding a function that makes the probabilities [A] of an observation, or an array [A]"
            )
    if states and method.trace.needs_greedy and where.shape and not np.isin(wanted.table, (0.0, 1.0)).all():
        raise ValueError(f"{method.title} on state values needs a target that is greedy: all its probabilities 0 or 1")
    return method.for_policies(extremes(wanted, A), extremes(acting, A)), acting, wanted


def true_values(method: Method, mdp: MDP, behavior: CodedPolicy, target: CodedPolicy) -> Floats:
    """Q or V of the policy that a method evaluates: on states π, but for a trace that bounds or mixes the ratio of δ."""
    π, μ = target.table, behavior.table
    if method.values == "action":
        return mdp.q(method.trace.evaluated(π, μ))
    ρ = np.divide(π, μ, out=np.zeros_like(π), where=μ > 0)
    weight = μ * np.asarray(method.trace.delta_ratio(np, ρ))
    live = weight.sum(axis=1, keepdims=True) > 0
    policy = np.where(live, weight / np.where(live, weight.sum(axis=1, keepdims=True), 1.0), π)
    return (policy * mdp.q(policy)).sum(axis=1)


def require_support(where: Environment, trace: Trace, behavior: CodedPolicy, target: CodedPolicy) -> None:
    """Where μ acts, it must take every action that π may take: a pair that is never tried is never learned."""
    if trace.target_share == 0.0:
        return
    if _stays_greedy(behavior) and not _stays_greedy(target):
        raise ValueError(
            "behavior is greedy in Q at every step, but target may take other actions: their values are never learned. Give "
            "behavior some probability of them, e.g. EpsilonGreedy(0.1), or let target be greedy too"
        )
    if behavior.kind != TABLE:
        return
    wanted = target.table > 0.0 if target.kind == TABLE else np.ones(behavior.table.shape, bool)
    missing = wanted & (behavior.table == 0.0) & where.visited(behavior.table)[:, None]
    if missing.any():
        s, a = (int(i) for i in np.argwhere(missing)[0])
        raise ValueError(
            f"behavior never takes action {a} in state {s}, but target may: its value there cannot be learned, nor those "
            "that depend on it. Give the action some probability in behavior"
        )


def _stays_greedy(policy: CodedPolicy) -> bool:
    """Whether a policy in Q never explores: ε, or the temperature, is 0 from the first episode on."""
    return policy.kind != TABLE and policy.form == CONSTANT and policy.a == 0.0 and policy.explore == 0


def warn_if_it_diverges(method: Method, mdp: MDP, behavior: CodedPolicy, target: CodedPolicy) -> None:
    """Warn if M certainly diverges. This is checked only where theory promises nothing, and takes about a second."""
    trace = method.trace
    follows_operator = method.in_loop and method.values == "action" and not (method.sampled or method.uncorrected)
    if not follows_operator or trace.recursive_condition or mdp.pairs > PAIRS_TO_CERTIFY:
        return
    if trace.needs_greedy:  # such a rule has no linear operator
        return
    from offtrace.operators import certify
    from offtrace.operators.solve import closed_form

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on support: `certify` itself says it to those who ask it
        try:
            certificate = certify(trace, mdp, target.table, behavior.table, tolerance=1e-3, budget=1.0)
        except closed_form.Divergent as error:
            warnings.warn(f"{trace.title} does not converge here, whatever the step size: {error}", stacklevel=3)
            return
        except TimeoutError:
            return
    if certificate.converges is False:
        warnings.warn(
            f"{trace.title} does not converge on this MDP: iterating its exact operator diverges, spectral radius "
            f"{certificate.spectral_radius}. β_t ≤ β_(t-1) ρ_t is {certificate.recursive}. A step size below 1 may hide it; "
            "it cures it only where the eigenvalue is not above 1. Retrace, RBIS and Non-Markov Retrace converge",
            stacklevel=3,
        )


def job_of(
    where: Environment,
    method: Method,
    policies: tuple[CodedPolicy, CodedPolicy],
    *,
    alpha: StepSize | None,
    steps: int | None,
    episodes: int | None,
    update: str | Replay,
    q0: ArrayLike,
    spread: float,
    limit: int | None,
    points: int,
    truth: ArrayLike | None,
    evaluation: object = None,
) -> Job:
    """All that is run for each seed, checked."""
    if (steps is None) == (episodes is None):
        raise ValueError(f"give either steps or episodes, got steps={steps!r} and episodes={episodes!r}")
    steps, episodes, limit = (
        0 if n is None else count(name, n) for name, n in (("steps", steps), ("episodes", episodes), ("limit", limit))
    )
    alpha = step_size_of(method, alpha)
    if isinstance(alpha, str) and alpha != "1/N":
        raise ValueError(f'alpha must be a number, a schedule or "1/N", got {alpha!r}')
    noise: object = spread
    if isinstance(noise, bool) or not isinstance(noise, Real) or not 0 <= float(noise) < np.inf:
        raise ValueError(f"spread must be a standard deviation, 0 or more, got {spread!r}")
    if not isinstance(update, Replay) and update not in ("online", "offline", "replay"):
        raise ValueError(f'update must be "online", "offline", "replay" or a Replay(…), got {update!r}')
    kind = REPLAY if isinstance(update, Replay) or update == "replay" else ONLINE if update == "online" else OFFLINE
    if (not method.in_loop and (kind != ONLINE or isinstance(alpha, str))) or (method.sampled and kind == REPLAY):
        raise ValueError(
            f"{type(method).__name__} learns online, with one step size for all weights: got update={update!r}, alpha={alpha!r}"
        )
    replay = update if isinstance(update, Replay) else Replay()
    for f in fields(replay):
        count(f"Replay.{f.name}", getattr(replay, f.name))
    if not isinstance(evaluation, Evaluation | None):
        raise TypeError(f"evaluation must be an Evaluation(…), got {evaluation!r}")
    judge = evaluation or Evaluation()
    evaluated = coded("evaluation.policy", judge.policy, where.shape, where.features.A)
    if episodes and not limit:
        where.require_ends(policies[0].table)
    total = steps or episodes
    if truth is not None:
        truth = np.array(truth, dtype=np.float64)
        if truth.shape != where.table:
            letters = "[S]" if where.features.states else "[S, A]"
            raise ValueError(f"truth must be an array {letters} = {where.table}, got shape {truth.shape}")
        truth = truth.reshape(len(truth), -1)
    return Job(
        where, method, (*policies, evaluated), positive_schedule(1.0 if isinstance(alpha, str) else alpha).coded,
        first=where.first(q0), spread=float(spread), capacity=replay.capacity,
        marks=np.unique(np.round(np.linspace(0, total, min(count("points", points), total) + 1)[1:]).astype(np.int64)),
        truth=truth,
        update=kind, steps=steps, episodes=episodes, limit=limit, by_visits=isinstance(alpha, str), every=replay.every,
        batch=replay.batch, length=min(replay.length, replay.capacity),
        evaluate_every=count("evaluation.every", judge.every) if evaluation else 0,
        evaluation_limit=count("evaluation.limit", judge.limit) if evaluation else 0,
    )  # fmt: skip


def seeds_of(seed: Seed, seeds: int | None) -> NDArray[np.uint64]:
    """The seeds of all learners: `seed`, `seed` + 1, …; a generator draws the first of them."""
    given: object = int(seed.integers(2**62)) if isinstance(seed, np.random.Generator) else seed
    if isinstance(given, bool) or not isinstance(given, Integral) or not 0 <= int(given) < 2**63:
        raise ValueError(f"seed must be an integer of at least 0 or a generator, got {seed!r}")
    first = int(given)
    return np.arange(first, first + (1 if seeds is None else count("seeds", seeds)), dtype=np.uint64)
