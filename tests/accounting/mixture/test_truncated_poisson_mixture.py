"""Masses and their stated errors against mpmath; one step's discretised curves on either side of the exact one."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.accounting_oracle import curve

from dpspec.accounting import Mixture, TooLongError
from dpspec.accounting.densities import Masses, normal_mass
from dpspec.accounting.grid import discretize_from_above, discretize_from_below

DIRECTIONS = ("present-first", "absent-first")

pairs = st.builds(
    Mixture.poisson,
    st.sampled_from([1, 2, 4, 9, 30]),
    st.floats(math.log(1e-6), math.log(0.999)).map(math.exp),
    st.floats(math.log(0.25), math.log(50.0)).map(math.exp),
)


def log_ratio(pair: Mixture, z: mpmath.mpf) -> mpmath.mpf:
    shifts = [mpmath.mpf(float(a)) for a in pair.ratio.shifts]
    logs = [mpmath.mpf(float(p)) for p in pair.log_probabilities]
    return mpmath.log(sum(mpmath.exp(w + a * z - a * a / 2) for a, w in zip(shifts, logs, strict=True)))


def normal(low: float, high: float) -> mpmath.mpf:
    return (mpmath.erfc(mpmath.mpf(low) / mpmath.sqrt(2)) - mpmath.erfc(mpmath.mpf(high) / mpmath.sqrt(2))) / 2


def test_normal_mass_within_its_stated_error() -> None:
    rng = np.random.default_rng(3)
    low = rng.uniform(-35.0, 35.0, 100)
    high = low + np.exp(rng.uniform(np.log(1e-7), np.log(5.0), 100))
    logs, errors = normal_mass(low, high)
    with mpmath.workdps(330):
        for a, b, value, error in zip(low, high, logs, errors, strict=True):
            assert abs(mpmath.log(normal(a, b)) - mpmath.mpf(value)) <= error + 4e-16 * abs(value)


def test_normal_mass_of_unbounded_and_empty_intervals() -> None:
    logs, errors = normal_mass(np.array([-np.inf, 0.0, 1.0, -np.inf]), np.array([0.0, np.inf, 1.0, np.inf]))
    np.testing.assert_allclose(np.exp(logs), [0.5, 0.5, 0.0, 1.0], rtol=1e-15)
    assert np.all(np.isfinite(errors))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("spacing", [3e-5, 2e-3, 0.1])
def test_cells_hold_the_exact_masses(spacing: float, direction: str) -> None:
    pair = Mixture.poisson(3, 0.05, 0.8)
    area = pair.truncate(direction, math.log(1e-20), math.log(1e-12))
    upper, _ = area.cells(spacing, [3.0], 8.0, 1 << 20)
    sign = 1.0 if direction == "present-first" else -1.0
    losses = upper.lowest + spacing * upper.index
    rng = np.random.default_rng(5)
    with mpmath.workdps(40):
        for i in rng.choice(np.arange(1, len(upper.mass) - 1), 12, replace=False):
            ends = sorted(
                mpmath.findroot(
                    lambda z, at=at: log_ratio(pair, z) - sign * at,
                    float(pair.ratio.inverse(np.array(float(sign * at)))),
                )
                for at in (mpmath.mpf(losses[i]), mpmath.mpf(losses[i + 1]))
            )
            group = mpmath.mpf(0)
            for a, p in zip(pair.ratio.shifts, pair.probabilities, strict=True):
                group += mpmath.mpf(float(p)) * normal(ends[0] - float(a), ends[1] - float(a))
            none = normal(*ends)
            first, second = (group, none) if sign > 0 else (none, group)
            scaled = second * mpmath.exp(mpmath.mpf(losses[i]))
            # ends of cells are only known up to ``shift``, which a cell's own mass cannot be held against
            blur = first * upper.shift * 4 / spacing
            assert abs(first - mpmath.mpf(upper.mass[i])) <= first * upper.error[i] + blur
            excess = mpmath.mpf(upper.excess[i])
            allowed = (first - scaled) * upper.error[i] + first * upper.slip[i] + blur * spacing
            assert abs(excess - (first - scaled)) <= allowed


@given(pairs, st.sampled_from(DIRECTIONS), st.floats(math.log(1e-4), 0.0).map(math.exp), st.floats(0.05, 300.0))
def test_cells_account_for_all_the_mass(pair: Mixture, direction: str, spacing: float, tilt: float) -> None:
    area = pair.truncate(direction, math.log(1e-15), math.log(1e-10))
    try:
        both = area.cells(spacing, [tilt], 5.0, 20_000)
    except TooLongError:
        return
    for cells in both:
        total = cells.mass.sum() + cells.below + cells.above + cells.atoms[1].sum()
        assert total == pytest.approx(1.0, abs=1e-12)
        assert np.all(cells.excess >= -cells.mass * (cells.slip + 1e-15))
        most = -np.expm1(-cells.widths)
        assert np.all(cells.excess <= cells.mass * (most * (1.0 + cells.error + 1e-15) + cells.slip + 1e-15))


@settings(max_examples=60, deadline=None)
@given(
    pairs,
    st.sampled_from(DIRECTIONS),
    st.floats(math.log(1e-4), math.log(2.0)).map(math.exp),
    st.floats(0.05, 300.0),
    st.lists(st.floats(-0.2, 1.1), min_size=8, max_size=8),
)
def test_discretised_curves_enclose_the_exact_one(
    pair: Mixture, direction: str, spacing: float, tilt: float, places: list[float]
) -> None:
    area = pair.truncate(direction, math.log(1e-15), math.log(1e-10))
    try:
        upper, lower = area.cells(spacing, [tilt], 5.0, 20_000)
    except TooLongError:
        return
    above, below = discretize_from_above(upper), discretize_from_below(lower)
    assert np.all(above.masses >= 0.0)
    assert np.all(below.masses >= 0.0)
    assert above.masses.sum() + above.infinity == pytest.approx(1.0, abs=1e-9)
    assert below.masses.sum() <= 1.0 + 1e-12
    span = above.spacing * float(above.index[-1])
    for place_ in places:
        epsilon = above.lowest + place_ * span
        truth = float(pair.delta(epsilon, direction))
        # the shift is charged when curves are composed; the closed form itself is good to about 1e-12
        assert curve(below, epsilon + below.shift) <= truth * (1.0 + 1e-11) + 1e-300
        assert curve(above, epsilon - above.shift) >= truth * (1.0 - 1e-11)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_curves_close_in_with_the_square_of_the_spacing(direction: str) -> None:
    pair = Mixture.poisson(2, 0.1, 1.0)
    area = pair.truncate(direction, math.log(1e-18), math.log(1e-18))
    epsilon, gaps = 0.1, []
    for spacing in (0.01, 0.001):
        upper, lower = area.cells(spacing, [1.0], 1.0, 1 << 20)
        gaps.append(curve(discretize_from_above(upper), epsilon) - curve(discretize_from_below(lower), epsilon))
    assert gaps[1] < gaps[0] / 50.0


def test_nodes_are_dense_where_the_mass_is_and_never_wider_than_allowed() -> None:
    pair = Mixture.poisson(4, 0.01, 1.0)
    area = pair.truncate("present-first", math.log(1e-18), math.log(1e-12))
    low, high = area.ratio(np.array([area.low, area.high]))
    index = area.place_nodes(low, 1e-3, [2.0], 12.0, 1 << 20)
    widths = np.diff(index)
    assert list(index[:3]) == [0, 1, 2]
    assert widths.min() == 1
    assert widths.max() <= 13
    assert low + 1e-3 * index[-1] >= high
    assert len(index) < 0.2 * index[-1]


def test_a_grid_over_the_limit_is_refused() -> None:
    pair = Mixture.poisson(4, 0.01, 1.0)
    area = pair.truncate("present-first", math.log(1e-18), math.log(1e-12))
    with pytest.raises(TooLongError) as caught:
        area.cells(1e-5, [2.0], 1.0, 1000)
    assert caught.value.factor > 100.0


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_left_out_components_are_charged(direction: str) -> None:
    pair = Mixture.poisson(2000, 0.01, 5.0)
    area = pair.truncate(direction, math.log(1e-12), math.log(1e-9))
    assert len(area.ratio.shifts) < 400
    assert 0.0 < area.dropped < 1e-14
    assert (area.pull > 0.0) == (direction == "absent-first")
    assert area.pull < 1e-15


def test_stated_noise_of_the_log_ratio() -> None:
    pair = Mixture.poisson(16, 0.01, 1.0)
    z = np.random.default_rng(1).uniform(-9.0, 25.0, 200)
    area = pair.truncate("present-first", math.log(1e-18), math.log(1e-12))
    upper, _ = area.cells(1e-3, [1.0], 1.0, 1 << 20)
    values = pair.ratio(z)
    with mpmath.workdps(40):
        worst = max(abs(mpmath.mpf(v) - log_ratio(pair, mpmath.mpf(x))) for x, v in zip(z, values, strict=True))
    assert worst < upper.shift


def test_mixture_mass_within_its_stated_error() -> None:
    pair = Mixture.poisson(30, 0.05, 1.3)
    low = np.linspace(-6.0, 25.0, 60)
    high = low + 1e-3
    masses = Masses.of(pair.ratio, low, high)
    logs, errors = masses.group, masses.group_error
    with mpmath.workdps(60):
        for a, b, value, error in zip(low, high, logs, errors, strict=True):
            truth = mpmath.mpf(0)
            for shift, p in zip(pair.ratio.shifts, pair.log_probabilities, strict=True):
                s = mpmath.mpf(float(shift))
                truth += mpmath.exp(mpmath.mpf(float(p))) * normal(mpmath.mpf(a) - s, mpmath.mpf(b) - s)
            # z - shift is itself rounded, which moves both ends together
            moved = 4e-16 * 30.0 * 30.0
            assert abs(mpmath.log(truth) - mpmath.mpf(value)) <= error + moved
