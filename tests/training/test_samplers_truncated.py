"""Truncated Poisson batches as they are drawn and measured. Statistical tests reject at 1e-6, with fixed seeds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2

from dpspec.training.device import generator
from dpspec.training.loop.samplers import FixedSize, Poisson, TruncatedPoisson, covariance, exclusive, sampler_of
from dpspec.training.measure.population import Population


def test_batches_are_capped_poisson_ones() -> None:
    sampler, source, draws = TruncatedPoisson(30, 0.4, 13), generator(0, "test"), 4000
    sizes = np.array([len(sampler.draw(source)) for _ in range(draws)])
    assert sizes.max() == 13
    expected = draws * np.append(binom.pmf(np.arange(8, 13), 30, 0.4), binom.sf(12, 30, 0.4))
    counts = np.append([np.sum(sizes == size) for size in range(8, 13)], np.sum(sizes == 13))
    statistic = float((np.square(counts - expected) / expected).sum())
    assert statistic < chi2.ppf(1 - 1e-6, 6)


def test_who_is_kept_of_too_many_is_uniform() -> None:
    sampler, source, draws = TruncatedPoisson(6, 0.7, 2), generator(1, "test"), 3000
    kept = [tuple(batch.tolist()) for batch in (sampler.draw(source) for _ in range(draws)) if len(batch) == 2]
    pairs = list(itertools.combinations(range(6), 2))
    assert set(kept) == set(pairs)
    expected = len(kept) / len(pairs)
    assert sum((kept.count(pair) - expected) ** 2 for pair in pairs) / expected < chi2.ppf(1 - 1e-6, len(pairs) - 1)


def test_without_a_full_batch_it_is_poisson_sampling() -> None:
    one, other = TruncatedPoisson(50, 0.2, 50), Poisson(50, 0.2)
    for seed in range(5):
        assert torch.equal(one.draw(generator(seed, "test")), other.draw(generator(seed, "test")))
    assert one.inclusion == pytest.approx(0.2, rel=1e-12)
    assert covariance(one) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("sampler", [TruncatedPoisson(12, 0.5, 5), FixedSize(12, 4), Poisson(12, 0.3)])
def test_the_spread_of_a_sum_is_what_is_drawn(sampler: TruncatedPoisson | FixedSize | Poisson) -> None:
    rows = torch.tensor(np.random.default_rng(3).normal(size=(12, 3)) + 0.5)
    source, draws = generator(2, "test"), 6000
    sums = torch.stack([rows[sampler.draw(source)].sum(0) for _ in range(draws)])
    known = Population(rows.sum(0), float(rows.square().sum()))
    squares = (sums - known.mean(sampler)).square().sum(1)
    error = float(squares.std()) / draws**0.5
    assert abs(float(squares.mean()) - known.spread(sampler)) < 5 * error
    assert (sums.mean(0) - known.mean(sampler)).abs().max() < 5 * float(sums.std(0).max()) / draws**0.5
    assert exclusive(sampler) == (covariance(sampler) < 0.0)


def test_the_block_of_a_spec_is_read() -> None:
    block = {"scheme": "truncated-poisson", "rate": 0.25, "max_batch": 7}
    assert sampler_of(block, 20) == TruncatedPoisson(20, 0.25, 7)
    for rate, most in ((0.0, 5), (1.5, 5), (0.5, 0)):
        with pytest.raises(ValueError, match=r"rate|max_batch"):
            TruncatedPoisson(20, rate, most)
