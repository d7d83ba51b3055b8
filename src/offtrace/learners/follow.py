"""`follow`: what a method's weights are along a given trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offtrace.learners.arguments import as_method, policies_of, seeds_of, step_size_of
from offtrace.learners.arrays import Floats, Integers, Records
from offtrace.learners.environments import Environment, table_or_rows
from offtrace.learners.methods.base import Method, Values
from offtrace.learners.policies import GREEDILY, positive_schedule
from offtrace.learners.run import Job, learner_of
from offtrace.learners.state import ONLINE, STEP
from offtrace.mdps.randomness import Seed
from offtrace.traces import Rule
from offtrace.trajectory import distributions


def follow(
    method: Method | Rule | str,
    *,
    features: ArrayLike | None = None,
    state: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    next_state: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike | None = None,
    target: ArrayLike | None = None,
    behavior: ArrayLike,
    gamma: float,
    marks: Sequence[int] | NDArray[np.integer] | None = None,
    alpha: float | None = None,
    values: Values | None = None,
    first: ArrayLike | None = None,
    seed: Seed = 0,
) -> Floats:
    """Run a learning method over a given trajectory, and return its weights after so many steps as `marks` says.

    - `method`: as `learners.method(name, alpha=…, …)` makes it. A trace needs `values`, "state" or "action", and `alpha`
    - `features`: [S, d], a row for each state; without them there is a weight for each state
    - `state`, `action`, `next_state`: integers [T]; `reward` [T]; `terminated`, `truncated` [T]: booleans. Several episodes may
      follow each other; inside of one, next_state[t] is state[t + 1]
    - `target`, `behavior`: policies [S, A], π and μ. Methods that learn about the policy that acts take no target
    - `marks`: numbers of steps in increasing order, at most T; without them there is one, T
    - `first`: the first weights, [d], or [d, A] of action values; 0 if they are not given
    - `seed`: for Sarsa, whose last action after a truncated step is drawn

    Returns [marks, d] for methods on state values, [marks, d, A] on action values; NaN from where a weight is not finite.

    >>> import numpy as np
    >>> from offtrace.learners import follow, method
    >>> steps = dict(state=[0, 1], action=[0, 1], reward=[0.0, 1.0], next_state=[1, 0],
    ...              terminated=[False, True])
    >>> π, μ = np.array([[1.0, 0.0], [0.5, 0.5]]), np.full((2, 2), 0.5)
    >>> follow(method("td", alpha=0.1, lam=1.0), **steps, target=π, behavior=μ, gamma=0.5, marks=[1, 2])
    array([[0. , 0. ],
           [0.1, 0.1]])
    """
    if isinstance(method, Rule) and values is None:
        raise TypeError(
            'a trace is a method on state values or on action values: say values="state" or values="action"'
        )
    learner = as_method(method, values)
    step_size = step_size_of(learner, alpha, default=None)
    if step_size is None or isinstance(step_size, str):
        raise TypeError(f"alpha is missing: give it here, or as learners.method(…, alpha=0.1), got {step_size!r}")
    if isinstance(gamma, bool) or not isinstance(gamma, int | float | np.number) or not 0 <= gamma <= 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"gamma must lie in [0, 1], got {gamma!r}")
    policy = distributions(np.array(behavior, dtype=np.float64), "behavior")
    if policy.ndim != 2:
        raise ValueError(f"behavior must be a table [S, A], got shape {policy.shape}")
    S, A = policy.shape
    seen, size = table_or_rows(features, S, A, learner.values == "state")
    trajectory = {"state": state, "action": action, "reward": reward, "next_state": next_state}
    recorded = _steps({**trajectory, "terminated": terminated, "truncated": truncated}, policy)
    where = Environment(None, None, float(gamma), seen, None, size)
    learner, acting, wanted = policies_of(learner, where, policy, target)
    job = Job(
        where, learner, (acting, wanted, GREEDILY.coded), positive_schedule(step_size).coded, update=ONLINE, steps=len(recorded),
        first=_first(first, size, seen.per_tile), marks=_marks(marks, len(recorded)), recorded=recorded,
    )  # fmt: skip
    running = learner_of(job)(int(seeds_of(seed, None)[0]))
    running.advance(2**62)
    weights = running.curve.snapshots
    return weights if seen.states else weights.reshape(len(weights), -1, A)


def _steps(given: Mapping[str, ArrayLike | None], behavior: Floats) -> Records:
    """The trajectory as records, checked."""
    rewards = np.asarray(given["reward"])
    if rewards.dtype.kind not in "fiu" or rewards.ndim != 1 or not len(rewards):
        raise ValueError(f"reward must be numbers [T], got {rewards.dtype} of shape {rewards.shape}")
    if not np.isfinite(rewards).all():
        t = int(np.argmin(np.isfinite(rewards)))
        raise ValueError(f"reward must be finite, got {rewards[t]} at step {t}")
    (S, A), steps = behavior.shape, np.zeros(len(rewards), STEP)
    steps["reward"] = rewards
    for name, n in (("state", S), ("action", A), ("next_state", S), ("terminated", 2), ("truncated", 2)):
        if given[name] is not None:
            steps[name] = _column(name, np.asarray(given[name]), len(rewards), n)
    steps["truncated"] &= ~steps["terminated"]
    ended = (steps["terminated"] | steps["truncated"])[:-1] != 0
    torn = np.flatnonzero(~ended & (steps["next_state"][:-1] != steps["state"][1:]))
    if len(torn):
        t = int(torn[0])
        raise ValueError(
            f"next_state at step {t} is {steps['next_state'][t]}, but state at step {t + 1} is {steps['state'][t + 1]}: "
            "inside of an episode they are the same. Mark where an episode ends as terminated or truncated"
        )
    steps["mu"] = behavior[steps["state"], steps["action"]]
    never = np.flatnonzero(steps["mu"] == 0.0)
    if len(never):
        t = int(never[0])
        raise ValueError(
            f"behavior never takes action {steps['action'][t]} in state {steps['state'][t]}, but it was taken at step {t}: μ = 0 "
            "on an action taken is impossible"
        )
    return steps


def _column(name: str, array: np.ndarray, T: int, n: int) -> Integers:
    """Integers below n, or flags."""
    if array.shape != (T,):
        raise ValueError(f"{name} must have the shape of reward, ({T},), got {array.shape}")
    are_flags, is_integer = name in ("terminated", "truncated"), array.dtype.kind in "iu"
    bad = (array < 0) | (array >= n) if is_integer else np.zeros(T, bool)
    if not (is_integer or (are_flags and array.dtype.kind == "b")) or (are_flags and bad.any()):
        raise TypeError(
            f"{name} must be {'booleans, or integers 0 and 1' if are_flags else 'integers'}, got {array.dtype}"
        )
    if bad.any():
        t = int(np.argmax(bad))
        raise ValueError(f"{name} must lie in [0, {n}), the size of the policies, got {array[t]} at step {t}")
    return array.astype(np.int64)


def _marks(given: object, T: int) -> Integers:
    marks = np.atleast_1d(np.asarray([T] if given is None else given))
    if marks.ndim != 1 or not len(marks) or marks.dtype.kind not in "iu":
        raise TypeError(f"marks must be integers, numbers of steps, got {given!r}")
    if not (np.diff(marks) > 0).all() or marks[0] < 1 or marks[-1] > T:
        raise ValueError(f"marks must be in increasing order, from 1 to the number of steps, {T}; got {marks.tolist()}")
    return marks.astype(np.int64)


def _first(given: ArrayLike | None, size: int, each: int) -> Floats:
    shape = (size,) if each == 1 else (size // each, each)
    array = np.zeros(shape) if given is None else np.array(given, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"first must be finite weights of shape {shape}, got shape {array.shape}")
    return array.ravel()
