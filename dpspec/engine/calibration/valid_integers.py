"""The integers at which a spec is valid, where these are not all integers of a range.

Some rules leave gaps: steps must be a multiple of the epoch, and the length of an epoch must divide the steps. A search
that takes an invalid value for an unproved one stops too early. So it runs over the valid values, by their index.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from dpspec.contract import Json

#: Integers that are not divisors and are tested next to the start, to tell divisors from a range without gaps.
_TESTED = 4

#: Larger integers of a spec are not factored.
_LARGEST_FACTORED = 10**9

#: Multiples of the last valid value that are tested for validity beyond it.
_FACTORS = (2, 3, 5, 10, 100)


@dataclass(frozen=True)
class ValidIntegers:
    """The valid values by their index: the listed ones, or else the multiples of ``step``.

    With ``step`` 1 an index is the value itself, which may be real.
    """

    step: int = 1
    listed: tuple[int, ...] = ()

    def value(self, index: float) -> float:
        """The value at an index."""
        return float(self.listed[int(index)]) if self.listed else index * self.step

    def index(self, value: float) -> float:
        """The index of a value, or of the next larger one."""
        if self.listed:
            return float(min(bisect_left(self.listed, value), len(self.listed) - 1))
        return value if self.step == 1 else float(-(-value // self.step))

    def limits(self, low: float, high: float) -> tuple[float, float]:
        """The first and the last index of a range of values, both ends included."""
        if self.listed:
            return 0.0, float(len(self.listed) - 1)
        return self.index(low), high if self.step == 1 else float(high // self.step)


def valid_integers(
    start: int, low: float, high: float, is_valid: Callable[[int], bool], document: Json
) -> ValidIntegers:
    """Find the gaps in the valid values around ``start``, which is one of them.

    Args:
        start: A valid value.
        low: The smallest value that is tested.
        high: The largest one.
        is_valid: Whether the spec is valid with a value.
        document: The part of the spec whose integers the value may have to divide.

    Returns:
        The valid divisors of an integer of the document, if ``start`` divides it, and if the nearest integers and the
        first multiples of ``start`` that do not are invalid. Otherwise the multiples of the smallest divisor of
        ``start`` whose steps from ``start`` are valid.
    """

    def fits(value: int) -> bool:
        return low <= value <= high and is_valid(value)

    for number in sorted(set(_integers(document)), reverse=True):
        if not start <= number <= _LARGEST_FACTORED or number % start:
            continue
        multiples = [value for value in range(2 * start, 9 * start, start) if number % value]
        others = islice(_non_divisors(number, start, low, high), _TESTED)
        if any(map(is_valid, others)) or any(map(fits, multiples)):
            continue
        found = tuple(value for value in _divisors(number) if fits(value))
        if len(found) > 2:
            return ValidIntegers(listed=found)
    for step in _divisors(start):
        for sign in (1, -1):
            near = [start + sign * step * i for i in (1, 2, 3) if low <= start + sign * step * i <= high]
            if near and all(map(is_valid, near)):
                return ValidIntegers(step=step)
    return ValidIntegers()


def valid_beyond(last: float, high: float, is_valid: Callable[[int], bool], document: Json) -> int | None:
    """A valid value beyond the last one that a search reached, if one is found; None otherwise."""
    multiples = [int(last) * factor for factor in _FACTORS]
    divisors = [d for n in set(_integers(document)) if 0 < n <= _LARGEST_FACTORED for d in _divisors(n)]
    return next((v for v in sorted({*multiples, *divisors}) if last < v <= high and is_valid(v)), None)


def _integers(document: Json) -> Iterator[int]:
    """All integers of a document."""
    if isinstance(document, dict):
        for value in document.values():
            yield from _integers(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _integers(value)
    elif isinstance(document, int) and not isinstance(document, bool):
        yield document


def _divisors(number: int) -> list[int]:
    """The divisors of a positive integer, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _non_divisors(number: int, start: int, low: float, high: float) -> Iterator[int]:
    """The integers of a range that do not divide ``number``, nearest to ``start`` first."""
    for distance in range(1, number + 1):
        for value in (start - distance, start + distance):
            if max(low, 1) <= value <= high and number % value:
                yield value
