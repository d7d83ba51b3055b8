"""How the user's function is called: by the names of its parameters, with arrays of its kind, dtype and layout."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from offtrace._shared.suggestions import closest, ending
from offtrace.returns.array_kinds import as_numpy
from offtrace.testing.trials import Quantity, Row, Values
from offtrace.traces import Rule, Trace

Layout = Literal["[B, T]", "[T]", "[T, B]", "[B, T, 1]", "[T, B, 1]"]
ArrayName = Literal["numpy", "torch", "jax"]
OF_PI = ("log_pi", "pi", "pi_table")
OF_MU = ("log_mu", "mu", "mu_table")
PROBABILITIES = (*OF_PI, *OF_MU, "next_pi_table", "rho", "log_rho", "greedy")
TABLES = ("action", "q_table", "next_q_table", "pi_table", "next_pi_table", "mu_table")
USUAL = ("reward", "next_value", "terminated", "truncated", "log_pi", "log_mu", "gamma", "valid")
"""What a function with `**names` is given, beside q or value and what the rule reads."""


def known_names(rule: Rule, values: Values) -> list[str]:
    """All that a function may ask for."""
    own = ["value"] if values == "state" else ["q"]
    tables = list(TABLES) if values == "action" and not rule.needs_greedy else []
    numbers = [f.name for f in fields(rule) if f.name != "horizon"]
    others = ["done", "discount", "rho", "log_rho", "pi", "mu", "greedy", "pair"]
    return [*USUAL, *own, *others, *tables, *numbers]


def asked_for(fn: Callable[..., object], names: Mapping[str, str]) -> dict[str, str]:
    """The function's parameters, each with our name of it; "**" stands for any number of names."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        raise TypeError(
            f"the parameters of {fn!r} cannot be seen: wrap it, e.g. lambda reward, q, …: fn(reward, q, …)"
        ) from None
    argument_names: dict[str, str] = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            argument_names["**"] = "**"
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        else:
            argument_names[parameter.name] = names.get(parameter.name, parameter.name)
    if strange := set(names) - set(argument_names):
        raise TypeError(
            f"names has {sorted(strange)}, which are no parameters of fn; it has: {', '.join(argument_names)}"
        )
    return argument_names


@dataclass
class Estimator:
    """The user's function, called with rows, which gives NumPy arrays [B, T] in float64."""

    fn: Callable[..., object]
    rule: Rule
    values: Values
    parameters: dict[str, str]
    """From the function's names to ours."""
    returns: tuple[Quantity, ...]
    alone: bool
    """Whether the function returns one array, not a tuple of them."""
    arrays: ArrayName
    dtype: str
    layout: Layout
    by_step: bool
    """Whether γ is given as an array."""
    returned_half: bool = False
    """Whether a result has come in half precision."""

    def __call__(self, rows: Sequence[Row]) -> dict[Quantity, np.ndarray]:
        """What the function returns for rows of one length, by the name of each result."""
        if self.layout == "[T]":
            results = [self._called([row]) for row in rows]
            return {name: np.concatenate([one[name] for one in results]) for name in self.returns}
        return self._called(rows)

    def _called(self, rows: Sequence[Row]) -> dict[Quantity, np.ndarray]:
        by_position, by_name = self._arguments(rows)
        out = self.fn(*by_position, **by_name)
        many = (out,) if self.alone and not isinstance(out, tuple | list) else out
        if not isinstance(many, tuple | list) or len(many) != len(self.returns):
            raise TypeError(
                f"fn returned {type(out).__name__}, but it is to return {' and '.join(self.returns)}: "
                "say with returns=… what it returns, or wrap it"
            )
        shape = (len(rows), rows[0].steps)
        return {name: self._received(name, one, shape) for name, one in zip(self.returns, many, strict=True)}

    def _arguments(self, rows: Sequence[Row]) -> tuple[list[object], dict[str, object]]:
        inputs, kinds = self._inputs(rows), inspect.signature(self.fn).parameters
        by_position: list[object] = []
        by_name: dict[str, object] = {}
        for theirs, ours in self.parameters.items():
            if theirs == "**":
                own = "value" if self.values == "state" else "q"
                read = [name for name in ("pair", "greedy") if name in self.rule.reads or self._reads_greedy(name)]
                wanted = (name for name in (*USUAL, own, *read) if name not in self.parameters.values())
                by_name |= {name: inputs[name]() for name in wanted}
            elif ours not in inputs:
                continue  # it has a default
            elif kinds[theirs].kind is inspect.Parameter.POSITIONAL_ONLY:
                by_position.append(inputs[ours]())
            else:
                by_name[theirs] = inputs[ours]()
        return by_position, by_name

    def _reads_greedy(self, name: str) -> bool:
        return name == "greedy" and self.rule.needs_greedy

    def _inputs(self, rows: Sequence[Row]) -> dict[str, Callable[[], object]]:
        """By name, how each array is made: only those that are asked for are."""

        def stacked(name: str) -> np.ndarray:
            return np.stack([getattr(row, name) for row in rows])

        own, rule = "value" if self.values == "state" else "q", self.rule
        plain = ("reward", "next_value", "terminated", "truncated", "log_pi", "log_mu", "valid", "greedy", "pair")
        arrays: dict[str, Callable[[], np.ndarray]] = {name: lambda name=name: stacked(name) for name in plain}
        arrays[own] = lambda: stacked("own")
        arrays["done"] = lambda: stacked("terminated") | stacked("truncated")
        arrays["discount"] = lambda: stacked("gamma") * ~stacked("terminated")
        arrays["log_rho"] = lambda: stacked("log_pi") - stacked("log_mu")
        arrays["rho"] = lambda: np.exp(stacked("log_pi") - stacked("log_mu"))
        arrays["pi"], arrays["mu"] = (lambda: np.exp(stacked("log_pi"))), (lambda: np.exp(stacked("log_mu")))
        if self.values == "action" and not rule.needs_greedy:
            for name in TABLES:
                arrays[name] = lambda name=name: np.stack([tables(rule, row)[name] for row in rows])
        arguments: dict[str, Callable[[], object]] = {
            n: lambda f=f: self._given(self._laid_out(f())) for n, f in arrays.items()
        }
        gamma = rows[0].gamma
        arguments["gamma"] = (
            (lambda: self._given(self._laid_out(stacked("gamma")))) if self.by_step else lambda: float(gamma[0])
        )
        for field in fields(rule):
            if field.name not in ("horizon", "gamma"):  # gamma is that of the task, also where a rule has its own
                arguments[field.name] = lambda name=field.name: self._number(getattr(rule, name))
        return arguments

    def _number(self, value: object) -> object:
        """A number of the rule: λ for each step becomes an array of the function's kind."""
        return self._given(value) if isinstance(value, np.ndarray) else value

    def _laid_out(self, array: np.ndarray) -> np.ndarray:
        """[B, T] or [B, T, A] in the function's layout."""
        if self.layout == "[T]":
            return array[0]
        turned = array.swapaxes(0, 1) if self.layout.startswith("[T, B") else array
        return turned[..., None] if self.layout.endswith("1]") and array.ndim == 2 else turned

    def _given(self, array: np.ndarray) -> object:
        """A new array of the function's kind and dtype."""
        fresh = np.array(array, dtype=self.dtype if array.dtype.kind == "f" else None, order="C")
        if self.arrays == "torch":
            import torch

            return torch.from_numpy(fresh)  # pyright: ignore[reportUnknownMemberType]
        if self.arrays == "jax":
            import jax.numpy as jnp

            return jnp.asarray(fresh)
        return fresh

    def _received(self, name: str, out: Any, shape: tuple[int, int]) -> np.ndarray:
        """One result as [B, T] in float64."""
        self.returned_half |= str(getattr(out, "dtype", "")).endswith("float16")
        array: np.ndarray = as_numpy({name: out})[name]
        wanted = {"[T]": shape[1:], "[T, B]": shape[::-1], "[T, B, 1]": (*shape[::-1], 1), "[B, T, 1]": (*shape, 1)}
        if array.shape != wanted.get(self.layout, shape):
            raise ValueError(
                f"fn returned a {name} of shape {array.shape}, but its arrays are {self.layout}, here "
                f"{wanted.get(self.layout, shape)}: it must return one number for each step"
            )
        array = array[..., 0] if self.layout.endswith("1]") else array
        return np.asarray(
            array.reshape(shape) if self.layout == "[T]" else array.T if "[T, B" in self.layout else array, float
        )


def tables(rule: Rule, row: Row) -> dict[str, np.ndarray]:
    """Two actions with values and policies that give the row's q, next_value, log_pi and log_mu, as `from_action_values` does.

    The other action's value at s_{t+1} is what makes next_value[t] the expectation under the policy that the rule evaluates. At
    s_{t+1} of an end that is a separate state, where π = ½.
    """
    pi, mu, action = np.exp(row.log_pi), np.exp(row.log_mu), row.pair % 2
    evaluated = rule.evaluated(pi, mu) if isinstance(rule, Trace) else pi
    goes_on = row.goes_on
    before = np.append(0.0, np.where(goes_on, row.next_value, 0.0)[:-1])  # the expectation at s_t
    other = (before - evaluated * row.own) / (1.0 - evaluated)
    of_taken = {"q_table": (row.own, other), "pi_table": (pi, 1.0 - pi), "mu_table": (mu, 1.0 - mu)}
    of_actions = {"action": action}
    for name, (taken, rest) in of_taken.items():
        of_actions[name] = np.where(np.arange(2) == action[:, None], taken[:, None], rest[:, None])
    for name, table, at_ends in (("next_q_table", "q_table", row.next_value), ("next_pi_table", "pi_table", 0.5)):
        shifted = np.concatenate([of_actions[table][1:], of_actions[table][-1:]])
        ends = np.broadcast_to(at_ends, row.steps)
        of_actions[name] = np.where(goes_on[:, None], shifted, np.stack([ends, ends], axis=1))
    return of_actions


def refuse_unknown(estimator: Estimator) -> None:
    """An error where the function asks for something that there is none of, or for nothing that the rule needs."""
    rule, known = estimator.rule, known_names(estimator.rule, estimator.values)
    given, parameters = set(estimator.parameters.values()), inspect.signature(estimator.fn).parameters
    for theirs, ours in estimator.parameters.items():
        if theirs != "**" and ours not in known and parameters[theirs].default is inspect.Parameter.empty:
            raise TypeError(
                f"fn has a parameter {theirs!r}, which check_estimator does not know{ending(closest(ours, known))} "
                f"Name it by names={{{theirs!r}: …}}, or fix it with functools.partial. Known: {', '.join(known)}"
            )
    if "**" in given:
        return
    needs = {"pi": (*OF_PI, "greedy") if rule.needs_greedy else OF_PI, "mu": OF_MU}
    for name, ways in needs.items():
        if name in rule.reads and not given & set(ways):
            raise TypeError(
                f"{rule.title} needs {name} of the actions taken, and fn has no parameter {' or '.join(ways)}"
            )
