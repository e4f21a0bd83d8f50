"""The valid integers of a spec, compared with those that brute force finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpspec.engine.evaluations import valid_beyond, valid_integers

LOW, HIGH = 1.0, 600.0


def found(start: int, is_valid: Callable[[int], bool], document: object) -> set[int]:
    """The valid values of the range that have an index."""
    valid = valid_integers(start, LOW, HIGH, is_valid, document)
    first, last = valid.limits(LOW, HIGH)
    values = {int(valid.value(index)) for index in range(int(first), int(last) + 1)}
    assert all(valid.value(valid.index(value)) == value for value in values)
    return {value for value in values if is_valid(value)}


@pytest.mark.parametrize(
    ("is_valid", "document"),
    [
        (lambda v: v % 7 == 0, {"sampling": {"epoch_steps": 7}}),
        (lambda v: v % 60 == 0, {"sampling": {"epoch_steps": 60}, "phases": [{"steps": 120}]}),
        (lambda v: v % 7 == 0 and v <= 70, {}),
        (lambda v: 360 % v == 0, {"steps": 360}),
        (lambda v: 360 % v == 0 and v >= 4, {"steps": 360, "sampling": {"batches_per_epoch": 4}}),
        (lambda v: 12 % v == 0, {"steps": 12}),
        (lambda v: True, {"steps": 360, "other": 12}),
        (lambda v: v <= 50, {"steps": 360}),
        (lambda v: 5 <= v <= 500, {"steps": 1000}),
    ],
)
def test_all_valid_values_are_found_from_each_of_them(is_valid: Callable[[int], bool], document: object) -> None:
    expected = {value for value in range(int(LOW), int(HIGH) + 1) if is_valid(value)}
    for start in expected:
        assert found(start, is_valid, document) == expected, start


def test_a_valid_value_beyond_the_last_one_is_named() -> None:
    assert valid_beyond(3.0, HIGH, lambda v: v <= 3 or v == 6, {}) == 6
    assert valid_beyond(3.0, HIGH, lambda v: v <= 3 or v == 90, {"steps": 360}) == 90
    assert valid_beyond(3.0, HIGH, lambda v: v <= 3, {"steps": 360}) is None
    assert valid_beyond(300.0, HIGH, lambda v: v > 600, {"steps": 9000}) is None
