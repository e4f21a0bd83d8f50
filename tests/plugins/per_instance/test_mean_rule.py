"""Theorem 3.6: exact for few updates against its reference values, and what sampling makes of it."""

import numpy as np
import pytest
from support import per_instance_brute as brute
from support.per_instance_brute import exact, sampled

from dpspec_per_instance.bounds import step_divergence
from dpspec_per_instance.mean_rule import plug_in

TWO_D = ((0.6, 0.2), (-0.3, 0.5))


@pytest.mark.family
@pytest.mark.parametrize(
    ("others", "record", "q", "rule", "sigma", "order", "largest", "theorem_3_2", "add", "tuples_add", "remove",
     "tuples_remove", "same"),
    [
        ((0.7, -0.4), 0.9, 0.3, "sum", 0.8, 3, 0.9, 0.48864200, 0.33450300, 2.3950923, 0.10172549, 1.3407557,
         0.55984798),
        ((0.7, -0.4, 0.2), 0.9, 0.5, "mean", 1.0, 2, 0.9, 0.27153516, 0.030597923, 0.15257859, 0.029713251, 0.16215941,
         0.11319823),
        ((0.7, -0.4, 0.2), 0.9, 0.5, "mean", 1.0, 4, 0.9, 0.82994258, 0.062128655, 0.38985514, 0.058046672, 0.40678052,
         0.28531548),
        (TWO_D, (0.1, -0.8), 0.4, "sum", 0.9, 2, 0.80622577, 0.17979074, 0.16323067, 0.49903290, 0.097408009,
         0.61401735, None),
        (TWO_D, (0.1, -0.8), 0.4, "sum", 0.9, 3, 0.80622577, 0.34689070, 0.31265829, 0.98386474, 0.12926045, 1.0307386,
         None),
        (TWO_D, (0.1, -0.8), 0.4, "mean", 0.9, 2, 0.80622577, 0.17979074, 0.099391643, 0.32189922, 0.064435749,
         0.39633688, None),
        (TWO_D, (0.1, -0.8), 0.4, "mean", 0.9, 3, 0.80622577, 0.34689070, 0.18690725, 0.59341533, 0.087362961,
         0.64811489, None),
    ],
)  # fmt: skip
def test_the_reference_values_of_small_batches(
    others, record, q, rule, sigma, order, largest, theorem_3_2, add, tuples_add, remove, tuples_remove, same
):
    """R7 to R10; the paper's add compares with-the-record to without."""
    present, absent = brute.pair(others, record, q, rule)
    near = 6e-8
    assert step_divergence(order, q, largest / sigma) == pytest.approx(theorem_3_2, rel=2e-7)
    assert brute.renyi(order, present, absent, sigma) == pytest.approx(add, rel=near)
    assert brute.renyi(order, absent, present, sigma) == pytest.approx(remove, rel=near)
    assert exact(order, present, absent, sigma) == pytest.approx(tuples_add, rel=near)
    assert exact(order, absent, present, sigma) == pytest.approx(tuples_remove, rel=near)
    if same is not None:
        assert exact(order, absent, absent, sigma) == pytest.approx(same, rel=near)


@pytest.mark.ci
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
