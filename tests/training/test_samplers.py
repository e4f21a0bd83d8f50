"""Samplers do what the accountant is told. Statistical tests reject at 1e-6, with fixed seeds."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binom, chi2

from dpspec.training.device import derive, generator
from dpspec.training.loop.samplers import FixedSize, Full, Poisson, Shuffled, sampler_of


def counts(sampler, draws, seed=0):
    source = generator(seed, "test")
    inclusions = torch.zeros(sampler.records, dtype=torch.int64)
    sizes = []
    for _ in range(draws):
        drawn = sampler.draw(source)
        assert bool((drawn.diff() > 0).all())
        inclusions[drawn] += 1
        sizes.append(len(drawn))
    return inclusions, torch.tensor(sizes)


def two_sided(distribution, value):
    return 2 * min(distribution.cdf(value), distribution.sf(value - 1))


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_poisson_includes_each_record_at_the_rate(rate):
    records, draws = 200, 3000
    inclusions, sizes = counts(Poisson(records, rate), draws)
    assert two_sided(binom(records * draws, rate), int(inclusions.sum())) > 1e-6
    # Each record, corrected for the number of records.
    assert min(two_sided(binom(draws, rate), int(n)) for n in inclusions) > 1e-6 / records
    # Batch sizes spread as independent inclusion makes them: fixed-size batches would have no variance.
    variance = records * rate * (1 - rate)
    statistic = float(((sizes - records * rate) ** 2).sum()) / variance
    assert chi2.ppf(1e-6, draws) < statistic < chi2.ppf(1 - 1e-6, draws)


def test_records_enter_independently_and_steps_are_fresh():
    sampler, source, draws = Poisson(2, 0.5), generator(1, "test"), 4000
    table = torch.zeros(draws, 2)
    for row in table:
        row[sampler.draw(source)] = 1
    both = int((table[:, 0] * table[:, 1]).sum())
    assert two_sided(binom(draws, 0.25), both) > 1e-6
    again = int((table[1:, 0] * table[:-1, 0]).sum())
    # The products of neighbours have variance 3/16 and covariance 1/16 with the next: 5/16 per step in all.
    assert abs(again - draws / 4) < 5 * (5 / 16 * draws) ** 0.5


def test_poisson_draws_empty_batches():
    _, sizes = counts(Poisson(5, 0.1), 1000)
    empty = int((sizes == 0).sum())
    assert two_sided(binom(1000, 0.9**5), empty) > 1e-6
    assert counts(Poisson(5, 0.0), 3)[1].tolist() == [0, 0, 0]
    assert counts(Poisson(5, 1.0), 3)[1].tolist() == [5, 5, 5]


def test_fixed_size_is_exact_and_uniform():
    records, size, draws = 20, 6, 4000
    inclusions, sizes = counts(FixedSize(records, size), draws)
    assert sizes.unique().tolist() == [size]
    # Without replacement the counts' covariance has rank records - 1: the sum is fixed.
    rate = size / records
    statistic = float(((inclusions - draws * rate) ** 2).sum()) / (draws * rate * (1 - rate)) * (records - 1) / records
    assert chi2.ppf(1e-6, records - 1) < statistic < chi2.ppf(1 - 1e-6, records - 1)


def test_full_takes_everything():
    sampler = Full(4)
    assert sampler.draw(generator(0, "test")).tolist() == [0, 1, 2, 3]
    assert sampler.inclusion == 1.0


def test_an_epoch_of_shuffled_batches_takes_every_record_once():
    sampler, source = Shuffled(10, 4), generator(0, "test")
    orders = []
    for _ in range(3):
        batches = [sampler.draw(source) for _ in range(3)]
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert all(bool((batch.diff() > 0).all()) for batch in batches)
        orders.append(torch.cat(batches))
        assert orders[-1].sort().values.tolist() == list(range(10))
    assert not torch.equal(orders[0], orders[1])
    assert sampler.inclusion == 1 / 3


def test_shuffled_batches_are_uniform_and_fresh_each_epoch():
    """Which of the 20 positions' first batch a record is in: 4000 epochs, chi-square over records; then over pairs."""
    sampler, source, epochs = Shuffled(20, 5), generator(2, "test"), 4000
    first = torch.zeros(epochs, 20)
    for row in first:
        row[sampler.draw(source)] = 1
        for _ in range(3):
            sampler.draw(source)
    counts_ = first.sum(0)
    statistic = float(((counts_ - epochs / 4) ** 2).sum()) / (epochs * 3 / 16) * 19 / 20
    assert chi2.ppf(1e-6, 19) < statistic < chi2.ppf(1 - 1e-6, 19)
    # Two records together: 5/20 * 4/19; the same record in the next epoch: 1/16, independently.
    assert two_sided(binom(epochs, 5 * 4 / (20 * 19)), int((first[:, 0] * first[:, 1]).sum())) > 1e-6
    again = int((first[1:, 0] * first[:-1, 0]).sum())
    assert abs(again - epochs / 16) < 5 * (epochs * (1 / 16 * 15 / 16 + 2 * (1 / 64 - 1 / 256))) ** 0.5


def test_shuffled_batches_go_on_where_they_stopped():
    source = generator(5, "test")
    sampler, other = Shuffled(11, 4), Shuffled(11, 4)
    sampler.draw(source)
    state, place = sampler.state(), source.get_state()
    expected = [sampler.draw(source) for _ in range(7)]
    other.restore(state)
    source.set_state(place)
    assert all(torch.equal(other.draw(source), batch) for batch in expected)
    other.restore({})
    assert other.state().keys() == {"taken"}


def test_the_seed_decides():
    for sampler in (Poisson(50, 0.5), FixedSize(50, 10)):
        first = sampler.draw(generator(3, "test"))
        assert torch.equal(first, sampler.draw(generator(3, "test")))
        assert not torch.equal(first, sampler.draw(generator(4, "test")))


def test_streams_differ_by_purpose():
    assert derive(7, "sampling") != derive(7, "noise") != derive(8, "noise")
    assert 0 <= derive(2**62, "noise") < 2**63


def test_chosen_by_the_spec():
    assert sampler_of({"scheme": "poisson", "rate": 0.1}, 10) == Poisson(10, 0.1)
    assert sampler_of({"scheme": "fixed", "batch_size": 4}, 10) == FixedSize(10, 4)
    assert sampler_of({"scheme": "full"}, 10) == Full(10)
    assert FixedSize(10, 4).inclusion == 0.4
    assert sampler_of({"scheme": "shuffled", "batch_size": 4}, 10) == Shuffled(10, 4)
    with pytest.raises(ValueError, match="got 'bag'"):
        sampler_of({"scheme": "bag"}, 10)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_rates_outside_the_unit_interval(rate):
    with pytest.raises(ValueError, match=r"within \[0, 1\]"):
        Poisson(10, rate)


@pytest.mark.parametrize("size", [0, 11])
def test_batches_that_do_not_exist(size):
    for sampler in (FixedSize, Shuffled):
        with pytest.raises(ValueError, match=r"within 1..10"):
            sampler(10, size)
