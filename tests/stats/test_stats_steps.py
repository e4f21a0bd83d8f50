"""Single steps, stretches and patterns: tests keep their level, see what they say, and no step makes up for another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from dpspec import json_records
from dpspec.stats.conformance import martingale, sampling, step_tests
from dpspec.stats.conformance.evidence.steps import LEAST_STEPS, StepSums
from dpspec.stats.conformance.measurement import LEVEL
from dpspec.stats.conformance.noise_size import StepNoise, quietest_step
from dpspec.stats.conformance.sampling import BatchSize

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


def p_values(law: step_tests.Law, values: np.ndarray) -> tuple[float, float]:
    written = json.loads(json.dumps(json_records.write(step_tests.summary(values, law))))
    found = json_records.read(StepSums, written, "sums")
    return step_tests.single(found, law).p_value, step_tests.patterns(found, law).p_value


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("law", "draw"), LAWS)
def test_p_values_keep_every_level_under_the_declaration(law: step_tests.Law, draw: Draw, count: int) -> None:
    rng = np.random.default_rng(count)
    found = np.array([p_values(law, draw(rng, count)) for _ in range(300)])
    for level in (0.2, 0.05, 0.01):
        # More by chance in one of 10,000 cases, for each.
        assert ((found <= level).sum(0) <= stats.binom.ppf(1 - 1e-4, 300, level)).all()
    if isinstance(law, StepNoise):  # a single step's is nearly exact
        assert (found[:, 0] <= 0.05).sum() >= stats.binom.ppf(1e-3, 300, 0.04)


def test_what_else_is_in_the_sums_makes_no_false_alarm() -> None:
    """Something independent of a step's noise, which may follow from all earlier steps, only makes p-values larger."""
    law, rng, found = StepNoise(20, both=False), np.random.default_rng(0), []
    for _ in range(500):
        values, shift = [], 0.0
        for _ in range(30):
            values.append(rng.noncentral_chisquare(20, shift) if shift else rng.chisquare(20))
            shift = 40.0 if values[-1] < 15 else 0.0
        found.append(p_values(law, np.array(values)))
    assert (np.array(found) <= 0.05).mean(0).max() <= 0.05


def scales(pattern: str, count: int) -> np.ndarray:
    """Standard deviations of the noise of all steps, of the right variance on average."""
    step = np.arange(1, count + 1)
    low = {
        "first": step == 1,
        "last": step == count,
        "every second": step % 2 == 0,
        "every tenth": step % 10 == 0,
        "any tenth": np.random.default_rng(0).permutation(count) < count // 10,
        "one half": step <= count // 2,
        "a stretch": (step > count // 3) & (step <= count // 3 + count // 8),
    }.get(pattern)
    if pattern == "trend":
        variance = np.linspace(0.9, 1.1, count)
    elif pattern == "waves":
        variance = 1.0 + 0.12 * np.sin(2.0 * np.pi * step / 50.0)
    else:
        assert low is not None
        size = {"first": 0.0, "last": 0.0, "every second": 0.97, "one half": 0.97}.get(pattern, 0.93)
        variance = np.where(low, size**2, (count - size**2 * low.sum()) / (count - low.sum()))
    return np.sqrt(variance)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(
    "pattern",
    ["first", "last", "every second", "every tenth", "any tenth", "one half", "a stretch", "trend", "waves"],
)
def test_no_step_makes_up_for_another(pattern: str, both: bool) -> None:
    """The sum over all steps is as declared, and too little noise at some steps is seen all the same."""
    law, rng = StepNoise(2000, both=both), np.random.default_rng(1)
    scale = scales(pattern, 400)
    assert (scale**2).mean() == pytest.approx(1.0)
    for _ in range(3):
        assert min(p_values(law, rng.chisquare(2000, 400) * scale**2)) < 1e-8


@pytest.mark.parametrize(("law", "draw"), LAWS[:4])
def test_a_detectable_deviation_of_one_step_is_detected(law: StepNoise, draw: Draw) -> None:
    rng = np.random.default_rng(2)
    values = np.stack([draw(rng, 60) for _ in range(100)])
    sign = 1 if law.both and law.count < 100 else -1
    missed = smaller = 0
    for row in values:
        detectable = step_tests.single(step_tests.summary(row, law), law).detectable
        if detectable is None:
            continue
        for factor in (1.0, 0.5):
            seen = row.copy()
            seen[17] = draw(rng, 1)[0] * (1 + sign * factor * detectable) ** 2
            right = step_tests.single(step_tests.summary(seen, law), law).p_value <= LEVEL
            missed += factor == 1.0 and not right
            smaller += factor == 0.5 and right
    assert missed <= stats.binom.ppf(0.999, 100, 0.01)
    if law.count > 100:  # of few numbers even the smaller ones vary much
        assert smaller < 50


@pytest.mark.parametrize("where", [slice(0, 64), slice(101, 165), slice(1, None, 4), slice(3, None, 4)])
@pytest.mark.parametrize("both", [True, False])
def test_a_detectable_deviation_of_a_quarter_of_the_steps_is_detected(where: slice, both: bool) -> None:
    law, rng = StepNoise(300, both=both), np.random.default_rng(3)
    missed = 0
    for _ in range(60):
        row = rng.chisquare(300, 256)
        detectable = step_tests.patterns(step_tests.summary(row, law), law).detectable
        assert detectable is not None
        assert detectable < 0.15
        row[where] *= (1 - detectable) ** 2
        missed += step_tests.patterns(step_tests.summary(row, law), law).p_value > LEVEL
    assert missed <= stats.binom.ppf(0.999, 60, 0.01)


def test_rates_of_single_steps_that_are_detectable_are_detected() -> None:
    law, rng = BatchSize(2000, 0.05), np.random.default_rng(4)
    detectable = step_tests.single(step_tests.summary(rng.binomial(2000, 0.05, 100), law), law).detectable
    assert detectable == pytest.approx(0.9, abs=0.1)
    missed = 0
    for _ in range(100):
        sizes = rng.binomial(2000, 0.05, 100)
        sizes[50] = rng.binomial(2000, 0.05 * (1 + detectable))
        missed += step_tests.single(step_tests.summary(sizes, law), law).p_value > LEVEL
    assert missed <= stats.binom.ppf(0.999, 100, 0.01)


def test_few_coordinates_say_that_they_see_little() -> None:
    """Ten numbers a step, and gradients beside the noise: not even its absence would be seen at one step."""
    law = StepNoise(10, both=False)
    alone, beside = (step_tests.summary(np.full(50, 10.0 + rest), law) for rest in (0.0, 3.0))
    assert 0.9 < (step_tests.single(alone, law).detectable or 0.0) < 1.0
    assert step_tests.single(beside, law).detectable is None
    assert quietest_step({"bias": (5.0, 5), "weight": (600.0, 600)}, 50).detectable > 0.98


@pytest.mark.parametrize("count", [1, 2, 11, 12, 13, 64, 100, 127])
def test_the_extremes_are_those_of_all_stretches_and_patterns(count: int) -> None:
    law, values = StepNoise(7, both=True), np.random.default_rng(count).chisquare(7, count)
    found = step_tests.summary(values, law, np.arange(1, count + 1) * 10)
    assert found.steps == count
    assert astuple(found.least) == (pytest.approx(values.min()), 10 * (1 + values.argmin()))
    assert astuple(found.most) == (pytest.approx(values.max()), 10 * (1 + values.argmax()))
    assert (found.stretches is not None) == (count >= LEAST_STEPS)
    for length, least, most in map(astuple, found.stretches or ()):
        starts = {*range(0, count - length + 1, length // 2)}
        starts |= {count - length - start for start in starts}
        sums = [values[start : start + length].sum() for start in starts]
        assert (least, most) == (pytest.approx(min(sums)), pytest.approx(max(sums)))
        assert len(starts) <= 2 * (2 * count // length - 1)
    for period, low, least, high, most in map(astuple, found.every or ()):
        classes = [values[start::period] for start in range(period)]
        assert (low, least) in [(len(c), pytest.approx(c.sum())) for c in classes]
        assert (high, most) in [(len(c), pytest.approx(c.sum())) for c in classes]
        surprise = sorted((c.sum() - 7 * len(c)) / len(c) ** 0.5 for c in classes)
        assert surprise[0] == pytest.approx((least - 7 * low) / low**0.5)
        assert surprise[-1] == pytest.approx((most - 7 * high) / high**0.5)


def test_one_huge_step_spoils_nothing_else() -> None:
    """Steps after the one that overflows are looked at as before, and what is no number counts as too much."""
    law, rng = StepNoise(50, both=False), np.random.default_rng(5)
    for huge in (1e30, np.inf, np.nan):
        values = rng.chisquare(50, 100)
        values[10] = huge
        single, patterns = p_values(law, values)
        assert min(single, patterns) > 1e-3
        values[60] = 0.0
        assert p_values(law, values)[0] == 0.0
        values[60], values[64:96] = 50.0, 25.0
        assert p_values(law, values)[1] < 1e-9


def test_a_summary_is_small_however_long_the_run() -> None:
    law = StepNoise(10**6, both=True)
    found = step_tests.summary(np.random.default_rng(6).chisquare(10**6, 30_000), law)
    assert len(json.dumps(json_records.write(found))) < 4096
    assert max(p_values(law, np.full(30_000, 10.0**6))) == 1.0


def test_a_batch_that_returns_is_seen_at_its_step() -> None:
    rng, found = np.random.default_rng(7), []
    for _ in range(2000):
        earlier = rng.binomial(500, 0.05, 30)
        common = rng.binomial(earlier, 0.05)
        worst = max(range(30), key=lambda t: sampling.common_divergence(common[t], earlier[t], 0.05))
        test = sampling.overlap_at_a_step(1, int(common[worst]), int(earlier[worst]), 0.05, 30)
        found.append(test.p_value)
    for level in (0.2, 0.05, 0.01):
        assert (np.array(found) <= level).mean() <= level
    again = sampling.overlap_at_a_step(3, 25, 25, 0.05, 10_000)
    assert again.p_value < 1e-20
    assert again.detectable == pytest.approx(19.0)
    assert sampling.overlap_at_a_step(3, 4, 4, 0.05, 10_000).detectable is None
    with pytest.raises(ValueError, match="common"):
        sampling.overlap_at_a_step(1, 5, 4, 0.05, 10)


def test_the_update_of_a_single_step_is_centred() -> None:
    """Noise of variance 4 and five hundred centred coins of up to 1 in size, the worst of forty steps."""
    rng, found = np.random.default_rng(8), []
    along = rng.uniform(-1.0, 1.0, 500)
    variance = 4.0 + 0.1 * 0.9 * 500
    for _ in range(2000):
        sums = 2.0 * rng.standard_normal(40) + ((rng.random((40, 500)) < 0.1) - 0.1) @ along
        worst = float(sums[np.argmax(np.abs(sums))])
        test = martingale.single(worst, variance, 20.0, weakest=(variance, 20.0, 0.0), test="", tried=40)
        found.append(test.p_value)
    for level in (0.2, 0.05, 0.01):
        assert (np.array(found) <= level).mean() <= level
    assert test.detectable is not None
    shifted = [2.0 * rng.standard_normal() + 20.0 * test.detectable for _ in range(200)]
    seen = [
        martingale.single(x, variance, 20.0, weakest=(variance, 20.0, 0.0), test="", tried=40).p_value for x in shifted
    ]
    assert max(seen) <= LEVEL
    assert martingale.single(0.0, 4.0, 0.0, weakest=(4.0, 0.0, 0.0), test="", tried=1).detectable is None
