"""Theorem 3.6: exact for few updates, and what sampling makes of it."""

import numpy as np
import pytest
from support import per_instance_brute as brute
from support.per_instance_brute import exact, sampled

from dpspec_per_instance.mean_rule import plug_in


def test_the_plug_in_is_far_too_small_where_few_tuples_decide():
    """R9b: 20 by 20 gives 5.09 +- 1.02, while the truth is 12.86, and reports that one or two tuples decide."""
    present, absent = brute.pair((0.7, -0.4, 0.2), 0.9, 0.5, "mean")
    assert exact(8, present, absent, 0.469) == pytest.approx(12.857581, rel=6e-8)
    found = [sampled(8, present, absent, 0.469, 20, 20, seed) for seed in range(200)]
    values = [float(f.value) for f in found]
    assert np.mean(values) == pytest.approx(5.09, abs=0.25)
    assert np.std(values) == pytest.approx(1.02, abs=0.2)
    assert np.median([float(f.inner_size) for f in found]) < 2.0


def test_the_plug_in_approaches_the_bound_where_exponents_are_small():
    present, absent = brute.pair((0.7, -0.4), 0.9, 0.3, "mean")
    truth = exact(2, present, absent, 2.0)
    assert float(sampled(2, present, absent, 2.0, 4000, 200, 3).value) == pytest.approx(truth, rel=0.05)
    assert float(plug_in(np.zeros((3, 4)), 2).value) == 0.0
    assert float(plug_in(np.zeros((3, 4)), 2).inner_size) == pytest.approx(4.0)
