"""A finite Markov decision process that checks itself when made.

P(s'|s, a) lives in sparse rows, one for each pair (s, a), pair s·A + a; R(s, a) is the expected reward. An episode ends
by reaching a terminal state: its rows of P are empty, its rewards 0, its values 0. Mass that leads into a terminal state
is stored in P (so rows sum to one) but is not carried by P_π, since nothing is earned from there on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import ArrayLike

from offtrace.arrays import one_discount
from offtrace.mdps import exact_values, sampling, transition_tables
from offtrace.mdps.policy_tables import check_policy
from offtrace.mdps.randomness import Seed


@dataclass(frozen=True, eq=False, repr=False)
class MDP:
    """A finite MDP (S states, A actions); arrays are copied, float64 and read-only.

    If `terminal` is None, states whose rows of P are all zero are terminal, and so are states that every action stays in
    with reward 0; give a mask, e.g. np.zeros(S, bool), to decide it yourself. Two MDPs are equal when all their numbers
    are; names do not count.

    >>> import numpy as np
    >>> mdp = MDP(P=[[[0, 1]], [[0, 0]]], R=[[5.0], [0.0]], gamma=0.9)
    >>> mdp
    MDP(S=2, A=1, gamma=0.9, terminal=1, nonzeros=1)
    >>> mdp.q(np.ones((2, 1)))
    array([[5.],
           [0.]])
    """

    P: Any
    """P(s'|s, a): given as [S, A, S], as sparse [S·A, S] or as A sparse [S, S]; kept as a csr_array [S·A, S]."""
    R: Any
    """Rewards: given as [S, A], or as [S, A, S] (or sparse like P) where they depend on s'; kept as E[r|s, a], [S, A]."""
    gamma: float
    """The discount, in [0, 1]; 1 only for policies that end every episode."""
    start: Any = None
    """The distribution [S] of the first state; uniform over states that are not terminal if None."""
    terminal: Any = None
    """The mask [S] of states that end the episode; found if None."""
    state_names: tuple[Any, ...] | None = field(default=None, kw_only=True)
    """What each state is called, e.g. its (row, column); strings, numbers or tuples of them."""
    action_names: tuple[Any, ...] | None = field(default=None, kw_only=True)
    """What each action is called."""
    S: int = field(init=False)
    """The number of states, terminal ones included."""
    A: int = field(init=False)
    """The number of actions."""
    transition_rewards: np.ndarray | None = field(init=False)
    """r(s, a, s') for each stored entry of P, in the order of P.data; None where R was given as [S, A]."""

    def __post_init__(self) -> None:
        given, S, A = transition_tables.transitions(self.P)
        R, of_entry = transition_tables.rewards(self.R, given, S, A)
        terminal = transition_tables.terminal_states(self.terminal, given, R)
        P, of_entry = transition_tables.without_rows_of(terminal, given, of_entry)
        start = transition_tables.start_distribution(self.start, terminal)
        ready: dict[str, object] = {
            "P": P,
            "R": R,
            "gamma": one_discount(self.gamma),
            "start": start,
            "terminal": terminal,
        }
        ready |= {"S": S, "A": A, "transition_rewards": of_entry}
        ready["state_names"] = _names("state_names", self.state_names, S)
        ready["action_names"] = _names("action_names", self.action_names, A)
        for name, value in ready.items():
            object.__setattr__(self, name, value)
        self._lock()

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock()  # pickle does not keep arrays read-only

    def _lock(self) -> None:
        for array in self._numbers():
            if array is not None:
                array.setflags(write=False)

    @property
    def pairs(self) -> int:
        """S·A, the number of pairs (s, a), those of terminal states included."""
        return self.S * self.A

    @cached_property
    def dense_P(self) -> np.ndarray:
        """P as a dense, read-only [S, A, S] array; for small MDPs."""
        if self.pairs * self.S > 2**27:
            raise ValueError(
                f"dense P would have {self.S} × {self.A} × {self.S} entries, over 1 GB: use the sparse mdp.P"
            )
        dense = self.P.toarray().reshape(self.S, self.A, self.S)
        dense.setflags(write=False)
        return dense

    def P_pi(self, policy: ArrayLike) -> sp.csr_array:
        """P_π((s,a), (s',a')) = P(s'|s,a) π(a'|s') as a csr_array [S·A, S·A].

        Columns of terminal states are empty: Q is 0 there, so a row sums to the probability that the episode continues.
        """
        return sp.csr_array(self.P @ exact_values.over_pairs(check_policy(policy, self), ~self.terminal))

    def q(self, policy: ArrayLike) -> np.ndarray:
        """Q^π [S, A]: the solution of (I − γP_π) q = R, by scipy's linear solvers; 0 at terminal states."""
        return exact_values.action_values(self, exact_values.state_values(self, check_policy(policy, self)))

    def optimal_q(self, tolerance: float = 1e-10) -> np.ndarray:
        """Q* [S, A] by policy iteration: the exact values of a policy that no single action improves by `tolerance`.

        `tolerance` is relative to the largest value, or to 1 if that is smaller. At γ = 1 it is the best among the policies
        that end every episode.
        """
        if not tolerance >= 0:
            raise ValueError(f"tolerance must not be negative, got {tolerance!r}")
        return exact_values.optimal_action_values(self, tolerance)

    def rollout(
        self,
        behavior: ArrayLike,
        *,
        seed: Seed,
        steps: int | None = None,
        episodes: int | None = None,
        target: ArrayLike | None = None,
        limit: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Act by μ for so many `steps`, or for so many whole `episodes`, starting anew after each end.

        The result is one row of the trajectory contract (`offtrace.trajectory`), arrays [T]: state, action, reward,
        next_state, terminated, truncated, log_mu, and log_pi if `target` is given. `next_state` is the state that was reached,
        also where the episode ends. `limit` truncates episodes after so many steps. The last of `steps` is not marked as
        truncated: the contract bootstraps at the row's end anyway. Rewards are r(s, a, s') where the MDP was given those.
        """
        μ = check_policy(behavior, self, "behavior")
        π = None if target is None else check_policy(target, self, "target")
        return sampling.rollout(self, μ, seed=seed, steps=steps, episodes=episodes, pi=π, limit=limit)

    def save(self, path: str | Path) -> None:
        """Write everything to an .npz file, exactly at `path`."""
        P, names = self.P, json.dumps([self.state_names, self.action_names])
        arrays: dict[str, Any] = {
            "data": P.data,
            "indices": P.indices,
            "indptr": P.indptr,
            "R": self.R,
            "gamma": self.gamma,
        }
        arrays |= {"start": self.start, "terminal": self.terminal, "names": names}
        if self.transition_rewards is not None:
            arrays["transition_rewards"] = self.transition_rewards
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> MDP:
        """The MDP that `save` wrote, checked again."""
        with Path(path).open("rb") as opened:
            if opened.read(2) != b"PK":
                raise ValueError(f"{path} is not a saved MDP: it is no .npz file")
        with np.load(Path(path), allow_pickle=False) as file:
            missing = {"data", "indices", "indptr", "R", "gamma", "start", "terminal", "names"} - set(file.files)
            if missing:
                raise ValueError(f"{path} is not a saved MDP: it lacks {', '.join(sorted(missing))}")
            S, A = file["R"].shape

            def table(data: str) -> sp.csr_array:
                return sp.csr_array((file[data], file["indices"], file["indptr"]), shape=(S * A, S))

            R = table("transition_rewards") if "transition_rewards" in file.files else file["R"]
            of_states, of_actions = json.loads(str(file["names"]))
            numbers = table("data"), R, float(file["gamma"]), file["start"], file["terminal"]
            return cls(*numbers, state_names=of_states, action_names=of_actions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MDP):
            return NotImplemented
        if (self.S, self.A, self.gamma) != (other.S, other.A, other.gamma):
            return False
        return all(
            (mine is None and theirs is None)
            or (mine is not None and theirs is not None and np.array_equal(mine, theirs))
            for mine, theirs in zip(self._numbers(), other._numbers(), strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.S, self.A, self.gamma, self.P.nnz))

    def __repr__(self) -> str:
        ends = int(np.count_nonzero(self.terminal))
        return f"MDP(S={self.S}, A={self.A}, gamma={self.gamma!r}, terminal={ends}, nonzeros={self.P.nnz})"

    def _numbers(self) -> tuple[np.ndarray | None, ...]:
        P = self.P
        return P.indptr, P.indices, P.data, self.R, self.terminal, self.start, self.transition_rewards


_Name: TypeAlias = "str | float | Sequence[_Name]"
"""What a state or an action may be called: a string, a number, or a tuple of names."""


def _names(what: str, names: Sequence[_Name] | None, size: int) -> tuple[_Name, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list | tuple) or len(names) != size:
        raise ValueError(f"{what} must be a tuple of {size} names, got {names!r}")
    return tuple(_name(what, name) for name in names)


def _name(what: str, name: _Name | np.generic) -> _Name:
    """A name that a file can hold: a string, a number, or a tuple of names."""
    if isinstance(name, np.generic):
        name = name.item()
    if isinstance(name, list | tuple):
        return tuple(_name(what, part) for part in name)
    if not isinstance(name, str | int | float):
        raise TypeError(f"{what} holds {name!r}: a name must be a string, a number or a tuple of them")
    return name
