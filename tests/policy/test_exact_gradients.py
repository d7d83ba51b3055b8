"""The exact moments: identities, long rows against rows listed one by one, and the tables of the documentation."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace.policy import TokenRows, gradient_moments, losses, token_rows

ROOT = Path(__file__).parents[2]
IS = ot.ImportanceSampling()


@pytest.fixture(scope="session")
def tables() -> Any:
    """The program that makes the tables."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("policy_table")
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="session")
def task() -> TokenRows:
    return token_rows(4, tokens=3, drift=0.8, seed=3)


def test_the_probabilities_of_all_rows(task: TokenRows) -> None:
    assert len(task.chance) == 3**4
    np.testing.assert_allclose(task.chance.sum(), 1.0)
    np.testing.assert_allclose(task.chance @ np.exp((task.log_pi - task.log_mu).sum(axis=1)), 1.0)
    # ∇log π has mean 0 under π, in each prefix and so over all.
    ratios = np.exp(np.cumsum(task.log_pi - task.log_mu, axis=1))
    np.testing.assert_allclose(np.einsum("n,nt,ntf->tf", task.chance, ratios, task.score), 0.0, atol=1e-14)


def test_values_are_expected_returns(task: TokenRows) -> None:
    """Q^π of a prefix and token is the mean return from there on, over rows of π that begin so."""
    pi = np.exp(task.log_pi.sum(axis=1))
    togo = np.cumsum(task.reward[:, ::-1], axis=1)[:, ::-1]
    for t in range(4):
        for name in np.unique(task.prefix[:, t]):
            same = task.prefix[:, t] == name
            np.testing.assert_allclose(task.q[same, t], np.average(togo[same, t], weights=pi[same]))


def test_what_is_known_to_be_right_has_no_bias(task: TokenRows) -> None:
    """∇J comes from Q^π and prefixes; returns weighed by the whole row must give it too, and so must a wrong critic's V."""
    sequence, prefix = (ot.weights(IS, **task.taken, level=level) for level in ("sequence", "prefix"))
    assert gradient_moments(task, sequence, advantage=task.advantages("return")).bias < 1e-12
    assert gradient_moments(task, sequence).bias < 1e-12
    assert gradient_moments(task, prefix).bias < 1e-12
    shifted = gradient_moments(task, prefix, advantage=task.q)  # any baseline that knows the prefix only drops out
    assert shifted.bias < 1e-12
    assert shifted.variance > gradient_moments(task, prefix).variance
    assert gradient_moments(task, prefix, advantage=task.advantages(error=1.0)).bias > 0.05


def test_the_gradient_is_the_slope_of_the_return() -> None:
    """J moves along ∇J by as much as the length of ∇J says: J of π itself, by the same tasks with another π."""
    task = token_rows(3, drift=0.5, seed=1)
    pi = np.exp(task.log_pi.sum(axis=1))
    score = task.score.sum(axis=1)
    np.testing.assert_allclose(task.gradient, (pi * task.reward.sum(axis=1)) @ score)


def test_moments_are_those_of_a_sample(task: TokenRows) -> None:
    """The one sampled check: 50,000 rows drawn by their chances have these moments."""
    weight = ot.weights(ot.NonMarkovRetrace(), **task.taken)
    found = gradient_moments(task, weight, advantage=task.advantages("return"))
    g = np.einsum("nt,ntf->nf", weight * task.advantages("return"), task.score)
    drawn = g[np.random.default_rng(0).choice(len(g), size=50_000, p=task.chance)]
    np.testing.assert_allclose(drawn.mean(axis=0), found.mean, atol=5 * np.sqrt(found.variance / 50_000))
    np.testing.assert_allclose(drawn.var(axis=0).sum(), found.variance, rtol=0.04)


def test_rejection_and_bad_input(task: TokenRows) -> None:
    weight = ot.weights(IS, **task.taken, level="token")
    every = np.ones_like(weight, bool)
    np.testing.assert_allclose(gradient_moments(task, weight, keep=every).mean, gradient_moments(task, weight).mean)
    with pytest.raises(ValueError, match="keep is False everywhere"):
        gradient_moments(task, weight, keep=~every)
    for name, value in {"weight": np.nan, "advantage": np.inf}.items():
        given = {"weight": weight, "advantage": task.q} | {name: np.where(every, value, 0.0)}
        with pytest.raises(ValueError, match=f"{name} must be finite, got {value} in row 0 at token 0"):
            gradient_moments(task, **given)
    with pytest.raises(ValueError, match=r"weight has shape \(81, 3\): there are 81 rows of 4 tokens"):
        gradient_moments(task, weight[:, :3])
    with pytest.raises(ValueError, match=r"there would be 2\^30 rows"):
        token_rows(30)
    with pytest.raises(ValueError, match="of = 'returns' is not known"):
        task.advantages("returns")


def listed(automaton: Any, steps: int) -> TokenRows:
    """All rows of an automaton, one by one."""
    A = automaton.mu.shape[1]
    token = np.array(list(product(range(A), repeat=steps)))
    at = np.full(token.shape, automaton.start)
    for t in range(steps - 1):
        at[:, t + 1] = automaton.following[at[:, t], token[:, t]]
    q = automaton.action_values(steps, automaton.pi)[np.arange(steps), at, token]
    value = (automaton.pi * automaton.action_values(steps, automaton.pi)).sum(-1)[np.arange(steps), at]
    log_pi, log_mu = (np.log(policy)[at, token] for policy in (automaton.pi, automaton.mu))
    reward = automaton.reward[at, token] / steps
    return TokenRows(np.exp(log_mu.sum(1)), log_pi, log_mu, log_mu, automaton.score[at, token], reward, q, value, at)


@pytest.mark.parametrize("kind", ["forgets", "remembers"])
def test_long_rows_are_counted_as_if_they_were_listed(tables: Any, kind: str) -> None:
    steps = 5 if kind == "forgets" else 9
    long_rows = importlib.import_module("long_rows")
    automaton = long_rows.remembering(2**0.5, steps) if kind == "remembers" else long_rows.forgetting(2**0.5, rare=0.2)
    task = listed(automaton, steps)
    for kappa, bound, level, weigh in (
        (0.0, np.inf, "token", tables.by(ot.QLambda(), "token")),
        (1.0, 1.2, "token", tables.by(ot.TruncatedIS(bound=1.2), "token")),
        (1.0, 2.0, "sequence", tables.by(ot.TruncatedIS(bound=2.0), "sequence")),
        (1 / steps, np.inf, "sequence", tables.by(IS, "geometric")),
        (1.0, np.inf, "prefix", tables.by(IS)),
        (0.5, 1.0, "prefix", tables.by(ot.FlattenedIS(0.5, 1.0))),
        (1.0, 2.0, "prefix", tables.by(ot.FlattenedIS(1.0, 2.0))),
        (0.5, 2.0**0.5, "past", tables.past_and_own(ot.FlattenedIS(0.5, 2.0**0.5))),
    ):
        for returns in (False, True):
            found = long_rows.long_moments(automaton, steps, kappa, bound, level, returns=returns)
            advantage = task.advantages("return" if returns else "critic")
            wanted = gradient_moments(task, weigh(**task.taken), advantage=advantage)
            np.testing.assert_allclose(found.gradient, wanted.gradient, atol=1e-13)
            np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-13)
            np.testing.assert_allclose(found.variance, wanted.variance, rtol=1e-10)


@pytest.mark.parametrize("name", [name for name in losses() if name != "gmpo"])
@pytest.mark.parametrize("kind", ["forgets", "remembers"])
def test_long_rows_of_losses_are_counted_as_if_they_were_listed(tables: Any, name: str, kind: str) -> None:
    pytest.importorskip("torch")
    long_rows, long_losses = importlib.import_module("long_rows"), importlib.import_module("long_losses")
    steps = 4 if kind == "forgets" else 8
    automaton = long_rows.remembering(1.3, steps) if kind == "remembers" else long_rows.forgetting(1.3, rare=0.2)
    logs = long_losses.logs_of(automaton, 0.25)
    loss = losses()[name]
    if name == "opsm":
        loss = replace(loss, keep_negative=0.01)
    task = listed(automaton, steps)
    token = np.array(list(product(range(automaton.mu.shape[1]), repeat=steps)))
    log_prox = logs.prox[task.prefix, token]
    np.testing.assert_allclose(np.exp(logs.prox).sum(1), 1.0)
    found, wanted = (
        long_losses.long_loss(automaton, steps, loss),
        gradient_moments(replace(task, log_prox=log_prox), loss),
    )
    np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-12)
    np.testing.assert_allclose(found.variance, wanted.variance, rtol=1e-9)


def cells(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def test_the_tables_of_the_documentation_are_what_the_program_prints(tables: Any) -> None:
    """All of the short rows but the longest, and the long ones up to 32 tokens: the rest takes a minute."""
    written = (ROOT / "docs" / "policy_table.inc").read_text()
    for text in (tables.HEAD, tables.ABOUT_SHORT, tables.ABOUT_LONG):
        assert text in written
    for steps in tables.SHORT[:2]:
        made = tables.short_rows(steps)
        for line in made.splitlines():
            same = [old for old in written.splitlines() if old.split(" | ")[0] == line.split(" | ")[0]]
            assert any(alike(line, old) for old in same), line
    for kind in ("forgets", "remembers"):
        made = cells(tables.long_rows(kind, tables.LONG[:2]))
        there = [row for row in cells(written) if row[0] == made[0][0]]
        assert len(there) == 1
        first = cells(written).index(there[0])
        for row, old in zip(made, cells(written)[first : first + len(made)], strict=True):
            assert alike(" ".join(row), " ".join(old[: len(row)])), row


def alike(new: str, old: str) -> bool:
    """The same words, and numbers that differ by no more than their last digit may."""
    words = re.sub(r"-?\d+\.?\d*", "#", new), re.sub(r"-?\d+\.?\d*", "#", old)
    if words[0] != words[1]:
        return False
    return all(abs(a - b) <= 0.011 * max(1.0, abs(a)) for a, b in zip(numbers(new), numbers(old), strict=True))
