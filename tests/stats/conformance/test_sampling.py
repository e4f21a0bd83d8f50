from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats
from support.phases import phase_of

from dpspec import json_records
from dpspec.contract import Check, Phase
from dpspec.stats.binomial import TruncatedSize
from dpspec.stats.conformance import batch_checks, measurement, sampling, table
from dpspec.stats.conformance.batch_checks import BatchSums, SamplingSums
from dpspec.stats.conformance.evidence import RunEvidence
from dpspec.stats.conformance.measurement import LEVEL, POWER, Measurement
from dpspec.stats.conformance.noise_tests import StepNoise, quietest
from dpspec.stats.conformance.sampling import BatchSize, StepExtremes


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.4, 0.9, 1.0])
def test_rate_p_values_are_valid_by_enumeration(rate: float) -> None:
    n = 40
    p = np.array([sampling.inclusions(k, n, rate).p_value for k in range(n + 1)])
    mass = stats.binom.pmf(range(n + 1), n, rate)
    for level in [1e-6, 0.01, 0.05, 0.5, *p]:
        assert mass[p <= level].sum() <= level + 1e-12


@pytest.mark.parametrize(("chances", "rate"), [(20_000, 0.01), (100_000, 0.3)])
def test_a_detectable_rate_is_detected(chances: int, rate: float) -> None:
    detectable = sampling.inclusions(0, chances, rate).detectable
    assert detectable is not None
    rng = np.random.default_rng(2)
    for sign in (-1, 1):
        drawn = rng.binomial(chances, rate * (1 + sign * detectable), 400)
        assert sum(sampling.inclusions(int(k), chances, rate).p_value <= LEVEL for k in drawn) >= 400 * 0.97
        drawn = rng.binomial(chances, rate * (1 + sign * 0.5 * detectable), 400)
        assert sum(sampling.inclusions(int(k), chances, rate).p_value <= LEVEL for k in drawn) < 200


@pytest.mark.parametrize("rate", [1e-300, 1e-320])
def test_a_record_that_is_hardly_ever_drawn_is_surprising(rate: float) -> None:
    assert sampling.inclusions(1, 200, rate).p_value < 1e-15
    assert sampling.record_spread(200, 1, 1, 1437, rate).p_value < 1e-6
    assert sampling.record_spread(200, 0, 0, 1437, rate).p_value == 1.0


@pytest.mark.family
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_variance_p_values_are_valid_by_enumeration(rate: float) -> None:
    steps, records = 3, 5
    mass = stats.binom.pmf(range(records + 1), records, rate)
    law = TruncatedSize(records, rate, records)
    of_records, of_sizes = [], []
    for sizes in product(range(records + 1), repeat=steps):
        sums = steps, sum(sizes), sum(s * s for s in sizes)
        probability = math.prod(mass[s] for s in sizes)
        of_records.append((sampling.record_spread(*sums, records, rate).p_value, probability))
        of_sizes.append((sampling.evenness(*sums, law).p_value, probability))
    for outcomes in (of_records, of_sizes):
        for level in {1e-6, 0.01, 0.05, 0.2, *(p for p, _ in outcomes)}:
            assert math.fsum(probability for p, probability in outcomes if p <= level) <= level + 1e-12


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_p_values_of_the_largest_and_the_smallest_size_are_exact_by_enumeration(rate: float) -> None:
    steps, records = 3, 4
    mass = stats.binom.pmf(range(records + 1), records, rate)
    outcomes: list[tuple[tuple[float, float], float]] = []
    for sizes in product(range(records + 1), repeat=steps):
        extremes, law = sampling.summary(np.array(sizes)), BatchSize(records, rate)
        p_values = sampling.largest(extremes, law).p_value, sampling.smallest(extremes, law).p_value
        outcomes.append((p_values, math.prod(mass[s] for s in sizes)))
    for end in (0, 1):
        for level in {p[end] for p, _ in outcomes}:
            total = math.fsum(probability for p, probability in outcomes if p[end] <= level * (1.0 + 1e-12))
            assert total == pytest.approx(level, rel=1e-9)


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (lambda sizes: np.minimum(sizes, 31), sampling.LARGEST_SIZE),
        (lambda sizes: np.maximum(sizes, 19), sampling.SMALLEST_SIZE),
    ],
)
def test_poisson_batches_that_are_cut_or_filled_to_a_size_are_rejected(edit: Any, name: str) -> None:
    """Each edit acts at a tenth of the steps, so that the variance of the sizes does not show it."""
    phase, records = phase_of("poisson", 200, rate=0.05), 500
    for seed in range(20):
        drawn = np.random.default_rng(seed).binomial(records, 0.05, 200)
        for sizes, is_cut in ((drawn, False), (edit(drawn), True)):
            log = BatchSums(
                steps=200,
                total=int(sizes.sum()),
                squares=int((sizes**2).sum()),
                sizes=sampling.summary(sizes),
            )
            outcomes = batch_checks.Drawn(phase, [(records, log)])
            measured = batch_checks.size_of_each_step.test(outcomes)
            assert isinstance(measured, Measurement)
            assert (measured.p_value <= 1e-6, measured.name == name and is_cut) == (is_cut, is_cut)
            variance = batch_checks.evenness.test(outcomes)
            assert isinstance(variance, Measurement)
            assert variance.p_value > 1e-6


@pytest.mark.parametrize(("steps", "records", "rate"), [(300, 5000, 0.02), (1000, 200, 0.5), (500, 10_000, 0.0002)])
def test_poisson_batches_pass_and_fixed_ones_do_not(steps: int, records: int, rate: float) -> None:
    law = TruncatedSize(records, rate, records)
    for seed in range(50):
        sizes = np.random.default_rng(seed).binomial(records, rate, steps)
        assert sampling.evenness(steps, int(sizes.sum()), int((sizes**2).sum()), law).p_value > 1e-3
    size = round(records * rate)
    assert sampling.evenness(steps, steps * size, steps * size**2, law).p_value < 1e-12


@pytest.mark.parametrize(("steps", "records", "together"), [(60, 1000, 5), (200, 1000, 2), (100, 10_000, 8)])
def test_records_that_are_drawn_together_vary_the_sizes_too_much(steps: int, records: int, together: int) -> None:
    """Windows of a series: each record is drawn at the declared rate, and the whole window with it."""
    law = TruncatedSize(records, 0.05, records)
    sizes = together * np.random.default_rng(1).binomial(records // together, 0.05, steps)
    found = sampling.evenness(steps, int(sizes.sum()), int((sizes**2).sum()), law)
    assert found.p_value < 1e-7
    assert found.measured == pytest.approx(together, rel=0.4)


@pytest.mark.ci
def test_a_detectable_spread_is_detected() -> None:
    records, rate, steps = 100_000, 0.1, 200
    law = TruncatedSize(records, rate, records)
    mean, variance = records * rate, records * rate * (1 - rate)
    rng = np.random.default_rng(4)

    def rejected(test: Callable[..., Measurement], ratio: float, *more: Any) -> int:
        found = 0
        for _ in range(100):
            sizes = np.rint(mean + math.sqrt(variance * ratio) * rng.standard_normal(steps)).astype(int)
            found += test(steps, int(sizes.sum()), int((sizes**2).sum()), *more).p_value <= LEVEL
        return found

    of_sizes = sampling.evenness(steps, 0, 0, law).detectable
    of_records = sampling.record_spread(steps, 0, 0, records, rate).detectable
    assert of_sizes is not None
    assert of_records is not None
    for sign in (-1, 1):
        assert rejected(sampling.evenness, max(0.0, 1 + sign * of_sizes), law) >= stats.binom.ppf(0.001, 100, 0.99)
        ratio = max(0.0, 1 + sign * of_records)
        assert rejected(sampling.record_spread, ratio, records, rate) >= stats.binom.ppf(0.001, 100, 0.99)


def test_too_few_small_batches_can_show_nothing() -> None:
    assert sampling.overlap(1, 1, 20, 0.1).detectable is None
    assert sampling.evenness(2, 2, 2, TruncatedSize(100, 0.01, 100)).detectable is None
    assert sampling.evenness(9, 0, 0, TruncatedSize(1437, 1e-300, 1437)).p_value == 1.0


def overlaps(batches: np.ndarray, lag: int) -> tuple[int, int]:
    """Return the overlaps of batches (steps, records) with those ``lag`` steps before, and the sizes of those."""
    return int((batches[lag:] & batches[:-lag]).sum()), int(batches[:-lag].sum())


@pytest.mark.family
@pytest.mark.parametrize("lag", [1, 5])
@pytest.mark.parametrize("scheme", ["poisson", "fixed"])
def test_independent_batches_pass(lag: int, scheme: str) -> None:
    rng = np.random.default_rng(7)
    p = []
    for _ in range(60):
        coins = rng.random((25, 60))
        batches = coins < 0.2 if scheme == "poisson" else np.argsort(coins, axis=1) < 12
        p.append(sampling.overlap(lag, *overlaps(batches, lag), 0.2).p_value)
    for level in (0.3, 0.1, 0.01):
        assert (np.array(p) <= level).mean() <= level


def test_an_order_that_is_gone_through_does_not() -> None:
    rng = np.random.default_rng(8)
    shuffled = np.concatenate([rng.permutation(500).reshape(10, 50) for _ in range(20)])
    batches = np.zeros((200, 500), dtype=bool)
    batches[np.arange(200)[:, None], shuffled] = True
    found = sampling.overlap(1, *overlaps(batches, 1), 0.1)
    assert found.p_value < LEVEL
    assert found.measured < 0.02
    always = np.zeros((200, 500), dtype=bool)
    always[np.arange(200)[:, None], np.arange(500).reshape(10, 50)[np.arange(200) % 10]] = True
    assert sampling.overlap(10, *overlaps(always, 10), 0.1).p_value < LEVEL
    counts = batches.sum(0)
    even = sampling.record_spread(500, int(counts.sum()), int((counts**2).sum()), 200, 0.1)
    assert even.p_value < LEVEL
    assert even.measured < 0.1


@pytest.mark.ci
@given(chances=st.integers(20, 300), rate=st.floats(0.02, 0.9), fewer=st.booleans())
@example(chances=27, rate=0.535, fewer=False)  # where a normal law promised 0.99 and the binomial keeps 0.906
def test_what_a_test_of_overlaps_would_see_it_sees_with_the_stated_power(chances, rate, fewer):
    """Oracle: the binomial law, summed over all counts that are rejected."""
    detectable = sampling.overlap(1, round(chances * rate), chances, rate, fewer=fewer).detectable
    assume(detectable is not None)
    assert detectable is not None
    counts = np.arange(chances + 1)
    seen = np.array([sampling.overlap(1, int(k), chances, rate, fewer=fewer).p_value <= LEVEL for k in counts])
    others = [rate * (1.0 + detectable), *([rate * (1.0 - detectable)] if fewer else [])]
    powers = [float(stats.binom.pmf(counts, chances, other)[seen].sum()) for other in others if 0.0 < other < 1.0]
    assert all(power >= POWER - 1e-9 for power in powers)


def test_weighted_records_are_uneven() -> None:
    rng = np.random.default_rng(10)
    rates = np.where(np.arange(400) % 2, 0.05, 0.15)
    counts = (rng.random((150, 400)) < rates).sum(0)
    assert sampling.record_spread(400, int(counts.sum()), int((counts**2).sum()), 150, 0.1).p_value < LEVEL
    counts = (rng.random((150, 400)) < 0.1).sum(0)
    assert sampling.record_spread(400, int(counts.sum()), int((counts**2).sum()), 150, 0.1).p_value > 1e-3


Inside = npt.NDArray[np.bool_]

RECORDS, SIZE, STEPS = 400, 40, 300

FIXED = phase_of("fixed", STEPS, batch_size=SIZE)
TRUNCATED = phase_of("truncated-poisson", STEPS, rate=0.1, max_batch=44)


def fixed(coins: npt.NDArray[np.float64]) -> Inside:
    return np.asarray(coins.argsort(axis=1).argsort(axis=1) < SIZE)


def truncated(coins: npt.NDArray[np.float64]) -> Inside:
    return np.asarray((coins < 0.1) & (coins.argsort(axis=1).argsort(axis=1) < 44))


def the_check(inside: Inside, phase: Phase, *, counted: bool = True) -> Check:
    sizes, counts = inside.sum(axis=1), inside.sum(axis=0)
    sums = BatchSums(
        steps=len(sizes),
        total=int(sizes.sum()),
        squares=int((sizes**2).sum()),
        spread=int((counts**2).sum()),
        above=sampling.excess(counts, len(sizes) * 0.1) if counted else None,
    )
    run = RunEvidence(sampling_log=SamplingSums(records=inside.shape[1], batches=(sums,)))
    checks = table.of_runs([phase], [run])
    (found,) = [check for check in checks if check.note.startswith("inclusions per record")]
    return found


SCHEMES = pytest.mark.parametrize(("draw", "phase"), [(fixed, FIXED), (truncated, TRUNCATED)])


@SCHEMES
def test_a_record_in_every_batch_is_seen(draw: Callable[..., Inside], phase: Phase) -> None:
    coins = np.random.default_rng(3).random((STEPS, RECORDS))
    coins[:, 0] = 0.0
    found = the_check(draw(coins), phase)
    assert found.p_value < 1e-12
    assert found.detectable is not None
    assert found.declared is not None
    assert found.measured is not None
    assert found.measured > (1.0 + found.detectable) * found.declared


@SCHEMES
def test_records_drawn_at_two_rates_are_seen(draw: Callable[..., Inside], phase: Phase) -> None:
    coins = np.random.default_rng(4).random((STEPS, RECORDS))
    coins[:, : RECORDS // 2] /= 1.3
    coins[:, RECORDS // 2 :] /= 0.7
    assert the_check(draw(coins), phase).p_value < 1e-6


@SCHEMES
def test_sound_batches_are_not_surprising(draw: Callable[..., Inside], phase: Phase) -> None:
    rng = np.random.default_rng(5)
    p_values = [the_check(draw(rng.random((STEPS, RECORDS))), phase).p_value for _ in range(20)]
    assert min(p_values) > 1e-2


@pytest.mark.ci
def test_the_promised_power_is_there() -> None:
    """Half of the records drawn more often: the mean excess of the plan is rejected almost always."""
    run = table.Run(phases=[FIXED], records=RECORDS, parameters=10, groups={}, capabilities=["sampling-log"])
    planned = {check.note.partition(",")[0]: check.detectable for check in table.foresee(run)}
    promised = planned["inclusions per record"]
    assert promised is not None
    assert 0.0 < promised < 2.0
    rng, uneven = np.random.default_rng(6), np.ones(RECORDS)

    def drawn() -> Inside:
        return fixed(rng.random((STEPS, RECORDS)) / uneven)

    declared = the_check(drawn(), FIXED).declared
    assert declared is not None
    while np.mean([the_check(drawn(), FIXED).measured for _ in range(20)]) < (1.0 + promised) * declared:
        uneven[: RECORDS // 2] += 0.05
    assert sum(the_check(drawn(), FIXED).p_value <= LEVEL for _ in range(30)) >= 29


def test_without_counts_the_check_abstains() -> None:
    found = the_check(fixed(np.random.default_rng(1).random((STEPS, RECORDS))), FIXED, counted=False)
    assert (found.p_value, found.detectable) == (1.0, None)
    assert found.note == "inclusions per record, phase 1"
    assert found.remark.startswith("not tested: ")


@pytest.mark.parametrize(
    ("records", "cap", "steps", "rate"),
    [
        (3, 1, 3, 0.4),
        (3, 2, 3, 0.7),
        (2, 1, 5, 0.3),
        (3, 1, 4, None),
        (4, 2, 3, None),
        (3, 2, 5, None),
        (5, 2, 2, None),
    ],
)
def test_the_tail_is_above_that_of_all_batches(records: int, cap: int, steps: int, rate: float | None) -> None:
    """Return all truncated batches, or all batches of the fixed size ``cap`` if ``rate`` is None."""
    law: dict[tuple[int, ...], float] = {}
    for entered in product((0, 1), repeat=records):
        inside = [number for number, one in enumerate(entered) if one]
        kept = list(combinations(inside, min(cap, len(inside))))
        for chosen in kept:
            key = tuple(int(number in chosen) for number in range(records))
            if rate is not None:
                chance = rate ** len(inside) * (1.0 - rate) ** (records - len(inside))
                law[key] = law.get(key, 0.0) + chance / len(kept)
            elif len(inside) == cap:
                law[key] = 1.0 / math.comb(records, cap)
    q = cap / records if rate is None else rate
    runs = [
        (sampling.excess(np.sum(run, axis=0), steps * q), float(np.prod([law[batch] for batch in run])))
        for run in product(law, repeat=steps)
    ]
    for total in sorted({above for above, _ in runs}):
        exact = sum(chance for above, chance in runs if above >= total - 1e-9)
        assert sampling.record_excess(records, total, steps, q).p_value >= exact * (1.0 - 1e-9)


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
    written = json.loads(json.dumps(json_records.write(sampling.summary(values))))
    found = json_records.read(StepExtremes, written, "sums")
    return sampling.each_step(found, law).p_value


@pytest.mark.family
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
        detectable = sampling.each_step(sampling.summary(row), law).detectable
        if detectable is None:
            continue
        for factor in (1.0, 0.5):
            seen = row.copy()
            seen[17] = draw(rng, 1)[0] * (1 + sign * factor * detectable) ** 2
            right = sampling.each_step(sampling.summary(seen), law).p_value <= LEVEL
            missed += factor == 1.0 and not right
            smaller += factor == 0.5 and right
    assert missed <= stats.binom.ppf(0.999, 100, 0.01)
    if law.count > 100:  # of few numbers even the smaller ones vary much
        assert smaller < 50


def test_rates_of_single_steps_that_are_detectable_are_detected() -> None:
    law, rng = BatchSize(2000, 0.05), np.random.default_rng(4)
    detectable = sampling.each_step(sampling.summary(rng.binomial(2000, 0.05, 100)), law).detectable
    assert detectable == pytest.approx(0.9, abs=0.1)
    missed = 0
    for _ in range(100):
        sizes = rng.binomial(2000, 0.05, 100)
        sizes[50] = rng.binomial(2000, 0.05 * (1 + detectable))
        missed += sampling.each_step(sampling.summary(sizes), law).p_value > LEVEL
    assert missed <= stats.binom.ppf(0.999, 100, 0.01)


def test_few_coordinates_say_that_they_see_little() -> None:
    """Ten numbers per step with gradients in the noise: a single step does not reveal even missing noise."""
    law = StepNoise(10, both=False)
    alone, beside = (sampling.summary(np.full(50, 10.0 + rest)) for rest in (0.0, 3.0))
    assert 0.9 < (sampling.each_step(alone, law).detectable or 0.0) < 1.0
    assert sampling.each_step(beside, law).detectable is None
    assert quietest({"bias": (5.0, 5), "weight": (600.0, 600)}, 50)[1].detectable > 0.98


@pytest.mark.parametrize("count", [1, 2, 64])
def test_the_extremes_are_those_of_all_steps(count: int) -> None:
    values = np.random.default_rng(count).chisquare(7, count)
    found = sampling.summary(values, np.arange(1, count + 1) * 10)
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
