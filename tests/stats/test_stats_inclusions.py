"""Who is drawn too often, in batches of a fixed size and in truncated ones: levels by enumeration, power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dpspec.contract import Check, FrozenMap, Phase
from dpspec.stats.conformance import expectations, run_checks, sampling
from dpspec.stats.conformance.evidence.reported import BatchSums, SamplingSums
from dpspec.stats.conformance.evidence.run import RunEvidence

Inside = npt.NDArray[np.bool_]

RECORDS, SIZE, STEPS = 400, 40, 300

PHASE = {"steps": STEPS, "noise_multiplier": 1.0, "clip_norm": 1.0}
FIXED = FrozenMap({**PHASE, "sampling": {"scheme": "fixed", "batch_size": SIZE}})
TRUNCATED = FrozenMap({**PHASE, "sampling": {"scheme": "truncated-poisson", "rate": 0.1, "max_batch": 44}})
POISSON = FrozenMap({**PHASE, "sampling": {"scheme": "poisson", "rate": 0.1}})


def fixed(coins: npt.NDArray[np.float64]) -> Inside:
    """Batches of a fixed size, (steps, records): those of the lowest coins."""
    return np.asarray(coins.argsort(axis=1).argsort(axis=1) < SIZE)


def truncated(coins: npt.NDArray[np.float64]) -> Inside:
    return np.asarray((coins < 0.1) & (coins.argsort(axis=1).argsort(axis=1) < 44))


EXCESS, MOST = "inclusions per record", "the record drawn most often"


def the_check(inside: Inside, phase: FrozenMap, *, told: bool = True, note: str = EXCESS) -> Check:
    sizes, counts = inside.sum(axis=1), inside.sum(axis=0)
    sums = BatchSums(
        steps=len(sizes),
        total=int(sizes.sum()),
        squares=int((sizes**2).sum()),
        spread=int((counts**2).sum()),
        above=sampling.excess(counts, len(sizes) * 0.1) if told else None,
        most=int(counts.max()) if told else None,
    )
    run = RunEvidence(sampling_log=SamplingSums(records=inside.shape[1], batches=(sums,)))
    checks = run_checks.of_runs([Phase.of(phase)], [run])
    (found,) = [check for check in checks if check.note.startswith(note)]
    return found


def poisson(coins: npt.NDArray[np.float64]) -> Inside:
    return np.asarray(coins < 0.1)


ALL = pytest.mark.parametrize(("draw", "phase"), [(fixed, FIXED), (truncated, TRUNCATED), (poisson, POISSON)])
SCHEMES = pytest.mark.parametrize(("draw", "phase"), [(fixed, FIXED), (truncated, TRUNCATED)])


@SCHEMES
def test_a_record_in_every_batch_is_seen(draw: Callable[..., Inside], phase: FrozenMap) -> None:
    coins = np.random.default_rng(3).random((STEPS, RECORDS))
    coins[:, 0] = 0.0
    found = the_check(draw(coins), phase)
    assert found.p_value < 1e-12
    assert found.detectable is not None
    assert found.declared is not None
    assert found.measured is not None
    assert found.measured > (1.0 + found.detectable) * found.declared


@SCHEMES
def test_records_drawn_at_two_rates_are_seen(draw: Callable[..., Inside], phase: FrozenMap) -> None:
    """Half of them 1.3 times as often as declared, the others 0.7 times."""
    coins = np.random.default_rng(4).random((STEPS, RECORDS))
    coins[:, : RECORDS // 2] /= 1.3
    coins[:, RECORDS // 2 :] /= 0.7
    assert the_check(draw(coins), phase).p_value < 1e-6


@SCHEMES
def test_sound_batches_are_not_surprising(draw: Callable[..., Inside], phase: FrozenMap) -> None:
    rng = np.random.default_rng(5)
    p_values = [the_check(draw(rng.random((STEPS, RECORDS))), phase).p_value for _ in range(20)]
    assert min(p_values) > 1e-2


@ALL
def test_a_record_that_is_drawn_somewhat_more_often_is_seen(draw: Callable[..., Inside], phase: FrozenMap) -> None:
    """As often as the plan says, and not where all are drawn alike."""
    rng = np.random.default_rng(7)
    coins = [rng.random((STEPS, RECORDS)) for _ in range(20)]
    sound = [the_check(draw(one), phase, note=MOST) for one in coins]
    assert min(check.p_value for check in sound) > 1e-3
    assert sound[0].detectable is not None
    assert 0.5 < sound[0].detectable < 2.0
    for one in coins:
        one[:, 17] /= 1.0 + sound[0].detectable * (1.15 if draw is truncated else 1.0)
    assert sum(the_check(draw(one), phase, note=MOST).p_value <= 1e-6 for one in coins) >= 19


def test_the_most_of_all_is_exact_for_one_record() -> None:
    for most in range(8):
        found = sampling.most_inclusions(1, most, 7, 0.3)
        assert found.p_value == pytest.approx(binom.sf(most - 1, 7, 0.3))
    assert sampling.most_inclusions(5, 3, 3, 0.3).p_value == pytest.approx(5 * 0.3**3)
    assert sampling.most_inclusions(5, 3, 3, 0.3).detectable is None
    assert sampling.most_inclusions(5, 3, 3, 1.0).p_value == 1.0


def test_the_promised_power_is_there() -> None:
    """A mean excess as large as the plan says is rejected nearly always: of half of the records, drawn more often."""
    promised = next(
        check.detectable
        for check in expectations.foresee(
            expectations.Run(
                phases=[FIXED],
                records=RECORDS,
                parameters=10,
                groups={},
                capabilities=["sampling-log"],
            )
        )
        if check.note.startswith("inclusions per record")
    )
    assert promised is not None
    assert 0.0 < promised < 2.0
    rng = np.random.default_rng(6)
    rejected, uneven = 0, 1.0
    declared = the_check(fixed(rng.random((STEPS, RECORDS))), FIXED).declared
    assert declared is not None
    while np.mean([excess_of(rng, uneven) for _ in range(20)]) < (1.0 + promised) * declared:
        uneven += 0.05
    for _ in range(30):
        rejected += the_check(fixed(weighted(rng, uneven)), FIXED).p_value <= 1e-6
    assert rejected >= 29


def weighted(rng: np.random.Generator, uneven: float) -> npt.NDArray[np.float64]:
    coins = rng.random((STEPS, RECORDS))
    coins[:, : RECORDS // 2] /= uneven
    return coins


def excess_of(rng: np.random.Generator, uneven: float) -> float:
    return sampling.excess(fixed(weighted(rng, uneven)).sum(axis=0), STEPS * 0.1) / RECORDS


@pytest.mark.parametrize(("records", "size", "steps"), [(3, 1, 4), (4, 2, 3), (3, 2, 5), (5, 2, 2)])
def test_the_tail_is_above_that_of_all_batches_of_a_fixed_size(records: int, size: int, steps: int) -> None:
    batches = [np.isin(np.arange(records), chosen) for chosen in combinations(range(records), size)]
    rate, chance = size / records, 1.0 / len(batches) ** steps
    above = sorted(sampling.excess(sum(run), steps * rate) for run in product(batches, repeat=steps))
    assert_tail(above, chance, records, steps, rate)


@pytest.mark.parametrize(("records", "cap", "steps", "rate"), [(3, 1, 3, 0.4), (3, 2, 3, 0.7), (2, 1, 5, 0.3)])
def test_the_tail_is_above_that_of_all_truncated_batches(records: int, cap: int, steps: int, rate: float) -> None:
    law: dict[tuple[int, ...], float] = {}
    for entered in product((0, 1), repeat=records):
        inside = [number for number, one in enumerate(entered) if one]
        kept = list(combinations(inside, min(cap, len(inside))))
        for chosen in kept:
            key = tuple(int(number in chosen) for number in range(records))
            chance = rate ** len(inside) * (1.0 - rate) ** (records - len(inside))
            law[key] = law.get(key, 0.0) + chance / len(kept)
    runs = [
        (sampling.excess(np.sum(run, axis=0), steps * rate), float(np.prod([law[batch] for batch in run])))
        for run in product(law, repeat=steps)
    ]
    for total in sorted({above for above, _ in runs}):
        exact = sum(chance for above, chance in runs if above >= total - 1e-9)
        assert sampling.record_excess(records, total, steps, rate).p_value >= exact * (1.0 - 1e-9)


def assert_tail(above: Sequence[float], chance: float, records: int, steps: int, rate: float) -> None:
    assert sampling.record_excess(records, above[0], steps, rate).p_value == pytest.approx(1.0, abs=1e-6)
    for number, total in enumerate(above):
        exact = chance * (len(above) - number)
        assert sampling.record_excess(records, total, steps, rate).p_value >= exact * (1.0 - 1e-9)


def test_one_batch_of_a_fixed_size_says_nothing() -> None:
    found = the_check(fixed(np.random.default_rng(1).random((1, RECORDS))), ONCE)
    assert found.p_value == pytest.approx(1.0, abs=1e-6)


ONCE = FrozenMap({**FIXED, "steps": 1})


def test_stored_runs_that_do_not_tell_are_not_tested_and_the_check_says_so() -> None:
    found = the_check(fixed(np.random.default_rng(1).random((STEPS, RECORDS))), FIXED, told=False)
    assert (found.p_value, found.detectable) == (1.0, None)
    assert found.note.startswith("inclusions per record, phase 1, not tested: ")
    single = the_check(fixed(np.random.default_rng(1).random((STEPS, RECORDS))), FIXED, told=False, note=MOST)
    assert (single.p_value, single.detectable) == (1.0, None)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    more=st.integers(1, 9),
    rate=st.floats(0.01, 0.99),
)
def test_p_falls_where_a_record_is_drawn_more_often(counts: list[int], more: int, rate: float) -> None:
    steps = 40
    before = sampling.record_excess(len(counts), sampling.excess(counts, steps * rate), steps, rate)
    counts[0] += more
    after = sampling.record_excess(len(counts), sampling.excess(counts, steps * rate), steps, rate)
    assert after.p_value <= before.p_value * (1.0 + 1e-6)
    assert 0.0 <= after.p_value <= 1.0


def test_an_excess_is_no_more_than_the_squares() -> None:
    sums = BatchSums(steps=2, total=4, squares=8, spread=4, above=5.0)
    assert "above must be at most spread" in str(SamplingSums(records=4, batches=(sums,)).problem())


@pytest.mark.parametrize(("most", "right"), [(0, False), (1, False), (2, True), (3, False), (9, False)])
def test_the_most_fits_the_other_sums(most: int, right: bool) -> None:
    """Records that were in 2, 2, 1 and 1 of two batches."""
    sums = BatchSums(steps=2, total=6, squares=18, spread=10, most=most)
    assert (SamplingSums(records=4, batches=(sums,)).problem() is None) == right
