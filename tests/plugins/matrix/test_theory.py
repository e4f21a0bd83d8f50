"""Sensitivities against all sets of steps, and epsilon against quadrature, sampling and the Gaussian profile."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from plugins.matrix import oracles
from plugins.matrix.test_encoders import options

from dpspec_matrix.encoders import encoder_of
from dpspec_matrix.options import EncoderOptions, Participation, Schedule
from dpspec_matrix.theory import epsilons, mu_interval, reduction, sensitivity


def schedule(encoder: EncoderOptions, steps: int, noise: float = 1.0, **participation: object) -> Schedule:
    return Schedule(
        steps=steps,
        noise_multiplier=noise,
        encoder=encoder,
        participation=Participation(**participation),  # type: ignore[arg-type]
    )


def exact_matrix(encoder: EncoderOptions, steps: int) -> oracles.Matrix:
    match encoder.kind:
        case "tree":
            return oracles.tree(steps)
        case "square-root":
            return oracles.toeplitz(oracles.root_coefficients(min(steps, encoder.bands)), steps)
        case "inverse-square-root":
            return oracles.toeplitz(oracles.inverse_root_column(steps, encoder.bands), steps)
        case "banded":
            return oracles.toeplitz([Fraction(c) for c in encoder.coefficients], steps)
    return oracles.toeplitz([Fraction(1)], steps)


def random_encoder(random: np.random.Generator) -> EncoderOptions:
    kind = str(random.choice(["identity", "tree", "square-root", "inverse-square-root", "banded"]))
    coefficients = (1.0, *(float(c) for c in np.round(random.uniform(-1, 1, random.integers(0, 4)), 3)))
    return options(kind, bands=int(random.integers(1, 6)), coefficients=coefficients if kind == "banded" else ())


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.ci) for seed in range(20, 40))])
def test_sensitivities_contain_the_largest_change_of_all_sets(seed: int) -> None:
    random = np.random.default_rng(seed)
    steps, separation = int(random.integers(1, 9)), int(random.integers(1, 5))
    encoder = random_encoder(random)
    scheme = str(random.choice(["single", "cyclic", "min-separation"]))
    times = int(random.integers(0, 4)) if scheme == "min-separation" else 0
    case = schedule(encoder, steps, scheme=scheme, separation=1 if scheme == "single" else separation, times=times)
    bound, matrix = sensitivity(case), exact_matrix(encoder, steps)
    exact = oracles.largest_change(matrix, oracles.sets_of_steps(scheme, steps, separation, times))
    assert Fraction(bound.lower) <= exact <= Fraction(bound.upper)
    if encoder.kind != "banded" and (encoder.kind != "tree" or scheme != "min-separation"):
        assert bound.upper <= float(exact) * (1 + 1e-9)
    if all(entry >= 0 for row in matrix for entry in row) and scheme != "min-separation":
        assert bound.lower >= float(exact) * (1 - 1e-9)
    vectors = random.normal(size=(steps, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    floats = np.array([[float(entry) for entry in row] for row in matrix])
    for chosen in oracles.sets_of_steps(scheme, steps, separation, times):
        assert np.square(floats[:, chosen] @ vectors[list(chosen)]).sum() <= bound.upper * (1 + 1e-12)


def test_the_gap_of_an_inequality_is_stated() -> None:
    signed = schedule(options("banded", coefficients=(1.0, 0.9, -0.8)), 12, scheme="min-separation", separation=1)
    assert "entry by entry" in reduction(signed, 1).reason
    assert reduction(schedule(options("identity"), 12, scheme="cyclic", separation=3), 1).reason == ""


@pytest.mark.parametrize(("delta", "size"), [(1e-6, 1), (1e-3, 2), (1e-12, 3), (0.5, 1)])
def test_epsilon_of_fixed_participation_is_that_of_the_gaussian_profile(delta: float, size: int) -> None:
    case = schedule(options("square-root", bands=4), 12, 2.0, scheme="cyclic", separation=3)
    (interval,) = epsilons(case, size, [delta])
    mu = size * math.sqrt(oracles.squared_change(exact_matrix(case.encoder, 12), range(0, 12, 3))) / 2.0
    assert oracles.gaussian_delta(mu, interval.upper) <= delta
    assert interval.lower == 0.0 or oracles.gaussian_delta(mu, interval.lower) >= delta
    assert interval.width <= 1e-6 * interval.upper
    assert mu_interval(case, size).lower <= mu <= mu_interval(case, size).upper


def poisson_choices(matrix: np.ndarray, rate: float) -> list[tuple[float, object]]:
    """All sets of drawn steps, with equal gradients."""
    count = matrix.shape[1]
    return [
        (rate ** sum(drawn) * (1 - rate) ** (count - sum(drawn)), matrix @ np.array(drawn))
        for drawn in product([0, 1], repeat=count)
    ]


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Columns of the same norms without inner products."""
    return np.diag(np.linalg.norm(matrix, axis=0))


@pytest.mark.family
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.ci) for seed in range(8, 24))])
def test_cyclic_poisson_contains_the_divergence_of_explicit_pairs(seed: int) -> None:
    """Three steps with one slot or two: exact if columns do not overlap, else between explicit pairs and Theorem M3."""
    random = np.random.default_rng(seed)
    separation, steps = (1, int(random.integers(2, 4))) if seed % 2 else (2, 3)
    coefficients = (1.0, float(random.uniform(-0.9, 0.9)))
    rate, noise, delta = float(random.uniform(0.05, 0.9)), float(random.uniform(0.7, 2.0)), 10 ** random.uniform(-4, -1)
    case = schedule(
        options("banded", coefficients=coefficients),
        steps,
        noise,
        scheme="cyclic-poisson",
        separation=separation,
        rate=rate,
    )
    (interval,) = epsilons(case, 1, [delta])
    matrix = encoder_of(case.encoder, steps).matrix()[:, ::separation]
    pairs = [poisson_choices(variant, rate) for variant in (matrix, matrix * [1, -1, 1][: matrix.shape[1]])]
    if steps == matrix.shape[1]:
        pairs.append(poisson_choices(orthogonal(matrix), rate))
    above = max(oracles.grid_delta(steps, noise, pair, interval.upper) for pair in pairs)
    below = max(oracles.grid_delta(steps, noise, pair, interval.lower) for pair in pairs)
    assert above <= delta * 1.01
    assert interval.lower == 0.0 or below >= delta * 0.99
    assert bool(reduction(case, 1).reason) == (separation == 1)
    if separation == 2:
        assert interval.relative_width <= 1e-3


def test_adaptive_gradients_stay_below_the_bound_of_overlapping_columns() -> None:
    """The second gradient depends on the first output: equal to the first one, or opposite."""
    case = schedule(options("square-root", bands=2), 2, 1.0, scheme="cyclic-poisson", separation=1, rate=0.4)
    (interval,) = epsilons(case, 1, [0.01])

    def mean(first: int, second: int, low: float, high: float) -> object:
        return lambda outputs: [first, 0.5 * first + second * np.where(outputs[0] > 0.5, high, low)]

    for low, high in product([-1.0, 0.0, 1.0], repeat=2):
        choices = [(0.4 ** (a + b) * 0.6 ** (2 - a - b), mean(a, b, low, high)) for a, b in product([0, 1], repeat=2)]
        assert oracles.grid_delta(2, 1.0, choices, interval.upper) <= 0.01


@pytest.mark.family
@pytest.mark.parametrize("scheme", ["balls-in-bins", "random-allocation"])
@pytest.mark.parametrize(("steps", "bins", "bands"), [(2, 2, 2), (3, 3, 2), (4, 2, 2), (6, 3, 1)])
def test_allocation_contains_the_divergence_of_explicit_pairs(scheme: str, steps: int, bins: int, bands: int) -> None:
    case = schedule(options("square-root", bands=bands), steps, 1.3, scheme=scheme, separation=bins)
    (interval,) = epsilons(case, 1, [0.02])
    matrix = encoder_of(case.encoder, steps).matrix()
    epochs = steps // bins
    if scheme == "balls-in-bins":
        sets = [tuple(range(j, steps, bins)) for j in range(bins)]
    else:
        sets = [tuple(r * bins + j for r, j in enumerate(places)) for places in product(range(bins), repeat=epochs)]
    weights = np.full(len(sets), 1.0 / len(sets))
    equal = np.array([matrix[:, chosen].sum(axis=1) for chosen in sets])
    other = np.zeros((len(sets), steps * steps))  # one direction for each place, in all of its epochs
    for row, chosen in zip(other, sets, strict=True):
        for step in chosen:
            place = step % bins if scheme == "balls-in-bins" else step
            row[place * steps : (place + 1) * steps] += matrix[:, step]
    deltas = {}
    for name, epsilon in (("upper", interval.upper), ("lower", interval.lower)):
        deltas[name] = [oracles.sampled_delta(means, weights, 1.3, epsilon, 5) for means in (equal, other)]
    for value, error in deltas["upper"]:
        assert value <= 0.02 + 5 * error
    value, error = max(deltas["lower"])
    assert value >= 0.02 - 5 * error
    assert bool(reduction(case, 1).reason) == (bands > 1)


@pytest.mark.ci
@pytest.mark.parametrize("scheme", ["poisson", "one of two"])
def test_no_adaptive_gradients_exceed_equal_ones(scheme: str) -> None:
    """Theorem M6: the second gradient depends on the first row. It fails for C with negative entries."""
    rate = 0.4
    weights = {(a, b): rate ** (a + b) * (1.0 - rate) ** (2 - a - b) for a, b in product([0, 1], repeat=2)}
    if scheme == "one of two":
        weights = {(1, 0): 0.5, (0, 1): 0.5}

    def choices(below: float, low: float, high: float) -> list[tuple[float, object]]:
        def mean(first: int, second: int) -> object:
            return lambda outputs: [first, below * first + second * np.where(outputs[0] > 0.5, high, low)]

        return [(weight, mean(*steps)) for steps, weight in weights.items()]

    for epsilon in (0.2, 1.0):
        equal = oracles.grid_delta(2, 1.0, choices(0.7, 1.0, 1.0), epsilon)
        for low, high in product([-1.0, 0.0, 1.0], repeat=2):
            assert oracles.grid_delta(2, 1.0, choices(0.7, low, high), epsilon) <= equal + 1e-9
        signed = oracles.grid_delta(2, 1.0, choices(-0.7, 1.0, 1.0), epsilon)
        assert oracles.grid_delta(2, 1.0, choices(-0.7, -1.0, -1.0), epsilon) > signed


@pytest.mark.ci
@pytest.mark.parametrize("scheme", ["balls-in-bins", "random-allocation"])
@pytest.mark.parametrize(
    ("encoder", "bins"),
    [
        (options("buffers", weights=(0.4,), decays=(0.9,)), 3),
        (options("tree"), 4),
        (options("buffers", weights=(0.2, 0.1), decays=(0.5, 0.99)), 8),
        (options("inverse-square-root", bands=2), 4),
    ],
)
@pytest.mark.parametrize("noise", [1.5, 0.6])
def test_long_columns_have_a_common_part(encoder: EncoderOptions, bins: int, scheme: str, noise: float) -> None:
    """Equal gradients, the worst case of Theorem M6, are between both ends: 400,000 draws, 5 standard errors."""
    steps = 8 if bins != 3 else 6
    case = schedule(encoder, steps, noise, scheme=scheme, separation=bins)
    (interval,) = epsilons(case, 1, [0.02], width=1e-2)
    matrix, epochs = encoder_of(encoder, steps).matrix(), steps // bins
    if scheme == "balls-in-bins":
        sets = [tuple(range(j, steps, bins)) for j in range(bins)]
    else:
        sets = [tuple(r * bins + j for r, j in enumerate(places)) for places in product(range(bins), repeat=epochs)]
    means = np.array([matrix[:, chosen].sum(axis=1) for chosen in sets])
    weights = np.full(len(sets), 1.0 / len(sets))
    value, error = oracles.sampled_delta(means, weights, noise, interval.upper, 6)
    assert value <= 0.02 + 5.0 * error
    value, error = oracles.sampled_delta(means, weights, noise, interval.lower, 6)
    assert value >= 0.02 - 5.0 * error


@pytest.mark.ci
@pytest.mark.parametrize("encoder", [options("tree"), options("buffers", weights=(0.4,), decays=(0.9,))])
def test_blocks_of_poisson_samples_are_attained(encoder: EncoderOptions) -> None:
    """Steps whose columns are short are omitted: equal gradients leak at least the lower end."""
    case = schedule(encoder, 7, 1.0, scheme="cyclic-poisson", separation=1, rate=0.3)
    (interval,) = epsilons(case, 1, [0.02], directions=1)
    steps = np.array(list(product([0.0, 1.0], repeat=7)))
    means, weights = steps @ encoder_of(encoder, 7).matrix().T, np.prod(np.where(steps > 0.0, 0.3, 0.7), axis=1)
    value, error = oracles.sampled_delta(means, weights, 1.0, interval.lower, 8)
    assert value >= 0.02 - 5.0 * error
    value, error = oracles.sampled_delta(means, weights, 1.0, interval.upper, 8)
    assert value <= 0.02 + 5.0 * error


@pytest.mark.ci
def test_overlapping_bins_leave_a_hundredth_of_epsilon() -> None:
    """0.19 with orthogonal steps below, and without a common part above."""
    encoder = options("square-root", bands=16)
    noise = float(np.linalg.norm(encoder_of(encoder, 400).column)) / math.sqrt(5.0)
    (interval,) = epsilons(schedule(encoder, 400, noise, scheme="balls-in-bins", separation=100), 1, [1e-6], width=1e-2)
    assert interval.relative_width <= 0.015


def test_models_without_room_for_orthogonal_gradients_have_lower_ends_along_one_direction() -> None:
    case = schedule(options("square-root", bands=4), 40, 2.0, scheme="cyclic-poisson", separation=1, rate=0.05)
    (many,), (single,) = epsilons(case, 1, [1e-5]), epsilons(case, 1, [1e-5], directions=8)
    assert single.upper == many.upper
    assert single.lower <= many.lower


@pytest.mark.family
@pytest.mark.parametrize(
    "case",
    [
        schedule(options("square-root", bands=4), 100_000, 1e-3, scheme="cyclic", separation=4),
        schedule(options("identity"), 100_000, 1e6, scheme="single"),
        schedule(options("inverse-square-root", bands=256), 100_000, 50.0, scheme="cyclic", separation=1000),
        schedule(options("identity"), 100_000, 1.0, scheme="cyclic-poisson", separation=1, rate=1e-30),
        schedule(options("identity"), 64, 1e-3, scheme="cyclic-poisson", separation=4, rate=0.1),
        schedule(options("tree"), 12, 1e-3, scheme="cyclic-poisson", separation=4, rate=0.999),
        schedule(options("tree"), 100, 1e6, scheme="cyclic-poisson", separation=1, rate=0.5),
        schedule(options("inverse-square-root", bands=16), 64, 0.5, scheme="cyclic-poisson", separation=3, rate=1e-30),
        schedule(options("buffers", weights=(1e3,), decays=(1 - 1e-9,)), 64, 5.0, scheme="cyclic-poisson", rate=0.01),
        schedule(options("identity"), 64, 1e-3, scheme="balls-in-bins", separation=4),
        schedule(options("tree"), 64, 1e6, scheme="random-allocation", separation=64),
        schedule(options("banded", coefficients=(1e-3, 1e3, -1e3)), 64, 1.0, scheme="min-separation", separation=1),
        schedule(options("banded", coefficients=(1e-6,)), 64, 1e6, scheme="cyclic", separation=4),
        schedule(options("banded", coefficients=(1e-6, 0.0)), 8, 1e6, scheme="cyclic-poisson", separation=1, rate=0.3),
        schedule(options("banded", coefficients=(1e-6,)), 8, 1e6, scheme="balls-in-bins", separation=4),
        schedule(options("banded", coefficients=(1e-6,)), 8, 1e6, scheme="random-allocation", separation=4),
        schedule(
            options("buffers", weights=(1e3,), decays=(1 - 1e-9,)), 64, 1.0, scheme="min-separation", separation=7
        ),
    ],
)
def test_extremes_of_the_schema_have_ordered_ends(case: Schedule) -> None:
    for interval in epsilons(case, 1, [1e-12, 1e-5, 0.5]):
        assert 0.0 <= interval.lower <= interval.upper < math.inf


@pytest.mark.parametrize("cancelled", [0.1, 0.5, 0.9])
def test_noise_that_cancels_a_share_of_the_noise_before_is_a_buffer(cancelled: float) -> None:
    """Lambda-CGD (arXiv 2601.22334): a step adds Z_t - lambda Z_(t-1), so C^-1 has the diagonals 1 and -lambda."""
    steps, separation, noise = 12, 3, 2.0
    inverse = np.eye(steps) - cancelled * np.eye(steps, k=-1)
    encoder = options("buffers", weights=(cancelled,), decays=(cancelled,))
    assert np.allclose(encoder_of(encoder, steps).matrix() @ inverse, np.eye(steps), atol=1e-14)
    case = schedule(encoder, steps, noise, scheme="cyclic", separation=separation)
    (interval,) = epsilons(case, 1, [1e-6])
    sums = np.linalg.inv(inverse)[:, ::separation].sum(axis=1)  # of equal gradients at each third step
    mu = float(np.linalg.norm(sums)) / noise
    assert oracles.gaussian_delta(mu, interval.upper * (1.0 + 1e-9)) <= 1e-6
    assert oracles.gaussian_delta(mu, interval.lower * (1.0 - 1e-9)) >= 1e-6
    assert interval.width <= 1e-6 * interval.upper
    if cancelled == 0.5:
        assert round(interval.upper, 4) == 6.3962


def test_half_of_the_noise_before_is_the_inverse_square_root_of_two_bands() -> None:
    half, two = options("buffers", weights=(0.5,), decays=(0.5,)), options("inverse-square-root", bands=2)
    assert np.allclose(encoder_of(half, 9).matrix(), encoder_of(two, 9).matrix(), rtol=1e-14)


def test_noise_of_a_million_columns_at_the_smallest_delta() -> None:
    """Nearly certain draws of two columns: a Gaussian of mu = sqrt(5) / 1e6. The search began at a tilt of 0."""
    (epsilon,) = epsilons(schedule(options("tree"), 2, 1e6, scheme="cyclic-poisson", rate=1.0 - 1e-9), 1, [1e-300])
    assert epsilon.lower <= math.sqrt(5.0) * 1e-6 * 36.5963 <= epsilon.upper
