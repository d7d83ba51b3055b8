"""The page in a real browser, without a network: drawn, sorted, switched, read by pointer and by keys; wide and narrow."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offtrace.reports.study import study_page as pages
from reports import synthetic

FAR = pl.col("value") - 9_000.0 * (pl.col("trace") == "Importance sampling") * (pl.col("lam") > 0.85)
FAST = [
    pl.col(name) - 90.0 * (pl.col("trace") == "RBIS") * (pl.col("lam") == 1.0)
    for name in ("contraction_lower", "contraction_upper")
]
NEAR = pl.col("value") * 1e-7 + 0.9628
MAKERS = {
    "control": lambda: synthetic.records(seeds=5),
    "map": synthetic.map_records,
    "replay": synthetic.replay_records,
    "deep": synthetic.deep_records,
    "leaving": lambda: ((made := synthetic.records(seeds=5))[0].with_columns(value=FAR), *made[1:]),
    "leaving map": lambda: ((made := synthetic.map_records())[0].with_columns(FAST), *made[1:]),
    "narrow": lambda: ((made := synthetic.records(seeds=5))[0].with_columns(value=NEAR), *made[1:]),
    "failures": lambda: (synthetic.with_failures((made := synthetic.records(seeds=5))[0]), *made[1:]),
}


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def made(name: str) -> Path:
        path = folder / f"{name}.html"
        path.write_text(pages.render(*MAKERS[name]()), encoding="utf-8")
        return path

    return made


@pytest.fixture
def opened(open_file: Any, file: Callable[[str], Path]) -> Callable[..., Any]:
    """`opened(name, width=…, scheme=…)`: a page of `MAKERS`."""
    return lambda name, **how: open_file(file(name), **how)


@pytest.mark.parametrize("name", MAKERS)
def test_every_figure_is_drawn_without_a_complaint(opened: Any, name: str) -> None:
    page = opened(name, scheme="dark")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        is_drawn(page)
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("file:")] == []


FIGURES = """() => [...document.querySelectorAll("[data-figure]")].map((figure) => [
    figure.dataset.figure, [...figure.querySelectorAll(".plot")].map((panel) => {
        const { width, height } = panel.querySelector("svg").getBoundingClientRect();
        return [panel.querySelectorAll("svg .mark, svg .cell").length, width, height];
    }),
])"""


def is_drawn(page: Any) -> None:
    figures = page.evaluate(FIGURES)
    assert len(figures) >= 2
    for name, panels in figures:
        assert panels, name
        for marks, width, height in panels:
            assert marks > 0, name
            assert width > 100, name
            assert height > 50, name
    for path in page.locator("svg path.line").evaluate_all("l => l.map(x => x.getAttribute('d'))"):
        assert re.match(r"M-?[\d.]+ -?[\d.]+", path or "M0 0")
    assert "NaN" not in page.locator("main").inner_html()


LABELS = """(texts) => texts.map((x) => {
    const atTheLeft = x.getAttribute("text-anchor") === "end";
    return [x.getAttribute(atTheLeft ? "x" : "y"), x.textContent];
})"""


def test_numbers_at_an_axis_differ(opened: Any) -> None:
    """Where all values share their first digits."""
    page = opened("narrow")
    for svg in page.locator('[data-figure="sweeps"] svg').all():
        labels = svg.locator("text").evaluate_all(LABELS)
        assert len({tuple(label) for label in labels}) == len(labels) > 8


def test_the_first_figure_is_above_the_fold(opened: Any) -> None:
    page = opened("control")
    box = page.locator('[data-figure="difference"] svg').bounding_box()
    assert box["y"] + box["height"] < 900
    assert box["x"] + box["width"] > 1000  # at the right, beside the words


def test_the_baseline_is_compared_in_the_environment_that_is_chosen(opened: Any) -> None:
    page = opened("control")
    drawing = page.locator('[data-figure="difference"]')
    before = drawing.inner_text()
    page.locator('[data-control="difference"]').select_option("2")
    assert drawing.inner_text() != before
    assert page.said == []


def test_a_line_that_leaves_its_panel_is_marked(opened: Any) -> None:
    """Importance sampling falls far below the others; the triangle stands where it crosses the edge."""
    page = opened("leaving")
    marks = page.locator('[data-figure="sweeps"] .plot').first.locator(".leaves")
    assert {mark.get_attribute("data-method") for mark in marks.all()} == {"Importance sampling"}
    plot = page.locator('[data-figure="sweeps"] svg').first.bounding_box()
    box = marks.first.bounding_box()
    assert plot["y"] < box["y"] < plot["y"] + plot["height"]


def test_a_line_of_a_map_that_leaves_its_panel_is_marked(opened: Any) -> None:
    marks = opened("leaving map").locator('[data-figure="tradeoff"] .leaves')
    assert {mark.get_attribute("data-method") for mark in marks.all()} == {"RBIS"}


MARKS = """(cells) => [...new Set(cells.map((cell) => getComputedStyle(cell, "::before").content))]"""


def test_the_marks_of_the_table_are_shown(opened: Any) -> None:
    """The words above it say what ★ and ≈ mean."""
    page = opened("control")
    for kind, mark in (("best", '"★ "'), ("level", '"≈ "')):
        assert page.locator(f"table.data td.{kind}").evaluate_all(MARKS) == [mark]


@pytest.mark.parametrize("name", MAKERS)
def test_a_phone_needs_no_sideways_scrolling(opened: Any, name: str) -> None:
    page = opened(name, width=320)
    for details in page.locator("details").all():
        details.evaluate("d => { d.open = true }")
    for width in (320, 390, 768):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
    assert page.said == []


def test_tables_sort_by_click_and_by_key(opened: Any) -> None:
    page = opened("control")
    table = page.locator("table.data").first

    def values() -> list[float]:
        return [
            float(v) for v in table.locator("tbody tr td:nth-child(2)").evaluate_all("c => c.map(x => x.dataset.v)")
        ]

    before = values()
    assert len(before) == 8
    head = table.locator("thead th").nth(1)
    head.locator("button").click()
    assert values() == sorted(before)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").press("Enter")
    assert values() == sorted(before, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    names = table.locator("tbody tr th")
    table.locator("thead th").first.locator("button").click()
    assert names.all_inner_texts() == sorted(names.all_inner_texts(), key=str.casefold)
    assert head.get_attribute("aria-sort") is None


def test_missing_values_stay_last(opened: Any) -> None:
    page = opened("failures")
    page.locator("details").first.evaluate("d => { d.open = true }")
    table = page.locator("details table.data").first
    mean = lambda: table.locator("tbody td:nth-child(5)").evaluate_all("c => c.map(x => x.dataset.v)")  # noqa: E731
    for _ in range(2):
        table.locator("thead th").nth(4).locator("button").click()
        empty = [value == "" for value in mean()]
        assert any(empty)
        assert empty == sorted(empty)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(opened: Any, scheme: str) -> None:
    page = opened("control", scheme=scheme)

    def lightness() -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 765

    dark = scheme == "dark"
    assert (lightness() < 0.2) == dark
    line = lambda: page.locator("svg path.line").first.evaluate("l => getComputedStyle(l).stroke")  # noqa: E731
    before = line()
    page.locator("#theme").click()
    assert (lightness() < 0.2) != dark
    assert line() != before
    page.reload()
    assert (lightness() < 0.2) != dark, "the choice is forgotten"
    page.locator("#theme").press("Enter")
    assert (lightness() < 0.2) == dark
    page.emulate_media(media="print")
    assert lightness() > 0.9


READ = {
    "control": ("standing", "learning", "sweeps", "heat"),
    "map": ("tradeoff",),
    "replay": ("ages",),
    "deep": ("aged",),
}


@pytest.mark.parametrize("name", READ)
def test_pointer_and_keys_show_values(opened: Any, name: str) -> None:
    page = opened(name)
    for figure in READ[name]:
        shows_values(page, figure)
    assert page.said == []


def shows_values(page: Any, figure: str) -> None:
    tip = page.locator("#tip")
    assert tip.is_hidden()
    svg = page.locator(f'[data-figure="{figure}"] svg').first
    svg.scroll_into_view_if_needed()
    mark = svg.locator(".mark, .cell").nth(3)
    mark.hover(force=True)
    assert tip.is_visible()
    assert re.search(r"\d", tip.inner_text())
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1440
    page.mouse.move(5, 5)
    assert tip.is_hidden()
    svg.focus()
    page.keyboard.press("ArrowRight")
    first = tip.inner_text()
    assert tip.is_visible()
    page.keyboard.press("ArrowDown" if figure == "standing" else "ArrowRight")
    assert tip.inner_text() != first
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_a_finger_shows_values_until_it_taps_elsewhere(opened: Any) -> None:
    page = opened("control", width=390)
    svg = page.locator('[data-figure="sweeps"] svg').first
    svg.scroll_into_view_if_needed()
    svg.tap()
    page.locator("#tip").wait_for(state="visible")
    assert "RBIS" in page.locator("#tip").inner_text()
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    page.locator("h2").first.tap()
    assert page.locator("#tip").is_hidden()


def test_hover_tells_the_number_of_the_table(opened: Any) -> None:
    page = opened("control")
    svg = page.locator('[data-figure="sweeps"] svg').first
    svg.focus()
    page.keyboard.press("ArrowRight")
    assert "λ 0" in page.locator("#tip").inner_text()
    assert page.locator("#tip tr").count() == 8


def test_the_legend_hides_and_shows_traces(opened: Any) -> None:
    page = opened("control")
    series = page.locator('[data-figure="sweeps"] .plot').first.locator("path.line")
    assert series.count() == 8
    button = page.locator(".legend button", has_text="RBIS")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert series.count() == 7
    button.click(modifiers=["Shift"])
    assert series.count() == 1
    for other in page.locator(".legend button[aria-pressed=true]").all():
        other.click()  # nothing at all is left: still no complaint
    assert "Nothing to show" in page.locator('[data-figure="sweeps"] .plot').first.inner_text()
    page.locator(".legend .all").click()
    assert series.count() == 8
    assert page.said == []


def test_selects_change_what_is_shown(opened: Any) -> None:
    page = opened("control")
    line = page.locator('[data-figure="learning"] path.line').first
    before = line.get_attribute("d")
    page.locator('[data-control="learning"]').select_option("0")
    assert line.get_attribute("d") != before
    cell = page.locator('[data-figure="heat"] .cell').nth(4)
    before = page.locator(".scale").inner_text()
    page.locator('[data-control="heat"]').select_option("2")
    assert page.locator(".scale").inner_text() != before
    assert cell.get_attribute("fill")
    assert page.said == []


def test_lines_are_shown_less_that_of_a_chosen_trace(opened: Any) -> None:
    page = opened("control")
    drawing, choices = page.locator('[data-figure="learning"] .plot').first, page.locator('[data-control="against"]')
    series, first = drawing.locator(".series"), drawing.locator("path.line").first
    before, shape = series.count(), first.get_attribute("d")
    choices.nth(0).select_option("Retrace")
    assert choices.nth(1).input_value() == "Retrace"  # one choice for curves and sweeps
    assert "less Retrace" in drawing.inner_text()
    assert drawing.locator('.series[data-method="Retrace"]').count() == 0
    assert 0 < series.count() < before
    assert drawing.locator(".ref").count() == 1
    choices.nth(1).select_option("")
    assert (series.count(), first.get_attribute("d")) == (before, shape)
    assert page.said == []


def test_learning_is_shown_for_the_age_that_is_chosen(opened: Any) -> None:
    page = opened("deep")
    line = page.locator('[data-figure="learning"] path.line').first
    before = line.get_attribute("d")
    assert page.locator('[data-figure="learning"] .plot').first.locator("path.line").count() == 8
    page.locator('[data-control="age"]').select_option("1000000")
    assert line.get_attribute("d") != before
    assert page.locator('[data-figure="learning"] .plot').first.locator("path.line").count() == 8
    assert page.said == []


def test_figures_fit_when_the_window_changes(opened: Any) -> None:
    page = opened("control")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    page.wait_for_function("document.querySelector('[data-figure=learning] svg').viewBox.baseVal.width <= 390")
    assert page.said == []


def test_on_paper_nothing_runs_off_the_page_and_the_choices_are_told(opened: Any) -> None:
    page = opened("control", width=740, scheme="dark")
    page.emulate_media(media="print")
    page.wait_for_function("document.documentElement.scrollWidth <= 740")
    assert page.locator('[data-control="heat"]').is_visible()
    assert page.locator("#theme").is_hidden()


def test_all_controls_have_names(opened: Any) -> None:
    page = opened("control")
    names = page.locator("button").evaluate_all("b => b.map(x => x.getAttribute('aria-label') || x.textContent.trim())")
    assert all(names)
    assert all(page.locator("svg[role=img]").evaluate_all("s => s.map(x => x.getAttribute('aria-label'))"))
    assert all(page.locator("select").evaluate_all("s => s.map(x => x.closest('label').textContent.trim())"))
    assert page.locator("h1").count() == 1


def test_a_script_that_somebody_put_into_the_page_is_not_run(
    open_file: Any, file: Callable[[str], Path], tmp_path: Path
) -> None:
    """The page's policy names the hash of its own script: that one draws the figures, and no other one runs."""
    changed = tmp_path / "changed.html"
    foreign = "<script>document.title = 'foreign'</script><img src=x onerror=\"document.title = 'foreign'\">"
    changed.write_text(
        file("map").read_text(encoding="utf-8").replace("</main>", f"{foreign}</main>"), encoding="utf-8"
    )
    page = open_file(changed)
    assert page.locator("svg").count() > 0
    assert page.title() != "foreign"
