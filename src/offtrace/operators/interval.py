"""A number known to lie between two others, printed with the digits that are known and no more."""

from __future__ import annotations

import math
from dataclasses import dataclass

DIGITS = 12  # float64 carries 15 to 17; the last few are rounding


@dataclass(frozen=True)
class Interval:
    """[lower, upper], which contains the truth.

    >>> print(Interval(0.81234561, 0.81234579))
    0.812346
    >>> print(Interval(0.5, 1.5), Interval(1.0, 1.0))
    [0.5, 1.5] 1
    >>> print(Interval(0.0, 3e-14), Interval(0.0, 3e-4), Interval(123456.0, 123460.0))
    0 [0, 0.0003] 1.2346e+05
    >>> 0.7 in Interval(0.5, 1.0), Interval(0.5, 1.0) < 1.01
    (True, True)
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:  # NaN is refused too
            raise ValueError(f"an interval needs lower ≤ upper, got [{self.lower!r}, {self.upper!r}]")
        object.__setattr__(self, "lower", float(self.lower))
        object.__setattr__(self, "upper", float(self.upper))

    @property
    def width(self) -> float:
        """How far apart the ends are."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def midpoint(self) -> float:
        """The middle; infinite where an end is."""
        return 0.5 * self.lower + 0.5 * self.upper

    def __contains__(self, number: float) -> bool:
        return bool(self.lower <= number <= self.upper)

    def __lt__(self, other: Interval | float) -> bool:
        """Whether every number of this interval is below the other."""
        return self.upper < _ends(other)[0]

    def __gt__(self, other: Interval | float) -> bool:
        """Whether every number of this interval is above the other."""
        return self.lower > _ends(other)[1]

    def intersection(self, other: Interval) -> Interval:
        """What both allow; where rounding has pulled them apart, the gap between them. Raises where it cannot be rounding."""
        low, high = max(self.lower, other.lower), min(self.upper, other.upper)
        if low - high > 1e-9 * (1 + abs(low)):
            raise ArithmeticError(f"{self!r} and {other!r} cannot both contain the truth")
        return Interval(min(low, high), max(low, high))

    def __str__(self) -> str:
        if self.lower <= 0 <= self.upper and self.width < 1e-9:
            return "0"  # but for rounding
        if not math.isfinite(self.width):
            return f"[{self.lower:.4g}, {self.upper:.4g}]"
        if self.width < 1e-300:
            return f"{self.midpoint:.{DIGITS}g}"
        decimals = math.floor(-math.log10(self.width))  # the last of which is off by at most one
        leading = math.floor(math.log10(abs(self.midpoint))) if self.midpoint else -decimals
        digits = min(decimals + leading, DIGITS - 1)  # significant ones after the first
        if digits >= 1:
            plain = leading > -5 and digits - leading >= 0
            return f"{self.midpoint:.{digits - leading}f}" if plain else f"{self.midpoint:.{digits}e}"
        unit = 10.0 ** (-decimals - 1)
        low, high = math.floor(self.lower / unit) * unit, math.ceil(self.upper / unit) * unit
        return f"[{low:.{DIGITS}g}, {high:.{DIGITS}g}]"


def _ends(number: Interval | float) -> tuple[float, float]:
    return (number.lower, number.upper) if isinstance(number, Interval) else (float(number), float(number))
