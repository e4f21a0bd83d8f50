"""Samplers of all schemes: marginals, joint probabilities, reproducibility and state."""

import itertools
from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2
from support.phases import phase_of

from dpspec.contract import FrozenMap, Phase
from dpspec.sampling import sampler_of
from dpspec.sampling.fixed import FixedSize
from dpspec.sampling.poisson import Full, Poisson, TruncatedPoisson
from dpspec.sampling.random_allocation import RandomAllocation
from dpspec.sampling.shuffled import Shuffled
from dpspec.testing.backend import small_job
from dpspec.training.device import generator
from dpspec.training.loop.native import NativeTrainer, Schedule
from dpspec.training.measure.residuals import Residuals


def counts(sampler, draws, seed=0):
    source = generator(seed, "test")
    inclusions = torch.zeros(sampler.records, dtype=torch.int64)
    sizes = []
    for _ in range(draws):
        drawn = sampler.draw(source)
        assert bool((drawn.diff() > 0).all())
        inclusions[drawn] += 1
        sizes.append(len(drawn))
    return inclusions, torch.tensor(sizes)


def two_sided(distribution, value):
    return 2 * min(distribution.cdf(value), distribution.sf(value - 1))


@pytest.mark.family
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_poisson_includes_each_record_at_the_rate(rate):
    records, draws = 200, 3000
    inclusions, sizes = counts(Poisson(records, rate), draws)
    assert two_sided(binom(records * draws, rate), int(inclusions.sum())) > 1e-6
    # Each record, corrected for the number of records.
    assert min(two_sided(binom(draws, rate), int(n)) for n in inclusions) > 1e-6 / records
    # Batch sizes spread as independent inclusion makes them: fixed-size batches would have no variance.
    variance = records * rate * (1 - rate)
    statistic = float(((sizes - records * rate) ** 2).sum()) / variance
    assert chi2.ppf(1e-6, draws) < statistic < chi2.ppf(1 - 1e-6, draws)


def test_records_enter_independently_and_steps_are_fresh():
    sampler, source, draws = Poisson(2, 0.5), generator(1, "test"), 4000
    table = torch.zeros(draws, 2)
    for row in table:
        row[sampler.draw(source)] = 1
    both = int((table[:, 0] * table[:, 1]).sum())
    assert two_sided(binom(draws, 0.25), both) > 1e-6
    again = int((table[1:, 0] * table[:-1, 0]).sum())
    # The products of neighbours have variance 3/16 and covariance 1/16 with the next: 5/16 per step in all.
    assert abs(again - draws / 4) < 5 * (5 / 16 * draws) ** 0.5


def test_fixed_size_is_exact_and_uniform():
    records, size, draws = 20, 6, 4000
    inclusions, sizes = counts(FixedSize(records, size), draws)
    assert sizes.unique().tolist() == [size]
    # Without replacement the counts' covariance has rank records - 1: the sum is fixed.
    rate = size / records
    statistic = float(((inclusions - draws * rate) ** 2).sum()) / (draws * rate * (1 - rate)) * (records - 1) / records
    assert chi2.ppf(1e-6, records - 1) < statistic < chi2.ppf(1 - 1e-6, records - 1)


def test_shuffled_batches_are_uniform_and_fresh_each_epoch():
    """Which of the 20 positions' first batch a record is in: 4000 epochs, chi-square over records; then over pairs."""
    sampler, source, epochs = Shuffled(20, 5), generator(2, "test"), 4000
    first = torch.zeros(epochs, 20)
    for row in first:
        batch = sampler.draw(source)
        assert bool((batch.diff() > 0).all())
        row[batch] = 1
        for _ in range(3):
            sampler.draw(source)
    counts_ = first.sum(0)
    statistic = float(((counts_ - epochs / 4) ** 2).sum()) / (epochs * 3 / 16) * 19 / 20
    assert chi2.ppf(1e-6, 19) < statistic < chi2.ppf(1 - 1e-6, 19)
    # Two records together: 5/20 * 4/19; the same record in the next epoch: 1/16, independently.
    assert two_sided(binom(epochs, 5 * 4 / (20 * 19)), int((first[:, 0] * first[:, 1]).sum())) > 1e-6
    again = int((first[1:, 0] * first[:-1, 0]).sum())
    assert abs(again - epochs / 16) < 5 * (epochs * (1 / 16 * 15 / 16 + 2 * (1 / 64 - 1 / 256))) ** 0.5


def sets_of(sampler: RandomAllocation, source: torch.Generator, epochs: int) -> np.ndarray[Any, Any]:
    """Return the batches as (epochs, records, steps) bool; fail if a record is in another number of batches."""
    found = np.zeros((epochs, sampler.records, sampler.epoch_steps), dtype=bool)
    for epoch, step in itertools.product(range(epochs), range(sampler.epoch_steps)):
        batch = sampler.draw(source)
        assert bool((batch.diff() > 0).all())
        found[epoch, batch, step] = True
    assert (found.sum(axis=2) == sampler.batches_per_epoch).all()
    return found


@pytest.mark.family
@pytest.mark.parametrize(("steps", "batches"), [(3, 1), (3, 2), (4, 2)])
def test_every_set_of_steps_is_equally_likely_and_independent(steps: int, batches: int) -> None:
    """Two records in an epoch: all pairs of sets."""
    found = sets_of(RandomAllocation(2, steps, batches), generator(0, "test"), 1440)
    codes = found.astype(int) @ 2 ** np.arange(steps) @ np.array([1, 2**steps])
    _, counts = np.unique(codes, return_counts=True)
    ways = comb(steps, batches) ** 2
    assert len(counts) == ways
    assert float(((counts - 1440 / ways) ** 2).sum()) * ways / 1440 < chi2.ppf(1 - 1e-6, ways - 1)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32))
def test_a_record_more_changes_no_other_set(records: int, epoch_steps: int, batches: int, seed: int) -> None:
    batches = min(batches, epoch_steps)
    less = sets_of(RandomAllocation(records, epoch_steps, batches), generator(seed, "test"), 3)
    more = sets_of(RandomAllocation(records + 2, epoch_steps, batches), generator(seed, "test"), 3)
    assert np.array_equal(less, more[:, :records])


USERS = {"scheme": "poisson", "unit": "user", "rate": 0.3, "records_per_user": 2}


@pytest.mark.parametrize(
    ("block", "expected", "inclusion"),
    [
        ({"scheme": "poisson", "rate": 0.1}, Poisson(10, 0.1), 0.1),
        ({"scheme": "fixed", "batch_size": 4}, FixedSize(10, 4), 0.4),
        ({"scheme": "full"}, Full(10), 1.0),
        ({"scheme": "shuffled", "batch_size": 4}, Shuffled(10, 4), 1 / 3),
        ({"scheme": "truncated-poisson", "rate": 0.25, "max_batch": 10}, TruncatedPoisson(10, 0.25, 10), 0.25),
        ({"scheme": "random-allocation", "epoch_steps": 5}, RandomAllocation(10, 5), 0.2),
        ({"scheme": "random-allocation", "epoch_steps": 5, "batches_per_epoch": 2}, RandomAllocation(10, 5, 2), 0.4),
    ],
)
def test_the_block_of_a_spec_is_read(block: dict[str, Any], expected: Any, inclusion: float) -> None:
    sampler = sampler_of(block, 10)
    assert sampler == expected
    assert sampler.inclusion == pytest.approx(inclusion)
    allocated = isinstance(sampler, RandomAllocation)
    assert sampler.dependent_steps == (5 if allocated else 1)
    assert not allocated or sampler.covariance() == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda kind=kind: kind(10, 0), r"within 1..10") for kind in (FixedSize, Shuffled)),
        *((lambda kind=kind: kind(10, 11), r"within 1..10") for kind in (FixedSize, Shuffled)),
        (
            lambda: Schedule.of([phase_of("random-allocation", 7, epoch_steps=4)], 20),
            "whole number of epochs of 4, got 7",
        ),
        (lambda: sampler_of({"scheme": "bag"}, 10), "got 'bag'"),
        (lambda: sampler_of({**USERS, "scheme": "fixed", "batch_size": 2}, 10), "requires scheme poisson"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


ALLOCATED = [phase_of("random-allocation", 8, epoch_steps=4, batches_per_epoch=batches) for batches in (1, 2, 3)]


@pytest.mark.parametrize("first", [*ALLOCATED, phase_of("shuffled", 8, batch_size=700)])
@pytest.mark.parametrize("chosen", [range(8), range(0, 8, 3), [0], [1, 2, 9]])
def test_the_variance_of_inclusions_is_what_is_drawn(chosen: Any, first: Phase) -> None:
    schedule = Schedule.of([first, phase_of("poisson", 2, rate=0.3)], 2000)
    steps = np.isin(np.arange(10), list(chosen))
    drawn, source = np.zeros(2000), generator(4, "test")
    for at, phase in enumerate(schedule):
        batch = phase.sampler.draw(source)
        drawn[batch.numpy()] += steps[at]
    ends = np.cumsum([phase.steps for phase in schedule.phases])[:-1]
    parts = zip(schedule.phases, np.split(steps, ends), strict=True)
    shares = [phase.sampler.inclusion_moments(part) for phase, part in parts]
    mean, known = (sum(float(share[i].sum()) for share in shares) for i in (0, 1))
    assert abs(float(drawn.mean()) - mean) < 5.0 * max(known, 1e-9) ** 0.5 / 2000**0.5
    assert abs(float(drawn.var()) - known) < 5.0 * max(known, 1e-9) * (3.0 / 2000) ** 0.5 * 2.0


def test_residuals_along_what_was_seen_are_taken_at_the_first_step_of_an_epoch() -> None:
    """Later batches depend on earlier ones, so that sums along earlier residuals are not a martingale."""
    options = FrozenMap({"learning_rate": 0.1, "optimizer": {"kind": "sgd"}, "reduction": "mean"})
    job = small_job(options=options, steps=12, sampling={"scheme": "random-allocation", "epoch_steps": 4})
    watcher = Residuals(job)
    watcher.keep_log(job)
    NativeTrainer().train(replace(job, observers=(watcher,)))
    assert watcher.log is not None
    assert (watcher.log.seen, len(watcher.log.rows), watcher.log.hidden) == (12, 3, 0)


def test_batches_are_capped_poisson_ones() -> None:
    sampler, source, draws = TruncatedPoisson(30, 0.4, 13), generator(0, "test"), 4000
    sizes = np.array([len(sampler.draw(source)) for _ in range(draws)])
    assert sizes.max() == 13
    expected = draws * np.append(binom.pmf(np.arange(8, 13), 30, 0.4), binom.sf(12, 30, 0.4))
    counts = np.append([np.sum(sizes == size) for size in range(8, 13)], np.sum(sizes == 13))
    statistic = float((np.square(counts - expected) / expected).sum())
    assert statistic < chi2.ppf(1 - 1e-6, 6)


def test_who_is_kept_of_too_many_is_uniform() -> None:
    sampler, source, draws = TruncatedPoisson(6, 0.7, 2), generator(1, "test"), 3000
    kept = [tuple(batch.tolist()) for batch in (sampler.draw(source) for _ in range(draws)) if len(batch) == 2]
    pairs = list(itertools.combinations(range(6), 2))
    assert set(kept) == set(pairs)
    expected = len(kept) / len(pairs)
    assert sum((kept.count(pair) - expected) ** 2 for pair in pairs) / expected < chi2.ppf(1 - 1e-6, len(pairs) - 1)
