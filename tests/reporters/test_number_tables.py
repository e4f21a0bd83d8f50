"""Many findings that differ in two conditions become a table; others stay as they are."""

from __future__ import annotations

import dataclasses

from dpspec.contract import Finding, FrozenMap
from dpspec.reporters.number_tables import grid


def found(delta, group_size, value, **changes):
    finding = Finding(
        quantity="epsilon",
        value=value,
        bound="upper",
        rigor="theorem",
        method="m",
        source="s",
        at=FrozenMap({"delta": delta, "group_size": group_size}),
    )
    return dataclasses.replace(finding, **changes)


SIX = [found(d, k, k / 8 + 0.12345678 - d) for k in (8, 1) for d in (1e-4, 1e-6, 1e-5)]


def test_a_table_has_the_shorter_side_down():
    assert grid(SIX, 74).lines() == (
        "epsilon <=    delta 1e-6    1e-5  0.0001",
        "group_size 1      0.2485  0.2485  0.2484",
        "group_size 8       1.124   1.124   1.124",
    )


def test_values_are_rounded_like_everywhere():
    assert "0.2485" in grid(SIX, 74).lines()[1]
    below = [dataclasses.replace(f, bound="lower") for f in SIX]
    assert "0.2484" in grid(below, 74).lines()[1]
    assert grid(below, 74).head[0] == "epsilon >="


def test_what_all_share_stands_above():
    six = [dataclasses.replace(f, at=FrozenMap({"step": 7, **f.at})) for f in SIX]
    assert grid(six, 74).title == "at step 7"


def test_no_table_where_it_would_not_fit_or_not_be_whole():
    assert grid(SIX, 20) is None
    assert grid(SIX[:5], 74) is None
    assert grid([*SIX, *(found(10.0**-n, 1, 1.0) for n in (7, 8, 9, 10))], 74) is None
    assert grid([*SIX, SIX[0]], 74) is None
    assert grid([*SIX[:5], dataclasses.replace(SIX[5], quantity="mu")], 74) is None
    assert grid([*SIX[:5], dataclasses.replace(SIX[5], privacy="per-record")], 74) is None
    assert grid([dataclasses.replace(f, at=FrozenMap()) for f in SIX], 74) is None


def test_a_place_may_be_empty():
    assert grid([*SIX, found(1e-9, 1, 1.0)], 74).lines() == (
        "epsilon <=    delta 1e-9    1e-6    1e-5  0.0001",
        "group_size 1           1  0.2485  0.2485  0.2484",
        "group_size 8           -   1.124   1.124   1.124",
    )


def test_one_varying_condition_is_one_line_of_numbers():
    six = [found(10.0**-n, 4, 1.0 + n) for n in range(6)]
    strip = grid(six, 74)
    assert strip.title == "at group_size 4"
    assert strip.lines() == (
        "delta       1e-5  0.0001  0.001  0.01  0.1  1",
        "epsilon <=     6       5      4     3    2  1",
    )
    assert grid(six, 30) is None


def test_a_narrow_page_turns_the_table():
    table = grid(SIX, 36)
    assert table.head == ("epsilon <=", "group_size 1", "8")
    assert [row[0] for row in table.rows] == ["delta 1e-6", "delta 1e-5", "delta 0.0001"]
