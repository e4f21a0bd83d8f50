"""Cells to measures: what chords keep, and what removing kinks may do."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.accounting_oracle import curve, gaussian_delta, holds

from dpspec.accounting import DIRECTIONS, Direction, Discrete, Interval, Laplace, Mixture, PrivacyLoss
from dpspec.accounting.grid import discretize_from_above, discretize_from_below, remove_kinks


@given(
    st.lists(st.one_of(st.floats(-1.0, 1.0), st.just(0.0)), min_size=3, max_size=30),
    st.lists(st.integers(1, 5), min_size=30, max_size=30),
    st.floats(0.01, 0.5),
)
def test_removing_kinks_only_lowers_a_curve(values: list[float], gaps: list[int], spacing: float) -> None:
    nodes = np.array(values)
    index = np.cumsum(gaps[: len(nodes)])
    losses = spacing * index
    after = remove_kinks(nodes, index, spacing)
    assert np.all(after >= 0.0)
    for epsilon in np.concatenate((losses, 0.5 * (losses[1:] + losses[:-1]), [losses[0] - 1.0])):
        weights = -np.expm1(np.minimum(epsilon - losses, 0.0))
        # a curve is compared with an upper one, which is never negative
        assert after @ weights <= max(nodes @ weights, 0.0) + 1e-12 or after @ weights <= 1e-12


@given(
    st.lists(st.one_of(st.floats(0.0, 1.0), st.floats(-0.01, 0.0)), min_size=3, max_size=20),
    st.lists(st.integers(1, 1000), min_size=20, max_size=20),
    st.floats(math.log(1e-13), math.log(0.5)).map(math.exp),
)
def test_rounding_raises_no_curve_of_narrow_cells(values: list[float], gaps: list[int], spacing: float) -> None:
    index = np.cumsum(gaps[: len(values)])
    after = remove_kinks(np.array(values), index, spacing)
    with mpmath.workdps(60):
        losses = [mpmath.mpf(spacing) * int(i) for i in index]
        for place in (losses[0] - 1, *losses):
            weights = [-mpmath.expm1(min(place - loss, mpmath.mpf(0))) for loss in losses]
            before, lowered = (
                mpmath.fsum(mpmath.mpf(float(mass)) * weight for mass, weight in zip(masses, weights, strict=True))
                for masses in (values, after)
            )
            assert lowered <= max(before, 0)


def test_nodes_without_mass_take_no_part_in_removing_kinks() -> None:
    masses = np.tile([1e-4, 3e-4, -1e-4], 700)  # one node in 80 has mass
    index = np.arange(80 * len(masses))
    nodes = np.zeros(len(index))
    nodes[::80] = masses
    after = remove_kinks(nodes, index, 1e-5)
    used = np.flatnonzero(nodes)
    np.testing.assert_array_equal(after[used], remove_kinks(masses, index[used], 1e-5))
    assert np.count_nonzero(after) <= np.count_nonzero(masses > 0.0)


def test_a_curve_that_falls_below_zero_ends_before() -> None:
    """From the first node at which the curve is negative on, no mass remains."""
    masses = np.concatenate(([0.3, 1.2, -0.5], np.full(4000, 1e-8)))
    after = remove_kinks(masses, np.arange(len(masses)), 1e-3)
    assert np.flatnonzero(after).tolist() == [0]
    second = float(masses @ np.exp(-1e-3 * np.arange(len(masses))))  # the mass that leaves no value at node 0
    assert second * (1.0 - 1e-9) <= after[0] <= second


PRESENT, ABSENT = "present-first", "absent-first"
laplaces = st.builds(
    Laplace,
    st.floats(math.log(0.05), math.log(50.0)).map(math.exp),
    st.just(1.0),
    st.one_of(st.just(1.0), st.floats(math.log(1e-8), math.log(0.999)).map(math.exp)),
)
vectors = st.lists(st.floats(0.0, 1.0), min_size=3, max_size=9).filter(lambda x: sum(x) > 0.1)


def _normalised(one: list[float], two: list[float]) -> Discrete:
    size = min(len(one), len(two))
    p, q = np.array(one[:size]) + 1e-9, np.array(two[:size]) + 1e-9
    p[p < 0.05] = 0.0
    if p.sum() == 0.0:
        p[0] = 1.0
    return Discrete(p / p.sum(), q / q.sum())


mixtures = st.builds(
    Mixture.poisson,
    st.sampled_from([1, 2, 4, 9, 30]),
    st.floats(math.log(1e-6), math.log(0.999)).map(math.exp),
    st.floats(math.log(0.25), math.log(50.0)).map(math.exp),
)
discretes = st.tuples(vectors, vectors).map(lambda two: _normalised(*two))


@given(
    st.one_of(laplaces, discretes, mixtures),
    st.sampled_from(DIRECTIONS),
    st.floats(math.log(1e-4), math.log(0.5)).map(math.exp),
    st.floats(0.05, 300.0),
    st.lists(st.floats(-0.2, 1.2), min_size=6, max_size=6),
)
def test_discretised_curves_enclose_the_exact_one(pair, direction, share, tilt, places):
    part = pair.truncate(direction, -50.0, -40.0)
    losses, _ = part.table()
    reach = float(np.ptp(losses)) or 1e-3
    upper, lower = part.cells(share * reach, [tilt], 6.0, 1 << 19)
    above, below = discretize_from_above(upper), discretize_from_below(lower)
    assert above.masses.sum() + above.infinity >= 1.0 - 1e-9
    assert below.masses.sum() + below.infinity <= 1.0 + 1e-12
    assert np.all(below.masses >= 0.0)
    for place in places:
        epsilon = float(losses.min()) + place * reach
        found = pair.log_delta_bounds(epsilon, direction)
        assert found is not None
        assert curve(below, epsilon + below.shift) <= math.exp(found[1]) * (1.0 + 1e-11) + 1e-15
        assert curve(above, epsilon - above.shift) >= math.exp(found[0]) * (1.0 - 1e-11) - 1e-15


@given(laplaces, st.floats(-1.5, 1.5))
def test_one_laplace_step_in_both_directions(pair: Laplace, place: float) -> None:
    epsilon = place * pair.largest_loss(PRESENT)
    there, back = pair.log_delta_bounds(epsilon, PRESENT), pair.log_delta_bounds(-epsilon, ABSENT)
    with mpmath.workdps(60):
        e, m, q = mpmath.mpf(epsilon), mpmath.mpf(pair.edge), mpmath.mpf(pair.rate)
        inner = (mpmath.exp(e) - 1) / q + 1
        if inner <= mpmath.exp(-m):
            truth = 1 - mpmath.exp(e)
        else:
            truth = max(mpmath.mpf(0), q * (1 - mpmath.exp((mpmath.log(inner) - m) / 2)))
        other = 1 - mpmath.exp(-e) + mpmath.exp(-e) * truth
        for bounds, value in ((there, truth), (back, other)):
            assert mpmath.exp(bounds[0]) * (1 - mpmath.mpf(1e-14)) <= value + mpmath.mpf(1e-30)
            assert value <= mpmath.exp(bounds[1]) * (1 + mpmath.mpf(1e-14)) + mpmath.mpf(1e-30)
    assert there[1] - there[0] < 1e-6 or float(truth) < 1e-6 * pair.rate


def hockey_stick(present: list[float], absent: list[float], steps: int, epsilon: float) -> float:
    total = 0.0
    for outcomes in itertools.product(range(len(present)), repeat=steps):
        p = math.prod(present[i] for i in outcomes)
        q = math.prod(absent[i] for i in outcomes)
        total += max(p - math.exp(epsilon) * q, 0.0)
    return total


@pytest.mark.parametrize("epsilon", [-1.0, 0.7, 30.0, *(pytest.param(e, marks=pytest.mark.slow) for e in (0.0, 2.0))])
@pytest.mark.parametrize(
    ("present", "absent"),
    [
        ([0.75, 0.25], [0.25, 0.75]),
        ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
        ([0.6, 0.3, 0.1, 0.0], [0.1, 0.25, 0.15, 0.5]),
        ([0.6, 0.25, 0.1, 0.05], [0.2, 0.3, 0.5, 0.0]),
    ],
)
def test_finitely_many_outcomes_by_brute_force(present: list[float], absent: list[float], epsilon: float) -> None:
    for direction, one, two in ((PRESENT, present, absent), (ABSENT, absent, present)):
        for steps in (1, 4):
            found = PrivacyLoss.of(Discrete(present, absent), direction).compose(steps).delta(epsilon, width=1e-2)
            truth = hockey_stick(one, two, steps, epsilon)
            assert found.lower - 1e-15 <= truth <= found.upper + 1e-15


def test_randomised_response_composed_is_binomial() -> None:
    loss = PrivacyLoss.of(Discrete([0.75, 0.25], [0.25, 0.75])).compose(200)
    gap = math.log(3.0)
    with mpmath.workdps(40):
        for epsilon in (10.0, 100.0, 180.0):
            truth = mpmath.mpf(0)
            for k in range(201):
                weight = mpmath.binomial(200, k) * mpmath.mpf(3) ** k / mpmath.mpf(4) ** 200
                other = mpmath.binomial(200, k) * mpmath.mpf(3) ** (200 - k) / mpmath.mpf(4) ** 200
                truth += max(weight - mpmath.exp(epsilon) * other, mpmath.mpf(0))
            found = loss.delta(epsilon)
            assert holds(found, float(truth), 1e-12)
            assert found.relative_width < 1e-6  # losses are multiples of ln 3: nothing is lost to the grid
    assert loss.epsilon(1e-300).upper <= 200 * gap * (1.0 + 1e-12)


def test_outcomes_that_only_one_law_produces_cost_an_infinite_epsilon() -> None:
    loss = PrivacyLoss.of(Discrete([0.89, 0.1, 0.01], [0.9, 0.1, 0.0])).compose(10)
    always = 1.0 - 0.99**10
    assert holds(loss.delta(5.0), always)
    assert loss.epsilon(0.9 * always) == Interval(math.inf, math.inf)
    assert loss.epsilon(1.5 * always, width=0.1).upper < 1.0
    assert loss.rero(1e-9).lower >= always


def test_equal_laws_leak_nothing() -> None:
    loss = PrivacyLoss.of(Discrete([0.2, 0.8], [0.2, 0.8])).compose(7)
    assert loss.epsilon(1e-9) == Interval(0.0, 0.0)
    assert loss.rero(0.3).upper == pytest.approx(0.3, rel=1e-14)


@pytest.mark.family
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_phases_of_different_kinds_compose(direction: Direction) -> None:
    """One Gaussian and one sampled Laplace step: the first's closed form averaged over the second's loss."""
    gauss, laplace = (PrivacyLoss.gaussian(2.0, direction=direction), PrivacyLoss.of(Laplace(1.5, rate=0.3), direction))
    both = gauss + laplace
    assert both.phases == (laplace + gauss).phases[::-1]
    with mpmath.workdps(25):
        m, q = mpmath.mpf(1) / mpmath.mpf(1.5), mpmath.mpf(0.3)

        def share(x: mpmath.mpf) -> mpmath.mpf:
            return 1 - q + q * mpmath.exp(x)

        sign = 1 if direction == PRESENT else -1
        for epsilon in (0.0, 0.8, 2.0):

            def term(x: mpmath.mpf, mass: mpmath.mpf, epsilon: float = epsilon) -> mpmath.mpf:
                weight = mass * (share(x) if sign > 0 else 1)
                return weight * gaussian_delta(epsilon - sign * mpmath.log(share(x)), 0.5)

            truth = term(-m, mpmath.mpf(0.5)) + term(m, mpmath.exp(-m) / 2)
            truth += mpmath.quad(lambda x: term(x, mpmath.exp(-(x + m) / 2) / 4), [-m, -m / 2, 0, m / 2, m])
            assert holds(both.delta(epsilon), float(truth), 1e-12)
