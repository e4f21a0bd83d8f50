"""Null distributions of the noise tests, compared with exact probabilities and simulations."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dpspec.stats.conformance.measurement import Measurement
from dpspec_recording.folder.part import dependence
from dpspec_recording.watching import noise_statistics as tested
from dpspec_recording.watching.noise_statistics import correlations

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


@pytest.mark.parametrize("expected", [0.1, 2.0, 40.0])
def test_the_bound_on_repeats_is_above_the_poisson_tail(expected):
    for count in range(1, 100, 7):
        assert stats.poisson(expected).logsf(count - 1) <= tested.log_repeats(count, expected) + 1e-9
    assert tested.log_repeats(200, expected) < -90.0


@pytest.mark.family
@pytest.mark.parametrize("shape", [(2, 3), (6, 40), (40, 6), (12, 12)])
def test_components_of_independent_vectors_are_chi_square(shape):
    found = [dependence(RANDOM.standard_normal(shape)) for _ in range(2000)]
    short = min(shape)
    assert {degrees for _, degrees in found} == {short * (short - 1) // 2}
    assert stats.kstest([value for value, _ in found], stats.chi2(found[0][1]).cdf).pvalue > 1e-4


def test_measurements_reject_a_deviation_of_the_size_that_they_state():
    level = 1e-6
    repeats = tested.repeats(0, 5.0, 1000, 3, "")
    assert repeats.p_value == 1.0
    assert tested.repeats(round(1000 * repeats.detectable), 5.0, 1000, 3, "").p_value <= level
    counts = np.round(1e5 * tested._probabilities(0.0)[0][: tested.INTERVALS])
    shares = tested.shares(counts.astype(int).tolist(), 0.0, 10, "")
    counts[18] += 1e5 * shares.detectable
    assert tested.shares(counts.astype(int).tolist(), 0.0, 10, "").p_value <= level
    assert tested.spread(150.0, 150, "").p_value > 0.5
    assert tested.spread(250.0, 150, "", 10).p_value == pytest.approx(10 * tested.spread(250.0, 150, "").p_value)


@pytest.mark.parametrize(("terms", "tried"), [(1, 1), (1, 500), (100, 1)])
def test_an_excess_has_the_exact_tail_and_the_stated_limit(terms: int, tried: int) -> None:
    exact = stats.chi2(terms)
    found = tested.excess(2.0 * exact.ppf(0.99), terms, "", tried)
    assert math.isclose(found.p_value, min(1.0, tried * exact.sf(2.0 * exact.ppf(0.99))), rel_tol=1e-9)
    assert found.detectable is not None
    least = (1.0 + found.detectable) ** 2 * exact.ppf(0.01)
    assert math.isclose(tried * exact.sf(least), 1e-6, rel_tol=1e-6)


def noise(steps: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((steps, width))


def everything(vectors: np.ndarray) -> list[Measurement]:
    return [*correlations(vectors, "p", "d")]


def smallest(vectors: np.ndarray) -> float:
    made = everything(vectors)
    return len(made) * min(one.p_value for one in made)


def test_values_and_p_values_are_those_of_the_definitions() -> None:
    n = noise(1100, 5, 1)  # more than one block
    steps, width = n.shape
    scaled = n @ (n / np.linalg.norm(n, axis=1, keepdims=True)).T
    pairs = np.tril_indices(steps, -1)
    worst = max(scaled[pairs], key=abs)
    found, _ = correlations(n, "p", "d")
    assert found.measured == pytest.approx(worst / math.sqrt(width))
    assert found.p_value == pytest.approx(min(1.0, len(pairs[0]) * 2 * stats.norm.sf(abs(worst))))
    sums = {d: np.trace(scaled, -d) / math.sqrt(steps - d) for d in range(1, steps)}
    distance = max(sums, key=lambda d: abs(sums[d]))
    _, found = correlations(n, "p", "d")
    assert found.measured == pytest.approx(sums[distance] / math.sqrt((steps - distance) * width))
    assert found.p_value == pytest.approx(min(1.0, (steps - 1) * 2 * stats.norm.sf(abs(sums[distance]))))


@pytest.mark.family
@pytest.mark.parametrize(("steps", "width"), [(2, 1), (3, 128), (30, 20)])
def test_p_values_of_independent_noise_are_at_most_uniform(steps: int, width: int) -> None:
    repeats = 1000
    found = np.array([[one.p_value for one in everything(noise(steps, width, seed))] for seed in range(repeats)])
    for level in (0.2, 0.05, 0.01):
        allowed = stats.binom.isf(1e-5, repeats, level)
        assert ((found <= level).sum(axis=0) <= allowed).all()


def repeated_once(n: np.ndarray) -> np.ndarray:
    n = n.copy()
    n[151] = -n[37]
    return n


def seventh_before(n: np.ndarray) -> np.ndarray:
    n = n.copy()
    for k in range(7, len(n)):
        n[k] = 0.1 * n[k - 7] + math.sqrt(0.99) * n[k]
    return n


CHANGES = [repeated_once, seventh_before]


@pytest.mark.parametrize("change", CHANGES)
def test_dependent_noise_of_the_right_size_is_rejected(change: Callable[[np.ndarray], np.ndarray]) -> None:
    n = noise(200, 96, 5)
    assert smallest(n) > 1e-4
    assert smallest(change(n)) < 1e-9


def test_steps_without_noise_reject_nothing() -> None:
    n = noise(20, 8, 2)
    n[::3] = 0.0
    assert min(one.p_value for one in everything(n)) > 1e-4


@pytest.mark.family
@pytest.mark.parametrize(("numbers", "rounding"), [(30, 0.0), (1, 0.0), (4200, 1e-3), (10**7, 0.0)])
def test_the_largest_value_has_uniform_p_values(numbers: int, rounding: float) -> None:
    """The largest of n values by inversion, moved by at most the rounding; 4,000 p-values within 5 standard errors."""
    largest = -stats.norm.ppf(-0.5 * np.expm1(np.log(RANDOM.random(4000)) / numbers))
    moved = np.maximum(largest + rounding * RANDOM.uniform(-1.0, 1.0, 4000), 0.0)
    p_values = np.array([tested.extreme(float(value), numbers, rounding, "").p_value for value in moved])
    for level in (0.01, 0.1, 0.5):
        share = float((p_values <= level).mean())
        assert share <= level + 5.0 * math.sqrt(level / 4000)
        assert share >= 0.5 * level or rounding > 0.0


@pytest.mark.parametrize("numbers", [10**9, 10**10, 10**14])
def test_torchs_float32_numbers_are_no_cut(numbers: int) -> None:
    """They end at 5.768: from two billion on normal numbers would be larger. A cut 2 % below is found."""
    end = 5.768107  # the largest of 10^8 and more numbers
    assert tested.extreme(end, numbers, 1e-6, "").p_value > 1e-3
    assert tested.extreme(0.98 * end, numbers, 1e-6, "").p_value < (1e-6 if numbers > 10**9 else 1.0)


@pytest.mark.parametrize("numbers", [10**4, 10**6, 10**9])
def test_a_cut_at_the_stated_limit_is_rejected_and_one_above_it_is_not(numbers: int) -> None:
    measured = tested.extreme(3.0, numbers, 0.0, "")
    assert measured.detectable is not None
    cut = measured.declared * (1.0 - measured.detectable)
    assert tested.extreme(cut * (1.0 - 1e-9), numbers, 0.0, "").p_value <= 1e-6
    assert tested.extreme(cut * 1.001, numbers, 0.0, "").p_value > 1e-6
    # a value that is too large is rejected as well
    assert tested.extreme(measured.declared + 3.0, numbers, 0.0, "").p_value < 1e-6
