"""The registry of estimators: `evaluate`, the command line and the page read it, and one of one's own is one more entry."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import offtrace as ot
from logs import settings
from offtrace import cli
from offtrace.logs import ESTIMATORS, Estimator, Evidence, evaluate, register_estimator, registry
from offtrace.reports.logs import evaluation_page


def mean_return(evidence: Evidence) -> tuple[float, np.ndarray]:
    """The mean of the discounted returns: the value of μ, and not of π."""
    logs = evidence.logs
    age = np.arange(len(logs)) - np.repeat(logs.starts[:-1], np.diff(logs.starts))
    returns = np.add.reduceat(evidence.gamma**age * logs.reward, logs.starts[:-1])
    return float(returns.mean()), returns


@pytest.fixture
def own() -> Iterator[Estimator]:
    made = Estimator(
        "mean return", "Σ_e G_e / E", mean_return, (registry.OWN_STARTS,), title="mean <return>", family="on policy"
    )
    yield register_estimator(made)
    del registry._registered[made.name]


def test_an_estimator_of_ones_own_is_evaluated_listed_and_shown(
    own: Estimator, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, pi, _ = settings.some_logs()
    result = evaluate(logs, pi, trace=ot.RBIS(lam=0.9), gamma=0.9, resamples=50)
    possible = list(ESTIMATORS)
    assert [row.estimator for row in result.estimates] == possible
    row = result[own.name]
    assert (row.title, row.low <= row.estimate <= row.high) == ("mean <return>", True)
    text = evaluation_page.html(result)
    assert text.count(">mean &lt;return&gt;</th>") == 2  # of numbers, and of equations
    assert own.equation in text
    assert cli.main(["logs", "estimators"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in listed] == list(ESTIMATORS)
    assert listed[-1].endswith("Σ_e G_e / E; needs the logs’ own first states")


def test_what_it_needs_is_asked_for(own: Estimator) -> None:
    logs, pi, _ = settings.some_logs()
    elsewhere = {"trace": ot.RBIS(lam=0.9), "gamma": 0.9, "resamples": 20, "initial": np.array([0, 1])}
    assert own.name not in [row.estimator for row in evaluate(logs, pi, **elsewhere).estimates]
    with pytest.raises(
        ValueError, match="'mean return' cannot be computed: it averages over the logs' own first states"
    ):
        evaluate(logs, pi, **elsewhere, estimators=[own.name])


def test_names_are_taken_once(own: Estimator) -> None:
    with pytest.raises(ValueError, match="there is an estimator named 'mean return' already"):
        register_estimator(own)
    with pytest.raises(ValueError, match="cannot need 'luck': known needs are 'mu', 'own starts'"):
        register_estimator(Estimator("lucky", "?", mean_return, ("luck",)))


def test_each_entry_says_what_it_computes() -> None:
    for name, entry in ESTIMATORS.items():
        assert entry.name == name
        assert entry.equation
        assert set(entry.needs) <= set(registry.NEEDS)
