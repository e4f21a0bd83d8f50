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


def test_sampled_gradients_have_the_proved_curve() -> None:
    m = PrivateMechanism(kind="sgd-sampled", noise=0.05, records=1000, steps=20000, factor=4.0)
    assert repaired_rdp(m, 11.0) == pytest.approx(20000 * divergences(11, 1e-3, 2.0 / m.sigma)[-1], rel=1e-12)
    assert repaired_rdp(m, 10.5) == repaired_rdp(m, 11.0)
    assert compose_sampled([math.nan, math.nan, 0.1], 0.0, 2.5) == math.inf
