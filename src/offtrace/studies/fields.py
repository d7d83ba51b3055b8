"""The fields of a declaration: pydantic's types, and its errors in our words.

Every error names the key, what was given and what is allowed.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeGuard, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list

Toml = Mapping[str, Any]
"""A table as TOML has it, not checked yet."""
Table = dict[str, Any]
"""A table of TOML or JSON that is ours: texts, numbers, lists and tables."""
LONGEST = 200
"""Characters of a value that an error shows."""


class DeclarationError(ValueError):
    """A study cannot be what its declaration says."""

    def __init__(self, key: str, given: object, allowed: str) -> None:
        super().__init__(f"{key}: got {shown(given)}; allowed: {allowed[: 10 * LONGEST]}")


class StudyError(RuntimeError):
    """A study cannot continue. What was computed and written stays, and the next run continues from there."""


def shown(given: object) -> str:
    """A value as an error shows it: `repr`, cut if it is long."""
    try:
        text = repr(given)
    except (ValueError, RecursionError):  # Python prints no integer of thousands of digits
        return f"an integer of {given.bit_length()} bits" if isinstance(given, int) else f"a {type(given).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def is_table(given: object) -> TypeGuard[Toml]:
    """Whether it is a table. TOML has no keys but texts, and a dict with others is refused by name later."""
    return isinstance(given, Mapping)


class Declared(BaseModel):
    """A table of a declaration: no other keys than its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def checked(cls, at: str, given: object) -> Self:
        """Make it of a table; `at` is the key of the table, "" for the whole declaration."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise declaration_error(at, error, cls) from None


def declaration_error(at: str, error: ValidationError, model: type[BaseModel] = BaseModel) -> DeclarationError:
    """The errors of pydantic, in our words, one to a line; `model` is that of the table at the key `at`."""
    errors: list[DeclarationError] = []
    for each in error.errors(include_url=False):
        given = None if each["type"] == "missing" else each["input"]
        errors.append(DeclarationError(_key(at, each["loc"]), given, _allowed(each, model)))
    first = errors[0]
    first.args = ("\n".join(str(one) for one in errors),)
    return first


def _key(at: str, location: tuple[int | str, ...]) -> str:
    key = at
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key or "the study"


WORDS = {
    "missing": "a value: this key is needed",
    "int_type": "an integer",
    "int_parsing_size": "an integer below 2^63",
    "less_than": "an integer below 2^63",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text that is not empty",
    "string_too_short": "a text that is not empty",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-', at most 100: it becomes the name of a folder",
    "tuple_type": "a list",
    "list_type": "a list",
}
"""What is allowed, by pydantic's kind of error."""
LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "of at least"),
    "less_than_equal": ("le", "of at most"),
}


def _allowed(error: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in LIMITS:
        name, words = LIMITS[kind]
        limit = context[name]
        return f"{'an integer' if isinstance(limit, int) else 'a number'} {words} {limit:g}"
    if kind == "float_type" and type(error["input"]) is int:
        return "a number that is not beyond all floats"
    if kind == "extra_forbidden":
        known = _keys(model, error["loc"][:-1])
        return f"no such key{did_you_mean(error['loc'][-1], known)}; the keys here are {', '.join(known)}"
    if kind == "model_type":
        return f"a table with the keys {', '.join(_keys(model, error['loc']))}"
    if kind == "literal_error":
        return context["expected"] + did_you_mean(error["input"], re.findall("'(.*?)'", context["expected"]))
    return str(context["error"]) if kind == "value_error" else WORDS.get(kind, error["msg"])


def _keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys of the table at a location within a model."""
    for name in location:
        annotation = model.model_fields[str(name)].annotation
        choices = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next(kind for kind in choices if issubclass(kind, BaseModel))
    return list(model.model_fields)


def _not_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("a list that is not empty")
    return values


def _each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("each value once")
    return values


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""A text with more than spaces in it, without those around it."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""The name of a study."""
Natural = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Count = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
AtLeast0 = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Above0 = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
"""A number in [0, 1]."""
Names = tuple[Text, ...]
NOT_EMPTY = AfterValidator(_not_empty)
SEVERAL = NOT_EMPTY, AfterValidator(_each_once)
Lams = Annotated[tuple[Share, ...], *SEVERAL]
Alphas = Annotated[tuple[Above0, ...], *SEVERAL]
Ages = Annotated[tuple[Natural, ...], *SEVERAL]


def all_printable(key: str, given: object) -> None:
    """Refuse control characters but tabs and line breaks, in all texts of a table or list and in the names of keys.

    A terminal would obey them, and a page not show them.

    >>> all_printable("name", "\\x1b[31mred")
    Traceback (most recent call last):
    offtrace.studies.fields.DeclarationError: name: got '\\x1b[31mred'; allowed: a text without control characters
    """
    if isinstance(given, str):
        if any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in given):
            raise DeclarationError(key or "the study", given, "a text without control characters")
    elif is_table(given):
        for name, value in given.items():
            inner = f"{key}.{name}" if key else str(name)
            all_printable(inner if str(name).isprintable() else key, str(name))
            all_printable(inner, value)
    elif is_list(given):
        for i, value in enumerate(given):
            all_printable(f"{key}[{i}]", value)
    elif isinstance(given, datetime.date | datetime.time):
        raise DeclarationError(key, given, "no date or time: write it as a text")
