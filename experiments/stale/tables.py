"""The tables and the figure of docs/stale.md, from the files of `run.py`: no number there is written by hand.

cd experiments
python -m stale.tables stale/records/second-*.jsonl.gz      writes docs/stale_table.inc and docs/stale.png
python -m stale.tables --docs /tmp small.jsonl              the same, elsewhere
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from offtrace import figures
from offtrace.policy import gradient_moments, token_rows
from stale.run import LAST, complete_lines, unit_of
from stale.training import KINDS, LOSSES, MINIBATCHES, Candidate

DOCS = Path(__file__).resolve().parents[2] / "docs"
Line = dict[str, Any]
Cell = tuple[str, int]
"""A task and an age."""
TOKENS, DRIFT, EXACT_TASKS, ROWS, AFTER_START = 12, 0.8, 6, 64, 0.05
"""The exact gradients: as in docs/losses.md, with the start of an iteration a twentieth of the way from π to μ."""
DRAWN = ("no correction", "cispo", "ppo", "dppo_tv", "tis", "gspo", "vespo", "ctpo", "prefix, Non-Markov Retrace")
"""Some of each kind: more lines cannot be told apart."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the tables and the figure go")
    args = parser.parse_args()
    heads, lines = read(args.files)
    text = tables(heads, lines)
    (args.docs / "stale_table.inc").write_text(text, encoding="utf-8")
    figure(lines).savefig(args.docs / "stale.png", dpi=110)
    print(text)


def read(files: Iterable[Path]) -> tuple[list[Line], list[Line]]:
    """The first lines of the files, and the runs, each once: of tests, those with the step size that is best in tuning."""
    heads: list[Line] = []
    runs: dict[Any, Line] = {}
    for file in files:
        for line in complete_lines(file):
            if "seed" in line:
                runs[unit_of(line)] = line
            else:
                heads.append(line)
    lines = list(runs.values())
    ends = grouped(lines, "tuning", lambda line: (cell(line), line["loss"], -line["alpha"]))
    best: dict[Any, tuple[float, float]] = {}
    for (at, loss, alpha), of in ends.items():
        mean = float(np.mean([line["end"] for line in of]))
        best[at, loss] = max(best.get((at, loss), (-1.0, 0.0)), (mean, alpha))  # of equals the smaller step size
    return heads, [
        line for line in lines if line["phase"] == "tuning" or line["alpha"] == -best[cell(line), line["loss"]][1]
    ]


def tables(heads: list[Line], lines: list[Line]) -> str:
    """What was run, and the tables."""
    test = grouped(lines, "test", lambda line: (cell(line), line["loss"]))
    tuning = grouped(lines, "tuning", lambda line: (cell(line), line["loss"]))
    cells = sorted({at for at, _ in tuning}, key=lambda at: (at[1], at[0]))
    setting = heads[0]["setting"]
    runs = f"{len(lines):,} runs, of which {sum(map(len, test.values())):,} at a tuned step size"
    updates = MINIBATCHES * setting["iterations"]
    parts = [f"{runs}; rows of {setting['tokens']} tokens, {updates} updates; {heads[0]['machine']}."]
    parts += [f"**Success at the end, at the tuned step size.** {TESTED}", by_cell(cells, test, tested)]
    parts += [f"**Stable step sizes.** {STABLE}", by_cell(cells, tuning, stable)]
    exact_of = exact()
    parts += [f"**Exact gradients against learning.** {PREDICTED}", predictions(cells, test, tuning, exact_of)]
    parts += [f"**The exact gradients.** {EXACT}", exact_table(exact_of)]
    return "\n\n".join(parts) + "\n"


TESTED = (
    "Mean ± 95 % (Student’s) over the test seeds of the share of right answers, in brackets the step size, and how many runs "
    "collapsed where any did. **Bold**: the highest of a column."
)
STABLE = (
    "Of the step sizes tried in tuning, with how many no run collapsed; in brackets, the share of all tuning runs that did not. "
    "A run has collapsed if its last fifth has less than half of the success of its best fifth."
)
PREDICTED = (
    "Spearman’s rank correlation, over the losses, of a number of the exact gradient with what was learned, and its 95 % "
    "interval by the bootstrap over losses. Above 0: the exact table predicts in the right direction."
)
EXACT = (
    f"All rows of {EXACT_TASKS} MDPs of {TOKENS} tokens, logits of μ {DRIFT} standard deviations from π, with the π_prox that "
    f"each loss has in training: ‖E g − ∇J‖ / ‖∇J‖ and, in bold, how well the mean of {ROWS} rows points along ∇J; medians."
)


def cell(line: Line) -> Cell:
    """The task and the age of a run."""
    return line["task"], line["age"]


def grouped(lines: list[Line], phase: str, key: Callable[[Line], Any]) -> dict[Any, list[Line]]:
    """The runs of a phase by a key."""
    found: dict[Any, list[Line]] = defaultdict(list)
    for line in lines:
        if line["phase"] == phase:
            found[key(line)].append(line)
    return found


def title(at: Cell) -> str:
    """A cell in words: data of an age in updates."""
    return f"{at[0]}, {at[1]}–{at[1] + MINIBATCHES - 1} updates old"


def collapsed(line: Line) -> bool:
    """Whether the last fifth of the run has less than half of the success of its best fifth.

    >>> collapsed({"curve": {"success": [0.2, 0.8, 0.8, 0.3, 0.3]}})
    True
    """
    success = np.array(line["curve"]["success"])
    n = max(1, round(LAST * len(success)))
    fifths = np.convolve(success, np.ones(n) / n, "valid")
    return bool(fifths[-1] < 0.5 * fifths.max())


def half(values: np.ndarray) -> float:
    """Half of the 95% interval of a mean, by Student."""
    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5) if n > 1 else np.nan


def tested(runs: list[Line]) -> tuple[float, str]:
    """Success at the end on the test seeds, as a number and in words."""
    ends = np.array([line["end"] for line in runs])
    lost = sum(map(collapsed, runs))
    words = (
        f"{ends.mean():.2f} ± {half(ends):.2f}",
        f" ({runs[0]['alpha']:g}{f', {lost} of {len(runs)}' if lost else ''})",
    )
    return float(ends.mean()), "{0}" + words[0] + "{0}" + words[1]


def stable(runs: list[Line]) -> tuple[float, str]:
    """The share of tuning runs that did not collapse, and in words with how many step sizes none did."""
    by_alpha: dict[float, list[bool]] = defaultdict(list)
    for line in runs:
        by_alpha[line["alpha"]].append(collapsed(line))
    share = 1.0 - float(np.mean([lost for all_ in by_alpha.values() for lost in all_]))
    held = sum(not any(lost) for lost in by_alpha.values())
    return share, f"{{0}}{held} of {len(by_alpha)}{{0}} ({share:.2f})"


def by_cell(cells: list[Cell], runs: dict[Any, list[Line]], told: Callable[[list[Line]], tuple[float, str]]) -> str:
    """Losses down, by kind; cells across."""
    found = {key: told(lines) for key, lines in runs.items()}
    best = {at: max((number for (where, _), (number, _) in found.items() if where == at), default=0.0) for at in cells}
    rows = [["loss", "kind", *map(title, cells)]]
    for name, candidate in LOSSES.items():
        if any((at, name) in found for at in cells):
            row = [found.get((at, name), (-1.0, "–")) for at in cells]
            said = [words.format("**" * (number == best[at])) for at, (number, words) in zip(cells, row, strict=True)]
            rows.append([name, KINDS[candidate.kind], *said])
    return markdown(rows)


def markdown(rows: list[list[str]]) -> str:
    """A table; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def exact() -> dict[str, dict[str, tuple[float, float]]]:
    """For each loss, by which advantages are taken, the bias and the alignment of its exact gradient: medians over MDPs."""
    return {name: {of: _exact(candidate, of) for of in ("Q − V", "returns")} for name, candidate in LOSSES.items()}


def _exact(candidate: Candidate, of: str) -> tuple[float, float]:
    found: list[tuple[float, float]] = []
    for seed in range(EXACT_TASKS):
        rows = token_rows(TOKENS, drift=DRIFT, seed=seed, prox=AFTER_START)
        prox = {"μ": rows.log_mu, "start": rows.log_prox, "π": rows.log_pi}[candidate.prox]
        rows = replace(rows, log_prox=prox)
        advantage = rows.advantages("critic" if of == "Q − V" else "return")
        moments = gradient_moments(rows, candidate.parts, advantage=advantage)
        found.append((moments.bias, moments.alignment(ROWS) if moments.variance > 0 else 0.0))  # 0: without a gradient
    bias, aligned = np.median(found, axis=0)
    return float(bias), float(aligned)


def exact_table(found: dict[str, dict[str, tuple[float, float]]]) -> str:
    """Losses down, advantages across."""
    rows = [["loss", "π_prox", "Q − V", "returns"]]
    for name, by_advantage in found.items():
        cells = [f"{bias:.2f}, **{aligned:.2f}**" for bias, aligned in by_advantage.values()]
        rows.append([name, LOSSES[name].prox, *cells])
    return markdown(rows)


def predictions(
    cells: list[Cell],
    test: dict[Any, list[Line]],
    tuning: dict[Any, list[Line]],
    found: dict[str, dict[str, tuple[float, float]]],
) -> str:
    """The rank correlations of exact numbers with success and with stability, for each age over its tasks."""
    ages = sorted({age for _, age in cells})
    outcomes: dict[str, dict[str, float]] = {}
    for age in ages:
        for what, runs, told in (("success", test, tested), ("stable runs", tuning, stable)):
            own = {
                name: float(np.mean([told(runs[at, name])[0] for at in cells if at[1] == age]))
                for name in LOSSES
                if all((at, name) in runs for at in cells if at[1] == age)
            }
            outcomes[f"{what}, {age}–{age + MINIBATCHES - 1} updates old"] = own
    numbers = {
        "alignment, returns": lambda name: found[name]["returns"][1],
        "alignment, Q − V": lambda name: found[name]["Q − V"][1],
        "− bias, returns": lambda name: -found[name]["returns"][0],
        "− bias, Q − V": lambda name: -found[name]["Q − V"][0],
    }
    rows = [["exact number", *outcomes]]
    for title_, number in numbers.items():
        rows.append([title_, *(_correlation([(number(n), y) for n, y in own.items()]) for own in outcomes.values())])
    return markdown(rows)


def _correlation(pairs: list[tuple[float, float]], resamples: int = 2000) -> str:
    """Spearman's correlation with its interval."""
    if len({x for x, _ in pairs}) < 3 or len({y for _, y in pairs}) < 3:
        return "–"
    both = np.array(pairs)
    rng = np.random.default_rng(0)
    again = [_spearman(both[rng.integers(len(both), size=len(both))]) for _ in range(resamples)]
    low, high = np.nanpercentile(again, (2.5, 97.5))
    return f"{_spearman(both):.2f} [{low:.2f}, {high:.2f}]"


def ranks(values: np.ndarray) -> np.ndarray:
    """The ranks of numbers; equal ones share the mean of theirs.

    >>> ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _spearman(both: np.ndarray) -> float:
    x, y = ranks(both[:, 0]), ranks(both[:, 1])
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) and np.ptp(y) else np.nan


def figure(lines: list[Line]) -> Any:
    """Success at the end over the step size, in tuning: the mean and its 95% interval, a panel for each cell."""
    runs = grouped(lines, "tuning", lambda line: (cell(line), line["loss"], line["alpha"]))
    panels: list[Any] = []
    for at in sorted({key[0] for key in runs}, key=lambda at: (at[1], at[0])):
        bands: list[Any] = []
        for name in DRAWN:
            alphas = sorted(alpha for where, loss, alpha in runs if (where, loss) == (at, name))
            ends = [np.array([line["end"] for line in runs[at, name, alpha]]) for alpha in alphas]
            mean, width = [float(e.mean()) for e in ends], np.nan_to_num([half(e) for e in ends])
            low, high = (np.clip(mean + sign * width, 0.0, 1.0).tolist() for sign in (-1, 1))
            bands.append((name, alphas, mean, low, high))
        panels.append((title(at), bands))
    looks = {name: i for i, name in enumerate(DRAWN)}
    drawn = figures.band_panels(
        panels, xlabel="step size", ylabel="success at the end", looks=looks, x_logarithmic=True
    )
    for axes in drawn.axes:
        axes.set_ylim(-0.02, 1.05 * axes.dataLim.y1)  # most runs with large steps end at 0: they must not set the scale
    return drawn


if __name__ == "__main__":
    main()
