from __future__ import annotations

import math

import pytest

from dpspec.accounting import Interval


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
