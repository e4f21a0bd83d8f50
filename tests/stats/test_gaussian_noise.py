"""Null distributions of the noise tests, compared with exact probabilities and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.conformance import gaussian_noise as tested

RANDOM = np.random.default_rng(7)


def test_the_intervals_have_all_of_the_probability():
    low, high = tested._probabilities(0.0)
    assert np.array_equal(low, high)
    assert math.isclose(low[: tested.INTERVALS].sum(), 1.0, rel_tol=1e-12)
    assert np.allclose(tested.EDGES, -tested.EDGES[::-1])
    beyond = low[tested.INTERVALS + len(tested.EDGES) :]
    assert np.allclose(beyond, 2.0 * stats.norm.sf(tested.EDGES[tested.EDGES > 0.0]))


def test_events_are_counted_as_their_probabilities_are_defined():
    values = RANDOM.standard_normal(5000)
    counts = np.bincount(np.searchsorted(tested.EDGES, values), minlength=tested.INTERVALS)
    events = tested._events(counts.astype(float))
    below = [(values <= edge).sum() for edge in tested.EDGES]
    beyond = [(np.abs(values) > edge).sum() for edge in tested.EDGES if edge > 0.0]
    assert events.tolist() == [*counts, *below, *beyond]


@pytest.mark.parametrize(("total", "moved"), [(200, 30), (5000, 150), (100_000, 700)])
def test_the_bound_on_shares_is_above_the_exact_binomial_tail(total, moved):
    probabilities, _ = tested._probabilities(0.0)
    counts = np.round(total * probabilities[: tested.INTERVALS])
    counts[16] += moved
    log_p, worst = tested.log_shares(counts, 0.0)
    seen = tested._events(counts)[worst]
    exact = stats.binom(int(counts.sum()), probabilities[worst])
    tail = min(exact.logsf(seen - 1), exact.logcdf(seen))
    assert tail <= log_p - math.log(2 * len(probabilities)) <= tail + math.log(100.0)


def test_room_for_rounding_excuses_what_rounding_can_do():
    counts = np.round(1e6 * tested._probabilities(0.0)[0][: tested.INTERVALS])
    counts[20] += 4000
    assert tested.log_shares(counts, 0.0)[0] < -20.0
    assert tested.log_shares(counts, 0.02)[0] == 0.0


@pytest.mark.parametrize(("size", "kept", "gap"), [(50, 50, 0.01), (2000, 100, 1e-3), (20_000, 1000, 1e-5)])
def test_the_expected_number_of_small_gaps_bounds_the_simulated_one(size, kept, gap):
    found, bound = 0, 0.0
    for _ in range(300):
        values = np.sort(np.abs(RANDOM.standard_normal(size)))[::-1][:kept]
        count, expected = tested.small_gaps(values, gap, gap)
        found, bound = found + count, bound + expected
    error = 4.0 * math.sqrt(bound)
    assert 0.6 * bound - error < found < bound + error


def test_only_neighbors_with_different_labels_count():
    values, labels = np.array([3.0, 3.0, 2.0, 2.0, 1.0]), np.array([0, 1, 0, 0, 1])
    assert tested.small_gaps(values, 0.0, 0.0)[0] == 2
    assert tested.small_gaps(values, 0.0, 0.0, labels)[0] == 1
    assert tested.small_gaps(values[:1], 1.0, 1.0) == (0, 0.0)


@pytest.mark.parametrize("expected", [0.1, 2.0, 40.0])
def test_the_bound_on_repeats_is_above_the_poisson_tail(expected):
    for count in range(1, 100, 7):
        assert stats.poisson(expected).logsf(count - 1) <= tested.log_repeats(count, expected) + 1e-9
    assert tested.log_repeats(200, expected) < -90.0


@pytest.mark.parametrize("lengths", [[2] * 20, [5, 9], [400], [31, 30, 30]])
def test_the_bound_on_products_is_above_the_exact_moment_bound(lengths):
    """The smallest Chernoff bound with the exact moment generating function det(I - s A)^(-1/2)."""
    eigenvalues = np.concatenate([2.0 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1)) for n in lengths])
    pairs = sum(lengths) - len(lengths)
    for x in (0.5 * math.sqrt(pairs), 3.0 * math.sqrt(pairs), 2.0 * pairs):
        grid = np.linspace(0.0, 0.999 / eigenvalues.max(), 4000)[1:]
        exact = min(0.0, float((-0.5 * np.log1p(-np.outer(grid, eigenvalues)).sum(1) - grid * x).min()))
        (bound,) = tested.log_products(np.array([x]), np.array([float(pairs)]))
        assert exact <= bound + 1e-6
        assert bound == tested.log_products(np.array([-x]), np.array([float(pairs)]))[0]
        if x == 3.0 * math.sqrt(pairs) and len(lengths) == 1:
            assert bound < 0.85 * exact


def test_singular_values_of_normal_matrices_are_within_the_bound():
    rejected = 0
    for _ in range(400):
        values = np.linalg.svd(RANDOM.standard_normal((8, 40)), compute_uv=False)
        rejected += tested.log_singular(8, 40, values[-1], values[0]) <= math.log(0.5)
    assert rejected <= 0.5 * 400 + 4.0 * 10.0
    assert tested.log_singular(8, 40, 0.0, 9.0) == pytest.approx(math.log(2) - 0.5 * (40**0.5 - 8**0.5) ** 2)
    assert tested.log_singular(40, 8, 3.0, 20.0) == tested.log_singular(8, 40, 3.0, 20.0)
    assert tested.singular(4, 4, 0.0, 2.0, 1, "").p_value == 1.0


def test_scores_of_chi_square_values_are_standard_normal():
    degrees = np.array([1.0, 3.0, 100.0, 1e6])
    given = stats.norm.cdf(np.array([[-7.0], [-1.0], [0.3], [6.0]]))
    squares = stats.chi2.ppf(given, degrees)
    inside = tested.scores(squares, degrees)[1:3]
    assert np.allclose(inside, [[-1.0] * 4, [0.3] * 4], atol=1e-6)
    assert np.allclose(tested.scores(stats.chi2.isf(stats.norm.sf(6.0), degrees), degrees), 6.0, atol=1e-6)
    assert np.abs(tested.scores(np.array([0.0, 1e9]), np.array([5.0, 5.0]))).tolist() == [30.0, 30.0]


def test_measurements_reject_a_deviation_of_the_size_that_they_state():
    level = 1e-6
    repeats = tested.repeats(0, 5.0, 1000, 3, "")
    assert repeats.p_value == 1.0
    assert tested.repeats(round(1000 * repeats.detectable), 5.0, 1000, 3, "").p_value <= level
    shifts = tested.shifts(0.0, 5000, 100, "")
    assert tested.shifts(5000 * shifts.detectable, 5000, 100, "").p_value <= level
    coarse = tested.coarse(0, 4000, "")
    assert tested.coarse(round(4000 * coarse.detectable), 4000, "").p_value <= level
    long, short = math.sqrt(100), math.sqrt(16)
    singular = tested.singular(16, 100, long - short, long + short, 2, "")
    assert tested.singular(16, 100, 6.0, (long + short) * (1 + singular.detectable), 2, "").p_value <= level
    counts = np.round(1e5 * tested._probabilities(0.0)[0][: tested.INTERVALS])
    shares = tested.shares(counts.astype(int).tolist(), 0.0, 10, "")
    counts[18] += 1e5 * shares.detectable
    assert tested.shares(counts.astype(int).tolist(), 0.0, 10, "").p_value <= level
    assert tested.spread(150.0, 150, "").p_value > 0.5
