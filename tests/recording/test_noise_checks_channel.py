"""Statistics of noise in an end record that anybody may have written."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from dpspec.engine.recorded.checks import advice
from dpspec.engine.recorded.noise_checks import (
    ALONG,
    COARSE,
    DIRECTIONS,
    EARLIER,
    NORMS,
    PAIRS,
    REPEATED,
    SHIFTED,
    noise_checks,
)
from dpspec.stats.gaussian_noise import INTERVALS

GOOD: dict[str, Any] = {
    "sums": [10, 20.0, 10.0],
    "norms": [10, 20.0, 10.0],
    "successive": [9, 0.5],
    "counts": [2] * INTERVALS,
    "worst_counts": [1] * INTERVALS,
    "counted": 10,
    "room": 1e-6,
    "sampled": 5,
    "quietest": [2.0, 10, 40, 1e-6],
    "coarse": [0, 100],
    "repeats": [0, 0.1, 100],
    "common": [1, 0.1, 50],
    "pairs": 10,
    "shift": [-3.0, 40],
    "pooled_shift": [3.0, 200],
    "shifts": 300,
    "block": [1, 9.0, 6],
    "blocks": [5, 25.0, 30],
    "steps": [12.0, 10],
}


def made(noise: Any, rows: Any = None) -> list[Any]:
    run: Any = types.SimpleNamespace(
        end={"noise": noise},
        folder=None,
        header=types.SimpleNamespace(layers=(("bias", 4), ("weight", 36))),
        rows=np.random.default_rng(1).standard_normal((10, 36)) if rows is None else rows,
    )
    return list(noise_checks(run))


def test_good_statistics_give_twelve_checks() -> None:
    found = made(GOOD)
    assert len(found) == 12
    assert {one.assumption for one in found} == {"independent-noise", "per-layer-noise", "noise-law"}
    assert "most extreme in weight" in next(one.note for one in found if "layer's rows" in one.test)


@pytest.mark.parametrize(
    ("value", "rejects"), [([20, 22.0, 5.0], False), ([20, 160.0, 9.0], True), ([900, 990.0, 99.0], True)]
)
def test_sums_that_contain_noise_are_rejected(value: list[float], rejects: bool) -> None:
    """At all steps, or at one of many."""
    found = [one for one in made({**GOOD, "along_sums": value}) if one.test.startswith(ALONG)]
    assert [one.p_value < 1e-9 for one in found] == [rejects]


def test_a_run_without_end_or_statistics_has_no_checks() -> None:
    empty: Any = types.SimpleNamespace(end=None, folder=None, header=types.SimpleNamespace(layers=()))
    assert list(noise_checks(empty)) == []
    assert made(None) == made([]) == []
    assert [one.test for one in made({})][:1] == [DIRECTIONS]
    assert len(made({})) == 2


@pytest.mark.parametrize(
    "value", [None, True, "x", [], {}, [[1]], -1, 1e300, float("nan"), float("inf"), 10**400, [None] * 3]
)
@pytest.mark.parametrize("name", GOOD)
def test_impossible_statistics_raise_nothing(name: str, value: Any) -> None:
    for noise in ({**GOOD, name: value}, {name: value}):
        assert all(0.0 <= one.p_value <= 1.0 for one in made(noise))
    if isinstance(GOOD[name], list):
        for place in range(len(GOOD[name])):
            changed = list(GOOD[name])
            changed[place] = value
            assert all(0.0 <= one.p_value <= 1.0 for one in made({**GOOD, name: changed}))


def test_rejected_statistics_come_with_advice() -> None:
    bad = {"repeats": [90, 0.1, 100], "coarse": [90, 100], "shift": [2000.0, 2000], "norms": [900, 1800.0, 1.0]}
    rejected = {one.test: advice(one) for one in made({**GOOD, **bad}) if one.p_value < 1e-9}
    assert {REPEATED, COARSE, SHIFTED, NORMS} <= rejected.keys()
    assert all(rejected.values())


def test_noise_that_repeats_or_takes_back_earlier_noise_is_rejected() -> None:
    honest = np.random.default_rng(3).standard_normal((200, 96))
    assert min(one.p_value for one in made({}, honest)) > 1e-4
    repeated, last = honest.copy(), honest.copy()
    repeated[151] = -repeated[150]
    last[-1] = -last[:-1].sum(axis=0) / 199**0.5
    for rows, name in ((repeated, PAIRS), (last, EARLIER)):
        found = made({}, rows)[-1]
        assert found.p_value < 1e-9
        assert found.test == name
        assert advice(found)
