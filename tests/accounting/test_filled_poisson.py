"""Poisson batches whose empty ones get a row: against enumeration of all batches, and composed worst cases."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, norm

from dpspec.accounting import DIRECTIONS, FilledPoisson, Mixture, Pair, PrivacyLoss

Floats = npt.NDArray[np.float64]


def density(x: Floats, values: Sequence[float], rate: float, sigma: float, row: float) -> Floats:
    """The density of a step's sum for records with gradients ``values``, and ``row`` in an empty batch."""
    total = np.zeros_like(x)
    for entered in itertools.product((False, True), repeat=len(values)):
        chance = math.prod(rate if enters else 1.0 - rate for enters in entered)
        drawn = [value for value, enters in zip(values, entered, strict=True) if enters]
        total += chance * norm.pdf(x, math.fsum(drawn) if drawn else row, sigma)
    return total


def deltas(present: Floats, absent: Floats, epsilon: float, step: float) -> Floats:
    pairs = ((present, absent), (absent, present))
    return np.array([np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * step for p, q in pairs])


def upper(pair: Pair, epsilon: float) -> Floats:
    return np.exp([pair.log_delta_bounds(epsilon, side)[1] for side in DIRECTIONS])


EPSILONS = (-0.3, 0.0, 0.2, 1.0, 3.0)


@pytest.mark.family
@pytest.mark.parametrize(("rate", "sigma"), [(0.4, 0.4), (0.02, 1.0), (0.4, 3.0), (0.95, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize(("n", "k"), [(2, 3), (0, 1), (1, 1), (3, 1), (0, 2), (1, 2)])
def test_no_data_leak_more_than_the_bounds(n: int, k: int, rate: float, sigma: float) -> None:
    """All batches of n, or n + 1, others and of each smaller group, for extreme and random gradients and rows."""
    rng, step = np.random.default_rng(0), FilledPoisson(k, rate, n, sigma)
    x = np.linspace(-8.0 * sigma - 6.0, 8.0 * sigma + 6.0, 4001)
    width = float(x[1] - x[0])
    # A kink of the integrand adds up to its slope times width^2 / 8.
    errors = {epsilon: 0.04 * (width / sigma) ** 2 * (1.0 + math.exp(epsilon)) for epsilon in EPSILONS}
    added, zeroed = (
        [(e, upper(pair, e) + errors[e]) for pair in pairs for e in EPSILONS] for pairs in (step.added(), step.zeroed())
    )
    for others, size, row in itertools.product((n, n + 1), {1, k}, (-1.0, 0.6)):
        for values in ([-1.0] * others, [0.0] * others, rng.uniform(-1.0, 1.0, others).tolist()):
            with_group = density(x, [1.0] * size + values, rate, sigma, row)
            without = density(x, values, rate, sigma, row)
            with_zeros = density(x, [0.0] * size + values, rate, sigma, row)
            for epsilon, most in added:
                assert np.all(deltas(with_group, without, epsilon, width) <= most), (values, row, epsilon)
            for epsilon, most in zeroed:
                assert np.all(deltas(with_group, with_zeros, epsilon, width) <= most), (values, row, epsilon)


def test_poisson_batches_would_be_no_bound() -> None:
    """The control: the row opposite to the record exceeds the pair of Poisson batches, added and zeroed."""
    x = np.linspace(-12.0, 12.0, 4001)
    plain, width = upper(Mixture.poisson(1, 0.3, 1.0), 0.5), float(x[1] - x[0])
    with_record, without, zeroed = (density(x, values, 0.3, 1.0, -1.0) for values in ([1.0, -1.0], [-1.0], [0.0, -1.0]))
    for other in (without, zeroed):
        assert deltas(with_record, other, 0.5, width)[0] > plain[0] + 0.02


def composed_delta(present: Floats, absent: Floats, step: float, steps: int, epsilon: float) -> float:
    """The larger delta of both directions, not certified: losses to the nearest 1e-3, by FFT."""
    spacing, half, largest = 1e-3, 20_000, 0.0
    losses = spacing * ((np.arange(2 * half) + half) % (2 * half) - half)
    above = losses > epsilon
    for p, q in ((present, absent), (absent, present)):
        inside = (p > 1e-300) & (q > 1e-300)
        index = np.clip(np.rint(np.log(p[inside] / q[inside]) / spacing).astype(int), -half, half - 1)
        masses = np.bincount(index % (2 * half), p[inside] * step, 2 * half)
        composed = np.fft.irfft(np.fft.rfft(masses / masses.sum()) ** steps, 2 * half)
        largest = max(largest, float(composed[above] @ -np.expm1(epsilon - losses[above])))
    return largest


@pytest.mark.family
@pytest.mark.parametrize(
    ("records", "batch", "steps", "plain", "leaked", "zeroed"),
    [(64, 2, 200, 2.926, 6.87, 8.588), (200, 5, 40, 1.319, 2.17, 3.103), (20, 1, 100, 3.503, 11.01, 11.288)],
)
def test_a_composed_worst_case_is_just_below_the_bound(
    records: int, batch: int, steps: int, plain: float, leaked: float, zeroed: float
) -> None:
    """All others and the row are opposite to the record: the table of ``proofs/filled-batches.md``."""
    rate, n, x = batch / records, records - 1, np.arange(-35.0, 12.0, 0.01)
    law = binom.pmf(np.arange(26), n, rate)
    without = np.asarray(sum(p * norm.pdf(x, -max(1, m)) for m, p in enumerate(law)))
    drawn = np.asarray(sum(p * norm.pdf(x, 1 - m) for m, p in enumerate(law)))
    present = (1.0 - rate) * without + rate * drawn
    assert (
        composed_delta(present, without, 0.01, steps, leaked)
        > 1e-5
        > composed_delta(present, without, 0.01, steps, leaked + 0.05)
    )

    def epsilon(pair: Pair) -> float:
        return PrivacyLoss.of(pair).compose(steps).epsilon(1e-5, width=1e-3).upper

    step = FilledPoisson(1, rate, n, 1.0)
    assert leaked <= min(map(epsilon, step.added())) <= 1.06 * leaked
    assert min(map(epsilon, step.zeroed())) == pytest.approx(zeroed, rel=2e-3)
    assert epsilon(Mixture.poisson(1, rate, 1.0)) == pytest.approx(plain, rel=2e-3)


@pytest.mark.parametrize(("n", "rate"), [(1, 0.5), (63, 1 / 32), (10**6, 1e-9), (2000, 0.025), (10**9, 1e-6)])
def test_the_probability_of_no_other_record_is_rounded_up(n: int, rate: float) -> None:
    with mpmath.workdps(40):
        exact = (1 - mpmath.mpf(rate)) ** n
    step = FilledPoisson(1, rate, n, 1.0)
    assert exact <= step.unfilled <= max(exact * (1 + mpmath.mpf("1e-11")), mpmath.mpf("1e-289"))


@pytest.mark.family
@pytest.mark.parametrize(
    ("k", "rate", "n", "sigma"),
    [
        *itertools.product((1, 3), (1.0, 1.0 - 2.0**-53, 1.0 - 1e-9, 1e-9, 1e-30, 1e-300), (0, 1, 2), (1.0,)),
        *itertools.product((1, 2), (0.5,), (0, 2, 5000), (0.05, 1e6)),
        (1, 1e-6, 10**9, 1.0),
        (40, 0.2, 3, 2.0),
    ],
)
def test_extremes_have_answers_between_poisson_batches_and_a_full_batch(
    k: int, rate: float, n: int, sigma: float
) -> None:
    """An epsilon of 3 steps is at least that of Poisson batches, and at most that of moves by k + 1 at all steps."""
    step = FilledPoisson(k, rate, n, sigma)

    def epsilon(*pairs: Pair) -> Any:
        intervals = [PrivacyLoss.of(pair).compose(3).epsilon(1e-5, width=1e-2) for pair in pairs]
        return min(intervals, key=lambda interval: interval.upper)

    least, most = epsilon(Mixture.poisson(k, rate, sigma)), epsilon(Mixture.full(k + 1, sigma))
    for pairs in (step.added(), step.zeroed()):
        assert least.lower * (1.0 - 1e-9) <= epsilon(*pairs).upper <= most.upper * (1.0 + 1e-2)


@pytest.mark.parametrize(("k", "n"), [(1, 63), (2, 62)])
def test_bounds_grow_with_the_group_and_fall_with_the_others(k: int, n: int) -> None:
    """Also of the group that is at least all records."""
    step, more, larger = (
        FilledPoisson(*sizes, 1.0) for sizes in ((k, 0.05, n), (k, 0.05, n + 40), (k + 1, 0.05, n - 1))
    )
    for epsilon in (0.0, 0.5, 2.0):
        for name in ("added", "zeroed"):
            ends = [np.min([upper(pair, epsilon) for pair in getattr(s, name)()], axis=0) for s in (more, step, larger)]
            assert np.all(ends[0] <= ends[1] * (1.0 + 1e-6))
            assert np.all(ends[1] <= ends[2] * (1.0 + 1e-6))


@pytest.mark.parametrize(
    "values", [(0, 0.5, 1, 1.0), (1, 0.0, 1, 1.0), (1, 1.5, 1, 1.0), (1, 0.5, -1, 1.0), (1, 0.5, 1, 0.0)]
)
def test_refused(values: tuple[int, float, int, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        FilledPoisson(*values)
