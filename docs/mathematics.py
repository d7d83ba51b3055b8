"""Mathematics, typeset: Unicode as these pages and the docstrings write it, β_{k:t} ≤ Σ_i ρ_i^κ, becomes MathML.

Browsers show MathML by themselves, so nothing is fetched and no script runs. A formula keeps one home, the text that `help`
and the registry of rules show too. Blocks are marked ```` ```{math} ````. In prose nothing is marked: `runs` finds formulas
by their Greek letters and their scripts. Code, names in backticks and titles stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from docutils import nodes
from mathml import FUNCTIONS, Token, mathml, parts, tokens
from sphinx import addnodes

# Between these a space ends a formula: "in step 2 β_t is …", "with α 0.003".
APART = {("number", "letter"), ("number", "large"), ("letter", "number"), ("script", "number"), ("close", "number")}


def runs(text: str) -> Iterator[tuple[int, int]]:
    """Where formulas begin and end in a line of prose: as long as can be, with brackets in pairs."""
    run: list[Token] = []
    pieces = tokens(text)
    for i, piece in enumerate(pieces):
        if _belongs(pieces, i, run):
            run.append(piece)
            continue
        yield from _kept(run)
        run = []
    yield from _kept(run)


def _belongs(pieces: list[Token], i: int, run: list[Token]) -> bool:
    piece = pieces[i]
    after = pieces[i + 1] if i + 1 < len(pieces) else None
    match piece.kind:
        case "other" | "name":
            return False
        case "space":
            beside = (run[-1].kind if run else "", after.kind if after else "")
            return "\n" not in piece.text and (beside not in APART or _depth(run) > 0)
        case "word":
            return (
                piece.text in FUNCTIONS or (after is not None and after.kind == "script") or _is_product(pieces, i, run)
            )
        case "comma":
            return _depth(run) > 0
        case "close":
            return _depth(run) > 0
        case "letter":
            return ord(piece.text[0]) > 127 or _beside_mathematics(pieces, i, run)
        case "operator":
            return piece.text != "-" or _tight(pieces, i)
        case _:
            return True


def _depth(run: list[Token]) -> int:
    return sum((piece.kind == "open") - (piece.kind == "close") for piece in run)


def _tight(pieces: list[Token], i: int) -> bool:
    """A hyphen is a minus only between what could be numbers, as in t-1."""
    around = pieces[max(i - 1, 0) : i + 2]
    return len(around) == 3 and around[2].kind == "number" and around[0].kind in ("letter", "close", "script")


def _is_product(pieces: list[Token], i: int, run: list[Token]) -> bool:
    """Two letters between operators or brackets are no word, as in z + mx."""
    before = next((piece for piece in reversed(run) if piece.kind != "space"), None)
    after = next((piece for piece in pieces[i + 1 :] if piece.kind != "space"), None)
    closed = after is not None and after.kind in ("operator", "close")
    return len(pieces[i].text) == 2 and before is not None and before.kind in ("operator", "open") and closed


def _beside_mathematics(pieces: list[Token], i: int, run: list[Token]) -> bool:
    """A Latin letter alone may be a word, as a is: it counts beside an operator, a bracket or a script, and ends a formula."""
    before = next((piece for piece in reversed(pieces[:i]) if piece.kind != "space"), None)
    after = next((piece for piece in pieces[i + 1 :] if piece.kind != "space"), None)
    touching = ("operator", "open", "close", "script", "large")
    if pieces[i + 1 : i + 2] and pieces[i + 1].kind in ("script", "open", "letter"):
        return True
    if any(piece is not None and piece.kind in touching for piece in (before, after)):
        return True
    if (
        pieces[i].text in "CDKMPZ" and after is not None and after.kind == "letter"
    ):  # M Q, a matrix before what it acts on
        return True
    return any(piece.kind != "space" for piece in run) and (after is None or after.kind not in ("word", "name"))


def _kept(run: list[Token]) -> Iterator[tuple[int, int]]:
    """What of a run is a formula: brackets that have no partner end it, and what is only a letter or a number is none."""
    while (opened := _unmatched(run)) is not None:
        yield from _kept(run[:opened])
        run = run[opened + 1 :]
    while run and _is_loose(run, -1):
        run = run[:-1]
    while run and (run[0].kind == "script" or _is_loose(run, 0)):
        run = run[1:]
    if run and _strong(run):
        yield run[0].at, run[-1].at + len(run[-1].text)


def _is_loose(run: list[Token], end: int) -> bool:
    """What may stand in a formula, and neither begins nor ends one."""
    if run[end].text == "|":
        return sum(piece.text == "|" for piece in run) % 2 == 1
    if run[end].text == "*":  # not that of Q*
        return end == 0 or len(run) < 2 or run[-2].kind != "letter"
    return run[end].kind == "space" or run[end].text in ("-", "/", "…", "~")


def _unmatched(run: list[Token]) -> int | None:
    """The first bracket that is never closed."""
    opened: list[int] = []
    for i, piece in enumerate(run):
        if piece.kind == "open":
            opened.append(i)
        elif piece.kind == "close" and opened:
            opened.pop()
    return opened[0] if opened else None


def _strong(run: list[Token]) -> bool:
    """Whether it must be mathematics: something Greek, or a script. (10⁴ is as good as it stands.)"""
    greek = any(piece.kind == "large" or (piece.kind == "letter" and ord(piece.text[0]) > 127) for piece in run)
    norm = sum(piece.text == "‖" for piece in run) > 1
    return (
        greek
        or norm
        or any(
            piece.kind == "script" and (piece.text[0] in "_^" or before.kind == "letter")
            for before, piece in pairwise(run)
        )
    )


# --- Sphinx


NOT_PROSE = (
    nodes.literal,
    nodes.FixedTextElement,
    nodes.title,
    nodes.raw,
    nodes.math,
    nodes.image,
    addnodes.desc_signature,
)


def typeset_prose(app, doctree) -> None:
    """Mark the formulas in the prose of a page."""
    for text in list(doctree.findall(nodes.Text)):
        if _in_prose(text):
            marked = list(_marked(str(text)))
            if len(marked) > 1 or isinstance(marked[0], nodes.math):
                text.parent.replace(text, marked)


def _in_prose(text: nodes.Text) -> bool:
    node = text.parent
    while node is not None:
        if isinstance(node, NOT_PROSE):
            return False
        node = node.parent
    return bool(text.strip())


def _marked(text: str) -> Iterator[nodes.Node]:
    at = 0
    for start, end in runs(text):
        if start > at:
            yield nodes.Text(text[at:start])
        yield nodes.math(text[start:end], text[start:end])
        at = end
    if at < len(text) or at == 0:
        yield nodes.Text(text[at:])


def _inline(translator, node) -> None:
    translator.body.append(" ".join(mathml(part) for part in parts(node.astext())))
    raise nodes.SkipNode


def _block(translator, node) -> None:
    lines = [mathml(line.strip(), display=True) for line in node.astext().splitlines() if line.strip()]
    translator.body.append(f'<div class="formula">{"".join(lines)}</div>\n')
    raise nodes.SkipNode


def setup(app) -> None:
    """Make this how HTML shows mathematics."""
    app.add_html_math_renderer("unicode", (_inline, None), (_block, None))
    app.connect("doctree-read", typeset_prose)
