"""What an answer rests on, and what to say of it: weights, support, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from offtrace._shared.number_text import number, with_interval
from offtrace.logs.behavior import Behavior
from offtrace.logs.checks import Check
from offtrace.logs.container import Logs
from offtrace.logs.evidence import Evidence
from offtrace.logs.importance import Weighting, kish
from offtrace.logs.intervals import Conservative
from offtrace.logs.operator import PIECE
from offtrace.logs.policies import Policy
from offtrace.logs.registry import ESTIMATORS, MU
from offtrace.logs.result import Diagnosis, Overlap, Row, chosen

APART = 3.0  # errors of a difference, by which a fit may differ from an estimate by weights
HEAVY = 4  # episodes as heavy as the heaviest that could be missing: chosen on logs with a known truth (docs/reference/logs.md)
MUCH = 0.01  # of the probability of π outside the data, and of the episodes truncated


def diagnosis_of(evidence: Evidence) -> Diagnosis:
    """What the answer rests on."""
    w = evidence.weights
    return Diagnosis(
        log_weights=None if w is None else w.log_whole,
        effective_by_step=None if w is None else w.effective(),
        outside=outside_of(evidence.logs, evidence.policy),
        overlap=overlap_of(evidence),
    )


def outside_of(logs: Logs, policy: Policy) -> float:
    """How much of what the target policy does at the logged states was never logged."""
    if policy.table is not None:
        outside = np.where(logs.counts == 0, policy.table, 0.0).sum(axis=1)
        return float(outside[logs.state].mean())
    return float(np.sum([policy.outside(logs.state[piece], logs).sum() for piece in logs.pieces(PIECE)]) / len(logs))


def overlap_of(evidence: Evidence) -> tuple[Overlap, ...]:
    """How often each action was logged, and how often the target takes it; nothing where actions are real numbers."""
    logs, policy = evidence.logs, evidence.policy
    if logs.continuous:
        return ()
    A = logs.actions
    logged = np.bincount(logs.action, minlength=A)
    wanted = np.sum([policy.probabilities(logs.state[piece]).sum(axis=0) for piece in logs.pieces(PIECE)], axis=0)
    effective = np.full(A, np.nan)
    if logs.log_mu is not None:
        ratio = np.exp(np.minimum(evidence.log_pi - logs.log_mu, 300.0))
        effective = np.array([kish(ratio[logs.action == a]) for a in range(A)])
    steps = len(logs)
    return tuple(
        Overlap(name, int(logged[a]), float(logged[a] / steps), float(wanted[a] / steps), float(effective[a]))
        for a, name in enumerate(logs.names("actions"))
    )


def warnings_of(evidence: Evidence, mu: Behavior, rows: Sequence[Row], anderson: Conservative | None) -> Iterator[str]:
    """What one should know before relying on the headline, the gravest first."""
    logs, best = evidence.logs, chosen(rows)
    if logs.report is not None and logs.report.loss:
        yield logs.report.loss
    if best.failed:
        yield f"no estimator passes its checks: {best.title}, which fails fewest, is named first, and should not be relied on"
        yield from (check.words for check in best.failed)
    if anderson is not None and anderson.empty:
        yield f"the conservative interval is empty: {anderson.empty}"
    by_model = ESTIMATORS[best.estimator].operator is not None
    if evidence.model is None:
        visits = np.bincount(logs.state, minlength=logs.states)
        into = np.count_nonzero(visits[logs.next_state[logs.cut]] == 0)
        if into > MUCH * logs.episodes:
            yield (
                f"{into:,} of {logs.episodes:,} episodes were cut in states in which nothing was logged: what comes after "
                "is taken for worth 0"
            )
        if (lost := evidence.starts.weight[visits[evidence.starts.state] == 0].sum()) > 0:
            yield f"{100 * lost:.2g} % of the first states given (initial) were never logged: they are taken for worth 0"
    share = logs.cut.sum() / logs.episodes
    if share > MUCH and not by_model:
        yield (
            f"{100 * share:.3g} % of the episodes were truncated: what came after is "
            + ("taken from the direct method" if evidence.policy.draws else "left out")
        )
    if mu.estimated and MU in ESTIMATORS[best.estimator].needs:
        yield f"μ was {mu.origin} from these very data: intervals take it for known"


def contradictions(rows: Sequence[Row], contributions: Mapping[str, np.ndarray]) -> list[Row]:
    """The rows; a fit that weights alone contradict has that as a failed check.

    Weights need no states that are Markov and no model that is right. Of the estimators that have nothing else, and that pass
    their checks, the best one by the rule of the headline is taken. Where states hide something, it is named there.
    """
    sound = [row for row in rows if not row.failed and row.low < row.high and _by_weights(row)]
    if not sound:
        return list(rows)
    other, judged = chosen(sound), list[Row]()
    alone = f"by weights alone, {other.title} finds {with_interval(other.estimate, other.low, other.high)}"
    for row in rows:
        checks = [replace(c, words=f"{c.words}; {alone}") if c.kind == "hidden" and c.failed else c for c in row.checks]
        if ESTIMATORS[row.estimator].operator is not None and (error := _apart(row, other, contributions)):
            far = number(abs(row.estimate - other.estimate), error)
            words = (
                f"{alone}, which differs by {far} (± {number(2 * error, error)} by the same episodes): more than chance"
            )
            checks.append(Check("contradicted", row.estimate - other.estimate, words, True))
        judged.append(replace(row, checks=tuple(checks)))
    return judged


def _by_weights(row: Row) -> bool:
    """Whether it is an estimator by weights of episodes, doubly robust or not."""
    return isinstance(ESTIMATORS[row.estimator].function, Weighting)


def _apart(row: Row, other: Row, contributions: Mapping[str, np.ndarray]) -> float:
    """The error of the difference of two estimates, episode by episode, if they differ by more than chance; else 0.

    That is by more than three errors, and what four more episodes would change that are like the one which brings the two nearest
    to each other. Weights have long tails: without the few heavy episodes an estimate is too low, and so is its error. What makes
    the interval of the row wider than two errors on each side, such as pairs that were never logged, is allowed for, too.
    """
    if not np.isfinite([row.estimate, row.standard_error]).all():
        return 0.0
    mine, its = contributions[row.estimator], contributions[other.estimator]
    known = np.isfinite(row.effective)  # what each episode contributes
    moves = its - mine if known else its
    error = (
        float(moves.std() / np.sqrt(len(moves))) if known else float(np.hypot(row.standard_error, other.standard_error))
    )
    moves = (moves - moves.mean()) * (1 if row.estimate > other.estimate else -1)
    missing = HEAVY * float(moves.max()) / len(moves)
    low, high = row.low + 2 * row.standard_error, row.high - 2 * row.standard_error
    far = max(min(low, row.estimate) - other.estimate, other.estimate - max(high, row.estimate))
    return error if far > APART * error + missing + 1e-6 * abs(other.estimate) else 0.0
