"""Intervals, rounding and root finding."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpspec.accounting import Interval, round_down, round_up
from dpspec.accounting.numerics import bisect, bisect_by_margin, crossing


def test_holds_its_ends_and_what_lies_between() -> None:
    interval = Interval(1.0, 2.0)
    assert 1.0 in interval
    assert 2.0 in interval
    assert 2.1 not in interval
    assert interval.width == 1.0
    assert interval.relative_width == 0.5


@pytest.mark.parametrize("ends", [(2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)])
def test_refuses_what_is_no_interval(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"interval|lower"):
        Interval(*ends)


def test_infinite_and_single_points() -> None:
    assert Interval(math.inf, math.inf).width == 0.0
    assert Interval(1.0, math.inf).relative_width == math.inf
    assert Interval(0.0, 0.0).relative_width == 0.0


def test_worse_and_intersect() -> None:
    a, b = Interval(1.0, 3.0), Interval(2.0, 2.5)
    assert a.worse(b) == Interval(2.0, 3.0)
    assert a.intersect(b) == b
    with pytest.raises(ValueError, match="lower"):
        a.intersect(Interval(4.0, 5.0))


# --- Numbers in texts never claim more than what was found.


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


def test_no_bound_stays_none() -> None:
    assert (round_up(math.inf, 4), round_down(math.inf, 4), round_up(0.0, 3)) == (math.inf, math.inf, 0.0)


# --- Where a monotone function crosses zero, beside plain bisection.


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


@given(st.floats(-0.99, 2.99), st.floats(0.1, 10.0), st.floats(-5.0, 5.0))
def test_both_ends_were_asked_and_stand_beside_each_other(root, steepness, bend):
    asked = {}

    def margin(x):
        asked[x] = math.sinh(steepness * (x - root)) * math.exp(bend * x)
        return asked[x]

    true, false = crossing(margin, 3.0, -1.0)
    assert asked[true] >= 0.0 > asked[false]
    assert 0.5 * (true + false) in (true, false) or abs(true - false) <= 4.0 * 2.0**-60
    assert len(asked) <= 60


def test_ends_that_are_none_come_back():
    assert crossing(lambda x: x - 5.0, 3.0, -1.0) == (3.0, -1.0)
    assert crossing(lambda x: x + 5.0, 3.0, -1.0) == (3.0, -1.0)
    assert crossing(lambda x: x, 2.0, 2.0) == (2.0, 2.0)


@pytest.mark.parametrize("name", RISING)
@pytest.mark.parametrize("upwards", [True, False])
@pytest.mark.parametrize("relative", [1e-2, 1e-5, 1e-10])
def test_by_a_margin_bisection_ends_where_it_would(name, upwards, relative):
    rising = RISING[name]
    margin = rising if upwards else lambda x: -rising(x)
    ends = (3.0, -1.0) if upwards else (-1.0, 3.0)
    by_margin = bisect_by_margin(margin, *ends, relative=relative)
    assert by_margin == bisect(lambda x: margin(x) >= 0.0, *ends, relative=relative)


@given(st.floats(1e-6, 7.99), st.floats(0.1, 10.0), st.sampled_from([1e-3, 1e-6, 1e-10]))
def test_by_a_margin_a_small_root_is_as_near(root, steepness, relative):
    asked = []

    def margin(x):
        asked.append(x)
        return math.sinh(steepness * (root - x))

    true, false = bisect_by_margin(margin, 0.0, 8.0, relative=relative)
    assert true <= root < false
    assert false - true <= relative * false
    halvings = []
    bisect(lambda x: halvings.append(x) or x <= root, 0.0, 8.0, relative=relative)
    assert len(asked) <= 1.5 * len(halvings) + 12
