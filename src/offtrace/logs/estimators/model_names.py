"""The names by which `evaluate` takes a model of Q."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from offtrace.logs.container import Logs
from offtrace.logs.estimators.fitted_iteration import Features, Model, Regressor
from offtrace.logs.estimators.learned_features import (
    Learned,
    fourier,
    fourier_of_pairs,
    network,
    state_numbers,
    trees,
    with_action,
)


def as_model(model: object, logs: Logs, seed: int) -> Model:
    """None for a table; a name stands for the model that it names."""
    if isinstance(model, Features | Regressor) and (model.of_states is not None or getattr(model, "of_pairs", None)):
        of = ("states", "actions") if isinstance(model, Features) and model.of_pairs else ("states",)
        logs.require_order("the features that are given as model go by the ids of states and actions", *of)
    if logs.continuous:
        return _for_real_actions(model, logs, seed)
    if model is None:
        return None if logs.tabular else fourier(seed)
    if isinstance(model, Features | Learned | Regressor):
        return model
    names: dict[str, Callable[[], Model]] = {
        "table": lambda: None,
        "linear": Features,
        "fourier": lambda: fourier(seed),
        "trees": lambda: trees(seed),
        "network": lambda: network(seed),
    }
    if not isinstance(model, str) or model not in names:
        known = ", ".join(map(repr, names))
        raise ValueError(f"model must be one of {known}, a Features or a Regressor, got {model!r}")
    if model == "table" and not logs.tabular:
        raise ValueError('model="table" needs states that are ids; these logs have features: take "fourier" or "trees"')
    if logs.tabular and model not in ("table", "linear"):
        raise ValueError(
            f"model={model!r} needs states that are features, and these logs have ids: give Features(φ), φ a table [S, d] or a "
            "callable"
        )
    return names[model]()


def _for_real_actions(model: object, logs: Logs, seed: int) -> Model:
    """A model of Q(s, a) for actions that are real numbers."""
    if isinstance(model, Features) and model.of_pairs is None:
        raise ValueError(
            "Features(φ) of states have a θ for each action, and the actions of these logs are real numbers: give features of "
            "both, Features(of_pairs=φ), φ(states, actions) → [n, p]"
        )
    if isinstance(model, Features | Learned | Regressor):
        return model
    names: dict[str | None, Callable[[], Model]] = {
        None: lambda: fourier_of_pairs(seed),
        "fourier": lambda: fourier_of_pairs(seed),
        "linear": lambda: Features(
            of_pairs=lambda s, a: with_action(np.column_stack([np.ones(len(a)), state_numbers(s, logs)]), a, 0)
        ),
        "trees": lambda: trees(seed),
        "network": lambda: network(seed),
    }
    if not (model is None or isinstance(model, str)) or model not in names:
        known = ", ".join(repr(name) for name in names if name)
        raise ValueError(
            f"model must be one of {known}, Features(of_pairs=φ) or a Regressor, where actions are real numbers; got {model!r}"
        )
    if logs.tabular and model in ("trees", "network"):
        raise ValueError(f'model={model!r} needs states that are features, and these logs have ids: take "fourier"')
    return names[model]()
