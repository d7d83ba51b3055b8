"""One browser for all tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium. Where it is missing the tests are skipped; not so under `.ci/run`."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    if CHROMIUM is None:
        _missing("there is no Chromium (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


def _missing(why: str) -> NoReturn:
    if os.environ.get("OFFTRACE_CI"):
        pytest.fail(f"{why}, and under .ci/run the page must be looked at")
    pytest.skip(why)


@pytest.fixture(scope="session")
def tabs(browser: Any) -> Iterator[dict[bool, Any]]:
    """Two tabs with no network, without touch and with it, whose every complaint and request is kept."""
    made = {}
    for touch in (False, True):
        context = browser.new_context(offline=True, has_touch=touch)
        context.set_default_timeout(600_000)  # milliseconds: a busy machine may take its time
        page = made[touch] = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message, page=page: page.said.append(message.text))
        page.on("pageerror", lambda error, page=page: page.said.append(str(error)))
        page.on("request", lambda request, page=page: page.asked.append(request.url))
    yield made
    for page in made.values():
        page.context.close()


@pytest.fixture
def open_file(tabs: dict[bool, Any]) -> Iterator[Open]:
    """`open_file(path, link, width=…, scheme=…)`: a file as one sees it for the first time; a narrow page has touch."""

    def open_page(file: Path, link: str = "", width: int = 1440, scheme: str = "light") -> Any:
        page = tabs[width < 500]
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, media="screen")
        page.said.clear()
        page.asked.clear()
        page.goto(file.as_uri() + link)
        return page

    yield open_page
    for page in tabs.values():
        if page.url.startswith("file:"):
            page.mouse.move(0, 0)
            page.evaluate("localStorage.clear()")


@pytest.fixture(scope="session")
def explorer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The explorer, written once."""
    from offtrace.reports import write_explorer

    return write_explorer(tmp_path_factory.mktemp("explorer") / "explorer.html")


@pytest.fixture
def opened_explorer(open_file: Open, explorer_file: Path) -> Iterator[Open]:
    """`opened_explorer(link, width=…, scheme=…)`: the explorer at a link, when its tables are whole."""
    from reports.explorer_page import settled

    opened: set[Any] = set()

    def open_explorer(link: str = "", **how: Any) -> Any:
        for page in opened:
            page.goto("about:blank")  # from one link to another the page would stay as it is
        page = open_file(explorer_file, link, **how)
        opened.add(page)
        settled(page)
        return page

    yield open_explorer
    for page in opened:
        page.mouse.move(0, 0)
        page.evaluate("localStorage.clear()")
        page.goto("about:blank")  # else it goes on computing its curves


@pytest.fixture(scope="session")
def explorer_engine(browser: Any, explorer_file: Path) -> Any:
    """The explorer in a tab that nobody operates, for the functions of its engine."""
    from reports.explorer_page import settled

    page = browser.new_context(offline=True).new_page()
    page.goto(explorer_file.as_uri() + "#rules=OneStep&mdp=one")
    settled(page, "settled")
    return page
