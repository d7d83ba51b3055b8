"""What a page consists of. The templates turn it into one HTML file that needs no network, no fonts and no library.

A page has a head and sections; a section is a list of parts, each of which has a template in `templates/parts`. The
scripts of `templates/scripts`, one after the other, draw the figures from `Page.data`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from offtrace._shared.html_templates import rendered


class Part:
    """A part of a section: text, a table or a figure."""

    @property
    def template(self) -> str:
        """The name of its template, which is that of the class."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Heading(Part):
    """The title of a section that begins with no figure."""

    text: str


@dataclass(frozen=True)
class Paragraph(Part):
    """A few sentences, in which `**so**` is bold; `kind` is "lead" above something, "note" below it."""

    text: str
    kind: str = "lead"


@dataclass(frozen=True)
class Select:
    """A choice next to a figure, which the script finds by `control`."""

    label: str
    control: str
    options: Sequence[tuple[str, str]]
    """(value, text)."""


@dataclass(frozen=True)
class Figure(Part):
    """A heading, what is to be seen, and the place where the script draws it."""

    title: str
    lead: str
    kind: str
    size: str = ""
    controls: Sequence[Select] = ()
    scale: bool = False
    """Whether there is a place for a scale of colours."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table, which sorts by `value`; what has none is sorted last."""

    text: str
    value: object = None
    kind: str = ""
    small: str = ""
    """What follows the text in small letters."""
    strong: bool = False
    head: bool = False
    """Whether the cell is the heading of its row."""

    @property
    def sorts_by(self) -> str:
        """The value as text."""
        return "" if self.value is None or self.value != self.value else str(self.value)  # NaN is no value


AnyCell = Cell | str | tuple[str, object]
"""A cell, a text, or a pair (text, value)."""


@dataclass(frozen=True)
class Table(Part):
    """A table that sorts by its headings; the first `texts` columns hold text, the others numbers.

    A text in the first column heads its row.
    """

    heads: Sequence[str]
    lines: Sequence[Sequence[AnyCell]]
    texts: int = 1

    def cells(self) -> list[list[Cell]]:
        """The lines, with each cell as a `Cell`."""
        return [[self._cell(i, cell) for i, cell in enumerate(line)] for line in self.lines]

    def _cell(self, column: int, cell: AnyCell) -> Cell:
        if isinstance(cell, Cell):
            return cell
        if isinstance(cell, tuple):
            return Cell(*cell)
        return Cell(cell, cell, "t", head=column == 0) if column < self.texts else Cell(cell)


@dataclass(frozen=True)
class Items(Part):
    """A list of notes."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Text(Part):
    """Text as it is: code, a command, a declaration."""

    text: str


@dataclass(frozen=True)
class Folded(Part):
    """A part that is shown when somebody asks for it."""

    summary: str
    part: Part


@dataclass(frozen=True)
class Pairs(Part):
    """Names and values in columns; what is None or empty is left out."""

    columns: Sequence[Mapping[str, object]]
    kind: str = ""

    def shown(self) -> list[list[tuple[str, str]]]:
        """The names and values of each column, as text."""
        return [[(k, _plain(v)) for k, v in column.items() if v not in (None, "")] for column in self.columns]


@dataclass(frozen=True)
class Section:
    """A part of a page that the navigation names."""

    key: str
    word: str
    """The word for the navigation."""
    parts: Sequence[Part]


@dataclass(frozen=True)
class Fact:
    """A number in the head of a page."""

    name: str
    text: str
    small: str = ""


@dataclass(frozen=True)
class Page:
    """A page of sections, as one file."""

    kind: str
    """What it is about, besides the name of offtrace."""
    title: str
    eyebrow: str
    question: str
    answer: Sequence[str]
    facts: Sequence[Fact]
    sections: Sequence[Section]
    data: Mapping[str, object]
    """What the script draws."""
    version: str
    care: str = ""
    """What a reader must know to weigh the answer."""
    warnings: Sequence[str] = field(default=())
    beside: Sequence[Figure] = field(default=())
    """Figures to the right of the answer."""
    legend: bool = False
    """Whether there is a legend, by which lines are hidden and shown in all figures."""

    def html(self) -> str:
        """The text of the file."""
        return rendered("offtrace.reports.html", "page.html", page=self, data=_rounded(self.data))


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _rounded(value: object) -> object:
    """Five significant digits, and null for what is not finite: JSON knows no NaN."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if value - value == 0 else None
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value
