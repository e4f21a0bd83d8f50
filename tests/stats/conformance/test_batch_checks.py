"""Counts of batches, compared with loops over a whole run, and the distances of compared batches."""

from collections import Counter, deque

import numpy as np
import pytest
from support.phases import phase_of

from dpspec.stats.conformance.batch_checks import BatchLog, compared_lags
from dpspec.stats.conformance.epochs import EpochSums


@pytest.mark.parametrize(("rate", "records", "steps"), [(0.1, 200, 30), (0.02, 500, 80), (0.5, 10, 15)])
def test_batches_of_a_phase_are_counted(rate: float, records: int, steps: int) -> None:
    """In half of a range of indices, and resumed; a batch has a record twice, and lost ones do not count."""
    random, phase = np.random.default_rng(3), phase_of("poisson", steps, rate=rate)
    lags = compared_lags([phase], records)
    earlier = deque[np.ndarray](maxlen=max(lags))
    log = BatchLog(phase, records, lags, places=2 * records, earlier=earlier)
    batches = [2 * np.flatnonzero(random.random(records) < rate) for _ in range(steps)]
    batches[6] = np.sort(np.append(batches[6], batches[6][:1]))
    for step, batch in enumerate(batches):
        log.add(batch, lost=True)
        log.add(batch)
        if step in (9, steps - 1):
            state = log.state()
            log = BatchLog(phase, records, lags, places=2 * records, earlier=earlier)
            log.restore(state)
    found, counts, sizes = log.sums(), Counter(np.concatenate(batches).tolist()), [len(batch) for batch in batches]
    assert log.repeats == len(batches[6]) - len(set(batches[6]))
    assert log.most_often == max(counts.values())
    assert (found.steps, found.total, found.squares) == (steps, sum(sizes), sum(size**2 for size in sizes))
    assert found.spread == sum(count**2 for count in counts.values())
    assert found.above == pytest.approx(sum(max(0.0, count - steps * rate) ** 2 for count in counts.values()))
    assert found.sizes is not None
    assert (found.sizes.least.value, found.sizes.most.value) == (min(sizes), max(sizes))
    members = [set(batch.tolist()) for batch in batches]
    expected = {
        lag: (sum(len(members[t] & members[t - lag]) for t in range(lag, steps)), sum(map(len, members[:-lag])))
        for lag in lags
    }
    assert {one.lag: (one.common, one.chances) for one in found.overlaps} == expected


def test_records_outside_of_their_batches_of_an_epoch_are_counted() -> None:
    """Record 1 is twice in the first epoch, and record 2 is not; then the log is resumed."""
    phase = phase_of("random-allocation", 4, epoch_steps=2)
    log, again = BatchLog(phase, 3), BatchLog(phase, 3)
    for batch in ([0, 1], [1]):
        log.add(np.array(batch))
    again.restore(log.state())
    for batch in ([0], [1, 2]):
        again.add(np.array(batch))
    assert again.sums().epochs == EpochSums(whole=2, astray=2, spread=1.0)


@pytest.mark.parametrize(
    ("steps", "sampling", "further", "lags"),
    [
        (100, {"scheme": "poisson", "rate": 0.03}, (), (1, 2, 33, 34)),
        (100, {"scheme": "poisson", "rate": 0.03}, (0, 7, 100), (1, 2, 7, 33, 34)),
        (10, {"scheme": "poisson", "rate": 0.03}, (), (1, 2)),
        (100, {"scheme": "fixed", "batch_size": 8}, (), (1, 2, 5)),
        (100, {"scheme": "random-allocation", "epoch_steps": 20, "batches_per_epoch": 4}, (), (1, 2, 5, 20)),
        (1, {"scheme": "full"}, (), ()),
    ],
)
def test_lags_are_those_of_neighbours_and_of_an_epoch(steps, sampling, further, lags):
    assert compared_lags([phase_of(steps=steps, **sampling)], 40, further) == lags
