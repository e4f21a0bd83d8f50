"""Numbers in texts never claim more than what was found."""

from __future__ import annotations

import math
from decimal import Decimal

from hypothesis import example, given
from hypothesis import strategies as st

from dpspec.accounting import round_down, round_up


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
