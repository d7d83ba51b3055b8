"""A network whose last hidden layer are features, trained on the returns of the logs by mini-batches, file after file.

Each epoch goes over the files in an order that the seed alone decides, and over the steps of a file in mini-batches of 256. Files
are read ahead by the workers, but there is one network, trained in this process: the result does not depend on how many workers
there are, nor on where they are. It does depend on how the steps are spread over files, since other mini-batches make other
features: so it is not that of `evaluate`, which shuffles all steps together. What follows, Q in these features, is exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from offtrace.logs.estimators.learned_features import PairFeatures, hidden_layer, returns_from, sklearn, with_action
from offtrace.logs.partitions.kept_sums import Sums
from offtrace.logs.partitions.one_file import Question
from offtrace.logs.partitions.passes_over_files import Passes

if TYPE_CHECKING:
    from sklearn.neural_network import MLPRegressor

LAYERS, BATCH = (64, 64), 256
STEPS, EPOCHS = 3_000_000, 30
"""Epochs end when so many steps were seen, but there are at least one and at most so many."""


class Scales(NamedTuple):
    """What inputs and outputs are scaled by."""

    middle: np.ndarray
    scale: np.ndarray
    beyond: float
    """What is to come after an episode was cut: the mean return."""
    mean: float
    """Of the returns from each step on."""
    spread: float


def trained(question: Question, passes: Passes, scales: Scales, steps: int, actions: int, seed: int) -> PairFeatures:
    """φ(s, a), the last hidden layer. The finished network is kept with the sums; a half-trained one is not."""
    asked = f"network {seed}"
    epochs = max(1, min(EPOCHS, -(-STEPS // steps)))
    begun, kept = passes.kept.begun(asked)
    made = iter(()) if begun else _weights(question, passes, scales, epochs, actions, seed)
    for _, found in passes.kept.keeping(asked, 1, begun, kept, made):
        kept = found
    layers = range(len(LAYERS))
    weights, biases = [kept[f"weights {i}"] for i in layers], [kept[f"bias {i}"] for i in layers]
    return hidden_layer(weights, biases, scales.middle, scales.scale, actions)


def _weights(
    question: Question, passes: Passes, scales: Scales, epochs: int, actions: int, seed: int
) -> Iterator[Sums]:
    made: MLPRegressor = sklearn("neural_network").MLPRegressor(
        hidden_layer_sizes=LAYERS, batch_size=BATCH, random_state=seed
    )
    rng, done, of = np.random.default_rng(seed), 0, epochs * len(passes.files)
    for _ in range(epochs):
        order = [passes.files[i] for i in rng.permutation(len(passes.files))]
        for x, y in passes.executor.each(_samples, order, question, scales, actions):
            made.batch_size = min(BATCH, len(y))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it could be trained on: the linear system does the rest
                made.partial_fit(x, y)
            done += 1
            passes.tell(done, of, f"training a network, {done:,} of {of:,} files")
    parts = zip(made.coefs_[:-1], made.intercepts_[:-1], strict=True)
    yield {
        f"{name} {i}": one for i, each in enumerate(parts) for name, one in zip(("weights", "bias"), each, strict=True)
    }


def _samples(file: Path, question: Question, scales: Scales, actions: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs [n, d + A] and the scaled returns [n] of one file."""
    logs = question.logs(file)
    returns = returns_from(logs, question.gamma, beyond=scales.beyond)
    x = with_action((logs.state - scales.middle) / scales.scale, logs.action, actions)
    return x, (returns - scales.mean) / scales.spread
