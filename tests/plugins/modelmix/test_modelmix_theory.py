"""The repaired theorem against the reference values, mpmath, and the paper's figure."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

from dpspec_modelmix import density, published, theory
from dpspec_modelmix.options import Segment


def mixed(rate: float, steps: int, noise: float, ratio: float, batch: float, clip: float, p: int = 1) -> Segment:
    return Segment(steps, rate, 1.0 / noise, ratio * batch / (noise * clip), p)


FIGURE = {(r, p): mixed(0.02, 5000, 0.3675, r, 1000, 20, p) for r in (0.075, 0.15, 0.3) for p in (1, 25, 100)}


@pytest.mark.parametrize(
    ("order", "shift", "width", "value"),
    [
        (2, 1.0, 2.0, 0.77612347),
        (3, 1.0, 2.0, 2.4372117),
        (2, 1.0, 10.0, 0.24122883),
        (8, 0.5, 10.0, 4.4359362),
        (4, 0.25, 3.0, 0.22377017),
    ],
)
def test_moments(order: int, shift: float, width: float, value: float) -> None:
    assert density.log_moment(order, shift, width) == pytest.approx(value, rel=6e-8)
    assert density.log_moments(10, shift, width)[order] == pytest.approx(value, rel=6e-8)


def test_fisher_information() -> None:
    assert published.fisher_information(3.0) == pytest.approx(0.57815897, rel=1e-8)
    assert published.fisher_information(10.0) == pytest.approx(0.18063946, rel=1e-7)
    assert published.fisher_information(1e3) * 1e3 == pytest.approx(1.806394571137, rel=1e-11)
    for t in (0.0, 0.3, 2.0, 30.0):
        assert published.fisher_information(t) >= 1.0 / (1.0 + t * t / 12.0)


@pytest.mark.parametrize(("order", "value", "gaussian"), [(2, 0.0027244080, 0.017036863), (8, 0.90829877, 1.3783614)])
def test_one_step(order: int, value: float, gaussian: float) -> None:
    (found,) = theory.step_rdp([order], Segment(1, 0.1, 1.0, 10.0))
    (real,) = published.real_step_rdp([float(order)], Segment(1, 0.1, 1.0, 10.0))
    (narrow,) = theory.step_rdp([order], Segment(1, 0.1, 1.0, 0.0))
    assert found == pytest.approx(value, rel=6e-8)
    assert real == pytest.approx(float(found), rel=1e-11)
    assert narrow == pytest.approx(gaussian, rel=6e-8)


@pytest.mark.parametrize(
    ("ratio", "p", "order", "epsilon"),
    [
        (0.075, 1, 2, 252.71147),
        (0.075, 25, 2, 17.858909),
        (0.075, 100, 3, 15.311976),
        (0.15, 1, 2, 133.56647),
        (0.15, 25, 4, 8.9818935),
        (0.15, 100, 4, 7.9183521),
        (0.3, 1, 2, 72.912117),
        (0.3, 25, 5, 5.4347000),
        (0.3, 100, 6, 4.8208127),
    ],
)
def test_figure_3_at_integer_orders(ratio: float, p: int, order: int, epsilon: float) -> None:
    found = theory.mixed_epsilon([FIGURE[ratio, p]], 1e-5)
    assert found.epsilon == pytest.approx(epsilon, rel=6e-8)
    assert found.order == order
    assert found.at_edge == (order == 2)


@pytest.mark.parametrize(("ratio", "epsilon"), [(0.075, 57.781126), (0.15, 40.418588), (0.3, 31.726001)])
def test_figure_3_at_fractional_orders(ratio: float, epsilon: float) -> None:
    found = published.real_epsilon([FIGURE[ratio, 1]], 1e-5)
    assert found.epsilon == pytest.approx(epsilon, rel=6e-8)
    assert found.order == 1.5


def test_panels_d_to_f_as_predicted() -> None:
    wanted = [[42.34, 30.96, 23.16], [15.34, 9.36, 6.07], [14.59, 8.92, 5.82]]
    for p, row in zip((1, 25, 100), wanted, strict=True):
        for ratio, value in zip((0.075, 0.15, 0.3), row, strict=True):
            segment = mixed(0.04, 5000, 0.456371, ratio, 2000, 20, p)
            found = published.real_epsilon([segment], 1e-5) if p == 1 else theory.mixed_epsilon([segment], 1e-5)
            assert found.epsilon == pytest.approx(value, abs=0.0101)


def test_baselines() -> None:
    segment = FIGURE[0.3, 100]
    assert theory.gaussian_epsilon([segment], 1e-5).epsilon == pytest.approx(2536.0387, rel=6e-8)
    assert published.real_gaussian_epsilon([segment], 1e-5).epsilon == pytest.approx(198.76623, rel=6e-8)
    assert theory.gaussian_epsilon(published.limit([segment]), 1e-5).epsilon == pytest.approx(4.7121562, rel=6e-8)
    matched = [
        theory.gaussian_epsilon(theory.variance_matched([FIGURE[r, 1]]), 1e-5).epsilon for r in (0.075, 0.15, 0.3)
    ]
    assert matched == pytest.approx([8.74, 3.54, 1.65], abs=0.005)


def test_other_settings_of_the_paper() -> None:
    cifar = mixed(0.03, 3500, 0.421, 0.15, 1500, 20, 100)
    assert theory.mixed_epsilon([cifar], 1e-5).epsilon == pytest.approx(6.8536063, rel=6e-8)
    assert theory.gaussian_epsilon([cifar], 1e-5).epsilon == pytest.approx(800.71695, rel=6e-8)
    assert published.real_gaussian_epsilon([cifar], 1e-5).epsilon == pytest.approx(145.78381, rel=6e-8)
    svhn = mixed(1830 / 73260, 4000, 0.4092, 0.15, 1830, 20, 100)
    assert theory.mixed_epsilon([svhn], 1e-5).epsilon == pytest.approx(5.3797877, rel=6e-8)
    assert theory.gaussian_epsilon([svhn], 1e-5).epsilon == pytest.approx(885.43773, rel=6e-8)
    assert published.real_gaussian_epsilon([svhn], 1e-5).epsilon == pytest.approx(144.51996, rel=6e-8)


def test_gaps_that_change_are_added_up_before_the_order_is_chosen() -> None:
    transfer = [mixed(1024 / 5e4, 500, 2.3733, r, 1024, 0.1) for r in (0.0075, 0.005, 0.0025)]
    found = theory.mixed_epsilon(transfer, 1e-5)
    assert (found.epsilon, found.order) == (pytest.approx(0.57894337, rel=6e-8), 38)
    assert theory.gaussian_epsilon(transfer, 1e-5).epsilon == pytest.approx(1.7867622, rel=6e-8)
    scatter = [mixed(8192 / 5e4, 350, 4.0, r, 8192, 1.0) for r in (0.05, 0.025)]
    assert theory.mixed_epsilon(scatter, 1e-5).epsilon == pytest.approx(1.0227255, rel=6e-8)
    assert theory.gaussian_epsilon(scatter, 1e-5).epsilon == pytest.approx(5.9891894, rel=6e-8)
    divergences = [float(theory.step_rdp([38], s)[0]) for s in transfer]
    assert divergences == pytest.approx([9.7590747e-5, 1.4625429e-4, 2.9172140e-4], rel=6e-8)


def test_on_the_scale_of_the_sum_nothing_is_amplified() -> None:
    found = theory.mixed_epsilon([mixed(0.02, 5000, 0.3675, 0.3, 1.0, 20)], 1e-5)
    assert found.epsilon == pytest.approx(2534.0022, rel=6e-8)


def test_two_dimensions_by_direct_integration() -> None:
    q, s, t, order = 0.3, 1.5, 4.0, 3
    (formula,) = theory.step_rdp([order], Segment(1, q, s, t, 2))
    (one_hot,) = theory.step_rdp([order], Segment(1, q, s, t))
    assert formula == pytest.approx(0.631979676, rel=2e-9)
    assert one_hot == pytest.approx(0.900941555, rel=2e-9)
    o, w = density.nodes(s, t, 3.0)
    p0 = np.exp(density.log_density(o, t)) * w
    worst = []
    for degrees in (0, 9, 18, 27, 36, 45):
        angle = math.radians(degrees)
        first, second = (np.exp(density.log_ratio(o, s * f(angle), t)) for f in (math.cos, math.sin))
        ratio = (1 - q) + q * first[:, None] * second[None, :]
        worst.append(math.log(float(p0 @ ratio**order @ p0)) / (order - 1))
    wanted = [0.9009415553, 0.8721110095, 0.7993310949, 0.7156942567, 0.6539987116, 0.6319796762]
    assert worst == pytest.approx(wanted, rel=2e-9)
    assert worst[0] == max(worst)


@pytest.mark.parametrize(("q", "s", "t", "order"), [(0.02, 2.72, 10.2, 2), (0.3, 0.5, 3.0, 1.5), (1.0, 1.0, 60.0, 4)])
def test_one_step_against_mpmath(q: float, s: float, t: float, order: float) -> None:
    with mp.workdps(30):

        def p0(o: mp.mpf) -> mp.mpf:
            return (mp.erfc((abs(o) - t / 2) / mp.sqrt(2)) - mp.erfc((abs(o) + t / 2) / mp.sqrt(2))) / (2 * t)

        def integrand(o: mp.mpf) -> mp.mpf:
            return p0(o) * ((1 - q) + q * p0(o - s) / p0(o)) ** order

        ends = [
            -t / 2 - 11,
            -t / 2 - 4,
            -t / 2,
            -t / 2 + 4,
            t / 2 - 4,
            t / 2,
            t / 2 + 4,
            t / 2 + 11,
            t / 2 + 11 + order * s,
        ]
        exact = float(mp.log(mp.quad(integrand, sorted(ends))) / (order - 1))
    (found,) = published.real_step_rdp([order], Segment(1, q, s, t))
    assert found == pytest.approx(exact, rel=1e-9)
    if order == int(order):
        assert theory.step_rdp([int(order)], Segment(1, q, s, t))[0] == pytest.approx(exact, rel=1e-9)


def test_a_wider_gap_and_more_sparsity_never_hurt() -> None:
    values = [
        theory.mixed_epsilon([Segment(100, 0.1, 1.0, t)], 1e-5).epsilon for t in (0.0, 0.01, 1.0, 2.0, 5.0, 10.0, 100.0)
    ]
    assert values == sorted(values, reverse=True)
    values = [theory.mixed_epsilon([Segment(100, 0.1, 1.0, 10.0, p)], 1e-5).epsilon for p in (1, 2, 5, 25, 400)]
    assert values == sorted(values, reverse=True)
    limit = theory.gaussian_epsilon(published.limit([Segment(100, 0.1, 1.0, 10.0)]), 1e-5).epsilon
    assert limit <= values[-1]


def test_the_one_hot_gradient_is_the_worst_of_those_looked_at() -> None:
    for shift, width in itertools.product((0.1, 1.0, 2.7), (0.5, 10.0, 400.0)):
        assert density.star_shape([2, 3, 8], shift, width) <= 1.0 + 1e-9


@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0, 47.0, 200.0, 1e6])
def test_densities_integrate_to_one(width: float) -> None:
    o, w = density.nodes(1.0, width, 1.0)
    mass = float(w @ np.exp(density.log_density(o, width)))
    dropped = max(0.0, width - 1.0 - 24.0) / width if width > 50.0 else 0.0
    assert mass + dropped == pytest.approx(1.0, abs=1e-8)


def test_large_orders_do_not_overflow() -> None:
    found = theory.step_rdp([256], Segment(1, 0.02, 5.0, 10.0))
    assert np.isfinite(found).all()
    assert found[0] <= theory.step_rdp([256], Segment(1, 0.02, 5.0, 0.0))[0]


def test_what_means_nothing_is_refused() -> None:
    for wrong in ((0, 0.1, 1.0, 1.0), (1, 0.0, 1.0, 1.0), (1, 0.1, -1.0, 1.0), (1, 0.1, 1.0, math.nan)):
        with pytest.raises(ValueError, match="must be"):
            Segment(*wrong)
    with pytest.raises(ValueError, match="p = 1"):
        published.real_step_rdp([1.5], Segment(1, 0.1, 1.0, 1.0, 4))
