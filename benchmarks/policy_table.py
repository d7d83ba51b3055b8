"""What each weighting of a policy gradient is off by, exactly: its bias and variance on small token MDPs, as rows grow.

    .venv/bin/python benchmarks/policy_table.py            prints the tables, and writes them to docs/policy_table.inc
    .venv/bin/python benchmarks/policy_table.py --figure   also draws docs/policy.png

Nothing is sampled: short rows are listed one by one (`offtrace.policy.token_rows`), long ones are counted together where they
have come to the same context and weight (`long_rows.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from long_rows import forgetting, long_moments, remembering

import offtrace as ot
from offtrace.policy import GradientMoments, TokenRows, gradient_moments, token_rows

DOCS = Path(__file__).resolve().parent.parent / "docs"
SHORT, TASKS, DRIFT, ERROR = (4, 8, 12), 8, 0.8, 1.0
LONG = (8, 32, 128, 512)
FEW, MANY = 64, 1024
RARE = 0.03
UNIT = 2**0.25  # every ratio on long rows is this, or its inverse
POWERS = {1.0: "ρ", 0.5: "ρ^½", 0.25: "ρ^¼", 0.125: "ρ^⅛"}


class Weighting(NamedTuple):
    """How one line of the table weighs rows that are listed."""

    name: str
    weigh: Callable[..., np.ndarray]
    rejection: dict[str, Any] | None = None

    def keep(self, task: TokenRows) -> np.ndarray | None:
        """Which decisions are kept."""
        return None if self.rejection is None else ot.reject(**task.taken, **self.rejection)


def by(trace: ot.Trace, level: str = "prefix", **options: Any) -> Callable[..., np.ndarray]:
    """The weights of a trace."""
    return lambda **taken: ot.weights(trace, **taken, level=level, **options)


def past_and_own(trace: ot.Trace) -> Callable[..., np.ndarray]:
    """The prefix up to the token before, by a trace, times the token's own ratio, whole."""

    def weigh(**taken: Any) -> np.ndarray:
        prefix = ot.weights(trace, **taken, level="prefix")
        before = np.concatenate([np.ones_like(prefix[:, :1]), prefix[:, :-1]], axis=1)
        return before * ot.weights(IS, **taken, level="token")

    return weigh


def bounded(bound: float) -> str:
    """A bound in words."""
    return "" if bound == np.inf else f", ≤ {bound:g}"


IS, PLAIN = ot.ImportanceSampling(), ot.QLambda(lam=1.0)
FLATTENED = [
    (kappa, bound)
    for kappa in (1.0, 0.5, 0.25)
    for bound in (1.0, 2.0, 4.0, np.inf)
    if (kappa, bound)
    not in ((1.0, 1.0), (1.0, np.inf), (0.5, 4.0), (0.25, 4.0))  # the first two have names of their own
]
WEIGHTINGS = [
    Weighting("none", by(PLAIN, "token")),
    Weighting("token", by(IS, "token")),
    Weighting("token, ≤ 2", by(ot.TruncatedIS(bound=2.0), "token")),
    Weighting("sequence", by(IS, "sequence")),
    Weighting("sequence, ≤ 2", by(ot.TruncatedIS(bound=2.0), "sequence")),
    Weighting("geometric", by(IS, "geometric")),
    Weighting("prefix", by(IS)),
    Weighting("prefix, ≤ 2 at read-out", by(ot.TruncatedIS(bound=2.0))),
    Weighting("prefix, Non-Markov Retrace(1)", by(ot.NonMarkovRetrace())),
    Weighting("prefix, RBIS(0.95)", by(ot.RBIS(lam=0.95))),
    *(Weighting(f"prefix of {POWERS[k]}{bounded(c)}", by(ot.FlattenedIS(k, c))) for k, c in FLATTENED),
    *(
        Weighting(f"past {POWERS[k]}{bounded(c)}, own ρ", past_and_own(ot.FlattenedIS(k, c)))
        for k, c in ((1.0, 1.0), (1.0, 2.0), (0.25, 1.0))
    ),
    Weighting("token, 0 outside [½, 2]", by(IS, "token", lower=0.5, upper=2.0, outside="mask")),
    Weighting("none, rejected by sequence", by(PLAIN, "token"), {"by": "sequence mean k3", "upper": 0.1}),
    Weighting("token, rejected by sequence", by(IS, "token"), {"by": "sequence mean k3", "upper": 0.1}),
    Weighting("token, rejected by token", by(IS, "token"), {"by": "token k1", "lower": -0.7, "upper": 0.7}),
]
ADVANTAGES: dict[str, Callable[[TokenRows], np.ndarray]] = {
    "Q^π": lambda task: task.advantages(),
    "a wrong Q": lambda task: task.advantages(error=ERROR),
    "returns": lambda task: task.advantages("return"),
}
LONG_WEIGHTINGS: dict[str, tuple[float | None, float, str]] = {
    "none": (0.0, np.inf, "token"),
    "token": (1.0, np.inf, "token"),
    "sequence, ≤ 2": (1.0, 2.0, "sequence"),
    "geometric": (None, np.inf, "sequence"),
    "prefix": (1.0, np.inf, "prefix"),
    **{
        f"prefix of {POWERS[k]}{bounded(c)}": (k, c, "prefix")
        for k, c in ((1.0, 1.0), (1.0, 2.0), (0.5, 1.0), (0.125, 1.0))
    },
    **{
        f"past {POWERS[k]}{bounded(c)}, own ρ": (k, c, "past")
        for k, c in ((1.0, 1.0), (1.0, 2.0), (0.25, 1.0), (0.125, 1.0))
    },
}
"""κ (None: one over the number of tokens), bound and level."""


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def short_rows(steps: int) -> str:
    """The table of rows of one length that are listed."""
    tasks = [token_rows(steps, drift=DRIFT, seed=seed) for seed in range(TASKS)]
    given = [[make(task) for task in tasks] for make in ADVANTAGES.values()]
    rows: list[list[str]] = []
    for weighting in WEIGHTINGS:
        weights = [weighting.weigh(**task.taken) for task in tasks]
        keeps = [weighting.keep(task) for task in tasks]
        cells = [weighting.name]
        for advantages in given:
            each = zip(tasks, weights, advantages, keeps, strict=True)
            cells += numbers([gradient_moments(t, w, advantage=a, keep=k) for t, w, a, k in each])
        rows.append(cells)
    drift, share = (np.mean([getattr(task, name) for task in tasks]) for name in ("drift", "effective_share"))
    head = [
        f"{steps} tokens",
        *(f"{name}: bias" if i == 0 else w for name in ADVANTAGES for i, w in enumerate(COLUMNS)),
    ]
    told = f"log ∏ρ has a standard deviation of {drift:.2f}, and the effective sample size of ∏ρ is {share:.0%} of the rows."
    return f"{told}\n\n{table(head, rows)}"


COLUMNS = ("bias", "spread", str(FEW), str(MANY))


def numbers(found: list[GradientMoments]) -> list[str]:
    """The cells of one weighting and one kind of advantage: means over tasks."""
    bias, spread = (float(np.mean([getattr(m, name) for m in found])) for name in ("bias", "spread"))
    aligned = [f"{np.mean([m.alignment(rows) for m in found]):.2f}" for rows in (FEW, MANY)]
    return [f"{bias:.2f}", f"{spread:.1f}" if spread < 100 else f"{spread:.0f}", *aligned]


def long_of(name: str, kind: str, steps: int) -> GradientMoments:
    """One weighting on rows of so many tokens, with returns as advantages."""
    kappa, bound, level = LONG_WEIGHTINGS[name]
    automaton = remembering(UNIT, steps) if kind == "remembers" else forgetting(UNIT, rare=RARE)
    return long_moments(automaton, steps, 1 / steps if kappa is None else kappa, bound, level, returns=True)


def long_rows(kind: str, lengths: tuple[int, ...]) -> str:
    """The table of long rows whose contexts remember all, or forget."""
    head = [f"context {kind}", *(f"{steps}: angle" if i == 0 else w for steps in lengths for i, w in enumerate(SEEN))]
    rows: list[list[str]] = []
    for name in LONG_WEIGHTINGS:
        found = [long_of(name, kind, steps) for steps in lengths]
        rows.append([name, *(cell for m in found for cell in cells_of_long(m))])
    return table(head, rows)


SEEN = ("angle", str(FEW), str(MANY))


def cells_of_long(m: GradientMoments) -> list[str]:
    """The angle of the mean, and the alignment of few and of many rows."""
    return [f"{m.angle:.0f}°", f"{m.alignment(FEW):.2f}", f"{m.alignment(MANY):.2f}"]


def page(
    short: tuple[int, ...] = SHORT, forgets: tuple[int, ...] = LONG, remembers: tuple[int, ...] = LONG[:-1]
) -> str:
    """All tables."""
    parts = [HEAD, "### Short rows, all of them listed\n\n" + ABOUT_SHORT, *map(short_rows, short)]
    parts += ["### Long rows, counted together\n\n" + ABOUT_LONG, long_rows("forgets", forgets)]
    return "\n\n".join([*parts, long_rows("remembers", remembers)]) + "\n"


HEAD = f"""Made by `python benchmarks/policy_table.py`. Nothing is sampled.
One row of μ gives g = Σ_t w_t A_t ∇log π(a_t|h_t), and

- bias is ‖E g − ∇J‖ / ‖∇J‖, spread √Var g / ‖∇J‖, for one row;
- the columns {FEW} and {MANY} are E[ḡ]·∇J / (‖∇J‖ √E‖ḡ‖²) for the mean ḡ of so many rows: 1 where a batch points along ∇J,
  0 where it does not at all. A factor before all weights does not change it;
- angle is that between E g and ∇J: what no number of rows mends."""
ABOUT_SHORT = f"""Means over {TASKS} tasks `token_rows(steps, drift={DRIFT})`, whose contexts remember all tokens. Advantages are
those of the critic Q^π; of a wrong one, whose error is as large as the advantages; and returns less their mean. "token" beside
Q^π is Σ_s d_μ(s) Σ_a ∇π(a|s) Q^π(s, a): its bias is that of d_μ against ∇J."""
ABOUT_LONG = f"""Returns as advantages; every ratio is 2^¼ or 2^−¼. In the first table the context is a mode that one token in
{1 / RARE:.0f} sets, in the second it is the score of the whole past (`benchmarks/long_rows.py`). log ∏ρ has a standard deviation
of 0.5, 1, 2 and 4 at 8, 32, 128 and 512 tokens."""


def draw(path: Path) -> None:
    """The figure: how a batch of few rows points along ∇J as rows grow."""
    from offtrace import figures

    shown = ["none", "token", "geometric", "prefix", "prefix of ρ, ≤ 2", "prefix of ρ^½, ≤ 1"]
    shown += ["past ρ, ≤ 2, own ρ", "past ρ^¼, ≤ 1, own ρ"]
    panels: list[tuple[str, dict[str, list[tuple[float, float]]]]] = []
    for kind, lengths in (("forgets", (8, 16, 32, 64, 128, 256, 512)), ("remembers", (8, 16, 32, 64, 128))):
        lines = {n: [(float(np.log2(T)), long_of(n, kind, T).alignment(FEW)) for T in lengths] for n in shown}
        panels.append((f"tokens in a row; the context {kind}", lines))
    figure = figures.line_panels(panels, f"alignment of {FEW} rows with ∇J")
    for axes, (_, lines) in zip(figure.axes, panels, strict=True):
        ticks = [int(x) for x, _ in next(iter(lines.values()))]
        axes.set_xticks(ticks, labels=[str(2**x) for x in ticks])
    figure.savefig(path, bbox_inches="tight")


if __name__ == "__main__":
    made = page()
    print(made)
    (DOCS / "policy_table.inc").write_text(made)
    if "--figure" in sys.argv:
        draw(DOCS / "policy.png")
