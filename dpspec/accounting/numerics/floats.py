"""Arrays of double precision numbers, the size of their rounding, and what several formulas need of them.

Beside them, arguments that make no sense are refused by name, before anything is computed.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

#: Arrays of float64.
Floats: TypeAlias = npt.NDArray[np.float64]

#: Arrays of grid positions.
Index: TypeAlias = npt.NDArray[np.int64]

#: The distance from 1.0 to the next double.
EPS: Final = float(np.finfo(np.float64).eps)

#: ln sqrt(2 pi), of the normal density.
LOG_ROOT_TWO_PI: Final = 0.5 * math.log(2.0 * math.pi)


def log_or_minus_infinity(value: float) -> float:
    """ln ``value``; -inf at 0 and below."""
    return math.log(value) if value > 0.0 else -math.inf


def gauss_rule(count: int) -> tuple[Floats, Floats]:
    """Nodes and weights, (``count``,) each, of the Gauss-Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return 0.5 * (nodes + 1.0), 0.5 * weights


#: The two one-sided questions. ``present-first`` compares the output law with the group to the law without it
#: (dp-accounting's REMOVE); ``absent-first`` the other way round (its ADD).
Direction: TypeAlias = Literal["present-first", "absent-first"]

#: A direction, or the worse of the two.
Directions: TypeAlias = Literal["present-first", "absent-first", "both"]

#: Both directions, in the order in which they are computed.
DIRECTIONS: Final[tuple[Direction, Direction]] = ("present-first", "absent-first")

#: Each direction's other one.
OPPOSITE: Final[dict[Direction, Direction]] = {"present-first": "absent-first", "absent-first": "present-first"}


def whole(name: str, value: Any, least: int) -> int:
    """The integer ``value``, which must be at least ``least``. Raises ``ValueError`` naming the argument."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def positive(name: str, value: Any) -> float:
    """The finite number ``value``, which must be above 0. Raises ``ValueError`` naming the argument."""
    number = _number(name, value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def inside(name: str, value: Any, *, one: bool = False) -> float:
    """The number ``value`` in (0, 1), or in (0, 1] with ``one``. Raises ``ValueError`` naming the argument."""
    number = _number(name, value)
    if not (0.0 < number < 1.0 or (one and number == 1.0)):
        raise ValueError(f"{name} must be above 0 and {'at most' if one else 'below'} 1, got {value!r}")
    return number


def finite(name: str, value: Any) -> float:
    """The finite number ``value``. Raises ``ValueError`` naming the argument."""
    number = _number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return number


def directions(value: str) -> tuple[Direction, ...]:
    """The one-sided directions that ``value`` stands for. Raises ``ValueError`` for any other word."""
    if value == "both":
        return DIRECTIONS
    for direction in DIRECTIONS:
        if value == direction:
            return (direction,)
    raise ValueError(f"direction must be one of present-first, absent-first, both, got {value!r}")


def one_direction(value: str) -> Direction:
    """``value`` as a single direction. Raises ``ValueError`` for ``both`` and any other word."""
    for direction in DIRECTIONS:
        if value == direction:
            return direction
    raise ValueError(f"direction must be present-first or absent-first, got {value!r}")


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except TypeError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None
