"""Batches against all that are remembered: levels by enumeration and simulation, lies about what is drawn together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise, product
from math import comb, exp

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dpspec import json_records
from dpspec.contract import Check, FrozenMap, Phase
from dpspec.stats.conformance import expectations, run_checks, sampling
from dpspec.stats.conformance.evidence.reported import BatchSums, Closest, SamplingSums, TogetherSums
from dpspec.stats.conformance.evidence.run import RunEvidence
from dpspec.stats.conformance.sampling.joint import log_tail

Batch = npt.NDArray[np.int64]
Draw = Callable[[np.random.Generator], Batch]

RECORDS, RATE, STEPS = 200, 0.1, 80

ALIKE, TWO = "batches against others of their size, phase 1", "any two batches, phase 1"

SAMPLING = {
    "poisson": {"scheme": "poisson", "rate": RATE},
    "fixed": {"scheme": "fixed", "batch_size": round(RECORDS * RATE)},
    "truncated-poisson": {"scheme": "truncated-poisson", "rate": RATE, "max_batch": 24},
}
SCHEMES = pytest.mark.parametrize("scheme", SAMPLING)


def declared(scheme: str, steps: int = STEPS) -> FrozenMap:
    return FrozenMap({"steps": steps, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": SAMPLING[scheme]})


def size(scheme: str, random: np.random.Generator) -> int:
    drawn = int(random.binomial(RECORDS, RATE))
    return {"poisson": drawn, "fixed": round(RECORDS * RATE), "truncated-poisson": min(drawn, 24)}[scheme]


def sound(scheme: str, random: np.random.Generator) -> Batch:
    return random.choice(RECORDS, size(scheme, random), replace=False)


def remembered(batches: list[Batch], records: int = RECORDS) -> TogetherSums:
    log = sampling.RememberedBatches(records, [len(batches)])
    for batch in batches:
        log.add(batch)
    return log.sums(0)


def p_values(sums: TogetherSums, records: int = RECORDS) -> tuple[float, float]:
    """Of both tests."""
    alike = sampling.alike(sums.looked, sums.most, sums.least, sums.references)
    one = sums.closest
    assert one is not None
    two = sampling.closest(one.common, one.size, one.before, records, sums.pairs, one.lag)
    return alike.p_value, two.p_value


def blocks(width: int) -> Callable[[str, np.random.Generator, list[Batch]], Batch]:
    """Records enter ``width`` at a time, batches have the right sizes, and each record the right rate."""

    def draw(scheme: str, random: np.random.Generator, before: list[Batch]) -> Batch:
        order = random.permutation(RECORDS // width)[:, None] * width + np.arange(width)
        return order.ravel()[: size(scheme, random)]

    return draw


def cycle(scheme: str, random: np.random.Generator, before: list[Batch]) -> Batch:
    """The same seven batches for ever."""
    return before[-7] if len(before) >= 7 else sound(scheme, random)


def one_coin(scheme: str, random: np.random.Generator, before: list[Batch]) -> Batch:
    """All from one half of the records."""
    half = random.integers(2) * (RECORDS // 2)
    return half + random.choice(RECORDS // 2, size(scheme, random), replace=False)


def reused(scheme: str, random: np.random.Generator, before: list[Batch]) -> Batch:
    """Twenty batches, drawn once, in ever new orders."""
    return before[random.integers(20)] if len(before) >= 20 else sound(scheme, random)


@SCHEMES
@pytest.mark.parametrize("lie", [blocks(2), blocks(4), blocks(8), cycle, one_coin, reused])
def test_what_is_drawn_together_is_seen(lie: Callable[..., Batch], scheme: str) -> None:
    random, batches = np.random.default_rng(11), list[Batch]()
    for _ in range(STEPS):
        batches.append(lie(scheme, random, batches))
    assert p_values(remembered(batches))[0] < 1e-9


@SCHEMES
def test_a_batch_that_returns_once_is_seen_at_any_distance(scheme: str) -> None:
    random = np.random.default_rng(12)
    batches = [sound(scheme, random) for _ in range(STEPS)]
    assert p_values(remembered(batches))[1] > 1e-3
    batches[70] = batches[33]
    sums = remembered(batches)
    assert p_values(sums)[1] < 1e-12
    assert sums.closest is not None
    assert sums.closest.lag == 37


def test_pairs_among_a_few_records_are_seen_from_half_of_them_on() -> None:
    """As docs/explanation/conformance.md says: of 80 steps, all pairs and half of them, not one in ten."""
    found = {}
    for part in (1.0, 0.5, 0.1):
        random, whole = np.random.default_rng(13), round(part * RECORDS)
        batches = []
        for _ in range(STEPS):
            paired = 2 * np.flatnonzero(random.random(whole // 2) < RATE)
            alone = whole + np.flatnonzero(random.random(RECORDS - whole) < RATE)
            batches.append(np.concatenate([paired, paired + 1, alone]))
        found[part] = p_values(remembered(batches))[0]
    assert found[1.0] < 1e-30
    assert found[0.5] < 1e-9
    assert found[0.1] > 1e-6


def test_a_cycle_longer_than_what_is_remembered_is_met_where_batches_are_kept_spread_out() -> None:
    random = np.random.default_rng(14)
    ring = [random.choice(100, 15, replace=False) for _ in range(300)]
    assert p_values(remembered([ring[t % 300] for t in range(900)], 100), 100)[1] < 1e-6


def test_sound_batches_are_not_surprising() -> None:
    """400 runs: the smallest p is no smaller than that of so many, and shares are no larger than declared."""
    found, looked, most, least = [], 0, 0, 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        scheme = list(SAMPLING)[seed % 3]
        sums = remembered([sound(scheme, random) for _ in range(12)])
        found.append(p_values(sums))
        looked, most, least = looked + sums.looked, most + sums.most, least + sums.least
    p = np.array(found)
    assert p.min() > 1e-4
    assert ((p <= 0.05).mean(axis=0) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 400)).all()
    share, spread = 1 / 16, np.sqrt(15) / 16 / np.sqrt(looked)
    assert share / 2 < least / looked < share + 4 * spread  # of the first steps several are often alike
    assert share / 2 < most / looked < share + 4 * spread


def all_runs(records: int, size: int, steps: int) -> Iterator[tuple[float, list[Batch]]]:
    """Runs of batches of a fixed size with their probabilities; ``size`` 0: of any, at rate 0.4."""
    sizes = range(records + 1) if size == 0 else [size]
    sets = [np.array(one, dtype=np.int64) for k in sizes for one in combinations(range(records), k)]
    for run in product(sets, repeat=steps):
        drawn = sum(map(len, run))
        coins = 0.4**drawn * 0.6 ** (steps * records - drawn)
        yield float(coins if size == 0 else len(sets) ** -steps), list(run)


@pytest.mark.parametrize(("records", "size"), [(2, 1), (3, 1), (4, 2), (5, 1), (5, 2), (6, 1), (3, 0)])
def test_both_tails_are_above_those_of_all_runs(records: int, size: int) -> None:
    """Every run of three batches: how probable it is that p is so small."""
    chances: tuple[dict[float, float], ...] = (defaultdict(float), defaultdict(float))
    for chance, run in all_runs(records, size, 3):
        sums = remembered(run, records)
        found = p_values(sums, records) if sums.pairs else (1.0, 1.0)
        for counter, p in zip(chances, found, strict=True):
            counter[p] += chance
    for counter in chances:
        assert sum(counter.values()) == pytest.approx(1.0)
        for p in counter:
            assert sum(chance for other, chance in counter.items() if other <= p) <= p * (1.0 + 1e-9)


@pytest.mark.parametrize("records", [2, 3, 7])
def test_the_hypergeometric_tail_is_bounded_and_exact_at_its_ends(records: int) -> None:
    for one, other in product(range(1, records), repeat=2):
        support = range(max(0, one + other - records), min(one, other) + 1)
        law = {k: comb(other, k) * comb(records - other, one - k) / comb(records, one) for k in support}
        for k in support:
            upper = k * records >= one * other
            tail = sum(chance for c, chance in law.items() if (c >= k if upper else c <= k))
            bound = exp(log_tail(k, one, other, records))
            assert tail * (1.0 - 1e-12) <= bound <= 1.0
            if k == (support[-1] if upper else support[0]):
                assert bound == pytest.approx(tail)


@pytest.mark.parametrize("common", [0, 2, 5, 30, 60, 100])
def test_far_tails_are_within_a_small_factor(common: int) -> None:
    records, size = 1000, 100
    law = [comb(size, k) * comb(records - size, size - k) for k in range(size + 1)]
    far = law[common:] if common >= 10 else law[: common + 1]
    exact = sum(far) / comb(records, size)
    assert exact <= exp(log_tail(common, size, size, records)) * (1 + 1e-9) <= 1.5 * exact


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_tails_fall_away_from_the_mean_whichever_batch_is_the_earlier(data: st.DataObject) -> None:
    records = data.draw(st.integers(2, 10**6))
    one, other = (data.draw(st.integers(1, records - 1)) for _ in range(2))
    low, high = max(0, one + other - records), min(one, other)
    counts = sorted(data.draw(st.lists(st.integers(low, high), min_size=1, max_size=8, unique=True)))
    tails = [log_tail(c, one, other, records) for c in counts]
    assert all(tail <= 0.0 for tail in tails)
    assert tails == pytest.approx([log_tail(c, other, one, records) for c in counts], abs=1e-5)
    above = [tail for c, tail in zip(counts, tails, strict=True) if c * records >= one * other]
    below = [tail for c, tail in zip(counts, tails, strict=True) if c * records < one * other]
    assert all(later <= earlier + 1e-5 for earlier, later in pairwise(above))
    assert all(earlier <= later + 1e-5 for earlier, later in pairwise(below))


def test_counts_are_binomial() -> None:
    found = sampling.alike(79, 20, 3, 15)
    assert found.p_value == pytest.approx(2 * binom.sf(19, 79, 1 / 16))
    assert found.measured == 20 / 79
    assert sampling.alike(79, 3, 20, 15) == found
    assert sampling.alike(4, 4, 0, 15).detectable is None
    assert found.detectable is not None
    share = (1 + found.detectable) / 16
    rejected = [most for most in range(80) if sampling.alike(79, most, 0, 15).p_value <= 1e-6]
    assert binom.sf(min(rejected) - 1, 79, share) == pytest.approx(0.99)


@pytest.mark.parametrize("counts", [(3, 2, 2, 15), (0, 0, 0, 15), (3, -1, 0, 15), (3, 1, 1, 0)])
def test_counts_that_no_run_has_are_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="need most, least"):
        sampling.alike(*counts)


@pytest.mark.parametrize("one", [(5, 4, 6, 10, 1), (0, 6, 6, 10, 1), (0, 0, 1, 10, 1), (1, 2, 2, 10, 0)])
def test_pairs_that_no_batches_are_are_refused(one: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="need two batches"):
        sampling.closest(*one, lag=1)


@pytest.mark.parametrize("at", [0, 1, 5, 11, 29])
def test_a_memory_that_is_restored_goes_on_to_the_bit(at: int) -> None:
    random = np.random.default_rng(15)
    batches = [sound("poisson", random) for _ in range(30)]
    whole, first = (sampling.RememberedBatches(RECORDS, [10, 20]) for _ in range(2))
    for batch in batches:
        whole.add(batch)
    for batch in batches[:at]:
        first.add(batch)
    second = sampling.RememberedBatches(RECORDS, [10, 20])
    kept = {name: array.copy() for name, array in first.state().items()}
    first.add(batches[at])
    second.restore(kept)
    for batch in batches[at:]:
        second.add(batch)
    assert [second.sums(phase) for phase in (0, 1)] == [whole.sums(phase) for phase in (0, 1)]
    assert all(np.array_equal(array, whole.state()[name]) for name, array in second.state().items())


@pytest.mark.parametrize("phases", [[1], [7], [3, 4], [300], [100, 1, 250]])
def test_what_is_foreseen_is_what_a_run_counts(phases: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.remembered, "_LOOKED", 128)
    random = np.random.default_rng(16)
    log = sampling.RememberedBatches(40, phases)
    for _ in range(sum(phases)):
        log.add(random.choice(40, 2, replace=False))
    counted = [(sums.looked, sums.pairs) for sums in map(log.sums, range(len(phases)))]
    assert counted == sampling.foreseen(40, phases)


def test_nothing_is_kept_of_more_steps_than_are_declared_or_of_empty_and_full_batches() -> None:
    log = sampling.RememberedBatches(5, [4])
    for batch in (range(5), range(0), range(5), range(2), range(2), range(2)):
        log.add(np.array(batch, dtype=np.int64))
    assert log.sums(0) == TogetherSums(looked=0, references=4, most=0, least=0, pairs=0)


def test_records_whose_numbers_have_gaps() -> None:
    """They get numbers of their own; what batches have in common stays as it is."""
    random = np.random.default_rng(17)
    there = np.sort(random.choice(900, RECORDS, replace=False))
    batches = [sound("poisson", random) for _ in range(STEPS)]
    numbered = sampling.Numbered(RECORDS, 900)
    renamed = [numbered.of(there[batch]) for batch in batches]
    assert all(one is not None and len(set(one.tolist())) == len(one) for one in renamed)
    found = [one for one in renamed if one is not None]
    assert all(
        len(np.intersect1d(found[t], found[s])) == len(np.intersect1d(batches[t], batches[s]))
        for t, s in combinations(range(0, STEPS, 9), 2)
    )
    assert min(p_values(remembered(found))) > 1e-3
    assert sampling.Numbered(2, 9).of(np.array([1, 4, 7])) is None


def checks_of(sums: TogetherSums | None, scheme: str = "fixed", steps: int = STEPS) -> dict[str, Check]:
    total = steps * 20
    batch = BatchSums(steps=steps, total=total, squares=20 * total, together=sums)
    run = RunEvidence(sampling_log=SamplingSums(records=RECORDS, batches=(batch,)))
    found = run_checks.of_runs([Phase.of(declared(scheme, steps))], [run])
    return {note: check for check in found for note in (ALIKE, TWO) if check.note.startswith(note)}


@SCHEMES
def test_stored_runs_that_do_not_tell_are_not_tested_and_the_checks_say_so(scheme: str) -> None:
    for check in checks_of(None, scheme).values():
        assert (check.p_value, check.detectable) == (1.0, None)
        assert "not tested: no trial tells of it" in check.note
    lonely = TogetherSums(looked=0, references=15, most=0, least=0, pairs=0)
    assert all("hardly any record" in check.note for check in checks_of(lonely, scheme, 1).values())
    random = np.random.default_rng(18)
    made = checks_of(remembered([sound("fixed", random) for _ in range(STEPS)]), scheme)
    assert set(made) == {ALIKE, TWO}
    assert all(check.detectable is not None for check in made.values())


@SCHEMES
def test_the_plan_promises_both(scheme: str) -> None:
    plan = expectations.Run(
        phases=[declared(scheme)], records=RECORDS, parameters=10, groups={}, capabilities=["sampling-log"]
    )
    promised = {check.note: check.detectable for check in expectations.foresee(plan)}
    assert promised[ALIKE] == sampling.alike(STEPS - 1, 0, 0, 15).detectable
    assert promised[TWO] is not None


def test_evidence_is_read_back() -> None:
    random = np.random.default_rng(19)
    sums = remembered([sound("poisson", random) for _ in range(9)])
    assert json_records.read(TogetherSums, json_records.write(sums), "here") == sums


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"most": 6, "least": 3}, "most must be"),
        ({"pairs": 7}, "pairs must be"),
        ({"closest": None}, "closest must be"),
        ({"looked": 0, "most": 0, "least": 0, "pairs": 0}, "closest must be"),
        ({"closest": [1, 9, 4, 4]}, "common must be at most 4"),
        ({"closest": [0, 1, 4, 4]}, "from 1 to"),
        ({"references": 0}, "from 1 to"),
    ],
)
def test_evidence_that_no_run_writes_is_refused(wrong: dict[str, object], told: str) -> None:
    right = {"looked": 8, "references": 15, "most": 1, "least": 0, "pairs": 36, "closest": [1, 2, 4, 4]}
    json_records.read(TogetherSums, right, "here")
    kept = {key: value for key, value in (right | wrong).items() if value is not None}
    with pytest.raises(ValueError, match=told):
        json_records.read(TogetherSums, FrozenMap(kept), "here")


@pytest.mark.parametrize("one", [Closest(1, 0, 6, 5), Closest(1, 4, 10, 4)])
def test_two_batches_fit_the_records(one: Closest) -> None:
    sums = TogetherSums(looked=1, references=9, most=0, least=0, pairs=1, closest=one)
    batch = BatchSums(steps=2, total=8, squares=32, together=sums)
    assert "closest must be of 10 records" in str(SamplingSums(records=10, batches=(batch,)).problem())
    alone = BatchSums(steps=1, total=4, squares=16, together=TogetherSums(**{**vars(sums), "looked": 2, "pairs": 2}))
    assert "together.looked must be at most 1" in str(alone.problem())
