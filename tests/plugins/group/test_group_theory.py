"""Epsilon of the plugin against published and independently computed values (relative 1e-4 or better)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from dpspec.contract import Phase
from dpspec_group import theory


def phase(sampling: dict[str, object], sigma: float, steps: int) -> Phase:
    return Phase({"sampling": sampling, "noise_multiplier": sigma, "clip_norm": 1.0, "steps": steps})


POISSON = {"scheme": "poisson", "rate": 0.01}


def test_fixed_size_batches_count_the_records_that_are_left_without_the_group() -> None:
    fixed = phase({"scheme": "fixed", "batch_size": 500}, 2.0, 2000)
    (epsilon,) = theory.group_epsilons([fixed], 8, 50_008, [1e-6], "remove")
    assert epsilon.upper == pytest.approx(34.8769954796, rel=1e-4)
    (full,) = theory.group_epsilons([fixed], 8, 50_000, [1e-6], "remove")
    assert full.upper == pytest.approx(34.8842759, rel=1e-4)
    assert full.upper > epsilon.upper


def test_phases_compose() -> None:
    both = [phase(POISSON, 1.0, 1000), phase(POISSON, 2.0, 1000)]
    (remove,) = theory.group_epsilons(both, 3, 50_000, [1e-6], "remove")
    (add,) = theory.group_epsilons(both, 3, 50_000, [1e-6], "add")
    assert remove.upper == pytest.approx(7.6726601398, rel=1e-4)
    assert add.upper == pytest.approx(5.9190418734, rel=1e-4)


@pytest.mark.parametrize("sampling", [POISSON, {"scheme": "full"}, {"scheme": "fixed", "batch_size": 100}])
def test_every_delta_of_a_curve_is_what_it_is_alone(sampling: dict[str, object]) -> None:
    """All but the first delta of full batches once got the bound 0."""
    phases, deltas = [phase(sampling, 2.0, 10), phase(sampling, 4.0, 10)], [1e-12, 1e-8, 1e-4]
    curve = theory.group_epsilons(phases, 2, 1000, deltas, "remove")
    for delta, epsilon in zip(deltas, curve, strict=True):
        (alone,) = theory.group_epsilons(phases, 2, 1000, [delta], "remove")
        assert epsilon.upper == pytest.approx(alone.upper, rel=1e-4)
    assert curve[0].upper > curve[1].upper > curve[2].upper > 0.0


def test_without_noise_nothing_bounds_epsilon() -> None:
    for sigma in (0.0, 1e-320):
        for direction in ("remove", "add"):
            (epsilon,) = theory.group_epsilons([phase(POISSON, sigma, 10)], 1, 100, [1e-6], direction)
            assert math.isinf(epsilon.upper)


@pytest.mark.parametrize(
    ("sampling", "direction", "delta", "lower"),
    [
        (POISSON, "remove", 0.0956, math.inf),  # a record is drawn in 1 - 0.99^10 = 0.09562 of all runs
        (POISSON, "remove", 0.0957, 0.0),
        (POISSON, "add", 1e-6, 0.0),  # -10 ln 0.99 at most: a run without the record may be one that never drew it
        ({"scheme": "fixed", "batch_size": 50}, "remove", 0.99, math.inf),
        ({"scheme": "full"}, "add", 0.9, math.inf),
    ],
)
def test_infinite_epsilon_without_noise(sampling, direction, delta, lower):
    (epsilon,) = theory.group_epsilons([phase(sampling, 0.0, 10)], 1, 100, [delta], direction)
    assert epsilon.lower == lower


def test_the_interval_of_truncated_batches_is_above_poisson_sampling_and_below_replacement() -> None:
    capped = phase({"scheme": "truncated-poisson", "rate": 0.1, "max_batch": 35}, 1.0, 50)
    plain = phase({"scheme": "poisson", "rate": 0.1}, 1.0, 50)
    for direction in theory.DIRECTIONS:
        (found,) = theory.group_epsilons([capped], 2, 200, [1e-5], direction)
        (poisson,) = theory.group_epsilons([plain], 2, 200, [1e-5], direction)
        (replaced,) = theory.group_epsilons([plain.replace(noise_multiplier=0.5)], 2, 200, [1e-5], direction)
        assert found.lower <= poisson.upper <= found.upper * (1 + 1e-3)
        assert found.upper <= replaced.upper


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.0, 1.0), (0.5, 1.0), (1.0, 0.7)])
def test_no_order_of_a_shuffled_epoch_leaks_more(epsilon: float, sigma: float) -> None:
    """Two batches of two of four records, every order: delta by summing over the plane, whatever the others are."""
    x = np.linspace(-9.0, 9.0, 361)
    cell = (x[1] - x[0]) ** 2

    def density(values: tuple[float, ...]) -> np.ndarray:
        total = np.zeros((len(x), len(x)))
        for order in itertools.permutations(range(4)):
            sums = [sum(values[i] for i in order[:2]), sum(values[i] for i in order[2:])]
            total += np.outer(norm.pdf(x, sums[0], sigma), norm.pdf(x, sums[1], sigma)) / 24.0
        return total

    for k, others in ((1, (0.0, 0.0, 0.0)), (1, (-1.0, 1.0, 0.3)), (2, (0.0, 0.0)), (2, (1.0, -0.5))):
        ((pair, count),) = theory.composed([phase({"scheme": "shuffled", "batch_size": 2}, sigma, 2)], k, 4)
        assert count == 1
        most = math.exp(pair.log_delta_bounds(epsilon, "present-first")[1])  # type: ignore[index]
        present, absent = density((*[1.0] * k, *others)), density((*[0.0] * k, *others))
        for one, other in ((present, absent), (absent, present)):
            assert float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * cell) <= most + 1e-6
