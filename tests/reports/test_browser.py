"""The page in a real browser, without a network: drawn, sorted, switched, read by pointer and by keys; wide and narrow."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from offtrace.reports.study import page as pages
from reports import synthetic

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MAKERS = {
    "control": synthetic.records,
    "map": synthetic.map_records,
    "replay": synthetic.replay_records,
    "deep": synthetic.deep_records,
    "failures": lambda: (synthetic.with_failures((made := synthetic.records(seeds=5))[0]), *made[1:]),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. Where it is missing the tests are skipped; not so under `.ci/run`."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    if CHROMIUM is None:
        _missing("there is no Chromium (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def _missing(why: str) -> NoReturn:
    if os.environ.get("OFFTRACE_CI"):
        pytest.fail(f"{why}, and under .ci/run the page must be looked at")
    pytest.skip(why)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, maker in MAKERS.items():
        (folder / f"{name}.html").write_text(pages.render(*maker()), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in MAKERS}


@pytest.fixture
def opened(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    """`opened(name, width=…, scheme=…)`: a page with no network, whose every complaint and request is kept."""
    contexts = []

    def open_page(name: str, width: int = 1440, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, has_touch=width < 500
        )
        contexts.append(context)
        context.set_default_timeout(600_000)  # milliseconds: a busy machine may take its time
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(files[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_figure_is_drawn_without_a_complaint(opened: Any, name: str, scheme: str) -> None:
    page = opened(name, scheme=scheme)
    figures = page.locator("[data-figure]")
    assert figures.count() >= 2
    for figure in figures.all():
        panels = figure.locator(".plot").all()
        assert panels, figure.get_attribute("data-figure")
        for panel in panels:
            drawn = panel.locator("svg .mark, svg .cell")
            assert drawn.count() > 0
            box = panel.locator("svg").bounding_box()
            assert box["width"] > 100
            assert box["height"] > 50
    for path in page.locator("svg path.line").all():
        assert re.match(r"M-?[\d.]+ -?[\d.]+", path.get_attribute("d") or "M0 0")
    assert "NaN" not in page.locator("main").inner_html()
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("file:")] == []


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_needs_no_sideways_scrolling(opened: Any, name: str, width: int) -> None:
    page = opened(name, width=width)
    for details in page.locator("details").all():
        details.evaluate("d => { d.open = true }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
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


READ = [("control", figure) for figure in ("standing", "learning", "sweeps", "heat")]


@pytest.mark.parametrize(("name", "figure"), [*READ, ("map", "tradeoff"), ("replay", "ages"), ("deep", "aged")])
def test_pointer_and_keys_show_values(opened: Any, name: str, figure: str) -> None:
    page = opened(name)
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
    assert page.said == []


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
