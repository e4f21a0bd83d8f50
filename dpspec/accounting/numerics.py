"""Rounding, argument checks, certified intervals, root finding and boundaries of expensive conditions.

``crossing`` finds the zero of a monotone function by secant steps through the ends of a bracket, where an end that
stays loses weight (Anderson and Bjorck 1973), and halves the bracket if three steps together did not.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any, Final, Literal, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

#: Arrays of float64.
Floats: TypeAlias = npt.NDArray[np.float64]

#: Arrays of grid positions.
Index: TypeAlias = npt.NDArray[np.int64]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ContradictionError(ArithmeticError):
    """Two bounds exclude each other, or a measure lost mass: a bug in the accountant, which gives no answer then."""


def strict(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """NumPy raises at an overflow, a division by zero or a NaN in ``function``, unless a line in it says otherwise."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        # e^-x is 0 for a large x: ``require_total`` verifies that measures lose no mass
        with np.errstate(all="raise", under="ignore"):
            return function(*args, **kwargs)

    return call


#: The distance from 1.0 to the next double.
EPS: Final = float(np.finfo(np.float64).eps)

#: Tolerance of the sum of given probabilities, which are then divided by it.
SUM_TOLERANCE: Final = 1e-9

#: ln sqrt(2 pi), of the normal density.
LOG_ROOT_TWO_PI: Final = 0.5 * math.log(2.0 * math.pi)

#: ``present-first`` compares the output distribution with the group to the one without it (dp-accounting's REMOVE),
#: ``absent-first`` the other way round (its ADD).
Direction: TypeAlias = Literal["present-first", "absent-first"]

#: A direction, or the worse of the two.
Directions: TypeAlias = Literal["present-first", "absent-first", "both"]

#: The names of specs: with the group against without it is ``remove``.
_OF_SPECS: Final[dict[str, Direction]] = {"remove": "present-first", "add": "absent-first"}

#: A direction as an argument: by the name of specs, or as pairs call it.
AnyDirection: TypeAlias = Literal["remove", "add", "both", "present-first", "absent-first"]

#: Both directions, in the order of computation.
DIRECTIONS: Final[tuple[Direction, Direction]] = ("present-first", "absent-first")

#: The other direction of each.
OPPOSITE: Final[dict[Direction, Direction]] = {"present-first": "absent-first", "absent-first": "present-first"}


def log_or_minus_infinity(value: float) -> float:
    """ln ``value``; -inf at 0 and below."""
    return math.log(value) if value > 0.0 else -math.inf


def log_difference(first: float, second: float) -> float:
    """ln(e^``first`` - e^``second``), rounded down; -inf if that may not be positive.

    Both may be off by two units in the last place, which may be most of a small difference.
    """
    if second == -math.inf:
        return first - 1e-13
    gap = first - second - 4.0 * EPS * (abs(first) + abs(second))
    return first + math.log(-math.expm1(-gap)) - 1e-13 if gap > 1e-13 else -math.inf


def gauss_rule(count: int) -> tuple[Floats, Floats]:
    """Nodes and weights of the Gauss-Legendre rule on [0, 1], (``count``,) each."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return 0.5 * (nodes + 1.0), 0.5 * weights


#: The largest count: its powers with effects are doubles.
_MOST = 10**18


def whole(name: str, value: Any, least: int) -> int:
    """The integer ``value``, at least ``least`` and at most 10^18. Raises ``ValueError`` that names the argument."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > _MOST:
        raise ValueError(f"{name} must be at most {_MOST:g}")
    return number


def positive(name: str, value: Any) -> float:
    """The finite number ``value`` above 0. Raises ``ValueError`` that names the argument."""
    number = _number(name, value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def inside(name: str, value: Any, *, one: bool = False) -> float:
    """The number ``value`` in (0, 1), or in (0, 1] with ``one``. Raises ``ValueError`` that names the argument."""
    number = _number(name, value)
    if not (0.0 < number < 1.0 or (one and number == 1.0)):
        raise ValueError(f"{name} must be above 0 and {'at most' if one else 'below'} 1, got {value!r}")
    return number


#: An effect, such as a sensitivity over sigma, is 0 or between these: its powers are doubles.
SMALLEST_EFFECT, LARGEST_EFFECT = 1e-100, 1e100


def bounded_effect(name: str, numerator: float, denominator: float = 1.0) -> float:
    """The quotient of two numbers, 0 or from 1e-100 to 1e100. Raises ``ValueError`` that names the argument."""
    quotient = numerator / denominator if denominator > 0.0 else math.inf
    if numerator != 0.0 and not SMALLEST_EFFECT <= quotient <= LARGEST_EFFECT:
        raise ValueError(f"{name} must leave an effect from 1e-100 to 1e100, got {quotient:g}")
    return quotient


def log_ratio(name: str, value: Any) -> float:
    """The number ``value`` from -1e100 to 1e100. Raises ``ValueError`` that names the argument."""
    number = finite(name, value)
    if abs(number) > LARGEST_EFFECT:
        raise ValueError(f"{name} must be from -1e100 to 1e100, got {value!r}")
    return number


def finite(name: str, value: Any) -> float:
    """The finite number ``value``. Raises ``ValueError`` that names the argument."""
    number = _number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return number


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        return float(value)
    except TypeError:
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def accountant_direction(value: str) -> Directions:
    """``value``, such as ``remove``, as pairs call it. Raises ``ValueError`` for any other string."""
    value = _OF_SPECS.get(value, value)
    if value == "both":
        return "both"
    if value not in DIRECTIONS:
        raise ValueError(f"direction must be one of remove, add, both, got {value!r}")
    return value


def directions(value: str) -> tuple[Direction, ...]:
    """The one-sided directions of ``value``, two for ``both``. Raises ``ValueError`` for any other string."""
    side = accountant_direction(value)
    return DIRECTIONS if side == "both" else (side,)


def one_direction(value: str) -> Direction:
    """``value`` as a single direction. Raises ``ValueError`` for ``both`` and any other string."""
    value = _OF_SPECS.get(value, value)
    if value not in DIRECTIONS:
        raise ValueError(f"direction must be remove or add, got {value!r}")
    return value


@dataclass(frozen=True)
class Interval:
    """The closed interval [lower, upper], which contains the exact value. ``upper`` may be infinite.

    It unpacks, prints its ends rounded outward, and fills two columns of a numpy array:

    >>> epsilon = Interval(2.61170746, 2.61177825)
    >>> lower, upper = epsilon
    >>> f"{epsilon:.3f}", f"{epsilon:.6f}"
    ('2.611 to 2.612', '2.611707 to 2.611779')
    >>> np.asarray([epsilon, epsilon]).shape
    (2, 2)

    ``float`` is the upper end, only if the ends agree within one unit of the fourth digit, which reports print:

    >>> float(epsilon)
    2.61177825

    Attributes:
        lower: the lower end.
        upper: the upper end.
        method: the computation behind the upper end. Comparisons ignore it.
        lower_method: the computation behind the lower end. Comparisons ignore it.

    Raises:
        ValueError: an end is not a number, or ``lower`` exceeds ``upper``.
    """

    lower: float
    upper: float
    method: str = field(default="", compare=False)
    lower_method: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if math.isnan(self.lower) or math.isnan(self.upper):
            raise ValueError(f"an interval needs numbers, got [{self.lower}, {self.upper}]")
        if self.lower > self.upper:
            raise ValueError(f"lower must not exceed upper, got [{self.lower}, {self.upper}]")

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.upper))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array([self.lower, self.upper], dtype=dtype)

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        low, high = (_rounded(end, spec, rounding) for end, rounding in zip(self, _OUTWARD, strict=True))
        return low if low == high else f"{low} to {high}"

    def __float__(self) -> float:
        """The upper end. Raises ``ValueError`` if the ends differ in the fourth digit."""
        if self.upper in (self.lower, 0.0) or not math.isfinite(self.upper):
            narrow = self.lower == self.upper
        else:
            narrow = self.width <= 10.0 ** (math.floor(math.log10(abs(self.upper))) - _PRINTED + 1)
        if not narrow:
            raise ValueError(f"{self:.4g} is too wide for one number: use its lower or upper end")
        return self.upper

    @property
    def width(self) -> float:
        """``upper - lower``; 0 if both ends are infinite."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def relative_width(self) -> float:
        """``width / upper``; 0 for a single point, infinite if only ``upper`` is."""
        if self.lower == self.upper:
            return 0.0
        return self.width / abs(self.upper) if math.isfinite(self.upper) and self.upper != 0.0 else math.inf

    def worse(self, other: Interval) -> Interval:
        """The interval of ``max(a, b)`` for a in this interval and b in ``other``."""
        low = self if self.lower >= other.lower else other
        high = self if self.upper >= other.upper else other
        return Interval(low.lower, high.upper, high.method, low.lower_method)

    def intersect(self, other: Interval) -> Interval:
        """The interval of a value that both contain. Raises ``ValueError`` if they are disjoint."""
        low = self if self.lower >= other.lower else other
        high = self if self.upper <= other.upper else other
        return Interval(low.lower, high.upper, high.method, low.lower_method)

    def within(self, other: Interval) -> Interval:
        """``intersect`` for two bounds of one value up to a relative 1e-9, whose rounding may separate narrow ones."""
        if max(self.lower, other.lower) > min(self.upper, other.upper):
            low, high = (self, other) if self.upper < other.lower else (other, self)
            if low.upper * (1.0 + 1e-9) < high.lower:
                raise ContradictionError(f"two bounds exclude each other: {self} and {other}")
            return Interval(low.upper, high.lower, high.lower_method, low.method)
        return self.intersect(other)

    def mirrored(self) -> Interval:
        """The interval of ``1 - a`` for a probability a in this one, rounded outward if the difference is not exact."""
        lower, upper = 1.0 - self.upper, 1.0 - self.lower
        lower = lower if 1.0 - lower == self.upper else max(0.0, math.nextafter(lower, -math.inf))
        upper = upper if 1.0 - upper == self.lower else min(1.0, math.nextafter(upper, math.inf))
        return Interval(lower, upper, self.lower_method, self.method)

    def by(self, method: str) -> Interval:
        """The same interval with ``method`` for both ends."""
        return replace(self, method=method, lower_method=method)


#: Significant digits of a bound in reports, and the rounding of the two ends of an interval.
_PRINTED, _OUTWARD = 4, (ROUND_FLOOR, ROUND_CEILING)

#: A format of one number: fill, sign and width, then precision and type.
_FORMAT = re.compile(r"(?P<rest>.*?)(?:\.(?P<precision>\d+))?(?P<type>[eEfFgG%])")


def _rounded(value: float, spec: str, rounding: str) -> str:
    """``value`` in a format of Python, rounded in one direction. Raises ``ValueError`` for other formats."""
    parsed = _FORMAT.fullmatch(spec)
    if parsed is None:
        raise ValueError(f"the format of an interval ends with one of e, f, g and %, such as .3f, got {spec!r}")
    number, digits = Decimal(repr(float(value))), int(parsed["precision"] or 6)
    if number.is_finite():
        if parsed["type"] in "fF%":
            digits += 2 if parsed["type"] == "%" else 0
            with localcontext(prec=400):
                number = number.quantize(Decimal(1).scaleb(-digits), rounding=rounding)
        else:
            digits = digits + 1 if parsed["type"] in "eE" else max(1, digits)
            number = Context(prec=digits, rounding=rounding).create_decimal(number)
            return format(float(number), spec)
    return format(number, spec)


def round_up(value: float, digits: int) -> float:
    """The smallest float with ``digits`` significant digits that is at least ``value``.

    >>> round_up(2.95512, 4), round_up(2.955, 4)
    (2.956, 2.955)
    """
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def round_down(value: float, digits: int) -> float:
    """The largest float with ``digits`` significant digits that is at most ``value``."""
    return float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(float(value))))


#: Halvings that exhaust any bracket of doubles.
_ALL = 2200


def bisect(
    holds: Callable[[float], bool],
    true: float,
    false: float,
    *,
    halvings: int | None = None,
    within: float = 0.0,
    relative: float = 0.0,
) -> tuple[float, float]:
    """Halve the bracket between ``true`` and ``false``, in either order; returns both ends, ``true`` first.

    Args:
        holds: the condition, which holds at ``true`` and fails at ``false``.
        true: one end.
        false: the other end.
        halvings: their exact number; by default until no double is between the ends.
        within: a distance of the ends at which to stop before.
        relative: the same, relative to the larger end.
    """
    for _ in range(_ALL if halvings is None else halvings):
        middle = 0.5 * (true + false)
        if (halvings is None and middle in (true, false)) or (
            abs(true - false) <= max(within, relative * max(abs(true), abs(false))) > 0.0
        ):
            break
        true, false = (middle, false) if holds(middle) else (true, middle)
    return true, false


#: A secant step keeps this distance from the ends, in units in the last place of the larger end.
_CLOSE = 16.0

#: The share of a bracket after 60 halvings.
_SMALLEST = 2.0**-60

#: Secant steps that may fail to halve the bracket together before the next step halves it.
_PATIENCE = 3


def crossing(
    margin: Callable[[float], float], true: float, false: float, *, within: float = 0.0
) -> tuple[float, float]:
    """Narrow the bracket between ``true`` and ``false`` around the zero of ``margin``.

    Args:
        margin: 0 or more at ``true``, negative at ``false`` and monotone between, up to rounding; may be infinite.
        true: an end, on either side of ``false``.
        false: the other end.
        within: the width at which to stop; at least the width after 60 halvings, and one double.

    Returns:
        Both ends, ``true`` first; unchanged if the signs at the ends are not as described.
    """
    at_true, at_false = margin(true), margin(false)
    if at_true < 0.0 or at_false >= 0.0:
        return true, false
    width, left = abs(true - false), _PATIENCE
    within = max(within, width * _SMALLEST)
    weight_true = weight_false = 1.0
    while True:
        middle = x = 0.5 * (true + false)
        if middle in (true, false) or abs(true - false) <= within:
            return true, false
        close = max(_CLOSE * EPS * max(abs(true), abs(false)), 0.25 * within)
        total = at_true * weight_true - at_false * weight_false
        if left > 0 and abs(true - false) > 4.0 * close and 0.0 < total < math.inf:
            low, high = min(true, false), max(true, false)
            secant = true + (false - true) * (at_true * weight_true / total)
            # at a distance from the ends, to step over a root next to one
            secant = min(max(secant, low + close), high - close)
            x = secant if low < secant < high else middle
        value = margin(x)
        moved = at_true if value >= 0.0 else at_false
        # The end that stays counts for less, the less this step gained.
        weight = 1.0 - value / moved if 0.0 < abs(moved) < math.inf else 1.0
        weight = weight if weight > 0.0 else 0.5
        if value >= 0.0:
            weight_false *= weight
            true, at_true, weight_true = x, value, 1.0
        else:
            weight_true *= weight
            false, at_false, weight_false = x, value, 1.0
        left -= 1
        if abs(true - false) <= 0.5 * width or x == middle:
            width, left = abs(true - false), _PATIENCE


#: Values that ``smallest`` computes at once.
_NODES = 9


def smallest(function: Callable[[Floats], Floats], low: float, high: float, *, within: float) -> float:
    """The smallest computed value between ``low`` and ``high`` of a function that falls and then rises.

    Nine values at once narrow the bracket to a fifth. The golden section computes half as many values one by one, which
    takes three times longer if a value takes less than a call.

    Args:
        function: of arguments (n,), same shape.
        low: the left end.
        high: the right end.
        within: the width of the bracket at which to stop.
    """
    best = math.inf
    while high - low > within:
        nodes = np.linspace(low, high, _NODES + 2)
        values = function(nodes[1:-1])
        index = int(np.argmin(values))
        best = min(best, float(values[index]))
        low, high = float(nodes[index]), float(nodes[index + 2])
    return best


def bisect_by_margin(
    margin: Callable[[float], float], true: float, false: float, *, relative: float
) -> tuple[float, float]:
    """The ends that ``bisect`` reaches, to the last bit, at a relative distance of at most ``relative``.

    ``crossing`` runs first, so that only midpoints between its ends are evaluated in addition; see it for ``margin``.
    """
    true_end, false_end = crossing(margin, true, false, within=0.25 * relative * max(abs(true), abs(false)))

    def holds(x: float) -> bool:
        if min(true, true_end) <= x <= max(true, true_end):
            return True
        return not min(false_end, false) <= x <= max(false_end, false) and margin(x) >= 0.0

    return bisect(holds, true, false, relative=relative)


#: The smallest positive real value that is tried.
LEAST_TRIED: Final = 1e-30


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """Neighboring values at which the condition holds and fails.

    Attributes:
        value: the condition holds here.
        fails_at: it fails here; None if it holds at the limit of the range.
        evaluations: the number of values tried.
        contradictions: tried values at which a monotone condition would differ: it fails on the side of ``value``, or
            holds on the side of ``fails_at``.
    """

    value: float
    fails_at: float | None
    evaluations: int
    contradictions: tuple[float, ...] = ()


class NeverHoldsError(ValueError):
    """The condition fails at every value tried up to the limit.

    Attributes:
        limit: the end of the range at which the condition is most likely to hold.
        evaluations: the number of values tried.
        contradictions: values in the other direction at which it holds, so that it is not monotone.
    """

    def __init__(self, limit: float, evaluations: int, contradictions: tuple[float, ...]) -> None:
        self.limit = limit
        self.evaluations = evaluations
        self.contradictions = contradictions
        contradiction = f", but it does at {contradictions[0]!r}: it is not monotone" if contradictions else ""
        super().__init__(f"the condition does not hold anywhere up to its limit {limit!r}{contradiction}")


def find_boundary(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    increasing: bool,
    integer: bool = False,
    relative: float = 1e-3,
    start: float | None = None,
    guess: Callable[[float, float], float | None] | None = None,
) -> Boundary:
    """The smallest value at which ``holds`` is true (``increasing``), or the largest (not ``increasing``).

    Steps of growing factors lead from ``start`` to a bracket, which is halved on a logarithmic scale. Real values have
    few decimal digits. One more value beyond an end tests whether the condition is monotone.

    Args:
        holds: the condition, evaluated at most once per value, with an int if ``integer``.
        low: the lower end of the range, at least 0.
        high: the upper end of the range.
        increasing: whether a larger parameter makes the condition true.
        integer: whether the parameter is an integer. ``value`` and ``fails_at`` are neighbors then.
        relative: for real values, the maximum of |value - fails_at| relative to the larger one, if that exceeds 1e-30.
        start: the first value tried; by default the middle on a logarithmic scale, or 1 if the range begins at 0.
        guess: maps the two ends of the bracket, the smaller one first, to a value near the boundary, or None. A bad
            guess at most doubles the number of values.

    Raises:
        NeverHoldsError: the condition fails at all values tried.
    """
    low, high = finite("low", low), finite("high", high)
    if not 0.0 <= low <= high:
        raise ValueError(f"low and high must be a range of non-negative numbers, got {low!r} to {high!r}")
    if integer and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"low and high must be whole with integer=True, got {low!r} to {high!r}")
    inside("relative", relative)
    first = finite("start", start) if start is not None else math.sqrt(low) * math.sqrt(high) or min(1.0, high)
    if start is None:
        first = min(max(float(math.floor(first)) if integer else first, low), high)
    if not low <= first <= high or (integer and not first.is_integer()):
        raise ValueError(f"start must be {'a whole number' if integer else 'a value'} of the range, got {start!r}")
    search = _Search(holds, relative, integer=integer)
    worse, better = (low, high) if increasing else (high, low)
    value: float | None
    fails_at: float | None
    if search.ask(first):
        value, fails_at = search.stride(first, worse, until=False)
    else:
        fails_at, value = search.stride(first, better, until=True)
        if value is None:
            unexpected = search.probe_beyond(first, worse)
            raise NeverHoldsError(search.parameter(better), len(search.asked), unexpected)
    if fails_at is not None:
        value, fails_at = search.halve(value, fails_at, guess)
    unexpected = search.probe_beyond(value, better)
    unexpected += search.probe_beyond(fails_at, worse) if fails_at is not None else ()
    return Boundary(
        value=search.parameter(value),
        fails_at=None if fails_at is None else search.parameter(fails_at),
        evaluations=len(search.asked),
        contradictions=unexpected,
    )


class _Search:
    """The evaluated values, and the steps from one to the next; real ones have few decimal digits."""

    def __init__(self, holds: Callable[[float], bool], relative: float, *, integer: bool) -> None:
        self._holds, self._relative, self._integer = holds, relative, integer
        self.parameter: type[float] = int if integer else float
        #: Two decimal digits more than the precision needs.
        self._digits = min(17, 2 - math.floor(math.log10(relative)))
        self.asked: dict[float, bool] = {}

    def ask(self, x: float) -> bool:
        if x not in self.asked:
            self.asked[x] = bool(self._holds(self.parameter(x)))
        return self.asked[x]

    def stride(self, x: float, limit: float, *, until: bool) -> tuple[float, float | None]:
        """The first value from ``x`` on with the answer ``until``, or None, preceded by the last value before it."""
        factor = 2
        while x != limit:
            further = self.step_towards(x, limit, factor)
            if self.ask(further) == until:
                return x, further
            x, factor = further, 2 * factor
        return x, None

    def halve(
        self, value: float, fails_at: float, guess: Callable[[float, float], float | None] | None
    ) -> tuple[float, float]:
        """Narrow a bracket until it is fine enough; a guess that does not halve it is followed by the middle."""
        guessing = guess is not None
        while True:
            ends = sorted((value, fails_at))
            middle = self.find_middle(*ends)
            if middle is None:
                return value, fails_at
            expected = guess(*map(self.parameter, ends)) if guess is not None and guessing else None
            probe = middle if expected is None else self.snap_guess(expected, *ends) or middle
            if self.ask(probe):
                value = probe
            else:
                fails_at = probe
            guessing = not guessing or min(value, fails_at) >= middle or max(value, fails_at) <= middle

    def probe_beyond(self, end: float, limit: float) -> tuple[float, ...]:
        """Probe a factor of two past this end; return that value if its answer contradicts monotonicity.

        Omitted if the search passed there already, with values that all had the end's answer.
        """
        far = self.step_towards(end, limit, 2)
        middle = math.sqrt(end) * math.sqrt(far)
        if far not in self.asked and any(min(middle, limit) <= x <= max(middle, limit) for x in self.asked):
            return ()
        return (self.parameter(far),) if self.ask(far) != self.ask(end) else ()

    def step_towards(self, x: float, limit: float, factor: int) -> float:
        if self._integer:
            return min(limit, max(x * factor, x + 1.0)) if limit >= x else max(limit, float(x // factor))
        if limit >= x:
            return min(limit, self._short(max(x, LEAST_TRIED) * factor))
        smallest = LEAST_TRIED if x > LEAST_TRIED else 0.0
        return max(limit, smallest, self._short(x / factor) if x > LEAST_TRIED else 0.0)

    def find_middle(self, low: float, high: float) -> float | None:
        """The middle of a bracket, None if it is narrow enough."""
        if self._integer:
            if high - low <= 1.0:
                return None
            middle = math.sqrt(low * high) if high > 4.0 * low > 0.0 else (low + high) / 2.0
            return min(max(float(math.floor(middle)), low + 1.0), high - 1.0)
        if low == 0.0 or high - low <= self._relative * high:
            return None
        middle = math.sqrt(low) * math.sqrt(high)
        return next((x for x in (self._short(middle), middle) if low < x < high), None)

    def snap_guess(self, expected: float, low: float, high: float) -> float | None:
        """A value between two ends, as near to an expected one as useful, or None."""
        if not low <= expected <= high:
            return None
        if self._integer:
            return min(max(float(round(expected)), low + 1.0), high - 1.0)
        # Just within reach of an end, so that the bracket closes if the boundary is as near to that end as it seems.
        step = 0.8 * self._relative
        if low == 0.0 or high * (1.0 - step) <= low * (1.0 + step):
            return None
        candidate = self._short(min(max(expected, low * (1.0 + step)), high * (1.0 - step)))
        return candidate if low < candidate < high else None

    def _short(self, x: float) -> float:
        return float(f"{x:.{self._digits - 1}e}")
