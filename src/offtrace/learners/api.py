"""`evaluate` and `control`: what a person calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from numpy.typing import ArrayLike

from offtrace.learners.acting import TABLE
from offtrace.learners.arguments import (
    Evaluation,
    Replay,
    as_method,
    job_of,
    policies_of,
    require_order,
    require_support,
    seeds_of,
    true_values,
    warn_if_it_diverges,
)
from offtrace.learners.environments import environment
from offtrace.learners.features import TileCoding
from offtrace.learners.methods.base import Method, StepSize, Values
from offtrace.learners.policies import GREEDILY, Policy, Probabilities
from offtrace.learners.result import Learned
from offtrace.learners.run import run
from offtrace.mdps import MDP
from offtrace.mdps.randomness import Seed
from offtrace.traces import Rule

if TYPE_CHECKING:  # Gymnasium is an extra
    from offtrace.learners.gymnasium import Given

    Environments: TypeAlias = MDP | Given


def evaluate(
    trace: Rule | Method | str,
    env: Environments,
    *,
    target: Policy | Probabilities | ArrayLike | None = None,
    behavior: Policy | Probabilities | ArrayLike,
    values: Values | None = None,
    gamma: float | None = None,
    alpha: StepSize | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    seed: Seed = 0,
    seeds: int | None = None,
    update: str | Replay = "online",
    q0: ArrayLike = 0.0,
    spread: float = 0.0,
    limit: int | None = None,
    points: int = 100,
    truth: ArrayLike | None = None,
    features: ArrayLike | TileCoding | None = None,
    certify: bool = True,
    progress: bool | None = None,
    threads: int | None = None,
) -> Learned:
    """Learn Q^π, or V^π, of the policy `target` from what `behavior` does, in an MDP or a Gymnasium environment.

    `trace` is a trace, its name, or a learning method such as `GQ(…)` or `method("tdrc", …)`. A trace learns action values, with
    `values="state"` state values; a method knows which. Methods on the policy that acts take no `target`. `env` is an MDP, or
    the id of a Gymnasium environment, an environment, a vector environment (all its copies feed one learner) or a function
    that makes one; with Gymnasium, `gamma` must be given. Policies are arrays [S, A], or policies in the current Q;
    with tile coding also functions that make the probabilities [A] of an observation.
    `features` are an array [S, d], or `TileCoding(…)` for Box observations.

    `alpha` is a number, a schedule or "1/N" (one over the visits to the pair); without it, that of the method, or 0.1. `update`
    is "online" (the paper's Algorithm 1), "offline" (the episode's updates are added at its end) or "replay". Q starts at `q0`, a
    number or [S, A], [S] for state values, plus
    normal noise of standard deviation `spread`. `limit` truncates episodes. `seed` is an integer, or a generator that draws
    one; `seeds=n` runs n learners with the seeds `seed`, `seed` + 1, …; a learner's result depends on its seed alone.

    >>> import numpy as np, offtrace as ot
    >>> from offtrace.mdps import random_walk, uniform
    >>> mdp = random_walk(5, gamma=0.9)
    >>> left = np.tile([0.7, 0.3], (mdp.S, 1))
    >>> result = evaluate(ot.Retrace(), mdp, target=left, behavior=uniform(mdp), alpha="1/N",
    ...                   episodes=5000)
    >>> bool(np.abs(result.Q - mdp.q(left)).max() < 0.1)
    True
    """
    require_order("evaluate", trace, env)
    method = as_method(trace, values)
    where = environment(env, gamma, features, states=method.values == "state")
    method, acting, wanted = policies_of(method, where, behavior, target)
    require_support(where, method.trace, acting, wanted)
    mdp = where.mdp if acting.kind == wanted.kind == TABLE else None
    if mdp and truth is None and features is None and not method.uncorrected:
        truth = true_values(method, mdp, acting, wanted)
    job = job_of(
        where, method, (acting, wanted), alpha=alpha, steps=steps, episodes=episodes,
        update=update, q0=q0, spread=spread, limit=limit, points=points, truth=truth,
    )  # fmt: skip
    if mdp and certify:
        warn_if_it_diverges(method, mdp, acting, wanted)
    return run(job, seeds_of(seed, seeds), seeds is None, progress, threads)


def control(
    trace: Rule | Method | str,
    env: Environments,
    *,
    behavior: Policy | Probabilities | ArrayLike,
    target: Policy | Probabilities | ArrayLike | None = None,
    gamma: float | None = None,
    alpha: StepSize | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    seed: Seed = 0,
    seeds: int | None = None,
    update: str | Replay = "online",
    q0: ArrayLike = 0.0,
    spread: float = 0.0,
    limit: int | None = None,
    points: int = 100,
    truth: ArrayLike | None = None,
    evaluation: Evaluation | None = None,
    features: ArrayLike | TileCoding | None = None,
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
    >>> result = control(ot.RBIS(lam=0.9), mdp, behavior=EpsilonGreedy(0.2), alpha=0.5, steps=20_000)
    >>> bool((result.Q.argmax(axis=1) == mdp.optimal_q().argmax(axis=1))[mdp.start > 0].all())
    True
    """
    require_order("control", trace, env)
    method = as_method(trace)
    if method.values == "state":
        raise ValueError(
            f"{method.title} learns state values, which say nothing of actions: control needs a method on action values"
        )
    where = environment(env, gamma, features)
    if truth is None and where.mdp is not None and features is None:
        truth = where.mdp.optimal_q()
    target = GREEDILY if target is None and not method.on_policy else target
    method, acting, wanted = policies_of(method, where, behavior, target)
    require_support(where, method.trace, acting, wanted)
    job = job_of(
        where, method, (acting, wanted), alpha=alpha, steps=steps, episodes=episodes,
        update=update, q0=q0, spread=spread, limit=limit, points=points, truth=truth, evaluation=evaluation,
    )  # fmt: skip
    return run(job, seeds_of(seed, seeds), seeds is None, progress, threads)
