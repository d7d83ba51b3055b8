"""What one sees while a study runs: a bar, the rate, the time left, the best so far; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from offtrace._shared.number_text import duration
from offtrace._shared.progress_bar import LINES, ProgressBar, in_notebook
from offtrace.studies.plan import Plan, Unit

if TYPE_CHECKING:
    from rich.console import Group

SHOWN = 8
"""Environments whose best is shown."""


class Display:
    """A display that shows nothing: what others build on."""

    def __init__(self, plan: Plan, where: str) -> None:
        self.plan, self.where = plan, where
        self.before, self.total_cost, self.cost = len(plan.done), plan.total_cost, 0.0
        self.left_cost = self.total_cost - sum(plan.job(plan.units[id]).cost for id in plan.done)
        self.started = time.monotonic()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self, unit: Unit, score: float, cost: float) -> None:
        """Take note that one more unit is done."""
        self.cost += cost

    @property
    def rate(self) -> float:
        """How many units are done in a second."""
        return (len(self.plan.done) - self.before) / max(time.monotonic() - self.started, 1e-9)

    @property
    def seconds_left(self) -> float:
        """The time that is left, by the work that is left and not by the number of units."""
        spent = time.monotonic() - self.started
        return spent * max(0.0, self.left_cost - self.cost) / self.cost if self.cost else float("inf")

    def best_there(self, unit: Unit) -> str:
        """The best so far in the environment of a unit, in words that follow others; empty where nothing is best."""
        best = spelt_best(self.plan)
        return f"; best on {unit.environment}: {best[unit.environment]}" if unit.environment in best else ""


def spelt_best(plan: Plan) -> dict[str, str]:
    """The best trace on each environment, in words."""
    several, found = len(plan.study.ages) > 1, {}
    for environment, (unit, score) in plan.best().items():
        numbers = (("λ", unit.lam), ("α", None if several else unit.alpha))
        settings = [unit.parameters, *(f"{n} = {v:g}" for n, v in numbers if v is not None)]
        words = f"{unit.trace} ({', '.join(filter(None, settings))})" if any(settings) else unit.trace
        over = " over all ages" if several else ""
        found[environment] = f"{words}: {plan.study.metric} {score:.5g} in {unit.phase}{over}"
    return found


class Lines(Display):
    """For logs: a line every ten seconds."""

    def __init__(self, plan: Plan, where: str, file: TextIO | None = None) -> None:
        super().__init__(plan, where)
        self.file = file or sys.stderr
        self.last = time.monotonic()
        begun = f", {self.before} done before" if self.before else ""
        self._say(f"{plan.study.name}: {plan.total} units on {where}{begun}")

    def step(self, unit: Unit, score: float, cost: float) -> None:
        """Take note of a unit, and print a line if the last one is old enough."""
        super().step(unit, score, cost)
        if time.monotonic() - self.last >= LINES:
            self.last = time.monotonic()
            self._say(
                f"{len(self.plan.done)}/{self.plan.total} units, {self.rate:.2g}/s, {duration(self.seconds_left)} left"
                + self.best_there(unit)
            )

    def __exit__(self, *_: object) -> None:
        spent = time.monotonic() - self.started
        self._say(f"{len(self.plan.done)}/{self.plan.total} units done, {duration(spent)}")

    def _say(self, line: str) -> None:
        print(line, file=self.file, flush=True)


class Notebook(Display):
    """For notebooks: a bar, and the best so far, changed in place."""

    def __init__(self, plan: Plan, where: str) -> None:
        super().__init__(plan, where)
        self.bar = ProgressBar()
        self._show("starting …")

    def step(self, unit: Unit, score: float, cost: float) -> None:
        """Take note of a unit, and show it."""
        super().step(unit, score, cost)
        self._show(f"{self.rate:.2g}/s, {duration(self.seconds_left)} left{self.best_there(unit)}")

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def _show(self, text: str) -> None:
        done = self.total_cost - self.left_cost + self.cost
        units = f"{len(self.plan.done)}/{self.plan.total} units on {self.where}"
        self.bar.show(done, max(self.total_cost, 1e-9), f"{self.plan.study.name}: {units}, {text}")


class Live(Display):
    """For terminals, by rich."""

    def __init__(self, plan: Plan, where: str) -> None:
        super().__init__(plan, where)
        from rich.console import Console
        from rich.live import Live

        self.live = Live(
            console=Console(stderr=True), refresh_per_second=4, transient=True, get_renderable=self.picture
        )

    def __enter__(self) -> Display:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def picture(self) -> Group:
        """The bar, and a table of the best."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar as Bar
        from rich.table import Table
        from rich.text import Text

        plan, done = self.plan, self.total_cost - self.left_cost + self.cost
        head = Table.grid(padding=(0, 2))
        first = "starting …" if not self.cost else f"{self.rate:.2g}/s, {duration(self.seconds_left)} left"
        head.add_row(
            Text(plan.study.name, style="bold"),
            Bar(total=max(self.total_cost, 1e-9), completed=done, width=30),
            f"{len(plan.done)}/{plan.total} units",
            first,
            Text(self.where, style="dim"),
        )
        best = Table.grid(padding=(0, 2))
        for environment, words in list(spelt_best(plan).items())[:SHOWN]:
            best.add_row(Text(f"  best on {environment}", style="dim"), words)
        return Group(head, best)


def display(plan: Plan, where: str, progress: bool) -> Display:
    """The display that fits: a bar in a terminal or a notebook, lines elsewhere, or nothing."""
    if not progress:
        return Display(plan, where)
    if in_notebook():
        return Notebook(plan, where)
    return Live(plan, where) if sys.stderr.isatty() else Lines(plan, where)
