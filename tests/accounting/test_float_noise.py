"""Oracles: torch's own generator, enumeration of angles, and quadrature of the Box-Muller density."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from dpspec.accounting.float_noise import (
    LONGEST_PAIR,
    beyond_the_longest,
    exceeded_by_float32,
    revealed_by_float32,
    revealed_by_schedule,
)


def pairs_of(numbers: torch.Tensor) -> np.ndarray:
    """torch's pairs (n / 2, 2), in float64: it fills blocks of 16 with 8 cosines and 8 sines."""
    return numbers.double().view(-1, 2, 8).transpose(1, 2).reshape(-1, 2).numpy()


def test_torch_makes_the_longest_pair_and_none_beyond() -> None:
    numbers = torch.randn(2**14, generator=torch.Generator().manual_seed(80))
    lengths = np.hypot(*pairs_of(numbers).T)
    assert lengths.max() == pytest.approx(LONGEST_PAIR, rel=1e-7)  # of one number in 2^24: this seed has it
    halves = torch.randn(2**14, generator=torch.Generator().manual_seed(80), dtype=torch.float16)
    assert torch.equal(halves, numbers.half())  # float16 and bfloat16 are the same numbers, rounded


def test_fewer_than_16_numbers_are_drawn_in_float64() -> None:
    few, many = (torch.randn(count, generator=torch.Generator().manual_seed(1)) for count in (8, 16))
    assert not torch.equal(few, many[:8])
    assert torch.equal(few, torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64).float())
    assert revealed_by_float32(0.1, 15).delta == 0.0


@pytest.mark.parametrize("shift", [2.0, 3.0, 4.0, 5.5])
def test_share_beyond_the_longest_pair_is_torchs(shift: float) -> None:
    """A correct bound fails with a probability below 1e-6."""
    pairs = pairs_of(torch.randn(2**21, generator=torch.Generator().manual_seed(3)))
    beyond = int((np.hypot(pairs[:, 0] + shift, pairs[:, 1]) > LONGEST_PAIR * 1.00002).sum())
    bound = beyond_the_longest(shift)
    assert stats.binom.cdf(beyond, len(pairs), bound) > 1e-6  # the bound is not above the probability
    assert stats.binom.sf(beyond - 1, len(pairs), 1.01 * bound) > 1e-6  # and not 1 % below it


@pytest.mark.parametrize("shift", [2e-3, 0.05, 0.25])
def test_share_of_the_longest_pairs_is_that_of_all_angles(shift: float) -> None:
    """Enumerates 2^20 of the 2^24 angles for each length in reach."""
    angles = 2.0 * math.pi * np.arange(2**20) / 2**20
    total, k = 0.0, 1
    while (length := math.sqrt(2.0 * (24.0 * math.log(2.0) - math.log(k)))) + shift > LONGEST_PAIR:
        ends = np.hypot(length * np.cos(angles) + shift, length * np.sin(angles))
        total += float((ends > LONGEST_PAIR).mean()) * 2.0**-24
        k += 1
    bound = beyond_the_longest(shift)
    assert 0.9 * total <= bound <= total


@pytest.mark.parametrize("shift", [1.0, 2.0, 3.0, 5.0])
def test_share_of_a_large_shift_is_that_of_normal_numbers(shift: float) -> None:
    """The discrete lengths are close to the continuous ones: quadrature of the density of a disc of a normal pair."""

    def outside(length: float) -> float:
        cosine = (LONGEST_PAIR**2 - length**2 - shift**2) / (2.0 * length * shift)
        return length * math.exp(-0.5 * length**2) * math.acos(min(1.0, max(-1.0, cosine))) / math.pi

    density, _ = integrate.quad(outside, LONGEST_PAIR - shift, LONGEST_PAIR, epsabs=0.0, epsrel=1e-9)
    assert beyond_the_longest(shift) == pytest.approx(density, rel=0.05)


@pytest.mark.parametrize("value", [4.0, 4.7, 5.3, 5.7, LONGEST_PAIR, 6.0])
def test_exceedance_is_that_of_all_lengths_and_angles(value: float) -> None:
    """Enumerates lengths in reach with 2^16 angles, and compares with the normal tail where lengths are dense."""
    cosines, total, k = np.abs(np.cos(2.0 * math.pi * np.arange(2**16) / 2**16)), 0.0, 1
    while (square := 2.0 * (24.0 * math.log(2.0) - math.log(k))) > value**2:
        total += float((math.sqrt(square) * cosines > value).mean()) * 2.0**-24
        k += 1
    found = exceeded_by_float32(value)
    assert found == pytest.approx(total, rel=2e-3, abs=1e-14)
    assert (found == 0.0) == (value >= LONGEST_PAIR)
    if value < 5.0:
        assert found == pytest.approx(2.0 * stats.norm.sf(value), rel=0.1)
        assert found <= 2.0 * stats.norm.sf(value)


def test_composition_of_steps_and_pairs() -> None:
    one = revealed_by_float32(1.0, 16)
    assert (one.pairs, revealed_by_float32(1.0, 16, rate=0.01).delta) == (1, pytest.approx(0.01 * one.delta, rel=1e-5))
    many = revealed_by_float32(1.0, 16, rate=0.01, steps=2000)
    assert many.delta == pytest.approx(1.0 - (1.0 - 0.01 * one.delta) ** 2000, rel=1e-5)
    large = revealed_by_float32(1.0, 10**6, steps=10**4)
    assert 0.99999 < large.delta < 1.0
    assert revealed_by_float32(1.0, 10**6, rate=0.01, steps=10**4).delta == pytest.approx(0.52, abs=0.01)
    deltas = [revealed_by_float32(sigma, 10**4, steps=100).delta for sigma in (0.05, 0.5, 1.0, 8.0, 1000.0)]
    assert deltas == sorted(deltas, reverse=True)


def test_a_schedule_is_composed_and_many_multipliers_count_as_larger_ones() -> None:
    one_by_one = [(1.0, 0.1, 30), (0.5, 0.2, 7), (1.0, 0.2, 5)]
    hidden = 1.0
    for sigma, rate, steps in one_by_one:
        hidden *= 1.0 - revealed_by_float32(sigma, 1000, rate=rate, steps=steps).delta
    assert revealed_by_schedule(one_by_one, 1000) == pytest.approx(1.0 - hidden, rel=1e-5)
    falling = [(2.0 - n / 1000, 0.1, 1) for n in range(1000)]
    lowest, highest = (revealed_by_float32(sigma, 64, rate=0.1, steps=1000).delta for sigma in (2.0, 1.0))
    assert lowest < revealed_by_schedule(falling, 64) < highest
    some = [2.0 - n / 1000 for n in range(0, 1000, 50)]  # as the largest of 50 each
    exact = sum(50.0 * math.log1p(-revealed_by_float32(sigma - 0.049, 64, rate=0.1).delta) for sigma in some)
    assert 0.8 * -math.expm1(exact) < revealed_by_schedule(falling, 64) < -math.expm1(exact)
    assert revealed_by_schedule([], 64) == 0.0


def test_shift_beyond_the_longest_pair_counts_as_the_longest() -> None:
    assert beyond_the_longest(100.0) == beyond_the_longest(LONGEST_PAIR * 1.1) <= 0.6


@pytest.mark.parametrize("arguments", [{"rate": 0.0}, {"rate": 1.5}, {"steps": 0}])
def test_arguments(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        revealed_by_float32(1.0, 16, **arguments)  # type: ignore[arg-type]
