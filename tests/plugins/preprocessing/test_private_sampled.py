"""One record a step, one replaced: the proof, step by step, by quadrature, and its outcome on explicit gradients."""

import math

import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from dpspec.accounting import sampled_gaussian_integer_rdp
from dpspec_preprocessing.private import PrivateMechanism, compose_sampled, divergences, repaired_rdp

Floats = npt.NDArray[np.float64]


def plane(effect: float, order: int) -> tuple[Floats, Floats, float]:
    reach = 9.0 + order * effect
    line = np.linspace(-reach, reach, 801)
    x, y = np.meshgrid(line, line, indexing="ij")
    return x, y, float((line[1] - line[0]) ** 2)


#: Places of a common record, the record and its replacement, in units of 2 L / sigma: all within one of one another.
#: The first four are in one ball of radius 1 / 2, as gradients are; the last is not, and exceeds the fixed pair.
TRIPLES = {
    "apart": ((0.0, 0.0), (1.0, 0.0), (0.0, 0.0)),
    "opposite": ((0.0, 0.0), (0.5, 0.0), (-0.5, 0.0)),
    "right-angle": ((0.0, 0.0), (math.sqrt(0.5), 0.0), (0.0, math.sqrt(0.5))),
    "inscribed": ((0.0, 0.0), (math.sqrt(0.75), 0.0), (math.sqrt(0.1875), 0.75)),
    "equilateral": ((0.0, 0.0), (1.0, 0.0), (0.5, math.sqrt(0.75))),
}


@pytest.mark.family
@pytest.mark.parametrize("name", TRIPLES)
@pytest.mark.parametrize(("rate", "effect", "order"), [(0.01, 1.0, 2), (0.05, 0.4, 4), (0.2, 0.8, 3), (0.02, 1.5, 2)])
def test_gradients_in_every_direction_keep_the_curve(name: str, rate: float, effect: float, order: int) -> None:
    x, y, area = plane(effect, order)

    def law(at: tuple[float, float]) -> Floats:
        squared = np.square(x - effect * at[0]) + np.square(y - effect * at[1])
        return np.asarray(np.exp(-0.5 * squared) / (2.0 * math.pi), dtype=np.float64)

    common, one, other = TRIPLES[name]
    a, b = ((1.0 - rate) * law(common) + rate * law(at) for at in (one, other))
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = float((np.where(b > 0.0, (a / b) ** order - 1.0 - order * (a / b - 1.0), 0.0) * b).sum()) * area
    exact = math.log1p(excess) / (order - 1.0)
    proved = divergences(order, rate, effect)[-1]
    assert exact <= proved
    if name == "apart":
        assert exact == pytest.approx(float(sampled_gaussian_integer_rdp(order, rate, 1.0 / effect)), rel=1e-6)


@pytest.mark.parametrize(("q", "s", "order"), [(1e-6, 0.002, 20), (0.2, 1.0, 8), (0.02, 3.0, 5)])
def test_the_sum_keeps_its_digits(q: float, s: float, order: int) -> None:
    with mpmath.workdps(60):
        rate, effect = mpmath.mpf(q), mpmath.mpf(s)
        total = mpmath.mpf(0)
        for j in range(2, order + 1):
            powers = (
                mpmath.exp(i * (i - 1) * effect**2 / 2) * (-1) ** (j - i) * mpmath.binomial(j, i) for i in range(j + 1)
            )
            total += mpmath.binomial(order, j) * rate**j * sum(powers)
        share = mpmath.ncdf(1.5 * effect) - (1 - rate) ** (order - 2) * mpmath.ncdf(-1.5 * effect)
        total += mpmath.binomial(order, 2) * rate**2 * mpmath.expm1(effect**2) * share
        exact = mpmath.log1p(total) / (order - 1)
    assert divergences(order, q, s)[-1] == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.family
@pytest.mark.parametrize("replaced", [2, 5, 8])
def test_groups_keep_the_curve_at_their_rate(replaced: int) -> None:
    """Replace some or all of eight records by gradients in other directions."""
    random, order = np.random.default_rng(replaced), 3
    x, y, area = plane(1.0, order)
    for _ in range(4):
        places = random.normal(size=(8 + replaced, 2))
        places *= 0.5 / np.linalg.norm(places, axis=1)[:, None]
        laws = [np.exp(-0.5 * ((x - u) ** 2 + (y - v) ** 2)) / (2.0 * math.pi) for u, v in places]
        a, b = np.mean(laws[:8], axis=0), np.mean(laws[replaced:], axis=0)
        exact = math.log(float((a**order * b ** (1.0 - order)).sum()) * area) / (order - 1.0)
        assert exact <= divergences(order, replaced / 8, 1.0)[-1]


def test_sampled_gradients_have_the_proved_curve() -> None:
    m = PrivateMechanism(kind="sgd-sampled", noise=0.05, records=1000, steps=20000, factor=4.0)
    assert repaired_rdp(m, 11.0) == pytest.approx(20000 * divergences(11, 1e-3, 2.0 / m.sigma)[-1], rel=1e-12)
    assert repaired_rdp(m, 10.5) == repaired_rdp(m, 11.0)
    assert compose_sampled([math.nan, math.nan, 0.1], 0.0, 2.5) == math.inf
    assert compose_sampled([math.nan, math.nan, 0.1], 0.0, 1e100) == math.inf


def test_the_fixed_pair_is_exceeded_by_centres_as_far_from_one_another() -> None:
    """Why the closed form of Poisson sampling is no proof here: distances alone allow more."""
    rate, effect = 1e-3, 1.0
    chi_squared = rate**2 * (2.0 * math.exp(effect**2) - 2.0 * math.exp(0.5 * effect**2))  # equilateral, to order q^2
    assert chi_squared > math.expm1(float(sampled_gaussian_integer_rdp(2, rate, 1.0 / effect)))
    assert chi_squared <= math.expm1(divergences(2, rate, effect)[-1])


@pytest.mark.parametrize(("rate", "effect", "order"), [(0.01, 0.3, 5), (0.2, 1.0, 8), (1e-3, 2.0, 3)])
def test_the_integral_and_what_bounds_it(rate: float, effect: float, order: int) -> None:
    """m (m - 1) integral (c^(m - 2) + c^(-m - 1)) E[(r - c)+] dc = E[r^m + r^(1 - m) - r - 1; r > 1] <= the curve's."""
    z = np.linspace(0.5 * effect, 14.0 + order * effect, 200_001)
    law = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    r = 1.0 + rate * np.expm1(effect * z - 0.5 * effect**2)
    whole = float(np.trapezoid(law * (r**order + r ** (1 - order) - r - 1.0), z))

    def hockey(c: float) -> float:
        # (1 - q) + q e^(s z - s^2 / 2) > c from some z on
        start = math.log1p((c - 1.0) / rate) / effect + 0.5 * effect
        upper = 0.5 * math.erfc((start - effect) / math.sqrt(2.0))
        return rate * upper - (c - 1.0 + rate) * 0.5 * math.erfc(start / math.sqrt(2.0))

    c = 1.0 + np.geomspace(1e-9, float(r[-1]), 20_001)
    weighted = [order * (order - 1) * (v ** (order - 2) + v ** (-order - 1)) * hockey(float(v)) for v in c]
    assert float(np.trapezoid(weighted, c)) == pytest.approx(whole, rel=1e-3)
    assert whole <= math.expm1((order - 1) * divergences(order, rate, effect)[-1])
