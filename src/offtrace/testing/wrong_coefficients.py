"""What the coefficients of rewards inside an episode look like where they are not those of the rule.

Each mistake is tried as a variant of the definition: the same rule with its ratios moved by a step, another λ, and so on. The one
that gives the function's numbers on whole rows is the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np

from offtrace.returns import by_definition
from offtrace.testing.credit import of_rewards
from offtrace.testing.fitting import fitted
from offtrace.testing.mistakes import Mistake
from offtrace.testing.trials import Row, Setting
from offtrace.traces import Rule, Trace, rules

Variant = Callable[[Row], tuple[np.ndarray, np.ndarray]]
"""The coefficients [T, T] of one row, and where they are to be compared."""
LONGEST = 16
"""Horizons up to this one are tried."""


def named(setting: Setting, rows: Sequence[Row], seen: Sequence[np.ndarray], near: float) -> tuple[Mistake, str]:
    """The mistake, and a sentence about it, by what rewards count on rows of one episode."""
    answer = _powers_of_lambda(setting, rows, seen, near)
    if answer is not None:
        return answer
    for mistake, says, variant in _variants(setting):
        try:
            agrees = all(_agrees(got, *variant(row), near) for row, got in zip(rows, seen, strict=True))
        except ArithmeticError:  # the mistake has no number there, as μ/π at π = 0
            continue
        if agrees:
            return mistake, says
    answer = _powers_of_gamma(setting, rows, seen, near) or fitted(setting, rows, seen, near)
    if answer is not None:
        return answer
    return "unknown", "The coefficients of later steps are not the rule's, nor those of a mistake that is known here."


def _agrees(got: np.ndarray, want: np.ndarray, at: np.ndarray, near: float) -> bool:
    return bool((np.abs(got - want)[at] <= near * np.maximum(1.0, np.abs(want[at]))).all())


def _variants(setting: Setting) -> Iterator[tuple[Mistake, str, Variant]]:
    """Mistakes, each with the coefficients that it gives."""
    rule, lam = setting.rule, _lam(setting.rule)
    if not setting.on_policy and isinstance(rule, Trace):
        yield from _ratios(setting, rule)
    if lam is not None:
        inside = replace(rule, lam=1.0)  # pyright: ignore[reportCallIssue]

        def within(row: Row) -> tuple[np.ndarray, np.ndarray]:
            scaled = replace(row, log_pi=row.log_pi + np.log(lam))
            C, at = _of(setting, inside)(scaled)
            if setting.values == "action" or not isinstance(rule, Trace):
                return C, at
            return C / rule.delta_ratio(np, scaled.rho) * rule.delta_ratio(np, row.rho), at  # δ has its own ratio

        yield "lambda misplaced", "λ acts inside of the clip of the ratio.", within
        other = replace(rule, lam=1.0 - lam)  # pyright: ignore[reportCallIssue]
        yield "lambda misplaced", "1 − λ stands where λ should.", _of(setting, other)
    yield from _discounts(setting)
    yield from _horizons(setting)
    if isinstance(rule, Trace) and rule.recursive and lam is not None and setting.values == "action":
        for own, says in ((1.0, "; that of its own step is 1"), (lam, "")):
            yield (
                "trace not started at 1",
                f"The trace goes on from λ in the place of 1{says}.",
                _started_at(rule, lam, own),
            )
    for other in _other_rules(setting):
        yield "another rule", f"These are the coefficients of {_spelt(other)}.", _of(setting, other)


def _ratios(setting: Setting, rule: Trace) -> Iterator[tuple[Mistake, str, Variant]]:
    off: Mistake = "ratio off by one"
    early = "The ratio of the step before is used: a trace from k must meet the actions k + 1 … t."
    late = "The ratio of the step after is used: a trace from k must meet the actions k + 1 … t."
    if setting.values == "state":
        early, late = (text.replace("k + 1 … t", "k … t − 1, and δ_t the ratio ρ_t") for text in (early, late))
    yield off, early, _of(setting, rule, lambda row: _moved(row, 1), first=setting.values == "state")
    yield off, late, _of(setting, rule, lambda row: _moved(row, -1), last=True)
    if setting.values == "action":
        own = (
            "The ratio of a trace's own first step is used as well: it must not, since that action was taken for given."
        )
        yield off, own, _with_own_ratio(rule)

        def times_own(row: Row) -> tuple[np.ndarray, np.ndarray]:
            coefficients, at = _of(setting, rule)(row)
            return rule.delta_ratio(np, row.rho)[:, None] * coefficients, at

        yield off, own, times_own
    else:
        yield from _ratios_of_states(setting, rule)
    yield "ratio missing", "No ratio acts: these are the numbers for π = μ.", _of(setting, rule, _on_policy)
    yield (
        "ratio upside down",
        "The ratio is μ/π.",
        _of(setting, rule, lambda row: replace(row, log_pi=row.log_mu, log_mu=row.log_pi)),
    )
    if "rho" in rule.reads:
        none = "The ratio is {}: {} is left out."
        without_μ = _of(setting, rule, lambda row: replace(row, log_mu=np.zeros(row.steps)))
        without_π = _of(setting, rule, lambda row: replace(row, log_pi=np.zeros(row.steps)))
        yield "ratio altered", none.format("π", "μ"), without_μ
        yield "ratio altered", none.format("1/μ", "π"), without_π


def _discounts(setting: Setting) -> Iterator[tuple[Mistake, str, Variant]]:
    """A trace that is discounted by γ of another step."""
    if setting.one_gamma:
        return
    for by, word in ((-1, "after"), (1, "before")):
        says = f"The trace is discounted by γ of the step {word}."
        yield (
            "discount misplaced",
            says,
            _of(setting, setting.rule, lambda row, by=by: _late_gamma(row, by), first=by == 1),
        )


def _late_gamma(row: Row, by: int) -> Row:
    at = np.clip(np.arange(row.steps) - by, 0, row.steps - 1)
    return replace(row, gamma=row.gamma[at])


def _horizons(setting: Setting) -> Iterator[tuple[Mistake, str, Variant]]:
    """The rule with another horizon, or another n."""
    rule = setting.rule
    name = "n" if rule.uncorrected else "horizon"
    if name not in (f.name for f in fields(rule)):
        return
    now = getattr(rule, name)
    for n in range(1, LONGEST):
        if n != now:
            says = f"β is 0 from lag {n} on, as with {name} = {n}; it should be {now}."
            yield "wrong horizon", says, _of(setting, replace(rule, **{name: n}))  # pyright: ignore[reportArgumentType]
    if now is not None and name == "horizon":
        yield "wrong horizon", f"The horizon of {now} does not act.", _of(setting, replace(rule, horizon=None))  # pyright: ignore


def _started_at(rule: Trace, x0: float, own: float) -> Variant:
    """A recursive trace x_t = min(cap_t, ratio_t x_{t-1}) from x_k = x0; the weight of δ_k is `own`."""

    def variant(row: Row) -> tuple[np.ndarray, np.ndarray]:
        T, coefficients = row.steps, np.zeros((row.steps, row.steps))
        pi, mu = np.exp(row.log_pi), np.exp(row.log_mu)
        decay, ratio, cap = (np.broadcast_to(part, T) for part in rule.normal_form(np, pi, mu, row.rho))
        for k in range(T):
            weight, x = 1.0, x0
            coefficients[k, k] = own
            for t in range(k + 1, T):
                x, weight = min(cap[t], ratio[t] * x), weight * row.gamma[t - 1] * decay[t]
                coefficients[k, t] = weight * x
        return coefficients, np.triu(np.ones((T, T), bool))

    return variant


def _ratios_of_states(setting: Setting, rule: Trace) -> Iterator[tuple[Mistake, str, Variant]]:
    """C = D b_{k:t-1} w_t, with b over the actions k … t−1 and w the ratio of δ: what is wrong may be b or w."""

    def split(row: Row) -> tuple[np.ndarray, np.ndarray]:
        w = rule.delta_ratio(np, row.rho)
        return of_rewards(rule, row, "state", "correction") / w, w

    def whole(row: Row) -> np.ndarray:
        return np.triu(np.ones((row.steps, row.steps), bool))

    def without(row: Row) -> tuple[np.ndarray, np.ndarray]:
        return split(row)[0], whole(row)

    def own(row: Row) -> tuple[np.ndarray, np.ndarray]:
        b, w = split(row)
        return b * w[:, None], whole(row)

    def of_actions(row: Row) -> tuple[np.ndarray, np.ndarray]:
        return of_rewards(rule, row, "action", "correction"), whole(row)

    def late(row: Row) -> tuple[np.ndarray, np.ndarray]:
        return of_rewards(rule, row, "action", "correction") * split(row)[1], whole(row)

    def next_w(row: Row) -> tuple[np.ndarray, np.ndarray]:
        b, w = split(row)
        at = whole(row)
        at[:, -1] = False
        return b * np.roll(w, -1), at

    if setting.quantity == "advantage":
        return
    yield "ratio missing", "δ_t lacks its ratio ρ_t, which it must carry on state values.", without
    yield "ratio off by one", "δ_t carries the ratio of the return's own step, ρ_k, in the place of ρ_t.", own
    yield (
        "ratio off by one",
        "The ratios are placed as for action values: a trace meets k + 1 … t, and δ carries none.",
        of_actions,
    )
    yield "ratio off by one", "A trace meets the actions k + 1 … t; on state values it must meet k … t − 1.", late
    yield "ratio off by one", "δ_t carries the ratio of the step after, ρ_{t+1}.", next_w


def _of(
    setting: Setting,
    rule: Rule,
    change: Callable[[Row], Row] = lambda row: row,
    *,
    first: bool = False,
    last: bool = False,
) -> Variant:
    """The coefficients of a rule on changed rows; of moved ratios the first start, or the last step, is not known."""

    def variant(row: Row) -> tuple[np.ndarray, np.ndarray]:
        at = np.triu(np.ones((row.steps, row.steps), bool))
        at[:1] &= not first
        at[:, -1] &= not last
        return of_rewards(rule, change(row), setting.values, setting.quantity), at

    return variant


def _with_own_ratio(rule: Trace) -> Variant:
    def variant(row: Row) -> tuple[np.ndarray, np.ndarray]:
        T = row.steps
        none, coefficients = np.zeros(T + 1, bool), np.zeros((T, T))
        for k in range(T):
            after = [k, *range(k, T)]  # a step before k, whose own ratio does not act
            log_pi, log_mu = row.log_pi[after], row.log_mu[after]
            flags = {"terminated": none[: len(after)], "truncated": none[: len(after)], "pair": row.pair[after]}
            if rule.shape is not None:
                continue
            β = by_definition.coefficients(rule, log_pi=log_pi, log_mu=log_mu, greedy=row.greedy[after], **flags)[0, 1:]
            coefficients[k, k:] = β * np.append(1.0, np.cumprod(row.gamma[k : T - 1]))
        return coefficients, np.triu(np.ones((T, T), bool))

    return variant


def _moved(row: Row, by: int) -> Row:
    """Log-probabilities of the step before (1) or after (−1)."""
    at = np.clip(np.arange(row.steps) - by, 0, row.steps - 1)
    return replace(row, log_pi=row.log_pi[at], log_mu=row.log_mu[at], greedy=row.greedy[at])


def _on_policy(row: Row) -> Row:
    return replace(row, log_pi=row.log_mu)


def _lam(rule: Rule) -> float | None:
    """λ, where there is one that can be seen."""
    lam = getattr(rule, "lam", None)
    return lam if isinstance(lam, float) and 0.0 < lam < 1.0 else None


def _other_rules(setting: Setting) -> Iterator[Rule]:
    """Listed rules, with the same λ where they have one, but the one that is checked."""
    lam = _lam(setting.rule)
    for cls in rules():
        if cls.per_step or cls.needs_greedy or (cls.uncorrected and setting.values == "state"):
            continue
        for example in cls.examples():
            has_lam = lam is not None and "lam" in (f.name for f in fields(example))
            other = replace(example, lam=lam) if has_lam else example  # pyright: ignore[reportCallIssue]
            if other != setting.rule:
                yield other


def _spelt(rule: Rule) -> str:
    lam = getattr(rule, "lam", None)
    return f"{rule.title} with λ = {lam:g}" if isinstance(lam, float) else rule.title


def _powers_of_lambda(
    setting: Setting, rows: Sequence[Row], seen: Sequence[np.ndarray], near: float
) -> tuple[Mistake, str] | None:
    lam = _lam(setting.rule)
    if lam is None:
        return None
    bare = replace(setting.rule, lam=1.0)  # pyright: ignore[reportCallIssue]
    without = [of_rewards(bare, row, setting.values, setting.quantity) for row in rows]
    says = _counted("λ", lam, without, seen, near)
    return None if says is None else ("lambda misplaced", says)


def _powers_of_gamma(
    setting: Setting, rows: Sequence[Row], seen: Sequence[np.ndarray], near: float
) -> tuple[Mistake, str] | None:
    gamma = float(rows[0].gamma[0])
    if not setting.one_gamma or not 0.0 < gamma < 1.0:
        return None
    ones = [replace(row, gamma=np.ones(row.steps)) for row in rows]
    without = [of_rewards(setting.rule, row, setting.values, setting.quantity) for row in ones]
    says = _counted("γ", gamma, without, seen, near)
    return None if says is None else ("discount misplaced", says)


def _counted(
    name: str, number: float, without: Sequence[np.ndarray], seen: Sequence[np.ndarray], near: float
) -> str | None:
    """How often a number counts at each lag, if it is a whole number of times that depends on the lag alone; else None."""
    T = len(seen[0])
    times: list[int] = []
    for lag in range(T):
        base, got = (np.concatenate([np.diagonal(one, lag) for one in of]) for of in (without, seen))
        known = np.abs(base) > 1e-6
        if not known.any():
            times.append(lag)
            continue
        if (got[known] / base[known] <= 0).any():
            return None
        power = np.log(got[known] / base[known]) / np.log(number)
        n = round(float(power[0]))
        error = np.abs(number**n * base[known] - got[known])
        if (error > near * np.maximum(1e-2, np.abs(got[known]))).any() or abs(n) > 3 * T:
            return None
        times.append(n)
    lags = list(range(T))
    if times == lags:
        return None  # as it should be
    if times == [0] * T:
        return f"{name} is left out."
    if times == [2 * lag for lag in lags]:
        return f"{name} counts twice at each step."
    if times == [lag + 1 for lag in lags]:
        return f"{name} counts once too often: it acts on the first δ already."
    if times == [max(0, lag - 1) for lag in lags]:
        return f"{name} counts once too little: it acts from the second later step on."
    return f"{name} counts {', '.join(map(str, times))} times at lags 0, 1, …; it should count as often as the lag."
