"""Numbers in reasons, rounded so that no bound looks better than it is: upper bounds up, lower bounds down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_DIGITS = 4


def up(value: float) -> str:
    """``value`` to four significant digits, rounded up."""
    return _round(value, ROUND_CEILING)


def down(value: float) -> str:
    """``value`` to four significant digits, rounded down."""
    return _round(value, ROUND_FLOOR)


def exact(value: float) -> str:
    """A declared number in its shortest form that reads back as the same float."""
    text = repr(float(value))
    return text.removesuffix(".0")


def percent(value: float) -> str:
    """A relative deviation as a percentage of two significant digits, rounded up."""
    return f"{_text(Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(100.0 * value)))}%"


def _round(value: float, rounding: str) -> str:
    if not math.isfinite(value):
        return "infinity" if value > 0 else "-infinity"
    return _text(Context(prec=_DIGITS, rounding=rounding).create_decimal(repr(float(value))))


def _text(number: Decimal) -> str:
    if number == 0:
        return "0"
    return f"{number.normalize():f}" if 1e-4 <= abs(number) < 1e7 else f"{float(number):.4g}"
