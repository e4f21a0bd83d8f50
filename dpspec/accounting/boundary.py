"""The boundary of a monotone condition in one parameter, such as "is epsilon at most 3 with this noise?".

For conditions that cost seconds: both ends of the last bracket are evaluated and returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dpspec.accounting.numerics import finite, inside

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

    @property
    def monotone(self) -> bool:
        """Whether all values tried agree with a monotone condition."""
        return not self.contradictions


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
        more = f", but it does at {contradictions[0]!r}: it is not monotone" if contradictions else ""
        super().__init__(f"the condition does not hold anywhere up to its limit {limit!r}{more}")


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
        ValueError: the message names the argument.
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
    search = (_Integers if integer else _Search)(holds, relative)
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
    """The evaluated real values, and the steps from one to the next."""

    parameter: type[float] = float

    def __init__(self, holds: Callable[[float], bool], relative: float) -> None:
        self._holds, self._relative = holds, relative
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
        while (middle := self.find_middle(*(ends := sorted((value, fails_at))))) is not None:
            expected = guess(*map(self.parameter, ends)) if guess is not None and guessing else None
            asked = middle if expected is None else self.snap_guess(expected, *ends) or middle
            if self.ask(asked):
                value = asked
            else:
                fails_at = asked
            guessing = not guessing or min(value, fails_at) >= middle or max(value, fails_at) <= middle
        return value, fails_at

    def probe_beyond(self, end: float, limit: float) -> tuple[float, ...]:
        """Probe a factor of two past this end; return that value if its answer contradicts monotonicity.

        Omitted if the search passed there already, with values that all had the end's answer.
        """
        far = self.step_towards(end, limit, 2)
        near = math.sqrt(end) * math.sqrt(far)
        if far not in self.asked and any(min(near, limit) <= x <= max(near, limit) for x in self.asked):
            return ()
        return (self.parameter(far),) if self.ask(far) != self.ask(end) else ()

    def step_towards(self, x: float, limit: float, factor: int) -> float:
        if limit >= x:
            return min(limit, self._short(max(x, LEAST_TRIED) * factor))
        smallest = LEAST_TRIED if x > LEAST_TRIED else 0.0
        return max(limit, smallest, self._short(x / factor) if x > LEAST_TRIED else 0.0)

    def find_middle(self, low: float, high: float) -> float | None:
        """The middle of a bracket, None if it is narrow enough."""
        if low == 0.0 or high - low <= self._relative * high:
            return None
        middle = math.sqrt(low) * math.sqrt(high)
        for candidate in (self._short(middle), middle):
            if low < candidate < high:
                return candidate
        return None

    def snap_guess(self, expected: float, low: float, high: float) -> float | None:
        """A value between two ends, as near to an expected one as useful, or None."""
        # Just within reach of an end, so that the bracket closes if the boundary is as near to that end as it seems.
        step = 0.8 * self._relative
        if not low <= expected <= high or low == 0.0 or high * (1.0 - step) <= low * (1.0 + step):
            return None
        candidate = self._short(min(max(expected, low * (1.0 + step)), high * (1.0 - step)))
        return candidate if low < candidate < high else None

    def _short(self, x: float) -> float:
        return float(f"{x:.{self._digits - 1}e}")


class _Integers(_Search):
    parameter = int

    def step_towards(self, x: float, limit: float, factor: int) -> float:
        return min(limit, max(x * factor, x + 1.0)) if limit >= x else max(limit, float(x // factor))

    def find_middle(self, low: float, high: float) -> float | None:
        if high - low <= 1.0:
            return None
        middle = math.sqrt(low * high) if high > 4.0 * low > 0.0 else (low + high) / 2.0
        return min(max(float(math.floor(middle)), low + 1.0), high - 1.0)

    def snap_guess(self, expected: float, low: float, high: float) -> float | None:
        return min(max(float(round(expected)), low + 1.0), high - 1.0) if low <= expected <= high else None
