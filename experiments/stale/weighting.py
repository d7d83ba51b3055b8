"""A weighting: how much a token of an old rollout counts, by `offtrace.weights`, and what is rejected, by `offtrace.reject`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import offtrace as ot
from offtrace.returns.weights.api import criteria, options

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True)
class Weighting:
    """A trace, the level at which it is read, and what is rejected beside it. For JAX the trace's numbers are leaves."""

    trace: ot.Trace
    level: str = "prefix"
    normalize: str | None = None
    lower: float | None = None
    upper: float | None = None
    outside: str = "truncate"
    reject: str | None = None
    """A criterion of `offtrace.reject`, such as "sequence mean k3"; None rejects nothing."""
    reject_lower: float | None = None
    reject_upper: float | None = None

    def __post_init__(self) -> None:
        by_group = () if self.normalize == "group" else None
        options(self.level, self.lower, self.upper, self.outside, self.normalize, by_group, None)
        if self.reject is not None:
            criteria(self.reject, self.reject_lower, self.reject_upper)
        elif self.reject_lower is not None or self.reject_upper is not None:
            raise ValueError(
                'reject_lower and reject_upper bound a criterion: name it, such as reject = "sequence mean k3"'
            )

    @classmethod
    def made(cls, title: str, parameters: Mapping[str, Any], lam: float | None) -> Self:
        """Make the weighting of the grid: the trace of this title, its parameters, and the options in addition to them."""
        own = {k: v for k, v in parameters.items() if k not in (*OPTIONS, "label")}
        trace = ot.trace(title, **own, **({} if lam is None else {"lam": lam}))
        if not isinstance(trace, ot.Trace):
            raise TypeError(f"{title} has no coefficients β, and so no weights")
        return cls(trace, **{k: v for k, v in parameters.items() if k in OPTIONS})

    def __call__(self, log_pi: Array, log_mu: Array, group: Array) -> tuple[Array, Array | None]:
        """The weights [B, T], and which decisions are kept, or None for all. `group` [B] says which prompt a row answers."""
        how: dict[str, Any] = {
            name: getattr(self, name) for name in ("level", "normalize", "lower", "upper", "outside")
        }
        how["group"] = group if self.normalize == "group" else None
        found = ot.weights(self.trace, log_pi=log_pi, log_mu=log_mu, check=False, **how)
        if self.reject is None:
            return found, None
        bounds: dict[str, Any] = {"lower": self.reject_lower, "upper": self.reject_upper}
        return found, ot.reject(log_pi=log_pi, log_mu=log_mu, by=self.reject, check=False, **bounds)


OPTIONS = tuple(f.name for f in fields(Weighting) if f.name != "trace")
"""What the grid may give in addition to the parameters of the trace."""


def labelled(parameters: Mapping[str, object]) -> dict[str, object]:
    """The parameters, with the numbers in their label filled in.

    >>> labelled({"bound": 2.0, "label": "token, at most {bound}"})
    {'bound': 2.0, 'label': 'token, at most 2'}
    """
    label = parameters.get("label")
    if not isinstance(label, str):
        return dict(parameters)
    for name, value in parameters.items():
        label = label.replace(f"{{{name}}}", f"{value:g}" if isinstance(value, int | float) else str(value))
    return {**parameters, "label": label}
