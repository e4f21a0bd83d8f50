"""Numbers as text, rounded conservatively: upper bounds up, lower bounds down.

Rounding starts from the shortest decimal that reads back as the float, so that ``float(upper(x)) >= x`` and
``float(lower(x)) <= x`` hold for every float, and a declared 2.1 stays 2.1.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

#: Significant digits of a reported number.
DIGITS = 4

#: Maximum number of significant digits that people write.
_WRITTEN = 8

#: Significant digits that identify a float64.
_ALL_DIGITS = 17

#: Relative difference up to which a sum of declared numbers is equal to a declared one. A program writes each part of a
#: budget as the nearest float64, so that the parts may exceed the budget by a few units of 1.1e-16.
ROUNDING = 1e-15

#: Exponent below which numbers of at least 1e-4 are written without an exponent.
_PLAIN_BELOW = 7


def is_equal(value: float, declared: float) -> bool:
    """Whether two numbers differ by at most the rounding of declared numbers."""
    return value == declared or abs(value - declared) <= ROUNDING * abs(declared)


def upper(value: float, *, digits: int = DIGITS, against: float | None = None) -> str:
    """An upper bound, rounded up, with more digits if rounding would hide its order relative to ``against``.

    It also has more digits if rounding away from ``against`` would more than double the difference.
    """
    return _directed(value, digits, ROUND_CEILING, against)


def lower(value: float, *, digits: int = DIGITS, against: float | None = None) -> str:
    """Like :func:`upper`, rounded down."""
    return _directed(value, digits, ROUND_FLOOR, against)


def nearest(value: float, *, digits: int = DIGITS) -> str:
    return _directed(value, digits, ROUND_HALF_EVEN, None)


def exact(value: float) -> str:
    """A declared number, in the shortest form that reads back as the same float."""
    if not math.isfinite(value):
        return _special(value)
    return _text(Decimal(repr(float(value))))


def given(value: float) -> str:
    """A declared number exactly, or to nearest if it has more digits than people write."""
    text = exact(value)
    return text if sum(map(str.isdigit, text.partition("e")[0].strip("-0."))) <= _WRITTEN else nearest(value)


def percent(fraction: float) -> str:
    """A declared fraction in percent, exactly: 0.07 is ``7%``, not the 7.000000000000001% of binary fractions."""
    return f"{_text(Decimal(repr(float(fraction))) * 100)}%"


def duration(seconds: float) -> str:
    """A time span: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if not math.isfinite(seconds):
        return _special(seconds)
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(count: int) -> str:
    """A number of bytes: ``512 B``, ``1.5 KiB``, ``2.0 GiB``; one decimal."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _directed(value: float, digits: int, rounding: str, against: float | None) -> str:
    value = float(value)
    if not math.isfinite(value):
        return _special(value)
    number = Decimal(repr(value))
    compared = number if against is None else Decimal(repr(float(against)))
    for precision in range(digits, _ALL_DIGITS + 1):
        rounded = Context(prec=precision, rounding=rounding).plus(number)
        is_ordered = rounded.compare(compared) == number.compare(compared)
        if against is None or (is_ordered and abs(rounded - compared) <= 2 * abs(number - compared)):
            return _text(rounded)
    return _text(rounded)


def _special(value: float) -> str:
    if math.isnan(value):
        return "not a number"
    return "infinity" if value > 0 else "-infinity"


def _text(number: Decimal) -> str:
    if number == 0:
        return "0"
    number = number.normalize()
    exponent = number.adjusted()
    if -4 <= exponent < _PLAIN_BELOW:
        return f"{number:f}"
    digits = "".join(map(str, number.as_tuple().digits))
    mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{'-' if number < 0 else ''}{mantissa}e{exponent}"
