"""Shuffled batches: each record once an epoch, in an order that is a new one."""

from collections.abc import Iterator
from itertools import product
from math import comb, exp

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.phases import phase_of

from dpspec.contract import Check
from dpspec.sampling import SamplingScheme
from dpspec.sampling.fixed import FixedSize
from dpspec.sampling.poisson import Poisson
from dpspec.sampling.shuffled import Shuffled
from dpspec.stats.conformance import epochs, table
from dpspec.stats.conformance.batch_checks import BatchSums, SamplingSums
from dpspec.stats.conformance.evidence import RunEvidence
from dpspec.training.measure.logs import SamplingLog

RECORDS, BATCH, STEPS = 90, 20, 33
PHASE = phase_of("shuffled", STEPS, batch_size=BATCH)


def drawn(sampler: SamplingScheme, seed: int = 0, steps: int = STEPS) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (sampler.draw(generator) for _ in range(steps))


def held(batches: Iterator[torch.Tensor], records: int = RECORDS) -> list[Check]:
    log = SamplingLog([PHASE], records)
    for step, batch in enumerate(batches, start=1):
        log.sampled(step, batch)
    sums = log.evidence()
    assert sums is not None
    return phase_checks(sums)


def phase_checks(log: SamplingSums) -> list[Check]:
    found = table.of_runs([PHASE], [RunEvidence(sampling_log=log)])
    return [check for check in found if check.note.partition(",")[2].startswith(" phase")]


def least(found: list[Check], note: str) -> float:
    (p_value,) = [check.p_value for check in found if check.note.startswith(note)]
    return p_value


def test_shuffled_batches_pass_and_report_the_observed_steps() -> None:
    found = held(drawn(Shuffled(RECORDS, BATCH)))
    assert [check.note.partition(",")[0] for check in found] == [
        "batch size",
        "batches of each epoch",
        "batches of different epochs",
    ]
    assert min(check.p_value for check in found) > 0.01
    assert all(check.observed == "reported" for check in found)


def again(records: int, batch: int) -> Iterator[torch.Tensor]:
    return drawn_from(records, batch, lambda _: torch.randperm(records, generator=torch.Generator().manual_seed(1)))


def drawn_from(records: int, batch: int, order: object) -> Iterator[torch.Tensor]:
    pieces = (piece for epoch in range(STEPS) for piece in torch.split(order(epoch), batch))  # type: ignore[operator]
    return (next(pieces) for _ in range(STEPS))


@pytest.mark.parametrize(
    ("batches", "note"),
    [
        (drawn(Poisson(RECORDS, 0.2)), "batch size"),
        (drawn(FixedSize(RECORDS, BATCH)), "batch size"),  # the last one of an epoch is not a full one
        (drawn(FixedSize(RECORDS, BATCH)), "batches of each epoch"),
        (again(RECORDS, BATCH), "batches of different epochs"),
        (
            drawn_from(RECORDS, BATCH, lambda epoch: torch.arange(RECORDS) if epoch % 3 else torch.randperm(RECORDS)),
            "batches of different epochs",
        ),
    ],
    ids=["poisson", "fixed-sizes", "fixed-records", "one-order", "an-order-that-returns"],
)
def test_other_batches_are_seen(batches: Iterator[torch.Tensor], note: str) -> None:
    torch.manual_seed(0)
    assert least(held(batches), note) < 1e-6


def test_records_that_stay_out_are_seen() -> None:
    """A record takes another one's place in each epoch: sizes are right, and it is drawn twice."""

    def order(epoch: int) -> torch.Tensor:
        found = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(epoch))
        return torch.where(found == 5, 6, found)

    found = held(drawn_from(RECORDS, BATCH, order))
    assert least(found, "batch size") == 1.0
    assert least(found, "batches of each epoch") == 0.0


def test_a_log_without_information_on_epochs_is_not_tested() -> None:
    total, squares = Shuffled.exact_sizes(PHASE, RECORDS, STEPS)
    sums = SamplingSums(records=RECORDS, batches=(BatchSums(steps=STEPS, total=total, squares=squares),))
    found = phase_checks(sums)
    assert [check.p_value for check in found] == [1.0] * 3
    assert [check.note.partition(",")[0] for check in found if "not tested" in check.remark] == [
        "batches of each epoch",
        "batches of different epochs",
    ]


@given(records=st.integers(1, 40), batch=st.integers(1, 40), steps=st.integers(1, 60), seed=st.integers(0, 2**16))
def test_sums_and_pairs_are_those_of_runs(records: int, batch: int, steps: int, seed: int) -> None:
    batch = min(batch, records)
    log, sizes, counts = epochs.EpochLog(records, batch), [], np.zeros(records, dtype=int)
    for members in drawn(Shuffled(records, batch), seed, steps):
        log.add(members.numpy())
        sizes.append(len(members))
        counts[members.numpy()] += 1
    phase = phase_of("shuffled", steps, batch_size=batch)
    assert Shuffled.exact_sizes(phase, records, steps) == (sum(sizes), sum(size**2 for size in sizes))
    assert log.early == 0
    assert log.pairs == epochs.pairs_of(records, batch, steps) == log.sums().pairs
    assert counts.max() - counts.min() <= 1


@pytest.mark.ci
def test_by_chance_pairs_are_rarely_surprising() -> None:
    """Of 400 runs the p-value is at most 0.2 in at most 80: by chance more than 105 with a probability of 1e-3."""
    found = []
    for seed in range(400):
        log = epochs.EpochLog(30, 7)
        for members in drawn(Shuffled(30, 7), seed, 15):
            log.add(members.numpy())
        one = log.sums().closest
        assert one is not None
        found.append(epochs.closest(one, 30, log.pairs).p_value)
    assert np.mean(np.array(found) <= 0.2) <= 105 / 400


@pytest.mark.parametrize("records", [2, 3, 7])
def test_the_hypergeometric_tail_is_bounded_and_exact_at_its_ends(records: int) -> None:
    for one, other in product(range(1, records), repeat=2):
        support = range(max(0, one + other - records), min(one, other) + 1)
        law = {k: comb(other, k) * comb(records - other, one - k) / comb(records, one) for k in support}
        for k in support:
            upper = k * records >= one * other
            tail = sum(chance for c, chance in law.items() if (c >= k if upper else c <= k))
            bound = exp(epochs.log_tail(k, one, other, records))
            assert tail * (1.0 - 1e-12) <= bound <= 1.0
            if k == (support[-1] if upper else support[0]):
                assert bound == pytest.approx(tail)


@pytest.mark.parametrize("common", [0, 2, 5, 30, 60, 100])
def test_far_tails_are_within_a_small_factor(common: int) -> None:
    records, size = 1000, 100
    law = [comb(size, k) * comb(records - size, size - k) for k in range(size + 1)]
    far = law[common:] if common >= 10 else law[: common + 1]
    exact = sum(far) / comb(records, size)
    assert exact <= exp(epochs.log_tail(common, size, size, records)) * (1 + 1e-9) <= 1.5 * exact
