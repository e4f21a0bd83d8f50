"""The regression of gradient lengths on batch sizes."""

import numpy as np
import pytest

from dpspec.recording.sums.clipped_sums import SizeScaling


@pytest.mark.parametrize("size", [16, 200])
@pytest.mark.parametrize("power", [-1, 0, 1])
def test_the_slope_ignores_trends_and_the_order_of_records(power: int, size: int) -> None:
    """Physical batches of a fixed size, from sorted records with lengths that differ by a factor e."""
    source, scaling = np.random.default_rng(0), SizeScaling()
    for step in range(400):
        places = np.sort(source.random(source.binomial(600, 0.1)))
        for start in range(0, len(places), size):
            batch = places[start : start + size]
            lengths = np.exp(0.5 * source.standard_normal(len(batch)) - batch - 0.02 * step)
            scaling.add(lengths * float(len(batch)) ** power, start == 0)
    pairs, slope, error = scaling.found or (0, 0.0, 0.0)
    assert pairs > 390
    assert abs(slope - power) < 4.0 * error < 0.25
