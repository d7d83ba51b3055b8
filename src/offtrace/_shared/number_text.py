"""Numbers as text, for people: on pages, in tables and in terminals. A minus is −, and what is not known is –."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "–"


def number(x: float | None, half: float | None = None) -> str:
    """Four significant digits; or as many decimals as two digits of the interval's half-width ask for.

    >>> number(0.123456), number(-1273.2, half=19.0), number(1.5e7), number(None)
    ('0.1235', '−1273', '1.50e+07', '–')
    """
    if x is None or not math.isfinite(x):
        return UNKNOWN
    if half is not None and math.isfinite(half) and half > 0:
        decimals = max(0, min(6, 1 - math.floor(math.log10(half))))
        return f"{round(x, decimals) + 0.0:.{decimals}f}".replace("-", "−")
    if x == 0 or 1e-3 <= abs(x) < 1e5:
        decimals = 3 if x == 0 else max(0, 3 - math.floor(math.log10(abs(x))))
        text = f"{x:.{decimals}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")
    return f"{x:.2e}".replace("-", "−")


def interval(low: float | None, high: float | None) -> str:
    """Both ends with the decimals that the width asks for, or nothing where there is no interval.

    >>> interval(0.912, 0.951), interval(0.9, None)
    ('[0.912, 0.951]', '')
    """
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    half = (high - low) / 2
    return f"[{number(low, half or None)}, {number(high, half or None)}]"


def with_interval(x: float, low: float, high: float) -> str:
    """A number and its interval, all with the same decimals.

    >>> with_interval(0.9317, 0.91, 0.95)
    '0.932 [0.910, 0.950]'
    """
    half = (high - low) / 2
    return f"{number(x, half if half > 0 else 0.05)} {interval(low, high)}".strip()


def decimals_on_axis(width: float) -> int:
    """How many decimals all numbers need on an axis of this width, so that a thousandth of it can be told."""
    return min(12, max(0, 3 - math.floor(math.log10(width))))


def fixed(x: float, decimals: int) -> str:
    """A number with so many decimals.

    >>> fixed(-0.5, 3), fixed(-1e-4, 3), fixed(float("inf"), 3), fixed(float("nan"), 3)
    ('−0.500', '0.000', '∞', '–')
    """
    if not math.isfinite(x):
        return UNKNOWN if math.isnan(x) else "∞" if x > 0 else "−∞"
    return (f"{round(x, decimals) + 0.0:.{decimals}f}" if abs(x) < 1e6 else f"{x:.3e}").replace("-", "−")


def fixed_interval(low: float, high: float, decimals: int) -> str:
    """An interval, both ends with so many decimals; nothing where there is none."""
    return "" if math.isnan(low) or math.isnan(high) else f"[{fixed(low, decimals)}, {fixed(high, decimals)}]"


def four_digits(x: float) -> str:
    """Four significant digits in plain ASCII, as terminals and tables of text show them."""
    return UNKNOWN if math.isnan(x) else f"{x:.4g}"


def percent(x: float) -> str:
    """A share.

    >>> percent(0.125), percent(float("nan"))
    ('12.5%', '–')
    """
    return UNKNOWN if math.isnan(x) else f"{100 * x:.3g}%"


def count(x: float) -> str:
    """A whole number.

    >>> count(1234.0)
    '1,234'
    """
    return UNKNOWN if math.isnan(x) else f"{x:,.0f}"


def counted(n: int, what: str) -> str:
    """How many there are of what.

    >>> counted(1, "row"), counted(1234, "row")
    ('1 row', '1,234 rows')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"


def short_count(x: float) -> str:
    """A large number in three digits.

    >>> short_count(5_000_000), short_count(12_345), short_count(17)
    ('5M', '12.3k', '17')
    """
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if x >= size:
            return f"{x / size:.3g}{unit}"
    return f"{x:.0f}"


def duration(seconds: float | None) -> str:
    """A time.

    >>> [duration(s) for s in (0.42, 59.2, 150, 7300, float("inf"), None)]
    ['0.42 s', '59 s', '2 min 30 s', '2 h 1 min', '?', '–']
    """
    if seconds is None:
        return UNKNOWN
    if seconds == math.inf:
        return "?"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock(seconds: float) -> str:
    """A time as clocks show it, which changes its width less often while it runs down.

    >>> clock(59.9), clock(150), clock(7300)
    ('0:59', '2:30', '2:01:40')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
