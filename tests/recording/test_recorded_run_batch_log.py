"""Counts of who was drawn, against the log that backends are held to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpspec.contract import Phase
from dpspec.engine.recorded.recorded_run import BatchLog
from dpspec.training.loop.native import Schedule
from dpspec.training.measure.logs import SamplingLog


@pytest.mark.parametrize(("rate", "records", "steps"), [(0.1, 200, 30), (0.02, 500, 80), (0.5, 10, 15)])
def test_the_counts_are_those_of_the_log_of_backends(rate, records, steps):
    random = np.random.default_rng(3)
    sampling = {"scheme": "poisson", "rate": rate}
    phase = Phase({"steps": steps, "noise_multiplier": 1.0, "clip_norm": 1.0, "sampling": sampling})
    found = BatchLog(phase, records)
    lags = sorted({lag for lag in (1, 2, int(1 / rate)) if lag < steps})
    other = SamplingLog(Schedule.of([phase], records), lags)
    for step in range(1, steps + 1):
        drawn = np.flatnonzero(random.random(records) < rate)
        if step == 7 and len(drawn):
            drawn = np.sort(np.append(drawn, drawn[0]))
        found.add(drawn)
        other.sampled(step, torch.tensor(drawn))
    sums = found.sums()
    assert found.repeats == other.repeats
    assert (sums.total, sums.squares, sums.steps) == (sum(other.sizes), sum(n * n for n in other.sizes), steps)
    assert sums.spread == other.spreads[0]
    expected = {lag: tuple(counts) for lag, counts in zip(other.lags, other.overlaps[0].tolist(), strict=True)}
    assert {one.lag: (one.common, one.chances) for one in sums.overlaps} == expected
    assert found.most_often() == int(other.inclusions.max())
