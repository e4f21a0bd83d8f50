"""From norms to the divergence of runs: the table against the formula, and the composition against its parts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, hypergeom

from dpspec.contract import FrozenMap
from dpspec_per_instance import theory
from dpspec_per_instance.bounds import Composer
from dpspec_per_instance.findings import above, quantile_place
from dpspec_per_instance.theory import StepTable, entropic_mean, exponents, step_divergence

MECHANISM = {
    "noise_multiplier": 0.9,
    "clip_norm": 0.5,
    "sampling": {"scheme": "poisson", "rate": 0.05},
    "steps": 30,
    "orders": [1.5, 2.0, 4.0, 16.0],
    "composition": {"exponent": "auto", "observe_every": 1},
}
LOGS = theory.log_terms(1000, 0.05)


def mechanism(**changes):
    return FrozenMap({**MECHANISM, **changes})


@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
@pytest.mark.parametrize(("rate", "sigma"), [(0.05, 0.8665), (128 / 60000, 0.469), (0.5, 3.0), (1.0, 2.0)])
def test_the_table_is_never_below_the_formula_and_hardly_above(direction, rate, sigma):
    """1280 orders and norms each: above by at most 2% where the divergence does not jump, and never below."""
    table = StepTable(rate, sigma, 1.3, 40.0, direction)
    rng = np.random.default_rng(0)
    sizes = np.concatenate([[0.0, 1.0], rng.uniform(0.01, 1.0, 62)])
    excess = []
    for order in np.concatenate([[1.3, 40.0], rng.uniform(1.3, 40.0, 18)]):
        truth = np.append(0.0, (order - 1.0) * step_divergence(order, rate, sizes[1:] / sigma, direction))
        found = table.row(float(order))[table.places(sizes)]
        assert np.all(found >= truth * (1 - 1e-10))
        excess += list(found[truth > 0] / truth[truth > 0] - 1)
        assert table.saturated(order) >= step_divergence(order, rate, 1.0 / sigma, direction) * (1 - 1e-10)
    assert np.median(excess) < 0.01
    assert np.quantile(excess, 0.9) < 0.03


def test_the_composition_is_that_of_its_parts():
    """Every step observed: plug-ins and confidence bounds of totals, against the theorem put together by hand."""
    rng = np.random.default_rng(1)
    runs = [rng.uniform(0, 1, (30, 5)).astype(np.float32) for _ in range(6)]
    for run in runs:
        run[0] = 1.0  # the first model is the same in all runs
    composer = Composer(mechanism(), "present-first")
    places = composer.places(runs)
    for order in composer.orders:
        e = exponents(order, 30, 90.0)
        total = composer.total(order, places, LOGS)
        plug_in, certain = np.zeros(5), np.zeros(5)
        for t in range(30):
            d = step_divergence(e.orders[t], 0.05, np.stack([run[t] for run in runs]).astype(float) / 0.9)
            part = entropic_mean(d, float(e.weights[t]))
            top = float(step_divergence(e.orders[t], 0.05, 1 / 0.9))
            plug_in += part
            certain += part if t == 0 else theory.confidence_upper_mean(part, float(e.weights[t]), top, 6, LOGS)
        assert np.all(total.plug_in >= plug_in * (1 - 1e-9))
        assert total.plug_in == pytest.approx(plug_in, rel=0.03)
        assert np.all(total.confidence_upper >= certain * (1 - 1e-9))
        assert total.confidence_upper == pytest.approx(certain, rel=0.03)
        baseline = composer.baseline(order)
        assert baseline == pytest.approx(30 * float(step_divergence(order, 0.05, 1 / 0.9)))
        assert np.all(total.plug_in <= total.confidence_upper * (1 + 1e-9))
        assert composer.kappa(order)[0] == pytest.approx(90 * (order - 1) * baseline / 30, rel=1e-9)
        second = float(step_divergence(e.orders[1], 0.05, 1 / 0.9)) * e.weights[1]
        assert composer.kappa(order)[1] == pytest.approx(second)
    assert Composer(mechanism(steps=1), "present-first").kappa(4.0) == (0.0, 0.0)


@pytest.mark.parametrize("direction", ["present-first", "absent-first"])
def test_a_saturated_record_is_never_below_the_data_independent_value(direction):
    """At every order: the composition charges it more, so that the smaller of the two is the data-independent one."""
    for changes in ({}, {"composition": {"exponent": 40.0}}, {"step_bound": "theorem"}, {"steps": 1}):
        composer = Composer(mechanism(**changes), direction)
        full = [np.ones((len(composer.observed), 3), dtype=np.float32)] * 4
        places = composer.places(full)
        for order in composer.orders:
            total = composer.total(order, places, LOGS)
            assert np.all(total.plug_in >= composer.baseline(order) * (1 - 1e-12))
            assert np.all(total.confidence_upper >= composer.baseline(order) * (1 - 1e-12))


def test_steps_between_observations_are_filled_in():
    """Estimates: as at the last observation. Confidence bounds: saturated."""
    dense, sparse = (Composer(mechanism(composition={"observe_every": n}), "present-first") for n in (1, 10))
    assert list(sparse.observed) == [1, 11, 21]
    truth, found = (
        one.total(4.0, one.places([np.full((len(one.observed), 2), 0.3, dtype=np.float32)] * 3), LOGS)
        for one in (dense, sparse)
    )
    assert np.all(found.plug_in >= truth.plug_in)
    assert found.plug_in == pytest.approx(truth.plug_in, rel=0.35)
    between = np.delete(exponents(4.0, 30, 90.0).orders, [0, 10, 20])
    saturated = sum(sparse.saturated(float(order), 1) for order in between)
    assert np.all(saturated > 4 * truth.plug_in)
    assert np.all(found.confidence_upper >= saturated)


def test_phases_have_steps_of_their_own():
    two = {
        "phases": [{"steps": 10, "noise_multiplier": 2.0}, {"steps": 20, "sampling": {"scheme": "full"}}],
        **{k: v for k, v in MECHANISM.items() if k != "steps"},
    }
    composer = Composer(FrozenMap(two), "present-first")
    assert composer.count == 30
    assert composer.saturated(4.0, 10) == pytest.approx(float(step_divergence(4.0, 0.05, 0.5)))
    assert composer.saturated(4.0, 11) == pytest.approx(4.0 / 2 / 0.81)
    assert composer.baseline(4.0) == pytest.approx(10 * composer.saturated(4.0, 1) + 20 * composer.saturated(4.0, 30))


def test_quantiles_of_samples_are_safe():
    """All audited, or without a confidence: the quantile itself. The next test has confident quantiles of samples."""
    assert quantile_place(0.5, 10, 10, None) == 4
    assert quantile_place(1.0, 10, 10, 0.05) == 9
    assert quantile_place(0.9, 100, 300, None) == 89
    assert quantile_place(0.99, 20, 300, 0.05) is None


@given(st.data())
def test_how_many_of_a_sample_are_marked_is_hypergeometric(data):
    """By exact counting; and the least place is the one that a search by scipy's tails finds."""
    population = data.draw(st.integers(1, 60))
    drawn, marked = data.draw(st.integers(1, population)), data.draw(st.integers(0, population))
    ways = [math.comb(marked, k) * math.comb(population - marked, drawn - k) for k in range(drawn + 1)]
    exact = [sum(ways[i + 1 :]) / math.comb(population, drawn) for i in range(drawn)]
    assert above(population, marked, drawn) == pytest.approx(exact, rel=1e-12, abs=1e-290)
    fraction, failure = data.draw(st.sampled_from([0.1, 0.5, 0.9, 1.0])), data.draw(st.sampled_from([0.2, 0.05, 1e-3]))
    if drawn < population:
        below = math.ceil(fraction * population - 1e-9) - 1
        searched = (i for i in range(drawn) if hypergeom.sf(i, population, below, drawn) <= failure)
        assert quantile_place(fraction, drawn, population, failure) == next(searched, None)


@pytest.mark.parametrize("population", [10**6, 2**40, 2**62])
def test_quantiles_of_a_sample_take_no_longer_for_more_records(population):
    """Of so many the sample is one with replacement, nearly: the number of marked ones is binomial."""
    marked = population // 10
    exact = binom.sf(np.arange(40), 40, marked / population)
    assert above(population, marked, 40) == pytest.approx(exact, rel=1e-2 if population == 10**6 else 1e-6, abs=1e-30)


def test_more_records_than_there_are_are_no_sample():
    with pytest.raises(ValueError, match="cannot be a sample of 7"):
        quantile_place(0.5, 8, 7, 0.05)
