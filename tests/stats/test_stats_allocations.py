"""Tests of random allocation: laws by enumeration, how often they err, and what they see. Fixed seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from dpspec.contract import Check, FrozenMap
from dpspec.stats.conformance import run_checks, sampling
from dpspec.stats.conformance.evidence.run import write_run
from dpspec.stats.conformance.evidence.steps import looked
from dpspec.stats.conformance.expectations import Run, as_declared, foresee
from dpspec.stats.conformance.sampling import allocations
from dpspec.stats.conformance.sampling.allocations import most_stays, size_spread
from dpspec.testing.backend import small_job
from dpspec.training.device import generator
from dpspec.training.loop.samplers import Poisson, RandomAllocation, Sampler, Shuffled
from dpspec.training.measure.run_evidence import RunLogs, reported_evidence

Array = np.ndarray[Any, Any]

RECORDS, EPOCH, EPOCHS = 240, 8, 20

PHASE = FrozenMap(
    {
        "steps": EPOCH * EPOCHS,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling": {"scheme": "random-allocation", "epoch_steps": EPOCH},
    }
)


TIMES = 2

SEVERAL = FrozenMap(
    {**PHASE, "sampling": {"scheme": "random-allocation", "epoch_steps": EPOCH, "batches_per_epoch": TIMES}}
)


def spread_law(records: int, epoch_steps: int) -> dict[float, float]:
    """The probabilities of S_1, by all ways to allocate the records."""
    law: dict[float, float] = {}
    for steps in itertools.product(range(epoch_steps), repeat=records):
        sizes = np.bincount(steps, minlength=epoch_steps)
        spread = round(float(np.square(sizes - records / epoch_steps).sum()), 9)
        law[spread] = law.get(spread, 0.0) + epoch_steps**-records
    return law


@pytest.mark.parametrize(("records", "epoch_steps"), [(6, 3), (9, 2), (3, 5), (1, 4)])
def test_moments_are_those_of_all_allocations(records: int, epoch_steps: int) -> None:
    law, epoch = spread_law(records, epoch_steps), allocations._epoch(1, records, epoch_steps)
    for u in (-2.0, -0.1, 0.1, 0.4):
        exact = math.log(sum(chance * math.exp(u * spread) for spread, chance in law.items()))
        value, rise = epoch.log_moment(u)
        assert exact - 1e-10 <= value <= exact + 1e-9
        apart = sum(chance * spread * math.exp(u * spread - exact) for spread, chance in law.items())
        assert rise == pytest.approx(apart, rel=1e-6, abs=1e-6)
    mean = sum(chance * spread for spread, chance in law.items())
    for spread in law:
        found = size_spread(1, spread, records, epoch_steps)
        assert found.measured == pytest.approx(spread / mean)
        tail = sum(chance for s, chance in law.items() if (s <= spread) == (spread < mean) or s == spread)
        assert found.p_value >= min(1.0, 2.0 * tail) * (1.0 - 1e-9)


def test_spreads_as_declared_are_hardly_ever_surprising() -> None:
    rng = np.random.default_rng(1)
    for records, epoch_steps, epochs in ((200, 10, 5), (90, 2, 20), (20, 40, 6)):
        sizes = rng.multinomial(records, [1.0 / epoch_steps] * epoch_steps, size=(200, epochs))
        spreads = np.square(sizes - records / epoch_steps).sum(axis=(1, 2))
        found = np.array([size_spread(epochs, float(s), records, epoch_steps).p_value for s in spreads])
        assert np.mean(found <= 0.1) <= 0.1
        even = float(np.square(np.arange(epoch_steps) * 0.0 + records // epoch_steps - records / epoch_steps).sum())
        assert size_spread(epochs, epochs * even, records, epoch_steps).p_value < 1e-6


def test_stays_of_honest_runs_have_their_level() -> None:
    rng, found = np.random.default_rng(4), []
    for records, epoch_steps, epochs in ((200, 10, 5), (1, 2, 20), (20, 3, 2)):
        for _ in range(200):
            steps = rng.integers(epoch_steps, size=(epochs, records))
            stays = int((steps[1:] == steps[:-1]).sum(axis=0).max())
            found.append(most_stays(records, stays, epochs, epoch_steps).p_value)
    assert np.mean(np.array(found) <= 0.1) <= 0.1
    assert most_stays(1, 3, 4, 2).p_value == pytest.approx(1 / 8)
    assert most_stays(2, 2, 3, 3).p_value == pytest.approx(2 / 9)


@pytest.mark.parametrize("bad", [(0, 1, 3, 2), (5, 3, 3, 2), (5, 0, 1, 2), (5, 1, 3, 1)])
def test_stays_that_make_no_sense_are_refused(bad: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="stays"):
        most_stays(*bad)


@pytest.mark.parametrize("bad", [(0, 1.0, 5, 2), (1, -1.0, 5, 2), (1, 1.0, 0, 2), (1, 1.0, 5, 1)])
def test_what_makes_no_sense_is_refused(bad: tuple[int, float, int, int]) -> None:
    with pytest.raises(ValueError, match="epoch_steps"):
        size_spread(*bad)


# --- a run's batches, logged as a run logs them


def evidence_of(batches: Iterator[Array], phases: tuple[FrozenMap, ...] = (PHASE,)) -> dict[str, Any]:
    """What a run that drew these batches keeps of them."""
    job = small_job(options=FrozenMap({"learning_rate": 0.1, "reduction": "sum"}), steps=1)
    logs = RunLogs(replace(job, x=np.zeros((RECORDS, 5)), y=np.zeros(RECORDS, dtype=np.int64), phases=phases))
    for step, batch in enumerate(batches, start=1):
        logs.sampling.sampled(step, torch.from_numpy(np.asarray(batch, dtype=np.int64)))
    return write_run(reported_evidence(logs))


def checks_of(batches: Iterator[Array], phases: tuple[FrozenMap, ...] = (PHASE,)) -> list[Check]:
    """The checks of sampling of a run that drew these batches."""
    evidence = [FrozenMap(evidence_of(batches, phases))]
    return [c for c in run_checks.checks(phases, evidence) if c.assumption == "sampling"]


def drawn(sampler: Sampler, seed: int, steps: int = EPOCH * EPOCHS) -> Iterator[Array]:
    source = generator(seed, "test")
    return (sampler.draw(source).numpy() for _ in range(steps))


def allocated(steps: Array) -> Iterator[Array]:
    """Batches of (epochs, records) steps."""
    return (np.flatnonzero(epoch == step) for epoch in steps for step in range(EPOCH))


def test_runs_as_declared_are_hardly_ever_surprising() -> None:
    found = np.array(
        [[c.p_value for c in checks_of(drawn(RandomAllocation(RECORDS, EPOCH), seed))] for seed in range(10)]
    )
    assert found.shape[1] == 9
    assert np.sum(found.min(axis=1) <= 0.01) <= 4
    assert found.min() > 1e-6


def sticky(rng: np.random.Generator) -> Iterator[Array]:
    return allocated(np.tile(rng.integers(EPOCH, size=RECORDS), (EPOCHS, 1)))


def turning(rng: np.random.Generator) -> Iterator[Array]:
    """The same batches in each epoch, in another order."""
    steps = rng.integers(EPOCH, size=RECORDS)
    return allocated(np.stack([rng.permutation(EPOCH)[steps] for _ in range(EPOCHS)]))


def in_pairs(rng: np.random.Generator) -> Iterator[Array]:
    return allocated(np.repeat(rng.integers(EPOCH, size=(EPOCHS, RECORDS // 2)), 2, axis=1))


def half_sticky(rng: np.random.Generator) -> Iterator[Array]:
    """Half of the records keep their steps."""
    steps = rng.integers(EPOCH, size=(EPOCHS, RECORDS))
    steps[:, ::2] = steps[0, ::2]
    return allocated(steps)


def one_sticky(rng: np.random.Generator) -> Iterator[Array]:
    """A single record keeps its step: nothing amplifies its privacy."""
    steps = rng.integers(EPOCH, size=(EPOCHS, RECORDS))
    steps[:, 5] = 2
    return allocated(steps)


def early(rng: np.random.Generator) -> Iterator[Array]:
    """The first step of an epoch is twice as likely."""
    return allocated(np.maximum(0, rng.integers(-1, EPOCH, size=(EPOCHS, RECORDS))))


def twice(rng: np.random.Generator) -> Iterator[Array]:
    """One record is in two batches of one epoch."""
    steps = rng.integers(EPOCH, size=(EPOCHS, RECORDS))
    batches = list(allocated(steps))
    other = 7 * EPOCH + (int(steps[7, 3]) + 1) % EPOCH
    batches[other] = np.append(batches[other], 3)
    return iter(batches)


def left_out(rng: np.random.Generator) -> Iterator[Array]:
    """One record is in no batch of the last epoch."""
    batches = list(allocated(rng.integers(EPOCH, size=(EPOCHS, RECORDS))))
    return iter([*batches[:-EPOCH], *(batch[batch != 5] for batch in batches[-EPOCH:])])


FAULTS: dict[str, tuple[Callable[[np.random.Generator], Iterator[Array]], str]] = {
    "the same step in every epoch": (sticky, "independence across steps"),
    "the same batches in another order": (turning, "any two batches"),
    "records in pairs": (in_pairs, "batches against others"),
    "half of the records keep their steps": (half_sticky, "independence across steps"),
    "one record keeps its step": (one_sticky, "steps of single records"),
    "first steps are twice as likely": (early, "sizes within epochs"),
    "one record twice in one epoch": (twice, "once in every epoch"),
    "one record in no batch of an epoch": (left_out, "once in every epoch"),
    "Poisson samples": (lambda rng: drawn(Poisson(RECORDS, 1.0 / EPOCH), 3), "once in every epoch"),
    "a shuffled order cut into equal pieces": (
        lambda rng: drawn(Shuffled(RECORDS, RECORDS // EPOCH), 3),
        "sizes within epochs",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_as_declared_is_seen_by_the_check_that_is_for_it(fault: str) -> None:
    made, by = FAULTS[fault]
    found = checks_of(made(np.random.default_rng(2)))
    rejected = [check.note for check in found if check.p_value <= 1e-6 / len(found)]
    assert any(by in note for note in rejected), rejected


def test_batches_of_one_epoch_are_held_against_none_of_it() -> None:
    """Within an epoch none has anything in common with another, which no test takes for a surprise."""
    (one,) = [FrozenMap({**PHASE, "steps": EPOCH})]
    found = checks_of(drawn(RandomAllocation(RECORDS, EPOCH), 1, EPOCH), (one,))
    notes = [check.note for check in found]
    assert not any("independence" in note for note in notes)
    assert sum("not tested" in note for note in notes) == 2
    assert min(check.p_value for check in found) > 1e-3


@pytest.mark.parametrize("rest", [0, 3])
def test_a_run_that_was_cut_short_is_tested_as_far_as_it_went(rest: int) -> None:
    steps = 6 * EPOCH + rest
    found = checks_of(itertools.islice(drawn(RandomAllocation(RECORDS, EPOCH), 4), steps))
    assert min(check.p_value for check in found) > 1e-4
    few = checks_of(itertools.islice(drawn(RandomAllocation(RECORDS, EPOCH), 4), 3))
    assert any("once in every epoch" in c.note and "not tested" in c.note for c in few)


@pytest.mark.parametrize("epochs", [None, {"whole": 3, "astray": 0, "spread": 1.0}])
def test_evidence_that_hides_epochs_is_no_run_s(epochs: Any) -> None:
    told = evidence_of(drawn(RandomAllocation(RECORDS, EPOCH), 1))
    (batch,) = told["sampling_log"]["batches"]
    other = {key: value for key, value in {**batch, "epochs": epochs}.items() if value is not None}
    log = {**told["sampling_log"], "batches": [other]}
    with pytest.raises(ValueError, match=f"epochs must be of {EPOCHS} whole epochs"):
        list(run_checks.checks([PHASE], [FrozenMap({**told, "sampling_log": log})]))


def test_an_epoch_after_poisson_batches_is_held_against_them() -> None:
    """A record may be in several of the earlier batches: the p-value of what is in common still holds."""
    before = FrozenMap({**PHASE, "steps": EPOCH, "sampling": {"scheme": "poisson", "rate": 0.6}})
    one = FrozenMap({**PHASE, "steps": EPOCH})
    surprising = 0
    for seed in range(20):
        batches = itertools.chain(
            drawn(Poisson(RECORDS, 0.6), seed, EPOCH), drawn(RandomAllocation(RECORDS, EPOCH), seed, EPOCH)
        )
        found = checks_of(batches, (before, one))
        surprising += min(check.p_value for check in found) <= 0.01
    assert surprising <= 6


@pytest.mark.parametrize("phases", [[(16, 4)], [(4, 4), (20, 1), (30, 6)], [(5, 1), (300, 3)], [(8, 8)]])
def test_what_is_foreseen_is_what_a_run_counts(phases: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.remembered, "_LOOKED", 128)
    random, steps, epochs = np.random.default_rng(16), [p[0] for p in phases], [p[1] for p in phases]
    log = sampling.RememberedBatches(40, steps, epochs=epochs)
    for _ in range(sum(steps)):
        log.add(random.choice(40, 2, replace=False))
    counted = [(sums.looked, sums.pairs) for sums in map(log.sums, range(len(steps)))]
    assert counted == sampling.foreseen(40, steps, epochs)


def test_an_epoch_is_above_its_moves_as_often_as_it_should_be() -> None:
    """1,200 epochs of random batches: the number is binomial at 1/16, in either tail."""
    rng, most, least, looked = np.random.default_rng(3), 0, 0, 0
    for _ in range(40):
        log = sampling.RememberedBatches(64, [31 * 4], epochs=[4])
        for epoch in rng.integers(4, size=(31, 64)):
            for step in range(4):
                log.add(np.flatnonzero(epoch == step))
        sums = log.sums(0)
        most, least, looked = most + sums.most, least + sums.least, looked + sums.looked
    assert looked == 1200
    for count in (most, least):
        assert binom.cdf(count, looked, 1 / 16) > 1e-4
        assert binom.sf(count - 1, looked, 1 / 16) > 1e-4


@pytest.mark.parametrize("phase", [PHASE, SEVERAL])
def test_a_plan_promises_the_checks_of_a_run(phase: FrozenMap) -> None:
    run = Run(
        phases=[phase], records=RECORDS, parameters=50, groups={}, capabilities=("sampling-log", "iterates"), trials=1
    )
    promised = {c.note for c in foresee(run) if c.assumption == "sampling"}
    sampler = RandomAllocation(RECORDS, EPOCH, TIMES if phase is SEVERAL else 1)
    made = {c.note for c in checks_of(drawn(sampler, 1), (phase,))}
    assert promised == made


# --- several batches an epoch


def chosen(steps: Array) -> Iterator[Array]:
    """Batches of (epochs, records, times) steps."""
    return (np.flatnonzero((epoch == step).any(axis=1)) for epoch in steps for step in range(EPOCH))


def sets(rng: np.random.Generator, times: int = TIMES, epochs: int = EPOCHS) -> Array:
    return rng.random((epochs, RECORDS, EPOCH)).argsort(axis=2)[:, :, :times]


def together(rng: np.random.Generator) -> Iterator[Array]:
    """Two steps that follow each other, the last before the first."""
    first = rng.integers(EPOCH, size=(EPOCHS, RECORDS, 1))
    return chosen(np.concatenate([first, (first + 1) % EPOCH], axis=2))


def uneven(rng: np.random.Generator) -> Iterator[Array]:
    """The first step of an epoch with all records of an even number."""
    steps = sets(rng)
    missing = ~(steps == 0).any(axis=2)
    missing[:, ::2] = False
    steps[..., 0] = np.where(missing, 0, steps[..., 0])
    return chosen(steps)


def one_less(rng: np.random.Generator) -> Iterator[Array]:
    """One record once too seldom, in one epoch."""
    steps = sets(rng)
    steps[3, 5, 1] = steps[3, 5, 0]
    return chosen(steps)


SEVERAL_FAULTS: dict[str, tuple[Callable[[np.random.Generator], Iterator[Array]], str]] = {
    "once instead of twice": (lambda rng: chosen(sets(rng, 1)), "times in every epoch"),
    "one record once too seldom": (one_less, "times in every epoch"),
    "the same steps in every epoch": (
        lambda rng: chosen(np.repeat(sets(rng, epochs=1), EPOCHS, axis=0)),
        "independence across steps",
    ),
    "first steps are fuller": (uneven, "sizes within epochs"),
    "Poisson samples": (lambda rng: drawn(Poisson(RECORDS, TIMES / EPOCH), 3), "times in every epoch"),
}


@pytest.mark.parametrize("fault", SEVERAL_FAULTS)
def test_of_several_batches_what_is_not_as_declared_is_seen(fault: str) -> None:
    made, by = SEVERAL_FAULTS[fault]
    found = checks_of(made(np.random.default_rng(2)), (SEVERAL,))
    rejected = [check.note for check in found if check.p_value <= 1e-6 / len(found)]
    assert any(by in note for note in rejected), rejected


def test_steps_that_come_in_neighbours_within_an_epoch_are_not_seen() -> None:
    """What batches of one epoch have in common is not looked at: a limit, and it stands in the documentation."""
    assert min(check.p_value for check in checks_of(together(np.random.default_rng(2)), (SEVERAL,))) > 1e-6


def test_several_batches_as_declared_are_hardly_ever_surprising() -> None:
    sampler = RandomAllocation(RECORDS, EPOCH, TIMES)
    found = np.array([[c.p_value for c in checks_of(drawn(sampler, seed), (SEVERAL,))] for seed in range(10)])
    assert found.shape[1] == 8
    assert np.sum(found.min(axis=1) <= 0.01) <= 4
    assert found.min() > 1e-6


@pytest.mark.parametrize(("records", "epoch_steps", "times"), [(4, 4, 2), (3, 5, 3), (5, 3, 2)])
def test_uneven_sizes_of_several_batches_are_no_more_likely_than_p_says(
    records: int, epoch_steps: int, times: int
) -> None:
    """By all ways to choose sets of steps."""
    ways = list(itertools.combinations(range(epoch_steps), times))
    spreads = []
    for chosen_sets in itertools.product(ways, repeat=records):
        sizes = np.bincount(np.concatenate(chosen_sets), minlength=epoch_steps)
        spreads.append(round(float(np.square(sizes - records * times / epoch_steps).sum()), 9))
    law = np.array(spreads)
    for spread in np.unique(law):
        found = size_spread(1, float(spread), records, epoch_steps, times)
        assert found.measured == pytest.approx(spread / law.mean())
        assert found.p_value >= np.mean(law >= spread) - 1e-12


def test_uneven_sizes_of_the_detectable_degree_are_detected() -> None:
    for records, epoch_steps, times, epochs in ((400, 10, 3, 12), (5000, 50, 2, 4)):
        found = size_spread(epochs, 1.0, records, epoch_steps, times)
        assert found.detectable is not None
        mean = epochs * records * times * (1.0 - times / epoch_steps)
        rng = np.random.default_rng(3)
        chi = rng.chisquare(epochs * (epoch_steps - 1), 40) / (epochs * (epoch_steps - 1))
        spreads = mean * (1.0 + found.detectable) * chi
        seen = [size_spread(epochs, float(s), records, epoch_steps, times).p_value <= 1e-6 for s in spreads]
        assert np.mean(seen) >= 0.9


@pytest.mark.parametrize("looks", [None, 16, 1])
def test_of_what_rests_on_the_past_first_steps_alone_are_foreseen(looks: int | None) -> None:
    first = int(looked(EPOCH * EPOCHS, looks)[::EPOCH].sum())
    assert 1 <= first <= EPOCHS
    run = Run(
        phases=[PHASE],
        records=RECORDS,
        parameters=50,
        groups={1: 40},
        capabilities=("iterates",),
        trials=1,
        looks=looks,
    )
    measured = as_declared(run).measured
    assert measured is not None
    assert (measured.seen, measured.steps) == (looks or EPOCH * EPOCHS, first)
    assert {"noise-scale", "noise-isotropy", "update"} <= {check.assumption for check in foresee(run)}
