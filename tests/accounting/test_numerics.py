"""Intervals, rounding and root finding."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpspec.accounting import LEAST_TRIED, Interval, NeverHoldsError, find_boundary, round_down, round_up
from dpspec.accounting.numerics import bisect, bisect_by_margin, crossing, log_difference, smallest


def test_holds_its_ends_and_what_lies_between() -> None:
    interval = Interval(1.0, 2.0)
    assert 1.0 in interval
    assert 2.0 in interval
    assert 2.1 not in interval
    assert interval.width == 1.0
    assert interval.relative_width == 0.5
    assert Interval(math.inf, math.inf).width == 0.0
    assert Interval(1.0, math.inf).relative_width == math.inf
    assert Interval(0.0, 0.0).relative_width == 0.0
    a, b = Interval(1.0, 3.0), Interval(2.0, 2.5)
    assert (a.worse(b), a.intersect(b)) == (Interval(2.0, 3.0), b)
    with pytest.raises(ValueError, match="lower"):
        a.intersect(Interval(4.0, 5.0))
    with pytest.raises(ValueError, match="an interval needs numbers"):
        Interval(0.0, math.nan)


# --- Printed numbers never claim more than the result.


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 17))
@example(2.955, 4)  # its nearest double is another number than its decimal
@example(0.1 + 0.2, 17)
@example(5e-324, 1)
@example(2.0**-24, 16)  # halfway between two decimals of 16 digits: only one of them is this double
def test_few_digits_on_the_true_side(value: float, digits: int) -> None:
    up, down = round_up(value, digits), round_down(value, digits)
    assert down <= value <= up
    for rounded in (up, down):
        if math.isfinite(rounded):
            assert len(Decimal(repr(rounded)).normalize().as_tuple().digits) <= digits
    assert round_up(-value, digits) == -down


@given(st.integers(1, 9999), st.integers(-6, 6))
def test_what_has_so_few_digits_stays(mantissa: int, exponent: int) -> None:
    value = float(Decimal(mantissa).scaleb(exponent))
    assert round_up(value, 4) == round_down(value, 4) == value
    assert (round_up(math.inf, 4), round_down(math.inf, 4)) == (math.inf, math.inf)  # no bound stays none


# --- Zeros of monotone functions, compared with bisection.


#: Functions that rise through zero between -1 and 3, with steps, cusps, flat parts and infinite values among them.
RISING = {
    "line": lambda x: x - 0.3,
    "cube": lambda x: (x - 1.7) ** 3,
    "fifth root": lambda x: math.copysign(abs(x - 0.1) ** 0.2, x - 0.1),
    "step": lambda x: -1.0 if x < 0.7 else 1e-9,
    "exponential": lambda x: math.exp(40.0 * x) - 5.0,
    "flat": lambda x: math.tanh(500.0 * (x - 2.2)),
    "infinite below": lambda x: -math.inf if x < 1.1 else x,
    "infinite on both sides": lambda x: -math.inf if x < 0.0 else math.inf if x > 0.5 else x - 0.25,
}


@pytest.mark.parametrize("name", RISING)
@pytest.mark.parametrize("upwards", [True, False])
def test_it_ends_where_bisection_ends(name, upwards):
    rising = RISING[name]
    margin = rising if upwards else lambda x: -rising(x)
    ends = (3.0, -1.0) if upwards else (-1.0, 3.0)
    true, false = crossing(margin, *ends)
    assert margin(true) >= 0.0 > margin(false)
    assert 0.5 * (true + false) in (true, false)
    assert (true, false) == bisect(lambda x: margin(x) >= 0.0, *ends)
    for relative in (1e-2, 1e-5, 1e-10):
        by_margin = bisect_by_margin(margin, *ends, relative=relative)
        assert by_margin == bisect(lambda x: margin(x) >= 0.0, *ends, relative=relative)


def test_ends_that_are_none_come_back():
    assert crossing(lambda x: x - 5.0, 3.0, -1.0) == (3.0, -1.0)
    assert crossing(lambda x: x + 5.0, 3.0, -1.0) == (3.0, -1.0)
    assert crossing(lambda x: x, 2.0, 2.0) == (2.0, 2.0)


class Threshold:
    """A predicate that is true from ``at`` on, or up to ``at``, and counts its calls."""

    def __init__(self, at: float, *, increasing: bool) -> None:
        self.at, self.increasing, self.asked = at, increasing, []

    def __call__(self, x: float) -> bool:
        self.asked.append(x)
        return x >= self.at if self.increasing else x <= self.at


def attempt(holds, low, high, **options):
    """Return the result of the search, or its error."""
    try:
        return find_boundary(holds, low, high, **options)
    except NeverHoldsError as error:
        return error


positive = st.floats(min_value=1e-12, max_value=1e12)


@st.composite
def ranges(draw, numbers):
    low, high = sorted([draw(numbers), draw(numbers)])
    inside = st.integers(int(low), int(high)) if isinstance(low, int) else st.floats(low, high)
    return low, high, draw(st.none() | inside)


@given(ranges(st.just(0.0) | positive), positive, st.booleans(), st.sampled_from([0.5, 1e-2, 1e-3, 1e-6, 1e-12]))
def test_real_values(limits, at, increasing, relative):
    low, high, start = limits
    holds = Threshold(at, increasing=increasing)
    found = attempt(holds, low, high, increasing=increasing, relative=relative, start=start)
    if isinstance(found, NeverHoldsError):
        assert found.limit == (high if increasing else low)
        assert not holds(found.limit)
        assert found.contradictions == ()
        return
    asked = holds.asked[:]
    assert len(asked) == len(set(asked)) == found.evaluations <= 40 + math.log2(1 / relative)
    assert all(low <= x <= high for x in asked)
    assert {found.value, found.fails_at} - {None} <= set(asked)
    assert holds(found.value)
    assert not found.contradictions
    if found.fails_at is None:
        assert found.value == (low if increasing else high)
    else:
        assert not holds(found.fails_at)
        assert (found.fails_at < found.value) is increasing
        gap = abs(found.value - found.fails_at)
        assert gap <= relative * max(found.value, found.fails_at) or max(found.value, found.fails_at) <= LEAST_TRIED


@given(ranges(st.integers(0, 10**9)), st.integers(0, 10**9), st.booleans())
def test_integers_are_neighbours(limits, at, increasing):
    low, high, start = limits
    holds = Threshold(at, increasing=increasing)
    found = attempt(holds, low, high, increasing=increasing, integer=True, start=start)
    if isinstance(found, NeverHoldsError):
        assert at > high if increasing else at < low
        assert found.limit == (high if increasing else low)
        return
    assert found.value == (max(at, low) if increasing else min(at, high))
    assert found.fails_at in (None, found.value - (1 if increasing else -1))
    assert (found.fails_at is None) is (at <= low if increasing else at >= high)
    assert all(isinstance(x, int) and low <= x <= high for x in holds.asked)
    assert len(holds.asked) == len(set(holds.asked)) == found.evaluations <= 60


@given(
    ranges(positive) | ranges(st.integers(1, 10**9)),
    st.floats(0.01, 100.0),
    st.booleans(),
    st.sampled_from(["good", "none", "outside", "an end", "nan", "skewed"]),
)
def test_guesses_save_values_and_change_nothing_else(limits, share, increasing, quality):
    low, high, start = limits
    integer = isinstance(low, int)
    at = min(max(math.sqrt(low) * math.sqrt(high) * share, low), high)
    pairs = []

    def guess(one: float, other: float) -> float | None:
        assert low <= one < other <= high
        pairs.append((one, other))
        skewed = one + (other - one) * 1e-9
        return {"good": at, "none": None, "outside": -1.0, "an end": one, "nan": math.nan, "skewed": skewed}[quality]

    options = {"increasing": increasing, "integer": integer, "start": start}
    plain, helped = Threshold(at, increasing=increasing), Threshold(at, increasing=increasing)
    first = find_boundary(plain, low, high, **options)
    second = find_boundary(helped, low, high, **options, guess=guess)
    assert len(helped.asked) == len(set(helped.asked)) <= 2 * len(plain.asked) + 4
    if quality == "good" and not integer:
        assert len(helped.asked) <= len(plain.asked) + 1
    assert helped(second.value)
    if integer:
        assert second.value == first.value
        assert second.fails_at == first.fails_at
    elif second.fails_at is not None:
        assert not helped(second.fails_at)
        assert abs(second.value - second.fails_at) <= 1e-3 * max(second.value, second.fails_at)


@pytest.mark.parametrize("relative", [1e-2, 1e-3, 1e-5])
def test_values_can_be_written_down(relative):
    found = find_boundary(Threshold(math.pi, increasing=True), 0.0, 1e6, increasing=True, relative=relative, start=1.0)
    digits = 2 + round(-math.log10(relative))
    assert float(f"{found.value:.{digits}g}") == found.value >= math.pi > found.fails_at


@pytest.mark.parametrize(
    ("holds", "low", "high", "options", "value", "fails_at"),
    [
        (lambda x: True, 0.0, 10.0, {"increasing": True}, 0.0, None),
        (lambda x: True, 0.0, 10.0, {"increasing": False}, 10.0, None),
        (lambda x: x == 0.0, 0.0, 10.0, {"increasing": False}, 0.0, LEAST_TRIED),
        (lambda x: x > 0.0, 0.0, 10.0, {"increasing": True}, LEAST_TRIED, 0.0),
        (lambda x: True, 3, 3, {"increasing": True, "integer": True}, 3, None),
        (lambda x: x <= 1.1, 0.5, 2.0, {"increasing": False, "relative": 1e-16}, 1.1, math.nextafter(1.1, 2.0)),
    ],
)
def test_ends_of_ranges(holds, low, high, options, value, fails_at):
    found = find_boundary(holds, low, high, **options)
    assert (found.value, found.fails_at) == (value, fails_at)


def test_what_holds_nowhere_says_so():
    with pytest.raises(NeverHoldsError, match=r"does not hold anywhere up to its limit 8\.0$") as info:
        find_boundary(lambda x: False, 1.0, 8.0, increasing=True, start=2.0)
    assert info.value.limit == 8.0
    assert info.value.evaluations == 4


def test_a_wrong_direction_is_noticed():
    with pytest.raises(NeverHoldsError, match=r"it does at 1\.0: it is not monotone") as info:
        find_boundary(lambda x: x < 1.5, 0.5, 8.0, increasing=True, start=2.0)
    assert info.value.contradictions == (1.0,)


def test_a_condition_that_turns_again_is_noticed():
    found = find_boundary(lambda x: 1.0 <= x < 1.5, 0.1, 100.0, increasing=True, start=1.2)
    assert 1.0 <= found.value <= 1.001
    assert found.contradictions
    assert all(not 1.0 <= x < 1.5 for x in found.contradictions)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"low": -1.0}, "low and high must be a range"),
        ({"low": 3.0}, "low and high must be a range"),
        ({"high": math.inf}, "high must be a finite number"),
        ({"low": math.nan}, "low must be a finite number"),
        ({"relative": 0.0}, "relative must be above 0"),
        ({"relative": 1.0}, "relative must be above 0 and below 1"),
        ({"start": 3.0}, "start must be a value of the range"),
        ({"start": 1.5, "integer": True}, "start must be a whole number"),
        ({"high": 1.5, "integer": True}, "low and high must be whole"),
    ],
)
def test_arguments_that_make_no_sense(changed, message):
    arguments = {"low": 1.0, "high": 2.0, "increasing": True, **changed}
    with pytest.raises(ValueError, match=message):
        find_boundary(lambda x: True, **arguments)


# bisection inside a bracket


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.booleans())
def test_bisection_ends_at_neighbouring_doubles(at: float, reach: float, falling: bool) -> None:
    low, high = at - reach, at + reach
    true, false = bisect(lambda x: (x <= at) == falling, *((low, high) if falling else (high, low)))
    below, above = sorted((true, false))
    assert math.nextafter(below, math.inf) == above
    assert below <= at <= above
    assert (true == below) is falling


def test_bisection_halves_so_often_or_until_it_is_enough() -> None:
    asked: list[float] = []

    def small(x: float) -> bool:
        asked.append(x)
        return x < 0.3

    assert bisect(small, 0.0, 1.0, halvings=3) == (0.25, 0.375)
    assert asked == [0.5, 0.25, 0.375]
    assert bisect(small, 0.0, 1.0, within=0.25) == (0.25, 0.5)


@pytest.mark.parametrize("at", [-1.0, 0.3, 7.0])
def test_the_smallest_value_between_two_ends_is_next_to_the_minimum(at: float) -> None:
    assert 0.0 <= smallest(lambda x: np.abs(x - at), -1.0, 7.0, within=1e-9) < 1e-9


@pytest.mark.parametrize(
    ("ends", "spec", "text"),
    [
        ((2.61170746, 2.61177825), ".3f", "2.611 to 2.612"),
        ((2.61170746, 2.61177825), ".3g", "2.61 to 2.62"),
        ((-2.0006, -2.0004), ".3f", "-2.001 to -2.000"),
        ((0.5, 0.5), ".2f", "0.50"),
        ((0.1, 0.1), ".3f", "0.100"),  # and not 0.101 for its binary digits
        ((1.2345e-7, 1.2346e-7), ".1e", "1.2e-07 to 1.3e-07"),
        ((0.04006, 0.04007), ".1%", "4.0% to 4.1%"),
        ((3.0, math.inf), "8.2f", "    3.00 to Infinity"),
    ],
)
def test_intervals_print_their_ends_rounded_outward(ends: tuple[float, float], spec: str, text: str) -> None:
    assert f"{Interval(*ends):{spec}}" == text


@given(st.floats(-1e6, 1e6), st.floats(0.0, 1e3), st.integers(0, 8), st.sampled_from("feg"))
def test_a_printed_interval_contains_the_interval(lower: float, width: float, precision: int, kind: str) -> None:
    interval = Interval(lower, lower + width)
    text = format(interval, f".{precision}{kind}")
    low, _, high = text.partition(" to ")
    assert Fraction(low) <= Fraction(repr(interval.lower))
    assert Fraction(high or low) >= Fraction(repr(interval.upper))


def test_other_formats_of_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match="ends with one of e, f, g and %"):
        format(Interval(1.0, 2.0), "d")


def test_intervals_unpack_and_fill_two_columns() -> None:
    lower, upper = Interval(1.0, 2.0)
    assert (lower, upper) == (1.0, 2.0)
    assert np.asarray([Interval(1.0, 2.0), Interval(3.0, 4.0)]).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert np.asarray(Interval(1.0, 2.0), dtype=np.float32).dtype == np.float32


def test_only_narrow_intervals_are_one_number() -> None:
    assert float(Interval(2.6117, 2.6118)) == 2.6118
    assert float(Interval(0.0, 0.0)) == 0.0
    assert float(Interval(math.inf, math.inf)) == math.inf
    for wide in (Interval(2.61, 2.62), Interval(0.0, 1e-300), Interval(3.0, math.inf), Interval(-1.0, 0.0)):
        with pytest.raises(ValueError, match="too wide for one number"):
            float(wide)


@pytest.mark.parametrize(
    ("first", "second"), [(-1.0, -2.0), (-1.0, -1.0 - 1e-9), (-700.0, -700.5), (0.0, -1e308), (-30.0, -math.inf)]
)
def test_a_difference_of_exponentials_is_rounded_down_by_little(first: float, second: float) -> None:
    ratio = Decimal(0) if second == -math.inf else Decimal(second - first).exp()
    exact = first + float((1 - ratio).ln())
    value = log_difference(first, second)
    assert exact - 1e-4 <= value < exact


@pytest.mark.parametrize("first", [-1.0, -math.inf, -745.0])
def test_equal_exponentials_have_no_certain_difference(first: float) -> None:
    assert log_difference(first, first) == -math.inf
    assert log_difference(first, first * (1.0 + 1e-16)) == -math.inf
