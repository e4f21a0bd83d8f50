"""Rounding never flatters: every property is checked against the float itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpspec.engine.results import decimals

FINITE = st.floats(allow_nan=False, allow_infinity=False)
DIGITS = st.integers(1, 17)


@given(FINITE, DIGITS)
def test_an_upper_bound_never_shrinks(value, digits):
    assert float(decimals.upper(value, digits=digits)) >= value


@given(FINITE, DIGITS)
def test_a_lower_bound_never_grows(value, digits):
    assert float(decimals.lower(value, digits=digits)) <= value


@given(FINITE, FINITE)
def test_rounding_keeps_the_side_of_the_claim(value, claim):
    for text in (decimals.upper(value, against=claim), decimals.lower(value, against=claim)):
        assert (float(text) > claim) == (value > claim)
        assert (float(text) < claim) == (value < claim)


@given(st.floats(1e-6, 1e6))
def test_rounding_stays_close(value):
    for text in (decimals.upper(value), decimals.lower(value), decimals.nearest(value)):
        assert math.isclose(float(text), value, rel_tol=1e-3)


@given(FINITE)
def test_exact_reads_back(value):
    assert float(decimals.exact(value)) == value


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (2.95524591, "2.956", "2.955"),
        (2.1, "2.1", "2.1"),
        (-2.95524591, "-2.955", "-2.956"),
        (1e-6, "1e-6", "1e-6"),
        (1.23456e-9, "1.235e-9", "1.234e-9"),
        (0.00012345, "0.0001235", "0.0001234"),
        (1234567.0, "1235000", "1234000"),
        (1.5e300, "1.5e300", "1.5e300"),
        (0.0, "0", "0"),
        (9.99999, "10", "9.999"),
        (math.inf, "infinity", "infinity"),
        (-math.inf, "-infinity", "-infinity"),
        (math.nan, "not a number", "not a number"),
    ],
)
def test_examples(value, up, down):
    assert (decimals.upper(value), decimals.lower(value)) == (up, down)


def test_digits_are_added_until_the_side_of_the_claim_shows():
    assert decimals.upper(2.99996, against=2.9999) == "3"
    assert decimals.upper(2.99986, against=2.9999) == "2.99986"
    assert decimals.lower(3.00001, against=3.0) == "3.00001"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.7, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations(seconds, text):
    assert decimals.duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**31, "2.0 GiB")])
def test_sizes(count, text):
    assert decimals.size(count) == text
