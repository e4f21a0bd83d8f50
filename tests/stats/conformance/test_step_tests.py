"""Tests of single steps keep their level, detect what they promise, and no step compensates another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from dpspec import json_records
from dpspec.stats.conformance import measurement, step_tests
from dpspec.stats.conformance.measurement import LEVEL
from dpspec.stats.conformance.noise_tests import StepNoise, quietest
from dpspec.stats.conformance.sampling import BatchSize
from dpspec.stats.conformance.step_tests import StepSums

Draw = Callable[[np.random.Generator, int], np.ndarray]
LAWS = [
    (StepNoise(5, both=True), lambda rng, n: rng.chisquare(5, n)),
    (StepNoise(5, both=False), lambda rng, n: rng.chisquare(5, n)),
    (StepNoise(3000, both=True), lambda rng, n: rng.chisquare(3000, n)),
    (StepNoise(3000, both=False), lambda rng, n: rng.chisquare(3000, n)),
    (BatchSize(300, 0.2), lambda rng, n: rng.binomial(300, 0.2, n)),
    (BatchSize(1000, 0.004), lambda rng, n: rng.binomial(1000, 0.004, n)),
]
SIZES = (12, 90)


def p_value(law: measurement.Law, values: np.ndarray) -> float:
    written = json.loads(json.dumps(json_records.write(step_tests.summary(values))))
    found = json_records.read(StepSums, written, "sums")
    return step_tests.single(found, law).p_value


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("law", "draw"), LAWS)
def test_p_values_keep_every_level_under_the_declaration(law: measurement.Law, draw: Draw, count: int) -> None:
    rng = np.random.default_rng(count)
    found = np.array([p_value(law, draw(rng, count)) for _ in range(300)])
    for level in (0.2, 0.05, 0.01):
        # More by chance in one of 10,000 cases, for each.
        assert (found <= level).sum() <= stats.binom.ppf(1 - 1e-4, 300, level)
    if isinstance(law, StepNoise):  # nearly exact
        assert (found <= 0.05).sum() >= stats.binom.ppf(1e-3, 300, 0.04)


def test_what_else_is_in_the_sums_makes_no_false_alarm() -> None:
    """Something independent of a step's noise, which may follow from all earlier steps, only makes p-values larger."""
    law, rng, found = StepNoise(20, both=False), np.random.default_rng(0), []
    for _ in range(500):
        values, shift = [], 0.0
        for _ in range(30):
            values.append(rng.noncentral_chisquare(20, shift) if shift else rng.chisquare(20))
            shift = 40.0 if values[-1] < 15 else 0.0
        found.append(p_value(law, np.array(values)))
    assert (np.array(found) <= 0.05).mean() <= 0.05


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("quiet", [{1}, {400}, set(range(2, 401, 2)), set(range(10, 401, 10))])
def test_no_step_compensates_another(quiet: set[int], both: bool) -> None:
    law, rng = StepNoise(2000, both=both), np.random.default_rng(1)
    low = np.isin(np.arange(1, 401), list(quiet))
    variance = np.where(low, 0.5, (400 - 0.5 * low.sum()) / (400 - low.sum()))
    for _ in range(3):
        assert p_value(law, rng.chisquare(2000, 400) * variance) < 1e-8


@pytest.mark.parametrize(("law", "draw"), LAWS[:4])
def test_a_detectable_deviation_of_one_step_is_detected(law: StepNoise, draw: Draw) -> None:
    rng = np.random.default_rng(2)
    values = np.stack([draw(rng, 60) for _ in range(100)])
    sign = 1 if law.both and law.count < 100 else -1
    missed = smaller = 0
    for row in values:
        detectable = step_tests.single(step_tests.summary(row), law).detectable
        if detectable is None:
            continue
        for factor in (1.0, 0.5):
            seen = row.copy()
            seen[17] = draw(rng, 1)[0] * (1 + sign * factor * detectable) ** 2
            right = step_tests.single(step_tests.summary(seen), law).p_value <= LEVEL
            missed += factor == 1.0 and not right
            smaller += factor == 0.5 and right
    assert missed <= stats.binom.ppf(0.999, 100, 0.01)
    if law.count > 100:  # of few numbers even the smaller ones vary much
        assert smaller < 50


def test_rates_of_single_steps_that_are_detectable_are_detected() -> None:
    law, rng = BatchSize(2000, 0.05), np.random.default_rng(4)
    detectable = step_tests.single(step_tests.summary(rng.binomial(2000, 0.05, 100)), law).detectable
    assert detectable == pytest.approx(0.9, abs=0.1)
    missed = 0
    for _ in range(100):
        sizes = rng.binomial(2000, 0.05, 100)
        sizes[50] = rng.binomial(2000, 0.05 * (1 + detectable))
        missed += step_tests.single(step_tests.summary(sizes), law).p_value > LEVEL
    assert missed <= stats.binom.ppf(0.999, 100, 0.01)


def test_few_coordinates_say_that_they_see_little() -> None:
    """Ten numbers a step, and gradients beside the noise: not even its absence would be seen at one step."""
    law = StepNoise(10, both=False)
    alone, beside = (step_tests.summary(np.full(50, 10.0 + rest)) for rest in (0.0, 3.0))
    assert 0.9 < (step_tests.single(alone, law).detectable or 0.0) < 1.0
    assert step_tests.single(beside, law).detectable is None
    assert quietest({"bias": (5.0, 5), "weight": (600.0, 600)}, 50)[1].detectable > 0.98


@pytest.mark.parametrize("count", [1, 2, 64])
def test_the_extremes_are_those_of_all_steps(count: int) -> None:
    values = np.random.default_rng(count).chisquare(7, count)
    found = step_tests.summary(values, np.arange(1, count + 1) * 10)
    assert found.steps == count
    assert astuple(found.least) == (pytest.approx(values.min()), 10 * (1 + values.argmin()))
    assert astuple(found.most) == (pytest.approx(values.max()), 10 * (1 + values.argmax()))


@pytest.mark.parametrize("huge", [1e30, np.inf, np.nan])
def test_one_huge_step_hides_no_other(huge: float) -> None:
    law, values = StepNoise(50, both=False), np.random.default_rng(5).chisquare(50, 100)
    values[10] = huge
    assert p_value(law, values) > 1e-3
    values[60] = 0.0
    assert p_value(law, values) == 0.0
