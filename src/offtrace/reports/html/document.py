"""Texts and numbers → one HTML file that needs nothing else: no network, no fonts, no library. `template/page.js` draws."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any


def whole(
    *, kind: str, title: str, head: str, sections: Sequence[tuple[str, str, str]], data: dict[str, Any], version: str
) -> str:
    """The page: `head`, then sections (id, word for the navigation, HTML); `data` is what the script draws."""
    nav = "".join(f'<a href="#{key}">{escape(word)}</a>' for key, word, _ in sections)
    body = head + "\n".join(f'<section id="{key}">\n{text}\n</section>' for key, _, text in sections)
    body += f"<footer>Made by offtrace {escape(version)}. This page is one file and loads nothing.</footer>"
    return Template(_file("page.html")).substitute(
        title=escape(title),
        kind=escape(kind),
        css=_file("page.css"),
        js=_file("page.js"),
        nav=nav,
        body=body,
        data=_json(_rounded(data)),
    )


def figure(title: str, lead: str, kind: str, size: str = "", controls: str = "") -> str:
    """A heading, what is to be seen, and the place where the script draws it."""
    bar = f'<div class="controls">{controls}</div>' if controls else ""
    return (
        f'<h2>{escape(title)}</h2><p class="lead">{escape(lead)}</p>{bar}'
        f'<figure class="panels {size}" data-figure="{kind}" aria-label="{escape(title)}"></figure>'
    )


def table(heads: Iterable[str], lines: list[list[str]], first: str) -> str:
    """A table that sorts by its headings; as many columns as `first` is long hold text."""
    cells = "".join(
        f'<th scope="col" class="{"t" if i < len(first) else ""}"><button type="button">{escape(head)}</button></th>'
        for i, head in enumerate(heads)
    )
    rows = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    made = f'<table class="data"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{made}</div>'


def cell(text: str, value: Any = None, kind: str = "", *, tag: str = "td", raw: bool = False) -> str:
    """A cell that sorts by `value`; what has none is sorted last."""
    missing = value is None or value != value  # NaN
    sort = "" if missing else escape(str(value), quote=True)
    scope = ' scope="row"' if tag == "th" else ""
    return f'<{tag}{scope} class="{kind}" data-v="{sort}">{text if raw else escape(text)}</{tag}>'


def pairs(values: dict[str, Any]) -> str:
    """Names and values, one under the other; what is None or empty is left out."""
    known = [(name, value) for name, value in values.items() if value not in (None, "")]
    cells = (f"<dt>{escape(str(name))}</dt><dd>{escape(_plain(value))}</dd>" for name, value in known)
    return f"<dl>{''.join(cells)}</dl>"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def bold(text: str) -> str:
    """`**so**` in bold; everything else is text."""
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))


def _rounded(value: Any) -> Any:
    """Five significant digits, and null for what is not finite: JSON knows no NaN."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _file(name: str) -> str:
    return resources.files("offtrace.reports.html").joinpath("template", name).read_text(encoding="utf-8")
