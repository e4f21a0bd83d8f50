"""One check for each assumption, from all of its tests."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.opacus_training import recorded

from dpspec.contract import Check
from dpspec.engine.recorded.combined_checks import KINDS, combined, corrected
from dpspec.stats import gaussian_noise
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance import noise_tests, sampling
from dpspec.stats.conformance.measurement import LEVEL, Measurement


def test_a_run_has_one_check_for_each_assumption(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", epochs=3)
    names = [check.assumption for check in found.checks]
    assert found.fine
    assert len(names) == len({*names}) <= 17
    assert {*names} == {test.assumption for test in found.tests} <= {*KINDS}
    assert len(found.tests) > 30
    for name in ("sampling", "noise-scale", "independent-noise", "noise-law"):
        (check,) = [check for check in found.checks if check.assumption == name]
        number = sum(test.assumption == name for test in found.tests)
        assert f"{number} of {number} tests pass" in check.note
        assert check.detectable is not None


def result_of(assumption: str, p_value: float, test: str = "name", **values: Any) -> Check:
    return Check(assumption=assumption, test=test, p_value=p_value, observed="reported", **values)


def test_p_values_count_the_statistical_tests_alone() -> None:
    tests = [result_of("noise-law", 1e-9), result_of("noise-law", 0.6), result_of("noise-law", 1.0, "a count, exact")]
    tests += [result_of("sampling", 1e-9), result_of("clipping", 1.0), result_of("clipping", 1.0)]
    assert [test.p_value for test in corrected(tests)] == [2e-9, 1.0, 1.0, 1e-9, 1.0, 1.0]
    assert [check.p_value for check in combined(corrected(tests))] == [2e-9, 1e-9, 1.0]


def test_a_violated_exact_test_rejects_alone() -> None:
    tests = [
        result_of("sampling", 0.3),
        result_of("sampling", 0.0, "steps, exact", declared=0.0, measured=4.0, note="few"),
    ]
    (check,) = combined(corrected(tests))
    assert (check.p_value, check.test, check.measured) == (0.0, "steps, exact", 4.0)
    tests[1] = replace(tests[1], p_value=1.0)
    assert combined(corrected(tests))[0].test == "name"
    assert check.note == "1 of 2 tests pass; few"


def test_a_check_names_all_rejected_tests_with_their_values() -> None:
    tests = [
        result_of("clipping", 0.0, "a, exact", measured=7.0),
        result_of("clipping", 1.0, "b, exact"),
        result_of("clipping", 0.0, "c, exact", measured=3.0),
        result_of("clipping", 0.0, "d, exact", measured=5.0, privacy="data-dependent"),
    ]
    (check,) = combined(corrected(tests))
    assert (check.test, check.measured) == ("a; c; d, exact", 7.0)
    assert check.note == "1 of 4 tests pass; also c: reported 3"
    (alone,) = combined(corrected(tests[:1]))
    assert alone == tests[0]


def test_the_limit_is_the_largest_of_the_tests_of_all_steps() -> None:
    limits = [("chi-square", "all", 0.1), ("chi-square", "in total", 0.2), ("chi-square at each step", "", 5.0)]
    tests = [result_of("noise-law", 0.5, test, note=note, detectable=limit) for test, note, limit in limits]
    tests.append(result_of("noise-law", 0.5, "variance of something", detectable=0.5))
    (check,) = combined(tests)
    assert check.detectable == 0.2
    assert "4 of 4 tests pass (limits of other quantities: up to 50%)" in check.note
    assert combined([replace(test, detectable=None) for test in tests])[0].detectable is None


RATE = 0.05

LIMITS: dict[str, Callable[[], Measurement]] = {
    "scale": lambda: noise_tests.two_sided(2, 2),
    "layer": lambda: noise_tests.quietest({"a": (200, 200)}, 30)[1],
    "coordinate": lambda: noise_tests.least_coordinate(30, 30, 700),
    "rate": lambda: sampling.inclusions(int(2000 * RATE), 2000, RATE),
    "sizes": lambda: sampling.evenness(60, 50 * 60, 2548 * 60, TruncatedSize(1000, RATE, 1000)),
    "inclusions of records": lambda: sampling.record_spread(300, 5 * 300, 30 * 300, 100, RATE),
    "overlaps": lambda: sampling.overlap(1, int(1500 * RATE), 1500, RATE),
    "repeats": lambda: gaussian_noise.repeats(0, 0.5, 500, 1, ""),
    "shares": lambda: gaussian_noise.shares([30] * 42, 1e-6, 1, ""),
    "coarse": lambda: gaussian_noise.coarse(0, 300, ""),
    "spread": lambda: gaussian_noise.spread(60, 60, ""),
    "lags": lambda: gaussian_noise.lag_correlation(np.random.default_rng(1).standard_normal((60, 96)), ""),
}


@pytest.mark.parametrize("number", [2, 500])
@pytest.mark.parametrize("name", LIMITS)
def test_corrected_limits_are_above_the_limits_at_the_smaller_level(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = LIMITS[name]().detectable
    for module in (noise_tests, sampling, gaussian_noise):
        monkeypatch.setattr(module, "LEVEL", LEVEL / number)
    sampling._detectable_overlap.cache_clear()
    exact = LIMITS[name]().detectable
    sampling._detectable_overlap.cache_clear()
    tests = [result_of("sampling", 0.5, detectable=limit)] * number
    corrected_limit = corrected(tests)[0].detectable
    assert limit is not None
    assert corrected_limit is not None
    assert exact is None or limit <= exact <= corrected_limit <= limit * (1.0 + math.log(number) / 13.8)
