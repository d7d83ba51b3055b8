"""A formula in Unicode, β_{k:t} ≤ Σ_i ρ_i^κ, as MathML, which browsers show by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import NamedTuple

FUNCTIONS = {"min", "max", "log", "ln", "exp", "sup", "Var"}
WORDS_AS_SCRIPTS = "ret|old|max|min|new|prox"
LETTER = r"[A-Za-zα-ωΑ-Ωϕℓ∇][\u0300-\u036f]*(?:['’′]+(?!s\b))?"
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ᵀᵗⁱⁿ", "0123456789−+Ttin", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₋₊", "0123456789−+", strict=True))
RELATIONS = "=≤≥<>≠←→≈∈↦"
OPERATORS = RELATIONS + "+−-·*/|‖…∖∘±√⌈⌉×~"
TOKEN = re.compile(
    rf"""(?P<space>[ \n]+)
    | (?P<name>[A-Za-z]+(?:_[A-Za-z]+)*_(?!(?:{WORDS_AS_SCRIPTS})\b)[A-Za-z]{{2,}})   # log_pi: a name in code
    | (?P<number>{NUMBER}|[½¼¾⅓⅔∞])
    | (?P<script>[_^](?: \{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}} | \([^()]*\) | [-−±]?{NUMBER} | (?:{WORDS_AS_SCRIPTS})(?![A-Za-z])
                       | {LETTER} | [¼½¾⅓⅔∞*])
        | [{"".join(RAISED)}]+ | [{"".join(LOWERED)}]+)
    | (?P<large>[Σ∏])
    | (?P<word>(?!MQ|TQ)[A-Za-z]{{2,}})
    | (?P<letter>{LETTER})
    | (?P<open>[(\[{{])
    | (?P<close>[)\]}}]₊?)
    | (?P<comma>,)
    | (?P<operator>···|\+=|[{re.escape(OPERATORS)}])
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A piece of a text: its kind, the text, and where it begins."""

    kind: str
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """The whole text, in pieces."""
    return [Token(str(found.lastgroup), found[0], found.start()) for found in TOKEN.finditer(text)]


def mathml(text: str, display: bool = False) -> str:
    """One formula as an element `math`."""
    shown = ' display="block"' if display else ""
    return f"<math{shown}>{row(text, display)}</math>"


def row(text: str, display: bool = False) -> str:
    """What stands inside of `math`."""
    made: list[str] = []
    pieces = tokens(text)
    i = 0
    while i < len(pieces):
        if pieces[i].kind == "space":
            made.append(_gap(pieces, i))
            i += 1
            continue
        base, lower, upper = pieces[i], "", ""
        i += 1
        star = i < len(pieces) and base.kind == "letter" and pieces[i].text == "*"  # Q*
        if star:
            upper, i = "<mo>*</mo>", i + 1
        while i < len(pieces) and pieces[i].kind == "script":
            sort, inside = _script(pieces[i].text)
            lower, upper = (lower + inside, upper) if sort == "_" else (lower, upper + inside)
            i += 1
        made.append(_scripted(base, lower, upper, display))
    return "".join(made)


def _script(text: str) -> tuple[str, str]:
    """Where it stands, _ or ^, and what it is."""
    if text[0] in RAISED or text[0] in LOWERED:
        plain = "".join({**RAISED, **LOWERED}[c] for c in text)
        return ("^" if text[0] in RAISED else "_"), row(plain)
    inside = text[1:]
    if inside[0] in "{(":
        inside = inside[1:-1]
    return text[0], row(inside)


def _scripted(base: Token, lower: str, upper: str, display: bool) -> str:
    below = base.kind == "large" or base.text in FUNCTIONS
    made = _atom(base, display)
    lower, upper = (f"<mrow>{inside}</mrow>" if inside else "" for inside in (lower, upper))
    name = ("munder", "mover", "munderover") if below and display else ("msub", "msup", "msubsup")
    if lower and upper:
        return f"<{name[2]}>{made}{lower}{upper}</{name[2]}>"
    if lower or upper:
        kind = name[0] if lower else name[1]
        return f"<{kind}>{made}{lower or upper}</{kind}>"
    return made


def _atom(token: Token, display: bool) -> str:
    text = escape(token.text.replace("'", "′").replace("’", "′"))
    match token.kind:
        case "letter":
            return _letter(text)
        case "number":
            return f"<mn>{text}</mn>"
        case "large":
            return f"<mo>{'∑' if text == 'Σ' else text}</mo>"
        case "open" | "close":
            made = f'<mo stretchy="false">{text.rstrip("₊")}</mo>'
            return f"<msub>{made}<mo>+</mo></msub>" if "₊" in text else made
        case "word":  # `min` is followed by its argument; mx is a product, unless it is text of a block
            if len(text) == 2 and not display:
                return "".join(f"<mi>{letter}</mi>" for letter in text)
            return f"<mi>{text}</mi>" if token.text in FUNCTIONS else f"<mtext>{text}</mtext>"
        case "operator":
            text = {"-": "−", "···": "⋯"}.get(token.text, text)
            if token.at == 0 and len(text) == 1 and text in RELATIONS + "+":  # a line was broken before it
                return f'<mo form="infix">{text}</mo>'
            return f'<mo stretchy="false">{text}</mo>' if text in "|‖" else f"<mo>{text}</mo>"
        case "comma":
            return "<mo>,</mo>"
        case _:
            return f"<mtext>{text}</mtext>"


ACCENTS = {"\u0304": "¯", "\u0302": "^", "\u0303": "~"}


def _letter(text: str) -> str:
    """A letter with what stands over it and its primes, each an element of its own: browsers slant only single letters."""
    name, over = text.rstrip("′"), ""
    if name[-1] in ACCENTS:
        name, over = name[:-1], ACCENTS[name[-1]]
    made = f"<mi>{name}</mi>"
    if over:
        made = f'<mover accent="true">{made}<mo stretchy="false">{over}</mo></mover>'
    primes = "".join("<mo>′</mo>" for c in text if c == "′")
    return f"<msup>{made}<mrow>{primes}</mrow></msup>" if primes else made


def _gap(pieces: list[Token], i: int) -> str:
    """Room where a space stands between two things that are no operators: wide where it is wide in the text."""
    if i == 0 or i + 1 == len(pieces):
        return ""
    if len(pieces[i].text) > 2:
        return '<mspace width="2em"/>'
    before, after = pieces[i - 1], pieces[i + 1]
    if {before.kind, after.kind} & {"operator", "comma", "open", "close", "large"} and "word" not in (
        before.kind,
        after.kind,
    ):
        return '<mspace width="0.17em"/>' if (before.kind, after.kind) == ("close", "open") else ""
    spoken = any(piece.kind in ("word", "other", "name") and piece.text not in FUNCTIONS for piece in (before, after))
    return f'<mspace width="{"0.3em" if spoken else "0.17em"}"/>'


def parts(text: str) -> Iterator[str]:
    """A formula in pieces between which a line may break, since browsers do not break inside of `math`: before relations, and in
    long pieces before + and −."""
    start, depth = 0, 0
    for before, piece in pairwise(tokens(text) if len(text) > 24 else []):
        depth += (piece.kind == "open") - (piece.kind == "close")
        breaks = piece.text in RELATIONS or (piece.text in "+−" and piece.at - start > 20)
        if depth == 0 and piece.kind == "operator" and breaks and before.kind == "space" and before.at > start:
            yield text[start : before.at]
            start = piece.at
    yield text[start:]
